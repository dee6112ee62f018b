// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	// freshAge bounds how old an answer about the Node may be once the slot is ours: what is acted on was true a moment
	// ago.
	freshAge = 10 * time.Second
	// nodeAge bounds it while the node only waits, or longer where many do: a hold annotation or a foreign change is seen
	// after that time, and before the cordon in any case.
	nodeAge = 5 * time.Minute
	// bootAge bounds it while the kubelet of a new boot is waited for: a hint of the bus is no reason to ask twice.
	bootAge = 300 * time.Millisecond
	// heldAge bounds it while a mark on the Node holds it back: somebody waits for its removal to be seen.
	heldAge = 30 * time.Second
)

// observeBound ends an observation that hangs: the watchdog waits longer.
const observeBound = 45 * time.Second

// observe reads what a decision needs, and no more: what is local always, the API server only when there is something
// to do with it.
func (a *Agent) observe(ctx context.Context) plan.Observed {
	ctx, cancel := context.WithTimeout(ctx, observeBound)
	defer cancel()
	o := plan.Observed{
		Now: a.Now(), Uptime: a.Uptime(), Boot: a.Boot, Began: a.booted,
		Turn: a.turn, Stopping: a.stopping, AskedHere: a.asked,
	}
	o.Window = a.Window(o.Now)
	a.queue.crowd = a.queue.crowd || !o.Window.Open
	o.Need, o.Reasons = a.Sources.Need()
	var err error
	if o.Record, err = a.Host.ReadRecord(); err != nil {
		// Nothing is known, so nothing is done: an empty record would say that nothing is outstanding.
		if a.stalled(o.Uptime).until == 0 {
			a.note(&a.reads, fmt.Sprintf("reading the record: %v", err))
		}
		o.API, o.APIWhy = plan.APIAway, a.reads.why
		return o
	}
	if a.recorded && o.Record.Slot == nil { // lost with the record: not given back by us
		a.searched = false
	}
	a.recorded = o.Record.Slot != nil
	if a.queue.nodes == 0 {
		a.queue.nodes = o.Record.Nodes
	}
	a.observeHost(ctx, &o)
	switch {
	case o.Shutdown && o.Delaying && !o.Record.Marked:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, farewellBound)
		defer cancel()
	case o.Shutdown || !a.needsAPI(o):
		return o
	}
	a.observeCluster(ctx, &o)
	return o
}

// farewellBound is how long the API server may take for each of a look and a patch while a shutdown waits for us. logind
// waits for 5 s by default.
const farewellBound = 2 * time.Second

// active says that the agent means to reboot or is about to undo something: an idle agent asks nobody anything.
func active(o plan.Observed) bool { return o.Need == plan.Required || o.Record.Marked }

func (a *Agent) observeHost(ctx context.Context, o *plan.Observed) {
	a.observeBeside(ctx, o)
	a.observeDelay(ctx, o)
	if !active(*o) && !o.Delaying {
		return
	}
	a.observeLogind(ctx, o)
	if a.stopping || !active(*o) {
		return
	}
	var err error
	if fromOtherBoot(*o) {
		if o.BootUnitWorks, err = a.Units.BootUnitWorks(ctx); err != nil {
			a.Logger.Debug("asking for kured-agent-boot.service", "err", err)
		}
		return
	}
	if o.Need == plan.Required {
		a.observeGates(ctx, o)
	}
	if o.Record.Slot == nil {
		return
	}
	if o.PreReboot, o.PreWhy, err = a.Units.PreReboot(ctx, o.Record.Slot.UID); err != nil {
		o.PreReboot = plan.TargetStarting // not known to be through
	}
}

