// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

// StatusError is an answer of the API server that is not 2xx.
type StatusError struct {
	Code int
	Body []byte
}

func (e *StatusError) Error() string {
	var status struct{ Message string }
	if json.Unmarshal(e.Body, &status) == nil && status.Message != "" {
		return fmt.Sprintf("%d: %s", e.Code, status.Message)
	}
	return fmt.Sprintf("%d: %s", e.Code, bytes.TrimSpace(e.Body))
}

// Content types of PATCH bodies, for Do.
const (
	MergePatch     = "application/merge-patch+json"
	StrategicPatch = "application/strategic-merge-patch+json"
	JSONPatch      = "application/json-patch+json"
)

// Do sends one request as admin. The body is JSON (or raw when it is []byte), and so is the answer, decoded into
// "into" unless that is nil. The content type is only needed for a PATCH. An answer that is not 2xx is a *StatusError.
func (c *Cluster) Do(ctx context.Context, method, path string, body, into any, contentType ...string) error {
	header := http.Header{}
	if len(contentType) > 0 {
		header.Set("Content-Type", contentType[0])
	}
	return do(ctx, c.http, header, method, c.URL()+path, body, into)
}

func do(ctx context.Context, client *http.Client, header http.Header, method, target string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	raw, ok := body.([]byte)
	if !ok && body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	maps.Copy(request.Header, header)
	if raw != nil && request.Header.Get("Content-Type") == "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return &StatusError{Code: response.StatusCode, Body: answer}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

func (c *Cluster) must(method, path string, body, into any, contentType ...string) {
	c.t.Helper()
	if err := c.Do(context.Background(), method, path, body, into, contentType...); err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// Node reads a Node.
func (c *Cluster) Node(name string) *corev1.Node {
	c.t.Helper()
	var node corev1.Node
	c.must(http.MethodGet, "/api/v1/nodes/"+name, nil, &node)
	return &node
}

// NodeOrNil reads a Node; nil when there is none or the API server does not answer.
func (c *Cluster) NodeOrNil(name string) *corev1.Node {
	var node corev1.Node
	if c.Do(context.Background(), http.MethodGet, "/api/v1/nodes/"+name, nil, &node) != nil {
		return nil
	}
	return &node
}

// Pods lists the pods of a node, or all pods when node is empty.
func (c *Cluster) Pods(node string) []corev1.Pod {
	c.t.Helper()
	path := "/api/v1/pods"
	if node != "" {
		path += "?fieldSelector=" + url.QueryEscape("spec.nodeName="+node)
	}
	var list corev1.PodList
	c.must(http.MethodGet, path, nil, &list)
	return list.Items
}

// Leases lists the Leases of a namespace.
func (c *Cluster) Leases(namespace string) []coordinationv1.Lease {
	c.t.Helper()
	var list coordinationv1.LeaseList
	c.must(http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases", nil, &list)
	return list.Items
}

// AgentToken mints a token of the agent's service account that is bound to the Node, as "kured-agent enroll" would.
func (c *Cluster) AgentToken(node string, lifetime time.Duration) string {
	c.t.Helper()
	var request authenticationv1.TokenRequest
	seconds := int64(lifetime / time.Second)
	request.Spec.ExpirationSeconds = &seconds
	request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
		APIVersion: "v1", Kind: "Node", Name: node, UID: c.Node(node).UID,
	}
	c.must(http.MethodPost, "/api/v1/namespaces/kured-agent/serviceaccounts/agent/token", request, &request)
	return request.Status.Token
}

// AgentKubeconfig writes the kubeconfig of the agent on a Node that exists and returns its path. The file is for this
// call alone, mode 0600, and holds a token for 24 h.
func (c *Cluster) AgentKubeconfig(node string) string {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), node+".kubeconfig")
	if err := os.WriteFile(path, c.AgentKubeconfigFor(node, c.URL()), 0o600); err != nil {
		c.t.Fatalf("writing a kubeconfig: %v", err)
	}
	return path
}

// AgentKubeconfigWith is the text of such a kubeconfig with this token.
func (c *Cluster) AgentKubeconfigWith(token string) []byte {
	return kubeconfigText(c.URL(), c.ca.pem, "    token: "+token)
}

