// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// offline is the state file in the form in which dnf5 writes it.
func offline(status, command, more string) string {
	return fmt.Sprintf(`[offline-transaction-state]
cachedir = "/var/cache/libdnf5"
cmd_line = %q
module_platform_id = ""
poweroff_after = false
rpmdb_cookie = "d41d8c"
state_version = 2
status = %q
system_releasever = "42"
target_releasever = "42"
verb = "upgrade"
%s`, command, status, more)
}

func link(t *testing.T, root, target string) {
	t.Helper()
	if err := os.Symlink(target, root+offlineLink); err != nil {
		t.Fatal(err)
	}
}

func TestAnOfflineTransactionIsFollowedFromItsPreparationToItsEnd(t *testing.T) {
	root := t.TempDir()
	state := filepath.Join(root, offlineDir, offlineState)
	p := start(t, Env{Root: root}, "dnf5", nil)
	p.becomes("nothing", plan.NotRequired)
	write(t, state, offline("download-complete", "dnf5 upgrade --offline", ""))
	link(t, root, offlineDir)
	s := p.becomes("to be installed at the next boot", plan.Required)
	if s.Reasons[0].Text != "dnf5 installs at the next boot: dnf5 upgrade --offline" ||
		s.Reasons[0].Kind != plan.KindFull || !strings.HasPrefix(s.Reasons[0].ID, "offline-") {
		t.Errorf("reasons %+v", s.Reasons)
	}
	remove(t, root+offlineLink)
	p.becomes("cancelled, or being installed", plan.NotRequired)
	write(t, state, offline("download-incomplete", "", ""))
	link(t, root, offlineDir)
	p.becomes("the link comes before the state", plan.Unknown)
	write(t, state, offline("ready", "dnf5daemon-server", ""))
	other := p.becomes("another one", plan.Required)
	if other.Reasons[0].ID == s.Reasons[0].ID {
		t.Error("two transactions have one ID")
	}
}

func TestWhatMakesTheNextBootASystemUpdateIsTold(t *testing.T) {
	ready := offline("ready", "dnf5 upgrade", "")
	for name, c := range map[string]struct {
		target, content string
		level           plan.Level
		text            string // in reason, note or error
	}{
		"ready":            {offlineDir, ready, plan.Required, "dnf5 installs at the next boot: dnf5 upgrade"},
		"relative":         {offlineDir[1:], ready, plan.Required, "dnf5 installs"},
		"another place":    {"/var/lib/dnf5/offline", ready, plan.Required, "dnf5 installs"},
		"nowhere":          {"/nowhere", "", plan.NotRequired, "is not of dnf5"},
		"another program":  {"/var/lib/PackageKit", "", plan.NotRequired, "is not of dnf5"},
		"being written":    {offlineDir, offline("download-incomplete", "x", ""), plan.Unknown, `its status is "download-incomplete"`},
		"interrupted":      {offlineDir, offline("transaction-incomplete", "x", ""), plan.Unknown, "transaction-incomplete"},
		"an unknown state": {offlineDir, offline("a\x1b", "x", ""), plan.Unknown, `its status is`},
		"empty":            {offlineDir, "\n", plan.Unknown, `its status is ""`},
		"not TOML":         {offlineDir, "[[[", plan.Unknown, "reading " + offlineState},
		"another type":     {offlineDir, "offline-transaction-state = 3\n", plan.Unknown, "reading " + offlineState},
		"powers off": {offlineDir, strings.Replace(ready, "poweroff_after = false", "poweroff_after = true", 1),
			plan.NotRequired, "powers the host off"},
		"an upgrade of the release": {offlineDir, strings.NewReplacer(`"upgrade"`, `"system-upgrade download"`,
			`target_releasever = "42"`, `target_releasever = "43"`).Replace(ready), plan.Required, "upgrades to release 43"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if c.content != "" {
				write(t, filepath.Join(root, c.target, offlineState), c.content)
			}
			link(t, root, c.target)
			s := start(t, Env{Root: root}, "dnf5", nil).becomes(name, c.level)
			text := fmt.Sprint(s.Note, s.Err)
			if len(s.Reasons) > 0 {
				text = s.Reasons[0].Text
			}
			if !strings.Contains(text, c.text) {
				t.Errorf("says %q, want %q", text, c.text)
			}
		})
	}
}

func TestADirectoryOrFileInPlaceOfTheLinkIsNotOfDnf5(t *testing.T) {
	root := t.TempDir()
	write(t, root+offlineLink, "")
	p := start(t, Env{Root: root}, "dnf5", nil)
	p.shows("a file", func(s State) bool { return strings.Contains(s.Note, "is not of dnf5") })
	remove(t, root+offlineLink)
	p.shows("removed", func(s State) bool { return s.Level == plan.NotRequired && s.Note == "" })
}

func TestAnOfflineTransactionKeepsItsID(t *testing.T) {
	id := func(content string) string {
		s, err := parseOffline([]byte(content))
		if err != nil {
			t.Fatal(err)
		}
		return s.Reasons[0].ID
	}
	first := offline("ready", "dnf5 upgrade", "")
	if id(first) != id(offline("download-complete", "dnf5 upgrade", "")) {
		t.Error("the status changes the ID")
	}
	if id(first) == id(strings.Replace(first, "d41d8c", "d41d8d", 1)) {
		t.Error("other installed packages leave the ID as it is")
	}
}

func FuzzOffline(f *testing.F) {
	f.Add([]byte(offline("ready", "dnf5 upgrade", "")))
	f.Add([]byte("[offline-transaction-state]\nstatus = 'ready'\n"))
	f.Add([]byte("[[offline-transaction-state]]\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		s, err := parseOffline(content)
		if err == nil {
			bound("dnf5", s)
		}
	})
}
