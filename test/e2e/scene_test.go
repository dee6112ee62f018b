// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/machines"
)

const (
	taintKey = "kured-agent/reboot-required"
	marker   = "kured-agent/cordoned"
	debian11 = "bullseye"
	debian12 = "bookworm"
	debian13 = "trixie"
	debian14 = "forky"

	cycleBound = 2 * time.Minute // of one whole reboot on a busy machine
)

var (
	shared  *cluster.Cluster
	deb     string
	updater string
)

func TestMain(m *testing.M) {
	host := cluster.NewHost("e2e", os.Stderr)
	code := 1
	err := host.Run(func() {
		var err error
		if deb, err = machines.Deb(); err != nil {
			host.Fatalf("%v", err)
		}
		if updater, err = machines.BuildUpdater(host.TempDir()); err != nil {
			host.Fatalf("%v", err)
		}
		shared = cluster.Start(host, cluster.Options{ControllerManager: true, Audit: true})
		code = m.Run()
	})
	if err != nil {
		host.Logf("%v", err)
	}
	os.Exit(code)
}

// scene is one network of machines that are nodes of the shared cluster.
type scene struct {
	*testing.T
	c   *cluster.Cluster
	hub *machines.Hub
	url string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	hub := machines.NewHub(t)
	c := shared.For(t)
	return &scene{T: t, c: c, hub: hub, url: c.ListenIn(hub.NetNS(), machines.HubAddress+":6443")}
}

// node is a machine with the package installed and configured, enabled only by enable.
type node struct {
	*machines.Machine
	s       *scene
	kubelet *cluster.Kubelet
}

// quick makes repeated reboots possible in a test; all else is as shipped.
const quick = `
[reboot]
min_interval = "0s"
[boot]
settle = "0s"
`

func (s *scene) node(name, suite, config string, packages ...string) *node {
	s.Helper()
	n := s.bare(name, suite, packages...)
	n.Install(deb)
	n.Configure(config, s.c.AgentKubeconfigFor(name, s.url))
	return n
}

// bare is a node without the agent's package, with further ones of Debian.
func (s *scene) bare(name, suite string, packages ...string) *node {
	s.Helper()
	n := &node{Machine: s.hub.Machine(name, machines.MachineOptions{Suite: suite, Packages: packages}), s: s}
	n.kubelet = n.Join(s.c, cluster.KubeletOptions{})
	s.Cleanup(func() {
		if s.Failed() {
			s.Logf("journal of %s:\n%s", name, n.Journal("kured-agent.service", "kured-agent-boot.service"))
		}
		// With the Node goes its slot, so that a failed test does not hold up the next one.
		_, _ = s.c.Kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
		_, _ = s.c.Kubectl("delete", "node", name, "--wait=false")
	})
	return n
}

// releases makes a node of each Debian release, for what can go on side by side, and enables the agent on them.
func (s *scene) releases(name, config string) []*node {
	s.Helper()
	var nodes []*node
	for _, suite := range machines.Suites {
		nodes = append(nodes, s.node(name+"-"+suite[:4], suite, config).enable())
	}
	return nodes
}

// setSlots sets how many nodes may be away at once, until the end of the test.
func (s *scene) setSlots(n int) {
	s.Helper()
	s.patchPools(fmt.Sprintf(`{"default":"%d"}`, n))
}

// pause lets no further node go until resume or the end of the test.
func (s *scene) pause() { s.Helper(); s.patchPools(`{"paused":"for a test"}`) }

func (s *scene) resume() { s.Helper(); s.patchPools(`{"paused":null}`) }

func (s *scene) patchPools(data string) {
	s.Helper()
	patch := func(data string) []string {
		return []string{"-n", "kured-agent", "patch", "configmap", "kured-agent-pools", "--type=merge", "-p", `{"data":` + data + `}`}
	}
	s.c.MustKubectl(patch(data)...)
	s.Cleanup(func() { _, _ = s.c.Kubectl(patch(`{"default":"1","paused":null}`)...) })
}

// enable is all that an admin types.
func (n *node) enable() *node {
	n.s.Helper()
	n.MustRun("systemctl", "enable", "--now", "kured-agent")
	n.eventually("the agent is active", 20*time.Second, func() bool {
		return n.UnitProperty("kured-agent.service", "ActiveState") == "active"
	})
	return n
}

func (n *node) eventually(what string, bound time.Duration, condition func() bool) {
	n.s.Helper()
	n.s.c.Eventually(n.Name()+": "+what, bound, condition)
}

// requireByFile leaves what Debian's packages leave when they want a reboot.
func (n *node) requireByFile(pkg string) {
	n.s.Helper()
	n.Write("/run/reboot-required.pkgs", pkg+"\n", 0o644)
	n.Write("/run/reboot-required", "*** System restart required ***\n", 0o644)
}

// stickyPod gives the node a pod whose eviction is accepted and that does not end before unstick: a drain stands still.
func (n *node) stickyPod() {
	n.s.Helper()
	n.kubelet.SetPodDelete(-1)
	n.s.c.Pod(n.Name(), n.Name(), cluster.PodOptions{Owner: "ReplicaSet"})
	n.s.c.WaitRunning(n.Name())
}