func (a *Agent) observeLogind(ctx context.Context, o *plan.Observed) {
	if a.stopping { // there is not much time, and inhibitors do not matter any more
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
	}
	var err error
	if o.Shutdown, err = a.Logind.PreparingForShutdown(ctx); err != nil {
		o.ShutdownUnknown = true
		// Without logind there will be no reboot: find out before pods are moved (systemd/systemd#36035).
		o.Inhibitors = []string{unasked(err)}
		return
	}
	if a.stopping || o.Shutdown || !active(*o) {
		return
	}
	if o.Scheduled, err = a.Logind.Scheduled(ctx); err != nil {
		a.Logger.Debug("asking for a scheduled shutdown", "err", err)
	}
	o.Inhibitors = a.inhibitors(ctx)
	// Not before the taint: polkit may take its time, and the scheduler should know at once.
	tainted := o.Record.Marked && o.Record.Boot == o.Boot
	if o.Need == plan.Required && tainted && len(o.Inhibitors) == 0 && (o.Record.Slot == nil || a.refusal != "") {
		a.preflight(ctx, o.Uptime)
	}
	if a.refusal != "" && len(o.Inhibitors) == 0 {
		o.Inhibitors = []string{a.refusal}
	}
}

func unasked(err error) string { return fmt.Sprintf("logind, which can't be asked: %v", err) }

// inhibitors lists who has to be waited for: block inhibitors, and a package manager in the middle of its work.
func (a *Agent) inhibitors(ctx context.Context) []string {
	holders, err := a.Logind.Inhibitors(ctx)
	if err != nil {
		return []string{unasked(err)}
	}
	switch holder, err := a.Host.PackageManager(); {
	case err != nil:
		a.Logger.Debug("looking for a package manager at work", "err", err)
	case holder != "":
		holders = append(holders, "a package manager at work: "+holder)
	}
	return holders
}

// preflightEvery is the pace of asking logind beforehand while it refuses, or while the node waits.
const preflightEvery = 30 * time.Second

// preflight finds out what logind would say before a slot is taken for it.
func (a *Agent) preflight(ctx context.Context, uptime time.Duration) {
	if a.refusalAt > 0 && uptime-a.refusalAt < preflightEvery {
		return
	}
	a.refusal, a.refusalAt = "", uptime
	var refusal Refusal
	err := a.Logind.Preflight(ctx)
	switch {
	case err == nil, errors.As(err, &refusal) && refusal.MayGoDown():
	default:
		a.refusal = fmt.Sprintf("logind, which would refuse the reboot: %v", err)
	}
}

// observeDelay keeps the delay inhibitor. Without it a foreign shutdown is only seen by the next boot.
func (a *Agent) observeDelay(ctx context.Context, o *plan.Observed) {
	if !a.Farewell || a.stopping {
		return
	}
	why := ""
	if err := a.Logind.Delay(ctx); err != nil {
		why = err.Error()
	}
	if why != "" && why != a.undelayed {
		a.Logger.Warn("a shutdown by somebody else can't be marked on the Node in time", "err", why)
	}
	a.undelayed = why
	o.Delaying = a.Logind.Delaying()
}

// besideEvery is the pace of looks for other programs that reboot this host: each is some forty questions to systemd.
const besideEvery = 10 * time.Minute

// besideAgain is the pause after a look that could not judge all: what it missed must not be raced for long.
const besideAgain = time.Minute

func (a *Agent) observeBeside(ctx context.Context, o *plan.Observed) {
	if a.Beside == nil || a.stopping {
		return
	}
	if a.besideNext == 0 || active(*o) && o.Uptime >= a.besideNext {
		found, err := a.Beside.Find(ctx)
		a.besideFound, a.besideNext = found, o.Uptime+besideEvery
		if err != nil {
			a.Logger.Debug("looking for other programs that reboot this host", "err", err)
			a.besideNext = o.Uptime + besideAgain
		}
	}
	a.tellBeside(o)
}

// tellBeside joins what runs on the host and what runs in pods.
func (a *Agent) tellBeside(o *plan.Observed) {
	now := append(slices.Clone(a.besideFound), a.Beside.Pods()...)
	for _, program := range now {
		if !slices.Contains(a.beside, program) {
			a.Logger.Warn("another program reboots this host by itself", "program", program)
		}
	}
	a.beside, o.Beside = now, now
}

// lookBeside looks again for the pods that reboot this host. The node waits while there is one, and nothing else lists
// pods then: one that is gone would hold the node back for ever.
func (a *Agent) lookBeside(ctx context.Context, o *plan.Observed) {
	waits := o.Slot.State == plan.SlotNone && o.Need == plan.Required && !a.stopping
	if a.Beside == nil || !waits || len(a.Beside.Pods()) == 0 {
		a.besidePods = 0
		return
	}
	switch {
	case a.besidePods == 0:
		a.besidePods = o.Uptime + besideEvery
	case o.Uptime >= a.besidePods:
		a.besidePods = o.Uptime + besideEvery
		if _, err := a.Drainer.Look(ctx); err != nil {
			a.Logger.Debug("looking for pods that reboot this host", "err", err)
			return
		}
		a.tellBeside(o)
	}
}

