// SPDX-License-Identifier: Apache-2.0

// Package report turns what the loop decided into what people see: journal, STATUS=, the org.kured.Agent1 object,
// metrics, webhooks and Kubernetes Events.
//
// The loop calls Reporter.Update after every decision and never waits: a sink takes a changed update in memory, and
// does what may be slow in its own Run. An update that tells nothing new reaches no sink. A sink that fails is visible
// in the journal, once per change, and in the metrics; it never stops or delays a reboot (kubereboot/kured#1024).
package report

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// Sink is one way to tell people. Take gets every changed update in order, with the one before it (the zero Update at
// first), and must not block. Run does the slow work until ctx ends, and returns soon after.
type Sink interface {
	Take(before, after Update)
	Run(ctx context.Context)
}

// Reporter fans updates out to the sinks.
type Reporter struct {
	mu     sync.Mutex
	before Update
	sinks  []Sink
	latest atomic.Pointer[Update]
}

// starting is the phase before the first decision.
const starting = "Starting"

// New returns a Reporter that knows nothing yet but the node and the version.
func New(node, version string) *Reporter {
	r := &Reporter{}
	start := Update{Node: node, Version: version, Phase: starting, Level: plan.Unknown, API: APIUnneeded}.bounded()
	r.latest.Store(&start)
	return r
}

// Add adds sinks; call it before the first Update and before Run.
func (r *Reporter) Add(sinks ...Sink) { r.sinks = append(r.sinks, sinks...) }

// Latest is the newest update, also when only its counters are new.
func (r *Reporter) Latest() Update { return *r.latest.Load() }

// Update takes the state after a decision. It bounds the values, keeps no reference to them and does not block.
func (r *Reporter) Update(u Update) {
	u = u.bounded()
	r.mu.Lock()
	defer r.mu.Unlock()
	u.steady(r.before)
	r.latest.Store(&u)
	if u.sameAs(r.before) {
		return
	}
	for _, s := range r.sinks {
		s.Take(r.before, u)
	}
	r.before = u
}

// Run runs the sinks until ctx ends and they have said goodbye, which takes at most farewell.
func (r *Reporter) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range r.sinks {
		all.Go(func() { s.Run(ctx) })
	}
	all.Wait()
}

// mailbox holds the newest value for one reader. Only one goroutine may put.
type mailbox[T any] chan T

func newMailbox[T any]() mailbox[T] { return make(mailbox[T], 1) }

func (m mailbox[T]) put(v T) {
	select {
	case <-m:
	default:
	}
	m <- v
}
