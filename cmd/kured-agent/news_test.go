// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/agent"
	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/report"
)

// GiganticMinecraft/seichi_infra#5459: one chronic alert held all nodes back for two days, and nobody saw for how long.
func TestBlockedSinceLastsAsLongAsTheSameKindOfThingHoldsTheNodeBack(t *testing.T) {
	n := news{p: &parts{agent: &agent.Agent{}}}
	began := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	block := func(kind, why string, since time.Duration) report.Blocker {
		return report.Blocker{Kind: kind, Why: why, Since: began.Add(since)}
	}
	open := plan.Window{Open: true}
	for _, step := range []struct {
		after time.Duration
		o     plan.Observed
		want  []report.Blocker
	}{
		{0, plan.Observed{Need: plan.Required, Window: open, Gates: []string{"Chronic"}},
			[]report.Blocker{block("gate", "gate: Chronic", 0)}},
		{24 * time.Hour, plan.Observed{Need: plan.Required, Gates: []string{"Chronic", "Another"}}, []report.Blocker{
			block("window", "outside the maintenance windows", 24*time.Hour), block("gate", "gate: Chronic", 0),
			block("gate", "gate: Another", 0)}},
		{48 * time.Hour, plan.Observed{Need: plan.Required, Window: open, Inhibitors: []string{"apt"}},
			[]report.Blocker{block("inhibitor", "apt", 48*time.Hour)}},
		{49 * time.Hour, plan.Observed{Need: plan.Required, Window: open}, nil},
		{50 * time.Hour, plan.Observed{Need: plan.Required, Window: open, Gates: []string{"Other"}},
			[]report.Blocker{block("gate", "gate: Other", 50*time.Hour)}},
		{51 * time.Hour, plan.Observed{Gates: []string{"Other"}}, nil}, // the need is gone
	} {
		step.o.Now = began.Add(step.after)
		if got := n.blocked(step.o); !slices.Equal(got, step.want) {
			t.Errorf("after %s: blocked by %+v, want %+v", step.after, got, step.want)
		}
	}
}
