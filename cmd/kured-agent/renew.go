// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/report"
)

// credentials is what the renewal needs of *kube.Client.
type credentials interface {
	Credential() kube.Credential
	Renew(ctx context.Context) error
	CloseIdle()
}

// renewal renews the token beside the loop. It is all that an idle agent asks the API server for: one request in half
// a lifetime.
type renewal struct {
	client  credentials
	changed func() // has the loop look again, which tells people
	log     *slog.Logger

	mu      sync.Mutex
	trouble string    // of the tries since the last success, unless it may pass in time
	unkept  string    // why the token in use will be lost with this process
	passing string    // what was said of a failure that may pass
	tries   int       // in a row that failed
	last    time.Time // success
	shown   report.Credential
	renewed uint64
	failed  uint64
}

const (
	// The longest sleep: a clock that is set, or a machine that slept, would make a longer one end at the wrong time.
	renewalLook = time.Hour
	// A fleet that is switched on together after a long time must not renew together.
	renewalSpread  = 2 * time.Minute
	renewalFirst   = 15 * time.Second // pause after the first failure; the next ones double
	renewalTimeout = 30 * time.Second
)

// run works until ctx ends.
func (r *renewal) run(ctx context.Context) {
	pause := time.Duration(0)
	if c := r.client.Credential(); due(c) {
		pause = rand.N(min(renewalSpread, most(c)))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = r.look(ctx)
	}
}

func due(c kube.Credential) bool { return !c.Due.IsZero() && c.DueIn() <= 0 }

// most is the longest pause between two tries: there must be room for many before the end.
func most(c kube.Credential) time.Duration {
	return min(max(c.Lifetime()/50, time.Second), renewalLook)
}

// look renews the token if that is due, with one attempt, and says when to look again.
func (r *renewal) look(ctx context.Context) time.Duration {
	pause := r.attempt(ctx)
	_, now := r.status()
	r.mu.Lock()
	news := *now != r.shown
	r.shown = *now
	r.mu.Unlock()
	if news {
		r.changed()
	}
	return pause
}

func (r *renewal) attempt(ctx context.Context) time.Duration {
	c := r.client.Credential()
	switch {
	case c.Due.IsZero():
		r.rest()
		return renewalLook
	case !due(c):
		r.rest()
		return min(c.DueIn(), renewalLook)
	case r.justRenewed(c):
		return renewalLook
	}
	asking, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	err := r.client.Renew(asking)
	r.client.CloseIdle()
	if err != nil && ctx.Err() != nil {
		return 0
	}
	if err == nil || errors.Is(err, kube.ErrNotKept) {
		return r.done(r.client.Credential(), err)
	}
	return r.failure(r.client.Credential(), err)
}

// rest forgets the failures of a token that is another one now, or is not due after all.
func (r *renewal) rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble, r.passing, r.tries = "", "", 0
}

// justRenewed keeps a host whose clock is far off from renewing again and again: a proxy may take the date off what the
// API server says.
func (r *renewal) justRenewed(c kube.Credential) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.last.IsZero() && time.Since(r.last) < c.Lifetime()/4
}

func (r *renewal) done(c kube.Credential, err error) time.Duration {
	r.mu.Lock()
	r.trouble, r.passing, r.unkept, r.tries = "", "", "", 0
	r.last = time.Now()
	r.renewed++
	if err != nil {
		r.failed++
		r.unkept = err.Error() + ": the next start of the agent goes back to the one before"
	}
	r.mu.Unlock()
	r.log.Info("credential renewed", "expires", c.Expires)
	return min(max(c.DueIn(), time.Second), renewalLook)
}

func (r *renewal) failure(c kube.Credential, err error) time.Duration {
	r.mu.Lock()
	pause := min(renewalFirst<<min(r.tries, 10), most(c))
	r.tries++
	r.failed++
	refused, ok := errors.AsType[*kube.RenewalError](err)
	passing := ok && refused.NoAnswer && !c.NearEnd()
	said := r.passing
	if passing {
		r.passing, r.trouble = err.Error(), ""
	} else {
		r.passing, r.trouble = "", err.Error()
	}
	r.mu.Unlock()
	if passing && said != err.Error() {
		r.log.Info("credential not renewed yet", "err", err, "expires", c.Expires)
	}
	return pause*3/4 + rand.N(pause/2+1)
}

// status is what people are told of the credential.
func (r *renewal) status() (c kube.Credential, told *report.Credential) {
	c = r.client.Credential()
	r.mu.Lock()
	defer r.mu.Unlock()
	return c, &report.Credential{
		Kind: c.Kind, Issued: c.Issued, Expires: c.Expires, Due: c.Due, Renewed: c.Renewed, Note: c.Note,
		Trouble: cmp.Or(r.trouble, c.Trouble, r.unkept),
	}
}

func (r *renewal) counts() (renewed, failed uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.renewed, r.failed
}
