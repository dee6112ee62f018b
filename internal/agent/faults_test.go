// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

var lastRebootReasons = []plan.Reason{{Source: "file", ID: "kernel"}}

// held has the machine be in the middle of a drain that does not end.
func (s *sim) held() *sim {
	s.booted(1)
	s.stuck = true
	s.node.Tainted, s.node.Unschedulable, s.node.Marker = true, true, "boot-1"
	s.lease, s.owner = "lease-1@boot-1", s.node.UID
	s.record = plan.Record{
		Boot: "boot-1", NodeUID: s.node.UID, Marked: true, Proof: s.proof, Reasons: lastRebootReasons,
		Slot: &plan.SlotRef{Name: "slot-default-0", UID: s.lease, Taken: time.Second},
	}
	return s
}

// lostAnswer takes the slot and says that it does not know.
type lostAnswer struct {
	simSlots
	lost *bool
}

func (s lostAnswer) Acquire(ctx context.Context, r Request) (Claim, error) {
	c, err := s.simSlots.Acquire(ctx, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Taken && !*s.lost {
		*s.lost = true
		return Claim{}, errors.New("creating the slot: context deadline exceeded")
	}
	return c, err
}

func (s *sim) loseAnswer() *bool {
	lost := new(bool)
	s.tweak = func(a *Agent, _ bool) { a.Slots = lostAnswer{simSlots{s}, lost} }
	return lost
}

func (s *sim) await(done *bool) {
	for {
		s.mu.Lock()
		is := *done
		s.mu.Unlock()
		if is {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestASlotWhoseCreationHadNoAnswerIsFoundWhateverComesNext(t *testing.T) {
	for what, change := range map[string]func(s *sim){
		"the need goes":      func(s *sim) { s.need = false },
		"a human holds":      func(s *sim) { s.node.Hold = "why" },
		"the window closes":  func(s *sim) { s.window = func(time.Time) plan.Window { return plan.Window{} } },
		"a gate closes":      func(s *sim) { s.gates = []string{"alert"} },
		"an inhibitor comes": func(s *sim) { s.inhibit = []string{"apt"} },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			s.stuck = true
			lost, closed := s.loseAnswer(), false
			lose := s.tweak
			s.tweak = func(a *Agent, bu bool) {
				lose(a, bu)
				a.Window = func(time.Time) plan.Window {
					s.mu.Lock()
					defer s.mu.Unlock()
					return plan.Window{Open: !closed}
				}
			}
			go func() {
				s.await(lost)
				s.mu.Lock()
				change(s)
				closed = s.window != nil
				s.mu.Unlock()
				s.hint()
			}()
			s.runFor(2 * time.Hour)
			if !*lost {
				t.Fatalf("%s: no slot was tried for", what)
			}
			if what == "the need goes" {
				s.nothingLeft(what)
			} else {
				s.notHeld(what)
			}
		})
	}
}

func TestAStopAfterACreationWithoutAnAnswerFreesTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.forGood = true
		lost := s.loseAnswer()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.kill = cancel
		go func() {
			s.await(lost)
			cancel()
		}()
		s.run(ctx)
		s.nothingLeft("stopped")
	})
}

func TestASlotThatCannotBeWrittenDownIsGivenBack(t *testing.T) {
	for _, mended := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			s.tweak = func(a *Agent, _ bool) { a.Slots = fillsTheDisk{simSlots{s}} }
			if mended {
				s.after(time.Minute, func() { s.need = false })
				time.AfterFunc(10*time.Minute, func() { s.mu.Lock(); s.diskFull = false; s.mu.Unlock() })
			}
			s.runFor(24 * time.Hour)
			s.notHeld("the disk is full from the creation of the slot on")
			if mended {
				s.nothingLeft("the need went and the disk was mended")
			}
		})
	}
}

type fillsTheDisk struct{ simSlots }

