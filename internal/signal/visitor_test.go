// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
)

// guest is what a visitor asks: away unless started or present, and silent when broken.
type guest struct {
	present bool
	err     error // of an answer
	startup error // of a start; nil: it comes
	starts  int
}

func (g *guest) ask(start bool) (string, error) {
	if start {
		g.starts++
		if g.startup != nil {
			return "", g.startup
		}
		g.present = true
	}
	if !g.present {
		return "", errAbsent
	}
	return "here", g.err
}

func expectVisit(t *testing.T, v *visitor[string], g *guest, when, want string, away bool, starts int) {
	t.Helper()
	got, isAway, err := v.read(g.ask)
	if err != nil {
		got = err.Error()
	}
	if got != want || isAway != away || g.starts != starts {
		t.Errorf("%s: %q, away %v, %d starts; want %q, %v, %d", when, got, isAway, g.starts, want, away, starts)
	}
}

func TestAServiceThatWasHeardIsNotStartedWhenItLeaves(t *testing.T) {
	var v visitor[string]
	g := &guest{present: true}
	expectVisit(t, &v, g, "there", "here", false, 0)
	g.present = false
	expectVisit(t, &v, g, "away", "here", true, 0)
	g.present, g.err = true, errors.New("left while it was asked")
	expectVisit(t, &v, g, "leaving", "left while it was asked", false, 0)
	g.present, g.err = false, nil
	expectVisit(t, &v, g, "away again", "here", true, 0)
}

func TestAServiceThatComesAndGoesUnseenIsStartedAgain(t *testing.T) {
	for _, lost := range []error{bus.ErrNotConnected, bus.ErrLost} {
		var v visitor[string]
		g := &guest{}
		expectVisit(t, &v, g, "unknown", "here", false, 1)
		g.err = fmt.Errorf("calling: %w", lost)
		expectVisit(t, &v, g, "without a bus", "calling: "+lost.Error(), false, 1)
		g.present, g.err = false, nil
		expectVisit(t, &v, g, "the bus is back", "here", false, 2)
	}
}

func TestAServiceThatDoesNotStartIsStartedOnceInTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v visitor[string]
		g := &guest{startup: errors.New("timed out")}
		for round := range 3 {
			for range 20 {
				expectVisit(t, &v, g, "broken", "timed out", g.starts == round+1, round+1)
				time.Sleep(pollLevel / 20)
			}
		}
		g.startup = nil
		expectVisit(t, &v, g, "repaired", "here", false, 4)
	})
}