// AgentKubeconfigFor is the text of such a kubeconfig with another server URL, for a machine behind ListenIn.
func (c *Cluster) AgentKubeconfigFor(node, server string) []byte {
	c.t.Helper()
	return kubeconfigText(server, c.ca.pem, "    token: "+c.AgentToken(node, 24*time.Hour))
}

func x509Pool(a *authority) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// applyManifests applies packaging/kubernetes and waits until its admission policies are enforced: the API server
// compiles them a second or two after they were created, and until then lets everything through.
func (c *Cluster) applyManifests() error {
	folder := c.options.Manifests
	if folder == "" {
		root, err := ModuleRoot()
		if err != nil {
			return err
		}
		folder = filepath.Join(root, "packaging", "kubernetes")
	}
	if _, err := c.Kubectl("apply", "-k", folder); err != nil {
		return err
	}
	probe := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "policy-probe"}}
	if err := c.Do(context.Background(), http.MethodPost, "/api/v1/nodes", probe, nil); err != nil {
		return err
	}
	err := c.waitPolicies()
	return errors.Join(err, c.Do(context.Background(), http.MethodDelete, "/api/v1/nodes/policy-probe", nil, nil))
}

// waitPolicies tries, without effect, what an agent must not do until each policy refuses it, and then what it may do
// until that is let through.
func (c *Cluster) waitPolicies() error {
	lease := func(holder string) map[string]any {
		return map[string]any{
			"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
			"metadata": map[string]any{
				"name": "slot-default-0",
				"ownerReferences": []map[string]any{{
					"apiVersion": "v1", "kind": "Node", "name": holder, "uid": "00000000-0000-0000-0000-000000000000",
				}},
			},
			"spec": map[string]any{"holderIdentity": holder},
		}
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kured-agent/leases?dryRun=All"
	taint := map[string]any{"spec": map[string]any{"taints": []map[string]any{{"key": "x", "effect": "NoSchedule"}}}}
	token := map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{}}
	probes := []struct {
		what, method, path string
		body               any
		refused            bool
	}{
		{"node", http.MethodPatch, "/api/v1/nodes/policy-probe?dryRun=All", taint, true},
		{"lock", http.MethodPost, leases, lease("another"), true},
		{"token", http.MethodPost, "/api/v1/namespaces/kured-agent/serviceaccounts/agent/token?dryRun=All", token, true},
		{"lock", http.MethodPost, leases, lease("policy-probe"), false},
	}
	deadline := time.Now().Add(30 * time.Second)
	for _, p := range probes {
		for {
			err := c.asAgent("policy-probe", p.method, p.path, p.body)
			if p.refused && err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
				break
			}
			if !p.refused && err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("waiting for the admission policy of %s: last answer %w", p.what, err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// asAgent sends a request as the agent of a node, by impersonation.
func (c *Cluster) asAgent(node, method, path string, body any) error {
	header := http.Header{
		"Impersonate-User": {"system:serviceaccount:kured-agent:agent"},
		"Impersonate-Extra-Authentication.kubernetes.io%2fnode-Name": {node},
	}
	if method == http.MethodPatch {
		header.Set("Content-Type", MergePatch)
	}
	return do(context.Background(), c.http, header, method, c.URL()+path, body, nil)
}

// Watch reports every object of a list path ("/api/v1/nodes") now and every change of one, in order and one at a time,
// until ctx ends or the API server goes away. The type is ADDED, MODIFIED or DELETED. It returns when the watch stands.
func (c *Cluster) Watch(ctx context.Context, path string, take func(kind string, object json.RawMessage)) {
	c.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+path+"?watch=true", nil)
	if err != nil {
		c.t.Fatalf("watching %s: %v", path, err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		c.t.Fatalf("watching %s: %v", path, err)
	}
	if response.StatusCode != http.StatusOK {
		c.t.Fatalf("watching %s: %s", path, response.Status)
	}
	go func() {
		defer response.Body.Close()
		events := json.NewDecoder(response.Body)
		for {
			var event struct {
				Type   string
				Object json.RawMessage
			}
			if events.Decode(&event) != nil || ctx.Err() != nil {
				return
			}
			take(event.Type, event.Object)
		}
	}()
}
