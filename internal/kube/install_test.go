// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// enrolment is a kubeconfig as "kubectl kured enroll" prints it, with these lines of its cluster.
func enrolment(cluster string) []byte {
	return fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {%s}}],
contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {token: t}}]}`, cluster)
}

func onlyCluster(t *testing.T, content []byte) *clientcmdapi.Cluster {
	t.Helper()
	config, err := clientcmd.Load(content)
	if err != nil || len(config.Clusters) != 1 || len(config.AuthInfos) != 1 {
		t.Fatalf("%v in %s", err, content)
	}
	return config.Clusters[config.Contexts[config.CurrentContext].Cluster]
}

func TestTheAPIServerComesFromTheKubeletsConfiguration(t *testing.T) {
	for _, c := range []struct{ layout, server, ca, from, problem string }{
		{layout: "kubeadm", server: "https://10.0.0.1:6443", ca: "kubeadm CA\n", from: "/etc/kubernetes/kubelet.conf"},
		// The agents of k3s and RKE2 talk to a balancer of their own; so can we.
		{layout: "k3s", server: "https://127.0.0.1:6444", ca: "k3s CA\n",
			from: "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"},
		{layout: "k3s-server", server: "https://127.0.0.1:6443", ca: "k3s server CA\n", from: "/etc/rancher/k3s/k3s.yaml"},
		{layout: "rke2", server: "https://127.0.0.1:6444", ca: "RKE2 CA\n",
			from: "/var/lib/rancher/rke2/agent/kubelet.kubeconfig"},
		{layout: "k0s", server: "https://10.0.0.2:6443", ca: "k0s CA\n", from: "/var/lib/k0s/kubelet.conf"},
		{layout: "k0s-nllb", server: "https://[::1]:7443", ca: "k0s CA\n", from: "/run/k0s/nllb/kubeconfig.yaml"},
		{layout: "microk8s", server: "https://127.0.0.1:16443", ca: "MicroK8s CA\n",
			from: "/var/snap/microk8s/current/credentials/kubelet.config"},
		{layout: "eks", server: "https://0123456789ABCDEF.gr7.eu-west-1.eks.amazonaws.com", ca: "EKS CA\n",
			from: "/var/lib/kubelet/kubeconfig"},
		{layout: "gke", server: "https://10.128.0.2", ca: "GKE CA\n", from: "/var/lib/kubelet/kubeconfig"},
		{layout: "aks", server: "https://one-dns-1a2b3c4d.hcp.westeurope.azmk8s.io:443", ca: "AKS CA\n",
			from: "/var/lib/kubelet/kubeconfig"},
		{layout: "aks-bootstrap", server: "https://one-dns-1a2b3c4d.hcp.westeurope.azmk8s.io:443", ca: "AKS CA\n",
			from: "/var/lib/kubelet/bootstrap-kubeconfig"},
		{layout: "openshift", server: "https://api-int.one.example.com:6443", ca: "OpenShift CA\n",
			from: "/var/lib/kubelet/kubeconfig"},
		{layout: "two-clusters", problem: `disagree ("https://10.0.0.1:6443" in /etc/kubernetes/kubelet.conf, "https://127.0.0.1:6444"`},
		{layout: "no-ca", problem: "reading the CA that /var/lib/kubelet/kubeconfig names"},
		{layout: "empty", problem: "say --server URL"},
	} {
		for how, o := range map[string]Installation{
			"auto": {Server: ServerAuto}, "none": {},
		} {
			t.Run(c.layout+" "+how, func(t *testing.T) {
				said := ""
				if how == "auto" {
					said = `server: "https://127.0.0.1:1", certificate-authority-data: b3RoZXI=`
				}
				o.Root = filepath.Join("testdata/roots", c.layout)
				got, err := Prepare(enrolment(said), o)
				if c.problem != "" {
					if err == nil || !strings.Contains(err.Error(), c.problem) {
						t.Fatalf("got %v, want %q", err, c.problem)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				cluster := onlyCluster(t, got.Content)
				if cluster.Server != c.server || got.Server != c.server || string(cluster.CertificateAuthorityData) != c.ca ||
					got.From != c.from {
					t.Errorf("got %q, %q, CA %q, from %q", cluster.Server, got.Server, cluster.CertificateAuthorityData, got.From)
				}
				if strings.Contains(string(got.Content), "not-ours") || strings.Contains(string(got.Content), "client-key") {
					t.Errorf("the kubelet's own credential is in %s", got.Content)
				}
			})
		}
	}
}

func TestTheServerOfTheKubeconfigIsKeptUnlessAnotherIsNamed(t *testing.T) {
	said := enrolment(`server: "https://10.0.0.9:6443", certificate-authority-data: dGhlaXJz`)
	for server, want := range map[string]string{"": "https://10.0.0.9:6443", "https://other:6443": "https://other:6443"} {
		got, err := Prepare(said, Installation{Server: server, Root: "testdata/roots/kubeadm"})
		if err != nil {
			t.Fatal(err)
		}
		cluster := onlyCluster(t, got.Content)
		if cluster.Server != want || string(cluster.CertificateAuthorityData) != "theirs" {
			t.Errorf("%q: got %q with CA %q", server, cluster.Server, cluster.CertificateAuthorityData)
		}
	}
}

func TestOnlyTheCurrentContextIsInstalledWithItsFilesEmbedded(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"ca.crt": "a CA", "c.pem": "a certificate", "k.pem": "a key"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	content := []byte(`{apiVersion: v1, kind: Config, current-context: ours, clusters: [
{name: ours, cluster: {server: "https://s:1", certificate-authority: ca.crt}}, {name: b, cluster: {server: "https://secret:1"}}],
contexts: [{name: ours, context: {cluster: ours, user: agent}}, {name: b, context: {cluster: b, user: admin}}],
users: [{name: agent, user: {client-certificate: c.pem, client-key: k.pem, tokenFile: token}}, {name: admin, user: {token: secret}}]}`)
	got, err := Prepare(content, Installation{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	text := string(got.Content)
	if strings.Contains(text, "secret") || strings.Contains(text, "admin") {
		t.Errorf("another credential is in %s", text)
	}
	for _, want := range []string{base64.StdEncoding.EncodeToString([]byte("a CA")),
		base64.StdEncoding.EncodeToString([]byte("a certificate")), base64.StdEncoding.EncodeToString([]byte("a key")),
		"tokenFile: " + filepath.Join(dir, "token")} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	if _, err := Prepare(content, Installation{}); err == nil || !strings.Contains(err.Error(), "--flatten") {
		t.Errorf("relative paths without a place: %v", err)
	}
}

func TestWhatIsNoKubeconfigIsRefused(t *testing.T) {
	for content, want := range map[string]string{
		"":                                   "current context",
		"\x00":                               "reading the kubeconfig",
		"kubectl kured: reading node \"n9\"": "reading the kubeconfig",
		"{apiVersion: v1, kind: Secret}":     "reading the kubeconfig",
		"{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}]}": "no credential",
	} {
		if _, err := Prepare([]byte(content), Installation{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", content, err, want)
		}
	}
}

func FuzzPrepare(f *testing.F) {
	f.Add(enrolment(`server: "https://10.0.0.9:6443", certificate-authority-data: dGhlaXJz`))
	f.Add([]byte("{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c}], users: [{}], clusters: [null]}"))
	f.Fuzz(func(t *testing.T, content []byte) {
		got, err := Prepare(content, Installation{Server: "https://s:1", Root: "testdata/roots/empty"})
		if err == nil {
			onlyCluster(t, got.Content)
		}
	})
}
