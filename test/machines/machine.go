// SPDX-License-Identifier: Apache-2.0

package machines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// Machine is one Debian machine. Its methods fail the test on an error unless they return one.
type Machine struct {
	hub         *Hub
	t           cluster.TB
	name, ip    string
	suite       string
	systemd     int
	rootfs, dir string
	netns       string
	cgroup      string

	mu    sync.Mutex
	boots []Boot
	on    bool
	off   chan struct{} // closed when the power is off again
}

// Boot is one boot of a machine, by the host's clock.
type Boot struct {
	Started time.Time
	Ended   time.Time // zero while it runs
	Exit    int       // 133: it asked for a reboot; 0: it powered itself off; else it was killed
	Leader  int       // process of its init on the host
}

// Suites are the Debian releases that a machine can run, the oldest first: 11, 12, 13 and the next one.
var Suites = []string{"bullseye", "bookworm", "trixie", "forky"}

// MachineOptions describe a machine.
type MachineOptions struct {
	Suite    string   // one of Suites, "bookworm" by default
	Packages []string // Debian packages that are installed beside systemd, D-Bus and polkit
	Off      bool     // stays without power until Start
}

const (
	exitReboot = 133 // of systemd-nspawn --keep-unit
	bootBound  = 60 * time.Second
	execBound  = 3 * time.Minute
	askBound   = 5 * time.Second // of a question to a service, which is asked again
)

// Machine makes a machine with an address in the hub and boots it; it returns when the first boot is up. The name has at
// most 13 characters.
func (h *Hub) Machine(name string, o MachineOptions) *Machine {
	h.t.Helper()
	h.machines++
	suite := o.Suite
	if suite == "" {
		suite = "bookworm"
	}
	m := &Machine{
		hub: h, t: h.t, name: name, suite: suite, rootfs: h.Rootfs(suite, o.Packages...), dir: filepath.Join(h.dir, name),
		ip: fmt.Sprintf("10.88.0.%d", 10+h.machines), netns: h.name + "-" + name, cgroup: filepath.Join(h.cgroup, name),
	}
	if err := m.makeDisk(); err != nil {
		h.t.Fatalf("making machine %q: %v", name, err)
	}
	for _, command := range []string{
		"ip netns add NS",
		"ip -n NS link set lo up",
		"ip link add v-NAME netns HUB type veth peer name host0 netns NS",
		"ip -n HUB link set v-NAME master br0 up",
		"ip -n NS addr add " + m.ip + "/24 dev host0",
		"ip -n NS link set host0 up",
	} {
		h.must(strings.NewReplacer("NS", m.netns, "NAME", name).Replace(command))
	}
	h.t.Cleanup(m.kill)
	if !o.Off {
		m.Start()
		m.WaitBoot(1)
		m.systemd = m.readSystemd()
	}
	return m
}

func (m *Machine) makeDisk() error {
	for _, folder := range []string{"upper/etc", "work", "root", "share"} {
		if err := os.MkdirAll(filepath.Join(m.dir, folder), 0o755); err != nil {
			return err
		}
	}
	return errors.Join(
		os.WriteFile(filepath.Join(m.dir, "upper/etc/hostname"), []byte(m.name+"\n"), 0o644),
		os.WriteFile(filepath.Join(m.dir, "upper/etc/hosts"), []byte("127.0.0.1 localhost "+m.name+"\n"), 0o644),
	)
}

// Name is the machine's name and host name.
func (m *Machine) Name() string { return m.name }

// IP is the machine's address in the hub.
func (m *Machine) IP() string { return m.ip }

// Suite is the Debian release it runs.
func (m *Machine) Suite() string { return m.suite }

// Systemd is the version of its systemd, 252 for instance; 0 on a machine that was made without power.
func (m *Machine) Systemd() int { return m.systemd }

func (m *Machine) readSystemd() int {
	m.t.Helper()
	fields := strings.Fields(m.MustExec("systemctl", "--version"))
	version, err := strconv.Atoi(fields[1])
	if err != nil {
		m.t.Fatalf("reading the version of systemd on machine %q: %v", m.name, err)
	}
	return version
}

// Share is a folder of the host that the machine sees as /share.
func (m *Machine) Share() string { return filepath.Join(m.dir, "share") }

// Start powers the machine on, at first or again. It reboots whenever it asks to, until it powers itself off or Crash.
func (m *Machine) Start() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.on {
		m.t.Fatalf("starting machine %q: it is on", m.name)
	}
	if err := os.Mkdir(m.cgroup, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		m.t.Fatalf("starting machine %q: %v", m.name, err)
	}
	m.on, m.off = true, make(chan struct{})
	go m.power()
}

