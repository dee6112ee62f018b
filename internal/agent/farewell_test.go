// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// farewell has the agent hold a delay inhibitor, which logind respects for at most five seconds.
func farewell(s *sim) {
	s.tweak = func(a *Agent, bootUnit bool) { a.Farewell = !bootUnit }
}

// downBySomebody is `reboot`, typed by root: it ends once nobody holds it, or after five seconds.
func (s *sim) downBySomebody() (took func() time.Duration) {
	began, ended := time.Now(), time.Duration(0)
	s.shutdown = true
	go func() {
		for time.Since(began) < 5*time.Second && (simLogind{s}).Delaying() {
			time.Sleep(10 * time.Millisecond)
		}
		s.mu.Lock()
		ended = time.Since(began)
		kill := s.kill
		s.mu.Unlock()
		kill()
	}()
	return func() time.Duration { return ended }
}

func TestARebootThatSomebodyElseStartsIsMarkedInTimeAndCleanedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.need = false
		farewell(s)
		var took func() time.Duration
		var marked bool
		s.after(time.Minute, func() { took = s.downBySomebody() })
		s.after(time.Minute+5*time.Second, func() { marked = s.node.Tainted && !s.node.Unschedulable })
		s.life(10 * time.Minute)
		if !marked {
			t.Error("the Node did not show that the host went down")
		}
		if d := took(); d > 2*time.Second {
			t.Errorf("the shutdown waited %s for us", d)
		}
		s.nothingLeft("after the next boot")
		if s.bootNo < 2 || s.record.Last != nil || s.reboots != 0 {
			t.Errorf("boot %d, last reboot %+v: this one was not ours", s.bootNo, s.record.Last)
		}
	})
}

func TestAShutdownWaitsForNobodyWhenTheAPIServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.need = false
		s.away = func(age time.Duration) bool { return age > 30*time.Second && age < 5*time.Minute }
		farewell(s)
		var took func() time.Duration
		s.after(time.Minute, func() { took = s.downBySomebody() })
		s.life(20 * time.Minute)
		if d := took(); d > 2*farewellBound {
			t.Errorf("the shutdown waited %s for us", d)
		}
		s.nothingLeft("after the next boot")
	})
}

func TestAShutdownThatIsCalledOffTakesTheMarkBackAndIsWaitedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.need = false
		farewell(s)
		s.after(time.Minute, func() { s.shutdown = true })
		s.after(2*time.Minute, func() {
			if !s.node.Tainted || s.delaying {
				t.Errorf("a minute into the shutdown: tainted %v, held up %v", s.node.Tainted, s.delaying)
			}
			s.shutdown = false
		})
		s.runFor(10 * time.Minute)
		s.nothingLeft("called off")
		if !s.delaying {
			t.Error("the next shutdown would not wait for us")
		}
	})
}

func TestWhatLogindWouldRefuseTakesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.forbidden = errors.New("not authorized by polkit")
		s.after(time.Hour, func() {
			if s.taken > 0 || s.cordons > 0 || !s.node.Tainted || s.record.Failure != nil {
				t.Errorf("%d slots, %d cordons, node %+v, record %+v", s.taken, s.cordons, s.node, s.record)
			}
			s.forbidden = nil
		})
		s.runFor(2 * time.Hour)
		if s.reboots != 1 {
			t.Errorf("%d reboots after the rule was installed", s.reboots)
		}
	})
}

type slowPreflight struct{ simLogind }

func (slowPreflight) Preflight(ctx context.Context) error {
	<-ctx.Done() // polkit does not answer
	return ctx.Err()
}

func TestALogindThatTakesItsTimeDelaysNoTaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.tweak = func(a *Agent, _ bool) { a.Logind = slowPreflight{simLogind{s}} }
		s.after(time.Second, func() {
			if !s.node.Tainted {
				t.Error("a second after the need the Node is not tainted")
			}
		})
		s.runFor(time.Minute)
	})
}

// kubereboot/kured#403: the reboot came in the middle of an upgrade.
func TestAPackageManagerAtWorkIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.packages = "dpkg (/var/lib/dpkg/lock-frontend), pid 123"
		var why string
		s.tweak = func(a *Agent, _ bool) {
			a.Report = func(_ plan.Observed, step plan.Step) {
				if step.Phase == plan.WaitingInhibitor {
					why = step.Why
				}
			}
		}
		s.after(time.Hour, func() {
			if s.taken > 0 || s.reboots > 0 || !strings.Contains(why, "a package manager at work: dpkg") {
				t.Errorf("%d slots, %d reboots, %q", s.taken, s.reboots, why)
			}
			s.packages = ""
		})
		s.runFor(2 * time.Hour)
		if s.reboots != 1 {
			t.Errorf("%d reboots after its end", s.reboots)
		}
	})
}

type kindSpy struct {
	simLogind
	asked *plan.Kind
}

