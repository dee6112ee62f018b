// SPDX-License-Identifier: Apache-2.0

//go:build integration

package agent_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/lab"
)

var adminsCommand = sync.OnceValues(func() (string, error) {
	root, err := cluster.ModuleRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(shared.Dir(), "kubectl-kured")
	build := exec.Command("go", "build", "-o", path, "./cmd/kubectl-kured")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// kured is "kubectl kured" of whoever the kubeconfig is for.
func kured(t *testing.T, kubeconfig string, args ...string) (stdout, stderr string, ok bool) {
	t.Helper()
	path, err := adminsCommand()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), path, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	var out, wrong bytes.Buffer
	command.Stdout, command.Stderr = &out, &wrong
	err = command.Run()
	return out.String(), wrong.String(), err == nil
}

// bare is a host with the package and without a credential.
func bare(t *testing.T, c *cluster.Cluster, name string, o lab.Options) *lab.Machine {
	t.Helper()
	m := lab.New(t, c, name, o)
	if err := os.Remove(m.Path("/etc/kured/kubeconfig")); err != nil {
		t.Fatal(err)
	}
	m.Write("/etc/group", fmt.Sprintf("kured-agent:x:%d:\n", os.Getgid()), 0o644)
	return m
}

// mustWork starts the agent and has it go the way of a required reboot as far as its taint, and back.
func mustWork(t *testing.T, m *lab.Machine) {
	t.Helper()
	release := m.HoldSlot()
	defer release()
	m.Start()
	m.WaitPhase("Idle")
	m.Require("linux-image-6.1.0-42-amd64")
	m.WaitTainted()
	m.WaitPhase("WaitingTurn", "Locking")
	m.Unrequire()
	m.WaitClean()
	m.Stop()
}

func TestThreeNodesAreEnrolledByTheTwoCommands(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	label := map[string]string{"enrol": "three"}
	var machines []*lab.Machine
	for i := range 3 {
		machines = append(machines, bare(t, c, fmt.Sprintf("enrolled-%d", i+1),
			lab.Options{Kubelet: cluster.KubeletOptions{Labels: label}}))
	}
	dir := filepath.Join(t.TempDir(), "kubeconfigs")
	stdout, stderr, ok := kured(t, c.Admin(), "enroll", "--selector", "enrol=three", "--output", dir, "--lifetime", "1h")
	if !ok || strings.Count(stdout, "valid until") != 3 {
		t.Fatalf("%s%s", stdout, stderr)
	}
	for i, m := range machines {
		path := filepath.Join(dir, m.Name+".kubeconfig")
		var out string
		var code int
		if i == 0 { // as through ssh
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			out, code = m.Pipe(string(content), "enroll", "--kubeconfig", "-")
		} else {
			out, code = m.Command("enroll", "--kubeconfig", path)
		}
		if code != 0 {
			t.Fatalf("%d %s", code, out)
		}
		for _, want := range []string{"for node " + m.Name, "credential: system:serviceaccount:kured-agent:agent, valid until",
			"proven:     this machine, every right of an agent, and no other", "next: "} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not in:\n%s", want, out)
			}
		}
		mustWork(t, m)
	}
	if changed := c.Node("enrolled-2").Annotations["kured-agent/enrolled"]; changed != "" {
		t.Errorf("the proof wrote %q", changed)
	}
}

func TestAnAgentWithAClientCertificateWorks(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := bare(t, c, "certified", lab.Options{})
	kubeconfig, stderr, ok := kured(t, c.Admin(), "enroll", m.Name, "--client-certificate", "--lifetime", "1h")
	if !ok {
		t.Fatal(stderr)
	}
	out, code := m.Pipe(kubeconfig, "enroll", "--kubeconfig", "-")
	if code != 0 || !strings.Contains(out, "credential: kured-agent:certified, valid until") ||
		!strings.Contains(out, "and no other") {
		t.Fatalf("%d %s", code, out)
	}
	mustWork(t, m)
}

// enroller has the rights that the help of the command asks for, and the further rules.
func enroller(t *testing.T, c *cluster.Cluster, name, rules string) (kubeconfig string) {
	t.Helper()
	c.Apply(fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get, list]}
