// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/agent"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// GiganticMinecraft/seichi_infra#5459: one chronic alert held all nodes back for two days, and nobody saw for how long.
func TestBlockedSinceLastsAsLongAsAnythingHoldsTheNodeBack(t *testing.T) {
	n := news{p: &parts{agent: &agent.Agent{}}}
	began := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		after   time.Duration
		o       plan.Observed
		blocked []string
		since   time.Duration // after the beginning; negative: not blocked
	}{
		{0, plan.Observed{Need: plan.Required, Window: plan.Window{Open: true}, Gates: []string{"Chronic"}}, []string{"gate: Chronic"}, 0},
		{24 * time.Hour, plan.Observed{Need: plan.Required, Window: plan.Window{}, Gates: []string{"Chronic"}},
			[]string{"outside the maintenance windows", "gate: Chronic"}, 0},
		{48 * time.Hour, plan.Observed{Need: plan.Required, Window: plan.Window{Open: true}, Inhibitors: []string{"apt"}},
			[]string{"apt"}, 0},
		{49 * time.Hour, plan.Observed{Need: plan.Required, Window: plan.Window{Open: true}}, nil, -1},
		{50 * time.Hour, plan.Observed{Need: plan.Required, Window: plan.Window{Open: true}, Gates: []string{"Other"}},
			[]string{"gate: Other"}, 50 * time.Hour},
		{51 * time.Hour, plan.Observed{Gates: []string{"Other"}}, nil, -1}, // the need is gone
	} {
		step.o.Now = began.Add(step.after)
		got := n.blocked(step.o)
		if !slices.Equal(got, step.blocked) {
			t.Errorf("after %s: blocked by %q, want %q", step.after, got, step.blocked)
		}
		if step.since < 0 != n.blockedSince.IsZero() || step.since >= 0 && !n.blockedSince.Equal(began.Add(step.since)) {
			t.Errorf("after %s: blocked since %s, want %s after the beginning", step.after, n.blockedSince, step.since)
		}
	}
}
