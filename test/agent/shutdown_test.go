// SPDX-License-Identifier: Apache-2.0

//go:build integration

package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/lab"
)

const shutdownUnit = "shutdown.target"

// goesDown is systemd in a shutdown that somebody else began.
func goesDown(m *lab.Machine) {
	m.Systemd.SetUnit(shutdownUnit, bustest.FakeUnit{Load: "loaded", Active: "inactive", JobType: "start"})
	m.Login.PrepareForShutdown(true)
}

// shutDown runs what the stop of kured-agent-shutdown.service runs.
func shutDown(t *testing.T, m *lab.Machine) (said string, took time.Duration) {
	t.Helper()
	began := time.Now()
	said, code := m.Command("shutdown")
	if code != 0 {
		t.Errorf("exit code %d:\n%s", code, said)
	}
	return said, time.Since(began)
}

func (s shutdownScene) untouched(t *testing.T, why string) {
	t.Helper()
	if _, cordon, marker, _ := s.Marks(); cordon || marker || len(s.Cluster.Pods(s.Name)) == 0 {
		t.Errorf("%s: cordon %v, marker %v, pods %q", why, cordon, marker, names(s.Cluster.Pods(s.Name)))
	}
}

// shutdownScene is a machine with pods that need not reboot.
type shutdownScene struct{ *lab.Machine }

func newShutdown(t *testing.T, name, config string) shutdownScene {
	t.Helper()
	m := lab.New(t, shared, name, lab.Options{Config: config})
	labels := map[string]string{"app": name}
	m.Cluster.Pod(name, name+"-1", cluster.PodOptions{Owner: "ReplicaSet", OwnerName: name, Labels: labels})
	m.Cluster.Pod(name, name+"-2", cluster.PodOptions{Owner: "ReplicaSet", OwnerName: name, Labels: labels})
	m.Cluster.Pod(name, name+"-ds", cluster.PodOptions{Owner: "DaemonSet", OwnerName: name + "-ds"})
	m.Cluster.Pod(name, name+"-alone", cluster.PodOptions{})
	m.Cluster.WaitRunning(name+"-1", name+"-2", name+"-ds", name+"-alone")
	return shutdownScene{m}
}

func TestAShutdownDrainsWithOurMarkerAndTheNextBootGivesTheNodeBack(t *testing.T) {
	t.Parallel()
	m := newShutdown(t, "down", "[shutdown]\ndrain = \"1m\"\n")
	m.Start()
	m.WaitPhase("Idle")
	goesDown(m.Machine)
	m.Systemd.SetUnit("kured-agent.service", bustest.FakeUnit{Load: "loaded", Active: "deactivating", JobType: "stop"})
	if code := m.Stop(); code != 0 { // systemd stops both
		t.Errorf("the agent ended with %d", code)
	}
	said, took := shutDown(t, m.Machine)
	_, cordon, marker, slot := m.Marks()
	if !cordon || !marker || slot || took > 30*time.Second {
		t.Errorf("cordon %v, marker %v, slot %v after %s", cordon, marker, slot, took)
	}
	left := names(m.Cluster.Pods(m.Name))
	slices.Sort(left)
	if !slices.Equal(left, []string{"down-alone", "down-ds"}) {
		t.Errorf("pods left: %q", left)
	}
	if !strings.Contains(said, "cordoned") || !strings.Contains(said, "left=2") || !strings.Contains(said, "no pod is left") {
		t.Errorf("said:\n%s", said)
	}
	m.Systemd.SetUnit(shutdownUnit, bustest.FakeUnit{Load: "loaded", Active: "inactive"})
	m.Systemd.SetUnit("kured-agent.service", bustest.FakeUnit{Load: "loaded", Active: "active", Sub: "running"})
	m.Reboot()
	m.WaitClean()
	m.WaitPhase("Idle")
	if m.Cluster.Node(m.Name).Spec.Unschedulable || m.Asked() != 0 {
		t.Errorf("unschedulable after the boot, or %d reboots asked for", m.Asked())
	}
}

