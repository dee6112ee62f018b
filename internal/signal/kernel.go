// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	bootDir     = "boot"
	modulesDir  = "lib/modules"
	releaseFile = "proc/sys/kernel/osrelease"

	maxEntries = 4096 // of a directory
)

var (
	imagePrefixes = []string{"vmlinuz-", "vmlinux-", "Image-", "image-", "bzImage-", "zImage-", "kernel-"}
	// copies are endings of what is no kernel to boot: what package managers and "make install" keep beside one.
	copies = []string{".old", ".bak", ".orig", "~"}
	// machines are how rpm ends the version of a kernel.
	machines = []string{
		"x86_64", "aarch64", "ppc64le", "ppc64", "s390x", "riscv64", "loongarch64", "armv7hl", "i686", "i586", "i386",
	}
)

func init() {
	register("kernel", kind{
		about: About{
			Watched: "the kernel images in `/boot` (inotify, and every 5 minutes) and, where the agent's unit is given " +
				"`ProtectKernelModules=no`, `/lib/modules`",
			Required: "there is a newer kernel of the same flavour than the running one; rescue images do not count",
			Cleared:  "it is removed, or running",
		},
		build: func(_ map[string]any, env Env) Source { return &kernel{env.Root, env.Logger} },
	})
}

var errNoKernel = errors.New("no kernel to compare with in /boot or /lib/modules")

// kernel compares the installed kernels with the running one. It is not in the default set: a host may boot another
// kernel than its newest on purpose, and then the need stays after the reboot. A new kernel needs no pass through the
// firmware.
type kernel struct {
	root string
	log  *slog.Logger
}

func (k *kernel) Name() string { return "kernel" }

func (k *kernel) Run(ctx context.Context, report func(State)) error {
	var events <-chan fsnotify.Event
	var failures <-chan error
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer w.Close()
		events, failures = w.Events, w.Errors
	} else {
		k.log.Warn("watching by polling", "source", k.Name(), "every", pollWatched, "err", err)
	}
	timer := time.NewTimer(pollWatched)
	defer timer.Stop()
	for {
		if w != nil {
			for _, dir := range []string{bootDir, modulesDir} {
				// Each time: a file system may have been mounted over it. What can't be watched is polled.
				_ = w.Add(filepath.Join(k.root, dir))
			}
		}
		report(k.read())
		timer.Reset(pollWatched)
		if err := awaitNames(ctx, events, failures, timer.C); err != nil {
			return err
		}
	}
}

// awaitNames returns when a name in a watched directory may have come or gone, with an error only at the end of ctx. An
// initrd is written in thousands of steps: writes alone are no reason to look.
func awaitNames(
	ctx context.Context, events <-chan fsnotify.Event, failures <-chan error, timer <-chan time.Time,
) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer:
			return nil
		case _, ok := <-failures: // the queue overflowed: events are missing
			if !ok {
				return errors.New("the inotify watcher ended")
			}
			return nil
		case event, ok := <-events:
			if !ok {
				return errors.New("the inotify watcher ended")
			}
			if event.Has(fsnotify.Create) || event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
				return nil
			}
		}
	}
}

func (k *kernel) read() State {
	content, err := readFile(filepath.Join(k.root, releaseFile))
	if err != nil {
		return State{Level: plan.Unknown, Err: err}
	}
	images, errBoot := k.images()
	modules, errModules := k.modules()
	installed := slices.Concat(images, modules)
	if len(installed) == 0 {
		return State{Level: plan.Unknown, Err: fmt.Errorf("%w (the agent's unit sees /lib/modules only with a drop-in that "+
			"says ProtectKernelModules=no)", cmp.Or(errBoot, errModules, errNoKernel))}
	}
	running := firstLine(content)
	newest := newestKernel(running, installed)
	if newest == "" {
		return State{Level: plan.NotRequired, Note: "running " + clean(running, plan.MaxReasonID)}
	}
	return State{Level: plan.Required, Reasons: []plan.Reason{{
		ID: newest, Text: fmt.Sprintf("kernel %s is installed, %s is running", newest, running), Kind: plan.KindKexec,
	}}}
}

// images returns the kernels in /boot.
func (k *kernel) images() ([]string, error) {
	entries, err := readDir(filepath.Join(k.root, bootDir))
	var found []string
	for _, e := range entries {
		for _, prefix := range imagePrefixes {
			if release, ok := strings.CutPrefix(e.Name(), prefix); ok && !e.IsDir() {
				found = append(found, release)
			}
		}
	}
	return found, err
}

// modules returns the kernels whose image is beside their modules. A directory without one may be the rest of a kernel
// that was removed.
func (k *kernel) modules() ([]string, error) {
	dir := filepath.Join(k.root, modulesDir)
	entries, err := readDir(dir)
	var found []string
	for _, e := range entries {
		if exists(filepath.Join(dir, e.Name(), "vmlinuz")) {
			found = append(found, e.Name())
		}
	}
	return found, err
}

// readDir returns at most maxEntries entries, and none of a directory that is not there.
func readDir(path string) ([]fs.DirEntry, error) {
	d, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(maxEntries)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}

// newestKernel returns the newest of the installed kernels that is newer than the running one and of its flavour.
func newestKernel(running string, installed []string) string {
	version, flavour := splitRelease(running)
	newest := ""
	for _, release := range installed {
		if !isRelease(release) {
			continue
		}
		v, f := splitRelease(release)
		if f == flavour && compareVersions(v, version) > 0 {
			newest, version = release, v
		}
	}
	return newest
}

func isRelease(s string) bool {
	isCopy := slices.ContainsFunc(copies, func(ending string) bool { return strings.HasSuffix(s, ending) })
	return s != "" && isDigit(rune(s[0])) && !isCopy && !strings.Contains(s, ".dpkg-") && !strings.Contains(s, ".rpm") &&
		!strings.HasPrefix(s, "0-rescue") && len(s) <= plan.MaxReasonID
}

// splitRelease splits what uname -r says into the version and the flavour, the words at its end: "6.1.0-28" and
// "cloud-amd64", "5.14.0-503.el9" and "x86_64+rt". Kernels of different flavours don't follow one another.
func splitRelease(release string) (version, flavour string) {
	for _, machine := range machines {
		version, variant, ok := strings.Cut(release, "."+machine)
		if ok && (variant == "" || strings.ContainsRune("+._", rune(variant[0]))) {
			// A vendor's own kernels are told by the end of the tag: el9uek, el9.elrepo.
			return version, version[len(strings.TrimRightFunc(version, isLetter)):] + machine + variant
		}
	}
	fields := strings.Split(release, "-")
	n := len(fields)
	for n > 1 && isWord(fields[n-1]) {
		n--
	}
	return strings.Join(fields[:n], "-"), strings.Join(fields[n:], "-")
}

// isWord says whether a part of a release is no version: a word, or a size of pages.
func isWord(s string) bool {
	if s == "" || isLetter(rune(s[0])) {
		return s != ""
	}
	rest := strings.TrimLeftFunc(s, isDigit)
	return rest != s && (rest == "k" || rest == "kb")
}
