// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

type counted struct {
	simSlots
	nodes int
}

func (c counted) Nodes(context.Context, string) (int, error) { return c.nodes, nil }

func waiting(s *sim, nodes, pods int) *Agent {
	a := s.agent(false)
	a.Slots = counted{simSlots{s}, nodes}
	a.Logger = slog.New(slog.DiscardHandler)
	a.queue = queue{since: a.Uptime(), pods: pods}
	return a
}

func TestAPoolIsLookedAtAboutOnceASecondHoweverManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for nodes, want := range map[int]time.Duration{
			0: 5 * time.Second, 3: 5 * time.Second, 60: time.Minute, 300: 5 * time.Minute, 5000: 5 * time.Minute, 1 << 40: 5 * time.Minute,
		} {
			a := waiting(newSim(t), nodes, 0)
			if got := a.lookEvery(t.Context(), "default"); got != want {
				t.Errorf("%d nodes: every %s, want %s", nodes, got, want)
			}
		}
	})
}

func TestTheLighterNodeIsLetPassAndNoneStarves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			pods int
			age  time.Duration
			want time.Duration
		}{
			{0, 0, 0}, {1, 0, 50 * time.Millisecond}, {20, 0, time.Second}, {60, 0, 3 * time.Second}, {1 << 40, 0, 3 * time.Second},
			{60, 59 * time.Minute, 3 * time.Second}, {60, time.Hour, 1500 * time.Millisecond}, {60, 48 * time.Hour, 0},
		} {
			a := waiting(newSim(t), 3, c.pods)
			a.queue.since -= c.age
			if got := a.yieldFor().Round(time.Millisecond); got != c.want {
				t.Errorf("%d pods after %s: %s, want %s", c.pods, c.age, got, c.want)
			}
		}
	})
}

func TestAHeavyNodeLooksBeforeItTakesAndTakesTheSecondTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := waiting(newSim(t), 3, 60)
		if !a.yields() {
			t.Fatal("a heavy node takes at first sight")
		}
		a.turn = a.nextTurn(t.Context(), "default", Claim{Free: true})
		if pause := a.turn.Next - a.Uptime(); pause != 3*time.Second || a.yields() {
			t.Errorf("after a free slot it waits %s, yields %v", pause, a.yields())
		}
		a.turn = a.nextTurn(t.Context(), "default", Claim{Why: "taken by n2"})
		if pause := a.turn.Next - a.Uptime(); pause < 3*time.Second || pause > 7*time.Second || !a.yields() {
			t.Errorf("after a taken one it looks again in %s, yields %v", pause, a.yields())
		}
	})
}

func TestARestartInTheWaitWeighsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.pods = 60
		a := waiting(s, 3, 0)
		a.queue = queue{}
		a.weigh(t.Context())
		if !a.yields() || a.yieldFor() != 3*time.Second {
			t.Errorf("a loaded node that was restarted yields for %s", a.yieldFor())
		}
	})
}

// 5,000 nodes that one update taints in the same second must not all look at pods and slots at once.
func TestALargePoolSpreadsItsFirstLooksAndASmallOneDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			nodes       int
			least, most time.Duration // of the longest wait among many agents
		}{
			{3, 0, 9 * time.Second}, {30, 0, 9 * time.Second}, {5000, 3 * time.Minute, 5*time.Minute + 5*time.Second},
		} {
			var longest time.Duration
			for range 100 {
				s := newSim(t)
				s.pods = 60
				a := waiting(s, c.nodes, 0)
				a.Uptime = func() time.Duration { return time.Hour }
				a.queue = queue{nodes: c.nodes}
				a.enqueue(t.Context())
				wait := a.turn.Next - a.Uptime()
				if looked := a.queue.pods == 60; looked != (c.nodes < 5000) {
					t.Fatalf("%d nodes: looked at the pods %v", c.nodes, looked)
				}
				a.turn.Next = 0
				if a.spread(t.Context(), "default") {
					wait += a.turn.Next - a.Uptime()
				}
				longest = max(longest, wait)
			}
			if longest < c.least || longest > c.most {
				t.Errorf("%d nodes: the last looks after %s", c.nodes, longest)
			}
		}
	})
}

type counting struct {
	simSlots
	at *[]time.Duration // uptimes of the counts
}

func (c counting) Nodes(context.Context, string) (int, error) {
	*c.at = append(*c.at, c.uptime())
	return 5000, nil
}

// A window opens for thousands at once: whatever they ask for then is to be spread.
func TestThousandsDoNotCountTheNodesInTheMomentAWindowOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.record.Nodes, s.pool.n = 5000, 0
		opens := time.Now().Add(3 * time.Hour)
		s.window = func(now time.Time) plan.Window {
			if now.Before(opens) {
				return plan.Window{Opens: opens}
			}
			return plan.Window{Open: true}
		}
		var counts []time.Duration
		s.tweak = func(a *Agent, _ bool) { a.Slots = counting{simSlots{s}, &counts} }
		s.runFor(5 * time.Hour)
		opened := 3*time.Hour + time.Second
		if len(counts) == 0 || counts[0] < opened+10*time.Millisecond {
			t.Errorf("counted at %v, the window opened at %s", counts, opened)
		}
	})
}
