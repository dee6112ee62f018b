// SPDX-License-Identifier: Apache-2.0

// Package plan decides what the agent does next. It is pure: no clock, no I/O, no logging, nothing remembered.
//
// The caller observes everything at one moment (Observed), calls Next, performs the one action of the returned Step,
// and observes again. A crash between any two steps loses nothing, because no step depends on what was decided before.
// The same call, without the action, is `kured-agent plan`; the boot unit runs it until the phase is no longer
// Returning.
//
// What the caller promises:
//  1. Cordon, Evict, DeletePods and Reboot begin with a quorum read of the slot; when it is no longer ours nothing else
//     is done and the slot is observed as SlotLost.
//  2. Reboot re-reads the need too, and writes Record.Asked to the disk before logind is called.
//  3. Taint and Acquire write Record.Marked to the disk before the API server is called.
//  4. An action that fails changes nothing but the time of its next try; only the caller retries.
package plan

import (
	"fmt"
	"strings"
	"time"
)

// Phase says what the agent is doing, in one word for people, metrics and STATUS=.
type Phase int

// Phases, each explained by its rows in decide.
const (
	Idle Phase = iota
	Tainting
	Waiting
	WaitingTurn
	Locking
	Cordoning
	Draining
	Preparing
	WaitingInhibitor
	Rebooting
	Returning
	Cancelling
	GivingUp
	Unknowing
	Unreachable
	NoNode
)

var phaseNames = [...]string{
	"Idle", "Tainting", "Waiting", "WaitingTurn", "Locking", "Cordoning", "Draining", "Preparing", "WaitingInhibitor",
	"Rebooting", "Returning", "Cancelling", "GivingUp", "Unknown", "Unreachable", "NoNode",
}

func (p Phase) String() string { return name(phaseNames[:], int(p)) }

// Phases lists every phase, in order.
func Phases() []Phase {
	all := make([]Phase, len(phaseNames))
	for i := range all {
		all[i] = Phase(i)
	}
	return all
}

// Action is the one thing to do next.
type Action int

// Actions. Those that patch the Node do so in one write.
const (
	None        Action = iota
	Taint              // patch: add our taint
	Acquire            // try to take a slot
	Cordon             // verify the slot; patch: unschedulable, marker, autoscaler annotations
	Evict              // verify the slot; one eviction pass
	DeletePods         // verify the slot; delete what could not be evicted
	StartTarget        // start kured-agent-pre-reboot.target
	Reboot             // verify the slot and the need, record, ask logind
	Return             // patch: uncordon if ours, untaint, drop the marker, remove start-up taints
	Clean              // the same patch without the start-up taints
	RollBack           // patch: uncordon if ours, drop the marker; the taint stays
	Release            // give the slot back
	NoteFailure        // record that this attempt failed, which starts the back-off
	Settle             // record that nothing of ours is outstanding any more
	Forget             // record that the Node object is another one now
	Unask              // record that logind was not asked after all
	LetGo              // let a shutdown that waits for us go on
)

var actionNames = [...]string{
	"none", "taint", "acquire a slot", "cordon", "evict pods", "delete pods", "start the pre-reboot target", "reboot",
	"return the node", "clean the node", "roll back the cordon", "release the slot", "note the failure",
	"close the record",
	"forget the old node", "take back that logind was asked", "let the shutdown go on",
}

func (a Action) String() string { return name(actionNames[:], int(a)) }

func name(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("unknown(%d)", i)
	}
	return names[i]
}

// Step is a decision.
type Step struct {
	Phase  Phase
	Action Action
	Why    string
	Wake   time.Duration // uptime at which to look again; zero: only when something changes
}

// AfterTimeout says what follows a drain that took longer than Policy.DrainTimeout.
type AfterTimeout int

// What may follow it: the attempt is given up, the reboot comes all the same, the pods left are deleted.
const (
	TimeoutRollsBack AfterTimeout = iota
	TimeoutReboots
	TimeoutDeletes
)

