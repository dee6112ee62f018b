// SPDX-License-Identifier: Apache-2.0

// Package lab runs the real agent binary against a real API server and a private D-Bus with a faked logind and systemd,
// so that a whole cycle takes seconds and every fault can be arranged. What only a booted machine shows is in test/e2e.
package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/host"
	"github.com/kured-agent/kured-agent/internal/report"
	"github.com/kured-agent/kured-agent/test/cluster"
)

// Build builds the agent as the packages do, once a process.
var Build = sync.OnceValues(func() (string, error) {
	root, err := cluster.ModuleRoot()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "kured-agent-lab-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kured-agent")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-gcflags=all=-l", // as packaging/build.sh does
		"-ldflags", "-s -w -X main.version=lab", "-o", path, "./cmd/kured-agent")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the agent: %w\n%s", err, out)
	}
	return path, nil
})

// Machine is a host in a folder: its files, its bus, its kubelet, and the agent's processes.
type Machine struct {
	t       testing.TB
	Cluster *cluster.Cluster
	Kubelet *cluster.Kubelet
	Name    string // of the Node
	Pool    string // of its own, so that tests do not wait for each other
	Root    string
	Bus     *bustest.Daemon
	Login   *bustest.FakeLogin1
	Systemd *bustest.FakeSystemd1

	booted time.Duration // uptime of this host
	flags  []string
	env    []string
	bin    string
	boot   int
	mu     sync.Mutex
	log    bytes.Buffer
	agent  *process
}

// Options change a machine from the usual.
type Options struct {
	Pool    string   // empty: one of the machine's own, with one slot
	Config  string   // appended to the configuration
	Flags   []string // of every command
	Env     []string // of every command
	Bus     *bustest.Daemon
	Kubelet cluster.KubeletOptions
}

const machineID = "00000000000000000000000000000000"

// New makes a machine that is up, with a Node that is Ready and a credential bound to it. The agent is not started.
func New(t testing.TB, c *cluster.Cluster, name string, o Options) *Machine {
	t.Helper()
	bin, err := Build()
	if err != nil {
		t.Fatal(err)
	}
	c = c.For(t)
	m := &Machine{t: t, Cluster: c, Name: name, Pool: o.Pool, Root: t.TempDir(), Bus: o.Bus, bin: bin, flags: o.Flags, env: o.Env}
	if m.Bus == nil {
		m.Bus = bustest.Start(t)
	}
	m.Login, m.Systemd = bustest.NewLogin1(m.Bus), bustest.NewSystemd1(m.Bus)
	m.Systemd.SetUnit("kured-agent.service", bustest.FakeUnit{Load: "loaded", Active: "active", Sub: "running"})
	m.Systemd.SetUnit("kured-agent-boot.service", bustest.FakeUnit{Load: "loaded", Active: "inactive", Sub: "dead"})
	m.Systemd.SetUnit("boot-complete.target", bustest.FakeUnit{Load: "loaded", Active: "active", Sub: "active"})
	if m.Pool == "" {
		m.Pool = name
		c.MustKubectl("-n", "kured-agent", "patch", "configmap", "kured-agent-pools", "--type=merge", "-p",
			fmt.Sprintf(`{"data":{%q:"1"}}`, name))
	}
	id := (machineID + fmt.Sprintf("%x", name))[len(fmt.Sprintf("%x", name)):]
	o.Kubelet.MachineID, o.Kubelet.BootID = id, m.nextBoot()
	m.Write("/etc/machine-id", id+"\n", 0o644)
	m.Kubelet = c.NewKubelet(name, o.Kubelet)
	kubeconfig, err := os.ReadFile(c.AgentKubeconfig(name))
	if err != nil {
		t.Fatal(err)
	}
	m.Write("/etc/kured/kubeconfig", string(kubeconfig), 0o600)
	m.Configure(o.Config)
	for _, dir := range []string{"/run/kured-agent", "/var/lib/kured-agent"} {
		if err := os.MkdirAll(m.Path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		m.Kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, m.Log())
		}
	})
	return m
}

// Configure writes the configuration: short times, and what the test adds.
func (m *Machine) Configure(extra string) {
	m.Write("/etc/kured/config.toml", fmt.Sprintf(`
[node]
name = %q
[cluster]
kubeconfig = %q
[slot]
pool = %q
[reboot]
min_interval = "0s"
[boot]
settle = "1s"
%s
`, m.Name, m.Path("/etc/kured/kubeconfig"), m.Pool, extra), 0o644)
}

