// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// document is the form of an Update in `kured-agent status --json` and in the property Json. Scripts read it: keys are
// added, never renamed.
type document struct {
	Node          string            `json:"node"`
	NodeUID       string            `json:"nodeUID,omitempty"`
	Version       string            `json:"version"`
	Phase         string            `json:"phase"`
	Why           string            `json:"why"`
	Since         time.Time         `json:"since,omitzero"`
	Until         time.Time         `json:"until,omitzero"`
	Required      string            `json:"required"` // required, not-required, unknown
	Reasons       []reasonDocument  `json:"reasons,omitempty"`
	Sources       []sourceDocument  `json:"sources,omitempty"`
	API           string            `json:"api"`
	Tainted       bool              `json:"tainted"`
	Cordoned      bool              `json:"cordoned"`
	Slot          string            `json:"slot,omitempty"`
	SlotSince     time.Time         `json:"slotSince,omitzero"`
	SlotHolders   string            `json:"slotHolders,omitempty"`
	Window        windowDocument    `json:"window"`
	Blocked       []string          `json:"blocked,omitempty"`
	BlockedSince  time.Time         `json:"blockedSince,omitzero"`
	Blockers      []blockerDocument `json:"blockers,omitempty"` // the same with kind and time
	Scheduled     string            `json:"scheduledShutdown,omitempty"`
	Beside        []string          `json:"beside,omitempty"`
	LastReboot    *lastDocument     `json:"lastReboot,omitempty"`
	Failure       *plan.Failure     `json:"failure,omitempty"`
	Unhealthy     string            `json:"unhealthy,omitempty"`
	NotHelped     bool              `json:"notHelped,omitempty"`
	BootUnitWorks bool              `json:"bootUnitWorks,omitempty"`
	Credential    *credential       `json:"credential,omitempty"`
	Dropped       uint64            `json:"droppedSignals"`
	Requests      int64             `json:"apiRequests"`
	NodeWrites    int64             `json:"nodeWrites"`
	Renewals      uint64            `json:"renewals,omitempty"`
	NotRenewed    uint64            `json:"renewalFailures,omitempty"`
}

type credential struct {
	Kind    string    `json:"kind"`
	Issued  time.Time `json:"issued,omitzero"`
	Expires time.Time `json:"expires,omitzero"`
	Due     time.Time `json:"renewalDue,omitzero"`
	Renewed bool      `json:"renewed,omitempty"`
	Note    string    `json:"note,omitempty"`
	Trouble string    `json:"trouble,omitempty"`
}

type blockerDocument struct {
	Kind  string    `json:"kind"`
	Why   string    `json:"why"`
	Since time.Time `json:"since,omitzero"`
}

type reasonDocument struct {
	Source string `json:"source"`
	ID     string `json:"id"`
	Text   string `json:"text,omitempty"`
	Kind   string `json:"kind,omitempty"` // soft, kexec, full
}

type sourceDocument struct {
	Name     string    `json:"name"`
	Type     string    `json:"type"`
	Required string    `json:"required"`
	Note     string    `json:"note,omitempty"`
	Error    string    `json:"error,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

type windowDocument struct {
	Open   bool      `json:"open"`
	Opens  time.Time `json:"opens,omitzero"`
	Closes time.Time `json:"closes,omitzero"`
}

type lastDocument struct {
	At      time.Time        `json:"at"`
	Reasons []reasonDocument `json:"reasons,omitempty"`
}

// MarshalJSON writes levels and kinds as words.
func (u Update) MarshalJSON() ([]byte, error) {
	d := document{
		Node: u.Node, NodeUID: u.NodeUID, Version: u.Version,
		Phase: u.Phase, Why: u.Why, Since: u.Since, Until: u.Until,
		Required: u.Level.String(), Reasons: reasonDocuments(u.Reasons),
		API: u.API, Tainted: u.Tainted, Cordoned: u.Cordoned,
		Slot: u.Slot, SlotSince: u.SlotSince, SlotHolders: u.SlotHolders,
		Window:       windowDocument(u.Window),
		BlockedSince: u.blockedSince(), Scheduled: u.Scheduled, Beside: u.Beside,
		Failure: u.Failure, Unhealthy: u.Unhealthy, NotHelped: u.NotHelped, BootUnitWorks: u.BootUnitWorks,
		Credential: (*credential)(u.Credential),
		Dropped:    u.Dropped, Requests: u.Requests, NodeWrites: u.NodeWrites,
		Renewals: u.Renewals, NotRenewed: u.RenewalFailures,
	}
	d.Blocked = u.blockedBy()
	for _, b := range u.Blocked {
		d.Blockers = append(d.Blockers, blockerDocument(b))
	}
	for _, s := range u.Sources {
		d.Sources = append(d.Sources, sourceDocument{s.Name, s.Type, s.Level.String(), s.Note, s.Err, s.Since})
	}
	if l := u.LastReboot; l != nil {
		d.LastReboot = &lastDocument{l.At, reasonDocuments(l.Reasons)}
	}
	return json.Marshal(d)
}

// UnmarshalJSON reads what MarshalJSON of this or another version wrote; words it does not know are unknown.
func (u *Update) UnmarshalJSON(data []byte) error {
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return err
	}
	*u = Update{
		Node: d.Node, NodeUID: d.NodeUID, Version: d.Version,
		Phase: d.Phase, Why: d.Why, Since: d.Since, Until: d.Until,
		Level: levelOf(d.Required), Reasons: reasonsOf(d.Reasons),
		API: d.API, Tainted: d.Tainted, Cordoned: d.Cordoned,
		Slot: d.Slot, SlotSince: d.SlotSince, SlotHolders: d.SlotHolders,
		Window:    plan.Window(d.Window),
		Scheduled: d.Scheduled, Beside: d.Beside,
		Failure: d.Failure, Unhealthy: d.Unhealthy, NotHelped: d.NotHelped, BootUnitWorks: d.BootUnitWorks,
		Credential: (*Credential)(d.Credential),
		Dropped:    d.Dropped, Requests: d.Requests, NodeWrites: d.NodeWrites,
		Renewals: d.Renewals, RenewalFailures: d.NotRenewed,
	}
	for _, b := range d.Blockers {
		u.Blocked = append(u.Blocked, Blocker(b))
	}
	for _, s := range d.Sources {
		u.Sources = append(u.Sources, SourceStatus{s.Name, s.Type, levelOf(s.Required), s.Note, s.Error, s.Since})
	}
	if l := d.LastReboot; l != nil {
		u.LastReboot = &plan.LastReboot{Moment: plan.Moment{At: l.At}, Reasons: reasonsOf(l.Reasons)}
	}
	return nil
}

func reasonDocuments(reasons []plan.Reason) []reasonDocument {
	var all []reasonDocument
	for _, r := range reasons {
		all = append(all, reasonDocument{r.Source, r.ID, r.Text, r.Kind.String()})
	}
	return all
}

func reasonsOf(documents []reasonDocument) []plan.Reason {
	var all []plan.Reason
	for _, d := range documents {
		all = append(all, plan.Reason{Source: d.Source, ID: d.ID, Text: d.Text, Kind: kindOf(d.Kind)})
	}
	return all
}

func levelOf(word string) plan.Level {
	return named(word, plan.Unknown, plan.NotRequired, plan.Required)
}

func kindOf(word string) plan.Kind {
	return named(word, 0, plan.KindSoft, plan.KindKexec, plan.KindFull)
}

// named returns the value that prints as word, or none.
func named[T fmt.Stringer](word string, none T, values ...T) T {
	for _, v := range values {
		if v.String() == word {
			return v
		}
	}
	return none
}
