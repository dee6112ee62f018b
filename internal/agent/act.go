// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// perform does the one action of a step. An error is told once and starts a growing pause, during which the API counts
// as away; then the next round observes again. So does an action that is due again at once: it changed nothing.
func (a *Agent) perform(ctx context.Context, o plan.Observed, step plan.Step) {
	err := a.act(ctx, o, step)
	if err == nil && a.acted.again(step, a.Uptime()) {
		err = errors.New("nothing changed by it")
	}
	if err == nil {
		a.acts = stall{}
		return
	}
	if ctx.Err() != nil {
		return
	}
	why := fmt.Sprintf("trying to %s: %v", step.Action, err)
	if why != a.acts.why {
		a.Logger.Warn("action", "action", step.Action.String(), "phase", step.Phase.String(), "err", err)
	}
	a.acts.note(a.Uptime(), why)
}

// acted notices an action that is repeated at once, several times: a loop that must not reach the API server.
type acted struct {
	step  plan.Step
	at    time.Duration
	count int
}

func (l *acted) again(step plan.Step, uptime time.Duration) bool {
	const most, atOnce = 3, time.Second / 5
	if step.Action != l.step.Action || step.Why != l.step.Why || uptime-l.at > atOnce {
		l.count = 0
	}
	l.step, l.at = step, uptime
	l.count++
	return l.count > most
}

func (a *Agent) act(ctx context.Context, o plan.Observed, step plan.Step) error {
	switch step.Action {
	case plan.Taint:
		return a.taint(ctx, o)
	case plan.Acquire:
		return a.acquire(ctx, o)
	case plan.Cordon:
		return a.verified(ctx, o, func() error { return a.Node.Cordon(ctx, o.Boot) })
	case plan.Evict:
		return a.verified(ctx, o, func() error { return a.pass(ctx, a.Drainer.Pass) })
	case plan.DeletePods:
		return a.verified(ctx, o, func() error { return a.pass(ctx, a.Drainer.Delete) })
	case plan.StartTarget:
		return a.Units.StartPreReboot(ctx, o.Slot.UID)
	case plan.Reboot:
		return a.verified(ctx, o, func() error { return a.reboot(ctx, o) })
	case plan.Return:
		return a.Node.Return(ctx, func(n plan.Node) bool { return unfit(n, o.Boot) == "" })
	case plan.Clean:
		return a.Node.Clean(ctx)
	case plan.RollBack:
		return a.Node.RollBack(ctx)
	case plan.Release:
		return a.release(ctx, o)
	case plan.NoteFailure:
		return a.noteFailure(o, step.Why)
	case plan.Settle:
		return a.settle(o)
	case plan.Forget:
		return a.forget(o)
	}
	return fmt.Errorf("performing %q: no such action", step.Action)
}

// verified runs do after a quorum read has shown that the slot is still ours.
func (a *Agent) verified(ctx context.Context, o plan.Observed, do func() error) error {
	ours, why, err := a.Slots.Verify(ctx, o.Slot.Name, o.Slot.UID)
	if err != nil {
		return err
	}
	if !ours {
		a.Logger.Warn("the slot is not ours any more", "slot", o.Slot.Name, "why", why)
		a.lostSlot = true
		return nil
	}
	return do()
}

// taint writes down that the Node may carry something of ours before it does.
func (a *Agent) taint(ctx context.Context, o plan.Observed) error {
	record := o.Record
	a.searched = a.searched || !record.Marked // nothing was marked, so no slot was taken
	record.Boot, record.NodeUID, record.Marked, record.Reasons = o.Boot, o.Node.UID, true, o.Reasons
	if err := a.Host.WriteRecord(record); err != nil {
		return err
	}
	if err := a.Node.Taint(ctx, plan.Summary(o.Reasons)); err != nil {
		return err
	}
	// A moment for the other nodes of the same update to be tainted too, so that pods drained here avoid them.
	a.turn = plan.Turn{Next: a.Uptime() + firstTry + jitter(firstTry)}
	return nil
}

const (
	firstTry = 2 * time.Second
	tryEvery = 5 * time.Second
)

