// SPDX-License-Identifier: Apache-2.0

package bustest

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/godbus/dbus/v5"
)

const serviceIface = "org.freedesktop.systemd1.Service"

// CheckRun is how a run of a oneshot unit ends. Signal other than 0: the program was killed.
type CheckRun struct {
	Job    string // empty: "done" for the results "success" and "exec-condition", else "failed"
	Result string // empty: "success" for code 0, else "exit-code"
	Code   int32
	Signal int32

	NoProgram   bool // the unit fails before its program, as by an ExecStartPre=
	NoCondition bool // a condition of the unit is not met
}

// FakeCheck is a service manager with one oneshot unit. As PID 1 does, it signals to subscribers only and forgets them
// when it leaves the bus, takes a start during a run for the same job, and has forgotten a unit that ended well as soon
// as it has said so. Methods for On: Subscribe, StartUnit, Get.
type FakeCheck struct {
	*Service
	unit, path string

	acting sync.Mutex // guards what follows
	run    CheckRun
	held   bool // a run goes on until End
	done   bool // the unit is active already, and starting it does nothing

	job        uint32 // of the present run; 0: none
	jobs       uint32
	clock      uint64
	unitProps  map[string]any
	serviceRun map[string]any
}

// NewCheck connects one whose unit exits with 0.
func NewCheck(d *Daemon, unit string) *FakeCheck {
	f := &FakeCheck{Service: newService(d, "org.freedesktop.systemd1"), unit: unit, path: string(UnitPath(unit))}
	f.silent = true
	f.handle(systemdPath, systemdIface, map[string]any{
		"Subscribe": func() *dbus.Error {
			err := f.called("Subscribe")
			f.mu.Lock()
			defer f.mu.Unlock()
			if err == nil && !f.silent {
				err = dbus.NewError("org.freedesktop.systemd1.AlreadySubscribed", []any{"Client is already subscribed."})
			}
			f.silent = false
			return err
		},
		"StartUnit": func(name, mode string) (dbus.ObjectPath, *dbus.Error) {
			if err := f.called("StartUnit", name, mode); err != nil {
				return "/", err
			}
			return f.Begin(), nil
		},
	})
	f.SetLoad("loaded")
	f.forget()
	f.Connect()
	return f
}

// SetLoad sets the LoadState: "loaded", "not-found", "masked", "bad-setting".
func (f *FakeCheck) SetLoad(state string) { f.SetProperty(f.path, unitIface, "LoadState", state) }

// SetRun sets how the next runs end.
func (f *FakeCheck) SetRun(run CheckRun) {
	f.acting.Lock()
	defer f.acting.Unlock()
	f.run = run
}

// Hold makes runs go on until End.
func (f *FakeCheck) Hold(held bool) {
	f.acting.Lock()
	defer f.acting.Unlock()
	f.held = held
}

// Stay makes the unit one that remains active after a run: a start does nothing more.
func (f *FakeCheck) Stay() {
	f.acting.Lock()
	defer f.acting.Unlock()
	f.done = true
}

// Disconnect leaves the bus and forgets the subscribers; a run goes on.
func (f *FakeCheck) Disconnect() {
	f.mu.Lock()
	f.silent = true
	f.mu.Unlock()
	f.Service.Disconnect()
}

// Connect joins the bus again.
func (f *FakeCheck) Connect() {
	f.Disconnect()
	f.Service.Connect()
}

// Begin starts a run, by whomever, and returns its job.
func (f *FakeCheck) Begin() dbus.ObjectPath {
	f.acting.Lock()
	defer f.acting.Unlock()
	if f.job != 0 {
		return f.jobPath(f.job)
	}
	f.jobs++
	f.job = f.jobs
	switch {
	case f.done:
		f.removeJob("done")
	case f.run.NoCondition:
		f.unitProps["ConditionResult"] = false
		f.announce()
		f.removeJob("done")
	default:
		f.begin(f.run)
		if !f.held {
			f.end(f.run)
		}
	}
	return f.jobPath(f.jobs)
}

func (f *FakeCheck) begin(run CheckRun) {
	f.clock += 1000
	id := binary.BigEndian.AppendUint64(make([]byte, 8), f.clock)
	f.unitProps = map[string]any{"ActiveState": "activating", "ConditionResult": true, "InvocationID": id}
	if !run.NoProgram { // else what an earlier run left stays
		f.serviceRun = service("success", 0, 0, f.clock)
	}
	f.announce()
}

// End ends the present run, if there is one.
func (f *FakeCheck) End() {
	f.acting.Lock()
	defer f.acting.Unlock()
	if f.job != 0 {
		f.end(f.run)
	}
}

func (f *FakeCheck) end(run CheckRun) {
	result := run.Result
	switch {
	case result != "":
	case run.Signal != 0:
		result = "signal"
	case run.Code != 0:
		result = "exit-code"
	default:
		result = "success"
	}
	cause, status := int32(1), run.Code
	if run.Signal != 0 {
		cause, status = 2, run.Signal
	}
	if run.NoProgram {
		f.serviceRun["Result"] = result
	} else {
		f.serviceRun = service(result, cause, status, f.clock)
	}
	how, state := "done", "inactive"
	if result != "success" && result != "exec-condition" {
		how, state = "failed", "failed"
	}
	if run.Job != "" {
		how = run.Job
	}
	f.unitProps["ActiveState"] = state
	f.announce()
	f.removeJob(how)
	if state == "inactive" {
		f.forget()
	}
}

func service(result string, cause, status int32, started uint64) map[string]any {
	return map[string]any{
		"Result": result, "ExecMainCode": cause, "ExecMainStatus": status, "ExecMainStartTimestampMonotonic": started,
	}
}

// forget makes the unit one that was never started.
func (f *FakeCheck) forget() {
	f.unitProps = map[string]any{
		"ActiveState": "inactive", "ConditionResult": false, "InvocationID": []byte{},
	}
	f.serviceRun = service("success", 0, 0, 0)
	f.store()
}

func (f *FakeCheck) store() {
	for name, value := range f.unitProps {
		f.SetProperty(f.path, unitIface, name, value)
	}
	for name, value := range f.serviceRun {
		f.SetProperty(f.path, serviceIface, name, value)
	}
}

// announce tells all properties of both interfaces.
func (f *FakeCheck) announce() {
	f.store()
	for iface, all := range map[string]map[string]any{unitIface: f.unitProps, serviceIface: f.serviceRun} {
		changed := map[string]dbus.Variant{}
		for name, value := range all {
			changed[name] = dbus.MakeVariant(value)
		}
		f.Emit(f.path, "org.freedesktop.DBus.Properties.PropertiesChanged", iface, changed, []string{})
	}
}

func (f *FakeCheck) removeJob(result string) {
	job := f.job
	f.job = 0
	f.Emit(systemdPath, systemdIface+".JobRemoved", job, f.jobPath(job), f.unit, result)
}

func (f *FakeCheck) jobPath(job uint32) dbus.ObjectPath {
	return dbus.ObjectPath(fmt.Sprintf("%s/job/%d", systemdPath, job))
}
