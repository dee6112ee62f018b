// SPDX-License-Identifier: Apache-2.0

package report

import (
	"reflect"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/text"
)

// Values of Update.API.
const (
	APIUnneeded = "unneeded" // nothing to ask, so nothing of ours is outstanding
	APIAway     = "away"     // asked and not answered: Tainted, Cordoned and Slot are not known
	APIRead     = "read"     // they are the API server's answer
)

// Update is everything people may want to know about the agent at one moment. Times are wall clock, zero if not known.
type Update struct {
	Node    string
	NodeUID string
	Version string

	Phase string // of plan.Phase
	Why   string
	Since time.Time // of the phase
	Until time.Time // when time alone may change it

	Level   plan.Level
	Reasons []plan.Reason
	Sources []SourceStatus

	API         string // APIUnneeded, APIAway or APIRead
	Tainted     bool
	Cordoned    bool   // by us
	Slot        string // ours, or empty
	SlotSince   time.Time
	SlotHolders string // who holds the slots, as the last look at the lock told

	Window    plan.Window
	Blocked   []Blocker // what holds this node back
	Scheduled string    // a shutdown that somebody scheduled, ready to print
	Beside    []string  // programs that reboot this host by themselves, ready to print

	LastReboot    *plan.LastReboot
	Failure       *plan.Failure
	Unhealthy     string // what is missing; only once the boot deadline has passed
	NotHelped     bool   // the same reasons are still there after the reboot
	BootUnitWorks bool   // kured-agent-boot.service does the return: that process tells about it

	Credential *Credential // nil: not known

	Dropped    uint64 // D-Bus signals whose sender was not the owner of the name
	Requests   int64  // to the API server
	NodeWrites int64
	Renewals   uint64 // of the credential
	// RenewalFailures counts the tries that failed.
	RenewalFailures uint64
}

// Credential is what is known of what the agent shows the API server.
type Credential struct {
	Kind    string    // e.g. "token"
	Issued  time.Time // by the API server's clock, as all of these
	Expires time.Time // zero: never, or not known
	Due     time.Time // of the renewal; zero: not by the agent
	Renewed bool      // the agent got it itself, when it was issued
	Note    string    // why the agent does not renew it
	Trouble string    // with what repairs it; empty: none
}

// Blocker is one thing that holds the node back.
type Blocker struct {
	Kind  string    // of plan.Blocker
	Why   string    // ready to print
	Since time.Time // of the kind
}

// blockedBy lists what holds the node back, ready to print.
func (u Update) blockedBy() []string {
	var all []string
	for _, b := range u.Blocked {
		all = append(all, b.Why)
	}
	return all
}

// blockedSince is since when anything has held the node back without a break, as far as the blockers of now tell.
func (u Update) blockedSince() time.Time {
	var first time.Time
	for _, b := range u.Blocked {
		if first.IsZero() || !b.Since.IsZero() && b.Since.Before(first) {
			first = b.Since
		}
	}
	return first
}

// SourceStatus is one source of reboot requirements.
type SourceStatus struct {
	Name  string
	Type  string
	Level plan.Level
	Note  string // e.g. "service absent"
	Err   string // why it can't be read
	Since time.Time
}

// Bounds. What comes from the bus, the API server and files ends up in terminals, D-Bus messages and webhooks.
const (
	maxName    = 253
	maxText    = 512
	maxWhy     = 2048
	maxSources = 64
	maxBlocked = 16
)

