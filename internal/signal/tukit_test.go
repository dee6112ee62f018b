// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const neededFile = "/run/" + levelFile

func TestTheLevelOfTransactionalUpdateIsThatOfItsFile(t *testing.T) {
	root := t.TempDir()
	write(t, root+neededFile, "soft-reboot")
	d := bustest.Start(t)
	b := startBus(t, d)
	p := start(t, Env{Bus: b, Root: root}, "tukit", nil)
	s := p.becomes("without tukitd", plan.Required)
	want := plan.Reason{Source: "tukit", ID: levelFile, Text: "transactional-update needs a soft reboot", Kind: plan.KindSoft}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	file := start(t, Env{Root: root}, "file", map[string]any{"path": neededFile})
	for _, content := range []string{"reboot", "none", "kexec", "", "soft-reboot"} {
		write(t, root+neededFile, content)
		f := file.shows(content, func(s State) bool { return s.Level == levelOf(content) && kindOf(s) == wantKind(content) })
		p.shows(content, func(s State) bool { return s.Level == f.Level && kindOf(s) == kindOf(f) })
	}
	remove(t, root+neededFile)
	file.becomes("removed", plan.NotRequired)
	p.becomes("removed", plan.NotRequired)
	if err := os.Mkdir(root+neededFile, 0o755); err != nil {
		t.Fatal(err)
	}
	p.becomes("a directory in its place", plan.Unknown)
}

func levelOf(content string) plan.Level {
	if _, needed := parseLevel(content); needed {
		return plan.Required
	}
	return plan.NotRequired
}

func wantKind(content string) plan.Kind {
	kind, _ := parseLevel(content)
	return kind
}

func kindOf(s State) plan.Kind {
	if len(s.Reasons) != 1 {
		return 0
	}
	return s.Reasons[0].Kind
}

func TestTheSnapshotIsNamedWhileTukitdIsThereAndChangesNoLevel(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/run/other", "")
	d := bustest.Start(t)
	tukitd := bustest.NewTukit(d)
	p := start(t, Env{Bus: startBus(t, d), Root: root}, "tukit", nil)
	if s := p.becomes("at start", plan.NotRequired); s.Note != "" {
		t.Errorf("note %q", s.Note)
	}
	tukitd.SetSnapshots("7", "8")
	tukitd.Open("8")
	tukitd.Executed("8", 0)
	s := p.shows("another snapshot is the next", func(s State) bool { return s.Note != "" })
	if s.Level != plan.NotRequired || s.Note != "snapshot 8 is the next one, and needs no reboot now" {
		t.Errorf("state %+v", s)
	}
	write(t, root+neededFile, "reboot")
	s = p.becomes("the file is written", plan.Required)
	if s.Reasons[0].Text != "snapshot 8 needs a reboot" || s.Reasons[0].ID != levelFile {
		t.Errorf("reasons %+v", s.Reasons)
	}
	tukitd.Disconnect()
	s = p.shows("tukitd left", func(s State) bool {
		return len(s.Reasons) == 1 && s.Reasons[0].Text == "transactional-update needs a reboot"
	})
	if s.Reasons[0].ID != levelFile {
		t.Errorf("another ID would pass the loop guard: %+v", s.Reasons)
	}
	tukitd.On("List", bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "no"))
	tukitd.Connect()
	s = p.shows("denied", func(s State) bool { return strings.Contains(s.Note, "the next snapshot is not known") })
	if s.Level != plan.Required {
		t.Errorf("state %+v", s)
	}
}

// transactional-update removes its file when it begins and writes it when it ends, minutes later.
func TestANeedIsNotTakenBackWhileTransactionalUpdateRuns(t *testing.T) {
	root := t.TempDir()
	write(t, root+neededFile, "reboot")
	p := start(t, Env{Bus: startBus(t, bustest.Start(t)), Root: root}, "tukit", nil)
	p.becomes("of an earlier run", plan.Required)
	lock := filepath.Join(root, tukitLock)
	write(t, lock, strconv.Itoa(os.Getpid())+"\n")
	remove(t, root+neededFile)
	p.becomes("it runs", plan.Unknown)
	write(t, lock, fmt.Sprintln(1<<22+1)) // no process can have this number
	p.becomes("it was killed", plan.NotRequired)
	write(t, lock, strconv.Itoa(os.Getpid())+"\n")
	write(t, root+neededFile, "reboot")
	p.becomes("it is about to end", plan.Unknown)
	remove(t, lock)
	p.becomes("it ended", plan.Required)
}

func TestOnlyALockOfALiveProcessSaysThatItRuns(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	if locked(lock) {
		t.Error("no lock")
	}
	for content, want := range map[string]bool{
		strconv.Itoa(os.Getpid()): true, "": false, "0": false, "-1": false, "x": false, "99999999999999999999": false,
	} {
		write(t, lock, content)
		if got := locked(lock); got != want {
			t.Errorf("locked with %q = %v", content, got)
		}
	}
}

func TestSignalsOfTukitAreOnlyHintsAndForgedOnesAreDropped(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/run/other", "")
	d := bustest.Start(t)
	tukitd := bustest.NewTukit(d)
	b := startBus(t, d)
	p := start(t, Env{Bus: b, Root: root}, "tukit", nil)
	p.becomes("at start", plan.NotRequired)
	for range 1000 {
		tukitd.Executed("8", 0)
	}
	tukitd.Emit("/org/opensuse/tukit", tukitIface+".Error")
	stranger := bustest.NewStranger(d)
	stranger.Forge("/org/opensuse/tukit", tukitIface+".TransactionOpened", "9")
	bustest.Eventually(t, "the forgery counted", func() bool { return b.Dropped() == 1 })
	if s := p.state(); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
}

func TestAListOfSnapshotsOfAnotherShapeIsRefused(t *testing.T) {
	for _, body := range [][]any{{}, {"7"}, {nil}, {map[string]string{}}, {[]map[string]string{}, 1}} {
		if next, err := parseSnapshots(body); err == nil {
			t.Errorf("%v gives %q", body, next)
		}
	}
	next, err := parseSnapshots([]any{[]map[string]string{{}, {"default": "yes"}, {"default": "yes", "active": "yes"}}})
	if next != "" || err != nil {
		t.Errorf("next %q, %v", next, err)
	}
}

func FuzzSnapshots(f *testing.F) {
	f.Add("8", "yes", "no", uint8(0))
	f.Fuzz(func(t *testing.T, number, isDefault, active string, which uint8) {
		list := []map[string]string{{"number": number, "default": isDefault, "active": active}, nil}
		bodies := [][]any{{list}, {number}, {}, {nil}, {list, list}, {list[0]}}
		next, err := parseSnapshots(bodies[int(which)%len(bodies)])
		if err == nil && wrongText("number", next, plan.MaxReasonID) != "" {
			t.Errorf("%q is not bounded", next)
		}
	})
}

func TestASoftRebootSatisfiesWhatTransactionalUpdateWroteBeforeIt(t *testing.T) {
	root := t.TempDir()
	write(t, root+neededFile, "soft-reboot")
	p := start(t, Env{Bus: startBus(t, bustest.Start(t)), Root: root, Started: time.Now().Add(time.Hour)}, "tukit", nil)
	p.becomes("written before it", plan.NotRequired)
}
