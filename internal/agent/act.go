// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// actBound ends an action that hangs: the watchdog waits longer.
const actBound = 45 * time.Second

// perform does the one action of a step. An error is told once and starts a growing pause, during which the API counts
// as away; then the next round observes again. So does an action that is due again soon: it changed nothing.
func (a *Agent) perform(ctx context.Context, o plan.Observed, step plan.Step) {
	bound := actBound
	if o.Shutdown {
		bound = farewellBound
	}
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := a.act(bounded, o, step)
	again := a.acted.again(step)
	if err == nil && again > mostAgain {
		err = errors.New("nothing changed by it")
	}
	if err == nil {
		if again == 1 {
			a.acts = stall{}
		}
		return
	}
	if ctx.Err() != nil {
		return
	}
	why := fmt.Sprintf("trying to %s: %v", step.Action, err)
	if why != a.acts.why {
		a.Logger.Warn("action", "action", step.Action.String(), "phase", step.Phase.String(), "err", err)
	}
	a.note(&a.acts, why)
}

// mostAgain is how often an action may be due again before it counts as one without effect.
const mostAgain = 3

// acted notices an action that is repeated, with the same why: a loop that must not reach the API server.
type acted struct {
	step  plan.Step
	count int
}

// again counts how often in a row this very step was performed. Eviction passes have their own pace.
func (l *acted) again(step plan.Step) int {
	if step.Action != l.step.Action || step.Why != l.step.Why || step.Action == plan.Evict || step.Action == plan.DeletePods ||
		step.Action == plan.Acquire {
		l.count = 0
	}
	l.step = step
	l.count++
	return l.count
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
		return a.Node.Return(ctx, func(n plan.Node) bool { return a.unfit(n) == "" })
	case plan.Clean:
		return a.clean(ctx, o)
	case plan.RollBack:
		return a.rollBack(ctx)
	case plan.Release:
		return a.release(ctx, o)
	case plan.NoteFailure:
		return a.noteFailure(o, step.Why)
	case plan.Settle:
		return a.settle(o)
	case plan.Forget:
		return a.forget(o)
	case plan.Unask:
		return a.Host.UpdateRecord(func(r *plan.Record) { r.Asked = nil })
	case plan.LetGo:
		a.Logind.LetGo()
		return nil
	case plan.None:
	}
	return fmt.Errorf("performing %q: no such action", step.Action)
}

// verified runs do after a quorum read has shown that the slot is still ours.
func (a *Agent) verified(ctx context.Context, o plan.Observed, do func() error) error {
	if ours, err := a.verify(ctx, o.Slot.Name, o.Slot.UID); err != nil || !ours {
		return err
	}
	return do()
}

func (a *Agent) verify(ctx context.Context, name, uid string) (ours bool, err error) {
	ours, why, err := a.Slots.Verify(ctx, name, uid)
	if err != nil {
		return false, err
	}
	a.verifiedAt = a.Uptime()
	if !ours {
		a.Logger.Warn("the slot is not ours any more", "slot", name, "why", why)
		a.lostSlot = true
	}
	return ours, nil
}

// taint writes down that the Node may carry something of ours before it does.
func (a *Agent) taint(ctx context.Context, o plan.Observed) error {
	a.searched = a.searched || !o.Record.Marked // nothing was marked, so no slot was taken
	if err := a.Host.UpdateRecord(func(r *plan.Record) { a.mark(r, o) }); err != nil {
		return err
	}
	if o.Shutdown {
		a.Logger.Info("somebody else shuts this host down: marking the node")
		return a.Node.Taint(ctx, "somebody shuts this host down")
	}
	if err := a.Node.Taint(ctx, plan.Summary(o.Reasons)); err != nil {
		return err
	}
	a.enqueue(ctx)
	return nil
}

