// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/kured-agent/kured-agent/internal/plan"
)

func TestWithoutABusASoftRebootThatTheRecordKnowsHasBeen(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "nobody"))
	const id = "b0a2c4d6-0000-4000-8000-000000000001"
	for recorded, want := range map[string]string{
		"": id, id: id, id + ".2": id + ".2", "c0a2c4d6-0000-4000-8000-000000000001.2": id,
	} {
		o := &options{root: t.TempDir(), state: "/state", run: "/run"}
		dir := filepath.Join(o.root, "proc/sys/kernel/random")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "boot_id"), []byte(id+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(o.root, o.state), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := o.host().UpdateRecord(func(r *plan.Record) { r.Boot = recorded }); err != nil {
			t.Fatal(err)
		}
		if got, err := o.thisBoot(t.Context(), slog.New(slog.DiscardHandler)); got.id != want || err != nil {
			t.Errorf("record of %q: %q, %v, want %q", recorded, got.id, err, want)
		}
	}
}
