// SPDX-License-Identifier: Apache-2.0

package units

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
)

const target = "kured-agent-pre-reboot.target"

func client(t *testing.T, d *bustest.Daemon) *Client {
	t.Helper()
	b := bus.New(bus.Options{Address: d.Address})
	bustest.Connect(t, b)
	return New(b)
}

func TestTheStateOfAUnitIsRead(t *testing.T) {
	d := bustest.Start(t)
	systemd := bustest.NewSystemd1(d)
	systemd.SetUnit(target, bustest.FakeUnit{Active: "activating", Sub: "start"})
	c := client(t, d)
	if state, sub, err := c.Active(t.Context(), target); err != nil || state != "activating" || sub != "start" {
		t.Errorf("Active = %q, %q, %v", state, sub, err)
	}
	if state, sub, err := c.Active(t.Context(), "none.service"); err != nil || state != NotFound || sub != "" {
		t.Errorf("Active of no unit = %q, %q, %v", state, sub, err)
	}
	systemd.SetProperty(bus.UnitPath(target), unit, "ActiveState", uint32(1))
	if _, _, err := c.Active(t.Context(), target); err == nil {
		t.Error("a property of another type has no error")
	}
	systemd.On("LoadUnit", bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "no"))
	if _, _, err := c.Active(t.Context(), target); err == nil {
		t.Error("a refusal has no error")
	}
	systemd.Disconnect()
	if _, _, err := c.Active(t.Context(), target); err == nil {
		t.Error("an absent service manager has no error")
	}
}

func TestTheStateOfAUnitsFileIsRead(t *testing.T) {
	d := bustest.Start(t)
	systemd := bustest.NewSystemd1(d)
	systemd.SetUnit("masked.timer", bustest.FakeUnit{Load: "masked", Active: "active", File: "masked"})
	c := client(t, d)
	state, file, err := c.Installed(t.Context(), []string{"none.service", "masked.timer"})
	if err != nil || len(state) != 1 || state["masked.timer"] != "active" || len(file) != 1 || file["masked.timer"] != "masked" {
		t.Errorf("Installed = %q, %q, %v", state, file, err)
	}
}

func TestTheJobOfOurOwnUnitTellsARestartFromAStop(t *testing.T) {
	d := bustest.Start(t)
	systemd := bustest.NewSystemd1(d)
	c := client(t, d)
	const own = "kured-agent.service"
	if typ, err := c.JobType(t.Context(), own); err != nil || typ != "" {
		t.Errorf("a unit that is not loaded: %q, %v", typ, err)
	}
	for _, want := range []string{"restart", "stop", ""} {
		systemd.SetUnit(own, bustest.FakeUnit{Active: "deactivating", JobType: want})
		if typ, err := c.JobType(t.Context(), own); err != nil || typ != want {
			t.Errorf("JobType = %q, %v, want %q", typ, err, want)
		}
	}
	systemd.SetProperty(bus.UnitPath(own), unit, "Job", "none")
	if _, err := c.JobType(t.Context(), own); err == nil {
		t.Error("a job of another type has no error")
	}
	d.Kill()
	if _, err := c.JobType(t.Context(), own); err == nil {
		t.Error("a bus that is gone has no error")
	}
}

