// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	// freshAge bounds how old an answer about the Node may be once the slot is ours: what is acted on was true a moment ago.
	freshAge = 10 * time.Second
	// nodeAge bounds it while the node only waits: a hold annotation or a foreign change is seen after that time at the latest.
	nodeAge = 5 * time.Minute
	// bootAge bounds it while the kubelet of a new boot is waited for: a hint of the bus is no reason to ask twice.
	bootAge = 300 * time.Millisecond
	// heldAge bounds it while a mark on the Node holds it back: somebody waits for its removal to be seen.
	heldAge = 30 * time.Second
)

// observe reads what a decision needs, and no more: what is local always, the API server only when there is something
// to do with it.
func (a *Agent) observe(ctx context.Context) plan.Observed {
	o := plan.Observed{
		Now: a.Now(), Uptime: a.Uptime(), Boot: a.Boot,
		Turn: a.turn, Stopping: a.stopping,
	}
	o.Window = a.Window(o.Now)
	var err error
	if o.Record, err = a.Host.ReadRecord(); err != nil {
		a.Logger.Warn("reading the record: looking at the node instead", "err", err)
	}
	o.Need, o.Reasons = a.Sources.Need()
	a.observeHost(ctx, &o)
	if o.Shutdown || !a.needsAPI(o) {
		return o
	}
	a.observeCluster(ctx, &o)
	return o
}

// active says that the agent means to reboot or is about to undo something: an idle agent asks nobody anything.
func active(o plan.Observed) bool { return o.Need == plan.Required || o.Record.Marked }

func (a *Agent) observeHost(ctx context.Context, o *plan.Observed) {
	if !active(*o) {
		return
	}
	var err error
	if o.Shutdown, err = a.Logind.PreparingForShutdown(ctx); err == nil {
		o.Inhibitors, err = a.Logind.Inhibitors(ctx)
	}
	if err != nil {
		// Without logind there will be no reboot: find out before pods are moved (systemd/systemd#36035).
		o.Inhibitors = []string{fmt.Sprintf("logind, which can't be asked: %v", err)}
	}
	if fromOtherBoot(*o) && !a.stopping {
		if o.BootUnitWorks, err = a.Units.BootUnitWorks(ctx); err != nil {
			a.Logger.Debug("asking for kured-agent-boot.service", "err", err)
		}
	}
	if o.Need == plan.Required && !fromOtherBoot(*o) {
		o.Gates = a.Gates.Check(ctx)
	}
	if o.Record.Slot == nil || fromOtherBoot(*o) {
		return
	}
	if o.PreReboot, o.PreWhy, err = a.Units.PreReboot(ctx, o.Record.Slot.UID); err != nil {
		o.PreReboot = plan.TargetStarting // not known to be through
	}
}

func fromOtherBoot(o plan.Observed) bool { return o.Record.Marked && o.Record.Boot != o.Boot }

// needsAPI says whether there is anything to ask the API server. Not while the boot unit returns the node, and not for
// an idle agent: no request, no connection.
func (a *Agent) needsAPI(o plan.Observed) bool {
	switch {
	case fromOtherBoot(o) && o.BootUnitWorks:
		return false
	case o.Record.Asked != nil && o.Record.Boot == o.Boot && o.Uptime-o.Record.Asked.At < a.Policy.RebootDeadline:
		return false
	}
	return active(o) || a.stopping && !a.searched || a.Identity.Fingerprint() != o.Record.Proof ||
		a.Policy.StartupTaints && o.Record.Startup != o.Boot
}

func (a *Agent) observeCluster(ctx context.Context, o *plan.Observed) {
	if s := a.stalled(o.Uptime); s.until > 0 {
		o.API, o.APIWhy = plan.APIAway, s.why
		return
	}
	if err := a.readCluster(ctx, o); err != nil {
		if ctx.Err() == nil {
			a.reads.note(o.Uptime, err.Error())
		}
		o.API, o.APIWhy = plan.APIAway, err.Error()
		return
	}
	a.reads = stall{}
	o.API = plan.APIRead
}

