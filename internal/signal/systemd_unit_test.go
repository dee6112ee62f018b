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

var targetOptions = map[string]any{"unit": requiredTarget}

func TestAnActiveTargetRequiresARebootUntilItIsStopped(t *testing.T) {
	d := bustest.Start(t)
	manager := bustest.NewSystemd1(d)
	p := start(t, Env{Bus: startBus(t, d)}, "systemd-unit", targetOptions)
	if s := p.becomes("not there", plan.NotRequired); s.Note != "the unit is not-found" {
		t.Errorf("note %q", s.Note)
	}
	manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "active", Sub: "active"})
	s := p.becomes("started", plan.Required)
	want := plan.Reason{Source: "systemd-unit:" + requiredTarget, ID: requiredTarget,
		Text: "unit " + requiredTarget + " is active", Kind: plan.KindFull}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "inactive", Sub: "dead"})
	if s := p.becomes("stopped", plan.NotRequired); s.Note != "" {
		t.Errorf("note %q", s.Note)
	}
}

func TestWhichStatesOfAUnitRequireAReboot(t *testing.T) {
	u := &systemdUnitSource{unit: "example.service"}
	for active, want := range map[string]plan.Level{
		"active": plan.Required, "reloading": plan.Required, "refreshing": plan.Required,
		"inactive": plan.NotRequired, "failed": plan.NotRequired, "activating": plan.NotRequired,
		"deactivating": plan.NotRequired, "maintenance": plan.NotRequired, "": plan.NotRequired,
	} {
		if s := u.state("loaded", active); s.Level != want {
			t.Errorf("%q gives %v", active, s.Level)
		}
	}
}

// systemd emits only to subscribers, and forgets them with every restart of the bus (systemd/systemd#27697).
func TestTheSubscriptionIsMadeAgainAfterEveryLoss(t *testing.T) {
	d := bustest.Start(t)
	manager := bustest.NewSystemd1(d)
	manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "inactive"})
	p := start(t, Env{Bus: startBus(t, d)}, "systemd-unit", targetOptions)
	p.becomes("at start", plan.NotRequired)

	manager.Connect() // the manager is executed anew
	bustest.Eventually(t, "a subscription", func() bool { return len(manager.Calls("Subscribe")) >= 2 })
	p.becomes("still", plan.NotRequired)
	manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "active"})
	p.becomes("started after the manager came back", plan.Required)

	manager.Disconnect()
	if s := p.becomes("off the bus", plan.Unknown); errors.Is(s.Err, errAbsent) {
		t.Errorf("a manager off the bus counts as absent: %v", s.Err)
	}
	d.Kill()
	p.shows("the bus is away", func(s State) bool { return errors.Is(s.Err, bus.ErrNotConnected) })
	d.Restart()
	manager.Connect()
	p.becomes("both are back", plan.Required)
	manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "inactive"})
	p.becomes("stopped", plan.NotRequired)

	manager.On("Subscribe", bustest.Refuse("org.freedesktop.systemd1.AlreadySubscribed", "Client is already subscribed."))
	manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "active"})
	p.becomes("subscribed twice", plan.Required)
}

func TestAThousandChangesOfAUnitEndInTheRightLevel(t *testing.T) {
	d := bustest.Start(t)
	manager := bustest.NewSystemd1(d)
	manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "inactive"})
	p := start(t, Env{Bus: startBus(t, d)}, "systemd-unit", targetOptions)
	p.becomes("at start", plan.NotRequired)
	for range 500 {
		manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "active"})
		manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "inactive"})
	}
	manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "active"})
	p.becomes("at last", plan.Required)
}

func TestWhatIsNotOfSystemdOrMakesNoSenseDoesNotCount(t *testing.T) {
	d := bustest.Start(t)
	manager := bustest.NewSystemd1(d)
	manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "inactive"})
	b := startBus(t, d)
	p := start(t, Env{Bus: b}, "systemd-unit", targetOptions)
	p.becomes("at start", plan.NotRequired)
	const changed = "org.freedesktop.DBus.Properties.PropertiesChanged"
	stranger := bustest.NewStranger(d)
	stranger.Forge(bus.UnitPath(requiredTarget), changed, systemdUnit,
		map[string]dbus.Variant{"ActiveState": dbus.MakeVariant("active")}, []string{})
	stranger.Forge(bus.UnitPath(requiredTarget), changed)
	bustest.Eventually(t, "the forgery counted", func() bool { return b.Dropped() >= 1 })
	if s := p.state(); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
	manager.ChangeProperty(bus.UnitPath(requiredTarget), systemdUnit, "ActiveState", uint32(1))
	p.shows("a number", func(s State) bool { return strings.Contains(fmt.Sprint(s.Err), "it is a uint32") })
	manager.SetUnit(requiredTarget, bustest.FakeUnit{Active: "active"})
	p.becomes("systemd itself", plan.Required)
	manager.On("LoadUnit", bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "no"))
	manager.ChangeProperty(bus.UnitPath(requiredTarget), systemdUnit, "ActiveState", "active")
	p.becomes("denied", plan.Unknown)
	for _, body := range [][]any{{}, {"/"}, {nil}, {dbus.ObjectPath("no")}, {dbus.ObjectPath("/"), 1}} {
		if object, err := parseUnit(body); err == nil {
			t.Errorf("%v gives %q", body, object)
		}
	}
}

func TestUnitNamesAreChecked(t *testing.T) {
	for name, good := range map[string]bool{
		requiredTarget: true, "a@b.service": true, `dev-disk\x2dby.device`: true, "a.path": true,
		"kured": false, "a.conf": false, "a@.service": false, ".service": false, "a/b.service": false,
		"a b.service": false, "": false, strings.Repeat("a", 250) + ".service": false,
	} {
		if problems := Check("systemd-unit", map[string]any{"unit": name}); (len(problems) == 0) != good {
			t.Errorf("%q: %v", name, problems)
		}
		if path := dbus.ObjectPath(bus.UnitPath(name + "x")); !path.IsValid() {
			t.Errorf("%q has the path %q", name, path)
		}
	}
	if problems := Check("systemd-unit", nil); len(problems) != 1 {
		t.Errorf("no unit: %v", problems)
	}
	if got := bus.UnitPath(requiredTarget); got != string(bustest.UnitPath(requiredTarget)) {
		t.Errorf("unitPath = %q", got)
	}
}

func FuzzUnit(f *testing.F) {
	f.Add("/org/freedesktop/systemd1/unit/x", "active", uint8(0))
	f.Fuzz(func(t *testing.T, path, state string, which uint8) {
		bodies := [][]any{{dbus.ObjectPath(path)}, {path}, {}, {nil}, {dbus.ObjectPath(path), path}}
		object, err := parseUnit(bodies[int(which)%len(bodies)])
		if err == nil && !dbus.ObjectPath(object).IsValid() {
			t.Errorf("%q is taken for an object", object)
		}
		bound("systemd-unit:x", (&systemdUnitSource{unit: "x"}).state(path, state))
	})
}
