// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/BurntSushi/toml"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	// offlineLink makes the next boot a system update; whoever made it is told by where it leads.
	offlineLink  = "/system-update"
	offlineDir   = "/usr/lib/sysimage/libdnf5/offline"
	offlineState = "offline-transaction-state.toml"
)

func init() {
	register("dnf5", kind{
		about: About{
			Watched: "the link `/system-update` (inotify, and every 5 minutes), and dnf5's " +
				"`offline-transaction-state.toml` where it leads to",
			Required: "an offline transaction is to be installed by the next boot, as dnf5daemon and " +
				"`DNF_SYSTEM_UPGRADE_NO_REBOOT=1 dnf5 offline reboot` leave it; not if the host would then be powered off",
			Cleared: "`dnf5 offline clean`, or the boot that installs it and boots again",
			Beside:  "`reboot = never` in `/etc/dnf/automatic.conf`",
		},
		build: func(_ map[string]any, env Env) Source {
			return &dnf5{env.Root, env.Logger}
		},
		presets:   []map[string]any{nil},
		installed: anyOf("usr/bin/dnf5", "usr/bin/dnf5daemon-server"),
	})
}

// dnf5 reads from the disk what dnf5daemon would answer to Offline.get_status: that needs a session, which starts the
// daemon and makes it load all repositories. What the daemon says beyond it, whether the packages were changed since,
// the boot finds out, and then boots again without harm.
type dnf5 struct {
	root string
	log  *slog.Logger
}

func (d *dnf5) Name() string { return "dnf5" }

func (d *dnf5) Run(ctx context.Context, report func(State)) error {
	// The second is where the link leads: the state is written after the link is made.
	dirs := []string{filepath.Join(d.root, filepath.Dir(offlineLink)), filepath.Join(d.root, offlineDir)}
	return followDirs(ctx, d.log, dirs, func() State {
		s, err := d.read()
		if err != nil {
			return State{Level: plan.Unknown, Err: err}
		}
		return s
	}, report)
}

func (d *dnf5) read() (State, error) {
	target, err := os.Readlink(filepath.Join(d.root, offlineLink))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return State{Level: plan.NotRequired}, nil
	case errors.Is(err, syscall.EINVAL): // not a link
		return State{Level: plan.NotRequired, Note: offlineLink + " is not of dnf5"}, nil
	case err != nil:
		return State{}, err
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(offlineLink), target)
	}
	content, err := readFile(filepath.Join(d.root, target, offlineState))
	if errors.Is(err, fs.ErrNotExist) {
		return State{Level: plan.NotRequired, Note: offlineLink + " is not of dnf5"}, nil
	}
	if err != nil {
		return State{}, err
	}
	return parseOffline(content)
}

// parseOffline reads the state of a transaction that a link leads to. It is written after the link is made, so that any
// other status than the two below may be about to change: unknown.
func parseOffline(content []byte) (State, error) {
	var file struct {
		State struct {
			Status   string `toml:"status"`
			Verb     string `toml:"verb"`
			Command  string `toml:"cmd_line"`
			Release  string `toml:"target_releasever"`
			Cookie   string `toml:"rpmdb_cookie"` // of the packages that it starts from
			PowerOff bool   `toml:"poweroff_after"`
		} `toml:"offline-transaction-state"`
	}
	if err := toml.Unmarshal(content, &file); err != nil {
		return State{}, fmt.Errorf("reading %s: %w", offlineState, err)
	}
	s := file.State
	if s.Status != "ready" && s.Status != "download-complete" {
		return State{}, fmt.Errorf("reading %s: the next boot installs it, and its status is %q",
			offlineState, clean(s.Status, plan.MaxReasonID))
	}
	if s.PowerOff {
		return State{Level: plan.NotRequired, Note: "an offline transaction waits that powers the host off: not begun"}, nil
	}
	text := "dnf5 installs at the next boot: " + s.Command
	if s.Verb == "system-upgrade download" {
		text = "dnf5 upgrades to release " + s.Release + " at the next boot"
	}
	id := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q", s.Verb, s.Command, s.Release, s.Cookie))
	return State{Level: plan.Required, Reasons: []plan.Reason{{
		ID: fmt.Sprintf("offline-%x", id[:8]), Text: text, Kind: plan.KindFull,
	}}}, nil
}
