// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	packageKitName    = "org.freedesktop.PackageKit"
	packageKitPath    = "/org/freedesktop/PackageKit"
	packageKitOffline = "org.freedesktop.PackageKit.Offline"

	// PkRestartEnum, of which only these two are about the whole system.
	restartSystem         = 4
	restartSystemSecurity = 6

	offlineTrigger = "system-update" // the link that makes systemd boot into the offline update
)

// offlinePrepared is where the link of PackageKit leads. Other programs prepare offline updates of their own.
var offlinePrepared = []string{"/var/lib/PackageKit/prepared-update", "/var/lib/PackageKit/prepared-upgrade"}

func init() {
	register("packagekit", kind{
		about: About{
			Watched: "signal `RequireRestart` of the transactions of `org.freedesktop.PackageKit`, which is missed while " +
				"the agent is down; the link `/system-update`",
			Required: "a package requires a restart of the system (types 4 and 6), or an offline update is triggered",
			Cleared:  "the reboot; an offline update: its cancellation, at the latest after 10 minutes",
		},
		build: func(_ map[string]any, env Env) Source {
			return &packageKit{bus: env.Bus, root: env.Root, stored: filepath.Join(env.Runtime, "packagekit.json")}
		},
		presets: []map[string]any{nil},
		installed: anyOf("usr/share/dbus-1/system-services/org.freedesktop.PackageKit.service",
			"usr/lib/systemd/system/packagekit.service", "lib/systemd/system/packagekit.service"),
	})
}

// packageKit keeps in the runtime directory which packages require a restart: PackageKit says so once, has no state to
// read it from, and leaves the bus after five minutes without work. The offline update it need not be asked for: the
// property UpdateTriggered is read from the same link. RestartSchedule is about PackageKit's own process.
type packageKit struct {
	bus    *bus.Bus
	root   string
	stored string // file

	mu        sync.Mutex
	heard     []string // package IDs since the start
	malformed int
}

// restarts is what is kept.
type restarts struct {
	Packages []string `json:"packages"`
}

func (p *packageKit) Name() string { return "packagekit" }

func (p *packageKit) Run(ctx context.Context, report func(State)) error {
	hint := newHints()
	// Each transaction is an object of its own: no path.
	defer p.bus.Watch(bus.Match{
		Sender: packageKitName, Interface: packageKitName + ".Transaction", Member: "RequireRestart",
	}, func(s bus.Signal) { p.hear(s.Body); hint.poke() })()
	defer p.bus.Watch(bus.Match{
		Sender: packageKitName, Path: packageKitPath,
		Interface: "org.freedesktop.DBus.Properties", Member: "PropertiesChanged", Arg0: packageKitOffline,
	}, func(bus.Signal) { hint.poke() })()
	defer p.bus.OnChange(hint.poke)()
	if err := awaitBus(ctx, p.bus, hint); err != nil {
		return err
	}
	tick := time.NewTicker(pollLevel)
	defer tick.Stop()
	for {
		report(p.state())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hint:
		case <-tick.C:
		}
	}
}

// hear runs on the bus goroutine.
func (p *packageKit) hear(body []any) {
	id, needed, err := parseRestart(body)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		p.malformed++
	case needed && len(p.heard) < plan.MaxReasons && !slices.Contains(p.heard, id):
		p.heard = append(p.heard, id)
	}
}

// parseRestart reads (type u, package_id s).
func parseRestart(body []any) (id string, needed bool, err error) {
	if len(body) != 2 {
		return "", false, errors.New("reading RequireRestart: not two values")
	}
	restart, ok := body[0].(uint32)
	id, ok2 := body[1].(string)
	if !ok || !ok2 {
		return "", false, errors.New("reading RequireRestart: type or package is of another type")
	}
	return clean(id, plan.MaxReasonID), restart == restartSystem || restart == restartSystemSecurity, nil
}

// state stores what was heard and returns the level.
func (p *packageKit) state() State {
	p.mu.Lock()
	heard, malformed := slices.Clone(p.heard), p.malformed
	p.mu.Unlock()

	note := ""
	if malformed > 0 {
		note = fmt.Sprintf("%d malformed signals ignored", malformed)
	}
	known, err := p.load()
	packages := union(known, heard)
	if len(packages) > len(known) {
		// The need is known even when it can't be stored; it is tried again at the next hint.
		err = nil
		if err := writeJSON(p.stored, restarts{packages}); err != nil {
			note = fmt.Sprintf("forgotten when the agent restarts: %v", err)
		}
	}
	offline, offlineErr := p.offline()
	reasons := append(offline, packageReasons(packages)...)
	switch err := cmp.Or(err, offlineErr); {
	case len(reasons) > 0: // nothing that could not be read takes it back
		return State{Level: plan.Required, Note: note, Reasons: reasons}
	case err != nil:
		return State{Level: plan.Unknown, Err: err}
	case !p.bus.Connected():
		return State{Level: plan.Unknown, Err: bus.ErrNotConnected}
	}
	return State{Level: plan.NotRequired, Note: note}
}

// union returns the packages of both without repetition, as many as reasons may be.
func union(known, heard []string) []string {
	all := slices.Clone(known)
	for _, id := range heard {
		if !slices.Contains(all, id) && len(all) < plan.MaxReasons {
			all = append(all, id)
		}
	}
	return all
}

// packageReasons makes reasons of package IDs, "name;version;architecture;repository". Some backends leave parts empty.
func packageReasons(packages []string) []plan.Reason {
	var reasons []plan.Reason
	for _, id := range packages {
		name, rest, _ := strings.Cut(id, ";")
		version, _, _ := strings.Cut(rest, ";")
		what := strings.TrimSpace(name + " " + version)
		if what == "" {
			what = "unknown"
		}
		reasons = append(reasons, plan.Reason{ID: what, Text: "package " + what, Kind: plan.KindFull})
	}
	return reasons
}

// offline returns the reason of an offline update that PackageKit has triggered. The content of what was prepared tells
// this update from the next one.
func (p *packageKit) offline() ([]plan.Reason, error) {
	target, err := os.Readlink(filepath.Join(p.root, offlineTrigger))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) { // nothing, or no link
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(offlinePrepared, target) {
		return nil, nil
	}
	id := filepath.Base(target)
	if content, err := readFile(filepath.Join(p.root, target)); err == nil {
		sum := sha256.Sum256(content)
		id = fmt.Sprintf("%s %x", id, sum[:8])
	}
	text := "an offline update waits: the next boot installs it and boots again"
	return []plan.Reason{{ID: id, Text: text, Kind: plan.KindFull}}, nil
}

// load returns the packages that were stored in this boot.
func (p *packageKit) load() ([]string, error) {
	content, err := readFile(p.stored)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseRestarts(content)
}

func parseRestarts(content []byte) ([]string, error) {
	var stored *restarts
	if err := json.Unmarshal(content, &stored); err != nil {
		return nil, fmt.Errorf("reading the stored restarts: %w", err)
	}
	if stored == nil || len(stored.Packages) == 0 {
		return nil, errors.New("reading the stored restarts: the file names no package")
	}
	return union(nil, stored.Packages), nil
}
