// SPDX-License-Identifier: Apache-2.0

// Package beside finds the other programs that reboot this host by themselves: beside one of them a turn, a window and
// a drain are worth nothing (flatcar/flatcar-linux-update-operator#201, coreos/zincati#1014). Table lists them, each
// with the command that turns it off.
//
// A program counts when a unit that runs it is active, or is enabled and would be active after the next boot, and its
// settings let it reboot. A masked unit that still runs counts too: masking does not stop it.
//
// Not here, because they reboot nothing: needrestart (restarts services), Landscape's and Ubuntu Pro's agents (report),
// kexec-tools, and snapd, which schedules a shutdown only for a new kernel or base snap: logind shows that one.
package beside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kured-agent/kured-agent/internal/files"
)

const (
	maxFile  = 256 << 10 // bytes of one file of settings
	maxFiles = 200       // of one program
)

// Manager is a program that reboots this host, or a pod of this node that does.
type Manager struct {
	Name string // e.g. "unattended-upgrades"
	Why  string // what says so, e.g. "rebootmgr.service is active"
	Off  string // the command that turns it off
}

func (m Manager) String() string {
	return fmt.Sprintf("%s reboots this host by itself (%s); to turn it off: %s", m.Name, m.Why, m.Off)
}

// Row describes one program that Find and FromPod know.
type Row struct {
	Program, Recognised, Off string
}

// Table lists the programs in the order in which Find reports them.
func Table() []Row {
	var rows []Row
	for _, p := range programs {
		rows = append(rows, Row{Program: p.name, Recognised: p.recognised, Off: p.off})
	}
	for _, p := range podPrograms {
		rows = append(rows, Row{Program: p.name, Recognised: p.recognised, Off: offPod(cmp.Or(p.namespace, "NAMESPACE"), p.name)})
	}
	return rows
}

// Units is asked for the state of units.
type Units interface {
	// Installed returns ActiveState and UnitFileState of those of the units that exist, by name.
	Installed(ctx context.Context, names []string) (active, file map[string]string, err error)
}

// Find returns the programs below root that reboot the host by themselves, nil when there is none. An error says which
// programs could not be judged; the others were. It reads files: not for a tight loop.
func Find(ctx context.Context, root string, units Units) ([]Manager, error) {
	var names []string
	for _, p := range programs {
		names = append(names, p.units...)
	}
	active, file, err := units.Installed(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("asking systemd for programs that reboot this host: %w", err)
	}
	var found []Manager
	var unknown []error
	for _, p := range programs {
		m, reboots, err := p.find(root, active, file)
		switch {
		case err != nil:
			unknown = append(unknown, err)
		case reboots:
			found = append(found, m)
		}
	}
	return found, errors.Join(unknown...)
}

func (p program) find(root string, active, file map[string]string) (Manager, bool, error) {
	f := facts{units: p.running(active, file)}
	if len(f.units) == 0 {
		return Manager{}, false, nil
	}
	if p.needs != "" && !exists(filepath.Join(root, p.needs)) {
		return Manager{}, false, nil
	}
	var err error
	if f.files, err = p.read(root); err != nil {
		return Manager{}, false, fmt.Errorf("looking for %s: %w", p.name, err)
	}
	m, reboots := p.judge(f)
	return m, reboots, nil
}

// running returns those units of the program that run now or would after the next boot.
func (p program) running(active, file map[string]string) []unit {
	var on []unit
	for _, name := range p.units {
		switch {
		case slices.Contains([]string{"active", "activating", "reloading", "refreshing"}, active[name]):
			on = append(on, unit{name: name, active: true})
		case file[name] == "enabled" || file[name] == "enabled-runtime":
			on = append(on, unit{name: name})
		}
	}
	return on
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// read returns the program's settings. Its layers are read in order. Within a layer a file hides one of the same base
// name of an earlier pattern, and base names order the files, as the programs themselves do it.
func (p program) read(root string) ([]file, error) {
	var all []file
	for _, layer := range p.files {
		paths, err := match(root, layer)
		if err != nil {
			return nil, err
		}
		for _, name := range paths {
			if p.ignores != nil && p.ignores(name) {
				continue
			}
			content, err := files.Read(filepath.Join(root, name), maxFile)
			switch {
			case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EISDIR):
				continue
			case err != nil:
				return nil, err
			case len(all) == maxFiles:
				return nil, fmt.Errorf("reading %q: more than %d files of settings", name, maxFiles)
			}
			all = append(all, file{path: name, content: string(content)})
		}
	}
	return all, nil
}

// match returns the paths of a layer. filepath.Glob would pass over a directory that can't be read.
func match(root string, layer []string) ([]string, error) {
	byName := map[string]string{}
	for _, pattern := range layer {
		dir, base := path.Split(pattern)
		if !strings.ContainsAny(base, "*") {
			if exists(filepath.Join(root, pattern)) {
				byName[base] = pattern
			}
			continue
		}
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return nil, err
		}
		for _, e := range entries {
			if ok, _ := path.Match(base, e.Name()); ok && !strings.HasPrefix(e.Name(), ".") {
				byName[e.Name()] = dir + e.Name()
			}
		}
	}
	names := make([]string, 0, len(byName))
	for name := range byName {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = byName[name]
	}
	return names, nil
}