// power is the machine while it is on.
func (m *Machine) power() {
	// The machine dies with the thread that starts it (Pdeathsig), so it is this one for all of its boots.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		exit := m.boot()
		m.mu.Lock()
		last := &m.boots[len(m.boots)-1]
		last.Ended, last.Exit = time.Now(), exit
		if exit != exitReboot {
			m.on = false
			close(m.off)
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
	}
}

// boot runs one boot to its end and returns the exit status of systemd-nspawn, -1 when it was killed.
func (m *Machine) boot() int {
	removeCgroupChildren(m.cgroup) // of the boot before
	m.mu.Lock()
	m.boots = append(m.boots, Boot{Started: time.Now()})
	number := len(m.boots)
	m.mu.Unlock()
	console, err := os.OpenFile(m.consolePath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return -1
	}
	defer console.Close()
	group, err := os.Open(m.cgroup)
	if err != nil {
		_, _ = fmt.Fprintln(console, err)
		return -1
	}
	defer group.Close()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private",
		filepath.Join(m.hub.scripts, "boot.sh"), m.rootfs, m.dir, m.name, m.netns)
	cmd.Stdout, cmd.Stderr = console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Pdeathsig: syscall.SIGKILL, UseCgroupFD: true, CgroupFD: int(group.Fd()),
	}
	if err := cmd.Start(); err != nil {
		_, _ = fmt.Fprintln(console, err)
		return -1
	}
	finished := make(chan struct{})
	go m.noteLeader(number, cmd.Process.Pid, finished)
	err = cmd.Wait()
	close(finished)
	if err != nil && cmd.ProcessState.ExitCode() < 0 {
		return -1
	}
	return cmd.ProcessState.ExitCode()
}

// noteLeader waits for the guest's init, a child of systemd-nspawn.
func (m *Machine) noteLeader(boot, nspawn int, finished <-chan struct{}) {
	for {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", nspawn, nspawn))
		for word := range strings.FieldsSeq(string(children)) {
			if pid, err := strconv.Atoi(word); err == nil && isInit(pid) {
				m.mu.Lock()
				m.boots[boot-1].Leader = pid
				m.mu.Unlock()
				return
			}
		}
		select {
		case <-finished:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// isInit says whether the process is number 1 of a pid namespace of its own and has become systemd.
func isInit(pid int) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if strings.TrimSpace(string(name)) != "systemd" {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); fields[0] == "NSpid:" {
			return len(fields) == 3 && fields[2] == "1"
		}
	}
	return false
}

// Boots returns all boots so far.
func (m *Machine) Boots() []Boot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Boot(nil), m.boots...)
}

// On says whether the machine has power.
func (m *Machine) On() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.on
}

// Off is closed when the machine has powered itself off or its power was cut.
func (m *Machine) Off() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.off
}

// leader returns the process of the present init and the number of the boot; 0 when there is none.
func (m *Machine) leader() (pid, boot int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.on || len(m.boots) == 0 {
		return 0, len(m.boots)
	}
	return m.boots[len(m.boots)-1].Leader, len(m.boots)
}

// BootID is the boot id that the machine sees; empty while it is down.
func (m *Machine) BootID() string { return m.read("/proc/sys/kernel/random/boot_id") }

// MachineID is its /etc/machine-id; empty while it is down.
func (m *Machine) MachineID() string { return m.read("/etc/machine-id") }

