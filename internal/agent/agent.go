// SPDX-License-Identifier: Apache-2.0

// Package agent is the loop: observe, decide, act once, report, sleep. The decision is package plan's; the loop only
// knows how to see and how to do, and when to look again.
package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// Options is everything an Agent is made of. Every field must be set but for the ones that say otherwise.
type Options struct {
	Policy plan.Policy
	Pool   string // empty: by the Node's role
	// TaintName is key:effect of the taint, for the record.
	TaintName string
	Drain     bool // false: pods are left where they are

	Sources  Sources
	Node     Node
	Slots    Slots
	Drainer  Drain
	Gates    Gates
	Ready    ReadyPods
	Logind   Logind
	Units    Units
	Host     Host
	Identity Identity
	Beside   Beside // may be nil

	// Farewell: a shutdown that somebody else starts waits until the Node shows it. Of one process a host.
	Farewell bool

	Boot string // as in plan.Observed
	// Started is when the userspace started that a soft reboot began; zero: none did.
	Started time.Time
	Window  func(time.Time) plan.Window
	Now     func() time.Time
	Uptime  func() time.Duration
	Logger  *slog.Logger

	Changed    <-chan struct{}                // something changed: look again; may be nil
	Report     func(plan.Observed, plan.Step) // called after every decision; must not block; may be nil
	Alive      func()                         // called at least every AliveEvery while the loop lives; may be nil
	AliveEvery time.Duration
}

// Agent is the loop and the little it keeps between two rounds: nothing of it is needed after a crash.
type Agent struct {
	Options
	stopping bool
	began    time.Duration // uptime at New
	booted   time.Duration // as plan.Observed.Began

	turn       plan.Turn
	queue      queue
	verifiedAt time.Duration // uptime of the newest answer that confirmed the slot
	gates      []string
	gatesAt    time.Duration // uptime of the newest look at the gates; zero: none yet
	gatesSince time.Duration // uptime since which one has been closed
	undelayed  string        // why there is no delay inhibitor
	refusal    string        // of the newest preflight; empty: none
	refusalAt  time.Duration // uptime of it; zero: none yet
	beside     []string      // told
	// besideFound is what the newest look on the host found, besideNext the uptime of the next; zero: none yet.
	besideFound []string
	besideNext  time.Duration
	besidePods  time.Duration // uptime of the next look at the pods for those among them; zero: there are none
	recheckAt   time.Duration // uptime of the next look for start-up taints; zero: none
	rechecked   int
	undone      bool // while stopping: the API server has shown that nothing of ours is left

	fitSince time.Duration // uptime since which the boot has been healthy; zero: it is not
	asked    bool          // this process asked logind for the reboot, and was not refused
	lostSlot bool          // the newest verification said that the slot is not ours
	searched bool          // a slot that the record does not know was looked for
	recorded bool          // the newest record named a slot
	heldBack bool          // by a mark on the Node

	pods   plan.Pods
	lookAt time.Duration // uptime from which the pods are listed again
	// foreseen is the uptime until which a look at the pods of before the cordon serves the first eviction pass.
	foreseen time.Duration
	looks    int // listings since the last eviction pass

	reads stall // of the API server
	acts  stall // of actions
	acted acted
}

// New makes an agent that has not looked yet.
func New(o Options) *Agent {
	a := &Agent{Options: o, began: o.Uptime()}
	if !o.Started.IsZero() {
		a.booted = max(a.began-o.Now().Sub(o.Started), 0)
	}
	a.queue.crowd = true
	a.scheduleRecheck()
	return a
}

// Run works until ctx ends. What the end means for the Node is Leave's business.
func (a *Agent) Run(ctx context.Context) {
	for ctx.Err() == nil {
		o, step := a.round(ctx)
		if ctx.Err() == nil && step.Action == plan.None {
			a.sleep(ctx, a.pause(o, step))
		}
	}
}

