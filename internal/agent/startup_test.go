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

func (s *sim) removeTaints() *sim {
	s.tweak = func(a *Agent, _ bool) { a.Policy.StartupTaints = true }
	return s
}

func TestAStartUpTaintInTheMiddleOfADrainChangesNothingOfIt(t *testing.T) {
	for _, ready := range []bool{true, false} {
		for _, ends := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t).held().removeTaints()
				s.after(30*time.Second, func() { s.node.Startup, s.node.Ready = true, ready })
				if ends {
					s.after(5*time.Minute, func() { s.stuck = false })
				} else {
					s.after(25*time.Minute, func() { s.notHeldLocked("the drain's timeout is over") })
				}
				s.runFor(26 * time.Minute)
				if want := map[bool]int{true: 1}[ends]; s.reboots != want {
					t.Errorf("ready %v, drain ends %v: %d reboots; node %+v, slot %q", ready, ends, s.reboots, s.node, s.lease)
				}
			})
		}
	}
}

func TestAStartUpTaintInTheMiddleOfADrainOfANodeThatAHumanCordonedChangesNothingOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held().removeTaints()
		s.human, s.node.Marker = true, ""
		s.after(30*time.Second, func() { s.node.Startup = true })
		s.after(25*time.Minute, func() { s.notHeldLocked("the drain's timeout is over") })
		s.runFor(26 * time.Minute)
	})
}

func TestAStartUpTaintOnANodeThatDidNotRebootIsRemovedAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1).removeTaints()
		s.need, s.node.Startup = false, true
		a := s.runFor(time.Minute)
		if s.node.Startup || s.record.Startup != "boot-1" {
			t.Errorf("%+v, record %+v", s.node, s.record)
		}
		if _, step := a.Decide(t.Context()); step.Phase != plan.Idle {
			t.Errorf("%+v", step)
		}
	})
}

type mayNot struct{ simNode }

func (m mayNot) Return(ctx context.Context, fit func(plan.Node) bool) error {
	startup := m.node.Startup
	if err := m.simNode.Return(ctx, fit); err != nil || !startup {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node.Startup = true
	return errors.New("removing the start-up taints: forbidden")
}

func TestAStartUpTaintThatMayNotBeRemovedHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).returned()
		s.node.Startup = true
		s.tweak = func(a *Agent, _ bool) { a.Policy.StartupTaints, a.Node = true, mayNot{simNode{s}} }
		a := s.runFor(2 * time.Hour)
		s.notHeld("back from the reboot")
		if s.ops > 2000 {
			t.Errorf("%d calls in two hours", s.ops)
		}
		if _, step := a.Decide(t.Context()); step.Phase == plan.Idle {
			t.Errorf("the taint that stays is not told: %+v", step)
		}
	})
}
