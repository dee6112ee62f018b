// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/machines"
)

// slowPreReboot hangs a check before the reboot that waits for a file.
const slowPreReboot = `[Unit]
Requires=gate.service
After=gate.service
`

const gateService = `[Unit]
Description=waits for /run/gate
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'while [ ! -e /run/gate ]; do sleep 0.1; done'
TimeoutStartSec=infinity
`

func TestAnAgentKilledInAnyPhaseFinishesTheCycleWithOneReboot(t *testing.T) {
	phases := []struct {
		phase string
		hold  func(n *node) // makes the agent stay in the phase
		free  func(n *node)
	}{
		{
			"WaitingTurn",
			func(n *node) { n.s.holdSlot() },
			func(n *node) { n.s.c.MustKubectl("-n", "kured-agent", "delete", "lease", "slot-default-0") },
		},
		{
			"Draining",
			(*node).stickyPod,
			(*node).unstick,
		},
		{
			"Preparing",
			func(n *node) {
				n.Write("/etc/systemd/system/gate.service", gateService, 0o644)
				n.Write("/etc/systemd/system/kured-agent-pre-reboot.target.d/gate.conf", slowPreReboot, 0o644)
				n.MustRun("systemctl", "daemon-reload")
			},
			func(n *node) { n.Write("/run/gate", "", 0o644) },
		},
		{
			"WaitingInhibitor",
			func(n *node) { n.inhibit("root", "packager") },
			func(n *node) { n.MustRun("systemctl", "stop", "inhibitor") },
		},
	}
	for _, p := range phases {
		t.Run(p.phase, func(t *testing.T) {
			s := newScene(t)
			n := s.node("kill-"+strings.ToLower(p.phase)[:8], debian13, quick).enable()
			p.hold(n)
			n.requireByFile("linux-image")
			n.waitPhase(p.phase)
			n.killAgent()
			n.waitPhase(p.phase)
			if !n.tainted() {
				t.Error("the taint is gone after the restart")
			}
			n.mustHaveBoots(1)
			p.free(n)
			n.waitReturned(2)
			n.mustHaveBoots(2)
		})
	}
}

func TestAgentAndBootUnitKilledInTheReturnFinishIt(t *testing.T) {
	s := newScene(t)
	n := s.node("kill-return", debian13, "[boot]\nsettle = \"5s\"\n").enable()
	n.requireByFile("linux-image")
	n.eventually("the boot unit is at work", cycleBound, func() bool {
		return len(n.Boots()) == 2 && n.UnitProperty("kured-agent-boot.service", "ActiveState") == "activating"
	})
	n.MustExec("systemctl", "kill", "--signal=KILL", "kured-agent.service", "kured-agent-boot.service")
	if !n.tainted() || !n.cordoned() || len(n.slots()) != 1 {
		t.Errorf("before the boot has settled: on the node %v, slots %v", ours(n.node()), n.slots())
	}
	n.waitReturned(2)
	n.mustHaveBoots(2)
}

func TestAnAgentKilledAllTheTimeFinishesTheCycleWithOneReboot(t *testing.T) {
	s := newScene(t)
	n := s.node("kill-always", debian12, quick)
	// Restarted at once: the test is about resuming, not about waiting.
	n.Write("/etc/systemd/system/kured-agent.service.d/quick.conf", "[Service]\nRestartSec=100ms\n", 0o644)
	n.Write("/etc/systemd/system/kured-agent-boot.service.d/quick.conf", "[Service]\nRestartSec=100ms\nRestart=always\n", 0o644)
	n.MustRun("systemctl", "daemon-reload")
	n.enable()
	s.c.Pod(n.Name(), "kill-always", cluster.PodOptions{Owner: "ReplicaSet"})
	s.c.WaitRunning("kill-always")
	n.requireByFile("linux-image")
	kills := 0
	for deadline := time.Now().Add(cycleBound); time.Now().Before(deadline); kills++ {
		if len(n.Boots()) == 2 && len(ours(s.c.NodeOrNil(n.Name()))) == 0 {
			break
		}
		// Ever longer lives, in real time: each kill falls a little later than the one before, over all of the cycle.
		time.Sleep(time.Duration(100+kills*25) * time.Millisecond)
		_, _ = n.Exec("systemctl", "kill", "--signal=KILL", "kured-agent.service", "kured-agent-boot.service")
	}
	t.Logf("%d kills", kills)
	n.waitReturned(2)
	n.mustHaveBoots(2)
}

