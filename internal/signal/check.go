// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	// checkEvery is how often a check runs without a hint, and checkLeast the shortest such time that can be set.
	checkEvery = time.Hour
	checkLeast = time.Minute
	// checkAgain is the pause after a check that gave no answer: it runs a program, so it is not repeated in seconds.
	checkAgain = 10 * time.Minute
	// checkLook is how often the directory of "watch" is compared with what it was.
	checkLook = time.Minute
	// checkFiles bounds how much of that directory is looked at.
	checkFiles = 1000

	// Zypper's codes for "yes" and "no". 1 is what nearly every program says when it fails.
	codeRequired    = 102
	codeNotRequired = 0
	// maxCode is the last code that can be configured: beyond it are the shell's "not executable", "not found" and
	// "killed", and systemd's own.
	maxCode = 125
)

func init() {
	register("check", kind{
		about: About{
			Watched: "the exit code of `kured-agent-check@<name>.service`, which is started every hour, `dnf` every 6 hours, " +
				"and within 2 minutes of a change in the directory `watch`, such as `/var/lib/rpm`",
			Required: "the code is in `required` (102); `dnf` is `needs-restarting` of dnf5 or dnf, `zypper` is " +
				"`needs-rebooting`",
			Cleared: "the code is in `not_required` (0), or a condition of the unit fails; any other end is *unknown*, as of " +
				"a program that is missing, crashes, or takes too long",
			Beside: "`reboot = when-needed` in `/etc/dnf/automatic.conf`",
		},
		keys: []key{
			{name: "name", required: true, check: isInstance},
			{name: "every", check: isPeriod},
			{name: "required", check: isCodes},
			{name: "not_required", check: isCodes},
			{name: "watch", check: isFilePath},
		},
		check: checkCodes,
		build: func(options map[string]any, env Env) Source { return newCheck(options, env) },
		// Zypper has a unit and is no preset: it asks for the file that the type "file" reads, without the level in it.
		presets:   []map[string]any{{"name": "dnf", "every": "6h", "watch": "/var/lib/rpm"}},
		installed: dnfInstalled,
	})
}

// dnfInstalled leaves out hosts that change by images: what is installed there says nothing about the next boot.
func dnfInstalled(root string) bool {
	return anyOf("usr/bin/dnf5", "usr/bin/dnf")(root) && !exists(filepath.Join(root, "run/ostree-booted"))
}

// isInstance: what the polkit rule lets through.
var isInstance = isText(func(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}, "the name of a check like dnf, in small letters, digits, _ and -")

func isPeriod(v any) string {
	const want = `a duration like "6h"`
	s, ok := v.(string)
	if !ok {
		return fmt.Sprintf("is %s, want %s", tomlType(v), want)
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return fmt.Sprintf("%q is not %s", s, want)
	case d < checkLeast:
		return fmt.Sprintf("%q is less than %v", s, checkLeast)
	}
	return ""
}

func isCodes(v any) string {
	list, ok := v.([]any)
	if !ok {
		return fmt.Sprintf("is %s, want a list of exit codes like [%d]", tomlType(v), codeRequired)
	}
	if len(list) == 0 {
		return "is empty: then no exit code would mean it"
	}
	for _, code := range list {
		n, ok := code.(int64)
		switch {
		case !ok:
			return fmt.Sprintf("holds %s, want exit codes", tomlType(code))
		case n < 0 || n > maxCode:
			return fmt.Sprintf("%d is not between 0 and %d: beyond are the codes of programs that are missing or were killed",
				n, maxCode)
		}
	}
	return ""
}

func checkCodes(options map[string]any) []Problem {
	no := exitCodes(options, "not_required", codeNotRequired)
	for _, code := range exitCodes(options, "required", codeRequired) {
		if slices.Contains(no, code) {
			return []Problem{{"required", fmt.Sprintf("%d is also in not_required, which is [%d] by default",
				code, codeNotRequired)}}
		}
	}
	return nil
}

// exitCodes returns a list of exit codes that isCodes let through.
func exitCodes(options map[string]any, key string, otherwise int32) []int32 {
	list, given := options[key].([]any)
	if !given {
		return []int32{otherwise}
	}
	out := make([]int32, 0, len(list))
	for _, v := range list {
		out = append(out, int32(v.(int64)))
	}
	return out
}

