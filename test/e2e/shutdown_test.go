// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/machines"
)

// kubeletService stands for the kubelet in the order of units, and says when it is stopped. Its programs are where they
// are also on the machine without a merged /usr, Debian 11.
const kubeletService = `[Unit]
Description=Stands for the kubelet
[Service]
ExecStart=/bin/sleep infinity
ExecStop=/bin/echo the kubelet is stopped
[Install]
WantedBy=multi-user.target
`

const shutdownUnit = "kured-agent-shutdown.service"

// drained is a machine with a kubelet.service and a pod, whose agent drains in every shutdown for at most so long.
func (s *scene) drained(name, suite, bound string) *node {
	s.Helper()
	n := s.node(name, suite, quick+"[shutdown]\ndrain = \""+bound+"\"\n")
	n.Write("/etc/systemd/system/kubelet.service", kubeletService, 0o644)
	n.MustRun("systemctl", "daemon-reload")
	n.MustRun("systemctl", "enable", "--now", "kubelet.service")
	n.enable()
	s.c.Pod(name, name, cluster.PodOptions{Owner: "ReplicaSet", Labels: map[string]string{"app": name}})
	s.c.WaitRunning(name)
	n.eventually("the unit that drains is there with the agent", 10*time.Second, n.awaitsShutdown)
	n.eventually("the agent is idle", 30*time.Second, func() bool { return n.phase() == "Idle" })
	return n
}

func (n *node) awaitsShutdown() bool { return n.UnitProperty(shutdownUnit, "ActiveState") == "active" }

// hasPod says whether the pod of drained is still on the node.
func (n *node) hasPod() bool {
	for _, pod := range n.s.c.Pods(n.Name()) {
		if pod.Name == n.Name() {
			return true
		}
	}
	return false
}

func TestARebootTypedByRootDrainsBeforeTheKubeletStops(t *testing.T) {
	for _, suite := range machines.Suites {
		t.Run(suite, func(t *testing.T) {
			s := newScene(t)
			watch := s.watchCordons()
			n := s.drained("typed-"+suite[:4], suite, "1m")
			n.kubelet.SetPodDelete(2 * time.Second) // its grace period
			for _, unit := range []string{shutdownUnit, "kubelet.service", "kured-agent.service"} {
				n.MustRun("systemctl", "restart", unit)
			}
			n.killAgent()
			s.stays("a restart or a crash drains nothing", 3*time.Second, func() bool {
				return n.hasPod() && !n.cordoned() && n.awaitsShutdown()
			})
			boot := n.BootID()
			_, _ = n.Exec("reboot") // the answer may be lost in the shutdown that it starts
			n.eventually("cordoned with our marker", cycleBound, func() bool {
				return n.node().Annotations[marker] == boot
			})
			n.waitReturned(2)
			n.mustHaveBoots(2)
			if n.hasPod() {
				t.Error("the pod was not evicted")
			}
			if _, told := watch.mostAtOnce(); len(told) != 2 {
				t.Errorf("want a cordon and its end, saw:\n%s", strings.Join(told, "\n"))
			}
			journal := n.Journal(shutdownUnit, "kubelet.service")
			drained, stopped := strings.LastIndex(journal, "no pod is left to evict"), strings.LastIndex(journal, "the kubelet is stopped")
			if drained < 0 || stopped < drained {
				t.Errorf("the kubelet was stopped before the node was drained:\n%s", journal)
			}
		})
	}
}

// A power-off that logind knows nothing of, and a budget that allows nothing, as when all nodes go down at once.
func TestAPowerOffGoesOnWhenTheTimeOfItsDrainIsOver(t *testing.T) {
	s := newScene(t)
	n := s.drained("bounded", debian13, "4s")
	s.c.PDB("bounded", map[string]string{"app": "bounded"}, 1)
	boot, began := n.BootID(), time.Now()
	n.Down()
	if took := time.Since(began); took < 4*time.Second || n.Boots()[0].Exit != 0 {
		t.Errorf("down after %s: %+v", took, n.Boots())
	}
	if got := n.node().Annotations[marker]; got != boot || !n.hasPod() {
		t.Errorf("marker %q, pod left %v", got, n.hasPod())
	}
	s.c.MustKubectl("delete", "pdb", "bounded")
	n.Start()
	n.waitReturned(2)
}

func TestAShutdownDoesNotWaitForAnAPIServerThatIsAway(t *testing.T) {
	s := newScene(t)
	n := s.drained("alone", debian12, "1m")
	s.c.KillAPIServer()
	began := time.Now()
	_, _ = n.Exec("reboot")
	s.c.Eventually("the machine is down", 30*time.Second, func() bool { return !n.Boots()[0].Ended.IsZero() })
	if took := n.Boots()[0].Ended.Sub(began); took < 10*time.Second || took > 18*time.Second {
		t.Errorf("the shutdown took %s", took)
	}
	s.c.StartAPIServer()
	n.waitReturned(2)
	n.mustHaveBoots(2)
}

// Nobody would give the node back after the boot.
func TestAShutdownDrainsNothingOnceTheAgentIsSwitchedOff(t *testing.T) {
	s := newScene(t)
	n := s.drained("switched-off", debian13, "1m")
	n.MustRun("systemctl", "disable", "--now", "kured-agent")
	n.eventually("the unit that drains goes with the agent", 10*time.Second, func() bool {
		return n.UnitProperty(shutdownUnit, "ActiveState") == "inactive"
	})
	n.Reboot()
	if !n.hasPod() || n.cordoned() {
		t.Errorf("pod left %v, cordoned %v", n.hasPod(), n.cordoned())
	}
}
