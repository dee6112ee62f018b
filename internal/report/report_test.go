// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kured-agent/kured-agent/internal/plan"
)

var night = time.Date(2026, time.March, 3, 3, 0, 0, 0, time.FixedZone("CET", 3600))

// full has every field set.
func full() Update {
	return Update{
		Node: "node-1", NodeUID: "6c3d3f0e-0000-4000-8000-000000000001", Version: "1.0.0",
		Phase: plan.Draining.String(), Why: `2 pods left: PodDisruptionBudget default/web allows no disruption`,
		Since: night.Add(-4 * time.Minute), Until: night.Add(30 * time.Second),
		Level: plan.Required,
		Reasons: []plan.Reason{
			{Source: "file:/run/reboot-required", ID: "linux-image-6.12.48-amd64", Text: "package linux-image-6.12.48-amd64",
				Kind: plan.KindFull},
			{Source: "request", ID: "libc6", Kind: plan.KindSoft},
		},
		Sources: []SourceStatus{
			{Name: "file:/run/reboot-required", Type: "file", Level: plan.Required, Since: night.Add(-time.Hour)},
			{Name: "request", Type: "request", Level: plan.Required, Since: night.Add(-time.Hour)},
			{Name: "update-engine", Type: "update-engine", Level: plan.NotRequired, Note: "service absent",
				Since: night.Add(-48 * time.Hour)},
			{Name: "vendor", Type: "dbus-property", Level: plan.Unknown, Err: "no answer within 10s",
				Since: night.Add(-9 * time.Minute)},
		},
		API: APIRead, Tainted: true, Cordoned: true,
		Slot: "slot-default-0", SlotSince: night.Add(-5 * time.Minute), SlotHolders: "slot-default-1 is held by node-2",
		Window: plan.Window{Open: true, Closes: night.Add(2 * time.Hour)},
		Blocked: []Blocker{
			{"gate", "gate: ALERTS has 1 result", night.Add(-time.Minute)}, {"gate", "gate: a pod", night.Add(-time.Minute)},
			{"window", "outside the maintenance windows", night.Add(-2 * time.Minute)},
		},
		Beside: []string{"zincati reboots this host by itself"}, Scheduled: "reboot at 03:00",

		LastReboot: &plan.LastReboot{Moment: plan.Moment{At: night.Add(-21 * 24 * time.Hour)},
			Reasons: []plan.Reason{{Source: "request", ID: "dbus", Kind: plan.KindFull}}},
		Failure: &plan.Failure{Moment: plan.Moment{At: night.Add(-90 * time.Minute)}, Count: 2,
			Why: "draining took longer than timeout = 20m0s"},
		Unhealthy: "the kubelet is not Ready", NotHelped: true, BootUnitWorks: true,
		Credential: &Credential{
			Kind: "token", Issued: night.Add(-20 * 24 * time.Hour), Expires: night.Add(10 * 24 * time.Hour),
			Due: night.Add(-5 * 24 * time.Hour), Renewed: true, Note: "a note",
			Trouble: "renewing the credential: refused by an admission policy",
		},
		Dropped: 3, Requests: 11, NodeWrites: 2, Renewals: 4, RenewalFailures: 5,
	}
}

type recorder struct{ before, after []Update }

func (r *recorder) Take(before, after Update) {
	r.before, r.after = append(r.before, before), append(r.after, after)
}
func (r *recorder) Run(context.Context) {}

func TestOnlyChangesReachTheSinks(t *testing.T) {
	t.Parallel()
	seen := &recorder{}
	r := New("node-1", "1.0.0")
	r.Add(seen)
	if got := r.Latest(); got.Phase != "Starting" || got.Level != plan.Unknown || got.Node != "node-1" {
		t.Errorf("before the first update: %+v", got)
	}

	u := full()
	r.Update(u)
	u.Requests, u.Dropped, u.NodeWrites, u.Renewals, u.RenewalFailures = 99, 98, 97, 96, 95
	u.Since = u.Since.UTC() // the same instant
	u.Until = u.Until.Add(7 * time.Millisecond)
	u.Reasons = append([]plan.Reason(nil), u.Reasons...)
	r.Update(u)
	u.Why = "1 pod left"
	r.Update(u)

	if len(seen.after) != 2 || seen.before[0].Phase != "" || seen.after[1].Why != "1 pod left" {
		t.Errorf("sinks saw %+v", seen)
	}
	if got := r.Latest(); got.Requests != 99 || got.Dropped != 98 || got.NodeWrites != 97 || got.Renewals != 96 ||
		got.RenewalFailures != 95 {
		t.Errorf("counters of the newest update: %+v", got)
	}
}

func TestAnUpdateSharesNothingWithTheLoop(t *testing.T) {
	t.Parallel()
	u := full()
	r := New("", "")
	r.Update(u)
	u.Reasons[0].ID, u.Sources[0].Name, u.Blocked[0].Why, u.LastReboot.Reasons[0].ID, u.Failure.Why = "x", "x", "x", "x", "x"
	if diff := cmp.Diff(full().bounded(), r.Latest()); diff != "" {
		t.Error(diff)
	}
}

