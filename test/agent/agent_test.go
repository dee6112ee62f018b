// SPDX-License-Identifier: Apache-2.0

//go:build integration

// Package agent_test runs the agent's binary against a real API server, confined by the real role and admission
// policies, and against a private bus whose logind and systemd can lie, refuse, hang and vanish.
package agent_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/report"
	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/lab"
)

var shared *cluster.Cluster

func TestMain(m *testing.M) {
	cluster.Main(m, "agent", cluster.Options{ControllerManager: true, Audit: true}, &shared)
}

func TestAFileBecomesOneRebootWithThreeNodeWrites(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "cycle", lab.Options{})
	c.MustKubectl("taint", "node", m.Name, "example.com/first=a:NoSchedule",
		"kured-agent/reboot-required=theirs:NoSchedule", "example.com/last=z:PreferNoSchedule")
	foreign := c.Node(m.Name).Spec.Taints
	c.Pod(m.Name, "cycle-1", cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "cycle"})
	c.Pod(m.Name, "cycle-2", cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "cycle"})
	c.Pod(m.Name, "cycle-ds", cluster.PodOptions{Owner: "DaemonSet", OwnerName: "cycle-ds"})
	c.WaitRunning("cycle-1", "cycle-2", "cycle-ds")
	m.Start()
	m.WaitPhase("Idle")
	before := len(c.Requests(cluster.NodeWrites(m.Name)))
	m.Require("linux-image-6.1.0-42-amd64")
	m.WaitTainted()
	if u := m.WaitPhase("WaitingTurn", "Locking", "Cordoning", "Draining", "Rebooting"); len(u.Reasons) != 1 ||
		u.Reasons[0].ID != "linux-image-6.1.0-42-amd64" {
		t.Errorf("reasons %+v", u.Reasons)
	}
	m.WaitAsked(1)
	taint, cordon, marker, slot := m.Marks()
	if !taint || !cordon || !marker || !slot {
		t.Errorf("at the reboot: taint %v, cordon %v, marker %v, slot %v", taint, cordon, marker, slot)
	}
	if left := names(c.Pods(m.Name)); !slices.Equal(left, []string{"cycle-ds"}) {
		t.Errorf("pods left at the reboot: %q", left)
	}
	m.Login.PrepareForShutdown(true)
	m.Reboot()
	m.WaitClean()
	m.WaitPhase("Idle")
	if got := c.Node(m.Name).Spec.Taints; !sameTaints(got, foreign) {
		t.Errorf("foreign taints %+v, were %+v", got, foreign)
	}
	if c.Node(m.Name).Spec.Unschedulable {
		t.Error("still cordoned")
	}
	mine := func(r cluster.Request) bool {
		return cluster.NodeWrites(m.Name)(r) && strings.HasPrefix(r.User, "system:serviceaccount:kured-agent:")
	}
	if n := len(c.WaitRequests(mine, 3, 5*time.Second)); n != 3 {
		t.Errorf("%d Node writes (all: %d to %d)", n, before, len(c.Requests(cluster.NodeWrites(m.Name))))
	}
	if m.Asked() != 1 {
		t.Errorf("logind was asked %d times", m.Asked())
	}
}