// Policy is what the administrator decided.
type Policy struct {
	TaintInWindow  bool // [taint] when = "window"
	StartupTaints  bool // [boot] remove_taints is not empty
	AfterTimeout   AfterTimeout
	Method         Kind          // the least kind of reboot; zero: as the reasons need
	RefuseBeside   bool          // wait while another program would reboot this host
	MinInterval    time.Duration // between two reboots of this node
	LoopGuard      time.Duration // how long an unchanged reason may not reboot again
	MaxHold        time.Duration // of the slot, in one boot
	DrainTimeout   time.Duration
	RebootDeadline time.Duration // from logind's acceptance to a visible shutdown
	Settle         time.Duration // of the health after a boot
	BootDeadline   time.Duration // after which an unhealthy boot is told loudly
}

// Next decides. It never fails: an observation that makes no sense leads to no action.
func Next(p Policy, o Observed) Step {
	phase, action, because := decide(look(p, o))
	why, wake := because(p, o)
	return Step{Phase: phase, Action: action, Why: why, Wake: earliest(o, append(boundaries(p, o), wake)...)}
}

// boundaries are the moments at which time alone may change the decision, whatever it is now.
func boundaries(p Policy, o Observed) []time.Duration {
	all := []time.Duration{wakeAt(o, o.Window.Opens), wakeAt(o, o.Window.Closes)}
	if o.Slot.State == SlotOurs && o.Slot.Boot == o.Boot {
		all = append(all, o.Slot.Taken+p.MaxHold, o.Slot.Taken+p.DrainTimeout)
	}
	return all
}

// earliest is the first of the uptimes that is still to come; zero if none is.
func earliest(o Observed, uptimes ...time.Duration) time.Duration {
	var first time.Duration
	for _, u := range uptimes {
		if u > o.Uptime && (first == 0 || u < first) {
			first = u
		}
	}
	return first
}

// because explains a row to people and says when time alone may change it.
type because func(Policy, Observed) (why string, wake time.Duration)

