// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const shutdownBound = 2 * time.Minute

// goDown runs what kured-agent-shutdown.service does while somebody shuts the machine down, and says how long that took.
func (s *sim) goDown(ctx context.Context) (took time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.emptied, s.shutdown, s.kill = true, true, cancel
	began := time.Now()
	s.process(func() { err = s.agent(true).Shutdown(ctx, shutdownBound) })
	return time.Since(began), err
}

// unneeded is a machine that is up and needs no reboot.
func unneeded(t *testing.T) *sim {
	s := newSim(t).booted(1)
	s.need = false
	return s
}

// nothingBegun says that a shutdown left no mark.
func (s *sim) nothingBegun() {
	s.t.Helper()
	if s.node.Marker != "" || s.node.Unschedulable != s.human || s.record.Marked || s.pods == 0 {
		s.t.Errorf("node %+v, record %+v, %d pods", s.node, s.record, s.pods)
	}
}

func TestAShutdownDrainsAndTheNextBootGivesTheNodeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unneeded(t)
		took, err := s.goDown(t.Context())
		if err != nil || took > 2*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		if s.pods != 0 || !s.node.Unschedulable || s.node.Marker != "boot-1" || s.lease != "" {
			t.Errorf("%d pods, node %+v, slot %q", s.pods, s.node, s.lease)
		}
		if !s.record.Marked || s.record.Boot != "boot-1" || s.record.NodeUID != s.node.UID {
			t.Errorf("record %+v", s.record)
		}
		s.life(time.Hour)
		s.nothingLeft("booted again")
		if s.bootNo != 2 {
			t.Errorf("boot %d", s.bootNo)
		}
	})
}

func TestAShutdownOfADrainedNodeAsksTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.pods = 0
		record, began := s.record, s.ops
		if took, err := s.goDown(t.Context()); err != nil || took > 0 {
			t.Errorf("%v after %s", err, took)
		}
		if s.ops-began != 2 || s.patches != 0 || fmt.Sprint(s.record) != fmt.Sprint(record) {
			t.Errorf("%d calls, %d patches, record %+v", s.ops-began, s.patches, s.record)
		}
	})
}

// hangs never answers.
type hangs struct{ simNode }

func (hangs) Read(ctx context.Context, _ time.Duration) (plan.Node, error) {
	<-ctx.Done()
	return plan.Node{}, ctx.Err()
}

func TestAShutdownGivesAnAPIServerThatIsAwayTenSeconds(t *testing.T) {
	for what, change := range map[string]func(s *sim){
		"refuses connections": func(s *sim) { s.away = func(time.Duration) bool { return true } },
		"does not answer":     func(s *sim) { s.tweak = func(a *Agent, _ bool) { a.Node = hangs{simNode{s}} } },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := unneeded(t)
			change(s)
			if took, err := s.goDown(t.Context()); err == nil || took != awayBound {
				t.Errorf("%s: %v after %s", what, err, took)
			}
			s.nothingBegun()
		})
	}
}

func TestAShutdownWaitsForAnAPIServerThatIsAwayForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unneeded(t)
		s.away = func(age time.Duration) bool {
			return age < 8*time.Second || age > 9*time.Second && age < 15*time.Second
		}
		if took, err := s.goDown(t.Context()); err != nil || took > 20*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		if s.pods != 0 {
			t.Errorf("%d pods", s.pods)
		}
	})
}

// A power-off of the whole cluster takes the API server away in the middle of the drain.
func TestAShutdownGoesOnSoonAfterTheAPIServerWentAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unneeded(t)
		s.stuck = true
		s.away = func(age time.Duration) bool { return age > 30*time.Second }
		if took, err := s.goDown(t.Context()); err == nil || took > 30*time.Second+2*awayBound {
			t.Errorf("%v after %s", err, took)
		}
	})
}

func TestAShutdownGoesOnWhenItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unneeded(t)
		s.stuck = true // a budget that allows nothing: all other nodes go down too
		took, err := s.goDown(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "left: 3") || took != shutdownBound {
			t.Errorf("%v after %s", err, took)
		}
		if s.node.Marker != "boot-1" {
			t.Errorf("node %+v", s.node)
		}
		s.life(time.Hour)
		s.nothingLeft("booted again")
	})
}

func TestAShutdownGoesOnWhenItIsToldTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unneeded(t)
		s.stuck = true
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if took, err := s.goDown(ctx); err == nil || took != 5*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

func TestAShutdownLeavesTheCordonOfAHuman(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unneeded(t)
		s.human, s.node.Unschedulable = true, true
		if _, err := s.goDown(t.Context()); err != nil || s.pods != 0 || s.node.Marker != "" || s.record.Marked {
			t.Errorf("%v, %d pods, node %+v, record %+v", err, s.pods, s.node, s.record)
		}
		s.life(time.Hour)
		s.nothingLeft("booted again")
	})
}

type anothers struct{ simHost }

func (anothers) Fingerprint() string { return "new" }
func (anothers) Prove(context.Context) error {
	return errors.New("the Node is another machine")
}

func TestAShutdownMarksNothingThatNobodyWouldTakeOff(t *testing.T) {
	for what, change := range map[string]func(s *sim){
		"the record can't be read":    func(s *sim) { s.unreadable = errors.New("input/output error") },
		"the record can't be written": func(s *sim) { s.diskFull = true },
		"there is no Node":            func(s *sim) { s.node = plan.Node{} },
		"the Node is another machine": func(s *sim) {
			s.tweak = func(a *Agent, _ bool) { a.Identity = anothers{simHost{s}} }
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := unneeded(t)
			change(s)
			if took, err := s.goDown(t.Context()); err == nil || took > awayBound {
				t.Errorf("%s: %v after %s", what, err, took)
			}
			s.nothingBegun()
		})
	}
}

// The second reboot comes before the node was given back from the first: both are undone at once.
func TestAShutdownInTheReturnIsCleanedUpWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).returned()
		if _, err := s.goDown(t.Context()); err != nil {
			t.Error(err)
		}
		if s.node.Marker != "boot-2" || s.record.Boot != "boot-2" || s.record.Slot == nil {
			t.Errorf("node %+v, record %+v", s.node, s.record)
		}
		s.life(time.Hour)
		s.nothingLeft("booted again")
	})
}

func TestAShutdownForgetsTheSlotOfANodeObjectThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unneeded(t)
		s.record = plan.Record{
			Boot: "boot-1", NodeUID: "uid-0", Marked: true, Slot: &plan.SlotRef{Name: "slot-default-0", UID: "x"},
		}
		if _, err := s.goDown(t.Context()); err != nil || s.record.Slot != nil || s.record.NodeUID != s.node.UID {
			t.Errorf("%v, record %+v", err, s.record)
		}
		s.life(time.Hour)
		s.nothingLeft("booted again")
	})
}

func TestAFaultAtEveryStepOfAShutdownIsCleanedUpByTheNextBoot(t *testing.T) {
	for kind := range faultNames {
		for step := range 12 {
			synctest.Test(t, func(t *testing.T) {
				s := unneeded(t)
				s.fault[step] = fault(kind)
				if took, _ := s.goDown(t.Context()); took > 2*awayBound {
					t.Errorf("step %d %s: %s", step, faultNames[kind], took)
				}
				s.life(time.Hour)
				s.nothingLeft(fmt.Sprintf("step %d %s", step, faultNames[kind]))
			})
		}
	}
}

func TestAStopInAShutdownThatLogindKnowsNothingOfKeepsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.forGood = true
		s.after(time.Minute, func() { s.pastLogind = true })
		s.stopAfter(time.Minute + time.Second)
		if s.lease == "" || s.node.Marker == "" || !s.node.Tainted || !s.record.Marked {
			t.Errorf("node %+v, slot %q, record %+v", s.node, s.lease, s.record)
		}
	})
}
