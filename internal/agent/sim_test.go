// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// atRest is what the world must look like long after whatever happened: rebooted, and nothing of ours left.
func (s *sim) atRest(what string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bootNo < 2 {
		s.t.Errorf("%s: never rebooted; record %+v", what, s.record)
	}
	if s.node.Tainted || s.node.Marker != "" || s.node.Unschedulable != s.human {
		s.t.Errorf("%s: the Node is not clean: %+v", what, s.node)
	}
	if s.lease != "" {
		s.t.Errorf("%s: slot %s is still held", what, s.lease)
	}
	if s.record.Marked || s.record.Slot != nil || s.record.Asked != nil {
		s.t.Errorf("%s: the record is open: %+v", what, s.record)
	}
	if s.reboots > 1 {
		s.t.Errorf("%s: %d reboots for one need", what, s.reboots)
	}
}

func TestOneNeedIsOneRebootAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, human := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t)
			s.human, s.node.Unschedulable = human, human
			s.life(time.Hour)
			s.atRest("no fault")
			if s.reboots != 1 {
				t.Errorf("%d reboots", s.reboots)
			}
		})
	}
}

// A fault at every single call of every port, of six kinds: whatever fails, crashes or loses power, the world comes to
// rest with one reboot and nothing of ours left, and no invariant is broken on the way.
func TestAFaultAtEveryStepComesToRest(t *testing.T) {
	t.Parallel()
	var steps int
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.life(time.Hour)
		steps = s.ops
	})
	t.Logf("%d steps, %d kinds of fault", steps, len(faultNames))
	for kind := range faultNames {
		t.Run(faultNames[kind], func(t *testing.T) {
			t.Parallel()
			for step := range steps + 5 {
				for _, human := range []bool{false, true} {
					synctest.Test(t, func(t *testing.T) {
						s := newSim(t)
						s.human, s.node.Unschedulable = human, human
						s.fault[step] = fault(kind)
						s.life(8 * time.Hour)
						s.atRest(fmt.Sprintf("step %d %s, cordoned by a human: %v", step, faultNames[kind], human))
					})
				}
			}
		})
	}
}

func TestAnAPIServerThatIsAwayAtAnyStepIsWaitedFor(t *testing.T) {
	t.Parallel()
	for minute := range 3 {
		for second := 0; second < 60; second += 3 {
			from := time.Duration(minute)*time.Minute + time.Duration(second)*time.Second
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t)
				s.away = func(age time.Duration) bool { return age >= from && age < from+2*time.Hour }
				s.life(8 * time.Hour)
				s.atRest(fmt.Sprintf("API away for two hours from %s", from))
			})
		}
	}
}

func TestARebootThatNeverComesIsRolledBackAndTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.deaf = 2
		go func() {
			time.Sleep(5 * time.Minute)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.node.Unschedulable || s.lease != "" || !s.node.Tainted || s.record.Failure == nil {
				t.Errorf("five minutes after a reboot that did not come: %+v, slot %q, record %+v", s.node, s.lease, s.record)
			}
		}()
		s.life(8 * time.Hour)
		s.atRest("logind accepts twice in vain")
	})
}

func TestANeedThatVanishesIsCancelledWhereverItStands(t *testing.T) {
	t.Parallel()
	for tenths := range 80 {
		after := time.Duration(tenths) * time.Second / 10
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t)
			time.AfterFunc(after, func() {
				s.mu.Lock()
				s.need = false
				s.mu.Unlock()
				s.changed <- struct{}{}
			})
			s.life(time.Hour)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.node.Tainted || s.node.Unschedulable || s.lease != "" || s.record.Marked {
				t.Errorf("the need vanished after %s: %+v, slot %q, record %+v", after, s.node, s.lease, s.record)
			}
		})
	}
}
