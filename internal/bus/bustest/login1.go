// SPDX-License-Identifier: Apache-2.0

package bustest

import (
	"cmp"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"
)

const (
	login1Path  = "/org/freedesktop/login1"
	login1Iface = "org.freedesktop.login1.Manager"

	accessDenied = "org.freedesktop.DBus.Error.AccessDenied"
	interactive  = "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
	invalidArgs  = "org.freedesktop.DBus.Error.InvalidArgs"
	inProgress   = "org.freedesktop.login1.OperationInProgress"
)

// Inhibitor is one entry of logind's ListInhibitors.
type Inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// FakeLogin1 is a logind that records and never reboots. It answers as the real one of its version does, measured on
// 247, 252, 257 and 262. Methods for On: RebootWithFlags, Reboot, CanReboot, Inhibit, ListInhibitors, ScheduleShutdown,
// CancelScheduledShutdown, SetWallMessage, Get.
type FakeLogin1 struct {
	*Service
	version    int
	user       bool // the caller is not root
	can        string
	inhibitors []Inhibitor
	locks      map[int]*os.File // the reading ends of those that Inhibit gave out
	lastLock   int
	dry        bool // what is scheduled is only a trial
	walls      []string
}

// NewLogin1 connects one of systemd 252 that is asked by root.
func NewLogin1(d *Daemon) *FakeLogin1 {
	f := &FakeLogin1{Service: newService(d, "org.freedesktop.login1"), locks: map[int]*os.File{}}
	f.handle(login1Path, login1Iface, map[string]any{
		"RebootWithFlags":         f.rebootWithFlags,
		"Reboot":                  f.reboot,
		"CanReboot":               f.canReboot,
		"Inhibit":                 f.inhibit,
		"ListInhibitors":          f.listInhibitors,
		"ScheduleShutdown":        f.scheduleShutdown,
		"CancelScheduledShutdown": f.cancelScheduledShutdown,
		"SetWallMessage":          f.setWallMessage,
	})
	f.SetProperty(login1Path, login1Iface, "PreparingForShutdown", false)
	f.SetProperty(login1Path, login1Iface, "BlockInhibited", "")
	f.SetProperty(login1Path, login1Iface, "InhibitDelayMaxUSec", uint64(5_000_000))
	f.SetVersion(252)
	f.Connect()
	d.t.Cleanup(f.freeLocks)
	return f
}

// SetVersion makes it that of another systemd.
func (f *FakeLogin1) SetVersion(version int) {
	f.mu.Lock()
	f.version = version
	f.mu.Unlock()
	f.setWall("", version >= 252)
	f.SetScheduled("", f.never())
}

// Old takes RebootWithFlags away, as before systemd 248.
func (f *FakeLogin1) Old() { f.SetVersion(247) }

// SetUser makes the caller somebody with the polkit rule of the agent in place of root.
func (f *FakeLogin1) SetUser() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.user = true
}

// SetCan sets the answer of CanReboot; empty is the one of the version.
func (f *FakeLogin1) SetCan(can string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.can = can
}

// SetInhibitors replaces the list and announces BlockInhibited.
func (f *FakeLogin1) SetInhibitors(list ...Inhibitor) {
	var blocked []string
	for _, i := range list {
		if i.Mode == "block" {
			blocked = append(blocked, i.What)
		}
	}
	f.mu.Lock()
	f.inhibitors = list
	f.mu.Unlock()
	f.ChangeProperty(login1Path, login1Iface, "BlockInhibited", strings.Join(blocked, ":"))
}

// SetScheduled sets ScheduledShutdown to a real one; microseconds since 1970, 0 for none. From 257 on it is announced.
func (f *FakeLogin1) SetScheduled(what string, usec uint64) {
	f.mu.Lock()
	f.dry = false
	f.mu.Unlock()
	f.schedule(what, usec)
}

// Scheduled is what ScheduledShutdown says, and whether it is only a trial.
func (f *FakeLogin1) Scheduled() (what string, usec uint64, dry bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, _ := f.props[login1Path][login1Iface]["ScheduledShutdown"].Value().(scheduled)
	return s.What, s.USec, f.dry
}

// Walls returns the messages that reached the terminals.
func (f *FakeLogin1) Walls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.walls)
}

