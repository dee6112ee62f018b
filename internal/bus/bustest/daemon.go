// SPDX-License-Identifier: Apache-2.0

// Package bustest gives tests a bus of their own: a private dbus-daemon that can be killed and started again on the
// same address, and services on it that can be absent, refuse, hang, hang up, and be impersonated. Tests only.
package bustest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/xml"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// Daemon is a private dbus-daemon. Everything is allowed on it unless StartPolicy said otherwise.
type Daemon struct {
	Address string

	t      testing.TB
	config string
	mu     sync.Mutex
	cmd    *exec.Cmd
}

// Start runs a dbus-daemon until the test ends.
func Start(t testing.TB) *Daemon {
	t.Helper()
	return StartPolicy(t, "")
}

// StartPolicy is Start with further <policy> elements, which come after the permissive one and so win over it.
func StartPolicy(t testing.TB, policy string) *Daemon {
	t.Helper()
	dir := SocketDir(t)
	d := &Daemon{Address: "unix:path=" + filepath.Join(dir, "bus"), t: t, config: filepath.Join(dir, "bus.conf")}
	address, err := xml.Marshal(d.Address)
	if err != nil {
		t.Fatal(err)
	}
	conf := `<busconfig>
  <listen>` + string(address[len("<string>"):len(address)-len("</string>")]) + `</listen>
  <auth>EXTERNAL</auth>
  <servicedir>` + filepath.Join(dir, "services") + `</servicedir>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/><allow receive_type="method_return"/>
    <allow receive_type="error"/><allow receive_type="signal"/>
  </policy>
  ` + policy + `
</busconfig>
`
	if err := os.WriteFile(d.config, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	t.Cleanup(d.Kill)
	return d
}

// Kill ends the daemon at once; every client loses its connection.
func (d *Daemon) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
	d.cmd = nil
}

// Pause stops the daemon without ending it: it still accepts connections and never answers. Resume continues it.
func (d *Daemon) Pause() { d.signal(syscall.SIGSTOP) }

// Resume ends Pause.
func (d *Daemon) Resume() { d.signal(syscall.SIGCONT) }

func (d *Daemon) signal(sig syscall.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd != nil {
		_ = d.cmd.Process.Signal(sig)
	}
}

// Restart starts the daemon on the same address and returns once it listens.
func (d *Daemon) Restart() {
	d.t.Helper()
	d.Kill()
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = os.Remove(d.Address[len("unix:path="):])
	cmd := exec.Command("dbus-daemon", "--config-file="+d.config, "--nofork", "--nopidfile", "--print-address=1")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints // about the limit of open files, always, when it does not run as root
	// The daemon must not outlive a test binary that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatalf("starting dbus-daemon (Debian package dbus-daemon): %v", err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it prints its address once it listens
		_ = cmd.Wait()
		d.t.Fatalf("waiting for dbus-daemon: %v\n%s", err, complaints.String())
	}
	d.cmd = cmd
}

// Connect returns a plain connection that is closed when the test ends.
func (d *Daemon) Connect() *dbus.Conn {
	d.t.Helper()
	conn, err := dbus.Connect(d.Address, dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// SocketDir is a directory for sockets of a test: a path may have 107 bytes, and t.TempDir's holds the test's name.
func SocketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Silent is the address of a socket that accepts connections and never says a word.
func Silent(t testing.TB) string {
	t.Helper()
	path := filepath.Join(SocketDir(t), "silent")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
	}()
	t.Cleanup(func() { cancel(); _ = l.Close() })
	return "unix:path=" + path
}

// Eventually waits up to 10 s for cond and fails the test with what otherwise.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited 10 s for: %s", what)
		}
	}
}

// OpenFiles counts the descriptors of this process.
func OpenFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Stranger is a local user without any right of its own who sends what it likes.
type Stranger struct {
	t    testing.TB
	conn *dbus.Conn
}

// NewStranger connects one.
func NewStranger(d *Daemon) *Stranger { return &Stranger{d.t, d.Connect()} }

// Broadcast sends a signal to everyone whose match lets it in.
func (s *Stranger) Broadcast(path, name string, args ...any) {
	s.t.Helper()
	if err := s.conn.Emit(dbus.ObjectPath(path), name, args...); err != nil {
		s.t.Fatal(err)
	}
}

// Unicast sends a signal to each connection on the bus by its unique name: no match rule is needed to receive it.
func (s *Stranger) Unicast(path, name string, args ...any) {
	s.t.Helper()
	for _, dest := range s.Others() {
		s.Send(dest, path, name, args...)
	}
}

// Others are the unique names of all other connections.
func (s *Stranger) Others() []string {
	s.t.Helper()
	var names, others []string
	if err := s.conn.BusObject().Call("org.freedesktop.DBus.ListNames", 0).Store(&names); err != nil {
		s.t.Fatal(err)
	}
	for _, other := range names {
		if other[0] == ':' && other != s.conn.Names()[0] {
			others = append(others, other)
		}
	}
	return others
}

// Send sends a signal to one connection.
func (s *Stranger) Send(dest, path, name string, args ...any) {
	emitTo(s.conn, dest, path, name, args...)
}

// Forge broadcasts and unicasts.
func (s *Stranger) Forge(path, name string, args ...any) {
	s.t.Helper()
	s.Broadcast(path, name, args...)
	s.Unicast(path, name, args...)
}

func emitTo(conn *dbus.Conn, dest, path, name string, args ...any) {
	iface, member := split(name)
	msg := &dbus.Message{
		Type: dbus.TypeSignal,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: dbus.MakeVariant(dest),
			dbus.FieldPath:        dbus.MakeVariant(dbus.ObjectPath(path)),
			dbus.FieldInterface:   dbus.MakeVariant(iface),
			dbus.FieldMember:      dbus.MakeVariant(member),
		},
		Body: args,
	}
	if len(args) > 0 {
		msg.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(args...))
	}
	conn.Send(msg, nil)
}