// decide is the whole of the agent: first match wins, one action a row. docs/states.md is rendered from it, comments
// included.
func decide(f facts) (Phase, Action, because) {
	switch {
	// Somebody else's shutdown waits for our delay inhibitor: time enough for one patch.
	case f.farewell == farewellDue:
		return Rebooting, Taint, becauseFarewell

	// The Node knows, or can't be told: nobody waits for us any longer.
	case f.farewell == farewellOver:
		return Rebooting, LetGo, becauseLetGo

	// A reboot is under way: nothing is undone any more, whoever asked for it.
	case f.shutdown || f.asked == askedPending:
		return Rebooting, None, becauseGoingDown

	// The agent ended in the moment in which it asked logind, and no shutdown is under way: it was not asked.
	case f.asked == askedDoubt:
		return Waiting, Unask, becauseNotAsked

	// The API server does not answer: keep everything as it is and try again.
	case f.api == APIAway || f.unasked():
		return Unreachable, None, becauseAway

	// The Node object is gone or another one: nothing on it can be ours.
	case f.forgotten:
		return Idle, Forget, becauseForgotten

	// There is no Node object of our name yet.
	case f.missing && (f.need != NotRequired || f.unsettled):
		return NoNode, None, becauseNoNode

	// We are back from a reboot, and the boot unit is at work on it.
	case f.returning && f.bootUnit:
		return Returning, None, becauseBootUnit

	// This boot is not healthy: taint, cordon and slot stay, which stops the roll-out (kubereboot/kured#886).
	case f.returning && f.health == sick:
		return Returning, None, becauseSick

	// Healthy, but not for long enough.
	case f.returning && f.health == settling:
		return Returning, None, becauseSettling

	// Healthy: one patch gives the Node back.
	case f.returning && f.dirty():
		return Returning, Return, becauseReturned

	// The Node is clean, so the slot may go: in this order, or two nodes could be cordoned at once.
	case f.returning && f.slot != SlotNone:
		return Returning, Release, becauseNodeClean

	// A start-up taint alone. It comes after the slot: the right to remove it may be missing, and the slot stops others.
	case f.returning && f.startup:
		return Returning, Return, becauseReturned

	// Nothing of the last boot is left.
	case f.returning:
		return Returning, Settle, becauseNothingLeft

	// This attempt can't succeed: remember that first, so that what follows needs no memory.
	case f.trouble && !f.backingOff && f.need != NotRequired:
		return GivingUp, NoteFailure, becauseTrouble

	// We may not go on: the Node first.
	case f.barred && f.need != NotRequired && f.marker:
		return GivingUp, RollBack, becauseBarred

	// Then the slot, so that others get their turn (kubereboot/kured#792).
	case f.barred && f.need != NotRequired && f.slot != SlotNone:
		return GivingUp, Release, becauseBarred

	// Our cordon without a slot, as after a lost record and a slot that a human freed: others may be cordoned meanwhile.
	case f.need != NotRequired && f.marker && f.slot == SlotNone:
		return GivingUp, RollBack, becauseNoSlot

	// A source that asked for the reboot can't be read: never start, never cancel.
	case f.need == Unknown:
		return Unknowing, None, becauseUnknown

	// The need went away, or the agent is told to stop: the Node first.
	case f.need == NotRequired && f.dirty():
		return Cancelling, Clean, becauseNotRequired

	// Then the slot.
	case f.need == NotRequired && f.slot != SlotNone:
		return Cancelling, Release, becauseNotRequired

	// Then the record.
	case f.need == NotRequired && f.unsettled:
		return Idle, Settle, becauseNotRequired

	// Nothing to do: no request, no connection.
	case f.need == NotRequired:
		return Idle, None, becauseNotRequired

	// The taint belongs to open windows only, by [taint] when = "window".
	case (f.tainted || f.stray) && !f.taintWanted:
		return Waiting, Clean, becauseBarred

	// A reboot is required: say so to the scheduler at once, also while blocked (kubereboot/kured#970).
	case (!f.tainted || f.stray) && f.taintWanted:
		return Tainting, Taint, becauseRequired

	// Held back by a human, a window, a gate, the loop guard, the minimum interval or the back-off.
	case f.barred:
		return Waiting, None, becauseBarred

	// Somebody blocks shutdowns: no slot is taken for that.
	case f.slot == SlotNone && f.inhibited:
		return WaitingInhibitor, None, becauseInhibited

	// Others are rebooting.
	case f.slot == SlotNone && !f.turn:
		return WaitingTurn, None, becauseTurn

	// Our turn to try.
	case f.slot == SlotNone:
		return Locking, Acquire, becauseDue

	// The slot is ours and a gate has just closed: one unanswered question is no reason to give up a drain, and none to
	// go on.
	case f.gated:
		return Waiting, None, becauseGated

	// The slot is ours. A cordon that somebody took off is put on again (kubereboot/kured#929).
	case !f.cordoned:
		return Cordoning, Cordon, becauseSlot

	// The drain took too long and pods may be deleted.
	case f.pods == podsStuck && f.afterTimeout == TimeoutDeletes && f.podsDue:
		return Draining, DeletePods, becausePods

	// Pods are left and another pass is due.
	case f.pods == podsLeft && f.podsDue:
		return Draining, Evict, becausePods

	// Pods are on their way out.
	case f.pods == podsLeft || f.pods == podsStuck && f.afterTimeout != TimeoutReboots:
		return Draining, None, becausePods

	// The administrator's units run before the reboot.
	case f.preReboot == TargetInactive:
		return Preparing, StartTarget, becausePreReboot

	// They are not through yet.
	case f.preReboot != TargetReached:
		return Preparing, None, becausePreReboot

	// Everything is ready and somebody blocks the shutdown: wait, as long as the slot may be held.
	case f.inhibited:
		return WaitingInhibitor, None, becauseInhibited

	// Required, our turn, open, drained, not inhibited.
	default:
		return Rebooting, Reboot, becauseReady
	}
}

// facts is an observation reduced to what the table looks at. Every field has few values, so that a test can walk
// through all of them.
type facts struct {
	farewell farewell
	shutdown bool
	asked    askedState
	api      API

	forgotten bool // the record speaks of another Node object
	missing   bool
	unsettled bool // the record says that something may be outstanding

	returning bool // marks of another boot
	bootUnit  bool
	health    health
	startup   bool

	tainted  bool
	stray    bool
	marker   bool // we cordoned, or say so
	cordoned bool // unschedulable, by whomever
	slot     SlotState

	need        Level
	taintWanted bool
	trouble     bool
	backingOff  bool // after a failure; one of the bars
	barred      bool
	gated       bool // a gate is closed
	inhibited   bool
	turn        bool

	pods         podsState
	podsDue      bool
	afterTimeout AfterTimeout
	preReboot    Target
}