// sameTaints compares what is not the controller manager's.
func sameTaints(a, b []corev1.Taint) bool {
	own := func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") }
	a, b = slices.DeleteFunc(slices.Clone(a), own), slices.DeleteFunc(slices.Clone(b), own)
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

func names(pods []corev1.Pod) []string {
	var all []string
	for _, p := range pods {
		all = append(all, p.Name)
	}
	return all
}

const updater = `
[[source]]
type = "dbus-signal"
name = "com.example.Updater"
path = "/com/example/Updater"
interface = "com.example.Updater"
signal = "StatusChanged"
argument = 1
equals = "NEED_REBOOT"
[[source]]
type = "update-engine"
[[source]]
type = "request"
`

const (
	updaterPath   = "/com/example/Updater"
	updaterSignal = "com.example.Updater.StatusChanged"
)

func TestOnlyTheOwnerOfTheNameIsBelieved(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "forged", lab.Options{Config: updater})
	m.HoldSlot()
	service := bustest.NewService(m.Bus, "com.example.Updater")
	engine := bustest.NewUpdateEngine(m.Bus)
	stranger := bustest.NewStranger(m.Bus)
	m.Start()
	m.WaitPhase("Idle")
	for range 200 {
		stranger.Forge(updaterPath, updaterSignal, "x", "NEED_REBOOT")
		stranger.Forge("/com/coreos/update1", "com.coreos.update1.Manager.StatusUpdate", int64(0), 0.0,
			"UPDATE_STATUS_UPDATED_NEED_REBOOT", "9", int64(0))
		stranger.Forge("/org/freedesktop/login1", "org.freedesktop.login1.Manager.PrepareForShutdown", true)
		stranger.Forge("/org/freedesktop/login1", "org.freedesktop.login1.Manager.PrepareForShutdown")
	}
	service.Emit(updaterPath, updaterSignal)                            // an empty body
	service.Emit(updaterPath, updaterSignal, "x", uint32(7))            // a wrong type
	service.Emit(updaterPath, updaterSignal, "x")                       // too short
	service.Emit(updaterPath, updaterSignal, "x", []string{"NEED"}, 1.) // nonsense
	c.Eventually("the forged signals are counted", 10*time.Second, func() bool {
		u, _ := m.Status()
		return u.Dropped >= 200
	})
	if u := m.WaitPhase("Idle"); u.Level != 0 {
		t.Errorf("level %v after forged signals", u.Level)
	}
	// The truth arrives a thousand times: one taint.
	for range 1000 {
		service.Emit(updaterPath, updaterSignal, "x", "NEED_REBOOT")
	}
	m.WaitTainted()
	m.WaitPhase("WaitingTurn", "Locking")
	count := 0
	for _, taint := range c.Node(m.Name).Spec.Taints {
		if taint.Key == "kured-agent/reboot-required" {
			count++
		}
	}
	if count != 1 {
		t.Errorf("%d taints of ours", count)
	}
	// The need goes away while waiting: so does the taint.
	service.Emit(updaterPath, updaterSignal, "x", "IDLE")
	m.WaitClean()
	// The other source, while the bus was away.
	m.WaitPhase("Idle")
	m.Bus.Kill()
	m.Bus.Restart()
	engine.Connect()
	m.Login.Connect()
	m.Systemd.Connect()
	engine.Set("UPDATE_STATUS_UPDATED_NEED_REBOOT", "9.9.9")
	m.WaitTainted()
	if u := m.WaitPhase("WaitingTurn", "Locking", "WaitingInhibitor"); len(u.Reasons) != 1 || u.Reasons[0].ID != "9.9.9" {
		t.Errorf("reasons %+v", u.Reasons)
	}
}

func TestARequestTaintsAndItsClearingCleans(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "request", lab.Options{})
	m.HoldSlot()
	if out, code := m.Command("request", "x"); code == 0 {
		t.Errorf("a request without an agent: %s", out)
	}
	m.Start()
	m.WaitPhase("Idle")
	if out, code := m.Command("request", "microcode-1", "new CPU microcode"); code != 0 {
		t.Fatalf("request: %d %s", code, out)
	}
	m.WaitTainted()
	// It survives a restart of the agent, as the level of a file does.
	m.Kill()
	m.Start()
	if u := m.WaitPhase("WaitingTurn", "Locking"); u.Reasons[0].Text != "new CPU microcode" {
		t.Errorf("reasons %+v", u.Reasons)
	}
	for _, want := range []string{"WaitingTurn", "new CPU microcode", "somebody-else"} {
		// A restarted agent lets a second pass for each Node of the shared cluster, at most, before it looks at the slots.
		c.Eventually("status says "+want, 2*time.Minute, func() bool {
			out, _ := m.Command("status")
			return strings.Contains(out, want)
		})
	}
	if out, code := m.Command("request", "--clear", "microcode-1"); code != 0 {
		t.Fatalf("clear: %d %s", code, out)
	}
	m.WaitClean()
}

func TestANeedThatIsThereBeforeTheAgentIsSeen(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "before", lab.Options{})
	m.HoldSlot()
	m.Require("kernel")
	m.Start()
	m.WaitTainted()
}

func TestANeedThatVanishesInTheDrainGivesTheNodeBack(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "vanish", lab.Options{})
	c.Pod(m.Name, "vanish-1",
		cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "vanish", Labels: map[string]string{"app": "vanish"}})
	c.WaitRunning("vanish-1")
	c.PDB("vanish", map[string]string{"app": "vanish"}, 1)
	m.Start()
	m.Require("kernel")
	if u := m.WaitPhase("Draining"); u.Slot == "" || !u.Cordoned {
		t.Errorf("draining with %+v", u)
	}
	m.Unrequire()
	m.WaitClean()
	if m.Asked() != 0 || c.Node(m.Name).Spec.Unschedulable {
		t.Errorf("asked %d times, unschedulable %v", m.Asked(), c.Node(m.Name).Spec.Unschedulable)
	}
}

