// SPDX-License-Identifier: Apache-2.0

package bustest

import (
	"fmt"
	"strings"

	"github.com/godbus/dbus/v5"
)

const (
	systemdPath  = "/org/freedesktop/systemd1"
	systemdIface = "org.freedesktop.systemd1.Manager"
	unitIface    = "org.freedesktop.systemd1.Unit"
	jobIface     = "org.freedesktop.systemd1.Job"
	updatePath   = "/com/coreos/update1"
	updateIface  = "com.coreos.update1.Manager"
)

// FakeUpdateEngine is Flatcar's update_engine. Method for On: GetStatus.
type FakeUpdateEngine struct {
	*Service
	operation, version string
}

// NewUpdateEngine connects an idle one.
func NewUpdateEngine(d *Daemon) *FakeUpdateEngine {
	f := &FakeUpdateEngine{Service: newService(d, "com.coreos.update1"), operation: "UPDATE_STATUS_IDLE", version: "0.0.0"}
	f.handle(updatePath, updateIface, map[string]any{
		"GetStatus": func() (int64, float64, string, string, int64, *dbus.Error) {
			err := f.called("GetStatus")
			f.mu.Lock()
			defer f.mu.Unlock()
			return 1700000000, 0, f.operation, f.version, 0, err
		},
	})
	f.Connect()
	return f
}

// Set changes the status without a signal, as ResetStatus does.
func (f *FakeUpdateEngine) Set(operation, version string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.operation, f.version = operation, version
}

// Status changes the status and emits StatusUpdate.
func (f *FakeUpdateEngine) Status(operation, version string) {
	f.Set(operation, version)
	f.Emit(updatePath, updateIface+".StatusUpdate", int64(1700000000), 0.0, operation, version, int64(0))
}

// FakeUnit is one unit of FakeSystemd1.
type FakeUnit struct {
	Load, Active, Sub string
	Requires, Wants   []string
	JobType           string // of its pending job, or empty
	File              string // UnitFileState
}

// FakeSystemd1 is a service manager. It emits only while somebody is subscribed, and forgets its subscribers when it
// leaves the bus, as PID 1 does. Methods for On: Subscribe, LoadUnit, GetUnit, StartUnit, ListUnitsFiltered, Get.
type FakeSystemd1 struct {
	*Service
	units map[string]FakeUnit
}

