// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/machines"
)

// distribution is an rpm without files that provides what an rpm distribution would: on Debian it is there, but rpm does
// not know it.
const distribution = `Name: distribution
Version: 1
Release: 1
Summary: What the distribution provides
License: none
BuildArch: noarch
Provides: systemd = %(systemctl --version | awk 'NR==1 {print $2}')
Provides: util-linux, /bin/sh
%description
Nothing but names.
%files
`

// newerRPM builds a later version of the same rpm.
func newerRPM(t *testing.T) string {
	t.Helper()
	root, err := cluster.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join(root, "packaging", "build.sh"))
	if err != nil {
		t.Fatal(err)
	}
	nfpm := regexp.MustCompile(`(?m)^nfpm=(\S+)$`).FindSubmatch(script)
	if nfpm == nil {
		t.Fatal("packaging/build.sh does not say which nfpm it uses")
	}
	dir := t.TempDir()
	build := exec.Command("go", "run", string(nfpm[1]), "package", "-f", "nfpm.yaml", "-p", "rpm", "-t", dir)
	build.Dir = root
	build.Env = append(os.Environ(), "VERSION=99.0.0", "ARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building an rpm: %v: %s", err, out)
	}
	return filepath.Join(dir, "kured-agent-99.0.0-1.x86_64.rpm")
}

func (n *node) enabled(unit string) string {
	out, _ := n.Exec("systemctl", "is-enabled", unit)
	return strings.TrimSpace(out)
}

var agentUnits = []string{"kured-agent.service", "kured-agent-boot.service"}

// Debian's rpm on a booted machine: its own dependencies, scriptlets and configuration files are what is shown, not those
// of an rpm distribution.
func TestAnRPMIsInstalledUpgradedAndErased(t *testing.T) {
	rpm, err := machines.RPM()
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t)
	n := s.bare("rpm", debian12, "rpm")
	n.Write("/root/distribution.spec", distribution, 0o644)
	n.MustRun("rpmbuild", "-bb", "--quiet", "--define=_rpmdir /root", "/root/distribution.spec")
	n.MustRun("rpm", "--install", "/root/noarch/distribution-1-1.noarch.rpm")

	n.Install(rpm)
	if out, err := n.Run("rpm", "--verify", "kured-agent"); err != nil {
		t.Errorf("what is installed is not what the rpm says: %s", out)
	}
	if out := n.MustExec("stat", "--format=%U:%G %a", "/etc/kured"); out != "root:kured-agent 750\n" {
		t.Errorf("/etc/kured is %s", out)
	}
	for _, unit := range agentUnits {
		if state := n.enabled(unit); state != "disabled" {
			t.Errorf("installed, and %s is %s", unit, state)
		}
	}
	n.Configure(quick+"# mine\n", s.c.AgentKubeconfigFor(n.Name(), s.url))
	n.enable()
	n.requireByFile("kernel")
	n.waitReturned(2)

	n.stickyPod()
	n.requireByFile("glibc")
	n.waitPhase("Draining")
	slots := n.slots()
	n.Install(newerRPM(t))
	n.waitPhase("Draining")
	if version := n.MustExec("rpm", "--query", "kured-agent"); !strings.Contains(version, "99.0.0") {
		t.Errorf("upgraded to %s", version)
	}
	if !n.cordoned() || strings.Join(n.slots(), " ") != strings.Join(slots, " ") {
		t.Errorf("after the upgrade cordoned=%t, slots %v, before %v", n.cordoned(), n.slots(), slots)
	}
	for _, unit := range agentUnits {
		if state := n.enabled(unit); state != "enabled" {
			t.Errorf("after the upgrade %s is %s", unit, state)
		}
	}
	if config := n.MustExec("cat", "/etc/kured/config.toml"); !strings.HasSuffix(config, "# mine\n") {
		t.Errorf("the configuration became:\n%s", config)
	}

	n.MustRun("rpm", "--erase", "kured-agent")
	if left := ours(n.node()); len(left) != 0 || len(n.slots()) != 0 {
		t.Errorf("after the removal on the node: %v, slots %v", left, n.slots())
	}
	for _, path := range []string{
		"/usr/bin/kured-agent", "/usr/lib/systemd/system/kured-agent.service",
		"/etc/systemd/system/multi-user.target.wants/kured-agent.service",
		"/etc/systemd/system/multi-user.target.wants/kured-agent-boot.service",
	} {
		if n.Exists(path) {
			t.Errorf("%s is still there after the removal", path)
		}
	}
	if !n.Exists("/etc/kured/config.toml.rpmsave") {
		t.Error("the configuration was not saved")
	}
	for _, unit := range agentUnits {
		if state := n.UnitProperty(unit, "ActiveState"); state != "inactive" {
			t.Errorf("after the removal %s is %s", unit, state)
		}
	}
	n.mustHaveBoots(2)
}