// Path is a path of the machine on this host.
func (m *Machine) Path(p string) string { return filepath.Join(m.Root, p) }

// Write writes one of the machine's files.
func (m *Machine) Write(path, content string, mode os.FileMode) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.Path(path)), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.Path(path), []byte(content), mode); err != nil {
		m.t.Fatal(err)
	}
}

// Require writes /run/reboot-required with the packages; Unrequire removes it.
func (m *Machine) Require(packages ...string) {
	m.Write("/run/reboot-required.pkgs", strings.Join(packages, "\n")+"\n", 0o644)
	m.Write("/run/reboot-required", "*** System restart required ***\n", 0o644)
}

// Unrequire takes the files of Require away.
func (m *Machine) Unrequire() {
	for _, f := range []string{"/run/reboot-required", "/run/reboot-required.pkgs"} {
		if err := os.Remove(m.Path(f)); err != nil && !os.IsNotExist(err) {
			m.t.Fatal(err)
		}
	}
}

func (m *Machine) nextBoot() string {
	m.boot++
	m.booted = host.Uptime() - 10*time.Second
	id := fmt.Sprintf("%08x-0000-4000-8000-%012x", m.boot, time.Now().UnixNano()&0xffffffffffff)
	m.Write("/proc/sys/kernel/random/boot_id", id+"\n", 0o644)
	return id
}

type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	code int
}

