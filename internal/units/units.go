// SPDX-License-Identifier: Apache-2.0

// Package units reads and starts systemd units. The agent runs no programs: its hooks and checks are units.
package units

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
)

const (
	service = "org.freedesktop.systemd1"
	path    = "/org/freedesktop/systemd1"
	iface   = "org.freedesktop.systemd1.Manager"
	unit    = "org.freedesktop.systemd1.Unit"
	job     = "org.freedesktop.systemd1.Job"

	noSuchUnit = "org.freedesktop.systemd1.NoSuchUnit"

	// NotFound is the state of a unit that does not exist.
	NotFound = "not-found"
)

// Client talks to the service manager.
type Client struct {
	bus *bus.Bus

	mu          sync.Mutex
	hints       []func() // of the watches
	subscribing bool     // a goroutine does
	again       bool     // and has to do so once more
}

// New returns a Client on b.
func New(b *bus.Bus) *Client { return &Client{bus: b} }

// Active returns ActiveState and SubState of a unit, loading it if need be; NotFound and "" when there is none.
func (c *Client) Active(ctx context.Context, name string) (state, sub string, err error) {
	object, err := c.object(ctx, "LoadUnit", name)
	if err != nil {
		return "", "", err
	}
	load, err := property[string](ctx, c, object, unit, "LoadState")
	if err != nil {
		return "", "", err
	}
	if load == NotFound {
		return NotFound, "", nil
	}
	if state, err = property[string](ctx, c, object, unit, "ActiveState"); err != nil {
		return "", "", err
	}
	if sub, err = property[string](ctx, c, object, unit, "SubState"); err != nil {
		return "", "", err
	}
	return state, sub, nil
}

// Installed returns ActiveState and UnitFileState ("enabled", "disabled", "masked", "static", …) of those of the units
// that exist. It costs two calls, however many they are.
func (c *Client) Installed(ctx context.Context, names []string) (active, file map[string]string, err error) {
	body, err := c.call(ctx, "ListUnitsByNames", names)
	if err != nil {
		return nil, nil, err
	}
	listed, err := parseUnits(body)
	if err != nil {
		return nil, nil, err
	}
	active = map[string]string{}
	for _, u := range listed {
		if u.load != NotFound {
			active[u.name] = u.active
		}
	}
	if body, err = c.call(ctx, "ListUnitFilesByPatterns", []string{}, names); err != nil {
		return nil, nil, err
	}
	if file, err = parseFiles(body); err != nil {
		return nil, nil, err
	}
	return active, file, nil
}

// parseFiles reads a(ss): path and state of unit files.
func parseFiles(body []any) (map[string]string, error) {
	bad := errors.New("reading a list of unit files: not a(ss)")
	if len(body) != 1 {
		return nil, bad
	}
	list, ok := body[0].([][]any)
	if !ok {
		return nil, bad
	}
	states := map[string]string{}
	for _, fields := range list {
		if len(fields) != 2 {
			return nil, bad
		}
		file, ok1 := fields[0].(string)
		state, ok2 := fields[1].(string)
		if !ok1 || !ok2 {
			return nil, bad
		}
		states[filepath.Base(file)] = state
	}
	return states, nil
}

// SoftReboots returns how many soft reboots this boot of the kernel has seen, and when the newest began the userspace
// that runs now. A systemd that can't tell has seen none: the count came with version 256.
func (c *Client) SoftReboots(ctx context.Context) (count uint32, started time.Time, err error) {
	count, err = property[uint32](ctx, c, path, iface, "SoftRebootsCount")
	if bus.IsNamed(err, "org.freedesktop.DBus.Error.UnknownProperty") {
		return 0, time.Time{}, nil
	}
	if err != nil || count == 0 {
		return 0, time.Time{}, err
	}
	usec, err := property[uint64](ctx, c, path, iface, "UserspaceTimestamp")
	switch {
	case err != nil:
		return 0, time.Time{}, err
	case usec > math.MaxInt64:
		return 0, time.Time{}, fmt.Errorf("reading when the userspace started: %d is no time", usec)
	}
	return count, time.UnixMicro(int64(usec)), nil
}

// JobType returns the type of the unit's pending job ("start", "stop", "restart", "try-restart"), or "". A unit has at
// most one. At SIGTERM it tells a restart from a stop.
func (c *Client) JobType(ctx context.Context, name string) (string, error) {
	object, err := c.object(ctx, "GetUnit", name)
	if bus.IsNamed(err, noSuchUnit) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	v, err := c.bus.Get(ctx, service, string(object), unit, "Job")
	if err != nil {
		return "", err
	}
	id, jobPath, err := parseJob(v.Value())
	if err != nil || id == 0 {
		return "", err
	}
	typ, err := property[string](ctx, c, jobPath, job, "JobType")
	if bus.IsNamed(err, "org.freedesktop.DBus.Error.UnknownObject") {
		return "", nil // it ended between the two questions
	}
	return typ, err
}

// parseJob reads (uo): id, 0 for none, and object path.
func parseJob(v any) (uint32, dbus.ObjectPath, error) {
	fields, ok := v.([]any)
	if !ok || len(fields) != 2 {
		return 0, "", errors.New("reading the job of a unit: not (uo)")
	}
	id, ok1 := fields[0].(uint32)
	object, ok2 := fields[1].(dbus.ObjectPath)
	if !ok1 || !ok2 || !object.IsValid() {
		return 0, "", errors.New("reading the job of a unit: not (uo)")
	}
	return id, object, nil
}

