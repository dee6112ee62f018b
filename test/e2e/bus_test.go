// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/machines"
)

// restartBus restarts D-Bus under the agent, which package managers and admins do although nobody supports it.
func (n *node) restartBus() {
	n.s.Helper()
	before := n.UnitProperty("dbus.service", "MainPID")
	n.MustExec("systemctl", "restart", "dbus.service")
	n.eventually("another bus runs", 20*time.Second, func() bool {
		return n.UnitProperty("dbus.service", "MainPID") != before
	})
}

// restartLogind is what an admin must do after that. Up to 252 logind ends with its bus and is started again; 257 and 262
// keep it running, but it is on the new bus only once it was restarted (systemd/systemd#36035).
func (n *node) restartLogind() {
	n.s.Helper()
	if n.Systemd() < 257 {
		return
	}
	n.eventually("the agent says that logind is missing", 30*time.Second, func() bool {
		return strings.Contains(n.Property("Why"), "logind")
	})
	n.MustExec("systemctl", "restart", "systemd-logind.service")
}

func TestARestartOfTheBusChangesNothing(t *testing.T) {
	s := newScene(t)
	s.setSlots(len(machines.Suites))
	nodes := s.releases("bus", quick)
	agents := map[*node]string{}
	s.pause()
	for _, n := range nodes {
		agents[n] = n.UnitProperty("kured-agent.service", "MainPID")
		n.stickyPod()
		n.requireByFile("linux-image")
		n.waitPhase("WaitingTurn")
		n.restartBus()
	}
	for _, n := range nodes {
		n.restartLogind()
		n.waitPhase("WaitingTurn") // said on the new bus
		if !n.tainted() || n.cordoned() {
			t.Errorf("%s waits and has %v", n.Name(), ours(n.node()))
		}
	}
	s.resume()
	for _, n := range nodes {
		n.waitPhase("Draining")
		n.restartBus()
	}
	for _, n := range nodes {
		n.waitPhase("Draining")
		if !n.marked() || len(n.slots()) != 1 {
			t.Errorf("%s drains with %v, slots %v", n.Name(), ours(n.node()), n.slots())
		}
		if now := n.UnitProperty("kured-agent.service", "MainPID"); now != agents[n] {
			t.Errorf("%s: the agent was process %s and is %s", n.Name(), agents[n], now)
		}
		n.mustHaveBoots(1)
		n.unstick()
	}
	for _, n := range nodes {
		n.restartLogind()
		n.waitReturned(2)
		n.mustHaveBoots(2)
	}
}
