// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	updater     = "com.example.Updater"
	updaterPath = "/com/example/Updater"
)

func propertyOptions(equals any) map[string]any {
	return map[string]any{
		"name": updater, "path": updaterPath, "interface": updater, "property": "Pending", "equals": equals,
	}
}

func TestAPropertyThatWasSetBeforeTheStartIsRead(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewService(d, updater).SetProperty(updaterPath, updater, "Pending", true)
	s := start(t, Env{Bus: startBus(t, d)}, "dbus-property", propertyOptions(true)).becomes("at start", plan.Required)
	want := plan.Reason{
		Source: "dbus-property:com.example.Updater.Pending", ID: "Pending=true",
		Text: "com.example.Updater.Pending of com.example.Updater is true", Kind: plan.KindFull,
	}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
}

func TestAPropertyIsFollowed(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	service.SetProperty(updaterPath, updater, "Pending", "no")
	p := start(t, Env{Bus: startBus(t, d)}, "dbus-property", propertyOptions("yes"))
	p.becomes("at start", plan.NotRequired)
	for i := range 1000 {
		service.ChangeProperty(updaterPath, updater, "Pending", fmt.Sprint("maybe ", i))
	}
	service.ChangeProperty(updaterPath, updater, "Pending", "yes")
	p.becomes("after a thousand changes", plan.Required)
	if n := p.reports(); n > 1100 {
		t.Errorf("%d reports", n)
	}
	service.ChangeProperty(updaterPath, updater, "Pending", "no")
	p.becomes("changed back", plan.NotRequired)
}

func TestAPropertyOfAnAbsentServiceIsNotRequiredUntilItComes(t *testing.T) {
	d := bustest.Start(t)
	p := start(t, Env{Bus: startBus(t, d)}, "dbus-property", propertyOptions(int64(4)))
	if s := p.becomes("absent", plan.NotRequired); s.Note != "service absent" {
		t.Errorf("note %q", s.Note)
	}
	service := bustest.NewService(d, updater)
	service.SetProperty(updaterPath, updater, "Pending", uint32(4))
	service.Connect()
	p.becomes("the service came", plan.Required)
	service.Disconnect()
	if s := p.becomes("it left while it required a reboot", plan.Unknown); !errors.Is(s.Err, errAbsent) {
		t.Errorf("error %v", s.Err)
	}
	service.SetProperty(updaterPath, updater, "Pending", uint32(3))
	service.Connect()
	p.becomes("it came back without the need", plan.NotRequired)
}

func TestAPropertyThatChangedWhileTheBusWasAwayIsReadAtOnce(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	service.SetProperty(updaterPath, updater, "Pending", false)
	p := start(t, Env{Bus: startBus(t, d)}, "dbus-property", propertyOptions(true))
	p.becomes("at start", plan.NotRequired)
	d.Kill()
	if s := p.becomes("the bus is away", plan.Unknown); !errors.Is(s.Err, bus.ErrNotConnected) {
		t.Errorf("error %v", s.Err)
	}
	service.SetProperty(updaterPath, updater, "Pending", true)
	d.Restart()
	service.Connect()
	p.becomes("back", plan.Required)
}

func TestAPropertyThatMayNotBeReadOrIsOfAnotherTypeIsUnknown(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	p := start(t, Env{Bus: startBus(t, d)}, "dbus-property", propertyOptions(true))
	p.shows("no such property", func(s State) bool {
		return s.Level == plan.Unknown && strings.Contains(fmt.Sprint(s.Err), "UnknownObject") ||
			strings.Contains(fmt.Sprint(s.Err), "Unknown")
	})
	service.ChangeProperty(updaterPath, updater, "Pending", []string{"true"})
	p.shows("another type", func(s State) bool { return strings.Contains(fmt.Sprint(s.Err), "[]string") })
	service.On("Get", bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "no"))
	service.ChangeProperty(updaterPath, updater, "Pending", true)
	p.shows("denied", func(s State) bool {
		return s.Level == plan.Unknown && strings.Contains(fmt.Sprint(s.Err), "denies reading the property")
	})
	service.On("Get", bustest.Reply{})
	service.ChangeProperty(updaterPath, updater, "Pending", true)
	p.becomes("allowed", plan.Required)
}

func TestAForgedPropertyChangeOnlyLeadsToTheTruth(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	service.SetProperty(updaterPath, updater, "Pending", false)
	b := startBus(t, d)
	p := start(t, Env{Bus: b}, "dbus-property", propertyOptions(true))
	p.becomes("at start", plan.NotRequired)
	stranger := bustest.NewStranger(d)
	const name = "org.freedesktop.DBus.Properties.PropertiesChanged"
	stranger.Forge(updaterPath, name, updater, map[string]dbus.Variant{"Pending": dbus.MakeVariant(true)}, []string{})
	stranger.Forge(updaterPath, name) // this one ends a program that uses go-systemd's subscription
	bustest.Eventually(t, "the forgery counted", func() bool { return b.Dropped() == 1 })
	service.Emit(updaterPath, name, updater)
	service.ChangeProperty(updaterPath, updater, "Pending", true)
	p.becomes("the service itself", plan.Required)
}

func TestValuesAreComparedOverEveryWidth(t *testing.T) {
	for _, c := range []struct {
		want, got any
		equal, ok bool
	}{
		{int64(4), byte(4), true, true}, {int64(4), int16(4), true, true}, {int64(4), uint16(4), true, true},
		{int64(4), int32(4), true, true}, {int64(4), uint32(4), true, true}, {int64(4), int64(4), true, true},
		{int64(4), uint64(4), true, true}, {int64(-1), ^uint64(0), false, true}, {int64(4), "4", false, false},
		{int64(4), 4.0, false, false}, {int64(1), true, false, false},
		{"a", "a", true, true}, {"a", "b", false, true}, {"/a", dbus.ObjectPath("/a"), true, true}, {"a", nil, false, false},
		{true, true, true, true}, {true, false, false, true}, {true, "true", false, false},
		{"a", dbus.MakeVariant("a"), true, true}, {"a", []string{"a"}, false, false},
	} {
		if equal, ok := compare(c.want, c.got); equal != c.equal || ok != c.ok {
			t.Errorf("compare(%v, %T %v) = %v, %v", c.want, c.got, c.got, equal, ok)
		}
	}
}

func FuzzCompare(f *testing.F) {
	f.Add("a", int64(1), true, uint8(0))
	f.Fuzz(func(t *testing.T, s string, n int64, b bool, which uint8) {
		values := []any{s, n, b, uint64(n), int32(n), []any{s}, nil, dbus.MakeVariant(s), dbus.MakeVariant(n)}
		for _, want := range []any{s, n, b} {
			if equal, ok := compare(want, values[int(which)%len(values)]); equal && !ok {
				t.Error("equal and not comparable")
			}
		}
	})
}
