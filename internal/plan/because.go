// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"time"
)

func becauseFarewell(_ Policy, _ Observed) (string, time.Duration) {
	return "somebody else shuts this host down", 0
}

func becauseLetGo(_ Policy, _ Observed) (string, time.Duration) {
	return "the shutdown need not wait for this agent any longer", 0
}

func becauseGoingDown(p Policy, o Observed) (string, time.Duration) {
	if o.Shutdown {
		return "the machine is shutting down", 0
	}
	if !o.AskedHere {
		return "an earlier process asked logind for the reboot; waiting for the shutdown", o.Record.Asked.At + doubtAfter
	}
	return "logind accepted the reboot; waiting for the shutdown", o.Record.Asked.At + p.RebootDeadline
}

func becauseNotAsked(Policy, Observed) (string, time.Duration) {
	return "an earlier process ended while it asked logind for the reboot, and logind knows nothing of it: asking again", 0
}

func becauseAway(_ Policy, o Observed) (string, time.Duration) {
	return o.APIWhy, 0
}

func becauseForgotten(_ Policy, o Observed) (string, time.Duration) {
	return fmt.Sprintf("the Node object with uid %q is gone: nothing on the present one is ours", o.Record.NodeUID), 0
}

func becauseNoNode(Policy, Observed) (string, time.Duration) {
	return "the Node object does not exist (yet): is the kubelet running, is node.name right?", 0
}

func becauseBootUnit(Policy, Observed) (string, time.Duration) {
	return "back from a reboot; kured-agent-boot.service returns the node", 0
}

func becauseSick(p Policy, o Observed) (string, time.Duration) {
	if late(p, o) {
		return fmt.Sprintf("NOT HEALTHY %s after the boot: %s; taint, cordon and slot stay until it is, "+
			"and the roll-out stops here", (o.Uptime - o.Began).Round(time.Second), o.Health.Why), 0
	}
	return "waiting for a healthy boot: " + o.Health.Why, o.Began + p.BootDeadline
}

func becauseSettling(p Policy, o Observed) (string, time.Duration) {
	return fmt.Sprintf("healthy; waiting until it has been for %s", p.Settle), o.Health.Since + p.Settle
}

func becauseReturned(Policy, Observed) (string, time.Duration) {
	return "this boot is healthy: giving the node back", 0
}

func becauseNodeClean(Policy, Observed) (string, time.Duration) {
	return "the node is back: giving the slot back", 0
}

func becauseNothingLeft(Policy, Observed) (string, time.Duration) {
	return "nothing of the last boot is left", 0
}

func becauseTrouble(p Policy, o Observed) (string, time.Duration) { return trouble(p, o), 0 }

func becauseBarred(p Policy, o Observed) (string, time.Duration) {
	var (
		whys  []string
		until time.Time
		open  bool // something that time alone does not end
	)
	for _, b := range bars(p, o) {
		why := b.why
		if !b.until.IsZero() {
			why += b.until.Format(", until Mon 2006-01-02 15:04:05 -0700")
		}
		whys = append(whys, why)
		open = open || b.until.IsZero()
		if b.until.After(until) {
			until = b.until
		}
	}
	if open {
		return strings.Join(whys, "; "), 0
	}
	return strings.Join(whys, "; "), wakeAt(o, until)
}

func becauseNoSlot(Policy, Observed) (string, time.Duration) {
	return "our cordon is on the Node and no slot is ours", 0
}

func becauseUnknown(Policy, Observed) (string, time.Duration) {
	return "the source that asked for the reboot can't be read, or took it back a moment ago: " +
		"nothing is started or cancelled yet", 0
}

func becauseNotRequired(_ Policy, o Observed) (string, time.Duration) {
	if o.Stopping {
		return "the agent was told to stop", 0
	}
	return "no reboot is required", 0
}

func becauseRequired(_ Policy, o Observed) (string, time.Duration) {
	return "a reboot is required: " + Summary(o.Reasons), 0
}

func becauseInhibited(_ Policy, o Observed) (string, time.Duration) {
	return "shutdown is blocked by " + strings.Join(o.Inhibitors, ", "), 0
}

func becauseTurn(_ Policy, o Observed) (string, time.Duration) {
	if o.Turn.Why == "" {
		return "waiting a moment before the first try to take a slot", o.Turn.Next
	}
	return o.Turn.Why, o.Turn.Next
}

func becauseDue(Policy, Observed) (string, time.Duration) { return "trying to take a slot", 0 }

func becauseGated(_ Policy, o Observed) (string, time.Duration) {
	return fmt.Sprintf("gate: %s; slot %s is given back when it stays closed", strings.Join(o.Gates, "; "), o.Slot.Name),
		o.GatesSince + gateGrace
}

func becauseSlot(_ Policy, o Observed) (string, time.Duration) {
	return fmt.Sprintf("slot %s is ours", o.Slot.Name), 0
}

func becausePods(_ Policy, o Observed) (string, time.Duration) {
	why := fmt.Sprintf("%d pods left", o.Pods.Left)
	switch {
	case !o.Pods.Known:
		why = "the pods are not known yet"
	case o.Pods.Left == 1:
		why = "1 pod left"
	}
	if o.Pods.Why != "" {
		why += ": " + o.Pods.Why
	}
	return why, o.Pods.Next
}

func becausePreReboot(Policy, Observed) (string, time.Duration) {
	return "kured-agent-pre-reboot.target runs before the reboot", 0
}

func becauseReady(_ Policy, o Observed) (string, time.Duration) {
	return "drained, verified and due: " + Summary(o.Reasons), 0
}
