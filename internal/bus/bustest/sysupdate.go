// SPDX-License-Identifier: Apache-2.0

package bustest

import "github.com/godbus/dbus/v5"

const (
	sysupdateName = "org.freedesktop.sysupdate1"
	sysupdatePath = "/org/freedesktop/sysupdate1"
	sysupdateHost = "/org/freedesktop/sysupdate1/target/host"
)

// FakeSysupdate is a systemd-sysupdated with the host as its only target. Method for On: GetVersion. Disconnect is its
// idle exit.
type FakeSysupdate struct {
	*Service
	newest string
}

// NewSysupdate returns one that is not on the bus yet.
func NewSysupdate(d *Daemon, newest string) *FakeSysupdate {
	f := &FakeSysupdate{Service: newService(d, sysupdateName), newest: newest}
	f.handle(sysupdateHost, sysupdateName+".Target", map[string]any{
		"GetVersion": func() (string, *dbus.Error) {
			err := f.called("GetVersion")
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.newest, err
		},
	})
	return f
}

// Set changes the newest installed version without a signal, as systemd-sysupdate does.
func (f *FakeSysupdate) Set(newest string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newest = newest
}

// Update changes the newest installed version and emits JobRemoved.
func (f *FakeSysupdate) Update(newest string) {
	f.Set(newest)
	f.Emit(sysupdatePath, sysupdateName+".Manager.JobRemoved",
		uint64(1), dbus.ObjectPath(sysupdatePath+"/job/_1"), int32(0))
}
