// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// withProc is a tree with the kernel's own /proc: what it says of locks is what is tested.
func withProc(t *testing.T, files map[string]string) Host {
	t.Helper()
	h := tree(t, files)
	if err := os.Symlink("/proc", h.path("/proc")); err != nil {
		t.Fatal(err)
	}
	return h
}

const (
	frontend = "/var/lib/dpkg/lock-frontend"
	rpmLock  = "/usr/lib/sysimage/rpm/.rpm.lock"
)

func wantHolder(t *testing.T, h Host, want string) {
	t.Helper()
	if got, err := h.PackageManager(); got != want || err != nil {
		t.Errorf("holder %q, %v, want %q", got, err, want)
	}
}

// TestMain lets the test binary be the package manager of a test: started with holdLock it locks the file for writing,
// as dpkg and rpm do, says so, and keeps it until its standard input ends.
func TestMain(m *testing.M) {
	if path := os.Getenv(holdLock); path != "" {
		os.Exit(hold(path))
	}
	os.Exit(m.Run())
}

const holdLock = "KURED_TEST_HOLD_LOCK"

func hold(path string) int {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("locked")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// startHolder returns the holder's process id and what ends it.
func startHolder(t *testing.T, path string) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdLock+"="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	end = func() { _ = in.Close(); _ = cmd.Wait() }
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		end()
		t.Fatalf("the holder says %q, %v", line, err)
	}
	return cmd.Process.Pid, end
}

func TestALockOfAnotherProcessIsSeenUntilItGoes(t *testing.T) {
	t.Parallel()
	for path, who := range map[string]string{frontend: "dpkg", rpmLock: "rpm", "/run/tukit.lock": "transactional-update"} {
		h := withProc(t, map[string]string{frontend: "", rpmLock: "", path: ""})
		wantHolder(t, h, "")
		pid, end := startHolder(t, h.path(path))
		wantHolder(t, h, fmt.Sprintf("%s (%s), pid %d", who, path, pid))
		end()
		wantHolder(t, h, "")
	}
}

func TestTheOutermostLockIsNamed(t *testing.T) {
	t.Parallel()
	h := withProc(t, map[string]string{frontend: "", "/var/lib/dpkg/lock": ""})
	pid, end := startHolder(t, h.path("/var/lib/dpkg/lock"))
	defer end()
	wantHolder(t, h, fmt.Sprintf("dpkg (/var/lib/dpkg/lock), pid %d", pid))
	pid, end2 := startHolder(t, h.path(frontend))
	defer end2()
	wantHolder(t, h, fmt.Sprintf("dpkg (%s), pid %d", frontend, pid))
}