%[2]s
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]
`, name, rules))
	kubeconfig = c.Kubeconfig(name)
	c.Eventually("the rights of "+name+" are there", 10*time.Second, func() bool {
		out, err := c.Kubectl("auth", "can-i", "list", "nodes", "--as", name)
		return err == nil && strings.HasPrefix(out, "yes")
	})
	return kubeconfig
}

func TestTheRightsThatTheHelpAsksForAreEnough(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	c.NewKubelet("least", cluster.KubeletOptions{})
	token := enroller(t, c, "enroller-token",
		`- {apiGroups: [""], resources: [serviceaccounts/token], resourceNames: [agent], verbs: [create]}`)
	if _, stderr, ok := kured(t, token, "enroll", "least"); !ok {
		t.Error(stderr)
	}
	if _, stderr, ok := kured(t, token, "enroll", "least", "--client-certificate"); ok || !strings.Contains(stderr, "lacks this right") {
		t.Error(stderr)
	}
	csr := enroller(t, c, "enroller-csr",
		`- {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests], verbs: [create, get, delete]}
- {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests/approval], verbs: [update]}
- {apiGroups: [certificates.k8s.io], resources: [signers], resourceNames: [kubernetes.io/kube-apiserver-client], verbs: [approve]}`)
	if _, stderr, ok := kured(t, csr, "enroll", "least", "--client-certificate"); !ok {
		t.Error(stderr)
	}
	if _, stderr, ok := kured(t, csr, "enroll", "least"); ok || !strings.Contains(stderr, "lacks this right") {
		t.Error(stderr)
	}
}

func TestACertificateWaitsForWhoMayApprove(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	c.NewKubelet("waits", cluster.KubeletOptions{})
	asks := enroller(t, c, "asks-only",
		`- {apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests], verbs: [create, get, delete]}`)
	requests := func() []string {
		return strings.Fields(c.MustKubectl("get", "csr", "-o",
			`jsonpath={range .items[?(@.spec.username=="asks-only")]}{.metadata.name} {end}`))
	}
	// Nobody does.
	if _, stderr, ok := kured(t, asks, "enroll", "waits", "--client-certificate", "--wait", "1s"); ok ||
		!strings.Contains(stderr, "nobody approved it within 1s") {
		t.Error(stderr)
	}
	if left := requests(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// Somebody does, or denies.
	for _, decision := range []string{"approve", "deny"} {
		var stdout, stderr string
		var ok bool
		var asking sync.WaitGroup
		asking.Go(func() { stdout, stderr, ok = kured(t, asks, "enroll", "waits", "--client-certificate", "--wait", "1m") })
		c.Eventually("the request is there", 20*time.Second, func() bool { return len(requests()) == 1 })
		name := requests()[0]
		c.MustKubectl("certificate", decision, name)
		asking.Wait()
		if !strings.Contains(stderr, "kubectl certificate approve "+name) || ok != (decision == "approve") {
			t.Fatalf("%s: %s", decision, stderr)
		}
		if ok {
			config, err := clientcmd.Load([]byte(stdout))
			if err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(config.AuthInfos["kured-agent:waits"].ClientCertificateData)
			if cert, err := x509.ParseCertificate(block.Bytes); err != nil || cert.Subject.CommonName != "kured-agent:waits" {
				t.Errorf("%v, %v", cert, err)
			}
			c.MustKubectl("delete", "csr", name)
		} else if !strings.Contains(stderr, "Denied") {
			t.Errorf("%s", stderr)
		}
	}
}

func TestWhatTheAdminMayNotOrTheClusterLacksNamesTheWayOut(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	c.NewKubelet("refused", cluster.KubeletOptions{})
	nobody := c.Kubeconfig("nobody-in-particular")
	for _, call := range []struct {
		kubeconfig string
		args       []string
		want       string
	}{
		{c.Admin(), []string{"enroll", "no-such-node"}, "kubectl get nodes"},
		{c.Admin(), []string{"--namespace", "elsewhere", "enroll", "refused"}, "kubectl apply -k packaging/kubernetes"},
		{nobody, []string{"enroll", "refused"}, "your account lacks this right"},
		{nobody, []string{"enroll", "--all", "--output", t.TempDir()}, "your account lacks this right"},
	} {
		if stdout, stderr, ok := kured(t, call.kubeconfig, call.args...); ok || stdout != "" || !strings.Contains(stderr, call.want) {
			t.Errorf("%v: %s%s", call.args, stdout, stderr)
		}
	}
}

func TestTheWrongCredentialIsNotInstalled(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	here := bare(t, c, "right-place", lab.Options{})
	here.Write("/etc/kured/config.toml", fmt.Sprintf("[cluster]\nkubeconfig = %q\n", here.Path("/etc/kured/kubeconfig")), 0o644)
	c.NewKubelet("wrong-place", cluster.KubeletOptions{})
	elsewhere, stderr, ok := kured(t, c.Admin(), "enroll", "wrong-place")
	if !ok {
		t.Fatal(stderr)
	}
	// Rights like an agent's, and none of the policies is for it.
	loose := enroller(t, c, "loose", `- {apiGroups: [""], resources: [nodes], verbs: [patch]}
