// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

type cleanFails struct{ simNode }

func (cleanFails) Clean(context.Context) error { return errors.New("500 Internal Server Error") }

func TestACleanupThatCouldNotCleanSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.need = false
		s.tweak = func(a *Agent, _ bool) { a.Node = cleanFails{simNode{s}} }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if left, ok := errors.AsType[*LeftError](s.agent(true).CleanUp(ctx)); !ok || left.Why == "" {
			t.Errorf("%v, with taint and cordon on the Node", left)
		}
	})
}

func TestACleanupThatNobodyAnsweredSaysSo(t *testing.T) {
	for what, change := range map[string]func(s *sim){
		"no API server":     func(s *sim) { s.away = func(time.Duration) bool { return true } },
		"unreadable record": func(s *sim) { s.unreadable = errors.New("input/output error") },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).lostRecord()
			change(s)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := s.agent(true).CleanUp(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
}

func TestACleanupFindsWhatALostRecordDoesNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).lostRecord()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.agent(true).CleanUp(ctx); err != nil {
			t.Error(err)
		}
		s.nothingLeft("cleaned up")
	})
}

func TestAStopForGoodUndoesEverythingWhereverItStands(t *testing.T) {
	for tenths := range 100 {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			s.forGood, s.latency = true, 300*time.Millisecond
			s.stopAfter(time.Duration(tenths) * 200 * time.Millisecond)
			if s.reboots == 0 {
				s.nothingLeft("stopped")
			}
		})
	}
}

func TestAStopDoesNotWaitForTheEndOfAPause(t *testing.T) {
	for i := range 30 {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).held()
			s.forGood = true
			outage := 10*time.Minute + time.Duration(i)*3*time.Second
			s.away = func(age time.Duration) bool { return age > 10*time.Second && age < outage }
			s.stopAfter(outage + time.Second)
			s.nothingLeft("the API server answers again since a second")
		})
	}
}

func TestAStopAfterAnAcceptedRebootThatDoesNotComeUndoesEverything(t *testing.T) {
	for seconds := range 30 {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).booted(1)
			s.forGood, s.deaf = true, 5
			s.stopAfter(time.Duration(10+4*seconds) * time.Second)
			s.nothingLeft("logind shows no shutdown")
		})
	}
}

func TestAStopInAShutdownKeepsEverything(t *testing.T) {
	for _, forGood := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t).held()
			s.forGood = forGood
			s.after(time.Minute, func() { s.shutdown = true })
			s.stopAfter(time.Minute + time.Second)
			if s.lease == "" || s.node.Marker == "" || !s.node.Tainted || !s.record.Marked {
				t.Errorf("node %+v, slot %q, record %+v", s.node, s.lease, s.record)
			}
		})
	}
}

func TestARestartKeepsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.stopAfter(time.Minute)
		if s.lease == "" || s.node.Marker == "" || !s.node.Tainted || !s.record.Marked {
			t.Errorf("node %+v, slot %q, record %+v", s.node, s.lease, s.record)
		}
	})
}

func TestAStopForGoodIsOneAlsoWithoutLogind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.forGood, s.noLogind = true, true
		s.stopAfter(time.Minute)
		s.nothingLeft("systemd says that it is a stop")
	})
}

func TestAStopWithAnUnreadableRecordUndoesWhatItFindsOnceItCanBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).held()
		s.forGood = true
		s.after(30*time.Second, func() { s.unreadable = errors.New("too many open files") })
		s.after(50*time.Second, func() { s.unreadable = nil })
		s.stopAfter(40 * time.Second)
		s.nothingLeft("stopped")
	})
}
