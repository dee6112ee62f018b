// SPDX-License-Identifier: Apache-2.0

package report

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kured-agent/kured-agent/internal/plan"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares with testdata/name; `go test ./internal/report -update` rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Error(diff)
	}
}

// draining is full() without what does not go with it.
func draining() Update {
	u := full()
	u.Unhealthy, u.NotHelped, u.BootUnitWorks, u.Blocked = "", false, false, nil
	u.Credential.Note, u.Credential.Trouble = "", ""
	return u
}

func TestStatusIsReadable(t *testing.T) {
	t.Parallel()
	open := plan.Window{Open: true}
	for name, u := range map[string]Update{
		"idle": {
			Node: "node-1", Version: "1.0.0", Phase: "Idle", Why: "no reboot is required", Since: night.Add(-50 * time.Hour),
			API: APIUnneeded, Window: open,
			Sources: []SourceStatus{
				{Name: "file:/run/reboot-required", Level: plan.NotRequired, Since: night},
				{Name: "request", Level: plan.NotRequired, Since: night},
			},
		},
		"draining": draining(),
		"blocked": {
			Node: "node-1", Version: "1.0.0", Phase: "Waiting",
			Why: "outside the maintenance windows, until Tue 2026-03-03 22:00:00 +0100; " +
				"held back by annotation kured-agent/hold: ask the database team",
			Since: night.Add(-6 * time.Hour), Until: night.Add(19 * time.Hour), Level: plan.Required,
			Reasons: []plan.Reason{{Source: "file:/run/reboot-required", ID: "linux-base", Kind: plan.KindFull}},
			Sources: []SourceStatus{{Name: "file:/run/reboot-required", Level: plan.Required, Since: night}},
			API:     APIRead, Tainted: true, Window: plan.Window{Opens: night.Add(19 * time.Hour)},
			Blocked: []Blocker{
				{"window", "outside the maintenance windows", night.Add(-6 * time.Hour)},
				{"hold", "held back by annotation kured-agent/hold: ask the database team", night.Add(-time.Hour)},
			},
			Beside:    []string{"locksmithd reboots this host by itself"},
			Scheduled: "reboot at 04:00",
		},
		"waiting-turn": {
			Node: "node-3", Version: "1.0.0", Phase: "WaitingTurn", Why: "slot-default-0 is held by node-2 since 02:51:10 +0100",
			Since: night.Add(-time.Minute), Until: night.Add(4 * time.Second), Level: plan.Required,
			Reasons: []plan.Reason{{Source: "request", ID: "libc6", Text: "libc6 was updated", Kind: plan.KindSoft}},
			Sources: []SourceStatus{{Name: "request", Level: plan.Required, Since: night}},
			API:     APIRead, Tainted: true, SlotHolders: "slot-default-0 is held by node-2 since 02:51:10 +0100", Window: open,
		},
		"unhealthy": {
			Node: "node-1", Version: "1.0.0", Phase: "Returning",
			Why: "NOT HEALTHY 22m10s after the boot: kubelet.service is failed; taint, cordon and slot stay until it is, " +
				"and the roll-out stops here",
			Since: night.Add(-22 * time.Minute), Level: plan.NotRequired, Unhealthy: "kubelet.service is failed",
			API: APIRead, Tainted: true, Cordoned: true, Slot: "slot-default-0",
			SlotSince: night.Add(-31 * time.Minute), Window: open,
		},
		"api-away": {
			Node: "node-1", Version: "1.0.0", Phase: "Unreachable",
			Why: `the API server can't be asked: Get "https://10.0.0.1:6443/api/v1/nodes/node-1": ` +
				`dial tcp 10.0.0.1:6443: connect: connection refused`,
			Since: night.Add(-40 * time.Second), Until: night.Add(20 * time.Second), Level: plan.Required,
			API: APIAway, Window: open,
			Reasons: []plan.Reason{{Source: "request", ID: "libc6", Kind: plan.KindFull}},
		},
		"not-helped": {
			Node: "node-1", Version: "1.0.0", Phase: "Waiting",
			Why:   "the reboot did not help: the same reasons are still there, until Wed 2026-03-04 02:00:00 +0100",
			Since: night.Add(-time.Hour), Until: night.Add(23 * time.Hour), Level: plan.Required, NotHelped: true, API: APIRead,
			Tainted: true, Window: open,
			Reasons:    []plan.Reason{{Source: "file:/run/reboot-required", ID: "linux-base", Kind: plan.KindFull}},
			LastReboot: &plan.LastReboot{Moment: plan.Moment{At: night.Add(-time.Hour)}, Reasons: []plan.Reason{{ID: "linux-base"}}},
		},
		"credential": {
			Node: "node-1", Version: "1.0.0", Phase: "Idle", Why: "no reboot is required", Since: night.Add(-50 * time.Hour),
			API: APIUnneeded, Window: open,
			Credential: &Credential{Kind: "token", Expires: night.Add(-time.Hour), Trouble: "the token expired on 2026-03-03 " +
				"02:00:00 +0100: enrol this node again: kubectl kured enroll node-1 | ssh node-1 sudo kured-agent enroll " +
				"--kubeconfig -"},
		},
		"certificate": {
			Node: "node-1", Version: "1.0.0", Phase: "Idle", Why: "no reboot is required", Since: night.Add(-50 * time.Hour),
			API: APIUnneeded, Window: open,
			Credential: &Credential{Kind: "client certificate", Expires: night.Add(200 * 24 * time.Hour),
				Note: "client certificates are renewed by who issues them"},
		},
		"starting": New("node-1", "1.0.0").Latest(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, "status-"+name+".txt", Text(u.bounded(), night))
		})
	}
}

func TestStatusOfAnAgentThatIsDownSaysWhatItCan(t *testing.T) {
	t.Parallel()
	const boot, old = "b2", "b1"
	for name, d := range map[string]Down{
		"clean": {Node: "node-1", Why: "kured-agent.service is inactive", Boot: boot},
		"outstanding": {Node: "node-1", Why: "kured-agent.service is failed", Boot: boot, Record: plan.Record{
			Boot: old, Marked: true, Slot: &plan.SlotRef{Name: "slot-default-0"}, Asked: &plan.Asked{},
			Reasons: []plan.Reason{{Source: "request", ID: "libc6", Kind: plan.KindFull}},
			Last:    &plan.LastReboot{Moment: plan.Moment{At: night.Add(-31 * 24 * time.Hour)}},
			Failure: &plan.Failure{Moment: plan.Moment{At: night.Add(-time.Hour)}, Count: 1,
				Why: "slot slot-default-0 was taken away from this node"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, "down-"+name+".txt", DownText(d, night))
		})
	}
}
