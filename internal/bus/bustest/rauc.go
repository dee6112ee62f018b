// SPDX-License-Identifier: Apache-2.0

package bustest

import "github.com/godbus/dbus/v5"

const (
	raucName  = "de.pengutronix.rauc"
	raucPath  = "/"
	raucIface = "de.pengutronix.rauc.Installer"
)

// FakeRAUC is a RAUC with two slots, booted from rootfs.0. Methods for On: GetPrimary, GetSlotStatus, Get.
type FakeRAUC struct {
	*Service
	primary    string
	installing bool
	slots      []raucSlot
}

type raucSlot struct {
	Name   string
	Status map[string]dbus.Variant
}

// NewRAUC connects an idle one.
func NewRAUC(d *Daemon) *FakeRAUC {
	f := &FakeRAUC{Service: newService(d, raucName), primary: "rootfs.0", slots: []raucSlot{
		raucStatus("appfs.0", "active"), raucStatus("rootfs.0", "booted"), raucStatus("rootfs.1", "inactive"),
	}}
	f.handle(raucPath, raucIface, map[string]any{
		"GetPrimary": func() (string, *dbus.Error) {
			err := f.answer("GetPrimary")
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.primary, err
		},
		"GetSlotStatus": func() ([]raucSlot, *dbus.Error) {
			err := f.answer("GetSlotStatus")
			f.mu.Lock()
			defer f.mu.Unlock()
			return append([]raucSlot(nil), f.slots...), err
		},
	})
	f.SetProperty(raucPath, raucIface, "Operation", "idle")
	f.Connect()
	return f
}

func raucStatus(name, state string) raucSlot {
	return raucSlot{name, map[string]dbus.Variant{
		"class": dbus.MakeVariant("rootfs"), "state": dbus.MakeVariant(state), "installed.count": dbus.MakeVariant(uint32(3)),
	}}
}

// answer refuses what RAUC does not answer while it installs.
func (f *FakeRAUC) answer(method string) *dbus.Error {
	err := f.called(method)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && f.installing {
		return dbus.NewError("org.gtk.GDBus.UnmappedGError.Quark._g_2dio_2derror_2dquark.Code30",
			[]any{"already processing a different method"})
	}
	return err
}

// Begin begins an installation.
func (f *FakeRAUC) Begin() {
	f.mu.Lock()
	f.installing = true
	f.mu.Unlock()
	f.ChangeProperty(raucPath, raucIface, "Operation", "installing")
}

// Complete ends it with a result: first Completed, then Operation, as RAUC does.
func (f *FakeRAUC) Complete(result int32) {
	f.Emit(raucPath, raucIface+".Completed", result)
	f.mu.Lock()
	f.installing = false
	f.mu.Unlock()
	f.ChangeProperty(raucPath, raucIface, "Operation", "idle")
}

// SetPrimary sets the slot of the next boot without a signal. keys and values describe what is in it.
func (f *FakeRAUC) SetPrimary(name string, keyValues ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.primary = name
	for i, slot := range f.slots {
		if slot.Name != name {
			continue
		}
		status := map[string]dbus.Variant{"state": slot.Status["state"]}
		for j := 0; j+1 < len(keyValues); j += 2 {
			status[keyValues[j]] = dbus.MakeVariant(keyValues[j+1])
		}
		f.slots[i].Status = status
	}
}
