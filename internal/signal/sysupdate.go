// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	sysupdateName   = "org.freedesktop.sysupdate1"
	sysupdatePath   = "/org/freedesktop/sysupdate1"
	sysupdateHost   = sysupdatePath + "/target/host"
	sysupdateTarget = sysupdateName + ".Target"

	// sysupdateTimeout is for the start of the service, which looks at every image of the host.
	sysupdateTimeout = 30 * time.Second
)

func init() {
	register("sysupdate", kind{
		about: About{
			Watched: "`org.freedesktop.sysupdate1` of systemd 257 and later (signal `JobRemoved`, method `GetVersion` of " +
				"the host, which our bus policy allows the agent), started for it every 10 minutes; `IMAGE_VERSION` in " +
				"`/etc/os-release`",
			Required: "the newest installed version of the host is newer than the booted one",
			Cleared:  "the newer version is removed, or booted",
			Beside:   "`systemctl mask --now systemd-sysupdate-reboot.timer`",
		},
		build:     func(_ map[string]any, env Env) Source { return &sysupdate{bus: env.Bus, root: env.Root} },
		presets:   []map[string]any{nil},
		installed: sysupdateInstalled,
	})
}

// sysupdateInstalled says whether the host updates itself as an image: other hosts have the service too.
func sysupdateInstalled(root string) bool {
	return anyOf("usr/lib/systemd/systemd-sysupdated", "lib/systemd/systemd-sysupdated")(root) && hasTransfers(root)
}

// hasTransfers says whether there is a definition of what to update. Before systemd 257 they ended in .conf.
func hasTransfers(root string) bool {
	for _, dir := range []string{"etc", "run", "usr/local/lib", "usr/lib"} {
		for _, ending := range []string{"transfer", "conf"} {
			found, _ := filepath.Glob(filepath.Join(root, dir, "sysupdate.d", "*."+ending)) // only a pattern can fail
			if len(found) > 0 {
				return true
			}
		}
	}
	return false
}

// sysupdate compares the newest installed version with the booted one, as "systemd-sysupdate pending" does. The service
// leaves the bus after half a minute, and systemd-sysupdate updates without it and tells nobody: there is no other way
// than to start it now and then. GetVersion has had one form since its first version, needs no network and no polkit.
// While a version is downloaded and not installed it is an error, for that one does not boot yet.
type sysupdate struct {
	bus     *bus.Bus
	root    string
	started time.Time // when the service was last allowed to be started
	failure error     // of its last answer, which holds while it is away
}

func (s *sysupdate) Name() string { return "sysupdate" }

func (s *sysupdate) Run(ctx context.Context, report func(State)) error {
	return followBus(ctx, s.bus, bus.Match{
		Sender: sysupdateName, Path: sysupdatePath, Interface: sysupdateName + ".Manager", Member: "JobRemoved",
	}, keepWhileAway(s.read), report)
}

func (s *sysupdate) read(ctx context.Context) (State, error) {
	if !hasTransfers(s.root) {
		return State{Level: plan.NotRequired, Note: "nothing to update is defined in sysupdate.d"}, nil
	}
	booted, err := imageVersion(s.root)
	if err != nil {
		return State{}, err
	}
	newest, err := s.newest(ctx)
	switch {
	case errors.Is(err, errAbsent):
		err = cmp.Or(s.failure, err)
	case errors.Is(err, bus.ErrNotConnected), errors.Is(err, bus.ErrLost): // no answer
	default:
		s.failure = err
	}
	if bus.IsNamed(err, "org.freedesktop.DBus.Error.UnknownObject") {
		return State{Level: plan.NotRequired, Note: "systemd-sysupdated has no target for the host"}, nil
	}
	if err != nil {
		return State{}, err
	}
	return compareImages(newest, booted), nil
}

// newest asks the service for the newest installed version. None is "".
func (s *sysupdate) newest(ctx context.Context) (string, error) {
	body, err := s.bus.Call(ctx, bus.Call{
		Destination: sysupdateName, Path: sysupdateHost, Member: sysupdateTarget + ".GetVersion",
		NoAutoStart: !s.mayStart(), Timeout: sysupdateTimeout,
	})
	if err != nil {
		return "", classify(err, "the bus policy denies GetVersion: install kured-agent's policy file")
	}
	version, ok := onlyValue[string](body)
	if !ok {
		return "", errors.New("reading the version of systemd-sysupdated: not one string")
	}
	return version, nil
}

// mayStart says whether this read may start the service: once in a slow tick. Its own exit is a hint to read, and that
// must not start it again.
func (s *sysupdate) mayStart() bool {
	if !s.bus.Connected() || !s.started.IsZero() && time.Since(s.started) < pollLevel {
		return false
	}
	s.started = time.Now()
	return true
}

func compareImages(newest, booted string) State {
	if newest == "" {
		return State{Level: plan.NotRequired, Note: "no version is installed"}
	}
	if compareVersions(newest, booted) <= 0 {
		return State{Level: plan.NotRequired, Note: "booted " + clean(booted, plan.MaxReasonID)}
	}
	return State{Level: plan.Required, Reasons: []plan.Reason{{
		ID: newest, Text: fmt.Sprintf("version %s is installed, %s is booted", newest, booted), Kind: plan.KindFull,
	}}}
}

// imageVersion returns the version of the booted image.
func imageVersion(root string) (string, error) {
	content, err := readFile(filepath.Join(root, "etc/os-release"))
	if errors.Is(err, fs.ErrNotExist) {
		content, err = readFile(filepath.Join(root, "usr/lib/os-release"))
	}
	if err != nil {
		return "", err
	}
	version := parseImageVersion(string(content))
	if version == "" {
		return "", errors.New("reading the booted version: os-release has no IMAGE_VERSION")
	}
	return version, nil
}

// parseImageVersion returns the last IMAGE_VERSION of an os-release file, which may be quoted. A version has no
// characters that would have to be escaped.
func parseImageVersion(content string) string {
	version := ""
	for line := range strings.Lines(content) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "IMAGE_VERSION="); ok {
			version = clean(strings.Trim(value, `"'`), plan.MaxReasonID)
		}
	}
	return version
}