func (f fillsTheDisk) Acquire(ctx context.Context, r Request) (Claim, error) {
	c, err := f.simSlots.Acquire(ctx, r)
	if c.Taken {
		f.mu.Lock()
		f.diskFull = true
		f.mu.Unlock()
	}
	return c, err
}

func TestOneFailedReadOfTheRecordVoidsNoGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.proof, s.persist = "credential", true
		s.record = plan.Record{Boot: "boot-1", NodeUID: "uid-1", Proof: "credential", Last: &plan.LastReboot{
			Moment: plan.Moment{At: time.Now().Add(-2 * time.Hour)}, Reasons: lastRebootReasons}}
		s.after(time.Minute, func() { s.unreadable = errors.New("too many open files") })
		s.after(time.Minute+10*time.Second, func() { s.unreadable = nil })
		s.runFor(time.Hour)
		if s.reboots > 0 || s.record.Last == nil {
			t.Errorf("%d reboots for reasons that the last one did not help; record %+v", s.reboots, s.record)
		}
	})
}

func TestAnUnreadableRecordInTheMiddleOfADrainLosesNothing(t *testing.T) {
	for seconds := range 40 {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).held()
			s.incomplete = "x.service failed" // and nothing may be taken for a return
			s.after(time.Duration(seconds)*time.Second/4, func() { s.unreadable = errors.New("input/output error") })
			s.after(time.Minute, func() { s.unreadable = nil })
			s.after(2*time.Minute, func() { s.need = false })
			s.runFor(time.Hour)
			s.nothingLeft("the need went after the record could be read again")
		})
	}
}

func TestABrokenRecordMeansThatAnythingMayBeOutstanding(t *testing.T) {
	for _, bootUnit := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).lostRecord()
			s.record = plan.Record{Marked: true} // what is left of a broken one
			s.incomplete = "x.service failed"
			s.after(10*time.Minute, func() { s.incomplete = "" })
			if bootUnit {
				if err := s.agent(true).ReturnNode(t.Context()); err != nil {
					t.Error(err)
				}
			}
			s.runFor(time.Hour)
			s.nothingLeft("back, with a broken record, in a boot that took ten minutes to be complete")
		})
	}
}

func TestABrokenRecordInTheMiddleOfADrainIsNotTheEndOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.after(time.Minute, func() { s.record = plan.Record{Marked: true} })
		s.after(3*time.Minute, func() { s.stuck = false })
		s.runFor(time.Hour)
		if s.reboots != 1 {
			t.Errorf("%d reboots; node %+v, slot %q, record %+v", s.reboots, s.node, s.lease, s.record)
		}
	})
}

type failsFirst struct {
	simNode
	failed *bool
}

func (f failsFirst) Read(ctx context.Context, age time.Duration) (plan.Node, error) {
	if !*f.failed {
		*f.failed = true
		return plan.Node{}, errors.New("503 Service Unavailable")
	}
	return f.simNode.Read(ctx, age)
}

func TestALostRecordIsMadeGoodFromNodeAndSlot(t *testing.T) {
	for what, change := range map[string]func(s *sim){
		"nothing else":          func(*sim) {},
		"the first read fails":  func(s *sim) { s.failFirstRead() },
		"a human freed it":      func(s *sim) { s.lease, s.robbed = "", true },
		"a human cordoned":      func(s *sim) { s.human, s.node.Marker = true, "" },
		"the taint alone":       func(s *sim) { s.node.Marker, s.node.Unschedulable, s.lease = "", false, "" },
		"the slot alone":        func(s *sim) { s.node.Marker, s.node.Unschedulable, s.node.Tainted = "", false, false },
		"human and first fails": func(s *sim) { s.human, s.node.Marker = true, ""; s.failFirstRead() },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).lostRecord()
			change(s)
			s.runFor(time.Hour)
			s.nothingLeft(what)
		})
	}
}

func (s *sim) failFirstRead() {
	failed := new(bool)
	s.tweak = func(a *Agent, _ bool) { a.Node = failsFirst{simNode{s}, failed} }
}

