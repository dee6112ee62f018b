// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/kube"
)

// issuer renews tokens of one lifetime, or fails.
type issuer struct {
	life   time.Duration
	issued time.Time
	fixed  bool // the agent does not renew this one
	fail   func() error
	tries  []time.Time
	closed int
	trust  string
	stuck  bool // renewed tokens are as due as the old one: a clock is far off
}

func (i *issuer) Credential() kube.Credential {
	c := kube.Credential{Kind: kube.KindToken, Issued: i.issued, Expires: i.issued.Add(i.life), Trouble: i.trust}
	if !i.fixed {
		c.Due = i.issued.Add(i.life / 2)
	}
	return c.At(time.Now())
}

func (i *issuer) Renew(context.Context) error {
	i.tries = append(i.tries, time.Now())
	var err error
	if i.fail != nil {
		err = i.fail()
	}
	if (err == nil || errors.Is(err, kube.ErrNotKept)) && !i.stuck {
		i.issued = time.Now()
	}
	return err
}

func (i *issuer) CloseIdle() { i.closed++ }

// watched runs the renewal for a time and says how often it had news.
func watched(t *testing.T, i *issuer, d time.Duration) (r *renewal, news *int) {
	t.Helper()
	news = new(int)
	r = &renewal{client: i, changed: func() { *news++ }, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	r.run(ctx)
	return r, news
}

const month = 30 * 24 * time.Hour

func TestATokenIsRenewedAtHalfOfItsLifetimeAndNoOftener(t *testing.T) {
	for life, want := range map[time.Duration]int{month: 24, 24 * time.Hour: 730, 10 * time.Minute: 105_120} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			i := &issuer{life: life, issued: began}
			r, news := watched(t, i, 12*month+time.Hour)
			if n := len(i.tries); n < want*9/10 || n > want+1 || i.closed != n {
				t.Errorf("%s: renewed %d times in 360 days, and closed %d connections", life, n, i.closed)
			}
			if first := i.tries[0].Sub(began); first != life/2 {
				t.Errorf("%s: first after %s", life, first)
			}
			if renewed, failed := r.counts(); int(renewed) != len(i.tries) || failed != 0 || *news < len(i.tries) {
				t.Errorf("%s: %d renewed, %d failed, %d news", life, renewed, failed, *news)
			}
		})
	}
}

func TestAMachineThatWasOffForLongRenewsSoonButNotWithAllOthers(t *testing.T) {
	spread := map[time.Duration]bool{}
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			i := &issuer{life: month, issued: began.Add(-29 * 24 * time.Hour)}
			watched(t, i, time.Hour)
			if len(i.tries) != 1 || i.tries[0].Sub(began) > renewalSpread {
				t.Errorf("tries after the start: %v", i.tries)
				return
			}
			spread[i.tries[0].Sub(began).Truncate(time.Second)] = true
		})
	}
	if len(spread) < 5 {
		t.Errorf("twenty machines at %d times", len(spread))
	}
}

func TestAServerThatIsAwayIsAskedLessAndLessAndToldWhenItGetsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		away := true
		i := &issuer{life: month, issued: began.Add(-month / 2)}
		i.fail = func() error {
			if away {
				return &kube.RenewalError{Why: "no answer", NoAnswer: true}
			}
			return nil
		}
		r, _ := watched(t, i, 24*time.Hour)
		if n := len(i.tries); n < 25 || n > 50 {
			t.Errorf("%d tries in the first day", n)
		}
		if _, told := r.status(); told.Trouble != "" {
			t.Errorf("told early: %q", told.Trouble)
		}
		i.issued = time.Now().Add(-month * 5 / 6)
		r, _ = watched(t, i, 24*time.Hour)
		if _, told := r.status(); !strings.Contains(told.Trouble, "no answer") {
			t.Errorf("not told late: %q", told.Trouble)
		}
		away = false
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		r.run(ctx)
		if _, told := r.status(); told.Trouble != "" {
			t.Errorf("still told: %q", told.Trouble)
		}
	})
}

func TestAShortLivedTokenIsTriedOftenBeforeItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{life: 10 * time.Minute, issued: time.Now()}
		i.fail = func() error { return &kube.RenewalError{Why: "no answer", NoAnswer: true} }
		watched(t, i, 10*time.Minute)
		if n := len(i.tries); n < 15 || n > 40 {
			t.Errorf("%d tries in its second half", n)
		}
	})
}

func TestARefusalIsToldAtOnceAndEndsWithANewEnrolment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{life: month, issued: time.Now().Add(-month / 2)}
		i.fail = func() error { return &kube.RenewalError{Why: "refused by an admission policy"} }
		r, news := watched(t, i, 10*time.Minute)
		if _, told := r.status(); !strings.Contains(told.Trouble, "admission policy") || *news == 0 {
			t.Errorf("told %q, %d news", told.Trouble, *news)
		}
		_, failed := r.counts()
		if int(failed) != len(i.tries) {
			t.Errorf("%d tries, %d counted", len(i.tries), failed)
		}
		i.issued = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		r.run(ctx)
		if _, told := r.status(); told.Trouble != "" {
			t.Errorf("still told: %q", told.Trouble)
		}
	})
}

func TestATokenThatCouldNotBeKeptIsToldUntilOneIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{life: month, issued: time.Now().Add(-month / 2)}
		i.fail = func() error { return kube.ErrNotKept }
		r, _ := watched(t, i, 24*time.Hour)
		renewed, failed := r.counts()
		if _, told := r.status(); renewed != 1 || failed != 1 || !strings.Contains(told.Trouble, "goes back") {
			t.Errorf("%d renewed, %d failed, told %q", renewed, failed, told.Trouble)
		}
	})
}

func TestAClockThatIsFarOffDoesNotRenewAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{life: month, issued: time.Now().Add(-2 * month), stuck: true}
		watched(t, i, month)
		if n := len(i.tries); n < 3 || n > 5 {
			t.Errorf("%d renewals in a month", n)
		}
	})
}

func TestWhatTheAgentDoesNotRenewIsOnlyWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{life: month, issued: time.Now(), fixed: true}
		time.AfterFunc(time.Hour+time.Minute, func() { i.trust = "the client certificate expires" })
		r, news := watched(t, i, 24*time.Hour)
		if _, told := r.status(); len(i.tries) != 0 || *news != 2 || told.Trouble == "" {
			t.Errorf("%d tries, %d news, told %q", len(i.tries), *news, told.Trouble)
		}
	})
}