// bounded returns a copy that shares nothing with u, holds only printable UTF-8 and no more than the bounds. D-Bus
// rejects a message with invalid UTF-8, and control characters would drive the terminal of whoever asks for the status.
func (u Update) bounded() Update {
	u.Node = text.Line(u.Node, maxName)
	u.NodeUID = text.Line(u.NodeUID, 64)
	u.Version = text.Line(u.Version, 64)
	u.Phase = text.Line(u.Phase, 32)
	u.Why = text.Line(u.Why, maxWhy)
	u.Since, u.Until = instant(u.Since), instant(u.Until)
	u.Reasons = cleanReasons(u.Reasons)
	u.Sources = cleanSources(u.Sources)
	u.API = text.Line(u.API, 16)
	u.Slot = text.Line(u.Slot, maxName)
	u.SlotSince = instant(u.SlotSince)
	u.SlotHolders = text.Line(u.SlotHolders, maxText)
	u.Window.Opens, u.Window.Closes = instant(u.Window.Opens), instant(u.Window.Closes)
	u.Blocked = cleanBlockers(u.Blocked)
	u.Scheduled = text.Line(u.Scheduled, maxText)
	u.Beside = cleanTexts(u.Beside)
	u.Unhealthy = text.Line(u.Unhealthy, maxText)
	if c := u.Credential; c != nil {
		u.Credential = &Credential{
			Kind: text.Line(c.Kind, 32), Issued: instant(c.Issued), Expires: instant(c.Expires), Due: instant(c.Due),
			Renewed: c.Renewed, Note: text.Line(c.Note, maxText), Trouble: text.Line(c.Trouble, maxWhy),
		}
	}
	if l := u.LastReboot; l != nil {
		u.LastReboot = &plan.LastReboot{Moment: plan.Moment{At: instant(l.At)}, Reasons: cleanReasons(l.Reasons)}
	}
	if f := u.Failure; f != nil {
		u.Failure = &plan.Failure{Moment: plan.Moment{At: instant(f.At)}, Count: f.Count, Why: text.Line(f.Why, maxWhy)}
	}
	return u
}

// sameAs says whether u tells people nothing that v does not. Counters alone are no news.
func (u Update) sameAs(v Update) bool {
	u.Dropped, u.Requests, u.NodeWrites = v.Dropped, v.Requests, v.NodeWrites
	u.Renewals, u.RenewalFailures = v.Renewals, v.RenewalFailures
	return reflect.DeepEqual(u, v)
}

// steady keeps the times that are computed from a distance to now: they jitter with every pass of the loop, which would
// make each pass news.
func (u *Update) steady(before Update) {
	keep := func(now *time.Time, was time.Time) {
		if !now.IsZero() && !was.IsZero() && now.Sub(was).Abs() < time.Second {
			*now = was
		}
	}
	keep(&u.Until, before.Until)
	keep(&u.SlotSince, before.SlotSince)
}

// credentialTrouble is empty when none is known.
func (u Update) credentialTrouble() string {
	if u.Credential == nil {
		return ""
	}
	return u.Credential.Trouble
}

// broken lists the sources that can't be read.
func (u Update) broken() []SourceStatus {
	var all []SourceStatus
	for _, s := range u.Sources {
		if s.Err != "" {
			all = append(all, s)
		}
	}
	return all
}

func cleanTexts(texts []string) []string {
	var all []string
	for _, t := range texts[:min(len(texts), maxBlocked)] {
		all = append(all, text.Line(t, maxText))
	}
	return all
}

func cleanBlockers(blockers []Blocker) []Blocker {
	var all []Blocker
	for _, b := range blockers[:min(len(blockers), maxBlocked)] {
		all = append(all, Blocker{text.Line(b.Kind, 32), text.Line(b.Why, maxText), instant(b.Since)})
	}
	return all
}

func cleanReasons(reasons []plan.Reason) []plan.Reason {
	var all []plan.Reason
	for _, r := range reasons[:min(len(reasons), plan.MaxReasons)] {
		all = append(all, plan.Reason{
			Source: text.Line(r.Source, maxName),
			ID:     text.Line(r.ID, plan.MaxReasonID),
			Text:   text.Line(r.Text, plan.MaxReasonText),
			Kind:   r.Kind,
		})
	}
	return all
}

func cleanSources(sources []SourceStatus) []SourceStatus {
	var all []SourceStatus
	for _, s := range sources[:min(len(sources), maxSources)] {
		all = append(all, SourceStatus{
			Name:  text.Line(s.Name, maxName),
			Type:  text.Line(s.Type, 64),
			Level: s.Level,
			Note:  text.Line(s.Note, maxText),
			Err:   text.Line(s.Err, maxText),
			Since: instant(s.Since),
		})
	}
	return all
}

// instant makes times comparable and keeps them within what JSON can say, whatever the hardware clock claims.
func instant(t time.Time) time.Time {
	t = t.Round(0).UTC()
	if t.IsZero() || t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}