func TestANodeNeverWaitsForItsOwnSlotOfAnEarlierBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).lostRecord()
		s.human, s.node.Marker, s.node.Tainted = true, "", false
		s.record = plan.Record{Proof: s.proof} // and nothing makes it look
		s.after(time.Hour, func() { s.need = true })
		s.runFor(4 * time.Hour)
		if s.reboots == 0 {
			t.Errorf("no reboot in three hours; slot %q, record %+v", s.lease, s.record)
		}
	})
}

func TestARecordLostAtEveryBootIsNoRebootLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.persist, s.proof, s.forgetful = true, "credential", true
		s.life(20 * time.Hour)
		if s.reboots != 1 {
			t.Errorf("%d reboots in 20 hours for the same reason", s.reboots)
		}
	})
}

type listFails struct{ simDrain }

func (listFails) Look(context.Context) (plan.Pods, error) {
	return plan.Pods{}, errors.New("listing the pods: forbidden")
}

func TestAListOfPodsThatFailsKeepsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.tweak = func(a *Agent, _ bool) { a.Drainer = listFails{simDrain{s}} }
		s.after(25*time.Minute, func() { s.notHeldLocked("the drain's timeout of 20 minutes is over") })
		s.runFor(time.Hour)
		if s.record.Failure == nil || s.reboots > 0 {
			t.Errorf("failure %+v, %d reboots", s.record.Failure, s.reboots)
		}
	})
}

func (s *sim) notHeldLocked(what string) {
	s.t.Helper()
	if s.node.Marker != "" || s.lease != "" {
		s.t.Errorf("%s: node %+v, slot %q, record %+v", what, s.node, s.lease, s.record)
	}
}

type onlyBlocks struct{ simDrain }

func (d onlyBlocks) Look(context.Context) (plan.Pods, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listings++
	return plan.Pods{Left: 1, Fatal: true, Why: "pod x/y has no controller", Next: d.uptime() + 30*time.Second}, nil
}

func TestAPodThatBlocksIsNotAskedForAgainAndAgain(t *testing.T) {
	for name, after := range map[string]plan.AfterTimeout{"reboot": plan.TimeoutReboots, "delete": plan.TimeoutDeletes} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			s.stuck = true
			s.tweak = func(a *Agent, _ bool) {
				a.Policy.AfterTimeout, a.Drainer = after, onlyBlocks{simDrain{s}}
			}
			s.runFor(19 * time.Minute)
			if s.listings > 400 || s.listings < 2 {
				t.Errorf("after_timeout = %s: %d listings in 19 minutes", name, s.listings)
			}
		})
	}
}

type ownGate struct{ simHost }

func (g ownGate) Check(context.Context) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.node.Unschedulable { // as an alert about pods that are not ready does
		return []string{"prometheus: KubePodNotReady"}
	}
	return nil
}

func TestAGateThatOurOwnDrainClosesBacksOff(t *testing.T) {
	for _, latency := range []time.Duration{0, 20 * time.Millisecond, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			s.stuck, s.latency = true, latency
			s.tweak = func(a *Agent, _ bool) { a.Gates = ownGate{simHost{s}} }
			s.runFor(time.Hour)
			if s.cordons > 3 || s.cordons == 0 || s.record.Failure == nil {
				t.Errorf("%d cordons in an hour, failure %+v", s.cordons, s.record.Failure)
			}
		})
	}
}

func TestAGateThatBlinksEndsNoDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.after(time.Minute, func() { s.gates = []string{"prometheus: no answer"} })
		s.after(time.Minute+15*time.Second, func() { s.gates = nil })
		s.after(3*time.Minute, func() { s.stuck = false })
		s.runFor(10 * time.Minute)
		if s.record.Failure != nil || s.reboots != 1 {
			t.Errorf("%d reboots, failure %+v", s.reboots, s.record.Failure)
		}
	})
}

