// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	// pollFile is how often the file is read while its directory can't be watched.
	pollFile = 30 * time.Second
	// pollWatched bridges what a watch can't see: a replaced symlink on the way, a mount over the directory.
	pollWatched = 5 * time.Minute
)

// levelFile is the name of the file whose content is a level, as libzypp and transactional-update write it. Any other
// file means "required" by being there.
const levelFile = "reboot-needed"

func init() {
	register("file", kind{
		about: About{
			Watched: "the directory of the file (inotify), and the file every 5 minutes; `<file>.pkgs` names the packages",
			Required: "the file exists; of a file named `reboot-needed` the content counts, which may be `none`, " +
				"`soft-reboot` or `kexec`",
			Cleared: "the file is removed, or says `none`, for 5 s",
			Beside:  "whatever waits for the same file, such as unattended-upgrades with `Automatic-Reboot`",
		},
		keys: []key{{name: "path", required: true, check: isFilePath}},
		build: func(options map[string]any, env Env) Source {
			path := options["path"].(string)
			return &file{path: path, host: filepath.Join(env.Root, path), log: env.Logger, started: env.Started}
		},
		presets: []map[string]any{{"path": "/run/reboot-required"}, {"path": "/run/" + levelFile}},
	})
}

// file watches one file that a package manager leaves behind.
type file struct {
	path, host string // as configured, and under the root prefix
	log        *slog.Logger
	started    time.Time // by a soft reboot; zero: none was
}

func (f *file) Name() string { return "file:" + f.path }

// Run watches the directory, not the file: writers rename a new file over the old one, and remove and create it again.
func (f *file) Run(ctx context.Context, report func(State)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		// A node full of containers may have used up the inotify instances of this user.
		f.log.Warn("watching by polling", "source", f.Name(), "every", pollFile, "err", err)
		return f.poll(ctx, report)
	}
	defer w.Close()
	d := dirWatch{w: w, dir: filepath.Dir(f.host)}
	timer := time.NewTimer(pollFile)
	defer timer.Stop()
	for {
		note, wait := "", pollFile
		switch err := d.ensure(); {
		case err != nil:
			note = fmt.Sprintf("read every %v only: %v", pollFile, err)
		case d.watched == d.dir:
			wait = pollWatched
		}
		timer.Reset(wait)
		// Read after the watch stands: a change in between is then either read or announced.
		s := f.read()
		if note != "" {
			s.Note = note
		}
		report(s)
		err := d.wait(ctx, timer.C, func(name string) bool { return name == f.host || name == f.host+".pkgs" })
		if err != nil {
			return err
		}
	}
}

// wait returns when a file that concerns may have changed.
func (d *dirWatch) wait(ctx context.Context, timer <-chan time.Time, concerns func(name string) bool) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer:
			return nil
		case _, ok := <-d.w.Errors: // the queue overflowed: events are missing
			if !ok {
				return errors.New("the inotify watcher ended")
			}
			return nil
		case event, ok := <-d.w.Events:
			if !ok {
				return errors.New("the inotify watcher ended")
			}
			name := filepath.Clean(event.Name) // of a file in "/" it begins with two slashes
			if d.watched != d.dir || name == d.dir || concerns(name) {
				return nil
			}
		}
	}
}