// ReturnNode works until nothing of an earlier boot is left on the Node, and no further: what the running agent began
// in this boot is not its business.
func (a *Agent) ReturnNode(ctx context.Context) error {
	for acted := false; ; {
		o := a.observe(ctx)
		step := plan.Next(a.Policy, o)
		if err := ctx.Err(); err != nil {
			return err
		}
		if !ofTheReturn(o, step) {
			if acted && step.Phase == plan.Idle {
				a.report(o, step) // the last news: the node is back
			}
			return nil
		}
		a.report(o, step)
		if step.Action == plan.None {
			a.sleep(ctx, a.pause(o, step))
			continue
		}
		a.perform(ctx, o, step)
		acted = true
	}
}

func ofTheReturn(o plan.Observed, s plan.Step) bool {
	switch s.Phase {
	case plan.Returning, plan.Unreachable, plan.NoNode:
		return true
	case plan.Idle:
		return s.Action == plan.Forget || s.Action == plan.Settle && !o.Record.Marked
	default:
		return false
	}
}

// CleanUp undoes everything of ours, as a stop for good does. It gives up when ctx ends, and waits for it while a
// reboot is under way: the taint stays then.
func (a *Agent) CleanUp(ctx context.Context) error {
	a.stopping, a.searched = true, false
	a.reads, a.acts = stall{}, stall{}
	why := "nothing was looked at yet"
	for {
		o, step := a.round(ctx)
		if ctx.Err() == nil {
			why = step.Why
		}
		switch {
		case a.undone && step.Phase == plan.Idle && step.Action == plan.None:
			return nil
		case ctx.Err() != nil:
			return &LeftError{Why: why, Cause: ctx.Err()}
		case step.Action == plan.None:
			a.sleep(ctx, a.pause(o, step))
		}
	}
}

// LeftError says that something of ours may still be on the Node.
type LeftError struct {
	Why   string
	Cause error
}

func (e *LeftError) Error() string { return "cleaning up: " + e.Why + ": " + e.Cause.Error() }

// Unwrap is the end of the context.
func (e *LeftError) Unwrap() error { return e.Cause }

// Decide observes and decides, and does nothing: the dry run.
func (a *Agent) Decide(ctx context.Context) (plan.Observed, plan.Step) {
	o := a.observe(ctx)
	step := plan.Next(a.Policy, o)
	if step.Action != plan.None && step.Action != plan.LetGo && // a shutdown waits for that one
		a.acts.until > o.Uptime { // one that needs no API server, and failed a moment ago
		step.Action, step.Why = plan.None, a.acts.why
	}
	return o, step
}

// round is the whole agent: observe, decide, report, act once.
func (a *Agent) round(ctx context.Context) (plan.Observed, plan.Step) {
	if a.Alive != nil {
		a.Alive()
	}
	o, step := a.Decide(ctx)
	if ctx.Err() != nil {
		return o, step
	}
	a.report(o, step)
	if step.Action != plan.None {
		a.perform(ctx, o, step)
	}
	return o, step
}

func (a *Agent) report(o plan.Observed, step plan.Step) {
	if a.Report != nil {
		a.Report(o, step)
	}
	if step.Phase == plan.Idle && step.Action == plan.None {
		a.Identity.Rest()
	}
}

// Leave decides what the end of the process means for the Node.
//
//	shutdown under way, or no bus to ask: keep everything, the boot unit cleans up
//	restart of our own unit:              keep everything, the next process resumes
//	stop, removal:                        undo everything
func (a *Agent) Leave(ctx context.Context) {
	record, err := a.Host.ReadRecord()
	if err == nil && !record.Marked {
		return
	}
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	down, err := a.Logind.PreparingForShutdown(asking)
	if !down { // Ctrl-Alt-Del, or a signal to PID 1: logind knows nothing of it
		down, _ = a.Units.GoingDown(asking)
	}
	if down {
		a.Logger.Info("stopping in a shutdown: the node stays as it is")
		return
	}
	again, silent := a.Units.Restarting(asking)
	switch {
	case err != nil && silent != nil: // the bus ends before us only in a shutdown
		a.Logger.Info("stopping, and nobody on the bus says why, as in a shutdown: the node stays as it is", "err", silent)
		return
	case again:
		a.Logger.Info("stopping to be started again: the node stays as it is")
		return
	}
	a.Logger.Info("stopping for good: undoing taint, cordon and slot")
	undoing, cancel := context.WithTimeout(ctx, leaveBound)
	defer cancel()
	if err := a.CleanUp(undoing); err != nil {
		a.Logger.Error("something of ours may be left on the node; run: kured-agent cleanup", "err", err)
	}
}

