// SPDX-License-Identifier: Apache-2.0

package machines

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// Deb returns the newest package of this architecture in dist/, which "make package" puts there.
func Deb() (string, error) {
	root, err := cluster.ModuleRoot()
	if err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(root, "dist", "kured-agent_*_amd64.deb"))
	if err != nil {
		return "", err
	}
	var newest string
	var at time.Time
	for _, deb := range debs {
		if info, err := os.Stat(deb); err == nil && info.ModTime().After(at) {
			newest, at = deb, info.ModTime()
		}
	}
	if newest == "" {
		return "", fmt.Errorf("looking for the package in %s: none is there; run make package", filepath.Join(root, "dist"))
	}
	return newest, nil
}

// For a sandboxed unit systemd before 254 mounts a new /proc. In it the boot id of the machine, a file that systemd-nspawn
// mounted over the kernel's, is the host's again: a flaw of the container that a drop-in mends. The file itself is
// unlinked and cannot be mounted once more, so it is copied at each boot.
const (
	copyBootID = "C+ /run/boot_id - - - - /proc/sys/kernel/random/boot_id\n"
	bindBootID = "[Service]\nBindReadOnlyPaths=/run/boot_id:/proc/sys/kernel/random/boot_id\n"
)

// Install installs a package file of the host.
func (m *Machine) Install(deb string) {
	m.t.Helper()
	content, err := os.ReadFile(deb)
	if err == nil {
		err = os.WriteFile(filepath.Join(m.Share(), filepath.Base(deb)), content, 0o644)
	}
	if err != nil {
		m.t.Fatalf("giving the package to machine %q: %v", m.name, err)
	}
	if m.Systemd() < 254 {
		m.Write("/etc/tmpfiles.d/boot_id.conf", copyBootID, 0o644)
		m.MustRun("systemd-tmpfiles", "--create", "boot_id.conf")
		for _, unit := range []string{"kured-agent.service", "kured-agent-boot.service"} {
			m.Write("/etc/systemd/system/"+unit+".d/50-container.conf", bindBootID, 0o644)
		}
	}
	m.MustRun("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--install", "/share/"+filepath.Base(deb))
}

// Configure writes the agent's configuration, unless empty, and its kubeconfig, as an admin would.
func (m *Machine) Configure(config string, kubeconfig []byte) {
	m.t.Helper()
	if config != "" {
		m.Write("/etc/kured/config.toml", config, 0o644)
	}
	m.Write("/etc/kured/kubeconfig", string(kubeconfig), 0o640)
	m.MustExec("chown", "root:kured-agent", "/etc/kured/kubeconfig")
}

// Property reads a property of the running agent's object on the bus as busctl prints it, without type and quotes; empty
// when no agent answers.
func (m *Machine) Property(name string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := m.ExecContext(ctx, "busctl", "--timeout=2", "--auto-start=no", "get-property",
		"org.kured.Agent1", "/org/kured/Agent1", "org.kured.Agent1", name)
	if err != nil {
		return ""
	}
	_, value, _ := strings.Cut(strings.TrimSpace(out), " ")
	if unquoted, err := strconv.Unquote(value); err == nil {
		return unquoted
	}
	return value
}

// UnitProperty reads a property of a unit, for instance ActiveState; empty while the machine is down.
func (m *Machine) UnitProperty(unit, property string) string {
	out, _ := m.Exec("systemctl", "show", "--property="+property, "--value", unit)
	return strings.TrimSpace(out)
}