func TestAnAttemptThatABarEndsIsNotBegunAgainAtOnce(t *testing.T) {
	for what, set := range map[string]func(s *sim, on bool){
		"hold": func(s *sim, on bool) {
			s.node.Hold = map[bool]string{true: "why"}[on]
		},
		"gate": func(s *sim, on bool) {
			s.gates = nil
			if on {
				s.gates = []string{"alert"}
			}
		},
		"need": func(s *sim, on bool) { s.need = !on },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			s.stuck = true
			for i := range 300 {
				s.after(time.Duration(i+1)*6*time.Second, func() { set(s, i%2 == 0) })
			}
			s.runFor(30 * time.Minute)
			if s.cordons > 7 {
				t.Errorf("%d cordons in half an hour of a %s that comes and goes every six seconds", s.cordons, what)
			}
		})
	}
}

func TestTheSlotOfADeletedNodeObjectIsNotUsed(t *testing.T) {
	for what, change := range map[string]func(s *sim){
		"lost record": func(s *sim) { s.record = plan.Record{} },
		"the record of the old object": func(s *sim) {
			s.record = plan.Record{Boot: "boot-1", NodeUID: "uid-0", Marked: true, Proof: s.proof,
				Slot: &plan.SlotRef{Name: "slot-default-0", UID: s.lease, Taken: time.Second}}
		},
		"broken record": func(s *sim) { s.record = plan.Record{Marked: true} },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			s.proof = "credential"
			s.lease, s.owner = "lease-0@boot-1", "uid-0"
			change(s)
			s.tweak = func(a *Agent, _ bool) { a.Logind = ownerSpy{simLogind{s}} }
			s.runFor(2 * time.Hour)
			if s.reboots == 0 {
				t.Errorf("%s: no reboot; slot %q of %q, record %+v", what, s.lease, s.owner, s.record)
			}
		})
	}
}

type ownerSpy struct{ simLogind }

func (l ownerSpy) Reboot(ctx context.Context, kind plan.Kind, why string) error {
	if l.owner != l.node.UID {
		l.t.Errorf("asking for a reboot with a slot of Node object %q, ours is %q", l.owner, l.node.UID)
	}
	return l.simLogind.Reboot(ctx, kind, why)
}

func TestASlotTakenAwayIsNoticedWhileNothingElseHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.pods, s.inhibit = 0, []string{"apt"}
		s.after(time.Minute, func() { s.lease, s.robbed = "", true })
		s.after(time.Minute+90*time.Second, func() { s.notHeldLocked("90 s after the slot was taken away") })
		s.runFor(3 * time.Minute)
	})
}

type noEffect struct{ simNode }

func (n noEffect) Taint(context.Context, string) error {
	return n.op(true, func() error { n.patches++; return nil })
}

func TestAnActionWithoutEffectIsNotRepeatedWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.latency = 20 * time.Millisecond
		s.tweak = func(a *Agent, _ bool) { a.Node = noEffect{simNode{s}} }
		s.runFor(time.Hour)
		if s.patches > 100 {
			t.Errorf("%d patches in an hour", s.patches)
		}
	})
}

type countedGate struct {
	simHost
	n *int
}

func (g countedGate) Check(context.Context) []string { *g.n++; return g.gates }

func TestAStormOfHintsReachesNeitherGatesNorAPIServer(t *testing.T) {
	for what, change := range map[string]func(s *sim){
		"waiting for a gate": func(s *sim) { s.booted(1); s.gates = []string{"backup"} },
		"draining":           func(s *sim) { s.held() },
		"returning":          func(s *sim) { s.returned(); s.incomplete = "x.service" },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t)
			change(s)
			checks, reads := 0, 0
			s.tweak = func(a *Agent, _ bool) {
				a.Gates, a.Node = countedGate{simHost{s}, &checks}, newestOnly{simNode{s}, &reads, new(plan.Node), new(time.Time)}
			}
			go func() {
				for range 12000 {
					s.hint()
					time.Sleep(5 * time.Millisecond)
				}
			}()
			s.runFor(time.Minute)
			if checks > 8 || reads > 250 || s.listings > 60 {
				t.Errorf("%s: %d looks at the gates, %d reads of the Node, %d lists of pods in a minute of 200 hints a second",
					what, checks, reads, s.listings)
			}
		})
	}
}

