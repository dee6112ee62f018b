// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/test/machines"
)

// moment is a state of a node in which somebody else may reboot the machine. Several can be entered at once in the order
// of the list.
type moment struct {
	name  string
	enter func(n *node)
	leave func(n *node) // takes back what outlives the reboot
}

func nothing(*node) {}

var moments = []moment{
	{"idle", nothing, nothing},
	{"returning", func(n *node) {
		n.checkBoots()
		n.requireByFile("linux-image")
		n.eventually("the boot is judged and not good", cycleBound, func() bool {
			return strings.Contains(n.Journal("kured-agent-boot.service"), "boot-check.service")
		})
		n.Write("/ok", "", 0o644)
	}, func(n *node) { n.MustExec("systemctl", "disable", "boot-check.service") }},
	{"draining", func(n *node) {
		n.stickyPod()
		n.requireByFile("libc6")
		n.waitPhase("Draining")
	}, (*node).unstick},
	{"waiting for its turn", func(n *node) {
		n.s.pause()
		n.requireByFile("dbus")
		n.waitPhase("WaitingTurn")
	}, func(n *node) { n.s.resume() }},
}

// foreignReboot lets root type the command in the moments that each of the nodes is in, and expects all of them back.
func (s *scene) foreignReboot(command string, in map[*node]moment) {
	s.Helper()
	boots := map[*node]int{}
	for _, m := range moments {
		for n, at := range in {
			if at.name == m.name {
				m.enter(n)
				boots[n] = len(n.Boots())
			}
		}
	}
	for n := range in {
		// The shutdown that it starts may end it before it says so.
		_, _ = n.Exec("sh", "-c", command)
	}
	for n, at := range in {
		n.waitReturned(boots[n] + 1)
		n.mustHaveBoots(boots[n] + 1)
		if result := n.UnitProperty("kured-agent-boot.service", "Result"); result != "success" {
			s.Errorf("%s, rebooted while %s: the boot unit's result is %q", n.Name(), at.name, result)
		}
		at.leave(n)
	}
	for n := range in {
		n.waitPhase("Idle")
	}
}

func TestAForeignRebootInAnyPhaseLeavesACleanNode(t *testing.T) {
	s := newScene(t)
	s.setSlots(len(machines.Suites))
	nodes := s.releases("foreign", quick)
	for _, m := range moments {
		in := map[*node]moment{}
		for _, n := range nodes {
			in[n] = m
		}
		s.foreignReboot("systemctl reboot", in)
		t.Logf("every release was rebooted while %s", m.name)
	}
}

func TestAForeignScheduledRebootLeavesACleanNode(t *testing.T) {
	s := newScene(t)
	s.setSlots(len(machines.Suites))
	in := map[*node]moment{}
	for i, n := range s.releases("shutdown", quick) { // its minute is long: each release in another moment
		in[n] = moments[i]
	}
	s.foreignReboot("shutdown -r +1", in)
}
