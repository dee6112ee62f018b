// SPDX-License-Identifier: Apache-2.0

// Package logind asks systemd-logind for the reboot and tells what stands in its way.
//
// Each call is one attempt and each refusal has a class. go-systemd's Reboot returns nothing, which is how agents came
// to wait for days for a reboot that had been refused (flatcar/flatcar-linux-update-operator#19). An accepted reboot is
// not a done one: logind answers before the delay inhibitors end, and a later failure is only announced by
// PrepareForShutdown(false).
package logind

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	name  = "org.freedesktop.login1"
	path  = "/org/freedesktop/login1"
	iface = "org.freedesktop.login1.Manager"

	rebootTimeout = 30 * time.Second

	// maxInhibitors and maxText bound what local users may make us print.
	maxInhibitors = 64
	maxText       = 128
)

// Flags of RebootWithFlags. Only 0, a full reboot, is sent. Skipping inhibitors is never right: the holder may be the
// package manager. Its value is not the 4 of the manual page of systemd 257, which is the soft reboot
// (systemd/systemd#37975).
const (
	flagKexec          uint64 = 1 << 1
	flagSoft           uint64 = 1 << 2
	flagSkipInhibitors uint64 = 1 << 4
)

// Class says what a refusal means for the caller.
type Class int

// Classes of refusals.
const (
	Other         Class = iota // refused for a reason of no known class
	Inhibited                  // somebody holds a block inhibitor: wait
	NotAuthorized              // polkit wants a password: its rule for the agent is missing
	NoPolicy                   // denied without an inhibitor: no polkit on the host, or the bus policy
	Unavailable                // logind is not on the bus, or the bus is away: nothing was asked
	InProgress                 // a shutdown is under way already: as good as accepted
	Ambiguous                  // asked, and no answer: the reboot may come
)

var classNames = [...]string{
	"refused", "held by an inhibitor",
	"not authorized by polkit (is its rule 50-kured-agent.rules installed?)",
	"access denied (is polkit installed? without it see the example no-polkit.conf)",
	"logind unavailable", "a shutdown is under way", "no answer",
}

func (c Class) String() string { return classNames[c] }

