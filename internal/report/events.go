// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/text"
)

// Poster creates one Kubernetes Event about a Node. kind is "Normal" or "Warning". The same text about the same Node
// makes the same Event, so a repeated post changes nothing.
type Poster interface {
	PostEvent(ctx context.Context, node, uid, reason, message, kind string) error
}

// Reasons of Kubernetes Events. There are none for the happy path: the kubelet tells of Rebooted, NodeNotSchedulable
// and the rest, and each Event is a request.
var eventReasons = map[string]string{
	GaveUp:    "RebootGivenUp",
	Unhealthy: "RebootUnhealthy",
	NotHelped: "RebootNotHelped",

	BadCredential: "CredentialTrouble",
}

// Events posts trouble as Kubernetes Events.
type Events struct {
	story   story
	courier *courier
}

// NewEvents tries each Event three times over a minute and a half: the API server may be what the trouble is about.
func NewEvents(to Poster, logger *slog.Logger) *Events {
	deliver := func(ctx context.Context, e Event) error {
		u := e.State
		return to.PostEvent(ctx, u.Node, u.NodeUID, eventReasons[e.Name], e.Detail, corev1.EventTypeWarning)
	}
	return &Events{courier: newCourier("Kubernetes Events", logger, deliver, 15*time.Second, 75*time.Second)}
}

func (s *Events) Take(before, after Update) {
	for _, e := range s.story.next(before, after, time.Now()) {
		if eventReasons[e.Name] != "" && after.NodeUID != "" {
			s.courier.put(e)
		}
	}
}

func (s *Events) Run(ctx context.Context) { s.courier.run(ctx) }

// Counters are for the metrics.
func (s *Events) Counters() []Counter { return courierCounters("event", []*courier{s.courier}) }

// NewPoster posts through the core API.
func NewPoster(core rest.Interface) Poster { return &eventPoster{core} }

type eventPoster struct{ core rest.Interface }

// Events about cluster-scoped objects live in this namespace.
const eventNamespace = metav1.NamespaceDefault

func (p *eventPoster) PostEvent(ctx context.Context, node, uid, reason, message, kind string) error {
	event := nodeEvent(node, uid, reason, message, kind, time.Now())
	err := p.core.Post().Namespace(eventNamespace).Resource("events").Body(event).Do(ctx).Error()
	switch {
	case err == nil || apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err),
		apierrors.IsUnauthorized(err):
		return fmt.Errorf("posting event %q: %w: %w", event.Name, errPermanent, err)
	}
	return fmt.Errorf("posting event %q: %w", event.Name, err)
}

const maxEventMessage = 1024

// nodeEvent is pure.
func nodeEvent(node, uid, reason, message, kind string, now time.Time) *corev1.Event {
	message = text.Line(message, maxEventMessage)
	at := metav1.NewTime(now)
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: eventName(node, uid, reason, message), Namespace: eventNamespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(uid)},
		Reason:         reason,
		Message:        message,
		Type:           kind,
		Source:         corev1.EventSource{Component: "kured-agent", Host: node},
		FirstTimestamp: at,
		LastTimestamp:  at,
		Count:          1,

		ReportingController: "kured-agent",
		ReportingInstance:   text.Shorten(node, 128),
	}
}

// eventName is "<node>.<hash>", as long as a name may be.
func eventName(node, uid, reason, message string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{uid, reason, message}, "\x00")))
	hash := hex.EncodeToString(sum[:8])
	room := maxName - len(hash) - 1
	return strings.TrimRight(node[:min(len(node), room)], ".-") + "." + hash
}