// gatesEvery is the pace of looks at the gates: each is a query somewhere, and hints come as often as others like.
const gatesEvery = 10 * time.Second

func (a *Agent) observeGates(ctx context.Context, o *plan.Observed) {
	if a.gatesAt == 0 || o.Uptime-a.gatesAt >= gatesEvery {
		a.gates, a.gatesAt = a.Gates.Check(ctx), o.Uptime
		switch {
		case len(a.gates) == 0:
			a.gatesSince = 0
		case a.gatesSince == 0:
			a.gatesSince = o.Uptime
		}
	}
	o.Gates, o.GatesSince = a.gates, a.gatesSince
}

func fromOtherBoot(o plan.Observed) bool { return o.Record.Marked && o.Record.Boot != o.Boot }

// needsAPI says whether there is anything to ask the API server. Not while the boot unit returns the node, and not for
// an idle agent: no request, no connection.
func (a *Agent) needsAPI(o plan.Observed) bool {
	switch {
	case a.stopping:
		return true // until it has shown that nothing is left
	case fromOtherBoot(o) && o.BootUnitWorks:
		return false
	case o.Record.Asked != nil && o.Record.Boot == o.Boot && o.Uptime-o.Record.Asked.At < a.Policy.RebootDeadline:
		return false
	}
	return active(o) || a.Identity.Fingerprint() != o.Record.Proof ||
		a.Policy.StartupTaints && (o.Record.Startup != o.Boot || a.recheckDue(o))
}

// Somebody may put a start-up taint on late, or again: autoscalers synced theirs back for years
// (kubernetes-sigs/karpenter#1772). So an idle agent that has some to remove looks again, soon at first.
var rechecks = []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute}

const recheckEvery = 30 * time.Minute

func (a *Agent) recheckDue(o plan.Observed) bool { return a.recheckAt > 0 && o.Uptime >= a.recheckAt }

// scheduleRecheck plans the next look, if start-up taints are to be removed at all.
func (a *Agent) scheduleRecheck() {
	if !a.Policy.StartupTaints {
		return
	}
	pause := jitter(recheckEvery)
	if a.rechecked < len(rechecks) {
		pause = rechecks[a.rechecked]
	}
	a.rechecked++
	a.recheckAt = a.Uptime() + pause
}

func (a *Agent) observeCluster(ctx context.Context, o *plan.Observed) {
	if s := a.stalled(o.Uptime); s.until > 0 {
		o.API, o.APIWhy = plan.APIAway, s.why
		return
	}
	if err := a.readCluster(ctx, o); err != nil {
		a.note(&a.reads, err.Error())
		o.API, o.APIWhy = plan.APIAway, err.Error()
		return
	}
	a.reads = stall{}
	o.API = plan.APIRead
	a.undone = a.stopping && a.searched && !o.Node.Tainted && !o.Node.Stray && o.Node.Marker == "" &&
		o.Slot.State == plan.SlotNone
}

func (a *Agent) readCluster(ctx context.Context, o *plan.Observed) error {
	fingerprint := a.Identity.Fingerprint()
	first := fingerprint != o.Record.Proof
	if first {
		if err := a.Identity.Prove(ctx); err != nil {
			return fmt.Errorf("proving this node's identity: %w", err)
		}
	}
	var err error
	if o.Node, err = a.Node.Read(ctx, a.maxAge(*o)); err != nil {
		return err
	}
	if a.recheckDue(*o) {
		a.scheduleRecheck()
	}
	a.heldBack = o.Node.Hold != "" || o.Node.Leaving != ""
	if err := a.readSlot(ctx, o, first); err != nil {
		return err
	}
	if first {
		a.lookEvery(ctx, a.pool(o.Node))
		o.Record.Nodes = a.queue.nodes
	}
	if err := a.notice(o, first, fingerprint); err != nil {
		return err
	}
	if plan.IsReturning(*o) {
		return a.readHealth(ctx, o)
	}
	a.fitSince = 0
	a.lookBeside(ctx, o)
	a.readPods(ctx, o)
	return nil
}

