// SPDX-License-Identifier: Apache-2.0

package bus

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
)

// The end of the process must not wait for a bus that hangs, and nobody else may either.
func TestAHungBusDelaysNeitherTheEndNorACallNorAWatch(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewService(d, updater)
	b := New(Options{Address: d.Address})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	<-b.Ready()
	d.Pause()
	defer d.Resume()
	stop := b.Watch(updaterMatch, func(Signal) {}) // its match waits for the bus from here on
	stop()
	b.Watch(updaterMatch, func(Signal) {})
	b.Serve("org.kured.Agent1", func(*dbus.Conn) error { return nil })
	call := Call{Destination: updater, Path: updaterPath, Member: "a.b.C", Timeout: 20 * time.Millisecond}
	if _, err := b.Call(t.Context(), call); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call: %v", err)
	}
	began := time.Now()
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("Run goes on after its context ended")
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the end took %v", took)
	}
}

func TestAHungBusIsLeftAndEverythingStandsOnceItIsBack(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := New(Options{Address: d.Address})
	b.timeout = 200 * time.Millisecond
	bustest.Connect(t, b)
	d.Pause()
	got := &log{}
	b.Watch(updaterMatch, got.add)
	bustest.Eventually(t, "the hung connection left", func() bool { return !b.Connected() })
	d.Resume()
	bustest.Eventually(t, "the owner known", func() bool { return b.Owner(updater) != "" })
	bustest.Eventually(t, "a signal", func() bool {
		service.Emit(updaterPath, updater+".Changed", "x")
		return got.last() == "x"
	})
}

// Order is not enough: what the agent ends with has to be what a read gives (godbus/dbus#187).
func TestAFloodWithASlowConsumerEndsInTheStateThatAReadGives(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	service.SetProperty(updaterPath, updater, "Level", uint32(0))
	b := connected(t, d)

	look := make(chan struct{}, 1)
	hint := func() {
		select {
		case look <- struct{}{}:
		default:
		}
	}
	var seen atomic.Uint32
	ctx, cancel := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-look:
			}
			if level, err := Property[uint32](ctx, b, updater, updaterPath, updater, "Level"); err == nil {
				seen.Store(level)
			}
		}
	})
	defer reader.Wait()
	defer cancel()

	gate := make(chan struct{})
	b.OnChange(hint)
	b.Watch(Match{Sender: updater, Interface: "org.freedesktop.DBus.Properties", Member: "PropertiesChanged", Arg0: updater},
		func(Signal) { <-gate; hint() })
	bustest.Eventually(t, "the owner known", func() bool { return b.Owner(updater) != "" })
	const last = 4000
	for level := range uint32(last + 1) {
		service.ChangeProperty(updaterPath, updater, "Level", level)
	}
	bustest.Eventually(t, "the queue at its bound", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := len(b.session.queue); n > maxQueue {
			t.Errorf("%d signals are queued", n)
		}
		return len(b.session.queue) == maxQueue
	})
	close(gate)
	bustest.Eventually(t, "the last level", func() bool { return seen.Load() == last })
}

func TestWhatTheTrueOwnerSendsInAnotherShapeFitsNoArgument(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := connected(t, d)
	got, settled := &log{}, make(chan struct{}, 100)
	stop := b.OnChange(func() { settled <- struct{}{} })
	m := updaterMatch
	m.Arg0 = "x"
	b.Watch(m, got.add)
	<-settled
	stop()
	all := watchUpdater(t, b) // without the argument: the bus sends us everything
	bodies := [][]any{{}, {uint32(1)}, {[]string{"x"}}, {dbus.MakeVariant("x")}, {dbus.ObjectPath("/x")}, {"y", "x"}}
	for _, body := range bodies {
		service.Emit(updaterPath, updater+".Changed", body...)
	}
	service.Emit(updaterPath, updater+".Changed", "x")
	bustest.Eventually(t, "all signals", func() bool { return all.len() == len(bodies)+1 })
	bustest.Eventually(t, "the one that fits", func() bool { return got.len() > 0 })
	if got.len() != 1 || b.Dropped() != 0 {
		t.Errorf("%d signals fit, %d were dropped", got.len(), b.Dropped())
	}
}

func TestAnAnswerOfAnotherTypeIsAnError(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := connected(t, d)
	for _, value := range []any{uint32(1), "", []string{"x"}, map[string]dbus.Variant{}, dbus.MakeVariant("x")} {
		service.SetProperty(updaterPath, updater, "Level", value)
		if _, err := Property[bool](t.Context(), b, updater, updaterPath, updater, "Level"); err == nil {
			t.Errorf("%T is taken for a bool", value)
		}
	}
}

func TestACutConnectionIsLostForTheCallAndStandsAgain(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	service := bustest.NewService(d, updater)
	proxy := bustest.NewProxy(d)
	b := New(Options{Address: proxy.Address})
	got := &log{}
	b.Watch(updaterMatch, got.add)
	bustest.Connect(t, b)
	for i, pass := range []bool{true, false} {
		proxy.Cut("CanReboot", pass)
		_, err := b.Call(t.Context(), Call{Destination: login1, Path: inhibit.Path, Member: manager + ".CanReboot"})
		if !errors.Is(err, ErrLost) {
			t.Errorf("cut: %v", err)
		}
		bustest.Eventually(t, "the owner known again", func() bool { return b.Owner(updater) != "" })
		bustest.Eventually(t, "a signal", func() bool {
			service.Emit(updaterPath, updater+".Changed", int32(i))
			return got.last() == int32(i)
		})
	}
	bustest.Eventually(t, "the call that passed", func() bool { return len(login.Calls("CanReboot")) == 1 })
}
