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
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/machines"
)

func TestInstallingEnablesNothing(t *testing.T) {
	s := newScene(t)
	n := s.node("install", debian13, "")
	n.requireByFile("linux-image") // an update that is already waiting must not surprise anybody
	n.Reboot()
	for _, unit := range []string{"kured-agent.service", "kured-agent-boot.service"} {
		if state := n.UnitProperty(unit, "ActiveState"); state != "inactive" {
			t.Errorf("%s is %s", unit, state)
		}
		if enabled, _ := n.Exec("systemctl", "is-enabled", unit); strings.TrimSpace(enabled) != "disabled" {
			t.Errorf("%s is %s", unit, enabled)
		}
	}
	n.enable()
	if enabled, _ := n.Exec("systemctl", "is-enabled", "kured-agent-boot.service"); strings.TrimSpace(enabled) != "enabled" {
		t.Errorf("enabling the agent left the boot unit %s", enabled)
	}
	if left := ours(n.node()); len(left) != 0 {
		t.Errorf("on the node: %v", left)
	}
}

// repack makes a later version of the same package.
func repack(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, newer := filepath.Join(dir, "root"), filepath.Join(dir, "kured-agent_99.0.0_amd64.deb")
	for _, argv := range [][]string{
		{"dpkg-deb", "--raw-extract", deb, root},
		{"sed", "-i", "s/^Version: .*/Version: 99.0.0/", filepath.Join(root, "DEBIAN", "control")},
		{"dpkg-deb", "--root-owner-group", "-Znone", "--build", root, newer},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	return newer
}

func TestAnUpgradeKeepsTheConfigurationAndTheDrain(t *testing.T) {
	s := newScene(t)
	n := s.node("upgrade", debian12, quick+"# mine\n").enable()
	n.kubelet.SetPodDelete(-1)
	s.c.Pod(n.Name(), "upgrade", cluster.PodOptions{Owner: "ReplicaSet"})
	s.c.WaitRunning("upgrade")
	n.requireByFile("linux-image")
	n.waitPhase("Draining")
	slots := n.slots()
	n.Install(repack(t))
	n.waitPhase("Draining")
	if !n.cordoned() || strings.Join(n.slots(), " ") != strings.Join(slots, " ") {
		t.Errorf("after the upgrade cordoned=%t, slots %v, before %v", n.cordoned(), n.slots(), slots)
	}
	if config, _ := n.Exec("cat", "/etc/kured/config.toml"); !strings.HasSuffix(config, "# mine\n") {
		t.Errorf("the configuration became:\n%s", config)
	}
	n.mustHaveBoots(1)
}

func TestRemovalCleansTheNodeAndPurgeRemovesTheState(t *testing.T) {
	s := newScene(t)
	n := s.node("remove", debian12, quick).enable()
	n.kubelet.SetPodDelete(-1)
	s.c.Pod(n.Name(), "remove", cluster.PodOptions{Owner: "ReplicaSet"})
	s.c.WaitRunning("remove")
	n.requireByFile("linux-image")
	n.waitPhase("Draining")
	n.MustRun("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--remove", "kured-agent")
	if left := ours(n.node()); len(left) != 0 {
		t.Errorf("on the node after the removal: %v", left)
	}
	if held := n.slots(); len(held) != 0 {
		t.Errorf("slots after the removal: %v", held)
	}
	if !n.Exists("/etc/kured/config.toml") || n.Exists("/usr/bin/kured-agent") {
		t.Error("the configuration is gone or the program is still there")
	}
	n.MustRun("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--purge", "kured-agent")
	for _, path := range []string{"/etc/kured/config.toml", "/etc/kured/kubeconfig", "/var/lib/kured-agent", "/run/kured-agent"} {
		if n.Exists(path) {
			t.Errorf("%s is still there after the purge", path)
		}
	}
	n.mustHaveBoots(1)
}

func TestARestartKeepsTheDrainAndAStopTakesItBack(t *testing.T) {
	s := newScene(t)
	n := s.node("stop", debian13, quick).enable()
	n.kubelet.SetPodDelete(-1)
	s.c.Pod(n.Name(), "stop", cluster.PodOptions{Owner: "ReplicaSet"})
	s.c.WaitRunning("stop")
	n.requireByFile("linux-image")
	n.waitPhase("Draining")
	writes := len(s.c.Requests(cluster.NodeWrites(n.Name())))
	n.MustRun("systemctl", "restart", "kured-agent")
	n.waitPhase("Draining")
	s.stays("the restart does not write the Node and it is cordoned", time.Second, func() bool {
		return len(s.c.Requests(cluster.NodeWrites(n.Name()))) == writes && n.cordoned()
	})
	n.MustRun("systemctl", "stop", "kured-agent")
	if n.cordoned() || len(n.slots()) != 0 {
		t.Errorf("stopped, and cordoned=%t with slots %v", n.cordoned(), n.slots())
	}
	n.mustHaveBoots(1)
}

var (
	exposure = regexp.MustCompile(`exposure level for \S+: (\d\.\d) `)
	// The one directive of the sandbox that systemd knows since 248 only.
	newerKey = regexp.MustCompile(`(?m)^.*Unknown key name 'PrivateIPC'.*$`)
)

func TestTheUnitsVerifyAndAreSandboxed(t *testing.T) {
	for _, suite := range machines.Suites {
		t.Run(suite, func(t *testing.T) {
			s := newScene(t)
			n := s.node("units-"+suite[:4], suite, "")
			units := []string{"kured-agent.service", "kured-agent-boot.service", "kured-agent-shutdown.service",
				"kured-agent-pre-reboot.target", "kured-reboot-required.path", "kured-reboot-required.target"}
			out, err := n.Exec("sh", "-c", "systemd-analyze verify --man=no "+strings.Join(units, " ")+" 2>&1")
			if n.Systemd() < 248 {
				out = newerKey.ReplaceAllString(out, "")
			}
			if err != nil || strings.Contains(out, "kured") {
				t.Errorf("systemd-analyze verify: %v\n%s", err, out)
			}
			for _, unit := range units[:3] {
				out := n.MustExec("systemd-analyze", "security", "--no-pager", unit)
				level := exposure.FindStringSubmatch(out)
				if level == nil || level[1] >= "2.0" {
					t.Errorf("%s has no exposure under 2.0:\n%s", unit, out)
					continue
				}
				t.Logf("exposure of %s: %s", unit, level[1])
			}
		})
	}
}

func TestThePackageIsSmall(t *testing.T) {
	info, err := os.Stat(deb)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 7<<20 {
		t.Errorf("%s has %d bytes, want at most 7 MiB", deb, info.Size())
	}
}