// unasked says that the API server was not asked although there is something to do with it.
func (f facts) unasked() bool {
	return f.api == APIUnneeded && !(f.returning && f.bootUnit) && (f.need == Required || f.unsettled || f.returning)
}

func (f facts) dirty() bool { return f.tainted || f.stray || f.marker }

// farewell is what is left to do in a shutdown that waits for our delay inhibitor.
type farewell int

const (
	farewellNone farewell = iota // no shutdown, or it does not wait for us
	farewellDue                  // the Node does not show yet that this host goes down
	farewellOver
)

func parting(o Observed) farewell {
	switch {
	case !o.Shutdown || !o.Delaying:
		return farewellNone
	case o.API == APIRead && o.Node.UID != "" && !o.Node.Tainted && !o.Record.Marked && !IsReturning(o):
		return farewellDue
	}
	return farewellOver
}

type askedState int

const (
	askedNot askedState = iota
	askedPending
	askedOverdue
	askedDoubt // by an earlier process, and logind knows nothing of it
)

// doubtAfter is when a reboot that an earlier process asked for counts as not asked, if logind shows no shutdown. logind
// shows an accepted one before it answers.
const doubtAfter = 10 * time.Second

type health int

const (
	sick health = iota
	settling
	fit
)

type podsState int

const (
	podsGone podsState = iota
	podsLeft
	podsStuck // left, and the drain took too long
)

func look(p Policy, o Observed) facts {
	f := facts{
		farewell:     parting(o),
		shutdown:     o.Shutdown,
		asked:        asked(p, o),
		api:          o.API,
		bootUnit:     o.BootUnitWorks,
		health:       fitness(p, o),
		inhibited:    len(o.Inhibitors) > 0,
		turn:         o.Uptime >= o.Turn.Next,
		need:         o.Need,
		taintWanted:  !p.TaintInWindow || o.Window.Open,
		afterTimeout: p.AfterTimeout,
		preReboot:    o.PreReboot,
		unsettled:    unsettled(p, o),
		slot:         o.Slot.State,
	}
	if o.Stopping {
		f.need = NotRequired
	}
	if o.API == APIRead {
		f.missing = o.Node.UID == ""
		f.forgotten = o.Record.Marked && (f.missing || o.Record.NodeUID != "" && o.Record.NodeUID != o.Node.UID)
		f.startup = startup(o)
		f.tainted, f.stray = o.Node.Tainted, o.Node.Stray
		f.marker = o.Node.Marker != ""
		f.cordoned = o.Node.Unschedulable
	}
	f.returning = IsReturning(o)
	f.pods, f.podsDue = drained(p, o)
	f.trouble = trouble(p, o) != ""
	f.backingOff = backoffLeft(o) > 0
	f.barred = len(bars(p, o)) > 0
	f.gated = len(o.Gates) > 0
	return f
}

// IsReturning says that something of another boot is to be undone, or a start-up taint is to be removed.
func IsReturning(o Observed) bool {
	return !o.Stopping && (startup(o) ||
		o.Record.Marked && o.Record.Boot != o.Boot ||
		o.Node.Marker != "" && o.Node.Marker != o.Boot ||
		o.Slot.State == SlotOurs && o.Slot.Boot != o.Boot)
}

// startup says that a start-up taint is to be removed. One that appears in our own attempt waits for its end.
func startup(o Observed) bool {
	return o.Node.Startup && !o.Stopping && o.Node.Marker != o.Boot &&
		(o.Slot.State == SlotNone || o.Slot.Boot != o.Boot)
}

func asked(p Policy, o Observed) askedState {
	switch {
	case o.Record.Asked == nil || o.Record.Boot != o.Boot:
		return askedNot
	case o.Stopping && !o.Shutdown && !o.ShutdownUnknown:
		return askedOverdue // logind shows an accepted reboot at once: this one does not come, and we will not be there
	case !o.AskedHere && !o.Shutdown && !o.ShutdownUnknown && o.Uptime-o.Record.Asked.At >= doubtAfter:
		return askedDoubt
	case o.Uptime-o.Record.Asked.At < p.RebootDeadline:
		return askedPending
	}
	return askedOverdue
}

