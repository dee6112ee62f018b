// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

// registrar makes credentials as the API server and its signer do, or refuses to.
type registrar struct {
	*server
	t *testing.T

	mu         sync.Mutex
	noAccount  bool
	refuse     int           // code of every token
	unbound    bool          // a token that dies with nothing
	grant      time.Duration // at most
	mayApprove bool
	denies     bool
	signs      bool // an approved request
	approver   int  // asks until somebody else has approved
	stranger   bool // signs for somebody else
	request    map[string]any
	deleted    []string
}

func (r *registrar) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch path := request.URL.Path; {
	case strings.HasSuffix(path, "/serviceaccounts/agent/token"):
		r.token(w, request)
	case strings.HasPrefix(path, "/apis/certificates.k8s.io/v1/certificatesigningrequests"):
		r.certificate(w, request)
	default:
		r.server.ServeHTTP(w, request)
	}
}

func (r *registrar) token(w http.ResponseWriter, request *http.Request) {
	var body struct {
		Spec struct {
			ExpirationSeconds int64
			BoundObjectRef    struct{ Kind, Name, UID string }
		}
	}
	if err := json.NewDecoder(request.Body).Decode(&body); err != nil {
		r.t.Error(err)
	}
	ref := body.Spec.BoundObjectRef
	switch {
	case r.noAccount:
		kubetest.Status(w, 404, "NotFound", `serviceaccounts "agent" not found`, map[string]any{"kind": "serviceaccounts"})
		return
	case r.refuse == 400:
		kubetest.Status(w, 400, "BadRequest", "cannot bind token to object of type /v1, Kind=Node", nil)
		return
	case r.refuse != 0:
		kubetest.Status(w, r.refuse, http.StatusText(r.refuse), "no", nil)
		return
	}
	lifetime := time.Duration(body.Spec.ExpirationSeconds) * time.Second
	if r.grant > 0 {
		lifetime = min(lifetime, r.grant)
	}
	claims := map[string]any{"sub": "system:serviceaccount:kured-agent:agent"}
	if !r.unbound {
		claims["kubernetes.io"] = map[string]any{"node": map[string]any{"name": ref.Name, "uid": ref.UID}}
	}
	payload, _ := json.Marshal(claims)
	kubetest.JSON(w, 201, map[string]any{"status": map[string]any{
		"token":               "e30." + base64.RawURLEncoding.EncodeToString(payload) + ".c2ln",
		"expirationTimestamp": time.Now().Add(lifetime).UTC().Format(time.RFC3339),
	}})
}

