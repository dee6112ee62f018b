// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	firstRestart = time.Second
	lastRestart  = time.Minute
	firstReads   = 5 * time.Second
)

// Set runs sources and joins what they say.
type Set struct {
	log     *slog.Logger
	settle  time.Duration
	changed chan struct{}
	first   chan struct{} // closed once every source reported

	mu      sync.Mutex
	entries []*entry
	unread  int
}

type entry struct {
	source Source
	state  State
	since  time.Time // of the level
	read   bool

	// claim is what the source required last and has not taken back for as long as the settle time.
	claimed  bool
	claim    []plan.Reason
	vanished time.Time // since when it says, without a break, that nothing is required; zero: it does not
}

// Status is one source as people see it.
type Status struct {
	Name, Type string
	State      State
	Since      time.Time // of the level; zero before the first read
}

// NewSet returns a Set that reads nothing until Run. seed holds the reasons known from before a restart of the agent:
// their sources count as unknown, not as silent, until they say something definite.
func NewSet(sources []Source, seed []plan.Reason, settle time.Duration, logger *slog.Logger) *Set {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &Set{
		log: logger, settle: settle,
		changed: make(chan struct{}, 1), first: make(chan struct{}),
		unread: len(sources),
	}
	for _, source := range sources {
		e := &entry{source: source, state: State{Level: plan.Unknown, Note: "not read yet"}}
		for _, r := range seed {
			if r.Source == source.Name() && len(e.claim) < plan.MaxReasons {
				e.claimed, e.claim = true, append(e.claim, r)
			}
		}
		s.entries = append(s.entries, e)
	}
	if s.unread == 0 {
		close(s.first)
	}
	return s
}

// Run runs every source until ctx ends, each on its own: one that fails or panics is told as unknown and run again.
func (s *Set) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	var resting []*entry
	for _, e := range s.entries {
		if p, ok := e.source.(preset); ok && !p.installed() {
			resting = append(resting, e)
			s.report(e, State{Level: plan.NotRequired, Note: notInstalled})
			continue
		}
		wg.Go(func() { s.supervise(ctx, e) })
	}
	s.rest(ctx, resting, func(e *entry) { wg.Go(func() { s.supervise(ctx, e) }) })
	wg.Wait()
	return nil
}

// rest waits for the services of presets to be installed: nobody should have to restart the agent for that. There are
// many and most never come, so they share a goroutine.
func (s *Set) rest(ctx context.Context, resting []*entry, start func(*entry)) {
	tick := time.NewTicker(pollLevel)
	defer tick.Stop()
	for len(resting) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		resting = slices.DeleteFunc(resting, func(e *entry) bool {
			installed := e.source.(preset).installed()
			if installed {
				start(e)
			}
			return installed
		})
	}
}

// Changed delivers after anything changed that a decision may rest on: take a new Snapshot.
func (s *Set) Changed() <-chan struct{} { return s.changed }

// WaitFirst returns when every source has reported once, after 5 s, or with ctx.
func (s *Set) WaitFirst(ctx context.Context) {
	timer := time.NewTimer(firstReads)
	defer timer.Stop()
	select {
	case <-s.first:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Snapshot returns the joint level, the reasons (of an unknown level: those of the sources that can't be read or are
// about to take theirs back), and the state of each source.
func (s *Set) Snapshot() (plan.Level, []plan.Reason, []Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	joint := plan.NotRequired
	var required, unknown []plan.Reason
	statuses := make([]Status, 0, len(s.entries))
	now := time.Now()
	for _, e := range s.entries {
		switch e.level(now, s.settle) {
		case plan.Required:
			joint = plan.Required
			required = append(required, e.state.Reasons...)
		case plan.Unknown:
			if joint != plan.Required {
				joint = plan.Unknown
			}
			unknown = append(unknown, e.claim...)
		case plan.NotRequired:
		}
		name := e.source.Name()
		statuses = append(statuses, Status{Name: name, Type: typeOf(name), State: e.state, Since: e.since})
	}
	if joint == plan.Required {
		return joint, required, statuses
	}
	return joint, unknown, statuses
}

// level is what the entry contributes to the joint level.
func (e *entry) level(now time.Time, settle time.Duration) plan.Level {
	switch {
	case !e.read:
		return plan.Unknown
	case e.state.Level == plan.Required:
		return plan.Required
	case !e.claimed:
		// Nothing, or a failure that never had anything to lose: shown, but it holds nobody up.
		return plan.NotRequired
	case e.state.Level == plan.Unknown:
		return plan.Unknown
	case now.Sub(e.vanished) < settle:
		// transactional-update removes its file when a run starts and writes it anew at the end: neither reboot into
		// that nor take everything back.
		return plan.Unknown
	}
	e.claimed, e.claim = false, nil
	return plan.NotRequired
}

func (s *Set) report(e *entry, state State) {
	state = bound(e.source.Name(), state)
	s.mu.Lock()
	defer s.mu.Unlock()
	same := e.read && e.state.Level == state.Level && slices.Equal(e.state.Reasons, state.Reasons) &&
		message(e.state.Err) == message(state.Err)
	if !e.read || e.state.Level != state.Level {
		e.since = time.Now()
	}
	if !e.read {
		e.read = true
		if s.unread--; s.unread == 0 {
			close(s.first)
		}
	}
	e.state = state
	switch {
	case state.Level == plan.Required:
		e.claimed, e.claim, e.vanished = true, state.Reasons, time.Time{}
	case state.Level == plan.Unknown:
		e.vanished = time.Time{}
	case e.claimed && e.vanished.IsZero():
		e.vanished = time.Now()
		time.AfterFunc(s.settle, s.notify)
	}
	if !same {
		s.notify()
	}
}

func (s *Set) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Set) supervise(ctx context.Context, e *entry) {
	delay := firstRestart
	for {
		began := time.Now()
		err := s.runOnce(ctx, e)
		if ctx.Err() != nil {
			return
		}
		s.log.Error("a source stopped, it will be run again", "source", e.source.Name(), "err", err, "in", delay)
		s.report(e, State{Level: plan.Unknown, Err: err})
		if time.Since(began) > lastRestart {
			delay = firstRestart
		}
		timer := time.NewTimer(delay)
		delay = min(2*delay, lastRestart)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (s *Set) runOnce(ctx context.Context, e *entry) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("a source panicked", "source", e.source.Name(), "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("the source panicked: %v", r)
		}
	}()
	err = e.source.Run(ctx, func(state State) { s.report(e, state) })
	if err == nil {
		err = errors.New("the source ended")
	}
	return err
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