func fitness(p Policy, o Observed) health {
	switch {
	case !o.Health.OK:
		return sick
	case o.Uptime-o.Health.Since < p.Settle:
		return settling
	}
	return fit
}

func drained(p Policy, o Observed) (podsState, bool) {
	due := o.Pods.Known && o.Uptime >= o.Pods.Next
	switch {
	case o.Pods.Known && o.Pods.Left == 0:
		return podsGone, due
	case o.Uptime-o.Slot.Taken >= p.DrainTimeout:
		return podsStuck, due
	}
	return podsLeft, due
}

func unsettled(p Policy, o Observed) bool {
	r := o.Record
	return r.Marked || r.Slot != nil || r.Asked != nil || p.StartupTaints && !o.Stopping && r.Startup != o.Boot
}

// trouble says why this attempt must be given up, or nothing.
func trouble(p Policy, o Observed) string {
	ours := o.Slot.State == SlotOurs
	switch pods, _ := drained(p, o); {
	case asked(p, o) == askedOverdue:
		return fmt.Sprintf("logind accepted the reboot, but no shutdown came within %s", p.RebootDeadline)
	case o.Slot.State == SlotLost:
		return fmt.Sprintf("slot %s was taken away from this node", o.Slot.Name)
	case ours && o.Uptime-o.Slot.Taken >= p.MaxHold:
		return fmt.Sprintf("slot %s was held for max_hold = %s%s", o.Slot.Name, p.MaxHold, after(": ", o.Pods.Why))
	case ours && o.Pods.Fatal && p.AfterTimeout == TimeoutRollsBack:
		return "draining: " + o.Pods.Why
	case ours && pods == podsStuck && p.AfterTimeout == TimeoutRollsBack:
		return fmt.Sprintf("draining did not end within timeout = %s: %s", p.DrainTimeout, o.Pods.Why)
	case ours && o.PreReboot == TargetFailed:
		return "kured-agent-pre-reboot.target failed: " + o.PreWhy
	case ours && gateShut(o):
		return "a gate closed after the slot was taken: " + strings.Join(o.Gates, "; ")
	}
	return ""
}

// after joins what is not empty.
func after(separator, s string) string {
	if s == "" {
		return ""
	}
	return separator + s
}

// gateGrace is how long a gate may be closed before a slot that is held is given back.
const gateGrace = 30 * time.Second

// gateShut says that a gate bars the node: at once when it only waits, after a moment when it holds the slot.
func gateShut(o Observed) bool {
	return len(o.Gates) > 0 && (o.Slot.State != SlotOurs || o.Uptime-o.GatesSince >= gateGrace)
}

// bar is one reason not to go on, and the time at which it may end by itself.
type bar struct {
	kind  string // of a short list, for metrics
	why   string
	until time.Time
}

// bars lists what holds this node back. Each of them also takes back a slot that is held.
func bars(p Policy, o Observed) []bar {
	var all []bar
	add := func(kind string, until time.Time, format string, args ...any) {
		all = append(all, bar{kind, fmt.Sprintf(format, args...), until})
	}
	if o.Node.Hold != "" {
		add("hold", time.Time{}, "held back by annotation kured-agent/hold: %s", o.Node.Hold)
	}
	if o.Node.Leaving != "" {
		add("autoscaler", time.Time{}, "an autoscaler is about to remove this node: %s", o.Node.Leaving)
	}
	if !o.Window.Open {
		add("window", o.Window.Opens, "outside the maintenance windows")
	}
	if gateShut(o) {
		for _, g := range o.Gates {
			add("gate", time.Time{}, "gate: %s", g)
		}
	}
	if p.RefuseBeside {
		for _, program := range o.Beside {
			add("beside", time.Time{}, "%s", program)
		}
	}
	if left := backoffLeft(o); left > 0 {
		add("back-off", o.Now.Add(left), "backing off after failure %d: %s", o.Record.Failure.Count, o.Record.Failure.Why)
	}
	if last := o.Record.Last; last != nil {
		if left := p.MinInterval - since(o, last.Moment); left > 0 {
			add("min-interval", o.Now.Add(left), "less than min_interval = %s since the last reboot", p.MinInterval)
		}
		if didNotHelp(p, o) {
			add("loop-guard", o.Now.Add(p.LoopGuard-since(o, last.Moment)), "the reboot did not help: the same reasons are still there")
		}
	}
	return all
}

