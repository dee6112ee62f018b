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

// Deb returns the newest Debian package of this architecture in dist/, which "make package" puts there.
func Deb() (string, error) { return newestPackage("kured-agent_*_amd64.deb") }

// RPM is Deb for an rpm.
func RPM() (string, error) { return newestPackage("kured-agent-*.x86_64.rpm") }

func newestPackage(pattern string) (string, error) {
	root, err := cluster.ModuleRoot()
	if err != nil {
		return "", err
	}
	packages, err := filepath.Glob(filepath.Join(root, "dist", pattern))
	if err != nil {
		return "", err
	}
	var newest string
	var at time.Time
	for _, file := range packages {
		if info, err := os.Stat(file); err == nil && info.ModTime().After(at) {
			newest, at = file, info.ModTime()
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

// Install installs or upgrades to a package file of the host, a deb or an rpm.
func (m *Machine) Install(file string) {
	m.t.Helper()
	content, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(filepath.Join(m.Share(), filepath.Base(file)), content, 0o644)
	}
	if err != nil {
		m.t.Fatalf("giving the package to machine %q: %v", m.name, err)
	}
	if m.Systemd() < 254 {
		m.Write("/etc/tmpfiles.d/boot_id.conf", copyBootID, 0o644)
		m.MustRun("systemd-tmpfiles", "--create", "boot_id.conf")
		for _, unit := range []string{"kured-agent.service", "kured-agent-boot.service", "kured-agent-shutdown.service"} {
			m.Write("/etc/systemd/system/"+unit+".d/50-container.conf", bindBootID, 0o644)
		}
	}
	install := []string{"env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--install"}
	if filepath.Ext(file) == ".rpm" {
		install = []string{"rpm", "--upgrade"}
	}
	m.MustRun(append(install, "/share/"+filepath.Base(file))...)
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
	ctx, cancel := context.WithTimeout(context.Background(), askBound)
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
	ctx, cancel := context.WithTimeout(context.Background(), askBound)
	defer cancel()
	out, _ := m.ExecContext(ctx, "systemctl", "show", "--property="+property, "--value", unit)
	return strings.TrimSpace(out)
}