// Wall is the message of the next shutdown, and whether the terminals get it.
func (f *FakeLogin1) Wall() (message string, on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	message, _ = f.props[login1Path][login1Iface]["WallMessage"].Value().(string)
	on, _ = f.props[login1Path][login1Iface]["EnableWallMessages"].Value().(bool)
	return message, on
}

// Locks is how many locks of Inhibit somebody holds.
func (f *FakeLogin1) Locks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.locks)
}

// PrepareForShutdown sets the property and emits the signal.
func (f *FakeLogin1) PrepareForShutdown(active bool) {
	f.SetProperty(login1Path, login1Iface, "PreparingForShutdown", active)
	f.Emit(login1Path, login1Iface+".PrepareForShutdown", active)
}

// Connect joins the bus again as a new process. Locks survive that; so does what is scheduled, from 252 on, but no
// longer as a trial.
func (f *FakeLogin1) Connect() {
	f.Disconnect()
	f.mu.Lock()
	version := f.version
	f.dry = false
	f.mu.Unlock()
	if version < 252 {
		f.schedule("", f.never())
	}
	f.Service.Connect()
}

type scheduled struct {
	What string
	USec uint64
}

func (f *FakeLogin1) schedule(what string, usec uint64) {
	f.mu.Lock()
	announced := f.version >= 257
	f.mu.Unlock()
	if announced {
		f.ChangeProperty(login1Path, login1Iface, "ScheduledShutdown", scheduled{what, usec})
		return
	}
	f.SetProperty(login1Path, login1Iface, "ScheduledShutdown", scheduled{what, usec})
}

// never is the time of what is not scheduled.
func (f *FakeLogin1) never() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.version < 252 {
		return 0
	}
	return math.MaxUint64
}

func (f *FakeLogin1) rebootWithFlags(flags uint64) *dbus.Error {
	if err := f.called("RebootWithFlags", flags); err != nil {
		return err
	}
	f.mu.Lock()
	version, user := f.version, f.user
	f.mu.Unlock()
	switch {
	case version < 248 && user: // by its bus policy, which lists what others than root may call
		return dbus.NewError(accessDenied, []any{`Rejected send message, 2 matched rules; type="method_call"`})
	case version < 248:
		return dbus.NewError("org.freedesktop.DBus.Error.UnknownMethod",
			[]any{"Unknown method RebootWithFlags or interface org.freedesktop.login1.Manager."})
	}
	known := uint64(1)
	for _, since := range []int{249, 254, 255, 257} { // kexec, soft, soft if set up, skip inhibitors
		if version >= since {
			known = known<<1 | 1
		}
	}
	if flags&^known != 0 {
		return dbus.NewError(invalidArgs, []any{"Invalid flags parameter"})
	}
	return f.accept()
}

func (f *FakeLogin1) reboot(askPassword bool) *dbus.Error {
	if err := f.called("Reboot", askPassword); err != nil {
		return err
	}
	return f.accept()
}

// accept is what both ways to ask for a reboot do.
func (f *FakeLogin1) accept() *dbus.Error {
	f.mu.Lock()
	preparing, _ := f.props[login1Path][login1Iface]["PreparingForShutdown"].Value().(bool)
	f.mu.Unlock()
	if preparing {
		return dbus.NewError(inProgress, []any{"There's already a shutdown or sleep operation in progress"})
	}
	if err := f.authorize(); err != nil {
		return err
	}
	if message, on := f.Wall(); on {
		f.mu.Lock()
		f.walls = append(f.walls, message)
		f.mu.Unlock()
	}
	return nil
}

// authorize is how block inhibitors refuse a shutdown.
func (f *FakeLogin1) authorize() *dbus.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	const active = "due to active block inhibitor"
	switch {
	case f.held("block") && f.version >= 258:
		return dbus.NewError("org.freedesktop.login1.BlockedByInhibitorLock", []any{"Operation denied " + active})
	case f.held("block") && f.version == 257:
		return dbus.NewError(accessDenied, []any{"Access denied " + active})
	case f.user && (f.held("block") || f.held("block-weak")):
		return dbus.NewError(interactive, []any{"Interactive authentication required."})
	}
	return nil
}

func (f *FakeLogin1) held(mode string) bool {
	return slices.ContainsFunc(f.inhibitors, func(i Inhibitor) bool {
		return i.Mode == mode && slices.Contains(strings.Split(i.What, ":"), "shutdown")
	})
}

