// SPDX-License-Identifier: Apache-2.0

package bus

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
)

const (
	updater     = "com.example.Updater"
	updaterPath = "/com/example/Updater"
)

var updaterMatch = Match{Sender: updater, Path: updaterPath, Interface: updater, Member: "Changed"}

func connected(t *testing.T, d *bustest.Daemon) *Bus {
	t.Helper()
	b := New(Options{Address: d.Address})
	bustest.Connect(t, b)
	return b
}

// log collects first arguments of signals.
type log struct {
	mu   sync.Mutex
	args []any
}

func (l *log) add(s Signal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var arg any
	if len(s.Body) > 0 {
		arg = s.Body[0]
	}
	l.args = append(l.args, arg)
}

func (l *log) last() any {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.args) == 0 {
		return nil
	}
	return l.args[len(l.args)-1]
}

func (l *log) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.args)
}

// watchUpdater watches and returns once the match stands and the owner is known.
func watchUpdater(t *testing.T, b *Bus) *log {
	t.Helper()
	got, changes := &log{}, make(chan struct{}, 100)
	defer b.OnChange(func() { changes <- struct{}{} })()
	b.Watch(updaterMatch, got.add)
	select {
	case <-changes:
	case <-time.After(10 * time.Second):
		t.Fatal("no OnChange after a new watch")
	}
	return got
}

func TestSignalsOfTheOwnerArriveInOrderAndInFull(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	got := watchUpdater(t, connected(t, d))
	for i := range int32(1000) {
		service.Emit(updaterPath, updater+".Changed", i)
	}
	bustest.Eventually(t, "the last signal", func() bool { return got.last() == int32(999) })
	previous := int32(-1)
	for _, arg := range got.args {
		if arg.(int32) <= previous {
			t.Fatalf("%d came after %d", arg, previous)
		}
		previous = arg.(int32)
	}
}

func TestAnOverflowKeepsTheNewestBodyAndSaysReadAgain(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := connected(t, d)
	got, entered, release := &log{}, make(chan struct{}), make(chan struct{})
	var once sync.Once
	settled := make(chan struct{}, 100)
	stop := b.OnChange(func() { settled <- struct{}{} })
	b.Watch(updaterMatch, func(s Signal) {
		once.Do(func() { close(entered); <-release })
		got.add(s)
	})
	<-settled
	stop()
	service.Emit(updaterPath, updater+".Changed", int32(-1))
	<-entered

	var again atomic.Int32
	b.OnChange(func() { again.Add(1) })
	for i := range int32(5000) {
		service.Emit(updaterPath, updater+".Changed", i)
	}
	bustest.Eventually(t, "all signals read from the socket", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		q := b.session.queue
		return len(q) > 0 && q[len(q)-1].signal.Body[0] == int32(4999)
	})
	b.mu.Lock()
	queued := len(b.session.queue)
	b.mu.Unlock()
	if queued > maxQueue {
		t.Errorf("%d signals are queued, the bound is %d", queued, maxQueue)
	}
	close(release)
	bustest.Eventually(t, "the newest signal", func() bool { return got.last() == int32(4999) })
	bustest.Eventually(t, "read again", func() bool { return again.Load() > 0 })
}

func TestForgedSignalsAreDroppedAndCounted(t *testing.T) {
	for _, owned := range []bool{true, false} {
		d := bustest.Start(t)
		service := bustest.NewService(d, updater)
		if !owned {
			service.Disconnect()
		}
		b := connected(t, d)
		got := watchUpdater(t, b)
		stranger := bustest.NewStranger(d)
		for _, body := range [][]any{{}, {int32(1)}, {"NEED_REBOOT"}} {
			stranger.Forge(updaterPath, updater+".Changed", body...)
		}
		bustest.Eventually(t, "three unicast forgeries counted", func() bool { return b.Dropped() == 3 })
		if got.len() != 0 {
			t.Errorf("owned=%v: a forged signal was delivered", owned)
		}
	}
}

func TestAForgedNameOwnerChangedDoesNotMakeAStrangerTheOwner(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := connected(t, d)
	got := watchUpdater(t, b)
	thief := d.Connect().Names()[0]
	stranger := bustest.NewStranger(d)
	stranger.Forge(busPath, busName+".NameOwnerChanged", updater, "", thief)
	stranger.Forge(busPath, busName+".NameOwnerChanged")
	bustest.Eventually(t, "the forgeries counted", func() bool { return b.Dropped() >= 2 })
	service.Emit(updaterPath, updater+".Changed", "true owner")
	bustest.Eventually(t, "the true owner heard", func() bool { return got.last() == "true owner" })
}

