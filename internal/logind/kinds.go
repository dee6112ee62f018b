// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// Flags of RebootWithFlags. Skipping inhibitors is never right: the holder may be the package manager. Its value is not
// the 4 of the manual page of systemd 257, which is the soft reboot (systemd/systemd#37975).
const (
	flagKexec          uint64 = 1 << 1
	flagSoft           uint64 = 1 << 2
	flagSkipInhibitors uint64 = 1 << 4
)

// Versions of systemd that brought RebootWithFlags and its flags.
const (
	flagsSince = 248
	kexecSince = 249
	softSince  = 256 // 254 has it, but does not count: it could not be proven
)

// kexecLoaded says whether a kernel is loaded: without one logind takes a reboot by kexec for a full one.
const kexecLoaded = "/sys/kernel/kexec_loaded"

// Kinds returns the kinds of reboot that this host can do now, in rising order. The full one is always among them, and
// alone when the version of systemd can't be told.
func (c *Client) Kinds(ctx context.Context) []plan.Kind {
	var kinds []plan.Kind
	version, err := c.version(ctx)
	if err == nil {
		for _, kind := range []plan.Kind{plan.KindSoft, plan.KindKexec} {
			if c.missing(kind, version) == nil {
				kinds = append(kinds, kind)
			}
		}
	}
	return append(kinds, plan.KindFull)
}

// flags returns those of a kind, or why this host can't do it. Never is a lesser kind asked for than the caller wants.
func (c *Client) flags(ctx context.Context, kind plan.Kind) (uint64, error) {
	switch kind {
	case plan.KindFull:
		return 0, nil
	case plan.KindSoft, plan.KindKexec:
		version, err := c.version(ctx)
		if errors.Is(err, errNoVersion) {
			return 0, &RefusedError{Unsupported, err}
		}
		if err != nil {
			return 0, c.notAsked(ctx, err)
		}
		if err := c.missing(kind, version); err != nil {
			return 0, &RefusedError{Unsupported, err}
		}
		if kind == plan.KindSoft {
			return flagSoft, nil
		}
		return flagKexec, nil
	}
	return 0, &RefusedError{Other, fmt.Errorf("a reboot of kind %q is not supported", kind)}
}

// missing says what a soft reboot or one by kexec lacks on this host.
func (c *Client) missing(kind plan.Kind, version int) error {
	if kind == plan.KindSoft {
		if version < softSince {
			return fmt.Errorf("systemd %d has no soft reboot that can be proven, %d has", version, softSince)
		}
		return nil
	}
	if version < kexecSince {
		return fmt.Errorf("logind of systemd %d has no reboot by kexec, %d has", version, kexecSince)
	}
	loaded, err := os.ReadFile(filepath.Join(c.Root, kexecLoaded))
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("this kernel has no kexec")
	}
	if err != nil {
		return fmt.Errorf("reading whether a kernel is loaded for kexec: %w", err)
	}
	if strings.TrimSpace(string(loaded)) != "1" {
		return errors.New("no kernel is loaded for kexec")
	}
	return nil
}

var errNoVersion = errors.New("reading the version of systemd: no number in it")

// version is that of the service manager. logind comes with it and tells none.
func (c *Client) version(ctx context.Context) (int, error) {
	const systemd1 = "org.freedesktop.systemd1"
	s, err := bus.Property[string](ctx, c.bus, systemd1, "/org/freedesktop/systemd1", systemd1+".Manager", "Version")
	if err != nil {
		return 0, err
	}
	version, ok := parseVersion(s)
	if !ok {
		return 0, errNoVersion
	}
	return version, nil
}

// parseVersion finds the number in "252.39-1~deb12u1", "v255", "systemd 249 (249.11)": distributions add what they like.
func parseVersion(s string) (version int, ok bool) {
	notDigit := func(r rune) bool { return r < '0' || r > '9' }
	s = strings.TrimLeftFunc(s, notDigit)
	if end := strings.IndexFunc(s, notDigit); end >= 0 {
		s = s[:end]
	}
	version, err := strconv.Atoi(s)
	return version, err == nil && version > 0
}