func TestARefusedRebootIsRolledBackAndBackedOff(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	for name, reply := range map[string]bustest.Reply{
		"refuse-policy": bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "Permission denied"),
		"refuse-polkit": bustest.Refuse("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
			"Interactive authentication required."),
		"refuse-unknown": bustest.Refuse("org.freedesktop.DBus.Error.Failed", "No space left"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := lab.New(t, c, name, lab.Options{})
			m.Login.On("RebootWithFlags", reply)
			m.Start()
			m.Require("kernel")
			u := m.WaitPhase("Waiting")
			taint, cordon, marker, slot := m.Marks()
			if !taint || cordon || marker || slot {
				t.Errorf("after the refusal: taint %v, cordon %v, marker %v, slot %v", taint, cordon, marker, slot)
			}
			if u.Failure == nil || !strings.Contains(u.Failure.Why, "logind refused the reboot") ||
				u.Until.Before(time.Now().Add(10*time.Minute)) {
				t.Errorf("failure %+v until %s", u.Failure, u.Until)
			}
			// A restart does not forget the back-off.
			m.Kill()
			m.Start()
			m.WaitPhase("Waiting")
			if m.Asked() != 1 {
				t.Errorf("logind was asked %d times", m.Asked())
			}
		})
	}
}

// logind accepts, and nothing follows: the deadline is two minutes, on the real binary too.
func TestAnAcceptedRebootThatDoesNotComeIsRolledBackAndBackedOff(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "accepted", lab.Options{})
	m.Start()
	m.Require("kernel")
	m.WaitAsked(1)
	m.WaitPhase("Rebooting")
	var u report.Update
	c.Eventually("the attempt is given up", 3*time.Minute, func() bool {
		u, _ = m.Status()
		return u.Phase == "Waiting"
	})
	taint, cordon, marker, slot := m.Marks()
	if !taint || cordon || marker || slot {
		t.Errorf("afterwards: taint %v, cordon %v, marker %v, slot %v", taint, cordon, marker, slot)
	}
	if u.Failure == nil || !strings.Contains(u.Failure.Why, "no shutdown came") || u.Until.Before(time.Now().Add(10*time.Minute)) {
		t.Errorf("failure %+v until %s", u.Failure, u.Until)
	}
	if m.Asked() != 1 {
		t.Errorf("logind was asked %d times", m.Asked())
	}
}

func TestWithoutLogindNoPodIsMoved(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "no-logind", lab.Options{})
	m.Login.Disconnect()
	m.Start()
	m.Require("kernel")
	u := m.WaitPhase("WaitingInhibitor")
	if _, cordon, _, slot := m.Marks(); cordon || slot || !strings.Contains(u.Why, "logind") {
		t.Errorf("cordon %v, slot %v, why %q", cordon, slot, u.Why)
	}
	m.Login.Connect()
	m.WaitAsked(1)
}

func TestAnInhibitorIsNamedAndWaitedFor(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "inhibited", lab.Options{})
	m.Login.SetInhibitors(bustest.Inhibitor{What: "shutdown", Who: "apt", Why: "Package manager running",
		Mode: "block", PID: 7})
	m.Start()
	m.Require("kernel")
	u := m.WaitPhase("WaitingInhibitor")
	if _, cordon, _, slot := m.Marks(); cordon || slot || !strings.Contains(u.Why, "apt") {
		t.Errorf("cordon %v, slot %v, why %q", cordon, slot, u.Why)
	}
	m.Login.SetInhibitors()
	m.WaitAsked(1)
}

func TestAnAmbiguousAnswerIsNoFailure(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "ambiguous", lab.Options{})
	m.Login.On("RebootWithFlags", bustest.Reply{HangUp: true})
	m.Start()
	m.Require("kernel")
	m.WaitAsked(1)
	m.WaitPhase("Rebooting")
	m.Reboot()
	m.Login.Connect()
	m.WaitClean()
}

// kill ends the agent without a word in a phase, and starts it again: the same boot id means that nothing has rebooted.
func TestAnAgentKilledInAnyPhaseResumes(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "killed", lab.Options{})
	c.Pod(m.Name, "killed-1",
		cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "killed", Labels: map[string]string{"app": "killed"}})
	c.WaitRunning("killed-1")
	c.PDB("killed", map[string]string{"app": "killed"}, 1)
	release := m.HoldSlot()
	again := func(phase string) {
		t.Helper()
		m.WaitPhase(phase)
		m.Kill()
		m.Start()
		m.WaitPhase(phase)
	}
	m.Start()
	m.Require("kernel")
	again("WaitingTurn")
	release()
	again("Draining")
	_, cordon, marker, slot := m.Marks()
	if !cordon || !marker || !slot {
		t.Errorf("after a kill in the drain: cordon %v, marker %v, slot %v", cordon, marker, slot)
	}
	c.MustKubectl("delete", "pdb", "killed")
	m.WaitAsked(1)
	again("Rebooting")
	if m.Asked() != 1 {
		t.Errorf("asked %d times: a restart was taken for a failed reboot", m.Asked())
	}
	if _, cordon, _, slot := m.Marks(); !cordon || !slot {
		t.Error("a restart was mistaken for a reboot")
	}
	m.PowerOff()
	boot := m.Boot()
	again("Returning")
	m.Kubelet.Up(boot)
	m.WaitClean()
}

