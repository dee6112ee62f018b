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

// Two managers of one host: the agent does not race the other one.
func TestUnattendedUpgradesThatRebootByThemselvesAreNamedAndWaitedFor(t *testing.T) {
	s := newScene(t)
	n := s.node("upgrades", debian13, quick, "unattended-upgrades")
	// As the package leaves a host; the bench masks the timer, since it would load every machine.
	n.Write("/etc/apt/apt.conf.d/20auto-upgrades", "APT::Periodic::Unattended-Upgrade \"1\";\n", 0o644)
	n.MustRun("systemctl", "unmask", "apt-daily-upgrade.timer")
	n.MustRun("systemctl", "enable", "--now", "apt-daily-upgrade.timer")
	n.automaticReboot(true)
	n.enable()
	n.requireByFile("linux-image")
	n.eventually("the agent names it and how it is turned off", cycleBound, func() bool {
		status, _ := n.Exec("kured-agent", "status")
		return n.phase() == "Waiting" && strings.Contains(status, "unattended-upgrades reboots this host by itself") &&
			strings.Contains(status, `Automatic-Reboot "false";' >>/etc/apt/apt.conf.d/52reboot`)
	})
	n.MustRun("unattended-upgrade")
	n.eventually("unattended-upgrades have scheduled a reboot of their own", 30*time.Second, func() bool {
		return n.scheduled() == "reboot"
	})
	n.eventually("the status shows it", 30*time.Second, func() bool {
		out, _ := n.Exec("kured-agent", "status")
		return strings.Contains(out, "Scheduled") && strings.Contains(out, "by somebody else")
	})
	n.MustRun("shutdown", "-c")
	s.stays("only the taint is there", 5*time.Second, func() bool {
		return n.tainted() && !n.cordoned() && len(n.slots()) == 0
	})
	n.automaticReboot(false)
	n.MustRun("unattended-upgrade")
	if kind := n.scheduled(); kind != "" {
		t.Errorf("a %s is scheduled", kind)
	}
	n.waitReturned(2)
	n.mustHaveBoots(2)
}