func (r *registrar) certificate(w http.ResponseWriter, request *http.Request) {
	switch request.Method {
	case http.MethodPost:
		r.request = map[string]any{}
		_ = json.NewDecoder(request.Body).Decode(&r.request)
		r.request["metadata"] = map[string]any{"name": "kured-agent-x7k2p", "uid": "u"}
		kubetest.JSON(w, 201, r.request)
	case http.MethodPut:
		if !r.mayApprove {
			kubetest.Status(w, 403, "Forbidden", "user not permitted to approve requests with this signerName", nil)
			return
		}
		_ = json.NewDecoder(request.Body).Decode(&r.request)
		kubetest.JSON(w, 200, r.request)
	case http.MethodDelete:
		r.deleted = append(r.deleted, request.URL.Path)
		kubetest.JSON(w, 200, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	default:
		r.decide()
		kubetest.JSON(w, 200, r.request)
	}
}

// decide does to the request what others do in a cluster.
func (r *registrar) decide() {
	status, _ := r.request["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
		r.request["status"] = status
	}
	if r.approver > 0 {
		if r.approver--; r.approver == 0 {
			status["conditions"] = []any{map[string]any{"type": "Approved", "status": "True"}}
		}
	}
	switch conditions, _ := status["conditions"].([]any); {
	case r.denies:
		status["conditions"] = []any{map[string]any{"type": "Denied", "status": "True", "message": "not today"}}
	case len(conditions) > 0 && r.signs:
		status["certificate"] = r.sign()
	}
}

func (r *registrar) sign() []byte {
	spec := r.request["spec"].(map[string]any)
	text, _ := base64.StdEncoding.DecodeString(spec["request"].(string))
	block, _ := pem.Decode(text)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		r.t.Error(err)
		return nil
	}
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: csr.Subject,
		NotAfter: time.Now().Add(time.Duration(spec["expirationSeconds"].(float64)) * time.Second)}
	if r.stranger {
		template.Subject = pkix.Name{CommonName: "kured-agent:n9"}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, csr.PublicKey, key)
	if err != nil {
		r.t.Error(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// credentialIn reads what was made, as the agent would.
func credentialIn(t *testing.T, content string) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {
	t.Helper()
	config, err := clientcmd.Load([]byte(content))
	if err != nil {
		t.Fatalf("%v in %q", err, content)
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil {
		t.Fatalf("no context in %q", content)
	}
	return config.Clusters[context.Cluster], config.AuthInfos[context.AuthInfo]
}

func boundNode(t *testing.T, token string) (name, uid string) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("token %q", token)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Kubernetes struct{ Node struct{ Name, UID string } } `json:"kubernetes.io"`
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		t.Fatalf("token %q", token)
	}
	return claims.Kubernetes.Node.Name, claims.Kubernetes.Node.UID
}

func startRegistrar(t *testing.T, r *registrar) (kubeconfig string) {
	t.Helper()
	r.t, r.server = t, busy()
	_, tls := kubetest.Server(t, r)
	return kubetest.Kubeconfig(t, tls)
}

func TestTheKubeconfigOfOneNodeIsPrinted(t *testing.T) {
	kubeconfig := startRegistrar(t, &registrar{})
	code, stdout, stderr := cli(t, kubeconfig, "", "enroll", "node/n1")
	if code != 0 {
		t.Fatalf("%d %s", code, stderr)
	}
	cluster, user := credentialIn(t, stdout)
	if name, uid := boundNode(t, user.Token); name != "n1" || uid != "uid-n1" {
		t.Errorf("bound to %q, %q", name, uid)
	}
	if !strings.HasPrefix(cluster.Server, "https://127.0.0.1:") || len(cluster.CertificateAuthorityData) == 0 {
		t.Errorf("cluster %+v", cluster)
	}
	for _, want := range []string{"for node n1, valid until ", "(30d)", "is the node itself"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is not in %q", want, stderr)
		}
	}
}