func TestAServiceThatRestartsAndSignalsAtOnceIsHeard(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := connected(t, d)
	got := watchUpdater(t, b)
	for i := range int32(20) {
		service.Connect()
		service.Emit(updaterPath, updater+".Changed", i)
		bustest.Eventually(t, "the signal of the new owner", func() bool { return got.last() == i })
	}
	if n := b.Dropped(); n != 0 {
		t.Errorf("%d honest signals dropped", n)
	}
}

func TestAfterTheBusWasKilledEverythingStandsAgain(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := New(Options{Address: d.Address})
	exports := &exporter{}
	b.Serve("org.kured.Agent1", exports.export)
	var changes atomic.Int32
	b.OnChange(func() { changes.Add(1) })
	got := &log{}
	b.Watch(updaterMatch, got.add)
	bustest.Run(t, b)
	for round := range int32(3) {
		bustest.Eventually(t, "a connection", b.Connected)
		bustest.Eventually(t, "the name", func() bool { return b.Serving("org.kured.Agent1") == nil })
		bustest.Eventually(t, "read again", func() bool { return changes.Load() > 0 })
		var s string
		err := d.Connect().Object("org.kured.Agent1", "/org/kured/Agent1").Call("org.kured.Agent1.Hello", 0).Store(&s)
		if err != nil || s != "hello" {
			t.Fatalf("round %d: the object answers %q, %v", round, s, err)
		}
		service.Connect()
		service.Emit(updaterPath, updater+".Changed", round)
		bustest.Eventually(t, "a signal", func() bool { return got.last() == round })

		service.Disconnect()
		bustest.Eventually(t, "the owner gone", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.session != nil && b.session.owners[updater].unique == ""
		})
		d.Kill()
		bustest.Eventually(t, "the loss", func() bool { return !b.Connected() })
		call := Call{Destination: updater, Path: "/", Member: "a.b.C"}
		if _, err := b.Call(t.Context(), call); !errors.Is(err, ErrNotConnected) {
			t.Errorf("a call without a bus: %v", err)
		}
		changes.Store(0)
		d.Restart()
	}
}

type exporter struct{}

func (*exporter) Hello() (string, *dbus.Error) { return "hello", nil }

func (e *exporter) export(conn *dbus.Conn) error {
	return conn.Export(e, "/org/kured/Agent1", "org.kured.Agent1")
}

func TestANameHeldByAnotherIsTakenWhenItIsFree(t *testing.T) {
	d := bustest.Start(t)
	other := bustest.NewService(d, "org.kured.Agent1")
	b := connected(t, d)
	b.Serve("org.kured.Agent1", func(*dbus.Conn) error { return nil })
	bustest.Eventually(t, "the refusal", func() bool {
		err := b.Serving("org.kured.Agent1")
		return err != nil && !errors.Is(err, ErrNotConnected)
	})
	other.Disconnect()
	bustest.Eventually(t, "the name", func() bool { return b.Serving("org.kured.Agent1") == nil })
}

func TestANameDeniedByPolicyIsToldAndTheRestWorks(t *testing.T) {
	d := bustest.StartPolicy(t, `<policy context="mandatory"><deny own="org.kured.Agent1"/></policy>`)
	service := bustest.NewService(d, updater)
	b := New(Options{Address: d.Address})
	b.Serve("org.kured.Agent1", func(*dbus.Conn) error { return nil })
	bustest.Run(t, b)
	<-b.Ready()
	got := watchUpdater(t, b)
	var refused dbus.Error
	if err := b.Serving("org.kured.Agent1"); !errors.As(err, &refused) ||
		refused.Name != "org.freedesktop.DBus.Error.AccessDenied" {
		t.Errorf("Serving = %v", err)
	}
	service.Emit(updaterPath, updater+".Changed", "x")
	bustest.Eventually(t, "a signal", func() bool { return got.last() == "x" })
}