func (f *file) poll(ctx context.Context, report func(State)) error {
	tick := time.NewTicker(pollFile)
	defer tick.Stop()
	for {
		s := f.read()
		s.Note = fmt.Sprintf("inotify is not available: read every %v", pollFile)
		report(s)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// dirWatch keeps an inotify watch on a directory, or on its nearest ancestor while it does not exist.
type dirWatch struct {
	w       *fsnotify.Watcher
	dir     string
	watched string
	info    fs.FileInfo // of watched: a directory of the same name may be another one
}

func (d *dirWatch) ensure() error {
	target := d.dir
	for {
		info, err := os.Stat(target)
		if err == nil && target == d.watched && os.SameFile(info, d.info) {
			if err := d.w.Add(target); err != nil { // inotify forgot it if it was removed and came back as the same inode
				return err
			}
		} else if err == nil {
			if d.watched != "" {
				_ = d.w.Remove(d.watched)
			}
			d.watched = ""
			if err = d.w.Add(target); err == nil {
				d.watched, d.info = target, info
			}
		}
		switch missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR); {
		case missing && target != filepath.Dir(target):
			target = filepath.Dir(target)
		case err != nil:
			return err
		case target == d.dir:
			return nil
		default:
			// The next directory down may have appeared before the watch stood.
			if _, err := os.Stat(d.below(target)); err != nil {
				return nil
			}
			target = d.dir
		}
	}
}

// below returns the child of ancestor on the way to d.dir.
func (d *dirWatch) below(ancestor string) string {
	rest := strings.TrimPrefix(strings.TrimPrefix(d.dir, ancestor), "/")
	name, _, _ := strings.Cut(rest, "/")
	return filepath.Join(ancestor, name)
}

func (f *file) read() State {
	content, err := readFile(f.host)
	if errors.Is(err, fs.ErrNotExist) {
		return State{Level: plan.NotRequired}
	}
	base := filepath.Base(f.path)
	if base == levelFile {
		if err != nil {
			return State{Level: plan.Unknown, Err: err}
		}
		kind, needed := parseLevel(string(content))
		if !needed {
			return State{Level: plan.NotRequired, Note: "the file says that no reboot is needed"}
		}
		if kind == plan.KindSoft && f.before(f.started) {
			return State{Level: plan.NotRequired, Note: "a soft reboot has been since it was written"}
		}
		return State{Level: plan.Required, Reasons: []plan.Reason{{ID: base, Text: firstLine(content), Kind: kind}}}
	}
	// Here the file says what it has to say by being there; an agent that may not read it still knows.
	if err != nil && !(errors.Is(err, fs.ErrPermission) && exists(f.host)) {
		return State{Level: plan.Unknown, Err: err}
	}
	packages, _ := readFile(f.host + ".pkgs") // absent from most writers
	reasons := parsePackages(string(packages))
	if len(reasons) == 0 {
		reasons = []plan.Reason{{ID: base, Text: firstLine(content), Kind: plan.KindFull}}
	}
	return State{Level: plan.Required, Reasons: reasons}
}

// before says whether the file was written before a time.
func (f *file) before(t time.Time) bool {
	info, err := os.Stat(f.host)
	return err == nil && info.ModTime().Before(t)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// anyOf says whether one of the files is there, each relative to the root of the host.
func anyOf(files ...string) func(root string) bool {
	return func(root string) bool {
		return slices.ContainsFunc(files, func(f string) bool { return exists(filepath.Join(root, f)) })
	}
}

// parseLevel reads the content of reboot-needed: the highest level of its words. An empty file is libzypp's plain
// "yes", and an unknown word is taken for the highest. needed is false when there is nothing but "none".
func parseLevel(content string) (kind plan.Kind, needed bool) {
	words := strings.Fields(content)
	if len(words) == 0 {
		return plan.KindFull, true
	}
	for _, word := range words {
		switch word {
		case "none":
		case "soft-reboot":
			kind = max(kind, plan.KindSoft)
		case "kexec":
			kind = max(kind, plan.KindKexec)
		default:
			kind = plan.KindFull
		}
	}
	return kind, kind != 0
}

// parsePackages reads a .pkgs file: one package a line, the same one any number of times.
func parsePackages(content string) []plan.Reason {
	var reasons []plan.Reason
	seen := map[string]bool{}
	for line := range strings.Lines(content) {
		name := clean(line, plan.MaxReasonID)
		if name == "" || seen[name] {
			continue
		}
		if len(reasons) == plan.MaxReasons {
			break
		}
		seen[name] = true
		reasons = append(reasons, plan.Reason{ID: name, Text: "package " + name, Kind: plan.KindFull})
	}
	return reasons
}

func firstLine(content []byte) string {
	line, _, _ := strings.Cut(string(content), "\n")
	return clean(line, plan.MaxReasonText)
}
