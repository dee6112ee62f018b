// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/text"
)

// How long a credential may be asked for. The API server grants nothing shorter.
const (
	MinLifetime            = 10 * time.Minute
	DefaultLifetime        = 30 * 24 * time.Hour
	MaxTokenLifetime       = 30 * 24 * time.Hour  // as the admission policy lets an agent renew it
	MaxCertificateLifetime = 365 * 24 * time.Hour // nobody can take one back
)

const (
	account  = "agent" // of the agents
	wayApply = "kubectl apply -k packaging/kubernetes creates the service account, and --namespace names another place"
	wayCert  = "this API server does not bind tokens to Nodes, which Kubernetes does from 1.31 on: --client-certificate " +
		"makes a certificate instead"
)

// Endpoint is where a node finds the API server.
type Endpoint struct {
	Server        string // URL; empty: each node takes it, and the CA, from its kubelet's configuration
	CA            []byte // PEM; empty: the certificates that the node trusts anyhow
	TLSServerName string // other than the one in the URL
}

// Credential is what the agent of a node proves itself with: a token, or a certificate with its key.
type Credential struct {
	Node             string
	Token            string
	Certificate, Key []byte // PEM
	Expires          time.Time
}

// Kubeconfig holds the credential and nothing that is elsewhere.
func (c Credential) Kubeconfig(e Endpoint) ([]byte, error) {
	const cluster = "cluster"
	user := "kured-agent:" + c.Node
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster] = &clientcmdapi.Cluster{
		Server: e.Server, CertificateAuthorityData: e.CA, TLSServerName: e.TLSServerName,
	}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{
		Token: c.Token, ClientCertificateData: c.Certificate, ClientKeyData: c.Key,
	}
	config.Contexts[user] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: user}
	config.CurrentContext = user
	content, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("writing the kubeconfig of node %q: %w", c.Node, err)
	}
	return content, nil
}

// Target is a Node that is to get a credential.
type Target struct{ Name, UID string }

// CheckNode says what is wrong with the name of a Node.
func CheckNode(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("%q cannot be the name of a Node: %s", text.Line(name, maxText), problems[0])
	}
	return nil
}

// CheckSelector says what is wrong with a label selector.
func CheckSelector(selector string) error {
	if _, err := labels.Parse(selector); err != nil {
		return fmt.Errorf("reading selector %q: %w", text.Line(selector, maxText), err)
	}
	return nil
}

// Targets lists the Nodes that the selector finds; empty: all.
func (c *Client) Targets(ctx context.Context, selector string) ([]Target, error) {
	var all []Target
	err := each(ctx, func() *rest.Request {
		r := c.nodes(c.rest.Get()).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
		if selector != "" {
			r.Param("labelSelector", selector)
		}
		return r
	}, func(item *struct {
		Metadata struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"metadata"`
	}) {
		if CheckNode(item.Metadata.Name) == nil { // it becomes the name of a file
			all = append(all, Target{Name: item.Metadata.Name, UID: item.Metadata.UID})
		}
	})
	if err != nil {
		return nil, fail("listing the nodes", err, "")
	}
	return all, nil
}

// Target reads one Node.
func (c *Client) Target(ctx context.Context, name string) (Target, error) {
	n, err := c.readNode(ctx, name)
	if err != nil {
		return Target{}, fail(fmt.Sprintf("reading node %q", name), err, wayNodes)
	}
	return Target{Name: name, UID: n.Metadata.UID}, nil
}

// Token makes a token that works for the agent of this very Node object, and no longer than it exists. The API server
// may grant a shorter life.
func (c *Client) Token(ctx context.Context, node Target, lifetime time.Duration) (Credential, error) {
	seconds := int64(lifetime / time.Second)
	body, err := json.Marshal(authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Node", Name: node.Name, UID: types.UID(node.UID),
			},
		},
	})
	if err != nil {
		return Credential{}, err
	}
	doing := fmt.Sprintf("making a token for node %q", node.Name)
	var answer authenticationv1.TokenRequest
	err = decode(c.rest.Post().AbsPath("/api/v1").Namespace(c.namespace).Resource("serviceaccounts").Name(account).
		SubResource("token").Body(body).Do(ctx), &answer)
	switch {
	case apierrors.IsBadRequest(err):
		return Credential{}, fmt.Errorf("%s: %w (%s)", doing, err, wayCert)
	case accountMissing(err):
		return Credential{}, fail(doing, err, wayApply)
	case err != nil:
		return Credential{}, fail(doing, err, wayNodes)
	case boundTo(answer.Status.Token) != node.UID:
		return Credential{}, fmt.Errorf("%s: the token that came is not bound to it (%s)", doing, wayCert)
	}
	return Credential{Node: node.Name, Token: answer.Status.Token, Expires: answer.Status.ExpirationTimestamp.Time}, nil
}

// boundTo is the uid of the Node in the payload of a token.
func boundTo(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Kubernetes struct {
			Node struct {
				UID string `json:"uid"`
			} `json:"node"`
		} `json:"kubernetes.io"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return claims.Kubernetes.Node.UID
}

func accountMissing(err error) bool {
	status, ok := api.Refusal(err)
	return ok && apierrors.IsNotFound(err) && status.Details != nil && status.Details.Kind != "nodes"
}

// Hopeless is whether what failed for one Node would fail for every other in the same way.
func Hopeless(err error) bool {
	if _, decided := errors.AsType[*decidedError](err); decided {
		return false
	}
	_, answered := api.Refusal(err)
	return !answered || accountMissing(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) ||
		apierrors.IsBadRequest(err)
}
