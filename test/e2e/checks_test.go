// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"
)

// mine is a check of the administrator's that exits as the file /run/answer says.
const mine = `[Unit]
ConditionPathExists=/run/answer
[Service]
ExecStart=/bin/sh -c 'exit $$(cat /run/answer)'
`

const mineSource = `
[[source]]
type = "check"
name = "mine"
required = [100]
`

// source returns what the agent says about its sources that begin with a name.
func (n *node) source(name string) string {
	out, _ := n.Exec("kured-agent", "status")
	for line := range strings.Lines(out) {
		if strings.Contains(line, name) {
			return line
		}
	}
	return out
}

// ask has the agent run its checks again.
func (n *node) ask() { n.MustRun("systemctl", "restart", "kured-agent") }

func (n *node) untainted(s *scene, why string) {
	s.Helper()
	s.stays(why, 3*time.Second, func() bool { return !n.tainted() && len(n.Boots()) == 1 })
}

func TestACheckUnitRequiresARebootByItsNamedCodeAlone(t *testing.T) {
	for _, suite := range []string{debian12, debian13} {
		t.Run(suite, func(t *testing.T) {
			s := newScene(t)
			n := s.node("check-"+suite[:4], suite, quick+mineSource)
			n.Write("/etc/systemd/system/kured-agent-check@mine.service.d/check.conf", mine, 0o644)
			n.MustRun("systemctl", "daemon-reload")
			n.enable()
			n.eventually("the condition of the check fails", 20*time.Second, func() bool {
				return strings.Contains(n.source("check:mine"), "condition")
			})
			n.untainted(s, "a check without its condition requires nothing")
			for _, code := range []string{"127", "203", "1", "102"} {
				n.Write("/run/answer", code, 0o644)
				n.ask()
				n.eventually("the code "+code+" is told as no answer", 20*time.Second, func() bool {
					return strings.Contains(n.source("check:mine"), "exited with "+code)
				})
			}
			n.untainted(s, "a code that was not named requires nothing")
			s.holdSlot()
			n.Write("/run/answer", "100", 0o644)
			n.ask()
			n.eventually("the named code taints", 20*time.Second, n.tainted)
			n.Write("/run/answer", "0", 0o644)
			n.ask()
			n.eventually("the code for no takes the taint off", 20*time.Second, func() bool { return !n.tainted() })
			s.c.MustKubectl("-n", "kured-agent", "delete", "lease", "slot-default-0")
			n.Write("/run/answer", "100", 0o644) // gone with the boot
			n.ask()
			n.waitReturned(2)
			n.mustHaveBoots(2)
		})
	}
}

// dnf is a dnf5 that says and does what is in two files.
const dnf = `#!/bin/sh
cat /run/said
exit $(cat /run/code)
`

func TestTheDnfCheckIsUsedByItselfAndBelievesNoBareExitCode(t *testing.T) {
	for _, suite := range []string{debian12, debian13} {
		t.Run(suite, func(t *testing.T) {
			s := newScene(t)
			n := s.node("dnf-"+suite[:4], suite, quick)
			say := func(code, words string) {
				n.Write("/run/code", code, 0o644)
				n.Write("/run/said", words, 0o644)
			}
			s.holdSlot()
			say("1", "Failed to download metadata\n")
			n.Write("/usr/bin/dnf5", dnf, 0o755)
			n.enable()
			n.eventually("the plugin of dnf5 is missed", 20*time.Second, func() bool {
				return strings.Contains(n.source("check:dnf"), "condition")
			})
			n.Write("/usr/lib64/dnf5/plugins/needs_restarting_cmd_plugin.so", "", 0o644)
			n.ask()
			n.eventually("a failure of dnf5 is told as one", 20*time.Second, func() bool {
				return strings.Contains(n.source("check:dnf"), "exited with 1")
			})
			n.untainted(s, "a failure of dnf5 requires nothing")
			say("0", "Reboot should not be necessary.\n")
			n.ask()
			n.eventually("dnf5 says no", 20*time.Second, func() bool { return !strings.Contains(n.source("check:dnf"), "exited") })
			n.untainted(s, "its no requires nothing")
			say("1", "Reboot is required to fully utilize these updates.\n")
			n.ask()
			n.eventually("its yes taints", 20*time.Second, n.tainted)
		})
	}
}