// newestOnly answers from an answer that is young enough, as the real client does.
type newestOnly struct {
	simNode
	reads *int
	last  *plan.Node
	at    *time.Time
}

func (n newestOnly) Read(ctx context.Context, age time.Duration) (plan.Node, error) {
	if !n.at.IsZero() && time.Since(*n.at) <= age {
		return *n.last, nil
	}
	*n.reads++
	node, err := n.simNode.Read(ctx, age)
	*n.last, *n.at = node, time.Now()
	return node, err
}

type slowPass struct {
	simDrain
	needs time.Duration
}

func (d slowPass) Pass(ctx context.Context) error {
	select {
	case <-time.After(d.needs):
		return d.simDrain.Pass(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestALongPassDoesNotSilenceTheWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.latency = 5 * time.Second
		var longest time.Duration
		last := time.Now()
		s.tweak = func(a *Agent, _ bool) {
			a.Drainer = slowPass{simDrain{s}, 11 * 14 * time.Second} // 110 pods, ten at a time, 14 s an answer
			a.AliveEvery = time.Minute
			a.Alive = func() { longest = max(longest, time.Since(last)); last = time.Now() }
		}
		s.runFor(30 * time.Minute)
		if longest > 110*time.Second {
			t.Errorf("silent for %s; the watchdog waits two minutes", longest)
		}
	})
}

func TestTheRecordFollowsTheReasons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		reasons := lastRebootReasons
		s.tweak = func(a *Agent, _ bool) { a.Sources = spoken{s, &reasons} }
		s.after(time.Minute, func() { reasons = []plan.Reason{{Source: "update-engine", ID: "3510.2.0"}} })
		s.runFor(2 * time.Minute)
		if len(s.record.Reasons) != 1 || s.record.Reasons[0].Source != "update-engine" {
			t.Errorf("after a restart the sources would be seeded with %+v", s.record.Reasons)
		}
	})
}

type spoken struct {
	*sim
	reasons *[]plan.Reason
}

func (s spoken) Need() (plan.Level, []plan.Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return plan.Required, *s.reasons
}

func TestTheBootUnitChangesNothingThatTheAgentBeganMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(2)
		s.need = false
		s.record = plan.Record{Boot: "boot-1", NodeUID: "uid-1"}
		s.tweak = func(a *Agent, bootUnit bool) {
			if bootUnit {
				a.Policy.StartupTaints, a.Node, a.Changed = true, slowRead{simNode{s}}, nil
			}
			a.Window = func(time.Time) plan.Window { return plan.Window{} }
		}
		go func() { _ = s.agent(true).ReturnNode(t.Context()) }()
		s.after(time.Second, func() { s.need = true })
		s.after(time.Hour, func() { s.need = false })
		s.runFor(2 * time.Hour)
		s.nothingLeft("the need came while the boot unit was at work, and went")
	})
}

type slowRead struct{ simNode }

func (s slowRead) Read(ctx context.Context, age time.Duration) (plan.Node, error) {
	n, err := s.simNode.Read(ctx, age)
	time.Sleep(2 * time.Second)
	return n, err
}

func TestALateReleaseOfAnOldSlotKeepsTheRecordOfTheNewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		old := plan.Observed{Slot: plan.Slot{Name: "slot-default-0", UID: "lease-0@boot-0"}}
		if err := s.agent(true).release(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		if s.record.Slot == nil || s.record.Slot.UID != s.lease {
			t.Errorf("the record says %+v, the slot is %q", s.record.Slot, s.lease)
		}
	})
}

// keyed is a Node as a process with one configuration sees it: what it put there, and what an earlier one did.
type keyed struct {
	simNode
	own, former string
	taints      map[string]bool
}

