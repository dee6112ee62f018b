// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

// kubeconfig writes a kubeconfig with this user block in it, readable for the owner only.
func kubeconfig(t *testing.T, name, user string) string {
	t.Helper()
	return kubeconfigFor(t, "https://127.0.0.1:1", name, user)
}

func kubeconfigFor(t *testing.T, server, name, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	content := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
		"clusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: %q}}]\n"+
		"users: [{name: %q, user: %s}]\n", server, name, name, user)
	write(t, path, content, 0o600)
	return path
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// certificate returns a client certificate and its key as PEM.
func certificate(t *testing.T, commonName string) (cert, key []byte) {
	t.Helper()
	return certificateFor(t, commonName, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
}

func certificateFor(t *testing.T, commonName string, from, to time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: commonName},
		NotBefore: from, NotAfter: to, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs})
}

func token(t *testing.T, claims map[string]any) string {
	t.Helper()
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return "e30." + base64.RawURLEncoding.EncodeToString(payload) + ".c2ln"
}

func nodeToken(t *testing.T, uid, id string) string {
	t.Helper()
	return token(t, map[string]any{"iss": "https://cluster", "sub": "system:serviceaccount:kured-agent:agent", "jti": id,
		"kubernetes.io": map[string]any{"node": map[string]any{"name": "n1", "uid": uid}}})
}

