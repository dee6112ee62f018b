// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// auto is quick with the kind of reboot that its reason needs.
const auto = "[reboot]\nmethod = \"auto\"\nmin_interval = \"0s\"\n[boot]\nsettle = \"0s\"\n"

// softReboots is systemd's own count, and empty in the middle of one.
func (n *node) softReboots() string {
	out, _ := n.Exec("systemctl", "show", "--property=SoftRebootsCount", "--value")
	return strings.TrimSpace(out)
}

// A soft reboot keeps the kernel and its boot id, /run and what lies there: all the agent's proofs have to do without.
func TestASoftRebootIsProvenWithoutANewBootID(t *testing.T) {
	for _, suite := range []string{debian13, debian14} {
		t.Run(suite, func(t *testing.T) { softReboot(t, suite) })
	}
}

func TestASoftRebootIsAFullOneWhereSystemdHasNone(t *testing.T) {
	for _, suite := range []string{debian11, debian12} {
		t.Run(suite, func(t *testing.T) {
			n := newScene(t).node("soft-"+suite[:4], suite, auto).enable()
			n.Write("/run/reboot-needed", "soft-reboot\n", 0o644)
			n.waitReturned(2)
			n.mustHaveBoots(2)
		})
	}
}

func softReboot(t *testing.T, suite string) {
	s := newScene(t)
	n := s.node("soft-"+suite[:4], suite, auto).enable()
	s.c.Pod(n.Name(), "soft", cluster.PodOptions{Owner: "ReplicaSet"})
	s.c.WaitRunning("soft")
	boot := n.BootID()
	if got := n.softReboots(); got != "0" {
		t.Fatalf("%s soft reboots before", got)
	}
	n.Write("/run/reboot-needed", "soft-reboot\n", 0o644)
	n.eventually("the soft reboot", cycleBound, func() bool { return n.softReboots() == "1" })
	n.eventually("the Node is given back", cycleBound, func() bool {
		return len(ours(s.c.NodeOrNil(n.Name()))) == 0 && len(n.slots()) == 0
	})
	n.eventually("the agent is idle, and counts the reboot as its own", time.Minute, func() bool {
		return n.phase() == "Idle" && n.Property("LastReboot") != "0"
	})
	if n.BootID() != boot {
		t.Error("the boot id is another one: that was no soft reboot")
	}
	if pods := s.c.Pods(n.Name()); len(pods) != 0 {
		t.Errorf("%d pods were not drained", len(pods))
	}
	// The file is still there, and satisfied.
	n.MustRun("test", "-e", "/run/reboot-needed")
	s.stays("idle with one soft reboot", 5*time.Second, func() bool {
		return n.softReboots() == "1" && n.phase() == "Idle"
	})
}
