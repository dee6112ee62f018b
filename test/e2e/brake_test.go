// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// check is an administrator's check of the boot: good only where /ok is.
const check = `[Unit]
Description=Is this boot good?
Before=boot-complete.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/test -e /ok
[Install]
RequiredBy=boot-complete.target
`

// checkBoots installs that check.
func (n *node) checkBoots() {
	n.s.Helper()
	n.Write("/etc/systemd/system/boot-check.service", check, 0o644)
	n.MustRun("systemctl", "enable", "boot-check.service")
}

// rollOut requires a reboot of all nodes and returns the one that went first, and the others.
func (s *scene) rollOut(nodes ...*node) (first *node, others []*node) {
	s.Helper()
	for _, n := range nodes {
		n.requireByFile("linux-image")
	}
	s.c.Eventually("one of them boots again", cycleBound, func() bool {
		first, others = nil, nil
		for _, n := range nodes {
			if len(n.Boots()) > 1 {
				first = n
			} else {
				others = append(others, n)
			}
		}
		return first != nil
	})
	return first, others
}

// mustStand watches for a while that none of the nodes gets its turn.
func (s *scene) mustStand(nodes []*node, why string) {
	s.Helper()
	s.stays("no other node goes on, because "+why, 12*time.Second, func() bool {
		return !slices.ContainsFunc(nodes, func(n *node) bool {
			return n.cordoned() || len(n.slots()) > 0 || len(n.Boots()) > 1
		})
	})
	for _, n := range nodes {
		if got := n.Property("Phase"); got != "WaitingTurn" && got != "Locking" || !n.tainted() {
			s.Errorf("%s is in phase %s, tainted %v", n.Name(), got, n.tainted())
		}
	}
}

func TestABootThatIsNotHealthyStopsTheRollOut(t *testing.T) {
	s := newScene(t)
	var nodes []*node
	for _, name := range []string{"sick-1", "sick-2", "sick-3"} {
		n := s.node(name, debian13, quick)
		n.checkBoots()
		nodes = append(nodes, n.enable())
	}
	first, others := s.rollOut(nodes...)
	first.eventually("says which check failed", 30*time.Second, func() bool {
		return strings.Contains(first.Journal("kured-agent-boot.service"), "boot-check.service")
	})
	s.mustStand(others, "the boot of "+first.Name()+" is not healthy")
	if !first.tainted() || !first.cordoned() || len(first.slots()) != 1 {
		t.Errorf("%s has %v, slots %v", first.Name(), ours(first.node()), first.slots())
	}
	for _, n := range nodes {
		n.Write("/ok", "", 0o644)
	}
	first.MustRun("systemctl", "restart", "boot-check.service")
	for _, n := range nodes {
		n.waitReturned(2)
		n.mustHaveBoots(2)
	}
}

func TestAMachineThatNeverComesBackStopsTheRollOutUntilItsNodeIsDeleted(t *testing.T) {
	s := newScene(t)
	const slow = "[boot]\nsettle = \"30s\"\n" // time to pull the plug before the node is given back
	a, b := s.node("lost-1", debian12, slow).enable(), s.node("lost-2", debian13, slow).enable()
	first, others := s.rollOut(a, b)
	first.Crash()
	if len(first.slots()) != 1 {
		t.Fatalf("%s was returned before its plug was pulled: %v", first.Name(), ours(first.node()))
	}
	s.mustStand(others, first.Name()+" never came back")
	if why := others[0].Property("Why"); !strings.Contains(why, first.Name()) {
		t.Errorf("%s waits and does not say for whom: %q", others[0].Name(), why)
	}
	s.c.MustKubectl("delete", "node", first.Name())
	others[0].waitReturned(2)
}

// Five machines and two slots: a drain that a budget refuses for a while, a pod that will not end, a machine that never
// comes back and one whose boot is not healthy. Never more than two are cordoned by us, the roll-out stands where it
// must, and goes on when a human has looked.
func TestFiveMachinesWithTwoSlotsStopWhereTheyMust(t *testing.T) {
	s := newScene(t)
	s.setSlots(2)
	const config = "[boot]\nsettle = \"6s\"\n[drain]\ntimeout = \"25s\"\n"
	watch := s.watchCordons()
	machine := func(name, suite string, good bool) *node {
		n := s.node(name, suite, config)
		n.checkBoots()
		if good {
			n.Write("/ok", "", 0o644)
		}
		return n.enable()
	}
	plain, refused := machine("five-plain", debian12, true), machine("five-refused", debian13, true)
	stuck, dead, sick := machine("five-stuck", debian12, true), machine("five-dead", debian13, true), machine("five-sick", debian12, false)
	budget := map[string]string{"app": "five"}
	s.c.Pod(refused.Name(), "five-refused", cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "five", Labels: budget})
	stuck.kubelet.SetPodDelete(-1)
	s.c.Pod(stuck.Name(), "five-stuck", cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "five-stuck"})
	s.c.WaitRunning("five-refused", "five-stuck")
	s.c.PDB("five", budget, 1)
	for _, n := range []*node{plain, refused, stuck, dead, sick} {
		n.requireByFile("linux-image")
	}
	allowed, crashed := false, false
	s.c.Eventually("the dead and the sick one have the two slots", 4*cycleBound, func() bool {
		if !allowed && refused.phase() == "Draining" && strings.Contains(refused.Property("Why"), "PodDisruptionBudget") {
			s.c.MustKubectl("delete", "pdb", "five")
			allowed = true
		}
		if !crashed && len(dead.Boots()) > 1 {
			dead.Crash()
			crashed = true
		}
		return crashed && len(sick.Boots()) > 1 && len(dead.slots()) == 1 && len(sick.slots()) == 1
	})
	s.stays("only the dead and the sick one have a slot", 12*time.Second, func() bool {
		return len(s.c.Leases("kured-agent")) <= 2 &&
			!slices.ContainsFunc([]*node{plain, refused, stuck}, func(n *node) bool { return len(n.slots()) > 0 })
	})
	s.c.MustKubectl("delete", "node", dead.Name())
	if !allowed { // its turn comes only now
		refused.eventually("is refused by its budget", cycleBound, func() bool {
			return strings.Contains(refused.Property("Why"), "PodDisruptionBudget")
		})
		s.c.MustKubectl("delete", "pdb", "five")
	}
	plain.waitReturned(2)
	refused.waitReturned(2)
	sick.Write("/ok", "", 0o644)
	sick.MustRun("systemctl", "restart", "boot-check.service")
	sick.waitReturned(2)
	stuck.eventually("gave its drain up", 2*cycleBound, func() bool {
		return strings.Contains(stuck.Property("Failure"), "draining did not end") && !stuck.cordoned() && len(stuck.slots()) == 0
	})
	if !stuck.tainted() || len(stuck.Boots()) != 1 {
		t.Errorf("%s: tainted %v, %d boots", stuck.Name(), stuck.tainted(), len(stuck.Boots()))
	}
	if most, told := watch.mostAtOnce(); most > 2 {
		t.Errorf("%d nodes were cordoned at once:\n%s", most, strings.Join(told, "\n"))
	}
}
