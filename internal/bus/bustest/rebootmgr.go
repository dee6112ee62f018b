// SPDX-License-Identifier: Apache-2.0

package bustest

import "github.com/godbus/dbus/v5"

const (
	rebootmgrName = "org.opensuse.RebootMgr"
	rebootmgrPath = "/org/opensuse/RebootMgr"
)

// FakeRebootMgr is a rebootmgrd before version 3. It announces nothing. Method for On: Status.
type FakeRebootMgr struct {
	*Service
	status uint32
}

// NewRebootMgr connects one without a request.
func NewRebootMgr(d *Daemon) *FakeRebootMgr {
	f := &FakeRebootMgr{Service: newService(d, rebootmgrName)}
	f.handle(rebootmgrPath, rebootmgrName, map[string]any{
		"Status": func() (uint32, *dbus.Error) {
			err := f.called("Status")
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.status, err
		},
	})
	f.Connect()
	return f
}

// Set changes the status: 0 nothing, 1 requested, 2 waiting for the window.
func (f *FakeRebootMgr) Set(status uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = status
}
