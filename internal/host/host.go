// SPDX-License-Identifier: Apache-2.0

// Package host reads what the agent needs from its own machine, and keeps the small record of what may be outstanding.
// All paths are below a root, so that a test points it at a tree of its own.
package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kured-agent/kured-agent/internal/files"
)

// Host is a machine seen from its file system.
type Host struct {
	Root  string // "/" on a real machine
	State string // state directory below Root, e.g. "/var/lib/kured-agent"
	Run   string // runtime directory below Root, e.g. "/run/kured-agent"
}

func (h Host) path(p string) string { return filepath.Join(h.Root, p) }

// BootID is the kernel's random id of the running boot: 36 characters. It is the only proof of a reboot: a process that
// starts again has proven nothing (kubereboot/kured#14, #44).
func (h Host) BootID() (string, error) {
	return h.readID("/proc/sys/kernel/random/boot_id", 36)
}

// MachineID is the 32 hexadecimal digits of /etc/machine-id.
func (h Host) MachineID() (string, error) {
	return h.readID("/etc/machine-id", 32)
}

func (h Host) readID(path string, length int) (string, error) {
	raw, err := files.Read(h.path(path), 256)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(raw))
	if len(id) != length || strings.Trim(id, "0123456789abcdef-") != "" {
		return "", fmt.Errorf("reading %q: %q is not an id of %d characters", path, id, length)
	}
	return id, nil
}

// GroupID is the number of a group in /etc/group, or in /usr/lib/group, where image-based systems keep those of packages.
func (h Host) GroupID(name string) (int, error) {
	const most = 1 << 20
	for _, path := range []string{"/etc/group", "/usr/lib/group"} {
		raw, err := files.Read(h.path(path), most)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("looking for the group %q: %w", name, err)
		}
		for line := range strings.Lines(string(raw)) { // name:password:number:members
			fields := strings.Split(line, ":")
			if len(fields) != 4 || fields[0] != name {
				continue
			}
			id, err := strconv.Atoi(fields[2])
			if err != nil || id < 0 {
				return 0, fmt.Errorf("looking for the group %q in %s: %q is no number", name, path, fields[2])
			}
			return id, nil
		}
	}
	return 0, fmt.Errorf("looking for the group %q: it is not in /etc/group", name)
}

// Uptime is CLOCK_BOOTTIME: it runs through a suspend and does not know wall-clock changes.
func Uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // the clock is there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// ErrLocked is returned by Lock when another process holds the lock.
var ErrLocked = errors.New("another kured-agent is running on this host")

// Lock takes the lock file of that name in the runtime directory until the process ends or unlock is called. Two agents
// on one host would both believe that the slot is theirs.
func (h Host) Lock(name string) (unlock func(), err error) {
	return h.lock(name, unix.LOCK_EX|unix.LOCK_NB)
}

func (h Host) lock(name string, how int) (unlock func(), err error) {
	dir := h.path(h.Run)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the runtime directory: %w", err)
	}
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening lock file: %w", err)
	}
	if err := files.GiveToOwner(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("locking %q: %w", path, err)
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %q: %w", path, ErrLocked)
		}
		return nil, fmt.Errorf("locking %q: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}