// Start queues the start of a unit and returns before it is started: follow it with Active.
func (c *Client) Start(ctx context.Context, name string) error {
	_, err := c.call(ctx, "StartUnit", name, "replace")
	return err
}

// Hooks returns the units that the target requires or wants.
func (c *Client) Hooks(ctx context.Context, target string) ([]string, error) {
	object, needed, err := c.requires(ctx, target)
	if err != nil {
		return nil, err
	}
	wanted, err := property[[]string](ctx, c, object, unit, "Wants")
	if err != nil {
		return nil, err
	}
	return append(needed, wanted...), nil
}

// Failed returns the failed units that the target requires, in alphabetical order. One that it only wants may fail.
func (c *Client) Failed(ctx context.Context, target string) ([]string, error) {
	_, needed, err := c.requires(ctx, target)
	if err != nil {
		return nil, err
	}
	body, err := c.call(ctx, "ListUnitsFiltered", []string{"failed"})
	if err != nil {
		return nil, err
	}
	listed, err := parseUnits(body)
	if err != nil {
		return nil, err
	}
	var failed []string
	for _, u := range listed {
		if slices.Contains(needed, u.name) {
			failed = append(failed, u.name)
		}
	}
	slices.Sort(failed)
	return failed, nil
}

// requires returns the object of a target, and the units that it requires.
func (c *Client) requires(ctx context.Context, target string) (dbus.ObjectPath, []string, error) {
	object, err := c.object(ctx, "LoadUnit", target)
	if err != nil {
		return "", nil, err
	}
	needed, err := property[[]string](ctx, c, object, unit, "Requires")
	return object, needed, err
}

// listed is a unit in an answer of systemd.
type listed struct{ name, load, active string }

// parseUnits reads a(ssssssouso): name, description, LoadState, ActiveState and more.
func parseUnits(body []any) ([]listed, error) {
	bad := errors.New("reading a list of units: not a(ssssssouso)")
	if len(body) != 1 {
		return nil, bad
	}
	list, ok := body[0].([][]any)
	if !ok {
		return nil, bad
	}
	units := make([]listed, 0, len(list))
	for _, fields := range list {
		if len(fields) != 10 {
			return nil, bad
		}
		name, ok1 := fields[0].(string)
		load, ok2 := fields[2].(string)
		active, ok3 := fields[3].(string)
		if !ok1 || !ok2 || !ok3 {
			return nil, bad
		}
		units = append(units, listed{name, load, active})
	}
	return units, nil
}

// Watch calls hint when a property of the unit changed, and whenever changes may have been missed. systemd sends
// nothing to a bus without a subscriber, and forgets its subscribers when it or we leave the bus
// (systemd/systemd#27697): so Subscribe is called again on every change of the connection or of its owner, and the hint
// follows it. The hint must not block, and may run on several goroutines at once.
func (c *Client) Watch(name string, hint func()) {
	c.mu.Lock()
	c.hints = append(c.hints, hint)
	first := len(c.hints) == 1
	c.mu.Unlock()
	c.bus.Watch(bus.Match{
		Sender: service, Path: bus.UnitPath(name),
		Interface: "org.freedesktop.DBus.Properties", Member: "PropertiesChanged", Arg0: unit,
	}, func(bus.Signal) { hint() })
	if first {
		c.bus.OnChange(c.resubscribe)
	}
}

// resubscribe runs on the bus goroutine, so the call, which may take its full timeout, gets one of its own.
func (c *Client) resubscribe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.again = true
	if !c.subscribing {
		c.subscribing = true
		go c.subscribe()
	}
}

func (c *Client) subscribe() {
	for {
		c.mu.Lock()
		if !c.again {
			c.subscribing = false
			c.mu.Unlock()
			return
		}
		c.again = false
		hints := slices.Clone(c.hints)
		c.mu.Unlock()
		// An error needs no handling: the next change of the connection or the owner brings another attempt, and whoever
		// reads on the hint meets the same error.
		_, _ = c.call(context.Background(), "Subscribe")
		for _, hint := range hints {
			hint()
		}
	}
}

func (c *Client) object(ctx context.Context, method, name string) (dbus.ObjectPath, error) {
	body, err := c.call(ctx, method, name)
	if err != nil {
		return "", err
	}
	object, ok := parseObject(body)
	if !ok {
		return "", fmt.Errorf("finding unit %q: the answer is not an object path", name)
	}
	return object, nil
}

// parseObject reads o.
func parseObject(body []any) (dbus.ObjectPath, bool) {
	if len(body) != 1 {
		return "", false
	}
	object, ok := body[0].(dbus.ObjectPath)
	return object, ok && object.IsValid()
}

func (c *Client) call(ctx context.Context, method string, args ...any) ([]any, error) {
	return c.bus.Call(ctx, bus.Call{Destination: service, Path: path, Member: iface + "." + method, Args: args})
}

func property[T any](ctx context.Context, c *Client, object dbus.ObjectPath, iface, property string) (T, error) {
	return bus.Property[T](ctx, c.bus, service, string(object), iface, property)
}
