// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
)

const (
	pid1Name    = "org.freedesktop.systemd1"
	pid1Path    = "/org/freedesktop/systemd1"
	pid1Manager = "org.freedesktop.systemd1.Manager"
	pid1Unit    = "org.freedesktop.systemd1.Unit"
	pid1Service = "org.freedesktop.systemd1.Service"

	// checkBound is how long the end of a check is waited for. The unit's own TimeoutStartSec= comes first.
	checkBound = 15 * time.Minute
	// checkLost is how long the signal with the end may be on its way once systemd says that the unit does not run.
	checkLost = 3 * time.Second
	// checkTries is how often a check is started for one answer.
	checkTries = 3
	// maxEnded bounds the ends that are kept: of our job, and of jobs that somebody else starts beside it.
	maxEnded = 8

	cldExited = 1
)

// errNoCheck says that this host does not have what the check would ask.
var errNoCheck = errors.New("nothing to check on this host")

// errAgain says that the end that was seen is not of a run that began after the question.
var errAgain = errors.New("it ended and nothing was heard of how; if it stays active, remove RemainAfterExit=")

// ending is how a run of a unit ended, as systemd announced it.
type ending struct {
	job    string // "done", "failed", "canceled", ...
	result string // "success", "exit-code", "timeout", ...

	unmet        bool   // a condition of the unit
	invocation   string // of the unit
	started      uint64 // when the program was, 0 for never; an earlier run's until then
	cause, value int32  // CLD_... and the exit code or signal
}

// ran says whether the job came to its end by itself. Others are "timeout", "dependency" and "assert", for instance.
func (e ending) ran() bool { return e.job == "done" || e.job == "failed" }

// code returns the exit code of the program or, if it did not exit by itself, what happened instead.
func (e ending) code() (code int32, instead string) {
	switch {
	case e.job == "canceled":
		return 0, "was stopped"
	case !e.ran():
		return 0, fmt.Sprintf("was not run: the job ended with %q", e.job)
	case e.started == 0:
		return 0, fmt.Sprintf("did not come to run its program: result %q", e.result)
	case e.cause != cldExited && e.cause != 0:
		return 0, fmt.Sprintf("was killed by signal %d: result %q", e.value, e.result)
	case e.cause == 0 || e.result != "success" && e.result != "exit-code":
		return 0, fmt.Sprintf("ended with result %q", e.result)
	}
	return e.value, ""
}

// checkUnit runs one oneshot unit. How it ended is only in the signals: systemd forgets a unit that has ended well at
// once, and a property that is read afterwards is the default of a unit that never ran, success with exit code 0.
type checkUnit struct {
	bus        *bus.Bus
	name, path string
	changed    hints // of the connection, or of the owner of systemd's name

	mu    sync.Mutex
	now   ending
	ended map[dbus.ObjectPath]ending // by job
	end   hints
}

func newCheckUnit(b *bus.Bus, name string) *checkUnit {
	return &checkUnit{
		bus: b, name: name, path: bus.UnitPath(name), changed: newHints(), end: newHints(),
		ended: map[dbus.ObjectPath]ending{},
	}
}

