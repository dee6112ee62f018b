// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kured-agent/kured-agent/internal/files"
)

// packageLocks are held as locks on files, in the order in which they are named when several are held: dpkg's frontends
// hold theirs around dpkg's own, and unattended-upgrades its own between the packages.
//
// dnf, yum and PackageKit hold rpm's for as long as a reboot would hurt. apt's lock on its lists is not here: an update
// of the lists can be cut at any time.
var packageLocks = []struct{ who, path string }{
	{"dpkg", "/var/lib/dpkg/lock-frontend"},
	{"dpkg", "/var/lib/dpkg/lock"},
	{"unattended-upgrades", "/run/unattended-upgrades.lock"},
	{"transactional-update", "/run/tukit.lock"},
	{"rpm", "/usr/lib/sysimage/rpm/.rpm.lock"},
	{"rpm", "/var/lib/rpm/.rpm.lock"},
	{"rpm-ostree or bootc", "/ostree/lock"},
}

// packagePIDs are files with the process id of who works. Both hold no lock on a file between the single packages.
var packagePIDs = []struct{ who, path string }{
	{"zypper", "/run/zypp.pid"},
	{"zypper", "/run/zypp-rpm.pid"},
	{"transactional-update", "/run/transactional-update.pid"},
}

// PackageManager says which package manager is at work, e.g. "dpkg (/var/lib/dpkg/lock-frontend), pid 123", or "". A
// reboot now would leave its packages half installed (kubereboot/kured#403). The holder is right also beside an error,
// which says what could not be looked at.
//
// It needs no right to read a lock file, which dpkg keeps from other users, and no look at another user's processes,
// which the service's sandbox hides: /proc/locks names every lock by device and inode to everybody. Of processes of
// other PID namespaces the kernel shows those inside the reader's own, so run in a container it would miss the host's.
func (h Host) PackageManager() (holder string, err error) {
	ids, errs := h.lockIDs()
	held, err := h.holders(ids)
	if err != nil {
		errs = append(errs, err)
	}
	for _, l := range packageLocks {
		if id, ok := ids[l.path]; ok && held[id] != "" {
			return fmt.Sprintf("%s (%s)%s", l.who, l.path, pidText(held[id])), errors.Join(errs...)
		}
	}
	for _, l := range packagePIDs {
		pid, err := h.livingPID(l.path)
		if err != nil {
			errs = append(errs, err)
		} else if pid != "" {
			return fmt.Sprintf("%s (%s)%s", l.who, l.path, pidText(pid)), errors.Join(errs...)
		}
	}
	return "", errors.Join(errs...)
}

// pidText leaves out a process that can't be known: of an open file description's lock it is -1.
func pidText(pid string) string {
	if pid == "-1" {
		return ""
	}
	return ", pid " + pid
}

// lockIDs returns how /proc/locks names those lock files that exist, by path.
func (h Host) lockIDs() (map[string]string, []error) {
	ids := map[string]string{}
	var errs []error
	for _, l := range packageLocks {
		id, err := h.lockID(l.path)
		if err != nil {
			errs = append(errs, fmt.Errorf("looking at %q: %w", l.path, err))
		} else if id != "" {
			ids[l.path] = id
		}
	}
	return ids, errs
}

// lockID is "MAJOR:MINOR:INODE" of a file, as /proc/locks writes it; "" if there is no such file. The device is the file
// system's, as in /proc/self/mountinfo: what stat(2) says differs on btrfs, where each subvolume has a number of its
// own, and on overlayfs. An inode number is unique within one subvolume only, so on btrfs another file's lock may be
// taken for this one: the agent then waits for nothing, until that lock goes.
func (h Host) lockID(path string) (string, error) {
	fd, err := unix.Open(h.path(path), unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	info, err := files.Read(h.path(fmt.Sprintf("/proc/self/fdinfo/%d", fd)), 4096)
	if err != nil {
		return "", err
	}
	device, err := h.mountDevice(mountID(string(info)))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s:%d", device, st.Ino), nil
}

// mountID reads "mnt_id:\t27" in the fdinfo of a file.
func mountID(info string) string {
	for line := range strings.Lines(info) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}

// mountDevice is the device of a mount, as /proc/locks writes it.
func (h Host) mountDevice(id string) (string, error) {
	const path = "/proc/self/mountinfo"
	device := ""
	err := eachLine(h.path(path), func(line string) bool {
		f := strings.Fields(line) // 36 35 98:0 /mnt1 /mnt2 rw,noatime …
		if len(f) < 3 || f[0] != id {
			return true
		}
		major, minor, _ := strings.Cut(f[2], ":")
		device = hexadecimal(major) + ":" + hexadecimal(minor)
		return false
	})
	if err == nil && device == "" {
		err = fmt.Errorf("reading %q: there is no mount %q", path, id)
	}
	return device, err
}

// hexadecimal turns a decimal device number into what /proc/locks writes.
func hexadecimal(decimal string) string {
	n, _ := strconv.ParseUint(decimal, 10, 32)
	return fmt.Sprintf("%02x", n)
}

// holders returns the process ids of those who hold one of the locks, given by path, for writing, by the lock's id.
func (h Host) holders(ids map[string]string) (map[string]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	held := map[string]string{}
	for _, id := range ids {
		held[id] = ""
	}
	err := eachLine(h.path("/proc/locks"), func(line string) bool {
		id, pid := parseLock(line)
		if _, ours := held[id]; ours {
			held[id] = pid
		}
		return true
	})
	return held, err
}

// parseLock reads one line of /proc/locks, "1: POSIX  ADVISORY  WRITE 1234 08:01:131 0 EOF", of a lock that is held for
// writing: a read lock is a mere query's. A line with "->" is of somebody who waits for one.
func parseLock(line string) (id, pid string) {
	f := strings.Fields(line)
	if len(f) < 6 || f[3] != "WRITE" {
		return "", ""
	}
	if _, err := strconv.Atoi(f[4]); err != nil {
		return "", ""
	}
	return f[5], f[4]
}

// stalePID is the age of a file with a process id past which its writer is believed to be gone, although the kernel has
// such a process: it was killed, and its number given out again. No update takes that long.
const stalePID = 24 * time.Hour

// livingPID is the process id in a file, or "" if the file is not there or that process is gone. The signal 0 tells
// without a look at /proc, where other users' processes may be hidden.
func (h Host) livingPID(path string) (string, error) {
	content, err := files.Read(h.path(path), 4096)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(h.path(path))
	if err != nil || time.Since(info.ModTime()) > stalePID {
		return "", nil
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(content)), "\n")
	pid, err := strconv.ParseInt(strings.TrimSpace(line), 10, 32)
	if err != nil || pid <= 1 {
		return "", nil // empty: zypper is done. Negative ones and 0 would mean groups of processes.
	}
	if err := unix.Kill(int(pid), 0); errors.Is(err, unix.ESRCH) {
		return "", nil
	}
	return strconv.FormatInt(pid, 10), nil
}

// eachLine calls f with each line until it returns false. Databases of a node may hold many thousand locks, so the file
// is not held in memory; past maxProc bytes something is wrong.
func eachLine(path string, f func(line string) bool) error {
	const maxProc = 64 << 20
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return err
	}
	defer file.Close()
	limited := &io.LimitedReader{R: file, N: maxProc}
	lines := bufio.NewScanner(limited)
	for lines.Scan() {
		if !f(lines.Text()) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading %q: %w", path, err)
	}
	if limited.N == 0 {
		return fmt.Errorf("reading %q: larger than %d bytes", path, maxProc)
	}
	return nil
}