// notice writes down what the Node shows and the record does not know: the file may have been lost. The proof is
// written last, when everything that could be found has been.
func (a *Agent) notice(o *plan.Observed, first bool, fingerprint string) error {
	found := !o.Record.Marked && (o.Node.Tainted || o.Node.Marker != "" || o.Record.Slot != nil)
	altered := o.Need == plan.Required && o.Record.Marked && !fromOtherBoot(*o) && !sameReasons(o.Reasons, o.Record.Reasons)
	renamed := o.Node.Tainted && !o.Node.Stray && o.Record.Taint != a.TaintName
	if !first && !found && !altered && !renamed {
		return nil
	}
	if found {
		o.Record.Marked, o.Record.NodeUID = true, o.Node.UID
		if o.Node.Marker != "" {
			o.Record.Boot = o.Node.Marker
		}
		if fromOtherBoot(*o) && (o.Node.Marker != "" || o.Record.Slot != nil) {
			// Most likely that reboot was ours. A state directory that is lost in every boot must not void the loop guard.
			o.Record.Asked = &plan.Asked{Reasons: o.Reasons}
		}
	}
	if altered {
		o.Record.Reasons = o.Reasons
	}
	if renamed {
		o.Record.Taint = a.TaintName
	}
	o.Record.Proof = fingerprint
	known := o.Record
	return a.Host.UpdateRecord(func(r *plan.Record) {
		r.Proof = known.Proof
		if found {
			r.Marked, r.NodeUID, r.Boot, r.Slot = true, known.NodeUID, known.Boot, known.Slot
			r.Asked = known.Asked
		}
		if altered {
			r.Reasons = known.Reasons
		}
		if renamed {
			r.Taint = known.Taint
		}
	})
}

func sameReasons(a, b []plan.Reason) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Source != b[i].Source || a[i].ID != b[i].ID {
			return false
		}
	}
	return true
}

func (a *Agent) maxAge(o plan.Observed) time.Duration {
	switch {
	case a.stopping, a.recheckDue(o):
		return 0
	case fromOtherBoot(o) && a.fitSince == 0:
		return bootAge
	case o.Record.Slot != nil && !fromOtherBoot(o):
		return freshAge
	case a.heldBack:
		return heldAge
	}
	return max(nodeAge, nodeLooks*a.queue.pause())
}

// verifyEvery is the pace of verifications while a slot is only held: a human who frees it is obeyed then.
const verifyEvery = 30 * time.Second

// readSlot takes the slot from the record, or looks for one once when the record may have missed it.
func (a *Agent) readSlot(ctx context.Context, o *plan.Observed, first bool) error {
	doubt := first || o.Record.Marked || o.Node.Marker != "" || a.stopping
	if o.Record.Slot == nil && !a.searched && doubt && o.Node.UID != "" {
		if err := a.search(ctx, o); err != nil {
			return err
		}
	}
	if a.stopping && o.Node.UID == "" {
		a.searched = true // a slot is owned by its Node object, and goes with it
	}
	ref := o.Record.Slot
	if ref == nil {
		return nil
	}
	o.Slot = plan.Slot{State: plan.SlotOurs, Name: ref.Name, UID: ref.UID, Boot: o.Record.Boot, Taken: ref.Taken}
	if !a.lostSlot && !fromOtherBoot(*o) && o.Uptime-max(a.verifiedAt, ref.Taken) >= verifyEvery {
		if _, err := a.verify(ctx, ref.Name, ref.UID); err != nil {
			return err
		}
	}
	if a.lostSlot {
		o.Slot.State = plan.SlotLost
	}
	return nil
}