func (a *Agent) acquire(ctx context.Context, o plan.Observed) error {
	record := o.Record
	if !record.Marked || record.Boot != o.Boot || record.NodeUID != o.Node.UID {
		record.Boot, record.NodeUID, record.Marked, record.Reasons = o.Boot, o.Node.UID, true, o.Reasons
		if err := a.Host.WriteRecord(record); err != nil {
			return err
		}
	}
	claim, err := a.Slots.Acquire(ctx, a.pool(o.Node), o.Node.UID, o.Boot)
	if err != nil {
		return err
	}
	if !claim.Taken {
		a.turn = plan.Turn{Next: a.Uptime() + jitter(tryEvery), Why: claim.Why}
		return nil
	}
	a.lostSlot = false
	record.Slot = &plan.SlotRef{Name: claim.Name, UID: claim.UID, Taken: a.Uptime()}
	return a.Host.WriteRecord(record)
}

// pass runs one eviction pass and has the pods looked at again soon.
func (a *Agent) pass(ctx context.Context, pass func(context.Context) error) error {
	err := pass(ctx)
	a.looks = 0
	a.lookAt = a.Uptime() + lookPause(0)
	a.pods.Next = a.lookAt
	return err
}

// reboot asks logind, in this order: the need once more, the record on the disk, the call. What logind refuses is a
// failure of this attempt, never a success (flatcar/flatcar-linux-update-operator#19).
func (a *Agent) reboot(ctx context.Context, o plan.Observed) error {
	if need, _ := a.Sources.Need(); need != plan.Required {
		return nil
	}
	record := o.Record
	record.Asked = &plan.Asked{At: a.Uptime(), Reasons: o.Reasons}
	if err := a.Host.WriteRecord(record); err != nil {
		return err
	}
	a.Logger.Info("asking logind for the reboot", "why", plan.Summary(o.Reasons))
	err := a.Logind.Reboot(ctx)
	var refusal Refusal
	if err == nil || errors.As(err, &refusal) && refusal.MayGoDown() {
		if err != nil { // the shutdown may have ended the bus, or us, before the answer
			a.Logger.Info("logind's answer did not arrive or says that a shutdown is under way; waiting for it", "err", err)
		}
		return nil
	}
	o.Record = record
	return a.noteFailure(o, fmt.Sprintf("logind refused the reboot: %v", err))
}

func (a *Agent) release(ctx context.Context, o plan.Observed) error {
	if err := a.Slots.Release(ctx, o.Slot.Name, o.Slot.UID); err != nil {
		return err
	}
	a.lostSlot, a.searched = false, true
	a.turn = plan.Turn{}
	record := o.Record
	record.Slot = nil
	return a.Host.WriteRecord(record)
}

// failuresForget is the age at which earlier failures no longer lengthen the pause.
const failuresForget = 24 * time.Hour

func (a *Agent) noteFailure(o plan.Observed, why string) error {
	record := o.Record
	count := 1
	if f := record.Failure; f != nil && o.Now.Sub(f.At) < failuresForget {
		count = f.Count + 1
	}
	record.Failure = &plan.Failure{At: o.Now, Count: count, Why: why}
	record.Asked = nil
	a.Logger.Warn("giving up this attempt", "why", why, "failures", count, "next_try_in", plan.Backoff(count))
	return a.Host.WriteRecord(record)
}

// settle closes the record. A new boot id after a reboot that we asked for proves that reboot, and nothing else does.
func (a *Agent) settle(o plan.Observed) error {
	record := o.Record
	if record.Boot != o.Boot && record.Asked != nil {
		record.Last = &plan.LastReboot{At: o.Now, Reasons: record.Asked.Reasons}
		record.Failure = nil
		a.Logger.Info("rebooted and back", "why", plan.Summary(record.Asked.Reasons))
	}
	record.Boot, record.Marked, record.Slot, record.Asked, record.Reasons = o.Boot, false, nil, nil, nil
	record.Startup = o.Boot
	a.turn = plan.Turn{}
	return a.Host.WriteRecord(record)
}

func (a *Agent) forget(o plan.Observed) error {
	record := o.Record
	record.Boot, record.NodeUID, record.Marked = o.Boot, o.Node.UID, false
	record.Slot, record.Asked, record.Reasons = nil, nil, nil
	a.searched, a.lostSlot, a.turn = false, false, plan.Turn{}
	return a.Host.WriteRecord(record)
}