func TestAHumansCordonStays(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	t.Run("in success", func(t *testing.T) {
		t.Parallel()
		m := lab.New(t, c, "human-ok", lab.Options{})
		c := m.Cluster
		c.MustKubectl("cordon", m.Name)
		c.Pod(m.Name, "human-1", cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "human"})
		c.WaitRunning("human-1")
		m.Start()
		m.Require("kernel")
		m.WaitAsked(1)
		if left := names(c.Pods(m.Name)); len(left) > 0 {
			t.Errorf("a cordoned node was not drained: %q", left)
		}
		m.Reboot()
		m.WaitClean()
		m.WaitPhase("Idle")
		if !c.Node(m.Name).Spec.Unschedulable {
			t.Error("the human's cordon is gone")
		}
	})
	t.Run("in failure", func(t *testing.T) {
		t.Parallel()
		m := lab.New(t, c, "human-bad", lab.Options{})
		c := m.Cluster
		c.MustKubectl("cordon", m.Name)
		m.Login.On("RebootWithFlags", bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "Permission denied"))
		m.Start()
		m.Require("kernel")
		m.WaitPhase("Waiting")
		m.Unrequire()
		m.WaitClean()
		if !c.Node(m.Name).Spec.Unschedulable {
			t.Error("the human's cordon is gone")
		}
	})
}

func TestSIGTERMUndoesEverythingUnlessTheAgentOrTheMachineComesBack(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	draining := func(t *testing.T, name string) *lab.Machine {
		t.Helper()
		m := lab.New(t, c, name, lab.Options{})
		c := m.Cluster
		c.Pod(m.Name, name+"-1",
			cluster.PodOptions{Owner: "ReplicaSet", OwnerName: name, Labels: map[string]string{"app": name}})
		c.WaitRunning(name + "-1")
		c.PDB(name, map[string]string{"app": name}, 1)
		m.Start()
		m.Require("kernel")
		m.WaitPhase("Draining")
		return m
	}
	t.Run("of a stop undoes everything", func(t *testing.T) {
		t.Parallel()
		m := draining(t, "term-stop")
		m.Systemd.SetUnit("kured-agent.service", bustest.FakeUnit{Load: "loaded", Active: "deactivating", JobType: "stop"})
		if code := m.Stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		taint, cordon, marker, slot := m.Marks()
		if taint || cordon || marker || slot {
			t.Errorf("taint %v, cordon %v, marker %v, slot %v", taint, cordon, marker, slot)
		}
	})
	t.Run("of a restart keeps everything", func(t *testing.T) {
		t.Parallel()
		m := draining(t, "term-restart")
		m.Systemd.SetUnit("kured-agent.service", bustest.FakeUnit{Load: "loaded", Active: "deactivating", JobType: "restart"})
		m.Stop()
		kept(t, m)
		m.Start()
		m.WaitPhase("Draining")
	})
	t.Run("of a shutdown keeps everything", func(t *testing.T) {
		t.Parallel()
		m := draining(t, "term-shutdown")
		m.Login.PrepareForShutdown(true)
		m.Stop()
		kept(t, m)
	})
	t.Run("without a bus is a shutdown", func(t *testing.T) {
		t.Parallel()
		m := draining(t, "term-nobus")
		m.Bus.Kill()
		m.Stop()
		kept(t, m)
	})
}

func kept(t *testing.T, m *lab.Machine) {
	t.Helper()
	taint, cordon, marker, slot := m.Marks()
	if !taint || !cordon || !marker || !slot {
		t.Errorf("taint %v, cordon %v, marker %v, slot %v", taint, cordon, marker, slot)
	}
}