- {apiGroups: [""], resources: [pods], verbs: [list]}
- {apiGroups: [""], resources: [pods/eviction], verbs: [create]}
- {apiGroups: [""], resources: [configmaps], verbs: [get]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, create, delete]}`)
	read := func(path string) string {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	config, err := clientcmd.Load([]byte(elsewhere))
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos["kured-agent:wrong-place"].Token = strings.TrimSpace(
		c.MustKubectl("-n", "kured-agent", "create", "token", "agent"))
	unbound, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct {
		name, kubeconfig, named string
		want                    []string
	}{
		{"another node's, by the machine id", elsewhere, "", []string{`Node "wrong-place" is another machine`}},
		{"another node's, by the configuration", elsewhere, "right-place",
			[]string{"kubectl kured enroll right-place | ssh right-place"}},
		{"an admin's", read(c.Admin()), "right-place", []string{"may do everything", "kubectl kured enroll"}},
		{"the kubelet's", read(c.KubeletKubeconfig("right-place")), "", []string{"kubelet credentials cannot change taints"}},
		{"a token that is bound to nothing", string(unbound), "right-place",
			[]string{`does not let it change Node "right-place"`, "ValidatingAdmissionPolicy"}},
		{"one that no policy confines", read(loose), "right-place", []string{"may change another Node", "kubectl apply -k"}},
	} {
		args := []string{"enroll", "--kubeconfig", "-"}
		if try.named != "" {
			here.Write("/etc/kured/config.d/name.toml", fmt.Sprintf("[node]\nname = %q\n", try.named), 0o644)
		}
		out, code := here.Pipe(try.kubeconfig, args...)
		if code != 1 {
			t.Errorf("%s: %d %s", try.name, code, out)
		}
		for _, want := range try.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: %q is not in:\n%s", try.name, want, out)
			}
		}
		_ = os.Remove(here.Path("/etc/kured/config.d/name.toml"))
	}
	entries, err := os.ReadDir(here.Path("/etc/kured"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.Contains(entry.Name(), "kubeconfig") {
			t.Errorf("%s was left", entry.Name())
		}
	}
}

func TestANewCredentialReplacesTheOneOfARunningAgent(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := bare(t, c, "again", lab.Options{})
	enrol := func() (out string) {
		kubeconfig, stderr, ok := kured(t, c.Admin(), "enroll", m.Name)
		if !ok {
			t.Fatal(stderr)
		}
		out, code := m.Pipe(kubeconfig, "enroll", "--kubeconfig", "-")
		if code != 0 {
			t.Fatalf("%d %s", code, out)
		}
		return out
	}
	enrol()
	release := m.HoldSlot()
	defer release()
	m.Start()
	m.WaitPhase("Idle")
	// The Node is a new object, and the credential of the old one is worth nothing.
	m.Kubelet.Down()
	c.MustKubectl("delete", "node", m.Name)
	m.Kubelet.Up(m.Kubelet.BootID())
	if out := enrol(); !strings.Contains(out, "next:       systemctl reload kured-agent") {
		t.Errorf("%s", out)
	}
	m.Reload()
	m.Require("linux-image-6.1.0-42-amd64")
	m.WaitTainted()
}
