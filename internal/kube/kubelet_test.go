// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

func TestTheKubeconfigOfTheKubeletIsFound(t *testing.T) {
	for _, c := range []struct{ layout, node, want string }{
		{"kubeadm", "worker-1", "etc/kubernetes/kubelet.conf"},
		{"k3s", "k3s-edge-7f3a", "var/lib/rancher/k3s/agent/kubelet.kubeconfig"},
		{"rke2", "rke-worker-3", "var/lib/rancher/rke2/agent/kubelet.kubeconfig"},
		{"k0s", "k0s-worker", "var/lib/k0s/kubelet.conf"},
		{"microk8s", "micro-1", "var/snap/microk8s/current/credentials/kubelet.config"},
		{"aks", "aks-nodepool1-12345678-vmss000000", "var/lib/kubelet/kubeconfig"},
		{"openshift", "worker-0.one.example.com", "var/lib/kubelet/kubeconfig"}, // its kubelet.conf is no kubeconfig
		{"two-clusters", "worker-1", "etc/kubernetes/kubelet.conf"},
	} {
		path, copied, err := kube.FindKubelet(filepath.Join("testdata/roots", c.layout), "", c.node)
		if want := filepath.Join("testdata/roots", c.layout, c.want); err != nil || copied || path != want {
			t.Errorf("%s: got %q, %v, %v, want %q", c.layout, path, copied, err, want)
		}
	}
	var refused *kube.RefusedError
	_, _, err := kube.FindKubelet("testdata/roots/empty", t.TempDir(), "n1")
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "kubelet-identity.conf") {
		t.Errorf("without any: %v", err)
	}
}

func TestACopyOfTheKubeconfigComesFirst(t *testing.T) {
	dir := t.TempDir()
	copied := filepath.Join(dir, "kubelet.kubeconfig")
	write(t, copied, "", 0o400)
	path, isCopied, err := kube.FindKubelet("testdata/roots/kubeadm", dir, "worker-1")
	if err != nil || !isCopied || path != copied {
		t.Errorf("got %q, %v, %v", path, isCopied, err)
	}
}

// kubeletFiles are the files of a kubelet: a kubeconfig that names the certificate with its key, as kubeadm's does.
func kubeletFiles(t *testing.T, dir, name, pem, user string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if user == "" {
		user = fmt.Sprintf("{client-certificate: %[1]s, client-key: %[1]s}", pem)
	}
	write(t, path, mustRead(t, kubeconfig(t, "default-auth", user)), 0o600)
	return path
}

func TestTheCopiesBesideACopiedKubeconfigAreUsed(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, "system:node:worker-1")
	write(t, filepath.Join(dir, "kubelet-client-current.pem"), string(cert)+string(key), 0o440)
	path := kubeletFiles(t, dir, "kubelet.kubeconfig", "/nowhere/pki/kubelet-client-current.pem", "")
	if _, err := kube.Connect(kube.Options{Kubeconfig: path, Kubelet: true, Copied: true}); err != nil {
		t.Error(err)
	}
	if _, err := kube.Connect(kube.Options{Kubeconfig: path, Kubelet: true}); err == nil ||
		!strings.Contains(err.Error(), "/nowhere/pki") {
		t.Errorf("a kubeconfig that was not copied: %v", err)
	}
}

func TestACopyHasTheFingerprintOfTheOriginal(t *testing.T) {
	cert, key := certificate(t, "system:node:worker-1")
	original, copies := t.TempDir(), t.TempDir()
	for _, dir := range []string{original, copies} {
		write(t, filepath.Join(dir, "c.pem"), string(cert)+string(key), 0o600)
		write(t, filepath.Join(dir, "ca.crt"), string(cert), 0o644)
		path := kubeletFiles(t, dir, "kubelet.kubeconfig", filepath.Join(original, "c.pem"), "")
		content := strings.Replace(mustRead(t, path), "server:", "certificate-authority: "+original+"/ca.crt, server:", 1)
		write(t, path, content, 0o600)
	}
	var prints []string
	for dir, copied := range map[string]bool{original: false, copies: true} {
		client, err := kube.Connect(
			kube.Options{Kubeconfig: filepath.Join(dir, "kubelet.kubeconfig"), Kubelet: true, Copied: copied})
		if err != nil {
			t.Fatal(err)
		}
		prints = append(prints, client.Fingerprint("worker-1"))
	}
	if prints[0] != prints[1] {
		t.Errorf("fingerprints %q", prints)
	}
}

