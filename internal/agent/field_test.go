// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// What went wrong in the field, told to a machine and its cluster.

// spied has a look at, or a say in, some calls of the loop. Each field may be nil; none is called under the world's lock.
type spied struct {
	simNode
	cordon, returning func() error // before the call
	rolledBack        func()       // after it
}

func (n spied) Cordon(ctx context.Context, boot string) error {
	if n.cordon != nil {
		if err := n.cordon(); err != nil {
			return err
		}
	}
	return n.simNode.Cordon(ctx, boot)
}

func (n spied) RollBack(ctx context.Context) error {
	err := n.simNode.RollBack(ctx)
	if err == nil && n.rolledBack != nil {
		n.rolledBack()
	}
	return err
}

func (n spied) Return(ctx context.Context, fit func(plan.Node) bool) error {
	if n.returning != nil {
		if err := n.returning(); err != nil {
			return err
		}
	}
	return n.simNode.Return(ctx, fit)
}

// slotSpy tells when the slot was taken and given back.
type slotSpy struct {
	simSlots
	taken, released func()
}

func (s slotSpy) Acquire(ctx context.Context, r Request) (Claim, error) {
	c, err := s.simSlots.Acquire(ctx, r)
	if err == nil && c.Taken && s.taken != nil {
		s.taken()
	}
	return c, err
}

func (s slotSpy) Release(ctx context.Context, name, uid string) error {
	err := s.simSlots.Release(ctx, name, uid)
	if err == nil && s.released != nil {
		s.released()
	}
	return err
}

// rebooted counts the reboots of all machines.
func (p *pool) rebooted() (n int) {
	for _, s := range p.machines {
		n += s.reboots
	}
	return n
}

// With a time to live each machine that failed would free the next one, until all are down
// (kube-hetzner/terraform-hcloud-kube-hetzner#1182).
func TestAMachineThatNeverComesBackLetsNoOtherGoUntilItsNodeIsDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newFleet(t, 4, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
		defer cancel()
		var lost *sim
		var all sync.WaitGroup
		for _, s := range p.machines {
			all.Go(func() {
				s.oneBoot(ctx)
				s.mu.Lock()
				first := lost == nil
				if first {
					lost = s
				}
				s.mu.Unlock()
				for !first && ctx.Err() == nil {
					s.oneBoot(ctx)
				}
			})
		}
		time.Sleep(24 * time.Hour)
		p.machines[0].mu.Lock() // the one of all
		if p.rebooted() != 1 || p.held() != 1 || p.cordoned() != 1 {
			t.Errorf("a day after a machine was lost: %d reboots, %d slots, %d cordons", p.rebooted(), p.held(), p.cordoned())
		}
		lost.node, lost.lease = plan.Node{}, "" // a human deletes the Node, and the garbage collector the slot
		p.machines[0].mu.Unlock()
		all.Wait()
		for _, s := range p.machines {
			if s != lost {
				s.atRest("the lost machine's Node was deleted")
			}
		}
	})
}

// blockers are what holds a node back, and how it ends.
var blockers = map[string]struct{ on, off func(s *sim) }{
	"hold":       {func(s *sim) { s.node.Hold = "why" }, func(s *sim) { s.node.Hold = "" }},
	"autoscaler": {func(s *sim) { s.node.Leaving = "taint" }, func(s *sim) { s.node.Leaving = "" }},
	"gate":       {func(s *sim) { s.gates = []string{"alert"} }, func(s *sim) { s.gates = nil }},
	"inhibitor":  {func(s *sim) { s.inhibit = []string{"apt"} }, func(s *sim) { s.inhibit = nil }},
	"window": {func(s *sim) { s.window = func(time.Time) plan.Window { return plan.Window{} } },
		func(s *sim) { s.window = nil }},
}

// windowOfNow has the agents ask for the window anew each time.
func (s *sim) windowOfNow() {
	s.tweak = func(a *Agent, _ bool) {
		a.Window = func(now time.Time) plan.Window {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.window == nil {
				return plan.Window{Open: true}
			}
			return s.window(now)
		}
	}
}

