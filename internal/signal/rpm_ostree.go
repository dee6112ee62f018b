// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	rpmOstreeName  = "org.projectatomic.rpmostree1"
	rpmOstreePath  = "/org/projectatomic/rpmostree1/Sysroot"
	rpmOstreeIface = "org.projectatomic.rpmostree1.Sysroot"
)

func init() {
	register("rpm-ostree", kind{
		about: About{
			Watched: "`Deployments` of `org.projectatomic.rpmostree1`, which leaves the bus after a minute of idling and is " +
				"started at most once to be asked; and, staged by whom ever, `/run/ostree/staged-deployment` and its " +
				"lock (inotify); both every 10 minutes",
			Required: "the next boot is into another deployment than the one that runs: a staged one that is not locked, " +
				"or the first that the boot loader has",
			Cleared: "`rpm-ostree cleanup -p`, a lock, or the boot",
			Beside: "`systemctl mask --now zincati.service`, and `AutomaticUpdatePolicy=stage` in place of `apply` in " +
				"`/etc/rpm-ostreed.conf`",
		},
		build: func(_ map[string]any, env Env) Source {
			return &rpmOstree{bus: env.Bus, root: env.Root, log: env.Logger}
		},
		presets: []map[string]any{nil}, installed: byRPMOstree,
	})
}

// rpmOstree takes the file of libostree for the truth about a staged deployment: it is there while the service is not,
// and the service misses locks (its own remark on "finalization-locked"). What else would boot, after a rollback say,
// only the service knows.
type rpmOstree struct {
	bus     *bus.Bus
	root    string
	log     *slog.Logger
	service visitor[[]rpmDeployment]
}

// rpmDeployment is one entry of Deployments, which has the next to boot first.
type rpmDeployment struct {
	name, version          string
	booted, staged, locked bool
}

func (r *rpmOstree) Name() string { return "rpm-ostree" }

func (r *rpmOstree) Run(ctx context.Context, report func(State)) error {
	hint := newHints()
	go watchDir(ctx, r.log, filepath.Join(r.root, ostreeRun), hint)
	return follower{
		bus: r.bus, hint: hint, every: pollLevel,
		match: bus.Match{
			Sender: rpmOstreeName, Path: rpmOstreePath,
			Interface: "org.freedesktop.DBus.Properties", Member: "PropertiesChanged", Arg0: rpmOstreeIface,
		},
	}.run(ctx, r.read, report)
}

func (r *rpmOstree) read(ctx context.Context) (State, error) {
	list, away, err := r.service.read(func(start bool) ([]rpmDeployment, error) { return r.ask(ctx, start) })
	staged, fileErr := readStaged(r.root)
	if fileErr != nil {
		if away || err != nil {
			return State{}, fileErr
		}
		staged = stagedOf(list)
	}
	if staged != nil && !staged.locked {
		return stagedState(staged, "rpm-ostree deployment"+versionOf(list, staged.name)), nil
	}
	if err != nil {
		return State{}, err // without the service nobody knows what else would boot
	}
	return nextBoot(list, staged)
}

func (r *rpmOstree) ask(ctx context.Context, start bool) ([]rpmDeployment, error) {
	body, err := r.bus.Call(ctx, visit(start, bus.Call{
		Destination: rpmOstreeName, Path: rpmOstreePath, Member: "org.freedesktop.DBus.Properties.Get",
		Args: []any{rpmOstreeIface, "Deployments"},
	}))
	if err != nil {
		return nil, classify(err, "the bus policy denies reading Deployments of rpm-ostree")
	}
	return parseDeployments(body)
}

// parseDeployments reads a variant of aa{sv}.
func parseDeployments(body []any) ([]rpmDeployment, error) {
	if len(body) != 1 {
		return nil, errors.New("reading the deployments of rpm-ostree: not one value")
	}
	v, _ := body[0].(dbus.Variant)
	dicts, ok := v.Value().([]map[string]dbus.Variant)
	if !ok {
		return nil, errors.New("reading the deployments of rpm-ostree: not a list of dictionaries")
	}
	var list []rpmDeployment
	for i, dict := range dicts {
		d, ok := parseRPMDeployment(dict)
		if !ok {
			return nil, fmt.Errorf("reading the deployments of rpm-ostree: number %d has no name or is neither booted nor not", i)
		}
		list = append(list, d)
	}
	return list, nil
}

func parseRPMDeployment(dict map[string]dbus.Variant) (rpmDeployment, bool) {
	checksum, _ := dict["checksum"].Value().(string)
	serial, ok := dict["serial"].Value().(int32)
	booted, ok2 := dict["booted"].Value().(bool)
	d := rpmDeployment{name: fmt.Sprintf("%s.%d", checksum, serial), booted: booted}
	d.version, _ = dict["version"].Value().(string)
	d.staged, _ = dict["staged"].Value().(bool)
	d.locked, _ = dict["finalization-locked"].Value().(bool)
	return d, ok && ok2 && deploymentName.MatchString(d.name)
}

// nextBoot says whether the boot loader has another deployment first than the one that runs. A staged one, here locked
// or nil, is not with the boot loader.
func nextBoot(list []rpmDeployment, staged *deployment) (State, error) {
	running := slices.IndexFunc(list, func(d rpmDeployment) bool { return d.booted })
	if running < 0 {
		return State{}, errors.New("reading the deployments of rpm-ostree: none is booted")
	}
	first := slices.IndexFunc(list, func(d rpmDeployment) bool { return d.booted || !d.staged })
	if first == running {
		return stagedState(staged, ""), nil
	}
	next := deployment{name: list[first].name, base: list[running].name}
	return State{Level: plan.Required, Reasons: []plan.Reason{{
		ID: next.id(), Kind: plan.KindFull,
		Text: "rpm-ostree deployment" + versionOf(list, next.name) + " " + short(next.name) + " is the next to boot",
	}}}, nil
}

// stagedOf is what the service says of a staged deployment.
func stagedOf(list []rpmDeployment) *deployment {
	var staged *deployment
	var booted string
	for _, d := range list {
		switch {
		case d.booted:
			booted = d.name
		case d.staged:
			staged = &deployment{name: d.name, locked: d.locked}
		}
	}
	if staged != nil {
		staged.base = booted
	}
	return staged
}

// versionOf is " <version>" of a deployment in the list, or "".
func versionOf(list []rpmDeployment, name string) string {
	for _, d := range list {
		if d.name == name && d.version != "" {
			return " " + clean(d.version, maxVersion)
		}
	}
	return ""
}

// maxVersion is enough for any version, and leaves room for what is said about it.
const maxVersion = 100
