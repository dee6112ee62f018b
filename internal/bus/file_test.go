// SPDX-License-Identifier: Apache-2.0

package bus

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
)

const (
	login1  = "org.freedesktop.login1"
	manager = login1 + ".Manager"
)

var inhibit = Call{
	Destination: login1, Path: "/org/freedesktop/login1", Member: manager + ".Inhibit",
	Args: []any{"shutdown", "test", "why", "delay"},
}

func TestADescriptorIsReceivedAndItsClosingIsSeenOnTheOtherSide(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	b := connected(t, d)
	file, err := b.CallFile(t.Context(), inhibit)
	if err != nil {
		t.Fatal(err)
	}
	if login.Locks() != 1 {
		t.Errorf("%d locks", login.Locks())
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	bustest.Eventually(t, "the lock gone", func() bool { return login.Locks() == 0 })
}

func TestErrorsOfACallForADescriptorAreThoseOfACall(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	b := connected(t, d)
	call := func(c Call) error {
		file, err := b.CallFile(t.Context(), c)
		if err == nil {
			_ = file.Close()
		}
		return err
	}
	login.On("Inhibit", bustest.Refuse("com.example.No", "because"))
	if err := call(inhibit); !IsNamed(err, "com.example.No") || !strings.Contains(err.Error(), "because") {
		t.Errorf("a refusal: %v", err)
	}
	login.On("Inhibit", bustest.Reply{Hang: true})
	hung := inhibit
	hung.Timeout = 20 * time.Millisecond
	if err := call(hung); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNotConnected) {
		t.Errorf("no answer: %v", err)
	}
	if err := call(Call{Destination: login1, Path: inhibit.Path, Member: manager + ".CanReboot"}); !errors.Is(err, errNotAFile) {
		t.Errorf("an answer without a descriptor: %v", err)
	}
	if err := call(Call{Destination: "com.example.None", Path: "/", Member: "a.b.C"}); !IsNamed(err,
		busName+".Error.ServiceUnknown") {
		t.Errorf("no service: %v", err)
	}
	if err := call(Call{Destination: login1, Path: "not a path", Member: "a.b.C"}); err == nil || errors.Is(err, ErrLost) {
		t.Errorf("a call that can't be built: %v", err)
	}

	before := len(login.Calls("Inhibit"))
	lost := make(chan error)
	go func() { lost <- call(inhibit) }()
	bustest.Eventually(t, "the call", func() bool { return len(login.Calls("Inhibit")) > before })
	d.Kill()
	if err := <-lost; !errors.Is(err, ErrLost) {
		t.Errorf("the bus died after the call was sent: %v", err)
	}
	bustest.Eventually(t, "the loss", func() bool { return !b.Connected() })
	if err := call(inhibit); !errors.Is(err, ErrNotConnected) {
		t.Errorf("no bus: %v", err)
	}
}

func TestABusThatAcceptsAndNeverAnswersHoldsNoCallForADescriptor(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewLogin1(d)
	b := connected(t, d)
	b.address = bustest.Silent(t) // a bus that was restarted and hangs
	hung := inhibit
	hung.Timeout = 20 * time.Millisecond
	_, err := b.CallFile(t.Context(), hung)
	if !errors.Is(err, ErrNotConnected) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("CallFile = %v", err)
	}
}