// search adopts a slot in our name. One that belongs to an earlier Node object of our name is given back: the garbage
// collector may free it at any moment.
func (a *Agent) search(ctx context.Context, o *plan.Observed) error {
	claim, err := a.Slots.Find(ctx)
	switch {
	case err != nil:
		return err
	case claim.Taken && claim.NodeUID != o.Node.UID:
		if err := a.Slots.Release(ctx, claim.Name, claim.UID); err != nil {
			return err
		}
	case claim.Taken:
		if err := a.take(ctx, *o, claim); err != nil {
			return err
		}
		o.Record.Slot = &plan.SlotRef{Name: claim.Name, UID: claim.UID, Taken: o.Uptime}
		if !o.Record.Marked {
			o.Record.Boot = claim.Boot
		}
	}
	a.searched = true
	return nil
}

func (a *Agent) pool(n plan.Node) string {
	switch {
	case a.Pool != "":
		return a.Pool
	case n.ControlPlane:
		return "control-plane"
	}
	return "default"
}

// bootComplete asks systemd whether this boot counts as good.
func (a *Agent) bootComplete(ctx context.Context, o *plan.Observed) bool {
	why, err := a.Units.BootComplete(ctx)
	if err != nil {
		why = fmt.Sprintf("asking systemd: %v", err)
	}
	o.Health.Why = why
	return why == ""
}

// readHealth says whether the kubelet of this very boot is ready. Ready alone may be 50 s old, and so may the network
// condition: the boot id in the same object makes them count (facts of the node lifecycle controller).
func (a *Agent) readHealth(ctx context.Context, o *plan.Observed) error {
	why := a.unfit(o.Node)
	if why == "" && a.bootComplete(ctx, o) {
		missing, err := a.Ready.Missing(ctx)
		if err != nil {
			return err
		}
		why = missing
	} else if why == "" {
		why = o.Health.Why
	}
	if why != "" {
		a.fitSince = 0
		o.Health = plan.Health{Why: why}
		return nil
	}
	if a.fitSince == 0 {
		a.fitSince = o.Uptime
	}
	o.Health = plan.Health{OK: true, Since: a.fitSince}
	return nil
}

// unfit says why the Node object does not speak of a kubelet that is ready in this boot, or nothing. The kernel's boot id
// outlives a soft reboot: then the kubelet must have spoken since.
func (a *Agent) unfit(n plan.Node) string {
	kernel, _, soft := strings.Cut(a.Boot, ".")
	switch {
	case n.UID == "":
		return "the Node object does not exist"
	case n.BootID != kernel || soft && !n.Heartbeat.After(a.Started):
		return "the kubelet has not reported this boot yet"
	case !n.Ready:
		return "the Node is not Ready"
	case n.NetworkUnavailable:
		return "the Node reports its network as unavailable"
	}
	return ""
}

// readPods lists the pods while the slot is ours and the node is cordoned, not more often than the drain gets on. A list
// that fails says nothing about the rest of the cluster: the bounds of the drain and of the slot go on running.
func (a *Agent) readPods(ctx context.Context, o *plan.Observed) {
	if o.Pods.Known = !a.Drain; o.Pods.Known {
		return
	}
	if o.Slot.State != plan.SlotOurs || !o.Node.Unschedulable || o.Need != plan.Required || a.stopping {
		if o.Uptime >= a.foreseen {
			a.pods, a.lookAt, a.looks = plan.Pods{}, 0, 0
		}
		return
	}
	if o.Uptime >= a.lookAt && o.Uptime >= a.foreseen || a.pods.Left == 0 && a.looks == 0 {
		pods, err := a.Drainer.Look(ctx)
		if err != nil {
			pods = plan.Pods{Left: max(a.pods.Left, 1), Why: err.Error(), Next: o.Uptime + lookPause(10)}
		}
		a.pods = pods
		a.lookAt = o.Uptime + lookPause(a.looks)
		if pods.Left == 0 {
			a.lookAt = o.Uptime + lookPause(1) // what is gone is not believed for long
		}
		a.looks++
	}
	o.Pods = a.pods
	o.Pods.Known = true
}

// foresee keeps a look at the pods of before the cordon for the first eviction pass, for a moment. What it found gone
// does not count: pods may have come since.
func (a *Agent) foresee(pods plan.Pods) {
	a.pods, a.foreseen = pods, a.Uptime()+freshAge
}

// lookPause grows from half a second to five: most pods end at once, the others take their grace period.
func lookPause(looks int) time.Duration {
	return min(time.Second/2<<min(looks, 10), 5*time.Second)
}