// kubereboot/kured#792, #970: two days of a chronic blocker.
func TestABlockedNodeIsTaintedAndTakesNoSlotHoweverLongItLasts(t *testing.T) {
	t.Parallel()
	for what, b := range blockers {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			s.windowOfNow()
			b.on(s)
			s.after(48*time.Hour, func() {
				if s.taken > 0 || !s.node.Tainted || s.node.Unschedulable {
					t.Errorf("%s for two days: %d slots taken, node %+v", what, s.taken, s.node)
				}
				b.off(s)
			})
			s.runFor(50 * time.Hour)
			if s.reboots != 1 {
				t.Errorf("%s is over: %d reboots", what, s.reboots)
			}
		})
	}
}

// kubereboot/kured#792: the lock was taken, then the blocker came, and the lock was never given back.
func TestABlockerBetweenSlotAndCordonGivesTheSlotToTheNext(t *testing.T) {
	t.Parallel()
	for what, within := range map[string]time.Duration{
		"hold": 5 * time.Second, "autoscaler": 5 * time.Second, "window": 5 * time.Second,
		"gate": 45 * time.Second, // one question without an answer is not a closed gate
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newFleet(t, 2, 1)
			blocked, other := p.machines[0], p.machines[1]
			taken := false
			blocked.windowOfNow()
			window := blocked.tweak
			blocked.tweak = func(a *Agent, bootUnit bool) {
				window(a, bootUnit)
				a.Slots = slotSpy{simSlots: simSlots{blocked}, taken: func() {
					blocked.mu.Lock()
					defer blocked.mu.Unlock()
					taken = true
					blockers[what].on(blocked)
				}}
			}
			other.need = false
			go func() {
				blocked.await(&taken)
				time.Sleep(within)
				blocked.notHeld(what)
				other.mu.Lock()
				other.need = true
				other.mu.Unlock()
				other.hint()
			}()
			p.life(2 * time.Hour)
			if blocked.cordons > 0 || blocked.reboots > 0 || other.reboots != 1 {
				t.Errorf("%s: %d cordons and %d reboots of the blocked one, %d reboots of the other",
					what, blocked.cordons, blocked.reboots, other.reboots)
			}
		})
	}
}

// kubereboot/kured#791: a first tick with jitter kept the node cordoned for half a minute or more.
func TestAHealthyBootIsGivenBackWithinSecondsWheneverItIsHealthy(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 100 * time.Millisecond, 7 * time.Second, 50 * time.Second, 5 * time.Minute, 14 * time.Minute} {
		for range 10 { // whatever the dice say
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t).returned()
				s.latency = 20 * time.Millisecond
				s.node.BootID = "boot-1"
				s.tweak = func(a *Agent, _ bool) { a.Policy.Settle, a.Changed = 0, nil }
				time.AfterFunc(after, func() { s.mu.Lock(); s.node.BootID = "boot-2"; s.mu.Unlock() })
				if err := s.agent(true).ReturnNode(t.Context()); err != nil {
					t.Error(err)
				}
				s.nothingLeft("given back")
				if late := time.Since(s.began) - after; late > 5*time.Second {
					t.Errorf("healthy %s after the start of the boot unit: clean %s after that", after, late)
				}
			})
		}
	}
}

// kubereboot/kured#63, #955: the clean-up depended on the lock, and the lock was somebody else's or had been reset.
func TestANodeIsGivenBackWhoeverHasItsSlotNow(t *testing.T) {
	t.Parallel()
	for _, bootUnit := range []bool{true, false} {
		for what, change := range map[string]func(s, other *sim){
			"freed":                  func(*sim, *sim) {},
			"freed and taken":        func(_, other *sim) { other.lease, other.owner = "lease-9@boot-1", other.node.UID },
			"the record is lost too": func(s, _ *sim) { s.record = plan.Record{} },
		} {
			synctest.Test(t, func(t *testing.T) {
				p := newFleet(t, 2, 1)
				s, other := p.machines[0], p.machines[1]
				s.proof = "credential"
				s.returned()
				s.lease, s.robbed = "", true
				change(s, other)
				theirs := other.lease
				if s.record.Marked && bootUnit { // without a record there is no boot unit
					if err := s.agent(true).ReturnNode(t.Context()); err != nil {
						t.Error(err)
					}
				} else {
					s.runFor(time.Minute)
				}
				s.nothingLeft(what)
				if other.lease != theirs {
					t.Errorf("%s: the slot of the other is %q, was %q", what, other.lease, theirs)
				}
			})
		}
	}
}