func (m *Machine) read(path string) string {
	text, err := os.ReadFile(m.path(path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// path is where the host sees a file of the running machine. Absolute symbolic links on the way would lead astray.
func (m *Machine) path(path string) string {
	pid, _ := m.leader()
	if pid == 0 {
		return "/proc/0/none" // does not exist
	}
	return fmt.Sprintf("/proc/%d/root%s", pid, path)
}

// Exists says whether the running machine has the file.
func (m *Machine) Exists(path string) bool {
	_, err := os.Lstat(m.path(path))
	return err == nil
}

// Write creates or replaces a file of the running machine, with its folders.
func (m *Machine) Write(path, content string, mode os.FileMode) {
	m.t.Helper()
	target := m.path(path)
	err := errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, []byte(content), mode))
	if err == nil {
		err = os.Chmod(target, mode) // also past the umask and when it existed
	}
	if err != nil {
		m.t.Fatalf("writing %s of machine %q: %v", path, m.name, err)
	}
}

// WaitBoot waits until boot number n, counted from 1, or a later one is up.
func (m *Machine) WaitBoot(n int) { m.t.Helper(); m.WaitUnit(n, "multi-user.target") }

// WaitUnit waits until the unit is active in boot number n or a later one. A unit, and not "systemctl
// is-system-running": that says "starting" for as long as the agent's boot unit waits for the API server.
func (m *Machine) WaitUnit(n int, unit string) {
	m.t.Helper()
	deadline := time.Now().Add(bootBound)
	for {
		pid, boot := m.leader()
		if pid != 0 && boot >= n {
			if state, _ := m.Exec("systemctl", "is-active", unit); strings.TrimSpace(state) == "active" {
				return
			}
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("machine %q: %s is not active in boot %d after %s; boots %+v; console:\n%s",
				m.name, unit, n, bootBound, m.Boots(), m.Console(20))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Run runs a command as a transient unit of the machine, as anything that talks to logind or polkit must be, and
// returns its standard output. The error carries its standard error.
func (m *Machine) Run(argv ...string) (string, error) {
	return m.RunAs("", argv...)
}

// RunAs is Run as another user.
func (m *Machine) RunAs(user string, argv ...string) (string, error) {
	run := []string{"systemd-run", "--quiet", "--pipe", "--wait", "--collect"}
	if user != "" {
		run = append(run, "--uid="+user)
	}
	return m.Exec(append(append(run, "--"), argv...)...)
}

// Exec runs a command as a bare process in the machine's namespaces: quicker than Run, but part of no unit. It has some
// minutes: on a machine that goes down a command may never end.
func (m *Machine) Exec(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), execBound)
	defer cancel()
	return m.ExecContext(ctx, argv...)
}

// ExecContext is Exec that ends with the context.
func (m *Machine) ExecContext(ctx context.Context, argv ...string) (string, error) {
	pid, _ := m.leader()
	if pid == 0 {
		return "", fmt.Errorf("running %q on machine %q: it is down", argv[0], m.name)
	}
	enter := []string{"--target", strconv.Itoa(pid), "--all", "--root", "--wdns=/", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, argv...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root"}
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Start()
	if err == nil {
		ended := make(chan struct{})
		go keepGoing(cmd.Process, ended)
		err = cmd.Wait()
		close(ended)
	}
	if err != nil {
		err = fmt.Errorf("%s on machine %q: %w: %s", strings.Join(argv, " "), m.name, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), err
}

// keepGoing keeps nsenter from sleeping for ever. A machine that goes down stops all of its processes before it kills
// them; nsenter stops itself with its child and does not reap it, and the machine waits for that in turn.
func keepGoing(nsenter *os.Process, ended <-chan struct{}) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
			_ = nsenter.Signal(syscall.SIGCONT)
		}
	}
}

// MustRun is Run that fails the test on an error.
func (m *Machine) MustRun(argv ...string) string {
	m.t.Helper()
	out, err := m.Run(argv...)
	if err != nil {
		m.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// MustExec is Exec that fails the test on an error.
func (m *Machine) MustExec(argv ...string) string {
	m.t.Helper()
	out, err := m.Exec(argv...)
	if err != nil {
		m.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// Reboot asks logind for a reboot and returns when the next boot is up.
func (m *Machine) Reboot() {
	m.t.Helper()
	next := len(m.Boots()) + 1
	// The answer may be lost in the shutdown that it starts.
	_, _ = m.Run("busctl", "call", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager",
		"Reboot", "b", "false")
	m.WaitBoot(next)
}

// Crash cuts the power: everything in the machine dies at once, its disk stays.
func (m *Machine) Crash() {
	m.t.Helper()
	if !m.On() {
		return
	}
	off := m.Off()
	killCgroup(m.cgroup)
	select {
	case <-off:
	case <-time.After(10 * time.Second):
		m.t.Fatalf("machine %q survived losing its power", m.name)
	}
}

// Down powers the machine off in order, by force after 15 s.
func (m *Machine) Down() {
	m.t.Helper()
	pid, _ := m.leader()
	if pid == 0 {
		m.Crash()
		return
	}
	off := m.Off()
	_ = unix.Kill(pid, unix.Signal(34+4)) // SIGRTMIN+4
	select {
	case <-off:
	case <-time.After(15 * time.Second):
		m.Crash()
	}
}

func (m *Machine) kill() {
	if m.t.Failed() {
		m.t.Logf("machine %q: boots %+v; last lines of its console:\n%s", m.name, m.Boots(), m.Console(15))
	}
	killCgroup(m.cgroup)
	if off := m.Off(); off != nil {
		<-off
	}
}

// Console returns the last lines of what the machine wrote to its console.
func (m *Machine) Console(lines int) string {
	text, err := os.ReadFile(m.consolePath())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (m *Machine) consolePath() string { return filepath.Join(m.dir, "console.log") }

// Journal returns lines of the journal of every boot so far, of the given units or of all.
func (m *Machine) Journal(units ...string) string {
	argv := []string{"journalctl", "--no-pager", "--output=short-iso-precise", "--quiet"}
	for _, unit := range units {
		argv = append(argv, "--unit="+unit)
	}
	out, err := m.Exec(argv...)
	if err != nil {
		return err.Error()
	}
	return out
}

func removeCgroupChildren(path string) {
	entries, _ := os.ReadDir(path)
	for _, entry := range entries {
		if entry.IsDir() {
			removeCgroup(filepath.Join(path, entry.Name()))
		}
	}
}
