// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const settle = 5 * time.Second

// scripted is a source that reports what the test sends, panics on a panicking state, and ends on a closed channel.
type scripted struct {
	name string
	say  chan State
	runs int
}

var boom = State{Note: "boom"}

func (s *scripted) Name() string { return s.name }

func (s *scripted) Run(ctx context.Context, report func(State)) error {
	s.runs++
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case state := <-s.say:
			if state.Note == boom.Note {
				panic("boom")
			}
			report(state)
		}
	}
}

// bench is a running Set of scripted sources inside a synctest bubble.
type bench struct {
	*Set
	t       *testing.T
	sources []*scripted
}

func newBench(t *testing.T, seed []plan.Reason, names ...string) *bench {
	b := &bench{t: t}
	var sources []Source
	for _, name := range names {
		s := &scripted{name: name, say: make(chan State)}
		b.sources = append(b.sources, s)
		sources = append(sources, s)
	}
	b.Set = NewSet(sources, seed, settle, nil)
	go func() { _ = b.Run(t.Context()) }()
	return b
}

func (b *bench) say(i int, s State) {
	b.sources[i].say <- s
	synctest.Wait()
}

func (b *bench) expect(when string, level plan.Level, reasons ...string) {
	b.t.Helper()
	got, active, _ := b.Snapshot()
	var have []string
	for _, r := range active {
		have = append(have, r.ID)
	}
	if got != level || !slices.Equal(have, reasons) {
		b.t.Errorf("%s: level %v with %q, want %v with %q", when, got, have, level, reasons)
	}
}

// woken says whether Changed delivered since the last look.
func (b *bench) woken() bool {
	select {
	case <-b.Changed():
		return true
	default:
		return false
	}
}

func required(id string) State {
	return State{Level: plan.Required, Reasons: []plan.Reason{{ID: id, Kind: plan.KindFull}}}
}

var (
	idle   = State{Level: plan.NotRequired}
	broken = State{Level: plan.Unknown, Err: errors.New("no answer")}
)

func TestASetIsRequiredWhenAnySourceIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, "file:/a", "file:/b")
		b.expect("before any read", plan.Unknown)
		b.say(0, idle)
		b.expect("one not read yet", plan.Unknown)
		b.say(1, idle)
		b.expect("both idle", plan.NotRequired)
		b.say(0, required("a"))
		b.say(1, required("b"))
		b.expect("both required", plan.Required, "a", "b")
		b.say(1, broken)
		b.expect("one required, one broken", plan.Required, "a")
	})
}

func TestASourceThatFailsHoldsOnlyWhatItHadRequired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, "file:/a", "file:/b")
		b.say(0, broken)
		b.say(1, broken)
		b.expect("never required anything", plan.NotRequired)
		if _, _, status := b.Snapshot(); status[0].State.Err == nil || status[0].Type != "file" {
			t.Errorf("the error is not shown: %+v", status[0])
		}
		b.say(0, required("a"))
		b.say(0, broken)
		b.expect("required and then failed", plan.Unknown, "a")
		b.say(0, idle)
		time.Sleep(settle)
		b.expect("idle for long", plan.NotRequired)
		b.say(0, broken)
		b.expect("failed after that", plan.NotRequired)
	})
}

func TestAVanishedNeedCountsOnlyAfterItSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, "file:/a")
		b.say(0, required("a"))
		b.say(0, idle)
		b.woken()
		b.expect("just vanished", plan.Unknown, "a")
		time.Sleep(settle - 1)
		synctest.Wait()
		b.expect("almost settled", plan.Unknown, "a")
		if b.woken() {
			t.Error("woken too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !b.woken() {
			t.Error("not woken when it settled")
		}
		b.expect("settled", plan.NotRequired)
	})
}

func TestAFileThatIsRewrittenDuringAnUpdateNeverCountsAsVanished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, "file:/a")
		for range 5 {
			b.say(0, required("a"))
			b.expect("there", plan.Required, "a")
			b.say(0, idle)
			time.Sleep(settle - time.Second)
			b.expect("gone", plan.Unknown, "a")
		}
		b.say(0, broken)
		time.Sleep(2 * settle)
		b.expect("a failure is not an absence", plan.Unknown, "a")
		b.say(0, idle)
		time.Sleep(settle - 1)
		b.expect("counted anew after the failure", plan.Unknown, "a")
		time.Sleep(time.Nanosecond)
		b.expect("settled", plan.NotRequired)
	})
}