// since is the time since the moment. The uptime says, which runs through soft reboots. In another boot of the kernel the
// wall clock does, but it is at least the uptime, whatever a clock that was set wrong in between claims.
func since(o Observed, m Moment) time.Duration {
	if m.Boot != "" && kernel(m.Boot) == kernel(o.Boot) {
		return o.Uptime - m.Up
	}
	return max(o.Now.Sub(m.At), o.Uptime)
}

// kernel is the kernel's part of a boot: what it had before the first soft reboot.
func kernel(boot string) string {
	id, _, _ := strings.Cut(boot, ".")
	return id
}

// didNotHelp says that the reasons of our last reboot are still there, and no other: rebooting again would loop
// (kubereboot/kured#147, #976).
func didNotHelp(p Policy, o Observed) bool {
	last := o.Record.Last
	return last != nil && o.Need == Required && since(o, last.Moment) < p.LoopGuard && !anyNew(o.Reasons, last.Reasons)
}

// What waits for a human.
const (
	TroubleUnhealthy = "BootUnhealthy"
	TroubleNotHelped = "RebootDidNotHelp"
)

// late says that this boot should have been healthy by now.
func late(p Policy, o Observed) bool { return o.Uptime-o.Began > p.BootDeadline }

// Trouble names what waits for a human in this step, or nothing.
func Trouble(p Policy, o Observed, s Step) string {
	switch {
	case s.Phase == Returning && s.Action == None && !o.Health.OK && !o.BootUnitWorks && late(p, o):
		return TroubleUnhealthy
	case s.Phase == Waiting && didNotHelp(p, o):
		return TroubleNotHelped
	}
	return ""
}

// Backoff is the pause after the n-th failure in a row: 15 min, doubled up to 6 h. It is counted on the wall clock,
// since it must survive a reboot.
func Backoff(n int) time.Duration {
	return min(15*time.Minute<<min(max(n-1, 0), 10), 6*time.Hour)
}

func backoffLeft(o Observed) time.Duration {
	f := o.Record.Failure
	if f == nil {
		return 0
	}
	return Backoff(f.Count) - since(o, f.Moment)
}

// anyNew says whether a reason is there that was not among the old ones: an altered need may reboot again.
func anyNew(now, old []Reason) bool {
	seen := make(map[[2]string]bool, len(old))
	for _, r := range old {
		seen[[2]string{r.Source, r.ID}] = true
	}
	for _, r := range now {
		if !seen[[2]string{r.Source, r.ID}] {
			return true
		}
	}
	return false
}

// Blocker is one thing that holds the node back. Kind is one of hold, autoscaler, window, gate, beside, back-off,
// min-interval, loop-guard and inhibitor.
type Blocker struct{ Kind, Why string }

// Blockers lists what holds this node back, for status and metrics.
func Blockers(p Policy, o Observed) []Blocker {
	var all []Blocker
	for _, b := range bars(p, o) {
		all = append(all, Blocker{b.kind, b.why})
	}
	for _, holder := range o.Inhibitors {
		all = append(all, Blocker{"inhibitor", holder})
	}
	return all
}

// wakeAt turns a wall-clock time into an uptime.
func wakeAt(o Observed, t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return o.Uptime + max(t.Sub(o.Now), 0)
}

// Summary names the reasons in one line, for annotations, logs and wall messages. It is bounded.
func Summary(reasons []Reason) string {
	const most = 5
	var texts []string
	for i, r := range reasons {
		if i == most {
			texts = append(texts, fmt.Sprintf("and %d more", len(reasons)-most))
			break
		}
		text := r.Text
		if text == "" {
			text = r.ID
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