func TestTheLookItselfLeavesTheLock(t *testing.T) {
	t.Parallel()
	h := withProc(t, map[string]string{frontend: "x"})
	f, err := os.OpenFile(h.path(frontend), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	// POSIX drops a process's locks on a file as soon as it closes any descriptor of it.
	for range 3 {
		wantHolder(t, h, fmt.Sprintf("dpkg (%s), pid %d", frontend, os.Getpid()))
	}
}

func TestALockWithoutAnOwnerHasNoProcess(t *testing.T) {
	t.Parallel()
	h := withProc(t, map[string]string{"/sysroot/ostree/lock": ""})
	if err := os.Symlink("sysroot/ostree", h.path("/ostree")); err != nil { // as on an ostree host
		t.Fatal(err)
	}
	f, err := os.OpenFile(h.path("/ostree/lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	wantHolder(t, h, "rpm-ostree or bootc (/ostree/lock)")
	lock.Type = unix.F_RDLCK // a query
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	wantHolder(t, h, "")
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	wantHolder(t, h, fmt.Sprintf("rpm-ostree or bootc (/ostree/lock), pid %d", os.Getpid()))
}

func TestAFileWithAProcessIDCountsWhileTheProcessLives(t *testing.T) {
	t.Parallel()
	const zypp = "/run/zypp.pid"
	h := withProc(t, nil)
	write := func(content string) {
		if err := os.WriteFile(h.path(zypp), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	own := strconv.Itoa(os.Getpid())
	write(own + "\n")
	wantHolder(t, h, "zypper (/run/zypp.pid), pid "+own)
	old := time.Now().Add(-2 * stalePID)
	if err := os.Chtimes(h.path(zypp), old, old); err != nil {
		t.Fatal(err)
	}
	wantHolder(t, h, "")
	gone := exec.Command(os.Args[0], "-test.run=^$")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{
		"", "\n", "zypper", "0", "1", "-1", "-" + own, "99999999999", strconv.Itoa(gone.Process.Pid),
	} {
		write(content)
		wantHolder(t, h, "")
	}
}

func TestWithoutProcTheHolderIsUnknown(t *testing.T) {
	t.Parallel()
	h := tree(t, map[string]string{frontend: ""})
	if holder, err := h.PackageManager(); holder != "" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("holder %q, %v", holder, err)
	}
}

func TestWhatCantBeLookedAtHidesNoOtherHolder(t *testing.T) {
	t.Parallel()
	h := withProc(t, map[string]string{rpmLock: "", "/run/zypp.pid": strings.Repeat("1", 5000)})
	if err := os.MkdirAll(filepath.Dir(h.path(frontend)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("lock-frontend", h.path(frontend)); err != nil {
		t.Fatal(err)
	}
	holder, err := h.PackageManager()
	if holder != "" || !errors.Is(err, unix.ELOOP) || !strings.Contains(err.Error(), "zypp.pid") {
		t.Errorf("holder %q, %v", holder, err)
	}
	pid, end := startHolder(t, h.path(rpmLock))
	defer end()
	holder, err = h.PackageManager()
	if holder != fmt.Sprintf("rpm (%s), pid %d", rpmLock, pid) || !errors.Is(err, unix.ELOOP) {
		t.Errorf("holder %q, %v", holder, err)
	}
}

func TestALineOfLocksIsRead(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"1: POSIX  ADVISORY  WRITE 1234 08:01:131 0 EOF":     "08:01:131 1234",
		"12: FLOCK  ADVISORY  WRITE 99 00:1a:18446744 0 EOF": "00:1a:18446744 99",
		"2: OFDLCK ADVISORY  WRITE -1 fd:00:7 0 EOF":         "fd:00:7 -1",
		"2: POSIX  ADVISORY  WRITE 1 103:02:9 100 10099":     "103:02:9 1",
		"3: POSIX  ADVISORY  READ 1234 08:01:131 0 EOF":      " ",
		"1: -> POSIX  ADVISORY  WRITE 1234 08:01:131 0 EOF":  " ",
		"4: LEASE  ACTIVE    WRITE 1 08:01:5 0 EOF":          "08:01:5 1",
		"4: DELEG  ACTIVE    READ 1 08:01:5 0 EOF":           " ",
		"5: POSIX  ADVISORY  WRITE someone 08:01:131 0 EOF":  " ",
		"":  " ",
		"1": " ",
	} {
		if id, pid := parseLock(line); id+" "+pid != want {
			t.Errorf("%q gives %q %q", line, id, pid)
		}
	}
}

func TestTheDeviceIsTheMounts(t *testing.T) {
	t.Parallel()
	// A subvolume of btrfs: stat(2) says another device than the mount and /proc/locks.
	h := tree(t, map[string]string{"/proc/self/mountinfo": "22 1 0:27 /@ / rw shared:1 - btrfs /dev/sda2 rw\n" +
		"40 22 259:3 / /var rw - ext4 /dev/nvme0n1p3 rw\n"})
	for id, want := range map[string]string{"22": "00:1b", "40": "103:03", "4": "", "": ""} {
		if got, err := h.mountDevice(id); got != want || (err == nil) != (want != "") {
			t.Errorf("mount %q: %q, %v", id, got, err)
		}
	}
	if id := mountID("pos:\t0\nflags:\t012000000\nmnt_id:\t27\nino:\t5\n"); id != "27" {
		t.Errorf("mount id %q", id)
	}
}