// kubereboot/kured#1129: the node stayed cordoned for as long as the lock was kept.
func TestAFailedDrainUncordonsAtOnceAndGivesTheSlotBackAfterIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.latency = 300 * time.Millisecond
		var uncordoned, released time.Duration
		s.tweak = func(a *Agent, _ bool) {
			a.Node = spied{simNode: simNode{s}, rolledBack: func() { uncordoned = s.uptime() }}
			a.Slots = slotSpy{simSlots: simSlots{s}, released: func() { released = s.uptime() }}
		}
		s.runFor(22 * time.Minute)
		f := s.record.Failure
		if f == nil || !strings.Contains(f.Why, "draining did not end") {
			t.Fatalf("failure %+v", f)
		}
		if uncordoned < f.Up || uncordoned-f.Up > 5*time.Second || released < uncordoned || released-uncordoned > 5*time.Second {
			t.Errorf("given up at %s, uncordoned at %s, slot given back at %s", f.Up, uncordoned, released)
		}
	})
}

// kubereboot/kured#486: one error of the API server during the uncordon left the node cordoned.
func TestAReturnThatFailsAgainAndAgainIsTriedUntilItSucceeds(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"409 Conflict", "500 Internal Server Error", "context deadline exceeded"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).returned()
			tries, last, longest := 0, time.Now(), time.Duration(0)
			s.tweak = func(a *Agent, _ bool) {
				a.Node = spied{simNode: simNode{s}, returning: func() error {
					longest, last = max(longest, time.Since(last)), time.Now()
					if tries++; tries <= 50 {
						return errors.New(answer)
					}
					return nil
				}}
			}
			if err := s.agent(true).ReturnNode(t.Context()); err != nil { // an error would fail the unit
				t.Error(err)
			}
			s.nothingLeft(answer)
			if tries != 51 || longest > 80*time.Second {
				t.Errorf("%s: %d tries, the longest pause was %s", answer, tries, longest)
			}
		})
	}
}

// comesBack is a node whose pods are only gone while it is cordoned.
type comesBack struct{ simDrain }

func (d comesBack) Pass(ctx context.Context) error {
	err := d.simDrain.Pass(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.node.Unschedulable {
		d.pods = 1
	}
	return err
}

// kubereboot/kured#929: another controller uncordoned the node in the last moment, and it went down with new pods on it.
func TestAPodThatComesToADrainedNodeIsMovedBeforeTheReboot(t *testing.T) {
	t.Parallel()
	// A look at the pods is believed for a second.
	for _, before := range []time.Duration{1100 * time.Millisecond, 2 * time.Second, 9 * time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).held()
			s.stuck, s.pods, s.inhibit = false, 0, []string{"apt"}
			s.robbed = true // the pass may run in the seconds in which the cordon's end is not seen yet
			cordonedAtReboot := false
			s.tweak = func(a *Agent, _ bool) {
				a.Node = newestOnly{simNode{s}, new(int), new(plan.Node), new(time.Time)}
				a.Drainer = comesBack{simDrain{s}}
				a.Logind = cordonSpy{simLogind{s}, &cordonedAtReboot}
			}
			s.after(time.Minute, func() { s.node.Unschedulable, s.pods = false, 1 })
			s.after(time.Minute+before, func() { s.inhibit = nil })
			s.runFor(5 * time.Minute) // simLogind.Reboot looks at the pods
			if s.reboots != 1 || !cordonedAtReboot {
				t.Errorf("%s before: %d reboots, cordoned %v", before, s.reboots, cordonedAtReboot)
			}
		})
	}
}

type cordonSpy struct {
	simLogind
	cordoned *bool
}

func (l cordonSpy) Reboot(ctx context.Context, kind plan.Kind, why string) error {
	l.mu.Lock()
	*l.cordoned = l.node.Unschedulable
	l.mu.Unlock()
	return l.simLogind.Reboot(ctx, kind, why)
}

// budget is a drain that says why it does not get on.
type budget struct{ simDrain }

func (d budget) Look(ctx context.Context) (plan.Pods, error) {
	p, err := d.simDrain.Look(ctx)
	p.Why = "PodDisruptionBudget default/web allows no disruption"
	return p, err
}