func (n *node) unstick() {
	n.s.Helper()
	n.kubelet.SetPodDelete(0)
	n.s.c.MustKubectl("delete", "pod", n.Name(), "--force", "--grace-period=0")
}

func (n *node) phase() string { return n.Property("Phase") }

func (n *node) waitPhase(phases ...string) {
	n.s.Helper()
	n.eventually("phase "+strings.Join(phases, " or "), cycleBound, func() bool { return slices.Contains(phases, n.phase()) })
}

func (n *node) node() *corev1.Node { return n.s.c.Node(n.Name()) }

func (n *node) tainted() bool { return hasTaint(n.s.c.NodeOrNil(n.Name())) }

func (n *node) cordoned() bool {
	node := n.s.c.NodeOrNil(n.Name())
	return node != nil && node.Spec.Unschedulable
}

// marked says whether the node bears our mark of a cordon.
func (n *node) marked() bool {
	node := n.s.c.NodeOrNil(n.Name())
	return node != nil && node.Annotations[marker] != ""
}

func hasTaint(node *corev1.Node) bool {
	return node != nil && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taintKey })
}

// ours lists what of the agent is on a Node: nothing before a reboot is required and nothing after the return.
func ours(node *corev1.Node) []string {
	if node == nil {
		return []string{"no answer"}
	}
	var all []string
	for _, taint := range node.Spec.Taints {
		if strings.HasPrefix(taint.Key, "kured-agent/") {
			all = append(all, "taint "+taint.Key)
		}
	}
	for key := range node.Annotations {
		if strings.HasPrefix(key, "kured-agent/") {
			all = append(all, "annotation "+key)
		}
	}
	if node.Spec.Unschedulable {
		all = append(all, "cordon")
	}
	return all
}

// slots returns the names of the slots that the node holds.
func (n *node) slots() []string {
	var held []string
	for _, lease := range n.s.c.Leases("kured-agent") {
		if holder := lease.Spec.HolderIdentity; holder != nil && *holder == n.Name() {
			held = append(held, lease.Name)
		}
	}
	return held
}

// waitReturned waits until boot number "boot" has given the Node back whole.
func (n *node) waitReturned(boot int) {
	n.s.Helper()
	var left []string
	deadline := time.Now().Add(cycleBound)
	for time.Now().Before(deadline) {
		node := n.s.c.NodeOrNil(n.Name())
		left = ours(node)
		if len(n.Boots()) >= boot && len(left) == 0 && node.Status.NodeInfo.BootID == n.BootID() && len(n.slots()) == 0 {
			n.eventually("the agent is active after the boot", 20*time.Second, func() bool {
				return n.UnitProperty("kured-agent.service", "ActiveState") == "active"
			})
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	n.s.Fatalf("%s was not returned within %s: boot %d of %d, phase %q (%s), on the node: %v, slots: %v",
		n.Name(), cycleBound, len(n.Boots()), boot, n.phase(), n.Property("Why"), left, n.slots())
}

// stays watches for a while that something remains as it is: that nothing happens is no condition to wait for.
func (s *scene) stays(what string, d time.Duration, holds func() bool) {
	s.Helper()
	for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if !holds() {
			s.Fatalf("it did not stay so that %s", what)
		}
	}
}

// mustHaveBoots fails when there are more or fewer boots.
func (n *node) mustHaveBoots(want int) {
	n.s.Helper()
	if got := len(n.Boots()); got != want {
		n.s.Errorf("%s booted %d times, want %d", n.Name(), got, want)
	}
}

// killAgent sends SIGKILL to the agent and returns when another process of it is up.
func (n *node) killAgent() {
	n.s.Helper()
	before := n.UnitProperty("kured-agent.service", "MainPID")
	n.MustExec("systemctl", "kill", "--signal=KILL", "kured-agent.service")
	n.eventually("the agent was started again", 30*time.Second, func() bool {
		now := n.UnitProperty("kured-agent.service", "MainPID")
		return now != before && now != "0" && n.UnitProperty("kured-agent.service", "ActiveState") == "active"
	})
}

// cordons follows a watch of all nodes and keeps how many of ours were cordoned at once.
type cordons struct {
	mu   sync.Mutex
	now  map[string]bool
	most int
	told []string
}

func (s *scene) watchCordons() *cordons {
	s.Helper()
	w := &cordons{now: map[string]bool{}}
	s.c.Watch(s.Context(), "/api/v1/nodes", func(event string, object json.RawMessage) {
		var node corev1.Node
		if json.Unmarshal(object, &node) == nil {
			if event == "DELETED" { // the last state of what is no node any more
				delete(node.Annotations, marker)
			}
			w.take(&node)
		}
	})
	return w
}

func (w *cordons) take(node *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	cordoned := node.Annotations[marker] != ""
	if cordoned == w.now[node.Name] {
		return
	}
	if cordoned {
		w.now[node.Name] = true
	} else {
		delete(w.now, node.Name)
	}
	w.most = max(w.most, len(w.now))
	w.told = append(w.told, fmt.Sprintf("%s %s cordoned=%t", time.Now().Format("15:04:05.000"), node.Name, cordoned))
}

func (w *cordons) mostAtOnce() (int, []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most, slices.Clone(w.told)
}