// RefusedError is every error of Reboot.
type RefusedError struct {
	Class Class
	Err   error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("asking logind for a reboot: %s: %v", e.Class, e.Err)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// Client asks logind. It keeps no state.
type Client struct{ bus *bus.Bus }

// New returns a Client on b.
func New(b *bus.Bus) *Client { return &Client{b} }

// Reboot asks for a reboot of the whole machine. Nil means accepted, not done. Other errors are *RefusedError.
func (c *Client) Reboot(ctx context.Context, kind plan.Kind) error {
	if kind != plan.KindFull {
		return &RefusedError{Other, fmt.Errorf("a reboot of kind %q is not supported", kind)}
	}
	_, err := c.call(ctx, "RebootWithFlags", uint64(0))
	if bus.IsNamed(err, "org.freedesktop.DBus.Error.UnknownMethod") { // before systemd 248
		_, err = c.call(ctx, "Reboot", false)
	}
	if err == nil {
		return nil
	}
	class := classify(err)
	if class == NoPolicy || class == NotAuthorized {
		// A block inhibitor is refused by the same two errors: root sees "access denied" since 257, and others are asked
		// for the right to ignore inhibitors.
		if holders, listErr := c.Inhibitors(ctx); listErr == nil && len(holders) > 0 {
			return &RefusedError{Inhibited, fmt.Errorf("%s: %w", strings.Join(holders, ", "), err)}
		}
	}
	return &RefusedError{class, err}
}

// classify maps an error of the reboot call, which is not nil, as far as the error alone tells.
func classify(err error) Class {
	reply, answered := errors.AsType[dbus.Error](err)
	if !answered {
		if errors.Is(err, bus.ErrNotConnected) {
			return Unavailable
		}
		return Ambiguous
	}
	const std = "org.freedesktop.DBus.Error."
	switch reply.Name {
	case "org.freedesktop.login1.OperationInProgress":
		return InProgress
	case "org.freedesktop.login1.BlockedByInhibitorLock":
		return Inhibited
	case std + "InteractiveAuthorizationRequired":
		return NotAuthorized
	case std + "AccessDenied":
		if strings.Contains(reply.Error(), "inhibitor") {
			return Inhibited
		}
		return NoPolicy
	case std + "ServiceUnknown", std + "NameHasNoOwner", std + "TimedOut":
		return Unavailable // TimedOut: of the activation, so that logind never saw the call (systemd/systemd#36035)
	case std + "NoReply", std + "Timeout", std + "Disconnected":
		return Ambiguous // bottlerocket-os/bottlerocket-update-operator#630
	}
	if strings.HasPrefix(reply.Name, std+"Spawn.") {
		return Unavailable
	}
	return Other
}

// CanReboot returns logind's forecast: "yes", "no", "challenge" (polkit would ask for a password), "na", or a newer
// word. It finds a missing polkit rule before anything is drained, but no inhibitor: root gets "yes" beside one.
func (c *Client) CanReboot(ctx context.Context) (string, error) {
	body, err := c.call(ctx, "CanReboot")
	if err != nil {
		return "", err
	}
	if len(body) == 1 {
		if answer, ok := body[0].(string); ok {
			return clean(answer), nil
		}
	}
	return "", errors.New("reading the answer of CanReboot: not a string")
}

// PreparingForShutdown says whether a shutdown is under way, whoever asked for it.
func (c *Client) PreparingForShutdown(ctx context.Context) (bool, error) {
	return bus.Property[bool](ctx, c.bus, name, path, iface, "PreparingForShutdown")
}

// InhibitDelayMax is how long delay inhibitors may hold an accepted shutdown.
func (c *Client) InhibitDelayMax(ctx context.Context) (time.Duration, error) {
	usec, err := bus.Property[uint64](ctx, c.bus, name, path, iface, "InhibitDelayMaxUSec")
	if usec > math.MaxInt64/uint64(time.Microsecond) {
		return math.MaxInt64, err
	}
	return time.Duration(usec) * time.Microsecond, err
}

// Inhibitors returns who blocks a shutdown, ready to print: "apt" (pid 123, uid 0): "Package manager running". Root is
// held by none of them before systemd 257 and the list is all the more ours to obey (systemd/systemd#31910).
func (c *Client) Inhibitors(ctx context.Context) ([]string, error) {
	body, err := c.call(ctx, "ListInhibitors")
	if err != nil {
		return nil, err
	}
	return parseInhibitors(body)
}

// parseInhibitors reads a(ssssuu): what, who, why, mode, uid, pid.
func parseInhibitors(body []any) ([]string, error) {
	bad := errors.New("reading the inhibitors: not a list of (ssssuu)")
	if len(body) != 1 {
		return nil, bad
	}
	list, ok := body[0].([][]any)
	if !ok {
		return nil, bad
	}
	var holders []string
	for _, fields := range list {
		if len(fields) != 6 {
			return nil, bad
		}
		what, ok1 := fields[0].(string)
		who, ok2 := fields[1].(string)
		why, ok3 := fields[2].(string)
		mode, ok4 := fields[3].(string)
		uid, ok5 := fields[4].(uint32)
		pid, ok6 := fields[5].(uint32)
		if !(ok1 && ok2 && ok3 && ok4 && ok5 && ok6) {
			return nil, bad
		}
		if mode != "block" || !blocksShutdown(what) {
			continue
		}
		if len(holders) == maxInhibitors {
			break
		}
		holders = append(holders, fmt.Sprintf(`"%s" (pid %d, uid %d): "%s"`, clean(who), pid, uid, clean(why)))
	}
	return holders, nil
}

func blocksShutdown(what string) bool {
	for part := range strings.SplitSeq(what, ":") {
		if part == "shutdown" {
			return true
		}
	}
	return false
}

// clean bounds what a local user wrote, and keeps it inside the quotes that it is printed in.
func clean(s string) string { return strings.ReplaceAll(text.Line(s, maxText), `"`, "'") }

// ScheduledShutdown returns the shutdown that somebody scheduled, e.g. "reboot" by `shutdown -r +10`; an empty what
// means none. logind does not announce a change of it.
func (c *Client) ScheduledShutdown(ctx context.Context) (what string, at time.Time, err error) {
	v, err := c.bus.Get(ctx, name, path, iface, "ScheduledShutdown")
	if err != nil {
		return "", time.Time{}, err
	}
	return parseScheduled(v.Value())
}

// parseScheduled reads (st): type, microseconds since 1970.
func parseScheduled(v any) (what string, at time.Time, err error) {
	fields, ok := v.([]any)
	if !ok || len(fields) != 2 {
		return "", time.Time{}, errors.New("reading the scheduled shutdown: not (st)")
	}
	what, ok1 := fields[0].(string)
	usec, ok2 := fields[1].(uint64)
	if !ok1 || !ok2 {
		return "", time.Time{}, errors.New("reading the scheduled shutdown: not (st)")
	}
	if what == "" || usec == 0 || usec > math.MaxInt64 {
		return clean(what), time.Time{}, nil
	}
	return clean(what), time.UnixMicro(int64(usec)), nil
}

// Watch calls hint whenever a shutdown begins or is called off, inhibitors come or go, or logind or the bus return. The
// hint runs on the bus goroutine.
func (c *Client) Watch(hint func()) {
	call := func(bus.Signal) { hint() }
	c.bus.Watch(bus.Match{Sender: name, Path: path, Interface: iface, Member: "PrepareForShutdown"}, call)
	c.bus.Watch(bus.Match{
		Sender: name, Path: path, Interface: "org.freedesktop.DBus.Properties", Member: "PropertiesChanged", Arg0: iface,
	}, call)
	c.bus.OnChange(hint)
}

func (c *Client) call(ctx context.Context, method string, args ...any) ([]any, error) {
	return c.bus.Call(ctx, bus.Call{
		Destination: name, Path: path, Member: iface + "." + method, Args: args, Timeout: rebootTimeout,
	})
}
