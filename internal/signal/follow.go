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

// followBus reads a level that a service on the bus holds: at start, after each matching signal, on every change of the
// connection or of the service's owner, and now and then.
func followBus(
	ctx context.Context, b *bus.Bus, m bus.Match, read func(context.Context) (State, error), report func(State),
) error {
	hint := newHints()
	defer b.Watch(m, func(bus.Signal) { hint.poke() })()
	defer b.OnChange(hint.poke)()
	if err := awaitBus(ctx, b, hint); err != nil {
		return err
	}
	var v view
	for {
		s, wait := v.judge(read(ctx))
		report(s)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-hint:
			timer.Stop()
		case <-timer.C:
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
	case "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner":
		return errAbsent
	case "org.freedesktop.DBus.Error.AccessDenied":
		return fmt.Errorf("%s: %w", denied, err)
	}
	return err
}
