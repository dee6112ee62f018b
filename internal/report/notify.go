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
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// Names of what is told to webhooks.
const (
	RebootRequired = "reboot-required"
	Rebooting      = "rebooting"
	Returned       = "returned" // only when the boot id proved it
	GaveUp         = "gave-up"
	Unhealthy      = "unhealthy"  // past the boot deadline
	NotHelped      = "not-helped" // the reasons are still there after the reboot
	BadCredential  = "credential" // expired, not renewed in time, or not safe
)

// Event is one thing that happened.
type Event struct {
	Name   string
	Detail string // one sentence
	Time   time.Time
	State  Update
}

// story turns updates into events. Its memory is of this process only: what is already told in the first update is no
// news, except trouble that goes on.
type story struct {
	needed bool
	known  bool // the level has been definite
}

func (s *story) next(before, after Update, now time.Time) []Event {
	var all []Event
	tell := func(name, detail string) { all = append(all, Event{name, detail, now, after}) }
	first := before.Phase == ""

	if s.becameRequired(after) {
		tell(RebootRequired, "a reboot is required: "+plan.Summary(after.Reasons))
	}
	if rebooting := plan.Rebooting.String(); after.Phase == rebooting && before.Phase != rebooting && !first {
		tell(Rebooting, "rebooting: "+after.Why)
	}
	// The process that did the return tells about it, be it the boot unit's or this one.
	if l := after.LastReboot; l != nil && !first && !before.BootUnitWorks &&
		(before.LastReboot == nil || !l.At.Equal(before.LastReboot.At)) {
		tell(Returned, "back from the reboot: "+plan.Summary(l.Reasons))
	}
	if f := after.Failure; f != nil && !first && (before.Failure == nil || *f != *before.Failure) {
		tell(GaveUp, fmt.Sprintf("gave up (failure %d): %s", f.Count, f.Why))
	}
	if after.Unhealthy != "" && !after.BootUnitWorks && (before.Unhealthy == "" || before.BootUnitWorks) {
		tell(Unhealthy, "not healthy after the boot: "+after.Unhealthy)
	}
	if after.NotHelped && !before.NotHelped {
		tell(NotHelped, "the reboot did not help: "+plan.Summary(after.Reasons))
	}
	if trouble := after.credentialTrouble(); trouble != "" && trouble != before.credentialTrouble() {
		tell(BadCredential, "the agent's credential: "+trouble)
	}
	return all
}

// becameRequired is true once per need. Unknown in between changes nothing, and marks on the Node in the first update
// mean that an earlier process has told.
func (s *story) becameRequired(u Update) bool {
	if u.Level == plan.Unknown {
		return false
	}
	needed := u.Level == plan.Required
	resumed := !s.known && (u.Tainted || u.Cordoned || u.Slot != "")
	became := needed && !s.needed && !resumed
	s.needed, s.known = needed, true
	return became
}

// Notifier posts events to webhooks.
type Notifier struct {
	story    story
	couriers []*courier
}

// NewNotifier prepares one queue per URL. URLs may hold secrets: only their hosts appear in logs and errors.
func NewNotifier(urls []string, logger *slog.Logger) (*Notifier, error) {
	n := &Notifier{}
	for i, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return nil, fmt.Errorf("reading webhook %d: not an http or https URL", i+1)
		}
		post := poster(u)
		n.couriers = append(n.couriers, newCourier(u.Host, logger, post, time.Second, 5*time.Second))
	}
	return n, nil
}

func (n *Notifier) Take(before, after Update) {
	for _, e := range n.story.next(before, after, time.Now()) {
		for _, c := range n.couriers {
			c.put(e)
		}
	}
}

func (n *Notifier) Run(ctx context.Context) { runAll(ctx, n.couriers) }

// Counters are for the metrics.
func (n *Notifier) Counters() []Counter { return courierCounters("webhook", n.couriers) }

func runAll(ctx context.Context, couriers []*courier) {
	var all sync.WaitGroup
	for _, c := range couriers {
		all.Go(func() { c.run(ctx) })
	}
	all.Wait()
}

func poster(u *url.URL) func(context.Context, Event) error {
	client := &http.Client{Transport: webhookTransport(), CheckRedirect: sameHost}
	return func(ctx context.Context, e Event) error {
		body, err := webhookBody(e)
		if err != nil {
			return fmt.Errorf("encoding the notification: %w", err)
		}
		return post(ctx, client, u, body)
	}
}

// webhookTransport keeps no connection: notifications are rare.
func webhookTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// sameHost lets a receiver move its path, not send the message elsewhere or turn it into a GET that delivers nothing.
func sameHost(req *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case len(via) > 3:
		return fmt.Errorf("too many redirects: %w", errPermanent)
	case req.URL.Host != first.URL.Host || req.URL.Scheme != first.URL.Scheme:
		return fmt.Errorf("redirected to another host: %w", errPermanent)
	case req.Method != first.Method:
		return fmt.Errorf("redirected to a %s: %w", req.Method, errPermanent)
	}
	return nil
}

func post(ctx context.Context, client *http.Client, u *url.URL, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return withoutURL(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "kured-agent")
	resp, err := client.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	switch code := resp.StatusCode; {
	case code < 300:
		return nil
	case code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout:
		return fmt.Errorf("the receiver answered %d", code)
	default:
		return fmt.Errorf("the receiver answered %d: %w", code, errPermanent)
	}
}

// withoutURL strips what net/http puts around its errors: the URL, which may be a secret.
func withoutURL(err error) error {
	for {
		outer, ok := errors.AsType[*url.Error](err)
		if !ok {
			return err
		}
		err = outer.Err
	}
}

// webhookBody has a text for receivers that only show one (Slack, Mattermost).
func webhookBody(e Event) ([]byte, error) {
	return json.Marshal(struct {
		Text    string           `json:"text"`
		Node    string           `json:"node"`
		Event   string           `json:"event"`
		Phase   string           `json:"phase"`
		Why     string           `json:"why"`
		Reasons []reasonDocument `json:"reasons"`
		Time    time.Time        `json:"time"`
		Version string           `json:"version"`
	}{
		Text:    strings.TrimSpace(e.State.Node + ": " + e.Detail),
		Node:    e.State.Node,
		Event:   e.Name,
		Phase:   e.State.Phase,
		Why:     e.State.Why,
		Reasons: append([]reasonDocument{}, reasonDocuments(e.reasons())...),
		Time:    e.Time.UTC(),
		Version: e.State.Version,
	})
}

// reasons are those the event is about: after a return, of the reboot.
func (e Event) reasons() []plan.Reason {
	if e.Name == Returned && e.State.LastReboot != nil {
		return e.State.LastReboot.Reasons
	}
	return e.State.Reasons
}
