// SPDX-License-Identifier: Apache-2.0

package machines

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// UpdaterSource is the configuration of a source that listens to the updater.
const UpdaterSource = `
[[source]]
type = "dbus-signal"
name = "com.example.Updater"
path = "/com/example/Updater"
interface = "com.example.Updater"
signal = "StatusChanged"
argument = 2
equals = "NEED_REBOOT"
`

const updaterPolicy = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><policy user="root"><allow own="com.example.Updater"/><allow send_destination="com.example.Updater"/></policy></busconfig>
`

// BuildUpdater compiles test/updater, a system service that asks for reboots by a signal, and returns its path.
func BuildUpdater(dir string) (string, error) {
	root, err := cluster.ModuleRoot()
	if err != nil {
		return "", err
	}
	updater := filepath.Join(dir, "updater")
	build := exec.Command("go", "build", "-o", updater, "./test/updater")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the updater: %w: %s", err, out)
	}
	return updater, nil
}

// RunUpdater starts the updater, until the next reboot, and returns when it is on the bus.
func (m *Machine) RunUpdater(updater string) {
	m.t.Helper()
	program, err := os.ReadFile(updater)
	if err == nil {
		err = os.WriteFile(filepath.Join(m.Share(), "updater"), program, 0o755)
	}
	if err != nil {
		m.t.Fatalf("giving the updater to machine %q: %v", m.name, err)
	}
	m.Write("/etc/dbus-1/system.d/com.example.Updater.conf", updaterPolicy, 0o644)
	m.MustRun("systemctl", "reload", "dbus.service")
	m.MustExec("systemd-run", "--quiet", "--unit=updater", "/share/updater")
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err = m.Exec("busctl", "status", "com.example.Updater"); err == nil {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("the updater is not on the bus: %v", err)
		}
	}
}

// Signal makes the updater broadcast a status; NEED_REBOOT requires a reboot, any other takes that back.
func (m *Machine) Signal(status string) {
	m.t.Helper()
	m.MustExec("busctl", "call", "com.example.Updater", "/com/example/Updater", "com.example.Updater", "Set", "s", status)
}
