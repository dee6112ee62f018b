// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

func tree(t *testing.T, files map[string]string) Host {
	t.Helper()
	h := Host{Root: t.TempDir(), State: "/var/lib/kured-agent", Run: "/run/kured-agent"}
	for _, dir := range []string{h.State, h.Run} {
		if err := os.MkdirAll(h.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(h.path(name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestTheIDsOfTheBootAndTheMachineAreRead(t *testing.T) {
	t.Parallel()
	const boot, machine = "3b241101-e2bb-4255-8caf-4136c566a962", "0123456789abcdef0123456789abcdef"
	h := tree(t, map[string]string{"/proc/sys/kernel/random/boot_id": boot + "\n", "/etc/machine-id": machine + "\n"})
	if got, err := h.BootID(); got != boot || err != nil {
		t.Errorf("boot id %q, %v", got, err)
	}
	if got, err := h.MachineID(); got != machine || err != nil {
		t.Errorf("machine id %q, %v", got, err)
	}
}

func TestAMalformedIDIsAnError(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "uninitialized\n", strings.Repeat("g", 32), strings.Repeat("a", 31),
		strings.Repeat("a", 4096)} {
		h := tree(t, map[string]string{"/etc/machine-id": content})
		if got, err := h.MachineID(); err == nil {
			t.Errorf("%.40q gave %q", content, got)
		}
	}
}

func TestTheRecordComesBackAsWritten(t *testing.T) {
	t.Parallel()
	h := tree(t, nil)
	want := plan.Record{
		Boot: "b", NodeUID: "u", Marked: true, Slot: &plan.SlotRef{Name: "slot-default-0", UID: "l", Taken: time.Minute},
		Asked:   &plan.Asked{At: time.Hour, Reasons: []plan.Reason{{Source: "file", ID: "kernel", Kind: plan.KindFull}}},
		Last:    &plan.LastReboot{Moment: plan.Moment{At: time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC), Boot: "a", Up: 1}},
		Failure: &plan.Failure{Moment: plan.Moment{At: time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)}, Count: 2, Why: "because"},
	}
	for range 2 {
		if err := h.UpdateRecord(func(r *plan.Record) { *r = want }); err != nil {
			t.Fatal(err)
		}
	}
	got, err := h.ReadRecord()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	left, _ := filepath.Glob(h.path(h.State) + "/.*")
	if len(left) > 0 {
		t.Errorf("temporary files are left: %q", left)
	}
}

func TestNoRecordIsAnEmptyOne(t *testing.T) {
	t.Parallel()
	if got, err := tree(t, nil).ReadRecord(); err != nil || !reflect.DeepEqual(got, plan.Record{}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// One failed read must not look like an empty record, and must not replace the good one.
func TestARecordThatCannotBeReadIsAnErrorAndStays(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "{", `{"marked":"no"}`, `[]`, strings.Repeat(" ", recordBound+1)} {
		h := tree(t, map[string]string{"/var/lib/kured-agent/record.json": content})
		if got, err := h.ReadRecord(); err == nil {
			t.Errorf("%.20q gave %+v", content, got)
		}
		if err := h.UpdateRecord(func(r *plan.Record) { r.Marked = true }); err == nil {
			t.Errorf("%.20q was updated", content)
		}
		if got, err := os.ReadFile(h.recordPath()); err != nil || string(got) != content {
			t.Errorf("%.20q became %.20q, %v", content, got, err)
		}
	}
}

func TestABrokenRecordIsSetAsideAndMeansThatAnythingMayBeOutstanding(t *testing.T) {
	t.Parallel()
	h := tree(t, map[string]string{"/var/lib/kured-agent/record.json": "{broken"})
	if _, err := h.ReadRecord(); !errors.Is(err, ErrBroken) {
		t.Errorf("got %v", err)
	}
	got, err := h.SetAside()
	if err != nil || !got.Marked {
		t.Errorf("got %+v, %v", got, err)
	}
	if again, err := h.ReadRecord(); err != nil || !reflect.DeepEqual(again, got) {
		t.Errorf("read back %+v, %v", again, err)
	}
	if kept, err := os.ReadFile(h.recordPath() + ".broken"); err != nil || string(kept) != "{broken" {
		t.Errorf("kept %q, %v", kept, err)
	}
}

func TestTwoProcessesLoseNoUpdate(t *testing.T) {
	t.Parallel()
	h := tree(t, nil)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 25 {
				err := h.UpdateRecord(func(r *plan.Record) {
					if r.Failure == nil {
						r.Failure = &plan.Failure{}
					}
					r.Failure.Count++
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if r, err := h.ReadRecord(); err != nil || r.Failure.Count != 200 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func FuzzTheRecordNeverPanics(f *testing.F) {
	f.Add([]byte(`{"marked":true,"asked":{"at":-1},"failure":{"count":-9}}`))
	dir := f.TempDir()
	h := Host{Root: dir, State: "/"}
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, recordName), content, 0o600); err != nil {
			t.Fatal(err)
		}
		record, err := h.ReadRecord()
		if err != nil {
			return
		}
		plan.Next(plan.Policy{}, plan.Observed{Need: plan.Required, Record: record, API: plan.APIRead})
	})
}

func TestASecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	h := tree(t, nil)
	unlock, err := h.Lock("agent.lock")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Lock("agent.lock"); !errors.Is(err, ErrLocked) {
		t.Errorf("the second lock gave %v", err)
	}
	unlock()
	again, err := h.Lock("agent.lock")
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// What root writes belongs to the owner of the directory, or the service could not read it again.
func TestWhatRootWritesBelongsToTheService(t *testing.T) {
	t.Parallel()
	h := tree(t, nil)
	const uid = 12345
	if os.Geteuid() != 0 {
		t.Log("not root: files have one possible owner")
		return
	}
	for _, dir := range []string{h.State, h.Run} {
		if err := os.Chown(h.path(dir), uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	unlock, err := h.Lock("agent.lock")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := h.UpdateRecord(func(*plan.Record) {}); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{h.State + "/record.json", h.Run + "/agent.lock"} {
		info, err := os.Stat(h.path(file))
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != uid {
			t.Errorf("%s belongs to %d", file, owner)
		}
	}
}

func TestUptimeRuns(t *testing.T) {
	t.Parallel()
	first := Uptime()
	if second := Uptime(); first <= 0 || second < first {
		t.Errorf("uptime went from %s to %s", first, second)
	}
}

// Whoever can write the record could have the agent believe that nothing is outstanding, or that it was told to wait.
func TestARecordThatOthersCanWriteSaysNothing(t *testing.T) {
	t.Parallel()
	h := tree(t, map[string]string{"/var/lib/kured-agent/record.json": `{"boot":"b"}`})
	if err := os.Chmod(h.recordPath(), 0o666); err != nil {
		t.Fatal(err)
	}
	if got, err := h.ReadRecord(); err == nil || errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "chmod 0644") {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestAGroupIsFoundByItsName(t *testing.T) {
	h := Host{Root: t.TempDir()}
	if _, err := h.GroupID("kured-agent"); err == nil {
		t.Error("no error without a file")
	}
	if err := os.Mkdir(h.path("/etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	groups := "root:x:0:\nkured-agent-x:x:7:\n#kured-agent:x:8:\nbroken\nkured-agent:x:997:a,b\nodd:x:many:\n"
	if err := os.WriteFile(h.path("/etc/group"), []byte(groups), 0o600); err != nil {
		t.Fatal(err)
	}
	if id, err := h.GroupID("kured-agent"); err != nil || id != 997 {
		t.Errorf("%d, %v", id, err)
	}
	if err := os.MkdirAll(h.path("/usr/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.path("/usr/lib/group"), []byte("kured-agent:x:1:\nimage:x:998:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"kured-agent": 997, "image": 998} {
		if id, err := h.GroupID(name); err != nil || id != want {
			t.Errorf("%q: %d, %v", name, id, err)
		}
	}
	for name, want := range map[string]string{"kured": "not in /etc/group", "odd": `"many" is no number`} {
		if _, err := h.GroupID(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
