// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// From every state that faults, people and other programs can leave behind, a world in which nothing else goes wrong
// comes to rest after a few actions.
func TestFromEveryStateTheLoopComesToRest(t *testing.T) {
	t.Parallel()
	const worlds, most = 20_000, 15
	random := rand.New(rand.NewPCG(1, 2))
	longest, actions := 0, map[Action]int{}
	for i := range worlds {
		w := anyWorld(random)
		first := w.o
		var path []Action
		for w.step = Next(w.p, w.o); w.step.Action != None; w.step = Next(w.p, w.o) {
			before := clone(w.o)
			path = append(path, w.step.Action)
			actions[w.step.Action]++
			w.do()
			if first.API == APIRead && (w.o.Need != NotRequired || w.o.Record.Marked || IsReturning(w.o)) {
				w.o.API = APIRead // closing the record ends the questions only of who has none left
			}
			if reflect.DeepEqual(before, w.o) {
				t.Fatalf("world %d: %q changes nothing of %+v", i, w.step.Action, w.o)
			}
			if len(path) > most {
				t.Fatalf("world %d does not come to rest: %v from %+v", i, path, first)
			}
		}
		longest = max(longest, len(path))
		if why := restless(w.o, w.step); why != "" {
			t.Fatalf("world %d rests in %s with %s, after %v, from %+v", i, w.step.Phase, why, path, first)
		}
	}
	for a := Taint; int(a) < len(actionNames); a++ {
		if actions[a] == 0 {
			t.Errorf("no world led to %q", a)
		}
	}
	t.Logf("%d worlds, at most %d actions: %v", worlds, longest, actions)
}

// restless says what of ours is left in a phase in which nothing may be, or nothing.
func restless(o Observed, s Step) string {
	switch s.Phase {
	case Idle, Waiting, WaitingTurn:
	default:
		return ""
	}
	switch {
	case o.API != APIRead && o.API != APIUnneeded:
		return ""
	case o.Node.Marker != "" && !(s.Phase == Waiting && o.Slot.State == SlotOurs && len(o.Gates) > 0):
		return "our cordon"
	case o.Slot.State != SlotNone && !(s.Phase == Waiting && len(o.Gates) > 0):
		return "a slot"
	case s.Phase == Idle && (o.Node.Tainted || o.Node.Stray):
		return "our taint"
	case s.Phase == Idle && o.Record.Marked:
		return "an open record"
	}
	return ""
}

// clone copies what the actions change behind pointers.
func clone(o Observed) Observed {
	r := &o.Record
	r.Slot, r.Asked, r.Last, r.Failure = copied(r.Slot), copied(r.Asked), copied(r.Last), copied(r.Failure)
	return o
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

func anyWorld(r *rand.Rand) *world {
	w := newWorld()
	o, p := &w.o, &w.p
	is := func(one int) bool { return r.IntN(one) == 0 }
	boot := func() string { return []string{"boot-1", "boot-1", "boot-0"}[r.IntN(3)] }
	uid := func() string { return []string{"uid-1", "uid-1", "uid-1", "uid-0", ""}[r.IntN(5)] }
	moment := func() Moment {
		b, up := boot(), time.Duration(r.IntN(60))*time.Minute
		return Moment{At: o.Now.Add(time.Duration(r.IntN(80)-40) * time.Hour), Boot: b, Up: up}
	}

	p.TaintInWindow, p.StartupTaints, p.AfterTimeout = is(3), is(2), AfterTimeout(r.IntN(3))
	o.Need = Level(r.IntN(3))
	if is(2) {
		o.Need = Required
	}
	o.Reasons = []Reason{{Source: "file", ID: []string{"a", "b"}[r.IntN(2)]}}
	o.Shutdown, o.ShutdownUnknown, o.AskedHere, o.Stopping, o.BootUnitWorks = is(20), is(10), is(2), is(8), is(10)
	o.Delaying = is(2)
	if is(12) {
		p.RefuseBeside, o.Beside = is(2), []string{"locksmithd"}
	}
	if is(6) {
		o.Inhibitors = []string{"apt"}
	}
	if is(6) {
		o.Gates, o.GatesSince = []string{"alert"}, o.Uptime-time.Duration(r.IntN(60))*time.Second
	}
	if is(6) {
		o.Window = Window{Opens: o.Now.Add(time.Hour)}
	}
	o.PreReboot = Target(r.IntN(4))
	o.Health = Health{OK: !is(4), Since: o.Uptime - time.Duration(r.IntN(20))*time.Second}
	if is(6) {
		o.Turn.Next = o.Uptime + time.Second
	}

	c := &o.Record
	c.Boot, c.NodeUID, c.Marked = boot(), uid(), is(2)
	if is(4) {
		c.Boot = ""
	}
	if is(3) {
		c.Slot = &SlotRef{Name: "slot-default-0", UID: "lease-1"}
	}
	if is(4) {
		c.Asked = &Asked{At: o.Uptime - time.Duration(r.IntN(300))*time.Second, Reasons: o.Reasons}
	}
	if is(4) {
		c.Last = &LastReboot{Moment: moment(), Reasons: []Reason{{Source: "file", ID: "a"}}}
	}
	if is(4) {
		c.Failure = &Failure{Moment: moment(), Count: 1 + r.IntN(9), Why: "x"}
	}
	c.Startup = boot()

	switch o.API = []API{APIRead, APIRead, APIRead, APIRead, APIRead, APIAway, APIUnneeded}[r.IntN(7)]; o.API {
	case APIAway:
		return w
	case APIUnneeded: // only who has nothing to undo or to begin does not ask
		o.Need, c.Marked, c.Slot, c.Asked = NotRequired, false, nil, nil
		return w
	case APIRead:
	}
	o.Node.UID = uid()
	if o.Node.UID == "" {
		o.Node = Node{}
		return w
	}
	n := &o.Node
	n.Tainted, n.Stray, n.Startup, n.Unschedulable = is(2), is(8), is(6), is(2)
	if is(2) {
		n.Marker = boot()
	}
	if is(8) {
		n.Hold = "why"
	}
	if is(12) {
		n.Leaving = "taint"
	}
	if c.Slot != nil {
		o.Slot = Slot{State: SlotOurs, Name: c.Slot.Name, UID: c.Slot.UID, Boot: c.Boot,
			Taken: o.Uptime - time.Duration(r.IntN(40))*time.Minute}
		if is(4) {
			o.Slot.State = SlotLost
		}
	}
	o.Pods = Pods{Known: !is(6), Left: r.IntN(3), Fatal: is(10), Why: "x"}
	if is(3) {
		o.Pods.Next = o.Uptime + time.Second
	}
	return w
}