func TestABusThatAcceptsAndNeverAnswersHoldsNobody(t *testing.T) {
	b := New(Options{Address: bustest.Silent(t)})
	b.timeout = 50 * time.Millisecond
	began := time.Now()
	if _, err := b.connect(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Errorf("connecting took %v: %v", time.Since(began), err)
	}
	b.timeout = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := b.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestABusThatHangsLaterTimesCallsOutAndRecovers(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewService(d, updater).SetProperty(updaterPath, updater, "Level", uint32(3))
	b := connected(t, d)
	d.Pause()
	_, err := b.Call(t.Context(), Call{
		Destination: busName, Path: busPath, Member: busName + ".GetId", Timeout: 20 * time.Millisecond,
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call to a hung bus: %v", err)
	}
	d.Resume()
	v, err := b.Get(t.Context(), updater, updaterPath, updater, "Level")
	if err != nil || v.Value() != uint32(3) {
		t.Errorf("Get = %v, %v", v, err)
	}
}

func TestAFullSocketOfAHungBusEndsTheConnection(t *testing.T) {
	here, there := net.Pipe() // nobody reads: the first write blocks
	defer there.Close()
	l := &link{Conn: deadline{here}}
	if _, err := l.Write([]byte("x")); err == nil {
		t.Fatal("the write came back without an error")
	}
	if _, err := here.Write(nil); err == nil {
		t.Error("the socket is still open after a broken write")
	}
}

// deadline makes every write deadline a short one.
type deadline struct{ net.Conn }

func (d deadline) SetWriteDeadline(time.Time) error {
	return d.Conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
}

func TestABusThatHangsUpAtOnceIsNotAskedInASpin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	accepted := make(chan struct{}, 1000)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			accepted <- struct{}{}
		}
	}()
	bustest.Run(t, New(Options{Address: "unix:path=" + path}))
	for range 4 {
		<-accepted
	}
	// Waits of at least 0.1, 0.2 and 0.4 s lie between four attempts.
	if took := time.Since(began); took < 700*time.Millisecond {
		t.Errorf("four attempts within %v", took)
	}
}