func TestAUnitIsStartedByOneCall(t *testing.T) {
	d := bustest.Start(t)
	systemd := bustest.NewSystemd1(d)
	c := client(t, d)
	if err := c.Start(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	calls := systemd.Calls("StartUnit")
	if len(calls) != 1 || calls[0].Args[0] != target || calls[0].Args[1] != "replace" {
		t.Errorf("calls %v", calls)
	}
	systemd.On("StartUnit", bustest.Refuse("org.freedesktop.systemd1.UnitMasked", "masked"))
	if err := c.Start(t.Context(), target); !bus.IsNamed(err, "org.freedesktop.systemd1.UnitMasked") {
		t.Errorf("Start = %v", err)
	}
}

func TestFailedNamesWhatTheTargetRequiresNotWhatItWants(t *testing.T) {
	d := bustest.Start(t)
	systemd := bustest.NewSystemd1(d)
	systemd.SetUnit(target, bustest.FakeUnit{
		Active: "inactive", Requires: []string{"check.service", "good.service"}, Wants: []string{"backup.service"},
	})
	for name, state := range map[string]string{
		"check.service": "failed", "good.service": "active", "backup.service": "failed", "other.service": "failed",
	} {
		systemd.SetUnit(name, bustest.FakeUnit{Active: state})
	}
	got, err := client(t, d).Failed(t.Context(), target)
	if err != nil || !slices.Equal(got, []string{"check.service"}) {
		t.Errorf("Failed = %q, %v", got, err)
	}
}

func TestChangesArriveAlsoAfterSystemdOrTheBusReturned(t *testing.T) {
	d := bustest.Start(t)
	systemd := bustest.NewSystemd1(d)
	systemd.SetUnit(target, bustest.FakeUnit{Active: "inactive"})
	c := client(t, d)
	var hints atomic.Int64
	c.Watch(target, func() { hints.Add(1) })
	c.Watch("other.target", func() {})
	state := func() string { s, _, _ := c.Active(t.Context(), target); return s }

	subscribed := 0
	for i, restart := range []func(){
		func() {},
		systemd.Connect,
		func() { d.Kill(); d.Restart(); systemd.Connect() },
	} {
		restart()
		bustest.Eventually(t, "a subscription", func() bool { return len(systemd.Calls("Subscribe")) > subscribed })
		bustest.Eventually(t, "a connection", c.bus.Connected)
		want := []string{"active", "inactive", "active"}[i]
		// The agent reads on every hint: the last read after the change must show it.
		var seen atomic.Value
		seen.Store("")
		c.Watch(target, func() { go func() { seen.Store(state()) }() })
		systemd.SetUnit(target, bustest.FakeUnit{Active: want})
		bustest.Eventually(t, "the new state", func() bool { return seen.Load() == want })
		subscribed = len(systemd.Calls("Subscribe"))
	}
	if hints.Load() == 0 {
		t.Error("the first watch was never called")
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add("x.service", uint32(1), uint8(10))
	f.Fuzz(func(t *testing.T, s string, n uint32, length uint8) {
		var fields []any
		for i := range int(length % 12) {
			fields = append(fields, []any{s, n, dbus.ObjectPath(s)}[i%3])
		}
		for _, body := range [][]any{{[][]any{fields}}, {fields}, fields, nil} {
			if names, err := parseUnits(body); err == nil && len(names) == 1 && names[0].name != s {
				t.Errorf("names %q", names)
			}
		}
		if states, err := parseFiles([]any{[][]any{fields}}); err != nil && states != nil {
			t.Errorf("both %v and %v", states, err)
		}
		for _, v := range []any{[]any{n, dbus.ObjectPath(s)}, fields, s, nil} {
			if _, object, err := parseJob(v); err == nil && !strings.HasPrefix(string(object), "/") {
				t.Errorf("job path %q", object)
			}
		}
	})
}

// FuzzBodies gives every decoder of this package a body of any shape.
func FuzzBodies(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x01\x03\x02/a"))                     // o
	f.Add([]byte("\x01\x0f\x02\x0a\x01\x07\x03\x02/a")) // (uo)
	f.Add([]byte("\x01\x10\x01\x0a\x00\x01a\x00\x01b\x00\x01c\x00\x01d\x00\x01e\x00\x01f\x03\x02/a\x0a\x01\x07\x00\x01g\x03\x02/b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		body := bustest.Body(data)
		if object, ok := parseObject(body); ok && !object.IsValid() {
			t.Errorf("object %q", object)
		}
		if names, err := parseUnits(body); err != nil && names != nil {
			t.Error("both an answer and an error")
		}
		for _, v := range append(body, body, nil) {
			if id, object, err := parseJob(v); err != nil && (id != 0 || object != "") || err == nil && !object.IsValid() {
				t.Errorf("job %d %q, %v", id, object, err)
			}
		}
	})
}

func TestSoftRebootsAreCountedWhereSystemdCounts(t *testing.T) {
	d := bustest.Start(t)
	f := bustest.NewSystemd1(d)
	b := bus.New(bus.Options{Address: d.Address})
	bustest.Run(t, b)
	bustest.Eventually(t, "the bus is there", b.Connected)
	c := New(b)
	if n, started, err := c.SoftReboots(t.Context()); n != 0 || !started.IsZero() || err != nil {
		t.Errorf("before systemd 256: %d, %s, %v", n, started, err)
	}
	f.SetProperty("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "SoftRebootsCount", uint32(2))
	f.SetProperty("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "UserspaceTimestamp", uint64(1_700_000_000_000_000))
	if n, started, err := c.SoftReboots(t.Context()); n != 2 || started.Unix() != 1_700_000_000 || err != nil {
		t.Errorf("got %d, %s, %v", n, started, err)
	}
	f.SetProperty("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "SoftRebootsCount", "many")
	if n, _, err := c.SoftReboots(t.Context()); err == nil {
		t.Errorf("a count that is none gave %d", n)
	}
}