// inhibit holds a block lock on shutdown, as the user and in that name, until "systemctl stop inhibitor".
func (n *node) inhibit(user, who string) {
	n.s.Helper()
	n.MustExec("systemd-run", "--quiet", "--unit=inhibitor", "--uid="+user, "systemd-inhibit", "--what=shutdown",
		"--mode=block", "--who="+who, "--why=installing", "sleep", "infinity")
	n.eventually("the inhibitor is listed", 10*time.Second, func() bool {
		out, _ := n.Exec("busctl", "call", "org.freedesktop.login1", "/org/freedesktop/login1",
			"org.freedesktop.login1.Manager", "ListInhibitors")
		return strings.Contains(out, who)
	})
}

// holdSlot gives the only slot to a node that does nothing.
func (s *scene) holdSlot() {
	s.Helper()
	other := s.c.NewKubelet("holder", cluster.KubeletOptions{})
	s.Cleanup(func() { _, _ = s.c.Kubectl("delete", "node", other.Name(), "--wait=false") })
	s.c.Apply(fmt.Sprintf(`apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: slot-default-0
  namespace: kured-agent
  labels: {kured-agent/pool: default}
  ownerReferences: [{apiVersion: v1, kind: Node, name: holder, uid: %s}]
spec: {holderIdentity: holder}
`, s.c.Node("holder").UID))
}

// A user may block shutdowns only if polkit says so: at the seat by default, here by the administrator's word.
const (
	builderRule = `polkit.addRule(function(action, subject) {
    if (action.id == "org.freedesktop.login1.inhibit-block-shutdown" && subject.user == "builder") {
        return polkit.Result.YES;
    }
});
`
	builderPkla = `[builder blocks shutdowns]
Identity=unix-user:builder
Action=org.freedesktop.login1.inhibit-block-shutdown
ResultAny=yes
`
)

// addBuilder makes an ordinary user who may block shutdowns.
func (n *node) addBuilder() {
	n.s.Helper()
	n.MustRun("useradd", "--system", "builder")
	n.Write("/etc/polkit-1/localauthority/50-local.d/builder.pkla", builderPkla, 0o644)
	n.Write("/etc/polkit-1/rules.d/50-builder.rules", builderRule, 0o644)
	n.MustRun("systemctl", "try-restart", "polkit.service")
}

// reboots says which call of logind reboots the machine, and whether logind refuses it to root while somebody blocks.
func (n *node) reboots() (call []string, refusesRoot bool) {
	if n.Systemd() < 249 {
		return []string{"Reboot", "b", "false"}, false
	}
	return []string{"RebootWithFlags", "t", "0"}, n.Systemd() >= 257
}

func TestABlockInhibitorIsWaitedForAndNamed(t *testing.T) {
	for _, suite := range machines.Suites {
		t.Run(suite, func(t *testing.T) {
			s := newScene(t)
			n := s.node("inhibit-"+suite[:4], suite, quick).enable()
			n.addBuilder()
			call, refusesRoot := n.reboots()
			refused := []string{"kured-agent"}
			if refusesRoot {
				refused = append(refused, "root")
			}
			for i, holder := range []struct{ user, who string }{{"root", "packager"}, {"builder", "compiler"}} {
				n.inhibit(holder.user, holder.who)
				n.requireByFile("linux-image-" + holder.who) // the same reason again would be a reboot that did not help
				n.waitPhase("WaitingInhibitor")
				if why := n.Property("Why"); !strings.Contains(why, holder.who) {
					t.Errorf("held by %s: why is %q, want the name %s", holder.user, why, holder.who)
				}
				// The agent does not ask what logind would refuse.
				for _, user := range refused {
					out, err := n.RunAs(user, append([]string{"busctl", "call", "org.freedesktop.login1",
						"/org/freedesktop/login1", "org.freedesktop.login1.Manager"}, call...)...)
					if err == nil {
						t.Errorf("held by %s: logind took a reboot from %s: %s", holder.user, user, out)
					}
				}
				n.mustHaveBoots(i + 1)
				if n.marked() || len(n.slots()) != 0 {
					t.Errorf("held by %s: cordoned, or a slot taken, for a reboot that logind would refuse", holder.user)
				}
				n.MustRun("systemctl", "stop", "inhibitor")
				n.waitReturned(i + 2)
			}
			n.mustHaveBoots(3)
		})
	}
}

