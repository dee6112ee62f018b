// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/machines"
)

const everySource = `
[[source]]
type = "file"
path = "/run/reboot-required"
[[source]]
type = "request"
[[source]]
type = "systemd-unit"
unit = "kured-reboot-required.target"
` + machines.UpdaterSource

func TestAMachineGoesThroughTheWholeCycle(t *testing.T) {
	for _, suite := range machines.Suites {
		t.Run(suite, func(t *testing.T) {
			s := newScene(t)
			n := s.node("cycle-"+suite[:4], suite, quick+everySource).enable()
			n.mustHaveTheCallOfItsTime()
			s.c.Pod(n.Name(), "web-"+suite, cluster.PodOptions{Owner: "ReplicaSet"})
			s.c.Pod(n.Name(), "agent-"+suite, cluster.PodOptions{Owner: "DaemonSet", OwnerName: "everywhere"})
			s.c.WaitRunning("web-"+suite, "agent-"+suite)
			for i, trigger := range []struct {
				how  string
				pull func()
			}{
				{"by file", func() { n.requireByFile("linux-image-" + suite) }},
				{"by D-Bus signal", func() {
					n.RunUpdater(updater)
					n.Signal("IDLE")
					n.Signal("NEED_REBOOT")
				}},
				{"by request", func() { n.MustRun("kured-agent", "request", "microcode", "new CPU microcode") }},
				{"by target", func() { n.MustRun("systemctl", "start", "kured-reboot-required.target") }},
			} {
				before := len(s.c.Requests(cluster.NodeWrites(n.Name())))
				agents := func(r cluster.Request) bool {
					return r.User == cluster.AgentUser && cluster.NodeWrites(n.Name())(r)
				}
				writes := len(s.c.Requests(agents))
				boot := n.BootID()
				trigger.pull()
				n.waitReturned(i + 2)
				n.mustHaveBoots(i + 2)
				if n.BootID() == boot {
					t.Errorf("%s: the boot id is the same", trigger.how)
				}
				if got := len(s.c.WaitRequests(agents, writes+3, 2*time.Second)) - writes; got != 3 {
					t.Errorf("%s: the agent wrote the Node %d times, want 3", trigger.how, got)
				}
				t.Logf("%s: returned; node writes of everybody: %d", trigger.how, len(s.c.Requests(cluster.NodeWrites(n.Name())))-before)
				if result := n.UnitProperty("kured-agent-boot.service", "Result"); result != "success" {
					t.Errorf("%s: the boot unit's result is %q", trigger.how, result)
				}
			}
			var left []string
			for _, pod := range s.c.Pods(n.Name()) {
				left = append(left, pod.Name)
			}
			if want := "agent-" + suite; strings.Join(left, " ") != want {
				t.Errorf("pods after the drains: %v, want only %s", left, want)
			}
			// The need did not come back, so neither does the reboot.
			n.eventually("the agent is idle", 30*time.Second, func() bool { return n.phase() == "Idle" })
			n.mustHaveBoots(5)
		})
	}
}

// mustHaveTheCallOfItsTime fails when logind's way to reboot is not the one that its version leads to expect: before 249
// only Reboot, so that the agent's fallback is what reboots the machine.
func (n *node) mustHaveTheCallOfItsTime() {
	n.s.Helper()
	methods := n.MustExec("busctl", "introspect", "--no-pager", "org.freedesktop.login1", "/org/freedesktop/login1",
		"org.freedesktop.login1.Manager")
	call, _ := n.reboots()
	n.s.Logf("systemd %d reboots by %s", n.Systemd(), call[0])
	if has := strings.Contains(methods, ".RebootWithFlags "); has != (call[0] == "RebootWithFlags") {
		n.s.Errorf("systemd %d: RebootWithFlags %t", n.Systemd(), has)
	}
}