// follow listens to the unit until stop.
func (u *checkUnit) follow() (stop func()) {
	properties := func(iface string) func() {
		return u.bus.Watch(bus.Match{
			Sender: pid1Name, Path: u.path,
			Interface: "org.freedesktop.DBus.Properties", Member: "PropertiesChanged", Arg0: iface,
		}, u.propertiesChanged)
	}
	stops := []func(){
		// One watch for each, since a burst keeps only the newest signal of a watch.
		properties(pid1Unit), properties(pid1Service),
		u.bus.Watch(bus.Match{
			Sender: pid1Name, Path: pid1Path, Interface: pid1Manager, Member: "JobRemoved",
		}, u.jobRemoved),
		u.bus.OnChange(u.changed.poke),
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// run starts the unit and returns how that run ended. errNoCheck: there is no such unit, or a condition of it failed.
func (u *checkUnit) run(ctx context.Context) (ending, error) {
	var end ending
	err := errAgain
	for try := 0; try < checkTries && errors.Is(err, errAgain); try++ {
		end, err = u.once(ctx)
	}
	if err == nil && (end.result == "exec-condition" || end.job == "done" && end.unmet) {
		err = fmt.Errorf("a condition is not met: %w", errNoCheck)
	}
	if err != nil {
		return end, fmt.Errorf("%s: %w", u.name, err)
	}
	return end, nil
}

// once makes one attempt. Somebody else's run that is still going on is waited for and gives errAgain.
func (u *checkUnit) once(ctx context.Context) (ending, error) {
	u.changed.drain()
	if err := u.subscribe(ctx); err != nil {
		return ending{}, err
	}
	before, err := u.before(ctx)
	if err != nil {
		return ending{}, err
	}
	u.forget()
	body, err := u.bus.Call(ctx, bus.Call{
		Destination: pid1Name, Path: pid1Path, Member: pid1Manager + ".StartUnit",
		Args: []any{u.name, "replace"}, NoAutoStart: true,
	})
	if err != nil {
		return ending{}, u.refused(err)
	}
	job, err := parseJobPath(body)
	if err != nil {
		return ending{}, err
	}
	end, err := u.await(ctx, job)
	// It ran already, or stays active after its end so that starting it does nothing.
	if err == nil && end.ran() && !end.unmet && (end.invocation == before.invocation || end.invocation == "") {
		err = errAgain
	}
	if end.started == before.started {
		end.started = 0 // it failed on the way to the program
	}
	return end, err
}

// subscribe asks systemd for its signals, which it sends to nobody otherwise, and forgets with the connection.
func (u *checkUnit) subscribe(ctx context.Context) error {
	_, err := u.bus.Call(ctx, bus.Call{
		Destination: pid1Name, Path: pid1Path, Member: pid1Manager + ".Subscribe", NoAutoStart: true,
	})
	if bus.IsNamed(err, pid1Name+".AlreadySubscribed") {
		return nil
	}
	return err
}

// before returns what an earlier run left, or one that goes on. The read loads the unit.
func (u *checkUnit) before(ctx context.Context) (ending, error) {
	load, err := bus.Property[string](ctx, u.bus, pid1Name, u.path, pid1Unit, "LoadState")
	switch {
	case err != nil:
		return ending{}, err
	case load == "not-found" || load == "masked":
		return ending{}, fmt.Errorf("the unit is %s: %w", load, errNoCheck)
	case load != "loaded":
		return ending{}, fmt.Errorf("the unit is not loaded but %q: has it an ExecStart=?", load)
	}
	id, err := bus.Property[[]byte](ctx, u.bus, pid1Name, u.path, pid1Unit, "InvocationID")
	if err != nil {
		return ending{}, err
	}
	started, err := bus.Property[uint64](ctx, u.bus, pid1Name, u.path, pid1Service, "ExecMainStartTimestampMonotonic")
	return ending{invocation: string(id), started: started}, err
}

// await returns the end of a job.
func (u *checkUnit) await(ctx context.Context, job dbus.ObjectPath) (ending, error) {
	bound := time.NewTimer(checkBound)
	defer bound.Stop()
	var lost <-chan time.Time
	for {
		if end, ok := u.endOf(job); ok {
			return end, nil
		}
		select {
		case <-ctx.Done():
			return ending{}, ctx.Err()
		case <-bound.C:
			return ending{}, fmt.Errorf("it has not ended for %v", checkBound)
		case <-lost:
			return ending{}, errAgain
		case <-u.end:
		case <-u.changed:
			running, err := u.running(ctx)
			if err == nil && !running && lost == nil {
				lost = time.After(checkLost)
			}
		}
	}
}

// running says, after a change of the connection, whether the unit is still at work, and makes its end heard.
func (u *checkUnit) running(ctx context.Context) (bool, error) {
	if err := u.subscribe(ctx); err != nil {
		return false, err
	}
	state, err := bus.Property[string](ctx, u.bus, pid1Name, u.path, pid1Unit, "ActiveState")
	return state == "activating" || state == "deactivating", err
}

func (u *checkUnit) refused(err error) error {
	switch {
	case bus.IsNamed(err, "org.freedesktop.DBus.Error.AccessDenied"),
		bus.IsNamed(err, "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"):
		return fmt.Errorf("polkit denies its start: install kured-agent's polkit rule, or see no-polkit.conf where polkit "+
			"is older than 0.106: %w", err)
	case bus.IsNamed(err, pid1Name+".NoSuchUnit"):
		return fmt.Errorf("the unit is gone: %w", errNoCheck)
	}
	return err
}

func (u *checkUnit) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.now = ending{}
	clear(u.ended)
	u.end.drain()
}

func (u *checkUnit) endOf(job dbus.ObjectPath) (ending, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	end, ok := u.ended[job]
	return end, ok
}

// propertiesChanged keeps what is announced. Each signal of systemd holds all properties of its interface.
func (u *checkUnit) propertiesChanged(s bus.Signal) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.now.take(s.Body)
}

// take reads (interface s, changed a{sv}, invalidated as). What is of another type counts as not told.
func (e *ending) take(body []any) {
	if len(body) < 2 {
		return
	}
	changed, ok := body[1].(map[string]dbus.Variant)
	if !ok {
		return
	}
	storeProperty(changed, "Result", &e.result)
	storeProperty(changed, "ExecMainStartTimestampMonotonic", &e.started)
	storeProperty(changed, "ExecMainCode", &e.cause)
	storeProperty(changed, "ExecMainStatus", &e.value)
	met := !e.unmet
	storeProperty(changed, "ConditionResult", &met)
	e.unmet = !met
	var id []byte
	if storeProperty(changed, "InvocationID", &id); id != nil {
		e.invocation = string(id)
	}
}

func storeProperty[T any](from map[string]dbus.Variant, name string, into *T) {
	if v, ok := from[name].Value().(T); ok {
		*into = v
	}
}

// jobRemoved keeps the end of a job of the unit. systemd announces the properties before it.
func (u *checkUnit) jobRemoved(s bus.Signal) {
	job, result, ok := parseJobRemoved(s.Body, u.name)
	if !ok {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.ended) < maxEnded {
		u.now.job = result
		u.ended[job] = u.now
	}
	u.end.poke()
}

// parseJobRemoved reads (id u, job o, unit s, result s) of the given unit.
func parseJobRemoved(body []any, unit string) (job dbus.ObjectPath, result string, ok bool) {
	if len(body) != 4 || body[2] != any(unit) {
		return "", "", false
	}
	job, ok = body[1].(dbus.ObjectPath)
	result, ok2 := body[3].(string)
	return job, result, ok && ok2
}

func parseJobPath(body []any) (dbus.ObjectPath, error) {
	if len(body) == 1 {
		if job, ok := body[0].(dbus.ObjectPath); ok {
			return job, nil
		}
	}
	return "", errors.New("starting a check: the answer is not the path of a job")
}

func (h hints) drain() {
	select {
	case <-h:
	default:
	}
}