func (f *FakeLogin1) canReboot() (string, *dbus.Error) {
	err := f.called("CanReboot")
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := "yes"
	if f.user && (f.held("block") || f.held("block-weak")) {
		answer = "challenge"
		if f.version >= 258 {
			answer = "inhibited"
		}
	}
	return cmp.Or(f.can, answer), err
}

func (f *FakeLogin1) listInhibitors() ([]Inhibitor, *dbus.Error) {
	err := f.called("ListInhibitors")
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inhibitors, err
}

func (f *FakeLogin1) scheduleShutdown(what string, usec uint64) *dbus.Error {
	if err := f.called("ScheduleShutdown", what, usec); err != nil {
		return err
	}
	what, dry := strings.CutPrefix(what, "dry-") // the property never shows it
	if what != "reboot" && what != "poweroff" && what != "halt" {
		return dbus.NewError(invalidArgs, []any{"Unsupported shutdown type"})
	}
	if err := f.authorize(); err != nil {
		return err
	}
	f.mu.Lock()
	f.dry = dry
	f.mu.Unlock()
	f.schedule(what, usec)
	return nil
}

func (f *FakeLogin1) cancelScheduledShutdown() (bool, *dbus.Error) {
	if err := f.called("CancelScheduledShutdown"); err != nil {
		return false, err
	}
	if what, _, _ := f.Scheduled(); what == "" {
		return false, nil
	}
	if _, on := f.Wall(); on {
		f.mu.Lock()
		f.walls = append(f.walls, "System shutdown has been cancelled")
		f.mu.Unlock()
	}
	f.SetScheduled("", f.never())
	return true, nil
}

func (f *FakeLogin1) setWallMessage(message string, on bool) *dbus.Error {
	if err := f.called("SetWallMessage", message, on); err != nil {
		return err
	}
	if len(message) > 4096 {
		return dbus.NewError(invalidArgs, []any{"Wall message too long, maximum permitted length is 4096 characters."})
	}
	f.setWall(message, on)
	return nil
}

func (f *FakeLogin1) setWall(message string, on bool) {
	f.SetProperty(login1Path, login1Iface, "WallMessage", message)
	f.SetProperty(login1Path, login1Iface, "EnableWallMessages", on)
}

// inhibit gives a lock out that lives as long as its descriptor. The answer goes out by hand, because the fake has to
// close its own copy afterwards; the bus drops the second, automatic answer.
func (f *FakeLogin1) inhibit(msg dbus.Message, what, who, why, mode string) *dbus.Error {
	if err := f.called("Inhibit", what, who, why, mode); err != nil {
		return err
	}
	f.mu.Lock()
	preparing, _ := f.props[login1Path][login1Iface]["PreparingForShutdown"].Value().(bool)
	conn := f.conn
	f.mu.Unlock()
	if preparing {
		return dbus.NewError(inProgress, []any{"The operation inhibition has been requested for is already running"})
	}
	r, w, err := os.Pipe()
	if err != nil || conn == nil {
		return dbus.NewError("org.freedesktop.DBus.Error.Failed", []any{"no pipe"})
	}
	defer w.Close()
	f.keep(r, Inhibitor{What: what, Who: who, Why: why, Mode: mode, PID: uint32(os.Getpid())})
	conn.Send(&dbus.Message{
		Type: dbus.TypeMethodReply,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: msg.Headers[dbus.FieldSender],
			dbus.FieldReplySerial: dbus.MakeVariant(msg.Serial()),
			dbus.FieldSignature:   dbus.MakeVariant(dbus.SignatureOf(dbus.UnixFD(0))),
		},
		Body: []any{dbus.UnixFD(w.Fd())},
	}, nil)
	return nil
}

// keep lists the lock until all copies of its other end are closed.
func (f *FakeLogin1) keep(r *os.File, i Inhibitor) {
	f.mu.Lock()
	f.lastLock++
	id := f.lastLock
	f.locks[id] = r
	f.inhibitors = append(f.inhibitors, i)
	f.mu.Unlock()
	go func() {
		_, _ = io.Copy(io.Discard, r)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.locks[id] == nil {
			return
		}
		delete(f.locks, id)
		_ = r.Close()
		if n := slices.Index(f.inhibitors, i); n >= 0 {
			f.inhibitors = slices.Delete(slices.Clone(f.inhibitors), n, n+1)
		}
	}()
}

func (f *FakeLogin1) freeLocks() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.locks {
		_ = r.Close()
	}
	clear(f.locks)
}