// NewSystemd1 connects one without units.
func NewSystemd1(d *Daemon) *FakeSystemd1 {
	f := &FakeSystemd1{Service: newService(d, "org.freedesktop.systemd1"), units: map[string]FakeUnit{}}
	f.silent = true
	f.handle(systemdPath, systemdIface, map[string]any{
		"Subscribe": func() *dbus.Error {
			if err := f.called("Subscribe"); err != nil {
				return err
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.silent = false
			return nil
		},
		"LoadUnit": func(name string) (dbus.ObjectPath, *dbus.Error) {
			err := f.called("LoadUnit", name)
			f.mu.Lock()
			_, ok := f.units[name]
			f.mu.Unlock()
			if !ok {
				f.SetUnit(name, FakeUnit{Load: "not-found", Active: "inactive", Sub: "dead"})
			}
			return UnitPath(name), err
		},
		"GetUnit": func(name string) (dbus.ObjectPath, *dbus.Error) {
			if err := f.called("GetUnit", name); err != nil {
				return "/", err
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if _, ok := f.units[name]; !ok {
				return "/", dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit " + name + " not loaded."})
			}
			return UnitPath(name), nil
		},
		"StartUnit": func(name, mode string) (dbus.ObjectPath, *dbus.Error) {
			return "/org/freedesktop/systemd1/job/7", f.called("StartUnit", name, mode)
		},
		"ListUnitsByNames": func(names []string) ([]listedUnit, *dbus.Error) {
			err := f.called("ListUnitsByNames", names)
			return f.named(names), err
		},
		"ListUnitFilesByPatterns": func(states, patterns []string) ([]listedFile, *dbus.Error) {
			err := f.called("ListUnitFilesByPatterns", states, patterns)
			return f.files(patterns), err
		},
		"ListUnitsFiltered": func(states []string) ([]listedUnit, *dbus.Error) {
			err := f.called("ListUnitsFiltered", states)
			return f.list(states), err
		},
	})
	f.SetProperty(systemdPath, systemdIface, "Version", "252.39-1~deb12u1")
	f.Connect()
	return f
}

type listedUnit struct {
	Name, Description, Load, Active, Sub, Following string
	Path                                            dbus.ObjectPath
	Job                                             uint32
	JobType                                         string
	JobPath                                         dbus.ObjectPath
}

// named lists each of the units, also one that does not exist, as systemd does.
func (f *FakeSystemd1) named(names []string) []listedUnit {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []listedUnit
	for _, name := range names {
		u, ok := f.units[name]
		if !ok {
			u = FakeUnit{Load: "not-found", Active: "inactive", Sub: "dead"}
		}
		out = append(out, listedUnit{Name: name, Load: u.Load, Active: u.Active, Sub: u.Sub, Path: UnitPath(name), JobPath: "/"})
	}
	return out
}

type listedFile struct{ Path, State string }

// files lists those of the units that have a file, by their names alone: patterns are not needed here.
func (f *FakeSystemd1) files(names []string) []listedFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []listedFile
	for _, name := range names {
		if u := f.units[name]; u.File != "" {
			out = append(out, listedFile{"/usr/lib/systemd/system/" + name, u.File})
		}
	}
	return out
}

func (f *FakeSystemd1) list(states []string) []listedUnit {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []listedUnit
	for name, u := range f.units {
		for _, state := range states {
			if u.Active == state {
				out = append(out, listedUnit{Name: name, Load: u.Load, Active: u.Active, Sub: u.Sub,
					Path: UnitPath(name), JobPath: "/"})
			}
		}
	}
	return out
}

// Disconnect leaves the bus and forgets the subscribers.
func (f *FakeSystemd1) Disconnect() {
	f.mu.Lock()
	f.silent = true
	f.mu.Unlock()
	f.Service.Disconnect()
}

// Connect joins the bus again.
func (f *FakeSystemd1) Connect() {
	f.Disconnect()
	f.Service.Connect()
}

// SetUnit adds or changes a unit and, to subscribers, says so.
func (f *FakeSystemd1) SetUnit(name string, u FakeUnit) {
	if u.Load == "" {
		u.Load = "loaded"
	}
	f.mu.Lock()
	f.units[name] = u
	f.mu.Unlock()
	path := string(UnitPath(name))
	for property, value := range map[string]any{
		"LoadState": u.Load, "SubState": u.Sub, "UnitFileState": u.File, "Requires": u.Requires, "Wants": u.Wants,
		"Job": f.job(name, u),
	} {
		f.SetProperty(path, unitIface, property, value)
	}
	f.ChangeProperty(path, unitIface, "ActiveState", u.Active)
}

type job struct {
	ID   uint32
	Path dbus.ObjectPath
}

func (f *FakeSystemd1) job(name string, u FakeUnit) job {
	if u.JobType == "" {
		return job{0, "/"}
	}
	path := "/org/freedesktop/systemd1/job/9" + strings.TrimPrefix(string(UnitPath(name)), systemdPath+"/unit")
	f.SetProperty(path, jobIface, "JobType", u.JobType)
	return job{9, dbus.ObjectPath(path)}
}

// UnitPath is the object path of a unit: every byte that is not a letter or digit is written as _xx.
func UnitPath(name string) dbus.ObjectPath {
	var b strings.Builder
	b.WriteString(systemdPath + "/unit/")
	for i, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if letter || c >= '0' && c <= '9' && i > 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return dbus.ObjectPath(b.String())
}
