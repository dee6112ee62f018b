// SPDX-License-Identifier: Apache-2.0

package bustest

import (
	"github.com/godbus/dbus/v5"
)

const (
	fwupdPath  = "/"
	fwupdIface = "org.freedesktop.fwupd"
)

// FakeFwupd is the firmware update daemon, which leaves with Disconnect while it idles. Method for On: GetDevices.
type FakeFwupd struct {
	*Service
	devices []map[string]dbus.Variant
}

// NewFwupd connects one.
func NewFwupd(d *Daemon, devices ...map[string]dbus.Variant) *FakeFwupd {
	f := &FakeFwupd{Service: newService(d, "org.freedesktop.fwupd"), devices: devices}
	f.handle(fwupdPath, fwupdIface, map[string]any{
		"GetDevices": func() ([]map[string]dbus.Variant, *dbus.Error) {
			err := f.called("GetDevices")
			f.mu.Lock()
			defer f.mu.Unlock()
			if err == nil && len(f.devices) == 0 {
				err = dbus.NewError("org.freedesktop.fwupd.NothingToDo", []any{"No detected devices"})
			}
			return f.devices, err
		},
	})
	f.Connect()
	return f
}

// Device is one entry of GetDevices. A state of 0 is left out, as fwupd does.
func Device(id, name, version string, flags uint64, state uint32) map[string]dbus.Variant {
	d := map[string]dbus.Variant{
		"DeviceId": dbus.MakeVariant(id), "Name": dbus.MakeVariant(name), "Version": dbus.MakeVariant(version),
		"Flags": dbus.MakeVariant(flags), "Guid": dbus.MakeVariant([]string{"230c8b18-8d9b-53ec-838b-6cfc0383493a"}),
	}
	if state != 0 {
		d["UpdateState"] = dbus.MakeVariant(state)
	}
	return d
}

// Set replaces the devices without a signal.
func (f *FakeFwupd) Set(devices ...map[string]dbus.Variant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices = devices
}

// Update replaces the devices and says that the first has changed.
func (f *FakeFwupd) Update(devices ...map[string]dbus.Variant) {
	f.Set(devices...)
	f.Emit(fwupdPath, fwupdIface+".DeviceChanged", devices[0])
}