// kubereboot/kured#78, #82, #145: the drain hung for ever, with the lock in its hand.
func TestABudgetThatNeverAllowsLetsTheNextNodeGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newFleet(t, 2, 1)
		stuck, next := p.machines[0], p.machines[1]
		stuck.stuck = true
		var ended, began []time.Duration
		stuck.tweak = func(a *Agent, _ bool) {
			a.Drainer = budget{simDrain{stuck}}
			a.Node = spied{
				simNode: simNode{stuck},
				cordon:  func() error { began = append(began, stuck.uptime()); return nil },
				rolledBack: func() {
					ended = append(ended, stuck.uptime())
				},
			}
		}
		next.need = false
		next.after(10*time.Minute, func() { next.need = true })
		next.after(25*time.Minute, func() {
			if next.reboots != 1 {
				t.Errorf("25 min after the stuck drain began, the next node has %d reboots", next.reboots)
			}
		})
		p.life(24 * time.Hour)
		next.atRest("its turn came")
		if len(ended) < 5 || len(began) < len(ended) || len(began) > 9 {
			t.Fatalf("drains began at %v and ended at %v", began, ended)
		}
		for i := 1; i < len(began) && i <= len(ended); i++ {
			if pause := began[i] - ended[i-1]; pause < plan.Backoff(i)-time.Second {
				t.Errorf("drain %d began %s after the end of the one before, want at least %s", i+1, pause, plan.Backoff(i))
			}
		}
		if f := stuck.record.Failure; f == nil || !strings.Contains(f.Why, "PodDisruptionBudget default/web") {
			t.Errorf("what people are told does not name the budget: %+v", f)
		}
	})
}

type refuses struct {
	simLogind
	asked func()
}

func (l refuses) Reboot(context.Context, plan.Kind, string) error {
	l.asked()
	return errors.New("access denied")
}

// kubereboot/kured#44: a reboot command that could not work drained every node once an hour, for ever.
func TestALogindThatAlwaysRefusesCostsFewerAndFewerDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		var asked []time.Duration
		s.tweak = func(a *Agent, _ bool) {
			a.Logind = refuses{simLogind{s}, func() { asked = append(asked, s.uptime()) }}
		}
		s.runFor(24 * time.Hour)
		if len(asked) < 7 || len(asked) > 9 || s.cordons != len(asked) {
			t.Errorf("asked at %v, %d cordons in a day", asked, s.cordons)
		}
		for i := 1; i < len(asked); i++ {
			if pause := asked[i] - asked[i-1]; pause < plan.Backoff(i) {
				t.Errorf("asked again after %s, want at least %s", pause, plan.Backoff(i))
			}
		}
		s.notHeld("between two tries")
		if f := s.record.Failure; f == nil || !strings.Contains(f.Why, "logind refused the reboot: access denied") {
			t.Errorf("failure %+v", f)
		}
	})
}

// kubereboot/kured#19: pods moved to the next node that was about to reboot.
func TestEveryNodeThatNeedsARebootIsTaintedBeforeTheFirstDrain(t *testing.T) {
	t.Parallel()
	for range 20 { // whatever the dice say
		synctest.Test(t, func(t *testing.T) {
			p := newFleet(t, 3, 1)
			drains := 0
			for i, s := range p.machines {
				s.latency = time.Duration(1+i*4) * 100 * time.Millisecond
				s.tweak = func(a *Agent, _ bool) {
					a.queue.crowd = false // the agents have been running for long
					a.Node = spied{simNode: simNode{s}, cordon: func() error {
						s.mu.Lock()
						defer s.mu.Unlock()
						drains++
						if slices.ContainsFunc(p.machines, func(o *sim) bool { return !o.node.Tainted && o.reboots == 0 }) {
							t.Errorf("drain %d begins, and not every node that waits is tainted", drains)
						}
						return nil
					}}
				}
			}
			p.life(time.Hour)
			if drains != 3 {
				t.Errorf("%d drains", drains)
			}
		})
	}
}

// kubereboot/kured#105, #148: the tick fell beside the window, week after week.
func TestAWindowThatOpensIsUsedWithoutAnyHint(t *testing.T) {
	t.Parallel()
	for _, long := range []time.Duration{time.Minute, 5 * time.Minute, 5 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			opens := time.Now().Add(6*time.Hour + 7*time.Minute)
			s.window = func(now time.Time) plan.Window {
				switch {
				case now.Before(opens):
					return plan.Window{Opens: opens}
				case now.Before(opens.Add(long)):
					return plan.Window{Open: true, Closes: opens.Add(long)}
				}
				return plan.Window{Opens: opens.Add(24 * time.Hour)}
			}
			var taken time.Time
			s.tweak = func(a *Agent, _ bool) {
				a.Slots = slotSpy{simSlots: simSlots{s}, taken: func() { taken = time.Now() }}
			}
			s.runFor(8 * time.Hour)
			if late := taken.Sub(opens); late < 0 || late > 20*time.Second || s.reboots != 1 {
				t.Errorf("a window of %s: slot taken %s after it opened, %d reboots", long, late, s.reboots)
			}
		})
	}
}