// A stranger may send descriptors to anybody, in any message, with or without a place for them in its body.
func TestDescriptorsOfStrangersAreClosed(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	b := connected(t, d)
	stranger := bustest.NewStranger(d)
	main := b.session.conn.Names()[0]
	known := stranger.Others()
	login.On("Inhibit", bustest.Reply{Hang: true})
	before := bustest.OpenFiles(t)
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error)
	go func() {
		file, err := b.CallFile(ctx, inhibit)
		if file != nil {
			_ = file.Close()
		}
		answer <- err
	}()
	bustest.Eventually(t, "the call", func() bool { return len(login.Calls("Inhibit")) == 1 })
	fd := dbus.UnixFD(os.Stdin.Fd())
	for _, ours := range stranger.Others() {
		if slices.Contains(known, ours) {
			continue
		}
		for range 100 {
			stranger.Send(ours, "/", "a.b.C", fd, "x", fd)
			stranger.Send(ours, "/", "a.b.C", []dbus.UnixFD{fd, fd, fd}) // one of these ends a process with godbus 5.2.4
			stranger.Send(ours, "/", "a.b.C", dbus.MakeVariant(fd))
		}
	}
	stranger.Send(main, "/", "a.b.C", []dbus.UnixFD{fd}) // which carries none
	// One descriptor more is open while the connection stands; of 600 from the stranger at most those on the way.
	bustest.Eventually(t, "all but a few closed", func() bool { return bustest.OpenFiles(t) < before+32 })
	cancel()
	if err := <-answer; !errors.Is(err, context.Canceled) {
		t.Errorf("CallFile = %v", err)
	}
	bustest.Eventually(t, "as many descriptors as before", func() bool { return bustest.OpenFiles(t) <= before })
	if !b.Connected() || b.session.conn.Names()[0] != main {
		t.Error("the connection without descriptors was lost")
	}
}

func TestDescriptorsOfAMessageThatNeverEndsAreClosed(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(pair[1:])
	ours := os.NewFile(uintptr(pair[0]), "ours")
	socket, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	_ = ours.Close()
	before := bustest.OpenFiles(t)
	if err := unix.Sendmsg(pair[1], []byte("l"), unix.UnixRights(pair[1], pair[1]), nil, 0); err != nil {
		t.Fatal(err)
	}
	f := newFileLink(&link{Conn: socket})
	if c, err := f.in.ReadByte(); c != 'l' || err != nil || bustest.OpenFiles(t) != before+2 {
		t.Fatalf("read %q, %v, and %d descriptors", c, err, bustest.OpenFiles(t)-before)
	}
	f.close()
	if n := bustest.OpenFiles(t); n != before {
		t.Errorf("%d descriptors are left", n-before)
	}
}

func TestTheOwnerOfANameIsToldApartByProcessAndByConnection(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := connected(t, d)
	if got := b.Owner(updater); got != "" {
		t.Errorf("the owner of a name that nobody watches: %q", got)
	}
	watchUpdater(t, b)
	seen := map[string]bool{}
	for range 2 {
		for range 2 {
			bustest.Eventually(t, "another owner", func() bool { o := b.Owner(updater); return o != "" && !seen[o] })
			seen[b.Owner(updater)] = true
			service.Connect()
		}
		service.Disconnect()
		bustest.Eventually(t, "no owner", func() bool { return b.Owner(updater) == "" })
		d.Kill()
		bustest.Eventually(t, "the loss", func() bool { return !b.Connected() })
		if got := b.Owner(updater); got != "" {
			t.Errorf("the owner without a bus: %q", got)
		}
		d.Restart()
		service.Connect()
	}
}

func FuzzPick(f *testing.F) {
	f.Add([]byte("\x01\x09\x01\x00"), uint8(1))
	f.Add([]byte("\x01\x09\x01\x07"), uint8(1))
	f.Add([]byte{}, uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, n uint8) {
		var files []int
		for range n % 4 {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			_ = w.Close()
			fd, err := unix.Dup(int(r.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			_ = r.Close()
			files = append(files, fd)
		}
		body := bustest.Body(data)
		before := bustest.OpenFiles(t)
		file, err := pick(body, files)
		kept := 0
		if err == nil {
			kept = 1
		}
		if open := bustest.OpenFiles(t); open != before-len(files)+kept {
			t.Errorf("%d descriptors of %d are open after %v", open-before+len(files), len(files), err)
		}
		if file != nil {
			_ = file.Close()
		}
	})
}
