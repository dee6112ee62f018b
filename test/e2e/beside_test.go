// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// automaticReboot makes the unattended-upgrades of the machine reboot it by themselves, or not.
func (n *node) automaticReboot(on bool) {
	n.s.Helper()
	n.Write("/etc/apt/apt.conf.d/52reboot", fmt.Sprintf("Unattended-Upgrade::Automatic-Reboot %q;\n"+
		"Unattended-Upgrade::Automatic-Reboot-Time \"+600\";\n", fmt.Sprint(on)), 0o644)
	n.MustRun("systemctl", "try-reload-or-restart", "kured-agent.service")
}

// scheduled is the kind of the shutdown that logind has scheduled; empty when there is none.
func (n *node) scheduled() string {
	out, _ := n.Exec("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1",
		"org.freedesktop.login1.Manager", "ScheduledShutdown")
	for kind := range strings.FieldsSeq(out) {
		if strings.HasPrefix(kind, `"`) {
			return strings.Trim(kind, `"`)
		}
	}
	return ""
}

func TestUnattendedUpgradesThatDoNotRebootAreNotInTheWay(t *testing.T) {
	s := newScene(t)
	n := s.node("upgrades", debian13, quick, "unattended-upgrades").enable()
	s.pause()
	n.automaticReboot(true)
	n.requireByFile("linux-image")
	n.MustRun("unattended-upgrade")
	n.eventually("unattended-upgrades have scheduled a reboot of their own", 30*time.Second, func() bool {
		return n.scheduled() == "reboot"
	})
	n.MustRun("shutdown", "-c")
	n.automaticReboot(false)
	n.MustRun("unattended-upgrade")
	if kind := n.scheduled(); kind != "" {
		t.Errorf("a %s is scheduled", kind)
	}
	s.resume()
	n.waitReturned(2)
	n.mustHaveBoots(2)
}
