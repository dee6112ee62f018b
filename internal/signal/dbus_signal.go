// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

func init() {
	register("dbus-signal", kind{
		about: About{
			Watched:  "one signal of one service on the system bus; what it says while the agent is down is missed",
			Required: "the signal arrives, or its `argument` equals the given value",
			Cleared:  "the signal arrives with another value, or the reboot",
		},
		keys: []key{
			{name: "name", required: true, check: isBusName},
			{name: "path", required: true, check: isObjectPath},
			{name: "interface", required: true, check: isInterface},
			{name: "signal", required: true, check: isMember},
			{name: "argument", check: isArgument},
			{name: "equals", check: isValue},
		},
		check: func(options map[string]any) []Problem {
			_, argument := options["argument"]
			_, equals := options["equals"]
			switch {
			case argument && !equals:
				return []Problem{{"argument", `needs the key "equals"`}}
			case equals && !argument:
				return []Problem{{"equals", `needs the key "argument"`}}
			}
			return nil
		},
		build: func(options map[string]any, env Env) Source { return newBroadcast(options, env) },
	})
}

// broadcast takes its level from the last signal of a service that has no state to read: required when the argument has
// the given value, not required when it has another. Without an argument each signal requires a reboot. The level is
// kept in the runtime directory, because it could not be learned again after a restart of the agent; a boot clears it.
type broadcast struct {
	bus      *bus.Bus
	match    bus.Match
	argument int // -1: any signal will do
	equals   any
	stored   string // file

	mu        sync.Mutex
	heard     *lastSignal // newest signal that was understood and not yet stored
	malformed int
}

// lastSignal is what is kept of a signal.
type lastSignal struct {
	Required bool `json:"required"`
}

func newBroadcast(options map[string]any, env Env) *broadcast {
	str := func(key string) string { return options[key].(string) }
	s := &broadcast{
		bus:      env.Bus,
		match:    bus.Match{Sender: str("name"), Path: str("path"), Interface: str("interface"), Member: str("signal")},
		argument: -1,
	}
	if n, ok := options["argument"].(int64); ok {
		s.argument, s.equals = int(n), options["equals"]
	}
	// Another meaning of the same signal must not inherit the level.
	id := sha256.Sum256(fmt.Appendf(nil, "%q %d %T %v", s.match, s.argument, s.equals, s.equals))
	s.stored = filepath.Join(env.Runtime, fmt.Sprintf("signal-%x.json", id[:8]))
	return s
}

func (s *broadcast) Name() string { return "dbus-signal:" + s.match.Interface + "." + s.match.Member }

func (s *broadcast) Run(ctx context.Context, report func(State)) error {
	hint := newHints()
	defer s.bus.Watch(s.match, func(sig bus.Signal) { s.hear(sig.Body); hint.poke() })()
	defer s.bus.OnChange(hint.poke)()
	if err := awaitBus(ctx, s.bus, hint); err != nil {
		return err
	}
	for {
		report(s.state())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-hint:
		}
	}
}

// hear runs on the bus goroutine.
func (s *broadcast) hear(body []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.argument < 0 {
		s.heard = &lastSignal{Required: true}
		return
	}
	if s.argument >= len(body) {
		s.malformed++
		return
	}
	equal, ok := compare(s.equals, body[s.argument])
	if !ok {
		s.malformed++
		return
	}
	s.heard = &lastSignal{Required: equal}
}

// state stores what was heard and returns the level.
func (s *broadcast) state() State {
	s.mu.Lock()
	heard, malformed := s.heard, s.malformed
	s.mu.Unlock()

	note := ""
	if malformed > 0 {
		note = fmt.Sprintf("%d malformed signals ignored", malformed)
	}
	last, err := s.load()
	switch {
	case heard != nil && (last == nil || *last != *heard):
		// The level is known even when it can't be stored; it is tried again at the next signal.
		if err := writeJSON(s.stored, heard); err != nil {
			note = fmt.Sprintf("forgotten when the agent restarts: %v", err)
		}
		last = heard
	case heard != nil:
	case err != nil:
		return State{Level: plan.Unknown, Err: err}
	case last == nil:
		last = &lastSignal{}
		note = "no signal yet"
	}
	switch {
	case !s.bus.Connected():
		return State{Level: plan.Unknown, Err: bus.ErrNotConnected}
	case !last.Required:
		return State{Level: plan.NotRequired, Note: note}
	}
	return State{Level: plan.Required, Note: note, Reasons: []plan.Reason{s.reason()}}
}

func (s *broadcast) reason() plan.Reason {
	if s.argument < 0 {
		return plan.Reason{
			ID:   s.match.Member,
			Text: fmt.Sprintf("%s sent %s", s.match.Sender, s.match.Member),
			Kind: plan.KindFull,
		}
	}
	return plan.Reason{
		ID:   fmt.Sprintf("%s=%v", s.match.Member, s.equals),
		Text: fmt.Sprintf("%s sent %s with %v", s.match.Sender, s.match.Member, s.equals),
		Kind: plan.KindFull,
	}
}

// load returns what was stored in this boot, or nil.
func (s *broadcast) load() (*lastSignal, error) {
	content, err := readFile(s.stored)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseLastSignal(content)
}

func parseLastSignal(content []byte) (*lastSignal, error) {
	var last *lastSignal
	if err := json.Unmarshal(content, &last); err != nil {
		return nil, fmt.Errorf("reading the last signal: %w", err)
	}
	if last == nil {
		return nil, errors.New("reading the last signal: the file says null")
	}
	return last, nil
}