func TestAKubeletCredentialIsRefusedWithTheWayOut(t *testing.T) {
	cert, key := certificate(t, "system:node:worker-1")
	embedded := fmt.Sprintf("{client-certificate-data: %s, client-key-data: %s}",
		base64.StdEncoding.EncodeToString(cert), base64.StdEncoding.EncodeToString(key))
	dir := t.TempDir()
	write(t, filepath.Join(dir, "c.pem"), string(cert), 0o644)
	write(t, filepath.Join(dir, "k.pem"), string(key), 0o600)
	want, err := os.ReadFile("testdata/kubelet-identity.golden")
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"certificate in the file": kubeconfig(t, "default-auth", embedded),
		"certificate beside it": kubeconfig(t, "default-auth",
			fmt.Sprintf("{client-certificate: %s/c.pem, client-key: %s/k.pem}", dir, dir)),
		"by the name of the user": kubeconfig(t, "system:node:worker-1", "{token: t}"),
	} {
		t.Run(name, func(t *testing.T) {
			err := refusal(t, path)
			if got := strings.ReplaceAll(err.Error(), path, "/etc/kured/kubeconfig") + "\n"; got != string(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

func TestAKubeconfigThatCannotWorkIsRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "t", 0o644)
	open := kubeconfig(t, "agent", "{token: t}")
	write(t, open, mustRead(t, open), 0o644)
	shared := kubeconfig(t, "agent", "{token: t}")
	write(t, shared, mustRead(t, shared), 0o660)
	if err := os.Chown(shared, -1, 54321); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	both := kubeconfig(t, "system:node:x", "{token: t}")
	write(t, both, mustRead(t, both), 0o604)
	big := filepath.Join(dir, "big")
	write(t, big, strings.Repeat("#", 1<<20+1), 0o600)
	for _, c := range []struct {
		name, path string
		want       []string
		asRoot     bool
	}{
		{name: "missing", path: filepath.Join(dir, "none"), want: []string{"does not exist", "README"}},
		{name: "a folder", path: dir, want: []string{"not a regular file"}},
		{name: "too large", path: big, want: []string{"larger than 1 MiB"}},
		{name: "world-readable", path: open, want: []string{"everybody on this host", "chmod o-rwx " + open}},
		{name: "writable by another group", path: shared, asRoot: true, want: []string{"group 54321", "chmod g-w " + shared}},
		{name: "every problem at once", path: both, want: []string{"everybody", "kubelet credentials cannot change taints"}},
		{name: "exec plugin", path: kubeconfig(t, "agent", "{exec: {apiVersion: client.authentication.k8s.io/v1, "+
			"command: aws-iam-authenticator, interactiveMode: Never}}"),
			want: []string{"aws-iam-authenticator", "starts no programs"}},
		{name: "world-readable token file", path: kubeconfig(t, "agent", "{tokenFile: "+dir+"/token}"),
			want: []string{dir + "/token", "everybody"}},
		{name: "missing token file", path: kubeconfig(t, "agent", "{tokenFile: "+dir+"/gone}"),
			want: []string{dir + "/gone", "cannot be read"}},
		{name: "plain http", path: kubeconfigFor(t, "http://127.0.0.1:1", "agent", "{token: t}"),
			want: []string{"not an https URL"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.asRoot && os.Geteuid() != 0 {
				t.Log("only root can give a file away")
				return
			}
			err := refusal(t, c.path)
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestABrokenKubeconfigIsAnErrorThatNamesTheFile(t *testing.T) {
	for name, content := range map[string]string{
		"no YAML": "\x00\x01", "a list": "[1, 2]", "empty": "", "no such context": "current-context: gone\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			write(t, path, content, 0o600)
			if _, err := kube.Connect(kube.Options{Kubeconfig: path}); err == nil || !strings.Contains(err.Error(), path) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestRelativePathsAreMeantFromTheKubeconfig(t *testing.T) {
	path := kubeconfig(t, "agent", "{tokenFile: token}")
	write(t, filepath.Join(filepath.Dir(path), "token"), nodeToken(t, "u1", "1"), 0o600)
	if _, err := kube.Connect(kube.Options{Kubeconfig: path}); err != nil {
		t.Fatal(err)
	}
}

func TestFingerprintSurvivesARenewalAndNothingElse(t *testing.T) {
	path := kubeconfig(t, "agent", "{tokenFile: token}")
	at := func(content, node string) string {
		t.Helper()
		write(t, filepath.Join(filepath.Dir(path), "token"), content, 0o600)
		client, err := kube.Connect(kube.Options{Kubeconfig: path})
		if err != nil {
			t.Fatal(err)
		}
		return client.Fingerprint(node)
	}
	first := at(nodeToken(t, "u1", "1"), "n1")
	if first != at(nodeToken(t, "u1", "2"), "n1") {
		t.Error("a renewed token changes the fingerprint")
	}
	for what, other := range map[string]string{
		"another Node name":   at(nodeToken(t, "u1", "1"), "n2"),
		"another Node object": at(nodeToken(t, "u2", "1"), "n1"),
		"an opaque token":     at("abc", "n1"),
	} {
		if other == first {
			t.Errorf("%s does not change the fingerprint", what)
		}
	}
	if strings.Contains(first, "kured") || len(first) != 32 {
		t.Errorf("fingerprint %q", first)
	}
}

// connections counts what stands open at a server.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]bool
	seen int
}

func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open[conn] = true
		c.seen++
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	default: // it stays open
	}
}

func (c *connections) count() (open, seen int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open), c.seen
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-ticker.C:
		}
	}
}

func TestAnIdleClientHoldsNoConnection(t *testing.T) {
	conns := &connections{open: map[net.Conn]bool{}}
	protocol := ""
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocol = r.Proto
		kubetest.JSON(w, 200, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}`)
	}))
	server.EnableHTTP2 = true
	server.Config.ConnState = conns.note
	server.StartTLS()
	t.Cleanup(server.Close)
	client, err := kube.Connect(kube.Options{Kubeconfig: kubetest.Kubeconfig(t, server), UserAgent: "kured-agent/test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, seen := conns.count(); seen != 0 || client.Requests() != 0 {
		t.Fatalf("connecting made %d connections and %d requests", seen, client.Requests())
	}
	for round := 1; round <= 2; round++ {
		for range 3 {
			if err := client.Core().Get().Resource("nodes").Name("n1").Do(t.Context()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		if open, seen := conns.count(); open != 1 || seen != round {
			t.Fatalf("round %d: %d connections open, %d made", round, open, seen)
		}
		client.CloseIdle()
		eventually(t, "the connection is closed", func() bool { open, _ := conns.count(); return open == 0 })
	}
	if client.Requests() != 6 || protocol != "HTTP/2.0" {
		t.Errorf("%d requests over %s", client.Requests(), protocol)
	}
}

func TestAnAnswerWithoutEndIsCut(t *testing.T) {
	client, _ := kubetest.Server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		block := make([]byte, 1<<20)
		for range 64 {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}))
	_, err := client.Core().Get().Resource("nodes").Name("n1").Do(t.Context()).Raw()
	if err == nil || !strings.Contains(err.Error(), "larger than 32 MiB") {
		t.Fatalf("got %v", err)
	}
}

func TestAnAnswerThatBreaksOffIsAnError(t *testing.T) {
	client, _ := kubetest.Server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Node","apiVersion":"v1","metadata":`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	if _, err := client.Core().Get().Resource("nodes").Name("n1").MaxRetries(0).Do(t.Context()).Raw(); err == nil {
		t.Fatal("half an answer was taken for one")
	}
}

func TestAServerThatNeverAnswersEndsWithTheTimeout(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	client, err := kube.Connect(kube.Options{Kubeconfig: kubetest.Kubeconfig(t, server), Timeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Core().Get().Resource("nodes").Name("n1").Do(t.Context()).Error(); err == nil {
		t.Fatal("no error")
	}
}

// refusal connects with a kubeconfig that must be refused.
func refusal(t *testing.T, path string) error {
	t.Helper()
	_, err := kube.Connect(kube.Options{Kubeconfig: path})
	if _, ok := errors.AsType[*kube.RefusedError](err); !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	return err
}