func TestWhatIsNotTheKubeletsCredentialIsRefusedInItsPlace(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t, "system:node:worker-1")
	ours, oursKey := certificate(t, "kured-agent:worker-1")
	data := func(cert, key []byte) string {
		return fmt.Sprintf("{client-certificate-data: %s, client-key-data: %s}",
			base64.StdEncoding.EncodeToString(cert), base64.StdEncoding.EncodeToString(key))
	}
	write(t, filepath.Join(dir, "c.pem"), string(cert)+string(key), 0o600)
	write(t, filepath.Join(dir, "open.pem"), string(cert)+string(key), 0o604)
	for _, c := range []struct {
		name, pem, user, want string
		mode                  os.FileMode
	}{
		{"files", dir + "/c.pem", "", "", 0o600},
		{"names", dir + "/c.pem", "", "", 0o644}, // for everybody, as some distributions have it
		{"writable", dir + "/c.pem", "", "everybody on this host can read or write", 0o646},
		{"secret", "", data(cert, key), "", 0o600},
		{"shown", "", data(cert, key), "everybody on this host can read or write", 0o644},
		{"token", "", "{token: t}", "everybody on this host can read or write", 0o644},
		{"open", dir + "/open.pem", "", "everybody on this host can read or write", 0o600},
		{"gone", dir + "/gone.pem", "", "cannot be read", 0o600},
		{"agent", "", data(ours, oursKey), `it carries the identity "kured-agent:worker-1", which is no kubelet's`, 0o600},
		{"exec", "", "{exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}}",
			"the agent starts no programs", 0o600},
	} {
		path := kubeletFiles(t, dir, c.name, c.pem, c.user)
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := kube.Connect(kube.Options{Kubeconfig: path, Kubelet: true})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	_, err := kube.Connect(kube.Options{Kubeconfig: dir + "/exec", Kubelet: true})
	if err == nil || !strings.Contains(err.Error(), `[drain] identity = "agent" does without`) {
		t.Errorf("no way out: %v", err)
	}
}

// kubeletServer answers what ProveKubelet asks.
type kubeletServer struct {
	taint          string // what a taint is refused with; empty: it is accepted
	noList, noEvic bool
}

func (s kubeletServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") != "All":
		kubetest.Status(w, 500, "InternalError", "this changes something", nil)
	case r.Method == http.MethodPatch && s.taint == "401":
		kubetest.Status(w, 401, "Unauthorized", "Unauthorized", nil)
	case r.Method == http.MethodPatch && s.taint != "":
		kubetest.Status(w, 403, "Forbidden", s.taint, nil)
	case r.Method == http.MethodPatch:
		kubetest.JSON(w, 200, "{}")
	case r.URL.Path == "/api/v1/pods" && (s.noList || r.URL.Query().Get("fieldSelector") != "spec.nodeName=n1"):
		kubetest.Status(w, 403, "Forbidden", "node: can only list pods with spec.nodeName", nil)
	case r.URL.Path == "/api/v1/pods":
		kubetest.JSON(w, 200, `{"items":[]}`)
	default:
		kubetest.JSON(w, 201, map[string]any{"status": map[string]any{"allowed": !s.noEvic}})
	}
}

func TestTheKubeletsCredentialIsProven(t *testing.T) {
	const confined = `nodes "n1" is forbidden: node "n1" is not allowed to modify taints`
	for name, c := range map[string]struct {
		server kubeletServer
		want   string
	}{
		"confined":         {kubeletServer{taint: confined}, ""},
		"not confined":     {kubeletServer{}, "runs without the NodeRestriction admission plugin"},
		"another node's":   {kubeletServer{taint: `node "n2" is not allowed to modify node "n1"`}, `node "n2" is not allowed`},
		"another's taints": {kubeletServer{taint: `node "n2" is not allowed to modify taints`}, "it does not show"},
		"no list":          {kubeletServer{taint: confined, noList: true}, "may not list the pods of Node"},
		"no eviction":      {kubeletServer{taint: confined, noEvic: true}, "may not create pods/eviction"},
		"not accepted":     {kubeletServer{taint: "401"}, "systemctl try-restart kured-agent"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewTLSServer(c.server)
			defer server.Close()
			client, err := kube.Connect(kube.Options{Kubeconfig: kubetest.Kubeconfig(t, server), Kubelet: true})
			if err != nil {
				t.Fatal(err)
			}
			defer client.CloseIdle()
			err = client.ProveKubelet(t.Context(), "n1")
			if c.want == "" {
				if err != nil || client.Requests() != 3 {
					t.Errorf("%d requests, %v", client.Requests(), err)
				}
				return
			}
			if got := problems(t, err); len(got) != 1 || !strings.Contains(got[0], c.want) ||
				!strings.Contains(err.Error(), `set [drain] identity = "agent"`) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestWithTheKubeletsIdentityNoRightToPodsIsAskedFor(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		server := httptest.NewTLSServer(&proofServer{node: nodeBody(machine, ""), missing: "list pods"})
		defer server.Close()
		client, err := kube.Connect(kube.Options{Kubeconfig: kubetest.Kubeconfig(t, server), PodsElsewhere: elsewhere})
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Prove(t.Context(), "n1", machine); (err == nil) != elsewhere {
			t.Errorf("elsewhere %v: %v", elsewhere, err)
		}
		client.CloseIdle()
	}
}

func TestRightsToPodsThatAreNotNeededAreNamed(t *testing.T) {
	client, _ := kubetest.Server(t, kubeletServer{})
	if spare, err := client.Spare(t.Context()); err != nil || strings.Join(spare, ", ") != "list pods, create pods/eviction" {
		t.Errorf("got %q, %v", spare, err)
	}
	client, _ = kubetest.Server(t, kubeletServer{noEvic: true})
	if spare, err := client.Spare(t.Context()); err != nil || len(spare) > 0 {
		t.Errorf("got %q, %v", spare, err)
	}
}
