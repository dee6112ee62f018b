// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const sentinel = "/run/reboot-required"

func watchFile(t *testing.T, root, path string) *probe {
	t.Helper()
	return start(t, Env{Root: root}, "file", map[string]any{"path": path})
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestAFileThatIsThereBeforeTheStartRequiresAReboot(t *testing.T) {
	root := t.TempDir()
	write(t, root+sentinel, "*** System restart required ***\n")
	s := watchFile(t, root, sentinel).becomes("at start", plan.Required)
	want := plan.Reason{Source: "file:" + sentinel, ID: "reboot-required", Text: "*** System restart required ***",
		Kind: plan.KindFull}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
}

func TestPackagesAreTheReasonsAndGrow(t *testing.T) {
	root := t.TempDir()
	write(t, root+sentinel+".pkgs", "linux-image-6.1\nlibc6\nlinux-image-6.1\n\n  \n")
	write(t, root+sentinel, "")
	p := watchFile(t, root, sentinel)
	s := p.becomes("at start", plan.Required)
	if !slices.Equal(ids(s), []string{"linux-image-6.1", "libc6"}) || s.Reasons[0].Text != "package linux-image-6.1" {
		t.Errorf("reasons %+v", s.Reasons)
	}
	f, err := os.OpenFile(root+sentinel+".pkgs", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("dbus\n"); err != nil {
		t.Fatal(err)
	}
	p.shows("one more package", func(s State) bool { return len(s.Reasons) == 3 })
}

func TestAFileIsFollowedThroughEveryWayOfComingAndGoing(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/run/other", "")
	p := watchFile(t, root, sentinel)
	p.becomes("at start", plan.NotRequired)
	path := root + sentinel
	for range 3 {
		write(t, path, "")
		p.becomes("created", plan.Required)
		remove(t, path)
		p.becomes("deleted", plan.NotRequired)
	}
	write(t, path+".tmp", "by rename")
	rename(t, path+".tmp", path)
	p.becomes("renamed into place", plan.Required)
	write(t, path+".tmp", "again")
	rename(t, path+".tmp", path)
	p.shows("replaced by rename", func(s State) bool { return len(s.Reasons) == 1 && s.Reasons[0].Text == "again" })
	rename(t, path, path+".gone")
	p.becomes("renamed away", plan.NotRequired)
}

func TestADirectoryThatIsMissingOrReplacedIsFollowed(t *testing.T) {
	root := t.TempDir()
	const path = "/run/deep/er/reboot-required"
	dir := root + "/run/deep"
	p := watchFile(t, root, path)
	p.becomes("no directory", plan.NotRequired)
	write(t, root+path, "")
	p.becomes("directories and file created", plan.Required)
	remove(t, dir)
	p.becomes("the directories removed", plan.NotRequired)
	write(t, root+path, "")
	p.becomes("and created again", plan.Required)
	rename(t, root+"/run/deep/er", root+"/run/deep/old")
	p.becomes("the directory renamed away", plan.NotRequired)
	write(t, root+path, "")
	p.becomes("and another in its place", plan.Required)
	remove(t, root+path)
	p.becomes("the file removed from the new one", plan.NotRequired)
}

func TestTheSymlinkFromVarRunIsFollowed(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"/run", "/var"} {
		if err := os.Mkdir(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../run", root+"/var/run"); err != nil {
		t.Fatal(err)
	}
	p := watchFile(t, root, "/var/run/reboot-required")
	p.becomes("at start", plan.NotRequired)
	write(t, root+sentinel, "")
	p.becomes("written under /run", plan.Required)
}

func TestAThousandTouchesEndInTheRightLevel(t *testing.T) {
	root := t.TempDir()
	write(t, root+sentinel, "")
	p := watchFile(t, root, sentinel)
	for i := range 1000 {
		write(t, root+sentinel, fmt.Sprint(i))
	}
	p.shows("the last content", func(s State) bool { return len(s.Reasons) == 1 && s.Reasons[0].Text == "999" })
	remove(t, root+sentinel)
	p.becomes("deleted", plan.NotRequired)
}

func TestTheContentOfRebootNeededIsALevel(t *testing.T) {
	root := t.TempDir()
	path := root + "/run/reboot-needed"
	write(t, path, "soft-reboot\n")
	p := watchFile(t, root, "/run/reboot-needed")
	s := p.becomes("at start", plan.Required)
	want := plan.Reason{Source: "file:/run/reboot-needed", ID: "reboot-needed", Text: "soft-reboot", Kind: plan.KindSoft}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	remove(t, path) // as transactional-update does at the start of each run
	p.becomes("removed", plan.NotRequired)
	write(t, path, "reboot\n")
	p.shows("a higher level", func(s State) bool { return len(s.Reasons) == 1 && s.Reasons[0].Kind == plan.KindFull })
	write(t, path, "none\n")
	p.becomes("none", plan.NotRequired)
}

func TestLevelsAreOrdered(t *testing.T) {
	for content, want := range map[string]plan.Kind{
		"": plan.KindFull, "\n": plan.KindFull, "reboot": plan.KindFull, "kexec\n": plan.KindKexec,
		"soft-reboot": plan.KindSoft, "none\nsoft-reboot\nkexec": plan.KindKexec, "please restart": plan.KindFull,
		"none": 0, "none\nnone": 0,
	} {
		if kind, needed := parseLevel(content); kind != want || needed != (want != 0) {
			t.Errorf("parseLevel(%q) = %v, %v", content, kind, needed)
		}
	}
}

func TestWhatCannotBeReadIsUnknown(t *testing.T) {
	root := t.TempDir()
	for name, make := range map[string]func(path string) error{
		"directory": func(p string) error { return os.MkdirAll(p, 0o755) },
		"pipe":      func(p string) error { return syscall.Mkfifo(p, 0o644) },
		"loop":      func(p string) error { return os.Symlink(p, p) },
	} {
		path := "/" + name
		if err := make(root + path); err != nil {
			t.Fatal(err)
		}
		s := watchFile(t, root, path).becomes(name, plan.Unknown)
		if s.Err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	write(t, root+"/parent", "")
	if s := watchFile(t, root, "/parent/reboot-required").becomes("a file as directory", plan.Unknown); s.Err == nil {
		t.Error("no error")
	}
}

func TestAHugeFileIsReadInPart(t *testing.T) {
	root := t.TempDir()
	write(t, root+sentinel+".pkgs", strings.Repeat("pkg\n", 1<<20)+"last\n")
	write(t, root+sentinel, strings.Repeat("x", 1<<20))
	s := watchFile(t, root, sentinel).becomes("at start", plan.Required)
	if !slices.Equal(ids(s), []string{"pkg"}) {
		t.Errorf("reasons %v", ids(s))
	}
	content, err := readFile(root + sentinel)
	if err != nil || len(content) != maxFile {
		t.Errorf("%d bytes, %v", len(content), err)
	}
}

func TestAnEventOfAFileInTheRootDirectoryIsNotMissed(t *testing.T) {
	w := &fsnotify.Watcher{Events: make(chan fsnotify.Event, 2), Errors: make(chan error)}
	w.Events <- fsnotify.Event{Name: "//other"}
	w.Events <- fsnotify.Event{Name: "//reboot-required"} // as fsnotify names it
	d := &dirWatch{w: w, dir: "/", watched: "/"}
	err := d.wait(t.Context(), nil, func(name string) bool { return name == "/reboot-required" })
	if err != nil || len(w.Events) != 0 {
		t.Errorf("%v, %d events left", err, len(w.Events))
	}
}

func TestWithoutInotifyTheFileIsPolled(t *testing.T) {
	root := t.TempDir()
	write(t, root+sentinel, "")
	f := &file{path: sentinel, host: filepath.Join(root, sentinel)}
	states := make(chan State, 1)
	go func() { _ = f.poll(t.Context(), func(s State) { states <- s }) }()
	if s := <-states; s.Level != plan.Required || !strings.Contains(s.Note, "inotify is not available") {
		t.Errorf("state %+v", s)
	}
}

func FuzzPackages(f *testing.F) {
	f.Add("linux-image-6.1\nlibc6\n")
	f.Add("\x00\xff\n\n\x1b[0m")
	f.Fuzz(func(t *testing.T, content string) {
		reasons := parsePackages(content)
		if len(reasons) > plan.MaxReasons {
			t.Errorf("%d reasons", len(reasons))
		}
		seen := map[string]bool{}
		for _, r := range reasons {
			if r.ID == "" || seen[r.ID] || wrongText("id", r.ID, plan.MaxReasonID) != "" {
				t.Errorf("bad reason %q", r.ID)
			}
			seen[r.ID] = true
		}
	})
}

func FuzzLevel(f *testing.F) {
	f.Add("reboot")
	f.Add("none\nkexec")
	f.Fuzz(func(t *testing.T, content string) {
		if kind, needed := parseLevel(content); needed && (kind < plan.KindSoft || kind > plan.KindFull) {
			t.Errorf("parseLevel(%q) = %v", content, kind)
		}
	})
}

// Nobody removes the file after a soft reboot, and /run outlives one: the reboot would seem not to have helped.
func TestASoftRebootSatisfiesWhatWasWrittenBeforeItAndNeedsNoMore(t *testing.T) {
	root := t.TempDir()
	path := root + "/run/reboot-needed"
	write(t, path, "soft-reboot\n")
	began := time.Now().Add(time.Hour)
	p := start(t, Env{Root: root, Started: began}, "file", map[string]any{"path": "/run/reboot-needed"})
	if s := p.becomes("written before it", plan.NotRequired); s.Note == "" {
		t.Error("nothing says why")
	}
	write(t, path, "kexec\n")
	p.becomes("more than a soft reboot", plan.Required)
	write(t, path, "soft-reboot\n")
	p.becomes("still before it", plan.NotRequired)
	if err := os.Chtimes(path, began.Add(time.Second), began.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	p.becomes("written since", plan.Required)
}
