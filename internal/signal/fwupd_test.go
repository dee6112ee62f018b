// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// fwupdPolicy is what the bus does by default, and what fwupd ships against it.
const fwupdPolicy = `<policy context="default"><deny send_destination="org.freedesktop.fwupd"/>` +
	`<allow send_destination="org.freedesktop.fwupd" send_interface="org.freedesktop.fwupd"/></policy>`

const (
	bios      = "a45df35ac0e948ee180fe216a5f703f32dda163f"
	onReboot  = uint64(1) << 8
	succeeded = uint32(2)
	failed    = uint32(3)
)

func TestFirmwareThatWaitsForTheBootRequiresAReboot(t *testing.T) {
	d := bustest.StartPolicy(t, fwupdPolicy)
	bustest.NewFwupd(d, bustest.Device(bios, "System Firmware", "1.2.3", onReboot, fwupdNeedsReboot))
	s := start(t, Env{Bus: startBus(t, d)}, "fwupd", nil).becomes("at start", plan.Required)
	want := plan.Reason{Source: "fwupd", ID: bios + "@1.2.3", Kind: plan.KindFull,
		Text: "a firmware update of System Firmware, now at version 1.2.3, waits for the boot"}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) || s.Note != "" {
		t.Errorf("state %+v", s)
	}
}

// "fwupdmgr get-devices" shows the flags of devices for life: "Needs a reboot after installation".
func TestADeviceThatWouldNeedARebootAfterAnUpdateNeedsNone(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewFwupd(d,
		bustest.Device(bios, "System Firmware", "1.2.3", onReboot, 0),
		bustest.Device("2", "UEFI dbx", "77", onReboot, succeeded),
		bustest.Device("3", "SSD", "1", fwupdNeedsShutdown, failed))
	s := start(t, Env{Bus: startBus(t, d)}, "fwupd", nil).becomes("at start", plan.NotRequired)
	if s.Note != "" {
		t.Errorf("note %q", s.Note)
	}
}

func TestAPowerOffIsShownAndNotTakenForAReboot(t *testing.T) {
	d := bustest.Start(t)
	ssd := bustest.Device("3", "SSD", "1", onReboot|fwupdNeedsShutdown, fwupdNeedsReboot)
	nic := bustest.Device("4", "NIC", "1", fwupdNeedsShutdown, fwupdNeedsReboot)
	service := bustest.NewFwupd(d, ssd, nic)
	p := start(t, Env{Bus: startBus(t, d)}, "fwupd", nil)
	if s := p.becomes("at start", plan.NotRequired); s.Note != "a power-off is needed: SSD, NIC" {
		t.Errorf("note %q", s.Note)
	}
	service.Update(ssd, bustest.Device(bios, "System Firmware", "1.2.3", onReboot, fwupdNeedsReboot))
	s := p.becomes("and a reboot", plan.Required)
	if s.Note != "a power-off is needed: SSD" || !slices.Equal(ids(s), []string{bios + "@1.2.3"}) {
		t.Errorf("state %+v", s)
	}
}

func TestUpdatesOfFirmwareAreFollowed(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewFwupd(d)
	p := start(t, Env{Bus: startBus(t, d)}, "fwupd", nil)
	if s := p.becomes("no devices", plan.NotRequired); !strings.Contains(s.Note, "no device has firmware") {
		t.Errorf("note %q", s.Note)
	}
	device := func(state uint32) map[string]dbus.Variant {
		return bustest.Device(bios, "System Firmware", "1.2.3", onReboot, state)
	}
	for range 1000 {
		service.Update(device(0))
	}
	service.Update(device(fwupdNeedsReboot))
	p.becomes("updated", plan.Required)
	service.Set(device(0))
	service.Emit(fwupdPath, fwupdIface+".Changed")
	p.becomes("taken back", plan.NotRequired)
}

func TestFirmwareStillWaitsWhileFwupdIdles(t *testing.T) {
	d := bustest.Start(t)
	device := bustest.Device(bios, "System Firmware", "1.2.3", onReboot, fwupdNeedsReboot)
	service := bustest.NewFwupd(d, device)
	activation := d.Activatable(fwupdName, service.Connect)
	p := start(t, Env{Bus: startBus(t, d)}, "fwupd", nil)
	p.becomes("at start", plan.Required)
	for range 3 {
		before := p.reports()
		service.Disconnect()
		bustest.Eventually(t, "a read without fwupd", func() bool { return p.reports() > before })
		if s := p.state(); s.Level != plan.Required {
			t.Errorf("idle: %+v", s)
		}
		service.Connect()
	}
	service.Set(bustest.Device(bios, "System Firmware", "1.2.4", onReboot, succeeded))
	service.Connect()
	p.becomes("a new owner", plan.NotRequired)
	if n := activation.Started(); n > 0 {
		t.Errorf("started %d times", n)
	}
}