// HoldSlot keeps the machine waiting: the only slot of its pool is somebody else's.
func (m *Machine) HoldSlot() (release func()) {
	m.t.Helper()
	m.Cluster.Apply(fmt.Sprintf(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",
"metadata":{"name":"slot-%[1]s-0","namespace":"kured-agent","labels":{"kured-agent/pool":%[1]q}},
"spec":{"holderIdentity":"somebody-else","acquireTime":"2026-11-30T12:00:00.000000Z"}}`, m.Pool))
	return func() { m.Cluster.MustKubectl("-n", "kured-agent", "delete", "lease", "slot-"+m.Pool+"-0") }
}

// command is the agent's binary with the files, the bus and the clock of this machine.
func (m *Machine) command(ctx context.Context, args ...string) *exec.Cmd {
	common := []string{"--root", m.Root, "--config", m.Path("/etc/kured/config.toml"), "--booted", m.booted.String()}
	cmd := exec.CommandContext(ctx, m.bin, slices.Concat(common, m.flags, args)...)
	cmd.Env = append(append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+m.Bus.Address), m.env...)
	return cmd
}

func (m *Machine) spawn(args ...string) *process {
	m.t.Helper()
	cmd := m.command(context.Background(), append([]string{"--debug"}, args...)...)
	cmd.Stdout, cmd.Stderr = (*logWriter)(m), (*logWriter)(m)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		p.code = cmd.ProcessState.ExitCode()
		close(p.done)
	}()
	return p
}

type logWriter Machine

func (w *logWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

// Log is what all processes of the machine have written so far.
func (m *Machine) Log() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.log.String()
}

// Start starts the agent.
func (m *Machine) Start() { m.t.Helper(); m.agent = m.spawn("run") }

// Pid of the running agent.
func (m *Machine) Pid() int { return m.agent.cmd.Process.Pid }

// Kill ends the agent as the kernel would.
func (m *Machine) Kill() { m.end(syscall.SIGKILL) }

// Stop ends the agent as `systemctl stop` would, and returns its exit code.
func (m *Machine) Stop() int { return m.end(syscall.SIGTERM) }

// Reload is `systemctl reload`.
func (m *Machine) Reload() {
	if err := m.agent.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		m.t.Fatal(err)
	}
}

func (m *Machine) end(sig syscall.Signal) int {
	if m.agent == nil {
		return 0
	}
	_ = m.agent.cmd.Process.Signal(sig)
	code := m.wait(m.agent)
	m.agent = nil
	return code
}

func (m *Machine) wait(p *process) int {
	select {
	case <-p.done:
	case <-time.After(90 * time.Second):
		_ = p.cmd.Process.Kill()
		m.t.Errorf("%q did not end", p.cmd.Args)
		<-p.done
	}
	return p.code
}

// WaitEnd waits until the agent ends by itself and returns its exit code.
func (m *Machine) WaitEnd() int {
	code := m.wait(m.agent)
	m.agent = nil
	return code
}

// Command runs a command of the agent to its end.
func (m *Machine) Command(args ...string) (output string, code int) {
	m.t.Helper()
	return m.Pipe("", args...)
}

// Pipe runs a command of the agent that reads this.
func (m *Machine) Pipe(input string, args ...string) (output string, code int) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := m.command(ctx, args...)
	cmd.Stdin = strings.NewReader(input)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// Reboot is a boot: every process ends at once, /run is empty, the kubelet and systemd are new, and the boot unit and
// the agent start.
func (m *Machine) Reboot() {
	m.t.Helper()
	m.PowerOff()
	m.PowerOn()
}

// PowerOff ends every process at once.
func (m *Machine) PowerOff() {
	m.Kill()
	m.Kubelet.Down()
	if err := os.RemoveAll(m.Path("/run")); err != nil {
		m.t.Fatal(err)
	}
}

// PowerOn boots: the boot unit, the agent and the kubelet start, in this order. It does not wait for the agent.
func (m *Machine) PowerOn() {
	m.t.Helper()
	m.Kubelet.Up(m.Boot())
}

// Boot is PowerOn without the kubelet. It returns the boot id for Kubelet.Up.
func (m *Machine) Boot() string {
	m.t.Helper()
	if err := os.MkdirAll(m.Path("/run/kured-agent"), 0o755); err != nil {
		m.t.Fatal(err)
	}
	boot := m.nextBoot()
	m.Login.PrepareForShutdown(false)
	m.StartBootUnit()
	m.Start()
	return boot
}

// StartBootUnit runs `kured-agent boot` as systemd would show it.
func (m *Machine) StartBootUnit() {
	m.Systemd.SetUnit("kured-agent-boot.service", bustest.FakeUnit{Load: "loaded", Active: "activating", Sub: "start"})
	p := m.spawn("boot")
	go func() {
		<-p.done
		m.Systemd.SetUnit("kured-agent-boot.service", bustest.FakeUnit{Load: "loaded", Active: "inactive", Sub: "dead"})
	}()
	m.t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.done })
}

// Status asks the agent; ok is false when none answers.
func (m *Machine) Status() (u report.Update, ok bool) {
	out, code := m.Command("status", "--json")
	if code != 0 {
		return u, false
	}
	if err := json.Unmarshal([]byte(out), &u); err != nil {
		m.t.Errorf("status --json: %v\n%s", err, out)
	}
	return u, true
}

// WaitPhase waits until the agent says that it is in one of the phases.
func (m *Machine) WaitPhase(phases ...string) report.Update {
	m.t.Helper()
	var u report.Update
	m.Cluster.Eventually(fmt.Sprintf("phase %v", phases), 60*time.Second, func() bool {
		u, _ = m.Status()
		return slices.Contains(phases, u.Phase)
	})
	return u
}

// Asked is how often logind was asked for a reboot.
func (m *Machine) Asked() int {
	return len(m.Login.Calls("RebootWithFlags")) + len(m.Login.Calls("Reboot"))
}

// WaitAsked waits until logind was asked for the n-th reboot, which it then begins.
func (m *Machine) WaitAsked(n int) {
	m.t.Helper()
	m.Cluster.Eventually(fmt.Sprintf("reboot %d asked of logind", n), 60*time.Second,
		func() bool { return m.Asked() >= n })
}

// Marks says what of ours is on the Node: taint, cordon, marker, slot.
func (m *Machine) Marks() (taint, cordon, marker, slot bool) {
	n := m.Cluster.NodeOrNil(m.Name)
	if n == nil {
		return false, false, false, false
	}
	for _, t := range n.Spec.Taints {
		taint = taint || t.Key == "kured-agent/reboot-required" && t.Effect == "PreferNoSchedule" && t.Value == ""
	}
	_, marker = n.Annotations["kured-agent/cordoned"]
	for _, l := range m.Cluster.Leases("kured-agent") {
		slot = slot || l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == m.Name
	}
	return taint, n.Spec.Unschedulable, marker, slot
}

// WaitClean waits until nothing of ours is left.
func (m *Machine) WaitClean() {
	m.t.Helper()
	m.Cluster.Eventually(m.Name+" clean", 60*time.Second, func() bool {
		taint, _, marker, slot := m.Marks()
		return !taint && !marker && !slot
	})
}

// WaitTainted waits for our taint.
func (m *Machine) WaitTainted() {
	m.t.Helper()
	m.Cluster.Eventually(m.Name+" tainted", 30*time.Second, func() bool { taint, _, _, _ := m.Marks(); return taint })
}