func TestAShutdownDrainsNothing(t *testing.T) {
	t.Parallel()
	const on = "[shutdown]\ndrain = \"1m\"\n"
	for _, c := range []struct {
		why, name, config string
		happens           func(m *lab.Machine)
	}{
		{"because a unit is only restarted", "down-restart", on, func(*lab.Machine) {}},
		{"because it is off", "down-off", "", goesDown},
		{"because no boot would give the node back", "down-no-boot", on, func(m *lab.Machine) {
			goesDown(m)
			m.Systemd.SetUnit("kured-agent-boot.service", bustest.FakeUnit{Load: "loaded", Active: "inactive", File: "disabled"})
		}},
		{"because systemd does not answer", "down-no-bus", on, func(m *lab.Machine) {
			goesDown(m)
			m.Systemd.Disconnect()
		}},
		{"because there is no kubeconfig", "down-no-config", on, func(m *lab.Machine) {
			goesDown(m)
			m.Write("/etc/kured/kubeconfig", "", 0o600)
		}},
	} {
		t.Run(c.why, func(t *testing.T) {
			t.Parallel()
			m := newShutdown(t, c.name, c.config)
			c.happens(m.Machine)
			said, took := shutDown(t, m.Machine)
			m.untouched(t, c.why)
			if took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			t.Logf("%s: %s", took.Round(10*time.Millisecond), said)
		})
	}
}

func TestABudgetHoldsUpAShutdownForItsBoundOnly(t *testing.T) {
	t.Parallel()
	m := newShutdown(t, "down-budget", "[shutdown]\ndrain = \"4s\"\n")
	m.Cluster.PDB("down-budget", map[string]string{"app": "down-budget"}, 2)
	goesDown(m.Machine)
	said, took := shutDown(t, m.Machine)
	if took < 4*time.Second || took > 10*time.Second || !strings.Contains(said, "PodDisruptionBudget") {
		t.Errorf("%s, said:\n%s", took, said)
	}
	if left := names(m.Cluster.Pods(m.Name)); len(left) != 4 {
		t.Errorf("pods left: %q", left)
	}
}

func TestAShutdownAfterOurOwnDrainAsksTheAPIServerTwice(t *testing.T) {
	t.Parallel()
	m := newShutdown(t, "down-own", "[shutdown]\ndrain = \"1m\"\n[drain]\nunmanaged_pods = \"evict\"\n")
	m.Start()
	m.Require("kernel")
	m.WaitAsked(1)
	mine := func(r cluster.Request) bool {
		return r.User == cluster.AgentUser && strings.Contains(r.URI, m.Name)
	}
	goesDown(m.Machine)
	m.Stop()
	before := len(m.Cluster.Requests(mine))
	_, took := shutDown(t, m.Machine)
	requests := m.Cluster.WaitRequests(mine, before+2, 5*time.Second)[before:]
	if len(requests) != 2 || took > 3*time.Second {
		t.Errorf("%d requests in %s: %+v", len(requests), took, requests)
	}
	if _, cordon, marker, slot := m.Marks(); !cordon || !marker || !slot {
		t.Errorf("cordon %v, marker %v, slot %v", cordon, marker, slot)
	}
}

func TestAShutdownGivesTheAPIServerTenSeconds(t *testing.T) {
	m := newShutdown(t, "down-away", "[shutdown]\ndrain = \"1m\"\n") // not parallel: it stops the API server
	goesDown(m.Machine)
	m.Cluster.KillAPIServer()
	said, took := shutDown(t, m.Machine)
	m.Cluster.StartAPIServer()
	if took < 10*time.Second || took > 13*time.Second {
		t.Errorf("%s, said:\n%s", took, said)
	}
	m.Cluster.PauseAPIServer()
	said, took = shutDown(t, m.Machine)
	m.Cluster.ResumeAPIServer()
	if took < 10*time.Second || took > 13*time.Second {
		t.Errorf("an API server that hangs: %s, said:\n%s", took, said)
	}
	m.untouched(t, "nobody answered")
}
