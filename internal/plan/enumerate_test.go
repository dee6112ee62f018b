// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"
)

// each calls visit with every combination of facts that an observation can lead to. What look can't produce is left out
// here, each time with the reason.
func each(visit func(facts)) {
	for _, api := range []API{APIUnneeded, APIAway, APIRead} {
		for _, asked := range []askedState{askedNot, askedPending, askedOverdue, askedDoubt} {
			bools(10, func(b []bool) {
				f := facts{
					api: api, asked: asked, shutdown: b[0], unsettled: b[1], returning: b[2], bootUnit: b[3],
					taintWanted: b[4], trouble: b[5], backingOff: b[6], barred: b[7], inhibited: b[8], turn: b[9],
				}
				if f.backingOff && !f.barred || asked == askedOverdue && !f.trouble {
					return // the back-off is a bar; an overdue reboot is a trouble
				}
				if api == APIUnneeded && f.trouble && !f.unsettled {
					return // a trouble that no answer tells of is one of the record
				}
				for _, f.need = range []Level{NotRequired, Required, Unknown} {
					for _, f.health = range []health{sick, settling, fit} {
						for _, f.farewell = range farewells(f) {
							eachNode(f, visit)
						}
					}
				}
			})
		}
	}
}

// farewells of a state: only a shutdown has them, and a Node that is not known or not given back gets no new mark.
func farewells(f facts) []farewell {
	switch {
	case !f.shutdown:
		return []farewell{farewellNone}
	case f.api != APIRead || f.returning:
		return []farewell{farewellNone, farewellOver}
	}
	return []farewell{farewellNone, farewellDue, farewellOver}
}

func eachNode(f facts, visit func(facts)) {
	if f.api != APIRead {
		visit(f) // nothing is known of Node and slot
		return
	}
	bools(7, func(b []bool) {
		f.forgotten, f.missing, f.startup, f.tainted, f.marker, f.cordoned, f.stray = b[0], b[1], b[2], b[3], b[4], b[5], b[6]
		if f.missing && (f.startup || f.tainted || f.stray || f.marker || f.cordoned) || f.startup && !f.returning {
			return // no Node, no marks; a start-up taint is a return
		}
		if f.farewell == farewellDue && (f.missing || f.tainted) {
			return // there is no Node to mark, or it is marked
		}
		for _, f.slot = range []SlotState{SlotNone, SlotOurs, SlotLost} {
			if f.slot == SlotLost && !f.trouble {
				continue // a lost slot is a trouble
			}
			for _, f.gated = range []bool{false, true} {
				if f.gated && f.slot != SlotOurs && !f.barred {
					continue // who only waits is barred by a gate at once
				}
				eachDrain(f, visit)
			}
		}
	})
}

func eachDrain(f facts, visit func(facts)) {
	if f.slot != SlotOurs || !f.cordoned {
		visit(f) // pods are not looked at
		return
	}
	for _, f.pods = range []podsState{podsGone, podsLeft, podsStuck} {
		for _, f.podsDue = range []bool{false, true} {
			for _, f.afterTimeout = range []AfterTimeout{TimeoutRollsBack, TimeoutReboots, TimeoutDeletes} {
				for _, f.preReboot = range []Target{TargetReached, TargetInactive, TargetStarting, TargetFailed} {
					visit(f)
				}
			}
		}
	}
}

func bools(n int, visit func([]bool)) {
	b := make([]bool, n)
	for bits := range 1 << n {
		for i := range b {
			b[i] = bits>>i&1 == 1
		}
		visit(b)
	}
}