func (l kindSpy) Reboot(_ context.Context, kind plan.Kind, _ string) error {
	*l.asked = kind
	return nil
}

func TestTheKindOfRebootIsTheLeastThatServes(t *testing.T) {
	for _, c := range []struct {
		method plan.Kind
		able   []plan.Kind
		want   plan.Kind
	}{
		{0, []plan.Kind{plan.KindSoft, plan.KindFull}, plan.KindSoft},
		{0, []plan.Kind{plan.KindFull}, plan.KindFull},
		{plan.KindFull, []plan.Kind{plan.KindSoft, plan.KindFull}, plan.KindFull},
		{plan.KindKexec, []plan.Kind{plan.KindSoft, plan.KindKexec, plan.KindFull}, plan.KindKexec},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			s.able = c.able
			var asked plan.Kind
			s.tweak = func(a *Agent, _ bool) {
				a.Policy.Method = c.method
				a.Sources = softNeed{}
				a.Logind = kindSpy{simLogind{s}, &asked}
			}
			s.runFor(time.Minute)
			if asked != c.want || s.record.Asked == nil || s.record.Asked.Kind != c.want {
				t.Errorf("method %v, able %v: asked for %v, record %+v", c.method, c.able, asked, s.record.Asked)
			}
		})
	}
}

type softNeed struct{}

func (softNeed) Need() (plan.Level, []plan.Reason) {
	return plan.Required, []plan.Reason{{Source: "file", ID: "glibc", Kind: plan.KindSoft}}
}

// The kernel's boot id outlives a soft reboot, and so does what the kubelet said before it.
func TestAfterASoftRebootOnlyAKubeletThatSpokeSinceCounts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	a := &Agent{Options: Options{Boot: "boot-1.2", Started: now}}
	n := plan.Node{UID: "u", BootID: "boot-1", Ready: true, Heartbeat: now.Add(-time.Second)}
	if why := a.unfit(n); why != "the kubelet has not reported this boot yet" {
		t.Errorf("spoke before: %q", why)
	}
	n.Heartbeat = now.Add(time.Second)
	if why := a.unfit(n); why != "" {
		t.Errorf("spoke since: %q", why)
	}
	n.BootID = "boot-0"
	if why := a.unfit(n); why == "" {
		t.Error("a kubelet of another kernel is fit")
	}
}

// besidePod is a pod of kured on our node. What the loop knows of it is from the newest look at the pods.
type besidePod struct {
	simDrain
	there, seen *bool
	fails       *int // looks on the host to come that fail
	onHost      *bool
}

func (b besidePod) Look(ctx context.Context) (plan.Pods, error) {
	p, err := b.simDrain.Look(ctx)
	*b.seen = *b.there
	return p, err
}

func (b besidePod) Find(context.Context) ([]string, error) {
	if *b.fails > 0 {
		*b.fails--
		return nil, errors.New("asking systemd: no answer")
	}
	if *b.onHost {
		return []string{"locksmithd reboots this host by itself"}, nil
	}
	return nil, nil
}

func (b besidePod) Pods() []string {
	if *b.seen {
		return []string{"kured reboots this host by itself"}
	}
	return nil
}

func beside(s *sim) besidePod {
	b := besidePod{simDrain{s}, new(bool), new(bool), new(int), new(bool)}
	s.tweak = func(a *Agent, _ bool) { a.Beside, a.Drainer, a.Policy.RefuseBeside = b, b, true }
	return b
}

func TestANodeGoesOnOnceThePodThatWouldRebootItIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		b := beside(s)
		*b.there = true
		s.after(3*time.Hour, func() {
			if s.taken > 0 || !s.node.Tainted || s.listings > 20 {
				t.Errorf("%d slots, node %+v, %d listings", s.taken, s.node, s.listings)
			}
			*b.there = false
		})
		s.runFor(4 * time.Hour)
		if s.reboots != 1 {
			t.Errorf("%d reboots in the hour after kured was removed", s.reboots)
		}
	})
}

func TestALookForOtherProgramsThatFailedIsRepeatedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		b := beside(s)
		*b.onHost, *b.fails, s.stuck = true, 1, true
		s.runFor(5 * time.Minute)
		s.notHeld("a few minutes after the failure")
		if s.reboots > 0 {
			t.Errorf("%d reboots beside another program", s.reboots)
		}
	})
}

type noSlots struct{ simSlots }

func (noSlots) Acquire(context.Context, Request) (Claim, error) { return Claim{}, errInjected }

func TestAShutdownDoesNotWaitForThePauseAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.tweak = func(a *Agent, _ bool) { a.Farewell, a.Slots = true, noSlots{simSlots{s}} }
		took := func() time.Duration { return 0 }
		s.after(30*time.Minute, func() { took = s.downBySomebody() })
		s.runFor(time.Hour)
		if d := took(); d > 100*time.Millisecond {
			t.Errorf("the shutdown waited %s for a node that is marked", d)
		}
	})
}