func TestTheNodesMayReachTheServerElsewhere(t *testing.T) {
	kubeconfig := startRegistrar(t, &registrar{grant: time.Hour})
	code, stdout, stderr := cli(t, kubeconfig, "", "enroll", "n1", "--server", "https://api.example:6443")
	cluster, _ := credentialIn(t, stdout)
	if code != 0 || cluster.Server != "https://api.example:6443" || len(cluster.CertificateAuthorityData) == 0 ||
		strings.Contains(stderr, "itself") || !strings.Contains(stderr, "the cluster grants no more") {
		t.Errorf("%d %+v %s", code, cluster, stderr)
	}
	code, stdout, stderr = cli(t, kubeconfig, "", "enroll", "n1", "--server", "auto")
	if cluster, _ := credentialIn(t, stdout); code != 0 || cluster.Server != "" || len(cluster.CertificateAuthorityData) > 0 {
		t.Errorf("%d %+v %s", code, cluster, stderr)
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stdout, _ = cli(t, kubeconfig, "", "enroll", "n1", "--certificate-authority", ca)
	if cluster, _ := credentialIn(t, stdout); string(cluster.CertificateAuthorityData) != "theirs" {
		t.Errorf("%+v", cluster)
	}
}

func TestEveryNodeGetsAFileOfItsOwn(t *testing.T) {
	kubeconfig := startRegistrar(t, &registrar{})
	dir := filepath.Join(t.TempDir(), "kubeconfigs")
	code, stdout, stderr := cli(t, kubeconfig, "", "enroll", "--all", "--output", dir)
	if code != 0 || strings.Count(stdout, "valid until") != 5 {
		t.Fatalf("%d %s%s", code, stdout, stderr)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 5 {
		t.Errorf("%v", entries)
	}
	for _, node := range []string{"n1", "n5"} {
		path := filepath.Join(dir, node+".kubeconfig")
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, user := credentialIn(t, string(content))
		if _, uid := boundNode(t, user.Token); uid != "uid-"+node {
			t.Errorf("%s is bound to %q", path, uid)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
	}
}

func TestTheTroubleOfOneNodeDoesNotStopTheOthers(t *testing.T) {
	kubeconfig := startRegistrar(t, &registrar{})
	dir := t.TempDir()
	code, stdout, stderr := cli(t, kubeconfig, "", "enroll", "n1", "n8", "n2", "n9", "--output", dir)
	if code != 1 || strings.Count(stdout, "valid until") != 2 {
		t.Errorf("%d %s", code, stdout)
	}
	for _, want := range []string{`node "n8"`, `node "n9"`, "kubectl get nodes", "2 of 4 nodes have a kubeconfig in " + dir} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is not in %q", want, stderr)
		}
	}
	for _, node := range []string{"n1", "n2"} {
		if _, err := os.Stat(filepath.Join(dir, node+".kubeconfig")); err != nil {
			t.Error(err)
		}
	}
}

func TestATroubleOfAllNodesIsSaidOnce(t *testing.T) {
	r := &registrar{refuse: 403}
	kubeconfig := startRegistrar(t, r)
	for i := range 100 {
		name := fmt.Sprintf("m%d", i)
		r.nodes[name] = node(name, "b1", "True", nil, nil)
	}
	code, _, stderr := cli(t, kubeconfig, "", "enroll", "--all", "--output", t.TempDir())
	if code != 1 || strings.Count(stderr, "lacks this right") != 1 || !strings.Contains(stderr, "0 of 105 nodes") {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestACertificateIsMadeWithTheKeyOfItsOwn(t *testing.T) {
	r := &registrar{mayApprove: true, signs: true}
	code, stdout, stderr := cli(t, startRegistrar(t, r), "", "enroll", "n1", "--client-certificate", "--lifetime", "8760h")
	if code != 0 {
		t.Fatalf("%d %s", code, stderr)
	}
	_, user := credentialIn(t, stdout)
	block, _ := pem.Decode(user.ClientCertificateData)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.Subject.CommonName != "kured-agent:n1" ||
		!slices.Equal(cert.Subject.Organization, []string{"kured-agent:nodes"}) || user.Token != "" {
		t.Errorf("%v, %v", cert.Subject, err)
	}
	block, _ = pem.Decode(user.ClientKeyData)
	if key, err := x509.ParseECPrivateKey(block.Bytes); err != nil || !key.PublicKey.Equal(cert.PublicKey) {
		t.Errorf("the key is another one: %v", err)
	}
	spec := r.request["spec"].(map[string]any)
	if spec["signerName"] != "kubernetes.io/kube-apiserver-client" || fmt.Sprint(spec["usages"]) != "[digital signature client auth]" ||
		!strings.Contains(stderr, "(365d)") {
		t.Errorf("%v %s", spec, stderr)
	}
	if len(r.deleted) > 0 {
		t.Errorf("deleted %v", r.deleted)
	}
}

func TestWhatEnrollRefusesNamesTheWayOut(t *testing.T) {
	insecure := func(t *testing.T, kubeconfig string) {
		text, err := os.ReadFile(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		before, after, _ := strings.Cut(string(text), "certificate-authority-data: ")
		_, after, _ = strings.Cut(after, "}")
		if err := os.WriteFile(kubeconfig, []byte(before+"insecure-skip-tls-verify: true}"+after), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		r      *registrar
		change func(t *testing.T, kubeconfig string)
		args   []string
		code   int
		says   []string
	}{
		{"no node", &registrar{}, nil, nil, 2, []string{"give NODE, --all or --selector", "kubectl kured enroll --help"}},
		{"several nodes", &registrar{}, nil, []string{"n1", "n2"}, 2, []string{"need --output DIR"}},
		{"all nodes and one", &registrar{}, nil, []string{"n1", "--all", "--output", "x"}, 2, []string{"only one of NODE, --all"}},
		{"too long a life", &registrar{}, nil, []string{"n1", "--lifetime", "8760h"}, 2, []string{"not from 10m0s to 720h0m0s"}},
		{"too short a life", &registrar{}, nil, []string{"n1", "--lifetime", "1m"}, 2, []string{"not from 10m0s"}},
		{"every mistake at once", &registrar{}, nil, []string{"n/1", "--server", "http://x", "--lifetime", "1s"}, 2,
			[]string{`"n/1" cannot be the name of a Node`, "neither an https URL nor", "--lifetime"}},
		{"a broken selector", &registrar{}, nil, []string{"-l", "a b c", "--output", "x"}, 2, []string{"reading selector"}},
		{"no such node", &registrar{}, nil, []string{"n9"}, 1, []string{`node "n9"`, "kubectl get nodes"}},
		{"no such account", &registrar{noAccount: true}, nil, []string{"n1"}, 1, []string{"kubectl apply -k"}},
		{"no right", &registrar{refuse: 403}, nil, []string{"n1"}, 1, []string{"lacks this right", "--context"}},
		{"an old API server", &registrar{refuse: 400}, nil, []string{"n1"}, 1, []string{"1.31", "--client-certificate"}},
		{"a token that is not bound", &registrar{unbound: true}, nil, []string{"n1"}, 1, []string{"not bound", "--client-certificate"}},
		{"an unchecked API server", &registrar{}, insecure, []string{"n1"}, 1, []string{"--certificate-authority", "--server auto"}},
		{"denied", &registrar{denies: true, mayApprove: true}, nil, []string{"n1", "--client-certificate"}, 1,
			[]string{"kured-agent-x7k2p", "Denied: not today"}},
		{"nobody approves", &registrar{}, nil, []string{"n1", "--client-certificate", "--wait", "1ms"}, 1,
			[]string{"kubectl certificate approve kured-agent-x7k2p", "nobody approved it within 1ms"}},
		{"nobody signs", &registrar{mayApprove: true}, nil, []string{"n1", "--client-certificate", "--wait", "1ms"}, 1,
			[]string{"not signed", "EKS"}},
		{"signed for somebody else", &registrar{mayApprove: true, signs: true, stranger: true}, nil,
			[]string{"n1", "--client-certificate"}, 1, []string{"somebody else", "n9"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			kubeconfig := startRegistrar(t, c.r)
			if c.change != nil {
				c.change(t, kubeconfig)
			}
			code, stdout, stderr := cli(t, kubeconfig, "", append([]string{"enroll"}, c.args...)...)
			if code != c.code || stdout != "" {
				t.Errorf("%d %q", code, stdout)
			}
			for _, want := range c.says {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q is not in:\n%s", want, stderr)
				}
			}
			if c.r.request != nil && len(c.r.deleted) != 1 {
				t.Errorf("the request without a key was not deleted: %v", c.r.deleted)
			}
		})
	}
}

func TestSomebodyElseApproves(t *testing.T) {
	r := &registrar{signs: true, approver: 2}
	code, stdout, stderr := cli(t, startRegistrar(t, r), "", "enroll", "n1", "--client-certificate", "--wait", "30s")
	if code != 0 || !strings.Contains(stderr, "kubectl certificate approve kured-agent-x7k2p") {
		t.Fatalf("%d %s", code, stderr)
	}
	if _, user := credentialIn(t, stdout); len(user.ClientKeyData) == 0 {
		t.Error("no key")
	}
}
