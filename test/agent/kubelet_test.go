// SPDX-License-Identifier: Apache-2.0

//go:build integration

package agent_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/lab"
)

const asKubelet = "[drain]\nidentity = \"kubelet\"\n"

// kubeletOf writes what a kubelet of kubeadm has, below root: a kubeconfig, and the file with certificate and key that it
// names. It returns the files.
func kubeletOf(t *testing.T, c *cluster.Cluster, node, root string) (kubeconfig, pem string) {
	t.Helper()
	content, err := os.ReadFile(c.KubeletKubeconfig(node))
	if err != nil {
		t.Fatal(err)
	}
	var keyPair []byte
	data := regexp.MustCompile(`    client-(?:certificate|key)-data: (\S+)\n?`)
	for _, match := range data.FindAllSubmatch(content, -1) {
		part, err := base64.StdEncoding.DecodeString(string(match[1]))
		if err != nil {
			t.Fatal(err)
		}
		keyPair = append(keyPair, part...)
	}
	pem = filepath.Join(root, "var/lib/kubelet/pki/kubelet-client-current.pem")
	kubeconfig = filepath.Join(root, "etc/kubernetes/kubelet.conf")
	text := data.ReplaceAllString(string(content), "") // the two lines are one block
	text = strings.Replace(text, "  user:\n", fmt.Sprintf(
		"  user:\n    client-certificate: %[1]s\n    client-key: %[1]s\n", pem), 1)
	for path, content := range map[string]string{pem: string(keyPair), kubeconfig: text} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return kubeconfig, pem
}

// copies does what LoadCredential= does in kubelet-identity.conf, and takes the kubelet's own files away.
func copies(t *testing.T, dir, kubeconfig, pem string) {
	t.Helper()
	for from, name := range map[string]string{kubeconfig: "kubelet.kubeconfig", pem: filepath.Base(pem)} {
		if err := os.Rename(from, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), 0o400); err != nil {
			t.Fatal(err)
		}
	}
}

// shrink takes every right to pods from the agents.
func shrink(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	root, err := cluster.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	c.MustKubectl("apply", "-f", filepath.Join(root, "packaging/kubernetes/optional/identity-kubelet.yaml"))
	got := c.MustKubectl("get", "clusterrole/kured-agent", "-o", "jsonpath={.rules[*].resources} {.rules[*].verbs}")
	if got != `["nodes"] ["get","list","patch"]` {
		t.Fatalf("the role of the agents is %s", got)
	}
}

func TestTheKubeletEvictsAndTheAgentHasNoRightToPods(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{ControllerManager: true, Audit: true})
	shrink(t, c)
	t.Run("a whole reboot", func(t *testing.T) {
		credentials := t.TempDir()
		m := lab.New(t, c, "by-kubelet", lab.Options{
			Env: []string{"CREDENTIALS_DIRECTORY=" + credentials},
			Config: "ready_pods = [\"app=by-kubelet-ds\"]\n" + asKubelet +
				"[[gate.pods]]\nselector = \"app=nothing\"\n",
		})
		kubeconfig, pem := kubeletOf(t, c, m.Name, t.TempDir())
		copies(t, credentials, kubeconfig, pem)
		rebootByKubelet(t, c, m, filepath.Join(credentials, filepath.Base(pem)))
	})
	t.Run("as root, with the kubelet's own files", func(t *testing.T) {
		m := lab.New(t, c, "by-root", lab.Options{
			Config: "ready_pods = [\"app=by-root-ds\"]\n" + asKubelet,
		})
		_, pem := kubeletOf(t, c, m.Name, m.Root)
		rebootByKubelet(t, c, m, pem)
	})
	t.Run("a stolen token", func(t *testing.T) {
		m := lab.New(t, c, "stolen", lab.Options{})
		c.Pod(m.Name, "stolen-1", cluster.PodOptions{})
		for _, args := range [][]string{
			{"get", "pods", "-A", "--field-selector", "spec.nodeName=" + m.Name},
			{"delete", "pod", "stolen-1"},
			{"create", "--raw", "/api/v1/namespaces/default/pods/stolen-1/eviction", "-f", eviction(t, "stolen-1")},
		} {
			out, err := c.Kubectl(append([]string{"--kubeconfig", m.Path("/etc/kured/kubeconfig")}, args...)...)
			if err == nil || !strings.Contains(err.Error(), "orbidden") {
				t.Errorf("%q: %s, %v", args, out, err)
			}
		}
		if out, code := m.Command("check-config"); code != 1 ||
			!strings.Contains(out, "the agent may not list pods") || !strings.Contains(out, "the agent may not create pods/eviction") {
			t.Errorf("without the kubelet's identity: %d %s", code, out)
		}
	})
	t.Run("the kubelet of another node", func(t *testing.T) {
		m := lab.New(t, c, "victim", lab.Options{Config: asKubelet})
		lab.New(t, c, "thief", lab.Options{})
		c.Pod(m.Name, "victim-1", cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "victim"})
		kubeletOf(t, c, "thief", m.Root)
		if out, code := m.Command("check-config"); code != 1 ||
			!strings.Contains(out, `node "thief" is not allowed to modify node "victim"`) {
			t.Errorf("check-config: %d %s", code, out)
		}
		m.Start()
		m.Require("kernel")
		c.Eventually("it is told", 30*time.Second, func() bool {
			u, _ := m.Status()
			return u.Phase == "Unreachable" && strings.Contains(u.Why, `node "thief"`)
		})
		if taint, cordon, _, slot := m.Marks(); taint || cordon || slot {
			t.Errorf("taint %v, cordon %v, slot %v", taint, cordon, slot)
		}
		kubeletOf(t, c, m.Name, m.Root) // the repair
		m.Kill()
		m.Start()
		m.WaitAsked(1)
	})
	t.Run("no kubelet", func(t *testing.T) {
		m := lab.New(t, c, "kubeletless", lab.Options{Config: asKubelet})
		m.Start()
		if code := m.WaitEnd(); code != 78 || !strings.Contains(m.Log(), "kubelet-identity.conf") {
			t.Errorf("exit code %d", code)
		}
		if out, code := m.Command("cleanup", "--timeout", "20s"); code != 0 {
			t.Errorf("cleanup: %d %s", code, out)
		}
	})
}

