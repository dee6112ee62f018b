// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	// pollLevel is how often a level is read without a hint: for changes that are not announced.
	pollLevel = 10 * time.Minute
	// pollFailed is how often a level that could not be read is read again: a service may own its name before its
	// objects answer.
	pollFailed = 30 * time.Second
	// waitBus is how long the first read waits for the bus, so that a start is not reported as a failure.
	waitBus = 3 * time.Second
	// absentGrace is how long a service that had required a reboot may be away before its need counts as gone. A restart
	// of the bus throws every service off it, and some come back late.
	absentGrace = 2 * time.Minute
)

// errAbsent is returned by readers when nobody owns the name of the service.
var errAbsent = errors.New("service absent")

// hints is a channel of capacity one: any number of hints before a read are one read.
type hints chan struct{}

func newHints() hints { return make(hints, 1) }

func (h hints) poke() {
	select {
	case h <- struct{}{}:
	default:
	}
}

// wait returns with the next hint, or after the given time without one.
func (h hints) wait(ctx context.Context, most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h:
	case <-timer.C:
	}
	return nil
}

// followBus reads a level that a service on the bus holds: at start, after each matching signal, on every change of the
// connection or of the service's owner, and now and then.
func followBus(
	ctx context.Context, b *bus.Bus, m bus.Match, read func(context.Context) (State, error), report func(State),
) error {
	return follower{bus: b, match: m, hint: newHints(), every: pollLevel}.run(ctx, read, report)
}

// follower is followBus with hints from elsewhere too, and with a slow poll of its own.
type follower struct {
	bus   *bus.Bus
	match bus.Match
	hint  hints
	every time.Duration
}

func (f follower) run(ctx context.Context, read func(context.Context) (State, error), report func(State)) error {
	defer f.bus.Watch(f.match, func(bus.Signal) { f.hint.poke() })()
	defer f.bus.OnChange(f.hint.poke)()
	if err := awaitBus(ctx, f.bus, f.hint); err != nil {
		return err
	}
	var v view
	for {
		s, wait := v.judge(read(ctx))
		report(s)
		if wait == pollLevel {
			wait = f.every
		}
		if err := f.hint.wait(ctx, wait); err != nil {
			return err
		}
	}
}

// awaitBus returns before the first read, with the hints so far used up by it.
func awaitBus(ctx context.Context, b *bus.Bus, hint hints) error {
	timer := time.NewTimer(waitBus)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-b.Ready():
	case <-timer.C:
	}
	select {
	case <-hint:
	default:
	}
	return nil
}

// view turns the answers of a reader into states.
type view struct {
	required bool // the last definite answer
	absent   time.Time
}

// judge returns the state for one read, and when to read again without a hint.
func (v *view) judge(s State, err error) (State, time.Duration) {
	if err == nil {
		*v = view{required: s.Level == plan.Required}
		return s, pollLevel
	}
	if !errors.Is(err, errAbsent) {
		return State{Level: plan.Unknown, Err: err}, pollFailed
	}
	if v.required {
		if v.absent.IsZero() {
			v.absent = time.Now()
		}
		if left := absentGrace - time.Since(v.absent); left > 0 {
			err = fmt.Errorf("the service required a reboot and then left the bus: %w", err)
			return State{Level: plan.Unknown, Err: err}, left
		}
	}
	*v = view{}
	return State{Level: plan.NotRequired, Note: errAbsent.Error()}, pollLevel
}

// classify marks the errors of a read that say nobody owns the name, and adds the way out of a refusal.
func classify(err error, denied string) error {
	reply, answered := errors.AsType[dbus.Error](err)
	if !answered {
		return err
	}
	switch reply.Name {
	case "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner",
		"org.freedesktop.DBus.Error.NoReply", // of the bus: it left in the middle of the call
		// What systemd answers when the bus asks it to start a service that an admin has switched off.
		"org.freedesktop.systemd1.UnitMasked", "org.freedesktop.systemd1.NoSuchUnit":
		return errAbsent
	case "org.freedesktop.DBus.Error.AccessDenied":
		return fmt.Errorf("%s: %w", denied, err)
	}
	return err
}
