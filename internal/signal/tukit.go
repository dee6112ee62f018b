// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	tukitName      = "org.opensuse.tukit"
	tukitIface     = "org.opensuse.tukit.Transaction"
	tukitLock      = "run/transactional-update.pid"
	tukitSnapshots = "/org/opensuse/tukit/Snapshot"
	// tukitTimeout is short: the level does not wait for what is only told beside it.
	tukitTimeout = 3 * time.Second
)

var tukitInstalled = []string{
	"usr/share/dbus-1/system-services/org.opensuse.tukit.service",
	"usr/sbin/transactional-update",
}

func init() {
	register("tukit", kind{
		about: About{
			Watched: "`/run/reboot-needed` (inotify, and every 5 minutes), but not while transactional-update runs, which " +
				"removes it and writes it anew; signals of `org.opensuse.tukit` are hints, and it names the next snapshot " +
				"while it is there",
			Required: "the file says `soft-reboot`, `kexec` or `reboot`; that a snapshot is the next one does not require a " +
				"reboot by itself: `transactional-update apply` does without",
			Cleared: "the file is removed, or says `none`, for 5 s",
			Beside: "`REBOOT_METHOD=kured` in `/etc/transactional-update.conf`, or `none`, which leaves the kind of reboot to " +
				"the file alone and is known from version 4 on; as delivered, `transactional-update.timer` reboots",
		},
		build: func(_ map[string]any, env Env) Source {
			path := "/run/" + levelFile
			return &tukit{
				bus: env.Bus, lock: filepath.Join(env.Root, tukitLock),
				file: &file{path: path, host: filepath.Join(env.Root, path), log: env.Logger, started: env.Started},
			}
		},
		presets: []map[string]any{nil}, installed: anyOf(tukitInstalled...),
	})
}

// tukit reads the level that transactional-update leaves, and so says the same as the source that watches that file,
// except that it keeps the need of before a run, which takes minutes, from being taken back during it. The difference between running and next snapshot is no level: it stays after an update that was applied without a
// reboot. tukitd does not end by itself, so it is never started only to name the snapshot.
type tukit struct {
	bus  *bus.Bus
	lock string
	file *file
}

func (t *tukit) Name() string { return "tukit" }

func (t *tukit) Run(ctx context.Context, report func(State)) error {
	hint := newHints()
	go watchDir(ctx, t.file.log, filepath.Dir(t.file.host), hint) // of the lock too
	return follower{
		bus: t.bus, hint: hint, every: pollLevel,
		// Without a path: the same signals come from two objects.
		match: bus.Match{Sender: tukitName, Interface: tukitIface},
	}.run(ctx, t.read, report)
}

func (t *tukit) read(ctx context.Context) (State, error) {
	if locked(t.lock) {
		return State{}, errors.New("transactional-update runs: what it needs is known afterwards")
	}
	s := t.file.read()
	if s.Err != nil {
		return State{}, s.Err
	}
	next, err := t.next(ctx)
	switch {
	case s.Level == plan.Required:
		who := "transactional-update"
		if next != "" {
			who = "snapshot " + next
		}
		for i, r := range s.Reasons {
			// The ID stays the file's: the snapshot is known only now and then, and a changed ID would pass the loop guard.
			s.Reasons[i].Text = fmt.Sprintf("%s needs a %s", who, tukitKinds[r.Kind])
		}
	case next != "":
		s.Note = "snapshot " + next + " is the next one, and needs no reboot now"
	}
	if err != nil {
		s.Note = fmt.Sprintf("the next snapshot is not known: %v", err)
	}
	return s, nil
}

// locked says whether the process that a lock file names in its first line is there. A lock outlives a process that
// was killed.
func locked(lock string) bool {
	content, err := readFile(lock)
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(firstLine(content))
	// Not by /proc, where our sandbox hides the processes of others. Signal 0 is not sent.
	return err == nil && pid > 0 && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

var tukitKinds = map[plan.Kind]string{
	plan.KindSoft: "soft reboot", plan.KindKexec: "kexec reboot", plan.KindFull: "reboot",
}

// next returns the number of the snapshot that the next boot uses, or "" while that is the running one, or while tukitd
// or the bus is not there to ask.
func (t *tukit) next(ctx context.Context) (string, error) {
	body, err := t.bus.Call(ctx, bus.Call{
		Destination: tukitName, Path: tukitSnapshots, Member: "org.opensuse.tukit.Snapshot.List",
		Args: []any{"number,default,active"}, NoAutoStart: true, Timeout: tukitTimeout,
	})
	if err != nil {
		err = classify(err, "the bus policy denies List, which tukit's own policy file allows to everybody")
		if errors.Is(err, errAbsent) || errors.Is(err, bus.ErrNotConnected) {
			return "", nil
		}
		return "", err
	}
	return parseSnapshots(body)
}

// parseSnapshots reads aa{ss}, a map of "number", "default" and "active" for each snapshot.
func parseSnapshots(body []any) (string, error) {
	if len(body) != 1 {
		return "", errors.New("reading the list of snapshots: not one value")
	}
	list, ok := body[0].([]map[string]string)
	if !ok {
		return "", fmt.Errorf("reading the list of snapshots: it is a %T", body[0])
	}
	for _, snapshot := range list {
		if snapshot["default"] == "yes" && snapshot["active"] == "no" {
			return clean(snapshot["number"], plan.MaxReasonID), nil
		}
	}
	return "", nil
}