func TestThreeMachinesAreNeverCordonedAtOnceAndEachRebootsOnce(t *testing.T) {
	s := newScene(t)
	watch := s.watchCordons()
	var nodes []*node
	for i := range 3 {
		suite := []string{debian12, debian13}[i%2]
		n := s.node(fmt.Sprintf("three-%d", i+1), suite, quick).enable()
		pod := fmt.Sprintf("three-%d", i+1)
		s.c.Pod(n.Name(), pod, cluster.PodOptions{Owner: "ReplicaSet"})
		s.c.WaitRunning(pod)
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		n.requireByFile("linux-image")
	}
	for _, n := range nodes {
		n.eventually("is tainted while it waits, or has rebooted", 30*time.Second, func() bool {
			return n.tainted() || len(n.Boots()) > 1
		})
	}
	for _, n := range nodes {
		n.waitReturned(2)
		n.mustHaveBoots(2)
	}
	most, told := watch.mostAtOnce()
	if most != 1 {
		t.Errorf("%d nodes were cordoned at once:\n%s", most, strings.Join(told, "\n"))
	}
	if len(told) != 6 {
		t.Errorf("a cordon and its end for each of three nodes are 6 changes, the watch saw:\n%s", strings.Join(told, "\n"))
	}
}

func TestAHumansCordonSurvivesTheReboot(t *testing.T) {
	s := newScene(t)
	n := s.node("human", debian12, quick).enable()
	s.c.MustKubectl("cordon", n.Name())
	n.requireByFile("linux-image")
	n.eventually("rebooted and gave everything of ours back", cycleBound, func() bool {
		node := s.c.NodeOrNil(n.Name())
		return len(n.Boots()) == 2 && fmt.Sprint(ours(node)) == "[cordon]" && len(n.slots()) == 0 &&
			node.Status.NodeInfo.BootID == n.BootID()
	})
	n.eventually("the agent is idle", 30*time.Second, func() bool { return n.phase() == "Idle" })
	if !n.cordoned() {
		t.Error("the human's cordon is gone")
	}
}

func TestForeignTaintsSurviveTheReboot(t *testing.T) {
	s := newScene(t)
	n := s.node("foreign", debian12, quick).enable()
	s.c.MustKubectl("taint", "node", n.Name(), "a=1:NoSchedule", taintKey+"=mine:NoSchedule", "b:PreferNoSchedule")
	foreign := func() string {
		var all []string
		for _, taint := range n.node().Spec.Taints {
			if taint.Key != taintKey || taint.Effect != corev1.TaintEffectPreferNoSchedule {
				all = append(all, taint.ToString())
			}
		}
		return strings.Join(all, " ")
	}
	before := foreign()
	n.requireByFile("linux-image")
	n.eventually("our taint is beside them", 30*time.Second, func() bool {
		return len(n.node().Spec.Taints) == 4 || len(n.Boots()) == 2
	})
	n.eventually("our taint is gone after the reboot", cycleBound, func() bool {
		return len(n.Boots()) == 2 && n.s.c.NodeOrNil(n.Name()) != nil && len(n.node().Spec.Taints) == 3 && !n.cordoned()
	})
	if after := foreign(); after != before {
		t.Errorf("foreign taints were %q and are %q", before, after)
	}
}

func TestANeedThatDisappearsTakesEverythingBack(t *testing.T) {
	s := newScene(t)
	n := s.node("vanish", debian12, quick).enable()
	n.kubelet.SetPodDelete(-1) // the drain stands still
	s.c.Pod(n.Name(), "vanish", cluster.PodOptions{Owner: "ReplicaSet"})
	s.c.WaitRunning("vanish")
	n.requireByFile("linux-image")
	n.waitPhase("Draining")
	if !n.cordoned() || len(n.slots()) != 1 {
		t.Errorf("draining, and cordoned=%t with slots %v", n.cordoned(), n.slots())
	}
	n.MustExec("rm", "/run/reboot-required")
	n.eventually("taint, cordon and slot are gone", 30*time.Second, func() bool {
		return len(ours(s.c.NodeOrNil(n.Name()))) == 0 && len(n.slots()) == 0
	})
	n.mustHaveBoots(1)
}