// leaveBound stays below TimeoutStopSec of the unit.
const leaveBound = 45 * time.Second

// sleep waits until a change, the end of the pause or the end of ctx, and tells meanwhile that the loop is alive.
func (a *Agent) sleep(ctx context.Context, pause time.Duration) {
	end := time.NewTimer(pause)
	defer end.Stop()
	if pause == forever {
		end.Stop()
	}
	var alive <-chan time.Time
	if a.Alive != nil && a.AliveEvery > 0 {
		a.Alive()
		tick := time.NewTicker(a.AliveEvery)
		defer tick.Stop()
		alive = tick.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.Changed:
			return
		case <-end.C:
			return
		case <-alive:
			a.Alive()
		}
	}
}

const forever = time.Duration(1<<63 - 1)

// pause says how long to sleep when nothing changes by itself: until the step's own time, and not longer than what the
// phase has to poll for.
func (a *Agent) pause(o plan.Observed, step plan.Step) time.Duration {
	pause := forever
	at := func(uptime time.Duration) {
		if uptime > 0 {
			pause = min(pause, max(uptime-a.Uptime(), time.Millisecond))
		}
	}
	at(step.Wake)
	if poll := pollEvery(o, step, o.Uptime-a.began); poll > 0 {
		at(o.Uptime + jitter(poll))
	}
	at(a.stalled(o.Uptime).until)
	if step.Phase == plan.Idle {
		at(a.recheckAt)
	}
	if step.Phase == plan.Draining {
		at(a.lookAt)
	}
	return pause
}

// pollEvery is the longest pause for what no signal tells: an annotation, a gate, a kubelet that comes up. age is the
// loop's own.
func pollEvery(o plan.Observed, step plan.Step, age time.Duration) time.Duration {
	switch step.Phase {
	case plan.Idle, plan.WaitingTurn, plan.Draining, plan.Unreachable:
		return 0
	case plan.Returning:
		switch {
		case o.BootUnitWorks:
			return 10 * time.Second
		case age < time.Minute:
			return 700 * time.Millisecond
		case age < 15*time.Minute:
			return 3 * time.Second
		}
		return 10 * time.Second
	case plan.Waiting:
		if len(o.Gates) > 0 || o.Node.Hold != "" || o.Node.Leaving != "" {
			return time.Minute
		}
		return nodeAge
	case plan.Rebooting:
		return 5 * time.Second
	case plan.Preparing:
		return time.Second
	case plan.WaitingInhibitor: // nothing tells of the end of a package manager
		return 10 * time.Second
	default:
		return 30 * time.Second
	}
}

// jitter spreads a period over three quarters to five quarters of it, so that many agents do not move in step.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}

// stall is the growing pause after an error, whatever failed.
type stall struct {
	until time.Duration // uptime
	count int
	why   string
}

const (
	stallFirst = time.Second
	stallMost  = time.Minute

	stallStopping = 3 * time.Second
)

// stalled is the pause that is still running, or the zero value.
func (a *Agent) stalled(uptime time.Duration) stall {
	switch {
	case a.reads.until > uptime:
		return a.reads
	case a.acts.until > uptime:
		return a.acts
	}
	return stall{}
}

// note lengthens the pause. A stop has no time for long ones.
func (a *Agent) note(s *stall, why string) {
	most := stallMost
	if a.stopping {
		most = stallStopping
	}
	s.until = a.Uptime() + jitter(min(stallFirst<<min(s.count, 10), most))
	s.count++
	s.why = why
}