// An invariant holds in every state. It returns what is broken, or nothing.
var invariants = []struct {
	says  string
	holds func(f facts, p Phase, a Action) bool
}{
	{"a reboot is asked for only when the slot is ours, the need present, nothing bars it, nobody inhibits it, no pod " +
		"that must go is left and the pre-reboot units are through", func(f facts, _ Phase, a Action) bool {
		drained := f.pods == podsGone || f.pods == podsStuck && f.afterTimeout == TimeoutReboots
		return a != Reboot || f.slot == SlotOurs && f.need == Required && !f.barred && !f.gated && !f.inhibited && drained &&
			f.cordoned && f.preReboot == TargetReached && f.api == APIRead && !f.returning
	}},
	{"nothing is cordoned, evicted or deleted without the slot", func(f facts, _ Phase, a Action) bool {
		return a != Cordon && a != Evict && a != DeletePods || f.slot == SlotOurs && f.need == Required && !f.barred && !f.gated
	}},
	{"a slot is taken only when nothing bars the reboot", func(f facts, _ Phase, a Action) bool {
		return a != Acquire || f.slot == SlotNone && f.need == Required && !f.barred && !f.inhibited && f.turn
	}},
	{"the slot is never released while our cordon is on the Node", func(f facts, _ Phase, a Action) bool {
		return a != Release || !f.marker
	}},
	{"nothing is undone while a reboot is under way", func(f facts, _ Phase, a Action) bool {
		return !f.shutdown && f.asked != askedPending || a == None || f.farewell != farewellNone && (a == LetGo || a == Taint)
	}},
	{"a shutdown that waits for us is let go, after the mark at the latest", func(f facts, _ Phase, a Action) bool {
		return f.farewell == farewellNone || a == LetGo || a == Taint && f.farewell == farewellDue
	}},
	{"no slot is kept in Idle or Waiting", func(f facts, p Phase, a Action) bool {
		return a != None || p != Idle && p != Waiting && p != WaitingTurn || f.slot == SlotNone || f.gated
	}},
	{"our cordon is never kept without a slot by who waits", func(f facts, p Phase, a Action) bool {
		return a != None || p != Waiting && p != WaitingTurn && p != WaitingInhibitor || !f.marker || f.slot != SlotNone
	}},
	{"no mark is kept in Idle", func(f facts, p Phase, a Action) bool {
		return a != None || p != Idle || !f.dirty()
	}},
	{"an unknown need starts nothing and cancels nothing", func(f facts, _ Phase, a Action) bool {
		if f.need != Unknown || f.returning || f.farewell != farewellNone {
			return true
		}
		return a == None || a == Forget || a == Unask || (f.trouble || f.barred) && (a == NoteFailure || a == RollBack || a == Release) ||
			f.slot == SlotNone && a == RollBack
	}},
	{"without an answer of the API server nothing is done", func(f facts, _ Phase, a Action) bool {
		return f.api == APIRead || a == None || a == Unask || a == LetGo
	}},
	{"a boot that is not healthy keeps everything", func(f facts, _ Phase, a Action) bool {
		return !f.returning || f.health == fit || a == None || a == Forget || a == Unask || a == LetGo
	}},
	{"an action changes what it looks at", func(f facts, _ Phase, a Action) bool {
		switch a {
		case Taint:
			return !f.tainted || f.stray
		case Cordon:
			return !f.cordoned
		case Clean:
			return f.dirty()
		case Return:
			return f.dirty() || f.startup
		case RollBack:
			return f.marker
		case Release:
			return f.slot != SlotNone
		case Acquire:
			return f.slot == SlotNone
		case NoteFailure:
			return f.trouble && !f.backingOff
		case Settle:
			return f.unsettled || f.returning
		case Forget:
			return f.forgotten
		case Unask:
			return f.asked == askedDoubt
		case LetGo:
			return f.farewell == farewellOver
		case None, Evict, DeletePods, StartTarget, Reboot: // nothing, or what the next observation shows
		}
		return true
	}},
}

// words names the values of the fields that are numbers.
func words(f facts) string {
	return fmt.Sprintf("API %s, asked %s, need %s, health %s, slot %s, pods %s, pre-reboot target %s, after the timeout %s: %+v",
		[]string{"unneeded", "away", "read"}[f.api], []string{"not", "pending", "overdue", "in doubt"}[f.asked],
		f.need, []string{"sick", "settling", "fit"}[f.health], []string{"none", "ours", "lost"}[f.slot],
		[]string{"gone", "left", "stuck"}[f.pods], []string{"reached", "inactive", "starting", "failed"}[f.preReboot],
		[]string{"roll back", "reboot", "delete"}[f.afterTimeout], f)
}

func TestEveryStateKeepsEveryInvariant(t *testing.T) {
	t.Parallel()
	states, seen := 0, map[Action]bool{}
	broken := map[string]bool{}
	each(func(f facts) {
		states++
		phase, action, _ := decide(f)
		seen[action] = true
		for _, inv := range invariants {
			if !inv.holds(f, phase, action) && !broken[inv.says] {
				broken[inv.says] = true
				t.Errorf("%s: broken by %s: %s in %s", inv.says, phase, action, words(f))
			}
		}
	})
	for a := None; int(a) < len(actionNames); a++ {
		if !seen[a] {
			t.Errorf("action %q is reached from no state", a)
		}
	}
	t.Logf("%d states", states)
}
