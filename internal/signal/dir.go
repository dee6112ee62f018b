// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

// followDirs reads a level that files in some directories hold: at start, after each change, and now and then.
func followDirs(ctx context.Context, log *slog.Logger, dirs []string, read func() State, report func(State)) error {
	hint := newHints()
	for _, dir := range dirs {
		go watchDir(ctx, log, dir, hint)
	}
	for {
		report(read())
		if err := hint.wait(ctx, pollWatched); err != nil {
			return err
		}
	}
}

// watchDir hints after each change in a directory, which need not exist yet, until ctx ends.
func watchDir(ctx context.Context, log *slog.Logger, dir string, hint hints) {
	keepHinting(ctx, hint, func() error {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return err
		}
		defer w.Close()
		d := dirWatch{w: w, dir: dir}
		return d.hint(ctx, hint)
	}, func(err error) {
		// A node full of containers may have used up the inotify instances of this user.
		log.Warn("watching by polling", "directory", dir, "every", pollFile, "err", err)
	})
}

// keepHinting runs watch again and again; in between it hints by the clock. fallBack is told of the first failure.
func keepHinting(ctx context.Context, hint hints, watch func() error, fallBack func(error)) {
	for told := false; ; told = true {
		err := watch()
		if ctx.Err() != nil {
			return
		}
		if !told {
			fallBack(err)
		}
		if hints(nil).wait(ctx, pollFile) != nil {
			return
		}
		hint.poke()
	}
}

// hint pokes after each change until the watcher or ctx ends.
func (d *dirWatch) hint(ctx context.Context, hint hints) error {
	timer := time.NewTimer(pollFile)
	defer timer.Stop()
	for {
		wait := pollFile
		if err := d.ensure(); err == nil && d.watched == d.dir {
			wait = pollWatched
		}
		timer.Reset(wait)
		hint.poke()
		if err := d.wait(ctx, timer.C, func(string) bool { return true }); err != nil {
			return err
		}
	}
}