func TestFwupdIsStartedOnceAndOnlyIfItHasUpdatedAnything(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewFwupd(d, bustest.Device(bios, "System Firmware", "1.2.3", onReboot, fwupdNeedsReboot))
	service.Disconnect()
	activation := d.Activatable(fwupdName, service.Connect)
	b, root := startBus(t, d), t.TempDir()
	p := start(t, Env{Bus: b, Root: root}, "fwupd", nil)
	p.shows("never used", func(s State) bool { return s.Level == plan.NotRequired && s.Note == errAbsent.Error() })
	p.stop()
	if n := activation.Started(); n > 0 {
		t.Errorf("started %d times", n)
	}
	write(t, filepath.Join(root, fwupdHistory), "SQLite format 3")
	p = start(t, Env{Bus: b, Root: root}, "fwupd", nil)
	p.becomes("used before", plan.Required)
	before := p.reports()
	service.Disconnect()
	bustest.Eventually(t, "a read without fwupd", func() bool { return p.reports() > before })
	if n := activation.Started(); n != 1 || p.state().Level != plan.Required {
		t.Errorf("started %d times: %+v", n, p.state())
	}
}

func TestADeniedOrBrokenFwupdIsUnknown(t *testing.T) {
	d := bustest.Start(t)
	good := bustest.Device(bios, "System Firmware", "1.2.3", onReboot, 0)
	service := bustest.NewFwupd(d, good)
	service.On("GetDevices", bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "no"))
	p := start(t, Env{Bus: startBus(t, d)}, "fwupd", nil)
	says := func(part string) func(State) bool {
		return func(s State) bool { return s.Level == plan.Unknown && strings.Contains(fmt.Sprint(s.Err), part) }
	}
	p.shows("denied", says("the bus policy denies GetDevices"))
	service.On("GetDevices", bustest.Reply{})
	broken := bustest.Device(bios, "System Firmware", "1.2.3", onReboot, 0)
	broken["UpdateState"] = dbus.MakeVariant("needs-reboot")
	service.Update(good, broken)
	p.shows("wrong type of the state", says("number 1 have a wrong type"))
	broken["UpdateState"], broken["Flags"] = dbus.MakeVariant(fwupdNeedsReboot), dbus.MakeVariant(int32(1))
	service.Update(good, broken)
	p.shows("wrong type of the flags", says("number 1 have a wrong type"))
	service.Update(good)
	p.becomes("well again", plan.NotRequired)
}

func TestForgedSignalsOfFwupdDoNotCount(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewFwupd(d, bustest.Device(bios, "System Firmware", "1.2.3", onReboot, 0))
	b := startBus(t, d)
	p := start(t, Env{Bus: b}, "fwupd", nil)
	p.becomes("at start", plan.NotRequired)
	stranger := bustest.NewStranger(d)
	stranger.Forge(fwupdPath, fwupdIface+".Changed")
	stranger.Forge(fwupdPath, fwupdIface+".DeviceChanged", bustest.Device(bios, "X", "1", onReboot, fwupdNeedsReboot))
	bustest.Eventually(t, "the forgeries counted", func() bool { return b.Dropped() == 2 })
	if s := p.state(); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
}

func FuzzDevices(f *testing.F) {
	f.Add(bios, "System Firmware", "1.2.3", onReboot, fwupdNeedsReboot, uint8(0))
	f.Add("", "", "", fwupdNeedsShutdown, fwupdNeedsReboot, uint8(9))
	f.Fuzz(func(t *testing.T, id, name, version string, flags uint64, state uint32, shape uint8) {
		device := bustest.Device(id, name, version, flags, state)
		for i, key := range []string{"DeviceId", "Name", "Version", "Flags", "UpdateState"} {
			switch {
			case shape&(1<<i) == 0:
			case shape&(1<<7) == 0:
				device[key] = dbus.MakeVariant([]string{name})
			default:
				delete(device, key)
			}
		}
		s, err := parseDevices([]any{[]map[string]dbus.Variant{device}})
		if err != nil {
			return
		}
		s = bound("fwupd", s)
		if s.Level == plan.Required && (state != fwupdNeedsReboot || s.Reasons[0].ID == "") {
			t.Errorf("%v says %+v", device, s)
		}
		if wrong := wrongText("note", s.Note, plan.MaxReasonText); s.Note != "" && wrong != "" {
			t.Errorf("note %q: %s", s.Note, wrong)
		}
	})
}