func (a *Agent) mark(r *plan.Record, o plan.Observed) {
	r.Boot, r.NodeUID, r.Marked, r.Reasons = o.Boot, o.Node.UID, true, o.Reasons
	if !o.Node.Stray { // until that one is seen to be gone, only the record knows its name
		r.Taint = a.TaintName
	}
}

// waitTurn delays the next try to take a slot, and never shortens a delay.
func (a *Agent) waitTurn(d time.Duration, why string) {
	if next := a.Uptime() + d; next > a.turn.Next {
		a.turn = plan.Turn{Next: next, Why: why}
	}
}

// cancelPause follows a cordon that was taken back, because the need went or something came in the way: what comes and
// goes must not drain the node again and again.
const cancelPause = 5 * time.Minute

func (a *Agent) acquire(ctx context.Context, o plan.Observed) error {
	if !o.Record.Marked || o.Record.Boot != o.Boot || o.Record.NodeUID != o.Node.UID {
		if err := a.Host.UpdateRecord(func(r *plan.Record) { a.mark(r, o) }); err != nil {
			return err
		}
	}
	if a.spread(ctx, a.pool(o.Node)) {
		return nil
	}
	a.weigh(ctx)
	a.searched = false // until the answer is definite and written down, a slot may be ours
	claim, err := a.Slots.Acquire(ctx, Request{
		Pool: a.pool(o.Node), NodeUID: o.Node.UID, Boot: o.Boot, ControlPlane: o.Node.ControlPlane, Look: a.yields(),
	})
	if err != nil {
		return err
	}
	if !claim.Taken {
		a.searched = claim.Name == "" // one in our name that is not this boot's is to be found
		a.turn = a.nextTurn(ctx, a.pool(o.Node), claim)
		return nil
	}
	return a.take(ctx, o, claim)
}

// take writes a slot down. One that can't be written down is given back, since after a crash nobody would know of it,
// unless our cordon is on the Node: that one tells, and must not be there without a slot.
func (a *Agent) take(ctx context.Context, o plan.Observed, claim Claim) error {
	taken := a.Uptime()
	err := a.Host.UpdateRecord(func(r *plan.Record) {
		r.Slot = &plan.SlotRef{Name: claim.Name, UID: claim.UID, Taken: taken}
	})
	switch {
	case err != nil && o.Node.Marker != "":
		return err
	case err != nil:
		return errors.Join(err, a.Slots.Release(ctx, claim.Name, claim.UID))
	}
	a.lostSlot, a.searched, a.verifiedAt = false, true, taken
	a.gatesAt = 0 // what closed while the slot was taken is seen before the cordon
	return nil
}

// pass runs one eviction pass and has the pods looked at again soon.
func (a *Agent) pass(ctx context.Context, pass func(context.Context) error) error {
	err := pass(ctx)
	a.looks, a.foreseen = 0, 0
	a.lookAt = a.Uptime() + lookPause(0)
	a.pods.Next = a.lookAt
	return err
}

// reboot asks logind, in this order: need, window, inhibitors and logind's own opinion once more, since the verification
// took its time; the record on the disk; the call. What logind refuses is a failure of this attempt, never a success
// (flatcar/flatcar-linux-update-operator#19).
func (a *Agent) reboot(ctx context.Context, o plan.Observed) error {
	if need, _ := a.Sources.Need(); need != plan.Required || !a.Window(a.Now()).Open {
		return nil // the next round sees it
	}
	a.refusalAt = 0
	if a.preflight(ctx, a.Uptime()); a.refusal != "" || len(a.inhibitors(ctx)) > 0 {
		return nil
	}
	kind, why := plan.RebootKind(a.Policy.Method, o.Reasons, a.Logind.Kinds(ctx)), plan.Summary(o.Reasons)
	err := a.Host.UpdateRecord(func(r *plan.Record) {
		r.Asked = &plan.Asked{At: a.Uptime(), Reasons: o.Reasons, Kind: kind}
	})
	if err != nil {
		return err
	}
	a.Logger.Info("asking logind for the reboot", "kind", kind.String(), "why", why)
	err = a.Logind.Reboot(ctx, kind, why)
	var refusal Refusal
	if err == nil || errors.As(err, &refusal) && refusal.MayGoDown() {
		if err != nil { // the shutdown may have ended the bus, or us, before the answer
			a.Logger.Info("logind's answer did not arrive or says that a shutdown is under way; waiting for it", "err", err)
		}
		a.asked = true
		return nil
	}
	return a.noteFailure(o, fmt.Sprintf("logind refused the reboot: %v", err))
}

