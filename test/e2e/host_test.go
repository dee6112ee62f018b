// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kured-agent/kured-agent/test/machines"
)

// slowPackage builds a package whose installation lasts until a file is there, and installs it.
const slowPackage = `set -e
mkdir -p /root/slow/DEBIAN
printf 'Package: slow\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.com>\nDescription: takes its time\n' \
  >/root/slow/DEBIAN/control
printf '#!/bin/sh\nuntil [ -e /run/installed ]; do sleep 0.2; done\n' >/root/slow/DEBIAN/postinst
chmod 0755 /root/slow/DEBIAN/postinst
dpkg-deb --build /root/slow /root/slow.deb
systemd-run --unit=slow-install dpkg --install /root/slow.deb
`

// kubereboot/kured#403: the reboot came while dpkg was still at work.
func TestAnInstallationInTheMiddleOfItsWorkIsWaitedFor(t *testing.T) {
	s := newScene(t)
	s.setSlots(len(machines.Suites))
	nodes := s.releases("dpkg", quick)
	for _, n := range nodes {
		n.MustRun("sh", "-c", slowPackage)
		n.eventually("dpkg is at work", 30*time.Second, func() bool {
			return n.UnitProperty("slow-install.service", "ActiveState") == "active"
		})
		n.requireByFile("linux-image")
		n.eventually("the agent names dpkg", cycleBound, func() bool {
			return n.phase() == "WaitingInhibitor" && strings.Contains(n.Property("Why"), "dpkg (/var/lib/dpkg/lock")
		})
	}
	s.stays("nothing is moved for it", 3*time.Second, func() bool {
		return !slices.ContainsFunc(nodes, func(n *node) bool {
			return n.cordoned() || len(n.slots()) > 0 || len(n.Boots()) > 1
		})
	})
	for _, n := range nodes {
		n.Write("/run/installed", "", 0o644)
	}
	for _, n := range nodes {
		n.waitReturned(2)
		n.mustHaveBoots(2)
	}
}

// The other bus daemon has its own limits and its own way to die, and Fedora's hosts have it.
func TestTheWholeCycleOnDbusBroker(t *testing.T) {
	s := newScene(t)
	n := s.node("broker", debian13, quick+everySource, "dbus-broker")
	n.MustRun("systemctl", "enable", "dbus-broker.service")
	n.Reboot()
	n.WaitBoot(2)
	n.enable()
	if pid := n.UnitProperty("dbus-broker.service", "MainPID"); pid == "0" || pid == "" {
		t.Fatal("the machine does not run dbus-broker")
	}
	n.RunUpdater(updater)
	n.Signal("IDLE")
	n.Signal("NEED_REBOOT")
	n.waitReturned(3)
	n.MustRun("systemctl", "restart", "dbus-broker.service")
	n.MustRun("systemctl", "restart", "systemd-logind.service")
	n.requireByFile("linux-image")
	n.waitReturned(4)
	n.mustHaveBoots(4)
}

// The delay inhibitor: `reboot`, typed on an idle node, waits for the taint.
func TestARebootOfAnIdleNodeShowsOnTheNodeBeforeItGoesDown(t *testing.T) {
	for _, suite := range machines.Suites {
		t.Run(suite, func(t *testing.T) {
			s := newScene(t)
			n := s.node("idle-"+suite[:4], suite, quick).enable()
			n.eventually("the agent holds its inhibitor", 30*time.Second, func() bool {
				out, _ := n.Exec("systemd-inhibit", "--list", "--no-pager")
				return strings.Contains(out, "kured-agent")
			})
			boot := n.BootID()
			var marked atomic.Bool
			s.c.Watch(t.Context(), "/api/v1/nodes", func(_ string, object json.RawMessage) {
				var node corev1.Node
				if json.Unmarshal(object, &node) == nil && node.Name == n.Name() && hasTaint(&node) &&
					node.Status.NodeInfo.BootID == boot {
					marked.Store(true)
				}
			})
			_, _ = n.Exec("systemctl", "reboot") // the answer may be lost
			n.waitReturned(2)
			n.mustHaveBoots(2)
			if !marked.Load() {
				t.Error("the Node never showed that the machine was going down")
			}
			if last := n.Property("LastReboot"); last != "0" {
				t.Errorf("the agent counts it as its own: %s", last)
			}
		})
	}
}
