// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kured-agent/kured-agent/internal/plan"
)

func TestEventsAreToldOnce(t *testing.T) {
	t.Parallel()
	need := func(u Update, l plan.Level) Update { u.Level = l; return u }
	idle := Update{Phase: "Idle"}
	waiting := Update{Phase: "WaitingTurn", Level: plan.Required, Tainted: true}
	rebooting := Update{Phase: "Rebooting", Level: plan.Required, Tainted: true, Cordoned: true, Slot: "slot-default-0"}
	returning := Update{Phase: "Returning", Tainted: true, Cordoned: true, Slot: "slot-default-0"}
	last := func(u Update, at time.Time) Update {
		u.LastReboot = &plan.LastReboot{Moment: plan.Moment{At: at}}
		return u
	}
	failed := func(u Update, n int) Update {
		u.Failure = &plan.Failure{Moment: plan.Moment{At: night}, Count: n, Why: "x"}
		return u
	}
	sick := func(u Update) Update { u.Unhealthy = "kubelet"; return u }
	expired := func(why string) Update {
		u := waiting
		u.Credential = &Credential{Trouble: why}
		return u
	}
	useless := func(u Update) Update { u.NotHelped = true; return u }
	boot := func(u Update) Update { u.BootUnitWorks = true; return u }

	for name, c := range map[string]struct {
		updates []Update
		want    []string
	}{
		"the happy path": {
			[]Update{idle, need(idle, plan.Required), waiting, rebooting},
			[]string{RebootRequired, Rebooting},
		},
		"required when the agent starts": {
			[]Update{need(idle, plan.Unknown), need(idle, plan.Required)},
			[]string{RebootRequired},
		},
		"a restart of the agent is no news": {
			[]Update{waiting, rebooting},
			[]string{Rebooting},
		},
		"a source that can't be read for a while": {
			[]Update{idle, waiting, need(waiting, plan.Unknown), waiting},
			[]string{RebootRequired},
		},
		"a need that went and came back": {
			[]Update{idle, waiting, idle, waiting},
			[]string{RebootRequired, RebootRequired},
		},
		"a restart while the machine goes down": {
			[]Update{rebooting},
			nil,
		},
		"back, proven": {
			[]Update{last(returning, night), last(idle, night.Add(time.Hour))},
			[]string{Returned},
		},
		"back from the first reboot": {
			[]Update{returning, last(idle, night)},
			[]string{Returned},
		},
		"an old reboot in the first update": {
			[]Update{last(idle, night), last(waiting, night)},
			[]string{RebootRequired},
		},
		"clean again without a reboot": {
			[]Update{returning, idle},
			nil,
		},
		"returned by the boot unit": {
			[]Update{boot(returning), last(idle, night)},
			nil,
		},
		"the boot unit gave up, this one returned": {
			[]Update{boot(returning), returning, last(idle, night)},
			[]string{Returned},
		},
		"gave up twice": {
			[]Update{waiting, failed(waiting, 1), failed(waiting, 1), failed(waiting, 2)},
			[]string{GaveUp, GaveUp},
		},
		"an old failure": {
			[]Update{failed(waiting, 1), waiting},
			nil,
		},
		"unhealthy past the deadline": {
			[]Update{returning, sick(returning), sick(returning)},
			[]string{Unhealthy},
		},
		"unhealthy while the boot unit works": {
			[]Update{boot(sick(returning)), sick(returning)},
			[]string{Unhealthy},
		},
		"the reboot did not help": {
			[]Update{useless(waiting), useless(waiting)},
			[]string{NotHelped},
		},
		"the credential is in trouble, another one, and fine again": {
			[]Update{waiting, expired("a"), expired("a"), expired("b"), waiting},
			[]string{BadCredential, BadCredential},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s story
			var before Update
			var got []string
			for _, u := range c.updates {
				for _, e := range s.next(before, u, night) {
					got = append(got, e.Name)
				}
				before = u
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAWebhookGetsTheWholeEvent(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		user, password, _ := r.BasicAuth()
		got <- fmt.Sprintln(r.Method, r.URL, r.Header.Get("Content-Type"), user, password) + string(body)
	}))
	defer server.Close()
	hook := strings.Replace(server.URL, "://", "://me:secret@", 1) + "/hook?key=abc"
	n, err := NewNotifier([]string{hook}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { n.Run(ctx); close(ended) }()
	u := draining()
	u.Tainted, u.Cordoned, u.Slot = false, false, ""
	n.Take(Update{}, u.bounded())

	head, body, _ := strings.Cut(<-got, "\n")
	if want := "POST /hook?key=abc application/json me secret"; head != want {
		t.Errorf("got %q, want %q", head, want)
	}
	var message map[string]any
	if err := json.Unmarshal([]byte(body), &message); err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse(time.RFC3339, message["time"].(string)); err != nil {
		t.Error(err)
	}
	delete(message, "time")
	want := map[string]any{
		"text": "node-1: a reboot is required: package linux-image-6.12.48-amd64, libc6",
		"node": "node-1", "event": "reboot-required", "phase": "Draining", "why": u.Why, "version": "1.0.0",
		"reasons": []any{
			map[string]any{
				"source": "file:/run/reboot-required", "id": "linux-image-6.12.48-amd64",
				"text": "package linux-image-6.12.48-amd64", "kind": "full",
			},
			map[string]any{"source": "request", "id": "libc6", "kind": "soft"},
		},
	}
	if diff := cmp.Diff(want, message); diff != "" {
		t.Error(diff)
	}
	cancel()
	<-ended
}

func TestAnAnswerOfAWebhookIsDeliveredRefusedOrTriedAgain(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the message went to another host")
	}))
	defer other.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("/status/{code}", func(w http.ResponseWriter, r *http.Request) {
		var code int
		_, _ = fmt.Sscan(r.PathValue("code"), &code)
		w.WriteHeader(code)
	})
	mux.Handle("/elsewhere", http.RedirectHandler(other.URL+"/?token=s3cret", http.StatusTemporaryRedirect))
	mux.Handle("/get", http.RedirectHandler("/status/200", http.StatusFound))
	mux.Handle("/round", http.RedirectHandler("/round", http.StatusPermanentRedirect))
	mux.Handle("/moved", http.RedirectHandler("/new", http.StatusPermanentRedirect))
	mux.HandleFunc("/new", func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); r.Method != http.MethodPost || len(body) == 0 {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	mux.HandleFunc("/flood", func(w http.ResponseWriter, _ *http.Request) {
		for range 1024 {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/hangup", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	server := httptest.NewServer(mux)
	defer server.Close()

	for path, c := range map[string]struct {
		want      string
		permanent bool
	}{
		"/status/200": {},
		"/status/204": {},
		"/moved":      {},
		"/flood":      {},
		"/status/404": {"the receiver answered 404: refused", true},
		"/status/429": {"the receiver answered 429", false},
		"/status/500": {"the receiver answered 500", false},
		"/elsewhere":  {"redirected to another host: refused", true},
		"/get":        {"redirected to a GET: refused", true},
		"/round":      {"too many redirects: refused", true},
		"/hangup":     {"EOF", false},
	} {
		u, _ := url.Parse(server.URL + path + "?token=s3cret")
		err := poster(u)(t.Context(), Event{Name: Returned})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want || errors.Is(err, errPermanent) != c.permanent || strings.Contains(got, "s3cret") {
			t.Errorf("%s: %q (permanent: %v), want %q", path, got, errors.Is(err, errPermanent), c.want)
		}
	}
}

func TestASecretURLIsNeverTold(t *testing.T) {
	t.Parallel()
	var logs bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logs, nil))
	for _, bad := range []string{
		"https://user:s3cret@host:port/s3cret", "s3cret", "ftp://host/s3cret", "://s3cret", "https:///s3cret",
	} {
		if _, err := NewNotifier([]string{"https://fine.example/x", bad}, logger); err == nil ||
			err.Error() != "reading webhook 2: not an http or https URL" {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// Nobody listens on port 1.
	n, err := NewNotifier([]string{"http://me:s3cret@127.0.0.1:1/s3cret?s3cret"}, logger)
	if err != nil {
		t.Fatal(err)
	}
	n.couriers[0].pauses = [2]time.Duration{}
	n.couriers[0].send(t.Context(), t.Context(), Event{})
	got := logs.String()
	if strings.Contains(got, "s3cret") || !strings.Contains(got, "to=127.0.0.1:1") || !strings.Contains(got, "refused") {
		t.Errorf("log: %s", got)
	}
}

func TestDeliveryIsTriedThreeTimesAndTheOutcomeLoggedOncePerChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		logger := untimed(&logs)
		settle := func() { time.Sleep(time.Minute); synctest.Wait() }
		var tries []time.Duration
		began := time.Now()
		answer := func(context.Context) error { return errors.New("down") }
		c := newCourier("hooks.example", logger, func(ctx context.Context, _ Event) error {
			tries = append(tries, time.Since(began))
			return answer(ctx)
		}, time.Second, 5*time.Second)
		go c.run(t.Context())

		c.put(Event{})
		settle()
		if want := []time.Duration{0, time.Second, 6 * time.Second}; !slices.Equal(tries, want) {
			t.Errorf("tried at %v, want %v", tries, want)
		}
		c.put(Event{})
		settle()
		answer = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		tries, began = nil, time.Now()
		c.put(Event{})
		settle()
		if want := []time.Duration{0, 11 * time.Second, 26 * time.Second}; !slices.Equal(tries, want) {
			t.Errorf("a receiver that hangs is tried at %v, want %v", tries, want)
		}
		answer = func(context.Context) error { return errPermanent }
		tries = nil
		c.put(Event{})
		settle()
		if len(tries) != 1 {
			t.Errorf("a refusal is tried %d times", len(tries))
		}
		answer = func(context.Context) error { return nil }
		c.put(Event{})
		c.put(Event{})
		settle()
		want := `level=WARN msg="notification not delivered" to=hooks.example err=down
level=WARN msg="notification not delivered" to=hooks.example err="context deadline exceeded"
level=WARN msg="notification not delivered" to=hooks.example err=refused
level=INFO msg="notifications are delivered again" to=hooks.example
`
		if diff := cmp.Diff(want, logs.String()); diff != "" {
			t.Error(diff)
		}
		if c.failed.Load() != 4 || c.dropped.Load() != 0 {
			t.Errorf("%d failed, %d dropped", c.failed.Load(), c.dropped.Load())
		}
	})
}

func TestWhatIsUnderWayAtTheEndGetsThreeSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var delivered atomic.Int32
		c := newCourier("x", slog.New(slog.DiscardHandler), func(ctx context.Context, _ Event) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(2 * time.Second):
				delivered.Add(1)
				return nil
			}
		}, time.Second, 5*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { c.run(ctx); close(ended) }()
		for range 3 {
			c.put(Event{})
		}
		synctest.Wait()
		began := time.Now()
		cancel()
		<-ended
		if delivered.Load() != 1 || time.Since(began) != farewell {
			t.Errorf("%d delivered within %v", delivered.Load(), time.Since(began))
		}
	})
}