// check starts a oneshot unit and takes its exit code for the answer. It is the unit, and not the agent, that may run a
// program. Only a code that was named is an answer: a program that is missing (127, 203), crashes or hangs says
// nothing, least of all "yes" (kubereboot/kured#976, #498).
type check struct {
	unit          *checkUnit
	name          string
	every         time.Duration
	dir           string // a change in it is a hint; empty: none
	required, not []int32
}

func newCheck(options map[string]any, env Env) *check {
	name := options["name"].(string)
	c := &check{
		unit: newCheckUnit(env.Bus, "kured-agent-check@"+name+".service"), name: name, every: checkEvery,
		required: exitCodes(options, "required", codeRequired), not: exitCodes(options, "not_required", codeNotRequired),
	}
	if every, ok := options["every"].(string); ok {
		c.every, _ = time.ParseDuration(every)
	}
	if dir, ok := options["watch"].(string); ok {
		c.dir = filepath.Join(env.Root, dir)
	}
	return c
}

func (c *check) Name() string { return "check:" + c.name }

func (c *check) Run(ctx context.Context, report func(State)) error {
	defer c.unit.follow()()
	if err := awaitBus(ctx, c.unit.bus, c.unit.changed); err != nil {
		return err
	}
	// A check takes its time, and nobody has to wait for it: it holds up only what it had itself required before.
	report(State{Level: plan.Unknown, Note: "the check has not answered yet"})
	for {
		before := fingerprint(c.dir)
		end, err := c.unit.run(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s := c.state(end, err)
		report(s)
		if err := c.wait(ctx, before, s.Err != nil, err != nil); err != nil {
			return err
		}
	}
}

// wait returns when the check is to run again: after its time, after a change in the directory that has come to rest,
// or, when systemd could not be asked, after a change of the connection.
func (c *check) wait(ctx context.Context, before uint64, failed, unasked bool) error {
	period := c.every
	if failed {
		period = min(period, checkAgain)
	}
	timer := time.NewTimer(period)
	defer timer.Stop()
	var look <-chan time.Time
	if c.dir != "" {
		ticker := time.NewTicker(checkLook)
		defer ticker.Stop()
		look = ticker.C
	}
	var changed hints
	if unasked {
		changed = c.unit.changed
	}
	for seen := before; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-changed:
			return nil
		case <-look:
			now := fingerprint(c.dir)
			if now != before && now == seen {
				return nil
			}
			seen = now
		}
	}
}

// state says what the end of the unit means.
func (c *check) state(end ending, err error) State {
	switch {
	case errors.Is(err, errNoCheck):
		return State{Level: plan.NotRequired, Note: err.Error()}
	case err != nil:
		return State{Level: plan.Unknown, Err: err}
	}
	code, how := end.code()
	switch {
	case how != "":
	case slices.Contains(c.not, code):
		return State{Level: plan.NotRequired}
	case slices.Contains(c.required, code):
		return State{Level: plan.Required, Reasons: []plan.Reason{{
			ID: c.name, Text: fmt.Sprintf("%s exited with %d", c.unit.name, code), Kind: plan.KindFull,
		}}}
	default:
		how = fmt.Sprintf("exited with %d", code)
	}
	return State{Level: plan.Unknown, Err: fmt.Errorf("%s %s, which is no answer: see journalctl -u %s",
		c.unit.name, how, c.unit.name)}
}

// fingerprint changes with the names, sizes and times of the files in a directory. A database's files for reading,
// which change when somebody looks something up, are passed over.
func fingerprint(dir string) uint64 {
	if dir == "" {
		return 0
	}
	f, err := os.Open(dir)
	if err != nil {
		return 0
	}
	defer f.Close()
	entries, _ := f.ReadDir(checkFiles)
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	sum := fnv.New64a()
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || forReading(entry.Name()) {
			continue
		}
		_, _ = fmt.Fprintf(sum, "%q %d %d\n", entry.Name(), info.Size(), info.ModTime().UnixNano())
	}
	return sum.Sum64()
}

// forReading names what SQLite and Berkeley DB, as rpm uses them, write for a reader.
func forReading(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "__db.") ||
		strings.HasSuffix(name, "-shm") || strings.HasSuffix(name, "-wal") || strings.HasSuffix(name, "-journal")
}
