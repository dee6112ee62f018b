// SPDX-License-Identifier: Apache-2.0

// Package signal runs the sources that say whether a reboot is required, and holds what they say.
//
// A source is one file of this package: its options and their validation, its reader, and its registration in init.
// What triggers a read (a signal on the bus, an inotify event, a timer) is only a hint; the source then reads the level
// again and reports it. A level is required, not required or unknown: a reader that fails says "unknown" with the
// error, never "no" (kubereboot/kured#53, #894). Everything that is read comes from outside and is bounded here.
package signal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/text"
)

// State is what one source says.
type State struct {
	Level   plan.Level
	Reasons []plan.Reason // of a required reboot
	Err     error         // why the level is unknown
	Note    string        // a remark for people, e.g. "service absent"
}

// Source reports its state after every read until ctx ends. Run returns an error when it can't go on; it is then run
// again after a while.
type Source interface {
	Name() string // "type:what", or the type alone
	Run(ctx context.Context, report func(State)) error
}

// Env is what sources are built on.
type Env struct {
	Bus     *bus.Bus
	Root    string // prefix of host paths: "/"
	Runtime string // directory for what must survive the agent but not a boot: /run/kured-agent
	Logger  *slog.Logger
	// Started is when a soft reboot began the userspace that runs; zero: none did. What is in /run outlives one.
	Started time.Time
}

// Spec is one configured source.
type Spec struct {
	Type    string
	Options map[string]any
	Preset  bool // of the default set: it rests while its service is not installed
}

// Problem is a mistake in the options of a source. An empty Key means the whole table.
type Problem struct{ Key, Message string }

// kind is a registered type of source.
type kind struct {
	about About
	keys  []key
	check func(options map[string]any) []Problem // what concerns more than one key; may be nil
	build func(options map[string]any, env Env) Source
	// presets are the options of its sources in the default set.
	presets []map[string]any
	// installed says whether a preset has something to watch on the host under root; nil: on every host.
	installed func(root string) bool
}

// About tells people about a type: docs/sources.md is rendered from it. Plain Markdown, each one line.
type About struct {
	Watched  string // what is read, and what hints at a change
	Required string // when it requires a reboot
	Cleared  string // when it takes that back
	Beside   string // what must be switched off beside it, since it reboots by itself; empty: nothing
}

// key is one option. check returns what is wrong with a value, or "".
type key struct {
	name     string
	required bool
	check    func(v any) string
}

var kinds = map[string]kind{}

// register is called from init; a mistake there is one of the program.
func register(typ string, k kind) {
	told := k.about.Watched != "" && k.about.Required != "" && k.about.Cleared != ""
	if _, taken := kinds[typ]; taken || typ == "" || k.build == nil || !told {
		panic(fmt.Sprintf("registering source type %q: duplicate or incomplete", typ))
	}
	kinds[typ] = k
}

// Types returns the registered types in alphabetical order.
func Types() []string { return slices.Sorted(maps.Keys(kinds)) }

// Keys returns the option keys of a type, "type" itself aside.
func Keys(typ string) []string {
	var names []string
	for _, k := range kinds[typ].keys {
		names = append(names, k.name)
	}
	return names
}

// Check returns every problem of a source's options. A key "type" is passed over.
func Check(typ string, options map[string]any) []Problem {
	k, ok := kinds[typ]
	if !ok {
		return []Problem{{"type", fmt.Sprintf("unknown source type %q%s", typ, suggest(typ, Types()))}}
	}
	var problems []Problem
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if name != "type" && !slices.Contains(Keys(typ), name) {
			message := fmt.Sprintf("unknown key for source type %q%s", typ, suggest(name, Keys(typ)))
			problems = append(problems, Problem{name, message})
		}
	}
	for _, key := range k.keys {
		v, given := options[key.name]
		switch {
		case !given && key.required:
			problems = append(problems, Problem{"", fmt.Sprintf("source type %q needs the key %q", typ, key.name)})
		case given:
			if wrong := key.check(v); wrong != "" {
				problems = append(problems, Problem{key.name, wrong})
			}
		}
	}
	if len(problems) == 0 && k.check != nil {
		problems = k.check(options)
	}
	return problems
}

// Defaults returns the sources of a configuration without a [[source]]: the files, requests, and every preset. A preset
// whose service is not installed rests, and starts by itself once it is.
func Defaults() []Spec {
	var specs []Spec
	for _, typ := range slices.SortedFunc(maps.Keys(kinds), defaultOrder) {
		for _, options := range kinds[typ].presets {
			specs = append(specs, Spec{Type: typ, Options: options, Preset: true})
		}
	}
	return specs
}

// defaultOrder puts what every host has first.
func defaultOrder(a, b string) int {
	rank := func(typ string) int {
		if i := slices.Index([]string{"file", "request"}, typ); i >= 0 {
			return i
		}
		return 2
	}
	if d := rank(a) - rank(b); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}

// Build makes the sources. Two of the same name are told apart by a number.
func Build(specs []Spec, env Env) ([]Source, error) {
	if env.Root == "" {
		env.Root = "/"
	}
	if env.Logger == nil {
		env.Logger = slog.New(slog.DiscardHandler)
	}
	var sources []Source
	var errs []error
	seen := map[string]int{}
	for _, spec := range specs {
		if problems := Check(spec.Type, spec.Options); len(problems) > 0 {
			for _, p := range problems {
				errs = append(errs, fmt.Errorf("building source %q: key %q: %s", spec.Type, p.Key, p.Message))
			}
			continue
		}
		k := kinds[spec.Type]
		source := k.build(spec.Options, env)
		if spec.Preset && k.installed != nil {
			source = preset{source, func() bool { return k.installed(env.Root) }}
		}
		seen[source.Name()]++
		if n := seen[source.Name()]; n > 1 {
			source = renamed{source, fmt.Sprintf("%s#%d", source.Name(), n)}
		}
		sources = append(sources, source)
	}
	return sources, errors.Join(errs...)
}

// preset is a source of the default set, which may have nothing to watch on this host.
type preset struct {
	Source
	installed func() bool
}

// notInstalled is what a resting preset says of itself.
const notInstalled = "not on this host"

type renamed struct {
	Source
	name string
}

func (r renamed) Name() string { return r.name }

// bound makes a reported state safe to keep and print: the source's name in each reason, bounded length and number, no
// control characters, never a requirement without a reason.
func bound(name string, s State) State {
	if s.Level != plan.Required {
		s.Reasons = nil
		return s
	}
	if len(s.Reasons) == 0 {
		s.Reasons = []plan.Reason{{ID: typeOf(name)}}
	}
	reasons := make([]plan.Reason, 0, min(len(s.Reasons), plan.MaxReasons))
	for _, r := range s.Reasons[:min(len(s.Reasons), plan.MaxReasons)] {
		if r.Kind < plan.KindSoft || r.Kind > plan.KindFull {
			r.Kind = plan.KindFull
		}
		reasons = append(reasons, plan.Reason{
			Source: name,
			ID:     clean(r.ID, plan.MaxReasonID),
			Text:   clean(r.Text, plan.MaxReasonText),
			Kind:   r.Kind,
		})
	}
	s.Reasons = reasons
	return s
}

// clean returns s in printable characters and at most size bytes. What is cut has no mark: reasons are compared by ID.
func clean(s string, size int) string { return text.Plain(text.Cut(s, size)) }

// typeOf returns the type part of a source's name.
func typeOf(name string) string {
	typ, _, _ := strings.Cut(name, ":")
	typ, _, _ = strings.Cut(typ, "#")
	return typ
}
