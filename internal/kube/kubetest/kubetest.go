// SPDX-License-Identifier: Apache-2.0

// Package kubetest gives tests a client of an API server, faked or real, built the way the agent builds its own.
package kubetest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/kured-agent/kured-agent/internal/kube"
)

// Server starts a TLS server for the handler and returns a client of it. Both end with the test.
func Server(t testing.TB, handler http.Handler) (*kube.Client, *httptest.Server) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return Connect(t, Kubeconfig(t, server)), server
}

// Connect returns a client that a test never has to wait for, of any API server. It ends with the test.
func Connect(t testing.TB, kubeconfig string) *kube.Client {
	t.Helper()
	client, err := kube.Connect(kube.Options{Kubeconfig: kubeconfig, QPS: 10_000})
	if err != nil {
		t.Fatalf("connecting to the API server: %v", err)
	}
	t.Cleanup(client.CloseIdle)
	return client
}

// Kubeconfig writes a kubeconfig for the server and returns its path.
func Kubeconfig(t testing.TB, server *httptest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	WriteKubeconfig(t, path, server, "{token: test}")
	return path
}

// WriteKubeconfig writes a kubeconfig for the server with this user block.
func WriteKubeconfig(t testing.TB, path string, server *httptest.Server, user string) {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: agent, user: %s}]
contexts: [{name: test, context: {cluster: test, user: agent}}]
`, server.URL, base64.StdEncoding.EncodeToString(ca), user)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Status answers a request the way the API server answers an error.
func Status(w http.ResponseWriter, code int, reason, message string, details map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"message": message, "reason": reason, "code": code, "details": details,
	})
}

// JSON answers with a value, or with bytes as they are.
func JSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	switch body := body.(type) {
	case []byte:
		_, _ = w.Write(body)
	case string:
		_, _ = w.Write([]byte(body))
	default:
		_ = json.NewEncoder(w).Encode(body)
	}
}

// Compact removes the white space of a JSON text.
func Compact(t testing.TB, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		t.Fatalf("compacting %q: %v", text, err)
	}
	return out.String()
}