func (a *Agent) readCluster(ctx context.Context, o *plan.Observed) error {
	if fingerprint := a.Identity.Fingerprint(); fingerprint != o.Record.Proof {
		if err := a.Identity.Prove(ctx); err != nil {
			return fmt.Errorf("proving this node's identity: %w", err)
		}
		o.Record.Proof = fingerprint
		if err := a.Host.WriteRecord(o.Record); err != nil {
			return err
		}
	}
	if fromOtherBoot(*o) && !a.stopping && !a.bootComplete(ctx, o) {
		o.Node = plan.Node{UID: o.Record.NodeUID} // not worth a request yet
		return nil
	}
	var err error
	if o.Node, err = a.Node.Read(ctx, a.maxAge(*o)); err != nil {
		return err
	}
	a.heldBack = o.Node.Hold != "" || o.Node.Leaving != ""
	if err := a.readSlot(ctx, o); err != nil {
		return err
	}
	if returning(*o) {
		return a.readHealth(ctx, o)
	}
	a.fitSince = 0
	return a.readPods(ctx, o)
}

func (a *Agent) maxAge(o plan.Observed) time.Duration {
	switch {
	case o.Record.Slot != nil && !fromOtherBoot(o):
		return freshAge
	case a.stopping:
		return 0
	case fromOtherBoot(o) && a.fitSince == 0:
		return bootAge
	case a.heldBack:
		return heldAge
	}
	return nodeAge
}

func returning(o plan.Observed) bool {
	return fromOtherBoot(o) || o.Node.Startup || o.Node.Marker != "" && o.Node.Marker != o.Boot
}

// readSlot takes the slot from the record, or looks for one once when the record may have missed it.
func (a *Agent) readSlot(ctx context.Context, o *plan.Observed) error {
	if o.Record.Slot == nil && !a.searched && (o.Record.Marked || o.Node.Marker != "" || a.stopping) && o.Node.UID != "" {
		claim, err := a.Slots.Find(ctx, a.pool(o.Node))
		if err != nil {
			return err
		}
		if claim.Taken {
			o.Record.Slot = &plan.SlotRef{Name: claim.Name, UID: claim.UID, Taken: o.Uptime}
			if !o.Record.Marked {
				o.Record.Marked, o.Record.Boot, o.Record.NodeUID = true, claim.Boot, o.Node.UID
			}
			if err := a.Host.WriteRecord(o.Record); err != nil {
				return err
			}
		}
		a.searched = true
	}
	if ref := o.Record.Slot; ref != nil {
		o.Slot = plan.Slot{State: plan.SlotOurs, Name: ref.Name, UID: ref.UID, Boot: o.Record.Boot, Taken: ref.Taken}
		if a.lostSlot {
			o.Slot.State = plan.SlotLost
		}
	}
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
	why := unfit(o.Node, o.Boot)
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

// unfit says why the Node object does not speak of a kubelet that is ready in this boot, or nothing.
func unfit(n plan.Node, boot string) string {
	switch {
	case n.UID == "":
		return "the Node object does not exist"
	case n.BootID != boot:
		return "the kubelet has not reported this boot yet"
	case !n.Ready:
		return "the Node is not Ready"
	case n.NetworkUnavailable:
		return "the Node reports its network as unavailable"
	}
	return ""
}

// readPods lists the pods while the slot is ours and the node is cordoned, not more often than the drain gets on.
func (a *Agent) readPods(ctx context.Context, o *plan.Observed) error {
	if !a.Drain || o.Slot.State != plan.SlotOurs || !o.Node.Unschedulable || o.Need != plan.Required || a.stopping {
		a.pods, a.lookAt, a.looks = plan.Pods{}, 0, 0
		return nil
	}
	if o.Uptime >= a.lookAt {
		pods, err := a.Drainer.Look(ctx)
		if err != nil {
			return err
		}
		a.pods = pods
		a.lookAt = o.Uptime + lookPause(a.looks)
		a.looks++
	}
	o.Pods = a.pods
	return nil
}

// lookPause grows from half a second to five: most pods end at once, the others take their grace period.
func lookPause(looks int) time.Duration {
	return min(time.Second/2<<min(looks, 10), 5*time.Second)
}