// clean undoes everything of ours. What is taken back after the cordon is not tried again at once.
func (a *Agent) clean(ctx context.Context, o plan.Observed) error {
	if err := a.Node.Clean(ctx); err != nil {
		return err
	}
	if o.Node.Marker != "" {
		a.waitTurn(cancelPause, "the need was taken back after the cordon a moment ago")
	}
	return nil
}

func (a *Agent) rollBack(ctx context.Context) error {
	if err := a.Node.RollBack(ctx); err != nil {
		return err
	}
	a.waitTurn(cancelPause, "an attempt was rolled back a moment ago")
	return nil
}

func (a *Agent) release(ctx context.Context, o plan.Observed) error {
	if err := a.Slots.Release(ctx, o.Slot.Name, o.Slot.UID); err != nil {
		return err
	}
	a.lostSlot, a.searched, a.recorded = false, true, false
	a.waitTurn(jitter(tryEvery), "this node has just given its slot back")
	return a.Host.UpdateRecord(func(r *plan.Record) {
		if r.Slot != nil && r.Slot.UID == o.Slot.UID { // else the other process has taken another one meanwhile
			r.Slot = nil
		}
	})
}

// failuresForget is the age at which earlier failures no longer lengthen the pause.
const failuresForget = 24 * time.Hour

func (a *Agent) noteFailure(o plan.Observed, why string) error {
	failure := plan.Failure{Moment: a.moment(), Count: 1, Why: why}
	if f := o.Record.Failure; f != nil && failure.At.Sub(f.At) < failuresForget {
		failure.Count = f.Count + 1
	}
	a.Logger.Warn("giving up this attempt", "why", why, "failures", failure.Count, "next_try_in", plan.Backoff(failure.Count))
	return a.Host.UpdateRecord(func(r *plan.Record) { r.Failure, r.Asked = &failure, nil })
}

func (a *Agent) moment() plan.Moment {
	return plan.Moment{At: a.Now(), Boot: a.Boot, Up: a.Uptime()}
}

// settle closes the record. A new boot id after a reboot that we asked for proves that reboot, and nothing else does.
func (a *Agent) settle(o plan.Observed) error {
	proven := o.Record.Boot != o.Boot && o.Record.Asked != nil
	last := plan.LastReboot{Moment: a.moment()}
	if proven {
		last.Reasons = o.Record.Asked.Reasons
		a.Logger.Info("rebooted and back", "why", plan.Summary(last.Reasons))
	}
	return a.Host.UpdateRecord(func(r *plan.Record) {
		r.Startup = o.Boot
		if r.Boot != o.Record.Boot || r.Marked != o.Record.Marked {
			return // the other process has begun something meanwhile
		}
		if proven {
			r.Last, r.Failure = &last, nil
		}
		r.Boot, r.Marked, r.Slot, r.Asked, r.Reasons, r.Taint = o.Boot, false, nil, nil, nil, ""
	})
}

func (a *Agent) forget(o plan.Observed) error {
	a.searched, a.recorded, a.lostSlot, a.turn = false, false, false, plan.Turn{}
	return a.Host.UpdateRecord(func(r *plan.Record) {
		r.Boot, r.NodeUID, r.Taint = o.Boot, o.Node.UID, ""
		// It may have been created anew between a look at it and the patch.
		r.Marked = o.Node.Tainted || o.Node.Marker != ""
		r.Slot, r.Asked, r.Reasons = nil, nil, nil
	})
}
