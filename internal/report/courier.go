// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	maxQueue     = 32
	tryTimeout   = 10 * time.Second
	farewell     = 3 * time.Second // what is under way when the agent stops gets this much longer
	courierTries = 3
)

// courier delivers messages to one receiver, in order, on its own goroutine: a bounded queue that drops its oldest, a
// timeout on every try, and a log line whenever the outcome changes.
type courier struct {
	to      string // for people; never holds a secret
	deliver func(context.Context, Event) error
	pauses  [courierTries - 1]time.Duration // before the second and the third try
	logger  *slog.Logger

	dropped, failed atomic.Uint64

	mu    sync.Mutex
	queue []Event
	wake  mailbox[struct{}]

	trouble string // the last error, of the goroutine in run
}

// errPermanent marks an answer that another try would only repeat.
var errPermanent = errors.New("refused")

func newCourier(
	to string, logger *slog.Logger, deliver func(context.Context, Event) error, pauses ...time.Duration,
) *courier {
	c := &courier{to: to, deliver: deliver, logger: logger, wake: newMailbox[struct{}]()}
	copy(c.pauses[:], pauses)
	return c
}

func (c *courier) put(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == maxQueue {
		c.queue = slices.Delete(c.queue, 0, 1)
		c.dropped.Add(1)
	}
	c.queue = append(c.queue, e)
	c.wake.put(struct{}{})
}

func (c *courier) take() (Event, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		c.queue = nil
		return Event{}, false
	}
	e := c.queue[0]
	c.queue = c.queue[1:]
	return e, true
}

// run delivers until ctx ends. "Rebooting" is told seconds before the agent is stopped, so what is in the queue then
// gets one try each within farewell.
func (c *courier) run(ctx context.Context) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(farewell, cancel) })
	defer stop()
	for {
		if e, ok := c.take(); ok {
			c.send(ctx, work, e)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
	}
}

// send tries up to courierTries times; once ctx has ended there is no further try, and once work has, none at all.
func (c *courier) send(ctx, work context.Context, e Event) {
	for try := 0; ; try++ {
		err := c.try(work, e)
		if err == nil {
			c.outcome(nil)
			return
		}
		if try == courierTries-1 || errors.Is(err, errPermanent) || !pause(ctx, c.pauses[try]) {
			c.failed.Add(1)
			c.outcome(err)
			return
		}
	}
}

func (c *courier) try(work context.Context, e Event) error {
	if err := work.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(work, tryTimeout)
	defer cancel()
	return c.deliver(ctx, e)
}

func (c *courier) outcome(err error) {
	trouble := ""
	if err != nil {
		trouble = text.Line(err.Error(), maxText)
	}
	switch trouble {
	case c.trouble:
	case "":
		c.logger.Info("notifications are delivered again", "to", c.to)
	default:
		c.logger.Warn("notification not delivered", "to", c.to, "err", trouble)
	}
	c.trouble = trouble
}

// pause waits; false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