func eviction(t *testing.T, pod string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "eviction.json")
	content := fmt.Sprintf(
		`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":"default"}}`, pod)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// rebootByKubelet shows one reboot of a machine whose pods its kubelet's credential, in pem, evicts.
func rebootByKubelet(t *testing.T, c *cluster.Cluster, m *lab.Machine, pem string) {
	t.Helper()
	secret, err := os.ReadFile(pem)
	if err != nil {
		t.Fatal(err)
	}
	pods := []string{m.Name + "-1", m.Name + "-2"}
	for _, pod := range pods {
		c.Pod(m.Name, pod, cluster.PodOptions{Owner: "ReplicaSet", OwnerName: m.Name})
	}
	c.Pod(m.Name, m.Name+"-ds", cluster.PodOptions{Owner: "DaemonSet", OwnerName: m.Name + "-ds"})
	c.WaitRunning(append(pods, m.Name+"-ds")...)
	if out, code := m.Command("check-config"); code != 0 || strings.Contains(out, "identity-kubelet.yaml") {
		t.Fatalf("check-config: %d %s", code, out)
	}
	m.Start()
	m.WaitPhase("Idle")
	m.Require("kernel")
	m.WaitAsked(1)
	if left := names(c.Pods(m.Name)); !slices.Equal(left, []string{m.Name + "-ds"}) {
		t.Errorf("pods left at the reboot: %q", left)
	}
	m.Login.PrepareForShutdown(true)
	m.Reboot()
	m.WaitClean()
	m.WaitPhase("Idle")
	kubelet := "system:node:" + m.Name
	evictions := c.WaitRequests(func(r cluster.Request) bool {
		return r.Subresource == "eviction" && strings.HasPrefix(r.Name, m.Name+"-") && r.Code/100 == 2
	}, len(pods), 10*time.Second)
	for _, r := range evictions {
		if r.User != kubelet || !strings.HasPrefix(r.UserAgent, "kured-agent/") {
			t.Errorf("%s evicted %s, with %s", r.User, r.Name, r.UserAgent)
		}
	}
	if len(evictions) != len(pods) {
		t.Errorf("%d evictions", len(evictions))
	}
	if asked := c.Requests(func(r cluster.Request) bool {
		return r.User == cluster.AgentUser && r.Resource == "pods"
	}); len(asked) > 0 {
		t.Errorf("the agent's own credential asked for pods: %+v", asked[0])
	}
	writes := c.Requests(cluster.NodeWrites(m.Name))
	writes = slices.DeleteFunc(writes, func(r cluster.Request) bool { return !strings.HasPrefix(r.UserAgent, "kured-agent/") })
	for _, r := range writes {
		if r.User != cluster.AgentUser {
			t.Errorf("%s wrote the Node", r.User)
		}
	}
	if len(writes) != 3 {
		t.Errorf("%d Node writes", len(writes))
	}
	for line := range strings.Lines(string(secret)) {
		if len(line) > 40 && strings.Contains(m.Log(), strings.TrimSpace(line)) {
			t.Fatal("the kubelet's credential is in the journal")
		}
	}
}

func TestWithoutNodeRestrictionTheKubeletsIdentityIsRefused(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{NoNodeRestriction: true})
	m := lab.New(t, c, "unrestricted", lab.Options{Config: asKubelet})
	kubeletOf(t, c, m.Name, m.Root)
	if out, code := m.Command("check-config"); code != 1 ||
		!strings.Contains(out, "the API server runs without the NodeRestriction admission plugin") ||
		!strings.Contains(out, `set [drain] identity = "agent"`) {
		t.Errorf("check-config: %d %s", code, out)
	}
	m.Start()
	m.Require("kernel")
	c.Eventually("it is told", 30*time.Second, func() bool {
		u, _ := m.Status()
		return u.Phase == "Unreachable" && strings.Contains(u.Why, "NodeRestriction")
	})
	if n := c.Node(m.Name); n.Spec.Unschedulable || len(n.Spec.Taints) > 0 {
		t.Errorf("the proof changed the Node: %+v", n.Spec)
	}
	m.Configure("") // the way out
	m.Reload()
	m.WaitAsked(1)
}

func TestARoleThatGrantsMoreThanTheKubeletsIdentityNeedsIsToldOf(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "spare", lab.Options{Config: asKubelet})
	kubeletOf(t, c, m.Name, m.Root)
	if out, code := m.Command("check-config"); code != 0 ||
		!strings.Contains(out, "may still list pods and create pods/eviction") || !strings.Contains(out, "identity-kubelet.yaml") {
		t.Errorf("check-config: %d %s", code, out)
	}
}