func TestPolkitLetsTheAgentStartItsHooksAndChecksAndNothingElse(t *testing.T) {
	for _, suite := range []string{debian12, debian13} {
		t.Run(suite, func(t *testing.T) {
			n := newScene(t).node("polkit-"+suite[:4], suite, "")
			n.Write("/etc/systemd/system/kured-agent-check@mine.service.d/check.conf", "[Service]\nExecStart=/bin/true\n", 0o644)
			n.Write("/etc/systemd/system/other.service", "[Service]\nType=oneshot\nExecStart=/bin/true\n", 0o644)
			n.MustRun("systemctl", "daemon-reload")
			ask := func(user, method, unit string) error {
				_, err := n.RunAs(user, "busctl", "--allow-interactive-authorization=no", "call", "org.freedesktop.systemd1",
					"/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", method, "ss", unit, "replace")
				return err
			}
			const check, hooks = "kured-agent-check@mine.service", "kured-agent-pre-reboot.target"
			for _, unit := range []string{check, hooks, "kured-agent-check@dnf.service"} {
				if err := ask("kured-agent", "StartUnit", unit); err != nil {
					t.Errorf("starting %s: %v", unit, err)
				}
			}
			refused := func(user, method, unit string) {
				if ask(user, method, unit) == nil {
					t.Errorf("%s may %s %s", user, method, unit)
				}
			}
			for _, unit := range []string{
				"other.service", "kured-agent.service", "kured-agent-boot.service", "reboot.target", "kured-agent-check@A.service",
			} {
				refused("kured-agent", "StartUnit", unit)
			}
			for _, method := range []string{"StopUnit", "RestartUnit", "TryRestartUnit", "ReloadOrRestartUnit"} {
				refused("kured-agent", method, check)
				refused("kured-agent", method, hooks)
			}
			refused("nobody", "StartUnit", check)
			refused("nobody", "StartUnit", hooks)
			n.mustHaveBoots(1)
		})
	}
}

// Older versions of dnf take the age of /proc/1 for that of the boot.
func TestACheckUnitSeesWhenTheHostBooted(t *testing.T) {
	for _, suite := range []string{debian12, debian13} {
		t.Run(suite, func(t *testing.T) {
			n := newScene(t).node("proc-"+suite[:4], suite, "")
			n.Write("/run/booted", n.MustExec("stat", "-c", "%Y", "/proc/1"), 0o644)
			n.Write("/etc/systemd/system/kured-agent-check@mine.service.d/check.conf",
				"[Service]\nExecStart=/bin/sh -c '[ $$(stat -c %%Y /proc/1) = $$(cat /run/booted) ]'\n", 0o644)
			n.MustRun("systemctl", "daemon-reload")
			n.MustRun("systemctl", "start", "kured-agent-check@mine.service")
		})
	}
}

// The shipped example, with a load balancer that does not answer.
const lost = `[Service]
ExecStart=
ExecStart=/bin/false
`

func TestAHookThatFailsStopsTheRebootAndIsNamed(t *testing.T) {
	const hook = "leave-load-balancer.service"
	s := newScene(t)
	n := s.node("hook", debian12, quick)
	example, err := os.ReadFile("../../packaging/examples/" + hook) // a machine has no /usr/share/doc
	if err != nil {
		t.Fatal(err)
	}
	n.Write("/etc/systemd/system/"+hook, string(example), 0o644)
	n.Write("/etc/systemd/system/"+hook+".d/test.conf", lost, 0o644)
	n.MustRun("systemctl", "enable", hook)
	n.enable()
	n.requireByFile("linux-image")
	n.eventually("the hook is named and the node given back", cycleBound, func() bool {
		return strings.Contains(n.Property("Failure"), hook) && !n.cordoned() && len(n.slots()) == 0
	})
	if !n.tainted() {
		t.Error("the taint went, though a reboot is still required")
	}
	n.mustHaveBoots(1)
}