func TestASeededSourceIsUnknownUntilItSpeaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seed := []plan.Reason{{Source: "file:/a", ID: "kernel"}, {Source: "removed", ID: "x"}}
		b := newBench(t, seed, "file:/a", "file:/b")
		b.say(1, idle)
		b.expect("before it speaks", plan.Unknown, "kernel")
		b.say(0, broken)
		b.expect("it fails", plan.Unknown, "kernel")
		b.say(0, required("libc"))
		b.expect("it speaks", plan.Required, "libc")

		b = newBench(t, seed[1:], "file:/a")
		b.say(0, broken)
		b.expect("the seed of a source that is no more", plan.NotRequired)
	})
}

func TestTheSameStateWakesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, "file:/a")
		b.say(0, required("a"))
		if !b.woken() {
			t.Error("not woken by the first report")
		}
		for range 1000 {
			b.say(0, required("a"))
		}
		if b.woken() {
			t.Error("woken by repetition")
		}
		b.say(0, required("b"))
		if !b.woken() {
			t.Error("not woken by another reason")
		}
	})
}

func TestSinceIsWhenTheLevelChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, "file:/a")
		b.say(0, idle)
		time.Sleep(time.Hour)
		b.say(0, required("a"))
		want := time.Now()
		time.Sleep(time.Hour)
		b.say(0, required("b"))
		if _, _, status := b.Snapshot(); !status[0].Since.Equal(want) {
			t.Errorf("since %v, want %v", status[0].Since, want)
		}
	})
}

func TestASourceThatPanicsIsIsolatedAndRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil, "file:/a", "file:/b")
		b.say(0, required("a"))
		b.say(1, required("b"))
		b.say(0, boom)
		b.expect("one panicked", plan.Required, "b")
		_, _, status := b.Snapshot()
		if status[0].State.Level != plan.Unknown || status[0].State.Err == nil {
			t.Errorf("state %+v", status[0].State)
		}
		time.Sleep(firstRestart)
		b.say(0, required("a"))
		b.expect("it runs again", plan.Required, "a", "b")
		for range 10 {
			b.say(0, boom)
			time.Sleep(lastRestart)
			synctest.Wait()
		}
		if runs := b.sources[0].runs; runs != 12 {
			t.Errorf("%d runs after 11 panics", runs)
		}
		began := time.Now()
		for range 3 {
			b.sources[0].say <- boom
		}
		if waited := time.Since(began); waited < 90*time.Second {
			t.Errorf("a source that keeps failing was run again within %v", waited)
		}
	})
}

func TestWaitFirstEndsWithTheFirstReportsOrAfterFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		NewSet(nil, nil, settle, nil).WaitFirst(t.Context())
		b := newBench(t, nil, "file:/a", "file:/b")
		b.say(0, idle)
		b.WaitFirst(t.Context())
		if waited := time.Since(began); waited != firstReads {
			t.Errorf("waited %v for a source that says nothing", waited)
		}
		b.say(1, broken)
		b.WaitFirst(t.Context())
		if waited := time.Since(began); waited != firstReads {
			t.Errorf("waited %v after both spoke", waited-firstReads)
		}
	})
}

func TestAServiceThatLeavesWhileItRequiresARebootIsUnknownForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v view
		if s, _ := v.judge(State{}, errAbsent); s.Level != plan.NotRequired || s.Note != "service absent" {
			t.Errorf("absent from the start: %+v", s)
		}
		v.judge(required("a"), nil)
		s, wait := v.judge(State{}, errAbsent)
		if s.Level != plan.Unknown || wait != absentGrace {
			t.Errorf("just left: %+v, again in %v", s, wait)
		}
		time.Sleep(absentGrace)
		if s, _ = v.judge(State{}, errAbsent); s.Level != plan.NotRequired {
			t.Errorf("gone for good: %+v", s)
		}
		v.judge(required("a"), nil)
		time.Sleep(absentGrace)
		if s, _ = v.judge(State{}, errAbsent); s.Level != plan.Unknown {
			t.Errorf("left again: %+v", s)
		}
	})
}