func (k keyed) Read(ctx context.Context, age time.Duration) (plan.Node, error) {
	n, err := k.simNode.Read(ctx, age)
	n.Tainted, n.Stray = k.taints[k.own], k.former != k.own && k.taints[k.former]
	return n, err
}

func (k keyed) Taint(context.Context, string) error {
	return k.op(true, func() error { delete(k.taints, k.former); k.taints[k.own] = true; return nil })
}

func (k keyed) Clean(ctx context.Context) error {
	if err := k.simNode.Clean(ctx); err != nil {
		return err
	}
	delete(k.taints, k.former)
	delete(k.taints, k.own)
	return nil
}

func TestATaintOfAnEarlierConfigurationGoesWhateverFails(t *testing.T) {
	for step := range 25 {
		for kind := range faultNames {
			if fault(kind) >= powerBefore { // what a new boot does is another test's business
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t).booted(1)
				s.gates = []string{"closed"}
				s.fault[step] = fault(kind)
				taints := map[string]bool{}
				key := "old:NoSchedule"
				s.tweak = func(a *Agent, _ bool) {
					former := s.record.Taint
					a.TaintName, a.Node = key, keyed{simNode{s}, key, former, taints}
				}
				for _, next := range []string{"old:NoSchedule", "new:NoSchedule", "newest:PreferNoSchedule"} {
					key = next
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
					s.kill = cancel
					for !s.process(func() { s.run(ctx) }) {
						time.Sleep(time.Second)
					}
					cancel()
					if len(taints) != 1 || !taints[key] {
						t.Errorf("step %d %s: with %s the Node has %v", step, faultNames[kind], key, taints)
					}
				}
				s.need = false
				s.runFor(10 * time.Minute)
				if len(taints) > 0 {
					t.Errorf("step %d %s: in the end the Node has %v", step, faultNames[kind], taints)
				}
			})
		}
	}
}

func TestARebootThatMayNotHaveBeenAskedForIsNoHotLoopOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.record.Asked = &plan.Asked{At: time.Second, Reasons: lastRebootReasons} // by a process that crashed
		s.diskFull = true
		before := s.ops
		s.runFor(2 * time.Minute)
		if n := s.ops - before; n > 30 {
			t.Errorf("%d calls in two minutes", n)
		}
	})
}

func TestASlotFoundWithAFullDiskIsNotGivenBackUnderOurCordon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.record, s.diskFull = plan.Record{Marked: true}, true
		s.after(10*time.Minute, func() { s.diskFull, s.need = false, false })
		s.runFor(time.Hour) // sim.check looks at every call
		s.nothingLeft("the disk is mended and the need gone")
	})
}

func TestARecordThatLosesTheSlotInAWorkingAgentLosesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.stuck = true
		s.after(time.Minute, func() { s.record, s.need = plan.Record{Marked: true}, false })
		s.runFor(time.Hour)
		s.nothingLeft("the need went and the record broke in one moment")
	})
}

func TestOurCordonWithoutASlotIsTakenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.proof = "credential"
		s.held()
		s.record, s.lease, s.robbed = plan.Record{}, "", true
		s.pool.n = 0 // others hold what there is
		s.after(time.Minute, func() { s.notHeldLocked("the record is lost and a human freed the slot") })
		s.runFor(2 * time.Minute)
	})
}

type createdAnew struct{ simNode }

func (c createdAnew) Taint(ctx context.Context, note string) error {
	c.mu.Lock()
	if c.node.UID == "uid-1" {
		c.node.UID = "uid-2"
	}
	c.mu.Unlock()
	return c.simNode.Taint(ctx, note)
}

func TestATaintOnANodeObjectCreatedAnewAMomentAgoIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.proof, s.record.Proof, s.latency = "credential", "credential", 10*time.Millisecond
		s.tweak = func(a *Agent, _ bool) { a.Node = createdAnew{simNode{s}} }
		s.after(15*time.Millisecond, func() { s.need = false })
		s.runFor(time.Hour)
		s.nothingLeft("the need went")
	})
}