func TestCleanupUndoesWhatAKilledAgentLeft(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "cleanup", lab.Options{})
	c.Pod(m.Name, "cleanup-1",
		cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "cleanup", Labels: map[string]string{"app": "cleanup"}})
	c.WaitRunning("cleanup-1")
	c.PDB("cleanup", map[string]string{"app": "cleanup"}, 1)
	m.Start()
	m.Require("kernel")
	m.WaitPhase("Draining")
	if out, code := m.Command("cleanup", "--timeout=5s"); code != 1 || !strings.Contains(out, "stop it first") {
		t.Errorf("cleanup beside a running agent: %d %s", code, out)
	}
	m.Kill()
	if out, code := m.Command("cleanup", "--timeout=20s"); code != 0 {
		t.Errorf("cleanup: %d %s", code, out)
	}
	taint, cordon, marker, slot := m.Marks()
	if taint || cordon || marker || slot {
		t.Errorf("taint %v, cordon %v, marker %v, slot %v", taint, cordon, marker, slot)
	}
}

func TestCleanupTouchesNothingWhileARebootIsUnderWay(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "cleanup-late", lab.Options{})
	m.Start()
	m.Require("kernel")
	m.WaitAsked(1)
	m.Login.PrepareForShutdown(true)
	m.WaitPhase("Rebooting")
	m.Kill()
	out, code := m.Command("cleanup", "--timeout=3s")
	if code != 1 || !strings.Contains(out, "shutting down") {
		t.Errorf("cleanup: %d %s", code, out)
	}
	kept(t, m)
}

func TestAnIdleAgentAsksTheAPIServerNothing(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "idle", lab.Options{})
	m.Start() // the first start with a credential proves it
	m.WaitPhase("Idle")
	m.Stop()
	asked := func(r cluster.Request) bool {
		return strings.HasPrefix(r.User, "system:serviceaccount:kured-agent:") && strings.Contains(r.URI+r.Name, m.Name)
	}
	proof := len(c.Requests(asked))
	m.Start()
	m.WaitPhase("Idle")
	u, _ := m.Status()
	if u.Requests != 0 {
		t.Errorf("%d requests of an idle agent", u.Requests)
	}
	if n := len(c.Requests(asked)); n != proof {
		t.Errorf("%d requests in the audit log, %d of the proof", n, proof)
	}
}

func TestAnIdentityThatCannotWorkIsToldWithTheWayOut(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "misfit", lab.Options{})
	check := func(want ...string) {
		t.Helper()
		out, code := m.Command("check-config")
		if code != 1 {
			t.Errorf("exit code %d: %s", code, out)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%q is not in:\n%s", w, out)
			}
		}
	}
	if out, code := m.Command("check-config"); code != 0 || !strings.Contains(out, "fine") {
		t.Errorf("a right configuration: %d %s", code, out)
	}
	m.Write("/etc/machine-id", strings.Repeat("f", 32)+"\n", 0o644)
	check("machine", m.Name)
	m.Start()
	if u := m.WaitPhase("Unreachable"); !strings.Contains(u.Why, "machine") {
		t.Errorf("why %q", u.Why)
	}
	m.Kill()
	m.Configure("")
	kubelet, err := os.ReadFile(c.KubeletKubeconfig(m.Name))
	if err != nil {
		t.Fatal(err)
	}
	m.Write("/etc/kured/kubeconfig", string(kubelet), 0o600)
	check("kubelet", "taint")
	m.Start()
	if code := m.WaitEnd(); code != 78 {
		t.Errorf("exit code %d with the kubelet's credential", code)
	}
}

func TestTheAPIServerIsWaitedFor(t *testing.T) {
	c := shared.For(t) // not parallel: it stops the API server
	m := lab.New(t, c, "api-away", lab.Options{})
	c.Pod(m.Name, "away-1",
		cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "away", Labels: map[string]string{"app": "away"}})
	c.WaitRunning("away-1")
	c.PDB("away", map[string]string{"app": "away"}, 1)
	m.Start()
	m.WaitPhase("Idle")
	away := func() {
		t.Helper()
		c.KillAPIServer()
		m.WaitPhase("Unreachable")
		c.StartAPIServer()
	}
	c.KillAPIServer()
	m.Require("kernel")
	m.WaitPhase("Unreachable")
	c.StartAPIServer()
	m.WaitTainted()
	m.WaitPhase("Draining")
	away()
	m.WaitPhase("Draining")
	c.MustKubectl("delete", "pdb", "away")
	m.WaitAsked(1)
	m.PowerOff()
	c.KillAPIServer()
	boot := m.Boot()
	m.WaitPhase("Returning", "Unreachable")
	c.StartAPIServer()
	m.Kubelet.Up(boot)
	m.WaitClean()
	if m.Asked() != 1 {
		t.Errorf("asked %d times", m.Asked())
	}
}
