// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/text"
)

// What packaging/kubernetes knows an agent's certificate by.
const (
	certificateGroup  = "kured-agent:nodes"
	certificatePrefix = "kured-agent:"
)

const (
	askAgainEvery = 250 * time.Millisecond
	waySigner     = "the control plane has no signer for kubernetes.io/kube-apiserver-client, as on EKS? Tokens need none"
)

// CertificateOptions say how a certificate is got.
type CertificateOptions struct {
	Lifetime time.Duration // the signer may grant less
	Wait     time.Duration // for approval and signature
	// Waits is told the name of the request when somebody else has to approve it; nil: nobody is.
	Waits func(request string)
}

// Certificate makes a key and asks the cluster to sign a client certificate for the agent of the Node. It approves the
// request when the admin may, else it waits until somebody does. The key goes nowhere.
func (c *Client) Certificate(ctx context.Context, node Target, o CertificateOptions) (Credential, error) {
	key, request, err := newRequest(node.Name)
	if err != nil {
		return Credential{}, fmt.Errorf("making a key for node %q: %w", node.Name, err)
	}
	doing := fmt.Sprintf("requesting a certificate for node %q", node.Name)
	csr, err := c.createRequest(ctx, request, o.Lifetime)
	if err != nil {
		return Credential{}, fail(doing, err, "")
	}
	doing += fmt.Sprintf(" (%s)", csr.Name)
	signed, err := c.sign(ctx, csr, o)
	if err == nil {
		var credential Credential
		if credential, err = pairUp(node.Name, key, signed); err == nil {
			return credential, nil
		}
	}
	// Nobody else has its key.
	lasting, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_ = c.csr(c.rest.Delete(), csr.Name).Do(lasting).Error() // the cluster itself removes old ones
	return Credential{}, fmt.Errorf("%s: %w", doing, err)
}

func newRequest(node string) (key *ecdsa.PrivateKey, request []byte, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: certificatePrefix + node, Organization: []string{certificateGroup}},
	}, key)
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), err
}

func (c *Client) csr(r *rest.Request, name string) *rest.Request {
	return r.AbsPath("/apis/certificates.k8s.io/v1").Resource("certificatesigningrequests").Name(name)
}

func (c *Client) createRequest(
	ctx context.Context, request []byte, lifetime time.Duration,
) (csr certificatesv1.CertificateSigningRequest, err error) {
	seconds := int32(lifetime / time.Second)
	body, err := json.Marshal(certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: "kured-agent-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: certificatesv1.KubeAPIServerClientSignerName, ExpirationSeconds: &seconds,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	})
	if err != nil {
		return csr, err
	}
	err = decode(c.rest.Post().AbsPath("/apis/certificates.k8s.io/v1").Resource("certificatesigningrequests").
		Param("fieldManager", fieldManager).Body(body).Do(ctx), &csr)
	return csr, err
}

// sign has the request approved and returns the certificate as PEM.
func (c *Client) sign(ctx context.Context, csr certificatesv1.CertificateSigningRequest, o CertificateOptions) ([]byte, error) {
	switch err := c.approve(ctx, csr); {
	case apierrors.IsForbidden(err):
		if o.Waits != nil {
			o.Waits(csr.Name)
		}
	case err != nil && !apierrors.IsConflict(err): // somebody was quicker
		return nil, fail("approving it", err, "")
	}
	waiting, cancel := context.WithTimeout(ctx, o.Wait)
	defer cancel()
	ticker := time.NewTicker(askAgainEvery)
	defer ticker.Stop()
	for {
		var now certificatesv1.CertificateSigningRequest
		if err := decode(c.csr(c.rest.Get(), csr.Name).Do(ctx), &now); err != nil {
			return nil, fail("looking whether it is signed", err, "somebody deleted it: run it again")
		}
		done, err := outcome(now.Status)
		if done || err != nil {
			return now.Status.Certificate, err
		}
		select {
		case <-ticker.C:
		case <-waiting.Done():
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, stillWaiting(now.Status, o.Wait)
		}
	}
}

// approve sends the whole object, as "kubectl certificate approve" does: that is the right that roles give.
func (c *Client) approve(ctx context.Context, csr certificatesv1.CertificateSigningRequest) error {
	csr.APIVersion, csr.Kind = "certificates.k8s.io/v1", "CertificateSigningRequest"
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "KuredAgentEnroll",
		Message: "approved by kubectl kured enroll, which made the key",
	})
	body, err := json.Marshal(csr)
	if err != nil {
		return err
	}
	return c.csr(c.rest.Put(), csr.Name).SubResource("approval").Param("fieldManager", fieldManager).Body(body).Do(ctx).Error()
}

// decidedError is about this one request: others may be decided otherwise.
type decidedError struct{ text string }

func (e *decidedError) Error() string { return e.text }

func outcome(status certificatesv1.CertificateSigningRequestStatus) (done bool, err error) {
	for _, condition := range status.Conditions {
		if condition.Type == certificatesv1.CertificateDenied || condition.Type == certificatesv1.CertificateFailed {
			return false, &decidedError{fmt.Sprintf("it is %s: %s", condition.Type, text.Line(condition.Message, maxText))}
		}
	}
	return len(status.Certificate) > 0, nil
}

func stillWaiting(status certificatesv1.CertificateSigningRequestStatus, after time.Duration) error {
	if approved(status) {
		return fmt.Errorf("it was approved, but not signed within %s: %s", after, waySigner)
	}
	return fmt.Errorf("nobody approved it within %s: somebody who may has to run \"kubectl certificate approve\" while "+
		"this waits (--wait)", after)
}

func approved(status certificatesv1.CertificateSigningRequestStatus) bool {
	return slices.ContainsFunc(status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved
	})
}

// pairUp checks that what was signed is what was asked for.
func pairUp(node string, key *ecdsa.PrivateKey, signed []byte) (Credential, error) {
	block, _ := pem.Decode(signed)
	if block == nil || block.Type != "CERTIFICATE" {
		return Credential{}, errors.New("what was signed is no certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return Credential{}, fmt.Errorf("reading what was signed: %w", err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) || cert.Subject.CommonName != certificatePrefix+node ||
		!slices.Contains(cert.Subject.Organization, certificateGroup) {
		return Credential{}, fmt.Errorf("a certificate of somebody else was signed: %s", text.Line(cert.Subject.String(), maxText))
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return Credential{}, err
	}
	return Credential{
		Node: node, Certificate: signed, Key: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
		Expires: cert.NotAfter,
	}, nil
}