func TestErrorsTellWhetherTheCallMayHaveBeenCarriedOut(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	b := connected(t, d)
	call := func(timeout time.Duration) error {
		_, err := b.Call(t.Context(), Call{
			Destination: "org.freedesktop.login1", Path: "/org/freedesktop/login1",
			Member: "org.freedesktop.login1.Manager.CanReboot", Timeout: timeout,
		})
		return err
	}
	name := func(err error) string {
		var reply dbus.Error
		errors.As(err, &reply)
		return reply.Name
	}
	if err := call(0); err != nil {
		t.Errorf("an answer: %v", err)
	}
	login.On("CanReboot", bustest.Refuse("com.example.No", "because"))
	if err := call(0); name(err) != "com.example.No" {
		t.Errorf("a refusal: %v", err)
	}
	login.On("CanReboot", bustest.Reply{Hang: true})
	if err := call(20 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	login.On("CanReboot", bustest.Reply{HangUp: true})
	if err := call(0); name(err) != "org.freedesktop.DBus.Error.NoReply" {
		t.Errorf("the service hung up: %v", err)
	}
	if err := call(0); name(err) != "org.freedesktop.DBus.Error.ServiceUnknown" {
		t.Errorf("no service: %v", err)
	}
	login.On("CanReboot", bustest.Reply{Hang: true})
	login.Connect()
	before := len(login.Calls("CanReboot"))
	lost := make(chan error)
	go func() { lost <- call(0) }()
	bustest.Eventually(t, "the call", func() bool { return len(login.Calls("CanReboot")) > before })
	d.Kill()
	if err := <-lost; !errors.Is(err, ErrLost) {
		t.Errorf("the bus died after the call was sent: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Call(ended, Call{Destination: "a.b", Path: "/", Member: "a.b.C"}); !errors.Is(err, ErrNotConnected) {
		t.Errorf("an ended context: %v", err)
	}
}

func TestAStoppedWatchHearsNothingMore(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := connected(t, d)
	kept := watchUpdater(t, b)
	gone := &log{}
	stop := b.Watch(updaterMatch, gone.add)
	stop()
	service.Emit(updaterPath, updater+".Changed", "x")
	bustest.Eventually(t, "the other watch", func() bool { return kept.len() == 1 })
	if gone.len() != 0 {
		t.Error("a stopped watch was called")
	}
}

func TestMatchRulesAreQuoted(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := connected(t, d)
	m := updaterMatch
	m.Arg0 = `it's, 'a' quote`
	got, changes := &log{}, make(chan struct{}, 100)
	b.OnChange(func() { changes <- struct{}{} })
	b.Watch(m, got.add)
	<-changes
	service.Emit(updaterPath, updater+".Changed", "other")
	service.Emit(updaterPath, updater+".Changed", m.Arg0)
	bustest.Eventually(t, "the signal", func() bool { return got.last() == m.Arg0 })
	if got.len() != 1 {
		t.Errorf("%d signals, want 1", got.len())
	}
}

func TestBusAddressesAreReadOrRefused(t *testing.T) {
	for address, want := range map[string]string{
		"unix:path=/run/dbus/system_bus_socket": "/run/dbus/system_bus_socket",
		"unix:abstract=/tmp/x,guid=00":          "@/tmp/x",
		"unix:guid=00,path=/tmp/a%20b":          "/tmp/a b",
		"unix:tmpdir=/tmp":                      "",
		"unix:path=":                            "",
		"unix:path=%zz":                         "",
		"tcp:host=localhost":                    "",
		"":                                      "",
	} {
		got, err := socketPath(address)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("socketPath(%q) = %q, %v", address, got, err)
		}
	}
}

func FuzzSocketPath(f *testing.F) {
	f.Add("unix:path=/run/x")
	f.Fuzz(func(t *testing.T, address string) {
		if path, err := socketPath(address); err == nil && path == "" {
			t.Errorf("%q gives an empty path", address)
		}
	})
}

func FuzzDeliver(f *testing.F) {
	f.Add(busName, "NameOwnerChanged", ":1.1", "/", updater, "", ":1.2", uint8(3))
	f.Add(updater, "Changed", ":1.1", updaterPath, "x", "y", "z", uint8(0))
	f.Fuzz(func(t *testing.T, iface, member, sender, path, a, b, c string, n uint8) {
		bus := New(Options{})
		s := newSession(bus)
		s.owners[updater] = &owner{unique: ":1.1"}
		bus.Watch(Match{Sender: updater, Arg0: "x"}, func(Signal) {})
		body := []any{a, b, c, 7, nil}[:n%6]
		s.DeliverSignal(iface, member, &dbus.Signal{Sender: sender, Path: dbus.ObjectPath(path), Body: body})
		if len(s.queue) > 0 && sender != ":1.1" {
			t.Errorf("%q was accepted as a sender", sender)
		}
	})
}

// FuzzBodies gives every decoder of this package a body of any shape, from the true sender and from another.
func FuzzBodies(f *testing.F) {
	f.Add([]byte{}, true)
	f.Add([]byte("\x03\x00\x13com.example.Updater\x00\x00\x00\x04:1.2"), true) // NameOwnerChanged
	f.Add([]byte("\x03\x00\x13com.example.Updater\x00\x00\x00\x04:6.6"), false)
	f.Add([]byte("\x01\x0e\x0a\x01\x07"), true) // v
	f.Add([]byte("\x01\x0a\x01\x01"), true)     // u
	f.Fuzz(func(t *testing.T, data []byte, honest bool) {
		body := bustest.Body(data)
		b := New(Options{})
		s := newSession(b)
		s.owners[updater] = &owner{unique: ":1.1"}
		b.Watch(Match{Sender: updater, Arg0: "x"}, func(Signal) {})
		bus, service := ":6.6", ":6.6"
		if honest {
			bus, service = busName, ":1.1"
		}
		s.DeliverSignal(updater, "Changed", &dbus.Signal{Sender: service, Path: updaterPath, Body: body})
		if x, ok := first[string](body); len(s.queue) > 0 && !(honest && ok && x == "x") {
			t.Errorf("%v was taken", body)
		}
		s.DeliverSignal(busName, "NameOwnerChanged", &dbus.Signal{Sender: bus, Path: busPath, Body: body})
		if !honest && (s.owners[updater].unique != ":1.1" || b.Dropped() == 0) {
			t.Errorf("%v made another owner", body)
		}
		for _, v := range append(body, nil) {
			if variant, ok := v.(dbus.Variant); ok {
				_, _ = variant.Value().(string)
			}
		}
		_, _ = first[uint32](body)
		_, _ = first[dbus.Variant](body)
	})
}

func TestWhoWaitsForABusThatRefusesGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	b := New(Options{Address: "unix:path=" + filepath.Join(t.TempDir(), "nobody")})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = b.Run(ctx) }()
	if b.Await(ctx, time.Hour) {
		t.Error("connected to nobody")
	}
	cancel()
	<-ended
}