type countedReads struct {
	simNode
	n *int
}

func (r countedReads) Read(ctx context.Context, age time.Duration) (plan.Node, error) {
	*r.n++
	return r.simNode.Read(ctx, age)
}

// The API server of a control-plane node runs on the node itself, and starts after the boot unit.
func TestABootUnitOutlastsAnAPIServerThatComesUpHoursAfterIt(t *testing.T) {
	t.Parallel()
	for _, away := range []time.Duration{90 * time.Second, 15 * time.Minute, 3 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).returned()
			s.away = func(age time.Duration) bool { return age < away }
			reads := 0
			s.tweak = func(a *Agent, _ bool) {
				a.Node = countedReads{simNode{s}, &reads}
			}
			if err := s.agent(true).ReturnNode(t.Context()); err != nil { // an error would fail the unit
				t.Error(err)
			}
			s.nothingLeft("the API server is there")
			if late := time.Since(s.began) - away; late < 0 || late > 90*time.Second {
				t.Errorf("away for %s: clean %s after that", away, late)
			}
			if most := 40 + int(away/(45*time.Second)); reads > most {
				t.Errorf("away for %s: asked %d times, want at most %d", away, reads, most)
			}
		})
	}
}

type notThere struct {
	simHost
	missing *string
}

func (r notThere) Missing(context.Context) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *r.missing, nil
}

// kubereboot/kured#76, #277, #886: the lock went on before the node was of any use again.
func TestPodsThatTheNodeNeedsKeepItsSlotUntilTheyAreReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).returned()
		missing := "pods \"app=cni\" are not Ready: kube-system/cni-1"
		told := 0
		s.tweak = func(a *Agent, _ bool) {
			a.Ready = notThere{simHost{s}, &missing}
			a.Report = func(o plan.Observed, step plan.Step) {
				if plan.Trouble(a.Policy, o, step) == plan.TroubleUnhealthy && strings.Contains(step.Why, "cni-1") {
					s.mu.Lock()
					told++
					s.mu.Unlock()
				}
			}
		}
		s.after(20*time.Minute, func() {
			if s.lease == "" || s.node.Marker == "" || !s.node.Tainted {
				t.Errorf("not Ready, and given back: %+v, slot %q", s.node, s.lease)
			}
			if told == 0 {
				t.Error("nobody is told although the deadline of 15 minutes is over")
			}
			missing = ""
		})
		s.after(21*time.Minute, func() { s.notHeldLocked("a minute after the pods are Ready") })
		s.runFor(30 * time.Minute)
		s.nothingLeft("the pods are Ready")
	})
}

// kubereboot/kured#147: an image put the old kernel back after every boot, which was dozens of reboots a day.
func TestAReasonThatComesBackAfterEveryBootRebootsOnceADayAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.persist = true
		var boots []time.Time
		s.tweak = func(a *Agent, bootUnit bool) {
			a.Logind = timesOfReboots{simLogind{s}, &boots}
		}
		s.life(5 * 24 * time.Hour)
		if len(boots) < 2 || len(boots) > 5 {
			t.Errorf("%d reboots in five days", len(boots))
		}
		for i := 1; i < len(boots); i++ {
			if pause := boots[i].Sub(boots[i-1]); pause < 24*time.Hour {
				t.Errorf("rebooted again after %s for the same reason", pause)
			}
		}
		if s.lease != "" || s.node.Unschedulable || !s.node.Tainted {
			t.Errorf("while it waits: %+v, slot %q", s.node, s.lease)
		}
	})
}

type timesOfReboots struct {
	simLogind
	at *[]time.Time
}

func (l timesOfReboots) Reboot(ctx context.Context, kind plan.Kind, why string) error {
	*l.at = append(*l.at, time.Now())
	return l.simLogind.Reboot(ctx, kind, why)
}
