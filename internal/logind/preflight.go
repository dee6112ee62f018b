// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
)

const (
	// trialUSec is the time for which a trial is scheduled, and its mark: nobody else means this microsecond of the year
	// 2100. It must be that far away. A logind that is restarted takes a trial for a real reboot (seen with 252, 257 and
	// 262), and an agent that is killed leaves its trial behind.
	trialUSec uint64 = 4_102_444_800_047_613

	// trialEvery is how long a trial that went through counts. Scheduling wakes everybody who watches for it, ourselves
	// among them.
	trialEvery = 10 * time.Minute

	// longAgo is before any time that somebody could schedule something for.
	longAgo uint64 = 1_000_000_000_000_000
)

// Preflight says whether logind would accept a reboot now, without asking for one: its forecast has to be "yes", and
// where nothing is scheduled a trial run goes through the whole authorization, which the forecast does not (root gets
// "yes" beside an inhibitor). Errors are *RefusedError, of the class that Reboot would return.
//
// What somebody else scheduled is left alone. logind has one place for it and no exchange of it in one step, so a
// schedule that is made within the few milliseconds of the trial may be lost.
func (c *Client) Preflight(ctx context.Context) error {
	preparing, err := c.PreparingForShutdown(ctx)
	if err != nil {
		return c.notAsked(ctx, err)
	}
	if preparing { // a trial would go through, and change what is under way
		return &RefusedError{InProgress, errors.New("logind prepares for a shutdown")}
	}
	answer, err := c.CanReboot(ctx)
	if err != nil {
		return c.notAsked(ctx, err)
	}
	if answer != "yes" {
		return c.forecast(ctx, answer)
	}
	return c.try(ctx)
}

// forecast explains an answer of CanReboot that is not "yes".
func (c *Client) forecast(ctx context.Context, answer string) error {
	class, why := Other, ""
	switch {
	case strings.Contains(answer, "inhibit"): // since 258
		class, why = Inhibited, "an inhibitor holds the machine"
	case answer == "challenge":
		class, why = NotAuthorized, "a password would be asked for"
	case answer == "no":
		class, why = NoPolicy, "it is forbidden, or reboot.target is masked"
	case answer == "na":
		why = "this machine can't be rebooted"
	default:
		why = "it is no answer known to this version"
	}
	err := fmt.Errorf("logind's forecast is %q: %s", answer, why)
	if class != Other {
		if holders, listErr := c.Inhibitors(ctx); listErr == nil && len(holders) > 0 {
			return &RefusedError{Inhibited, fmt.Errorf("%s: %w", strings.Join(holders, ", "), err)}
		}
	}
	return &RefusedError{class, err}
}

// try makes a trial where nothing is scheduled. One that a killed agent left is made again, and so taken away.
func (c *Client) try(ctx context.Context) error {
	if !c.tried.IsZero() && time.Since(c.tried) < trialEvery {
		return nil
	}
	what, usec, err := c.readSchedule(ctx)
	if err != nil {
		return c.notAsked(ctx, err)
	}
	if what != "" && usec != trialUSec {
		return nil
	}
	loud, err := c.hush(ctx)
	if err != nil {
		return c.notAsked(ctx, err)
	}
	defer loud()
	if err := c.trial(ctx); err != nil {
		return c.notAsked(ctx, err)
	}
	c.tried = time.Now()
	return nil
}

// hush keeps the terminals silent: the end of a trial would be told as "System shutdown has been cancelled".
func (c *Client) hush(ctx context.Context) (loud func(), err error) {
	message, on, err := c.wall(ctx)
	if err != nil || !on {
		return func() {}, err
	}
	if err := c.callWall(ctx, message, false); err != nil {
		return nil, err
	}
	return func() {
		if err := c.callWall(context.WithoutCancel(ctx), message, true); err != nil {
			c.Logger.Warn("the terminals can't be given back their messages", "err", err)
		}
	}, nil
}

// trial schedules one and takes it away, also when its answer or ctx is lost.
func (c *Client) trial(ctx context.Context) error {
	_, err := c.call(ctx, "ScheduleShutdown", "dry-reboot", trialUSec)
	if bus.IsNamed(err, unknownMethod) || bus.IsNamed(err, invalidArgs) {
		return nil // this logind knows no trials
	}
	if err != nil && classify(err) != Ambiguous {
		return err
	}
	if endErr := c.endTrial(context.WithoutCancel(ctx)); err == nil {
		err = endErr
	}
	return err
}

// endTrial cancels what is scheduled if it is still the trial. logind shows it as "reboot", without the "dry-".
func (c *Client) endTrial(ctx context.Context) error {
	what, usec, err := c.readSchedule(ctx)
	if err != nil {
		return fmt.Errorf("ending the trial: %w", err)
	}
	if what == "" || usec != trialUSec {
		return nil
	}
	if _, err := c.call(ctx, "CancelScheduledShutdown"); err != nil {
		return fmt.Errorf("ending the trial: %w", err)
	}
	return nil
}

// ScheduledShutdown returns the shutdown that somebody scheduled, e.g. "reboot" by `shutdown -r +10`; an empty what
// means none. A zero time means that it is not known, or now. Before systemd 257 logind does not announce a change.
func (c *Client) ScheduledShutdown(ctx context.Context) (what string, at time.Time, err error) {
	what, usec, err := c.readSchedule(ctx)
	if err != nil || usec == trialUSec {
		return "", time.Time{}, err
	}
	if what == "" || usec > math.MaxInt64 || usec < longAgo { // 257 shows time since boot once the shutdown is under way
		return what, time.Time{}, nil
	}
	return what, time.UnixMicro(int64(usec)), nil
}

// readSchedule reads what is scheduled, our trial included.
func (c *Client) readSchedule(ctx context.Context) (what string, usec uint64, err error) {
	v, err := c.bus.Get(ctx, name, path, iface, "ScheduledShutdown")
	if err != nil {
		return "", 0, err
	}
	return parseScheduled(v.Value())
}

// parseScheduled reads (st): type, microseconds since 1970.
func parseScheduled(v any) (what string, usec uint64, err error) {
	bad := errors.New("reading the scheduled shutdown: not (st)")
	fields, ok := v.([]any)
	if !ok || len(fields) != 2 {
		return "", 0, bad
	}
	what, ok1 := fields[0].(string)
	usec, ok2 := fields[1].(uint64)
	if !ok1 || !ok2 {
		return "", 0, bad
	}
	return clean(what), usec, nil
}
