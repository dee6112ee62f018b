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
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	name  = "org.freedesktop.login1"
	path  = "/org/freedesktop/login1"
	iface = "org.freedesktop.login1.Manager"

	rebootTimeout = 30 * time.Second
	wallTimeout   = 5 * time.Second // of what must not hold up a reboot

	// maxInhibitors and maxText bound what local users may make us print, maxWall what we print on their terminals.
	maxInhibitors = 64
	maxText       = 128
	maxWall       = 256
)

// Client asks logind, from one goroutine. Root and Logger may be set before its first use.
type Client struct {
	Root   string       // prefix of /sys
	Logger *slog.Logger // told what goes wrong beside an answer
	Delay  *Delay       // our delay inhibitor

	bus   *bus.Bus
	tried time.Time // the last trial that went through
}

// New returns a Client on b.
func New(b *bus.Bus) *Client {
	return &Client{Logger: slog.New(slog.DiscardHandler), Delay: newDelay(b), bus: b}
}

// Reboot asks for a reboot of the whole machine, or of its userspace only. Nil means accepted, not done. Our own delay
// inhibitor is released first. Other errors are *RefusedError.
func (c *Client) Reboot(ctx context.Context, kind plan.Kind) error {
	flags, refused := c.flags(ctx, kind)
	if refused != nil {
		return refused
	}
	c.Delay.Release()
	_, err := c.call(ctx, "RebootWithFlags", flags)
	switch {
	case err == nil:
		return nil
	case flags == 0 && c.withoutFlags(ctx, err):
		if _, err = c.call(ctx, "Reboot", false); err == nil {
			return nil
		}
	case flags != 0 && (bus.IsNamed(err, unknownMethod) || bus.IsNamed(err, invalidArgs)):
		// A logind older than the systemd beside it: it was not restarted with it.
		return &RefusedError{Unsupported, err}
	}
	return c.refused(ctx, err)
}

// withoutFlags says whether err means that logind has no RebootWithFlags. Its bus policy lists the methods that others
// than root may call, so that they do not hear of an unknown method but are denied (seen with 247).
func (c *Client) withoutFlags(ctx context.Context, err error) bool {
	if bus.IsNamed(err, unknownMethod) {
		return true
	}
	if !bus.IsNamed(err, accessDenied) {
		return false
	}
	version, err := c.version(ctx)
	return err == nil && version < flagsSince
}

// RebootWithReason is Reboot after which logind prints reason, one line of which at most 256 bytes are used, on every
// terminal. The message is taken back when the reboot is refused. A message that can't be set never stops the reboot.
func (c *Client) RebootWithReason(ctx context.Context, kind plan.Kind, reason string) error {
	takeBack := c.setWall(ctx, text.Line(reason, maxWall), true)
	err := c.Reboot(ctx, kind)
	if refused, ok := errors.AsType[*RefusedError](err); ok && refused.Class != InProgress && refused.Class != Ambiguous {
		takeBack()
	}
	return err
}

// setWall sets the message of the next shutdown, and whether it reaches the terminals, and returns what sets back what
// was there. Polkit's action set-wall-message is implied by that of the reboot.
func (c *Client) setWall(ctx context.Context, message string, on bool) (takeBack func()) {
	nothing := func() {}
	before, beforeOn, err := c.wall(ctx)
	if err == nil {
		err = c.callWall(ctx, message, on)
	}
	if err != nil {
		c.Logger.Warn("the message for the terminals can't be set", "err", err)
		return nothing
	}
	return func() {
		// Also when ctx is what ended the reboot.
		if err := c.callWall(context.WithoutCancel(ctx), before, beforeOn); err != nil {
			c.Logger.Warn("the message for the terminals can't be taken back", "err", err)
		}
	}
}

// wall reads the message of the next shutdown, and whether it reaches the terminals: by default it does since 252.
func (c *Client) wall(ctx context.Context) (message string, on bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, wallTimeout)
	defer cancel()
	if message, err = property[string](ctx, c, "WallMessage"); err != nil {
		return "", false, err
	}
	on, err = property[bool](ctx, c, "EnableWallMessages")
	return message, on, err
}

func (c *Client) callWall(ctx context.Context, message string, on bool) error {
	ctx, cancel := context.WithTimeout(ctx, wallTimeout)
	defer cancel()
	_, err := c.call(ctx, "SetWallMessage", message, on)
	return err
}

// CanReboot returns logind's forecast: "yes", "no", "challenge" (polkit would ask for a password), "na", or a newer
// word. It finds a missing polkit rule before anything is drained, but no inhibitor: root gets "yes" beside one.
func (c *Client) CanReboot(ctx context.Context) (string, error) {
	body, err := c.call(ctx, "CanReboot")
	if err != nil {
		return "", err
	}
	return parseForecast(body)
}

// parseForecast reads s.
func parseForecast(body []any) (string, error) {
	if len(body) == 1 {
		if answer, ok := body[0].(string); ok {
			return clean(answer), nil
		}
	}
	return "", errors.New("reading the answer of CanReboot: not a string")
}

// PreparingForShutdown says whether a shutdown is under way, whoever asked for it.
func (c *Client) PreparingForShutdown(ctx context.Context) (bool, error) {
	return property[bool](ctx, c, "PreparingForShutdown")
}

// InhibitDelayMax is how long delay inhibitors may hold an accepted shutdown.
func (c *Client) InhibitDelayMax(ctx context.Context) (time.Duration, error) {
	usec, err := property[uint64](ctx, c, "InhibitDelayMaxUSec")
	if usec > math.MaxInt64/uint64(time.Microsecond) {
		return math.MaxInt64, err
	}
	return time.Duration(usec) * time.Microsecond, err
}

// Inhibitors returns who blocks a shutdown, ready to print: "apt" (pid 123, uid 0): "Package manager running". Root is
// held by none of them before systemd 257 and the list is all the more ours to obey (systemd/systemd#31910). The weak
// ones, of 257 and later, hold everybody but root.
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
		if mode != "block" && mode != "block-weak" || !blocksShutdown(what) {
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

// Watch calls hint whenever a shutdown begins or is called off, inhibitors come or go, or logind or the bus return; from
// systemd 257 on also when a shutdown is scheduled or cancelled. The hint runs on the bus goroutine.
func (c *Client) Watch(hint func()) {
	call := func(bus.Signal) { hint() }
	c.bus.Watch(prepareForShutdown, call)
	c.bus.Watch(bus.Match{
		Sender: name, Path: path, Interface: "org.freedesktop.DBus.Properties", Member: "PropertiesChanged", Arg0: iface,
	}, call)
	c.bus.OnChange(hint)
}

var prepareForShutdown = bus.Match{Sender: name, Path: path, Interface: iface, Member: "PrepareForShutdown"}

func (c *Client) call(ctx context.Context, method string, args ...any) ([]any, error) {
	return c.bus.Call(ctx, bus.Call{
		Destination: name, Path: path, Member: iface + "." + method, Args: args, Timeout: rebootTimeout,
	})
}

func property[T any](ctx context.Context, c *Client, property string) (T, error) {
	return bus.Property[T](ctx, c.bus, name, path, iface, property)
}