func TestValuesFromOutsideAreBoundedAndPrintable(t *testing.T) {
	t.Parallel()
	evil := "\x1b[2Ja\nb\x00\xff\u202e" + strings.Repeat("ü", 1<<20)
	u := full()
	u.Why, u.Node = evil, evil
	u.Until = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 1000 {
		u.Reasons = append(u.Reasons, plan.Reason{Source: evil, ID: evil, Text: evil})
		u.Sources = append(u.Sources, SourceStatus{Name: evil, Note: evil, Err: evil})
		u.Blocked = append(u.Blocked, Blocker{Kind: evil, Why: evil})
	}
	u = u.bounded()
	if len(u.Why) > maxWhy || len(u.Node) > maxName || !utf8.ValidString(u.Why) ||
		strings.ContainsAny(u.Why, "\x1b\x00\n\u202e") {
		t.Errorf("why: %q", u.Why)
	}
	if !strings.HasPrefix(u.Why, "[2Ja b   ü") || !strings.HasSuffix(u.Why, "ü…") {
		t.Errorf("why begins or ends wrongly: %q … %q", u.Why[:12], u.Why[len(u.Why)-8:])
	}
	if len(u.Reasons) != plan.MaxReasons || len(u.Sources) != maxSources || len(u.Blocked) != maxBlocked ||
		!u.Until.IsZero() {
		t.Errorf("%d reasons, %d sources, %d blockers, until %v", len(u.Reasons), len(u.Sources), len(u.Blocked), u.Until)
	}
	document, err := json.Marshal(u)
	if err != nil || len(document) > maxDocument {
		t.Errorf("the largest document has %d bytes, %v", len(document), err)
	}
}

func TestTheJSONDocumentKeepsEverything(t *testing.T) {
	t.Parallel()
	for name, u := range map[string]Update{"full": full(), "empty": {}} {
		u = u.bounded()
		document, err := json.Marshal(u)
		if err != nil {
			t.Fatal(name, err)
		}
		var back Update
		if err := json.Unmarshal(document, &back); err != nil {
			t.Fatal(name, err)
		}
		if diff := cmp.Diff(u, back); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if document, _ := json.Marshal(full().bounded()); !strings.Contains(string(document), `"required":"required"`) ||
		!strings.Contains(string(document), `"kind":"full"`) ||
		!strings.Contains(string(document), `"since":"2026-03-03T01:56:00Z"`) {
		t.Errorf("levels, kinds and times should be words: %s", document)
	}
}

func TestAnUpdateNeverWaitsForASink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logger := slog.New(slog.DiscardHandler)
		hang := func(ctx context.Context, _ Event) error { <-ctx.Done(); return ctx.Err() }
		n := &Notifier{couriers: []*courier{newCourier("slow", logger, hang, time.Second, 5*time.Second)}}
		ctx, cancel := context.WithCancel(t.Context())
		r := New("node-1", "1")
		r.Add(n, NewSystemd(), NewMetrics(MetricsOptions{Latest: r.Latest, Logger: logger}))
		ended := make(chan struct{})
		go func() { r.Run(ctx); close(ended) }()

		began := time.Now()
		for i := range 100 {
			r.Update(Update{Node: "node-1", Phase: "Waiting", Level: plan.Level(i % 2)})
			if i == 1 {
				synctest.Wait() // the first event is under way
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("100 updates took %v", took)
		}
		synctest.Wait()
		cancel()
		<-ended
		if took := time.Since(began); took > farewell {
			t.Errorf("the end took %v", took)
		}
		if got := n.couriers[0].dropped.Load(); got != 50-1-maxQueue {
			t.Errorf("%d dropped", got)
		}
	})
}

func TestTheJournalGetsOneLinePerPhasePerBrokenSourceAndPerTroubleOfTheCredential(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	r := New("node-1", "1")
	r.Add(NewLog(untimed(&b)))
	u := Update{Node: "node-1", Phase: "Draining", Why: "5 pods left", Level: plan.Required}
	for _, change := range []func(){
		func() {},
		func() { u.Why = "4 pods left" },
		func() { u.Sources = []SourceStatus{{Name: "vendor", Level: plan.Unknown, Err: "hung up"}} },
		func() { u.Why = "3 pods left" },
		func() { u.Sources[0].Err = "" },
		func() { u.Credential = &Credential{Kind: "token", Trouble: "the token expired"} },
		func() { u.Credential = &Credential{Kind: "token"} },
		func() { u.Phase, u.Why = "GivingUp", "slot was taken away" },
	} {
		change()
		r.Update(u)
	}
	want := `level=INFO msg=phase phase=Draining why="5 pods left" reboot=required
level=WARN msg="source can't be read" source=vendor level=unknown err="hung up"
level=INFO msg="source can be read again" source=vendor level=unknown
level=WARN msg=credential trouble="the token expired"
level=INFO msg="credential is fine again"
level=WARN msg=phase phase=GivingUp why="slot was taken away" reboot=required
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

// untimed logs to w without the time.
func untimed(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}