// The rule is missing until it is installed: logind is asked beforehand, so that nothing is moved in vain.
func TestARebootThatPolkitForbidsMovesNothingAndIsSaid(t *testing.T) {
	const rule, aside = "/usr/share/polkit-1/rules.d/50-kured-agent.rules", "/root/50-kured-agent.rules"
	s := newScene(t)
	n := s.node("refused", debian13, quick)
	n.MustExec("mv", rule, aside)
	n.MustRun("systemctl", "try-restart", "polkit.service")
	n.enable()
	n.requireByFile("linux-image")
	n.eventually("the refusal is said", cycleBound, func() bool {
		why := n.Property("Why")
		return n.phase() == "WaitingInhibitor" && strings.Contains(why, "polkit") && strings.Contains(why, "50-kured-agent.rules")
	})
	s.stays("only the taint is there", 5*time.Second, func() bool {
		return !n.cordoned() && len(n.slots()) == 0 && n.tainted() && len(n.Boots()) == 1
	})
	n.MustExec("mv", aside, rule)
	n.MustRun("systemctl", "try-restart", "polkit.service")
	n.waitReturned(2)
}

func TestTheBootUnitWaitsForAnAPIServerThatIsAway(t *testing.T) {
	s := newScene(t)
	n := s.node("apiaway", debian12, quick).enable()
	n.requireByFile("linux-image")
	n.eventually("the second boot begins", cycleBound, func() bool { return len(n.Boots()) == 2 })
	s.c.KillAPIServer()
	n.WaitBoot(2)
	s.stays("the boot unit waits while the API server is away", 10*time.Second, func() bool {
		return n.UnitProperty("kured-agent-boot.service", "ActiveState") == "activating"
	})
	s.c.StartAPIServer()
	n.waitReturned(2)
	if result := n.UnitProperty("kured-agent-boot.service", "Result"); result != "success" {
		t.Errorf("the boot unit's result is %q", result)
	}
	if out, _ := n.Exec("systemctl", "--failed", "--plain", "--no-legend"); strings.Contains(out, "kured") {
		t.Errorf("failed units: %s", out)
	}
	n.mustHaveBoots(2)
}

func TestAPowerCutInTheDrainIsCleanedUpByTheNextBoot(t *testing.T) {
	s := newScene(t)
	n := s.node("powercut", debian12, quick).enable()
	n.kubelet.SetPodDelete(-1)
	s.c.Pod(n.Name(), "powercut", cluster.PodOptions{Owner: "ReplicaSet"})
	s.c.WaitRunning("powercut")
	n.requireByFile("linux-image")
	n.waitPhase("Draining")
	n.Crash()
	n.Start()
	n.waitReturned(2)
}

func TestTheAPIServerMayGoAwayAtAnyPhase(t *testing.T) {
	s := newScene(t)
	n := s.node("flicker", debian12, quick).enable()
	s.c.Pod(n.Name(), "flicker", cluster.PodOptions{Owner: "ReplicaSet"})
	s.c.WaitRunning("flicker")
	n.kubelet.SetPodDelete(3 * time.Second)
	s.c.KillAPIServer()
	n.requireByFile("linux-image")
	n.waitPhase("Unreachable")
	s.c.StartAPIServer()
	n.waitPhase("Draining")
	s.c.PauseAPIServer()
	s.stays("an API server that does not answer leads to no reboot", 3*time.Second, func() bool { return len(n.Boots()) == 1 })
	s.c.ResumeAPIServer()
	n.waitReturned(2)
	n.mustHaveBoots(2)
}
