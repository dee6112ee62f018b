// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/report"
)

// news turns what the loop observed and decided into what people are told.
type news struct {
	p            *parts
	phase        plan.Phase
	since        time.Time
	blockedSince map[string]time.Time // by kind of blocker
}

func (n *news) report(o plan.Observed, step plan.Step) {
	if n.since.IsZero() || step.Phase != n.phase {
		n.phase, n.since = step.Phase, o.Now
	}
	u := report.Update{
		Node: n.p.name, NodeUID: o.Node.UID, Version: version,
		Phase: step.Phase.String(), Why: step.Why, Since: n.since,
		Level: o.Need, Reasons: o.Reasons, API: apiWord(o.API),
		Tainted: o.Node.Tainted, Cordoned: o.Node.Unschedulable && o.Node.Marker != "",
		SlotHolders: o.Turn.Why, Window: o.Window, Blocked: n.blocked(o), Scheduled: o.Scheduled, Beside: o.Beside,
		LastReboot: o.Record.Last, Failure: o.Record.Failure, BootUnitWorks: o.BootUnitWorks,
	}
	n.p.count(&u)
	c, told := n.p.renewal.status()
	u.Credential = told
	if u.NodeUID == "" { // an idle agent has not read the Node; an Event about the credential names it all the same
		u.NodeUID = c.NodeUID
	}
	if step.Wake > o.Uptime {
		u.Until = o.Now.Add(step.Wake - o.Uptime)
	}
	if o.Slot.State == plan.SlotOurs {
		u.Slot = o.Slot.Name
		if o.Slot.Boot == o.Boot {
			u.SlotSince = o.Now.Add(o.Slot.Taken - o.Uptime)
		}
	}
	switch plan.Trouble(n.p.agent.Policy, o, step) {
	case plan.TroubleUnhealthy:
		u.Unhealthy = o.Health.Why
	case plan.TroubleNotHelped:
		u.NotHelped = true
	}
	if n.p.sources != nil {
		u.Sources = sourceStatus(n.p)
	}
	n.p.reporter.Update(u)
}

// count fills in what is counted as it happens, between two decisions too.
func (p *parts) count(u *report.Update) {
	u.Dropped, u.Requests, u.NodeWrites = p.bus.Dropped(), p.kube.Requests(), p.node.Writes()
	if p.pods != p.kube {
		u.Requests += p.pods.Requests()
	}
	u.Renewals, u.RenewalFailures = p.renewal.counts()
}

// latest is the newest update with the counters of this moment.
func (p *parts) latest() report.Update {
	u := p.reporter.Latest()
	p.count(&u)
	return u
}

// blocked lists what holds the node back, and keeps since when each kind of it has done so without a break.
func (n *news) blocked(o plan.Observed) []report.Blocker {
	before := n.blockedSince
	n.blockedSince = map[string]time.Time{}
	if o.Need != plan.Required {
		return nil
	}
	var all []report.Blocker
	for _, b := range plan.Blockers(n.p.agent.Policy, o) {
		since, ok := before[b.Kind]
		if !ok {
			since = o.Now
		}
		n.blockedSince[b.Kind] = since
		all = append(all, report.Blocker{Kind: b.Kind, Why: b.Why, Since: since})
	}
	return all
}

func sourceStatus(p *parts) []report.SourceStatus {
	_, _, statuses := p.sources.Snapshot()
	all := make([]report.SourceStatus, 0, len(statuses))
	for _, s := range statuses {
		status := report.SourceStatus{Name: s.Name, Type: s.Type, Level: s.State.Level, Note: s.State.Note, Since: s.Since}
		if s.State.Err != nil {
			status.Err = s.State.Err.Error()
		}
		all = append(all, status)
	}
	return all
}

func apiWord(a plan.API) string {
	switch a {
	case plan.APIRead:
		return report.APIRead
	case plan.APIAway:
		return report.APIAway
	case plan.APIUnneeded:
	}
	return report.APIUnneeded
}
