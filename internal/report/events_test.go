// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/plan"
)

type posts struct{ all []string }

func (p *posts) PostEvent(_ context.Context, node, uid, reason, message, kind string) error {
	p.all = append(p.all, strings.Join([]string{node, uid, reason, message, kind}, "|"))
	return nil
}

func TestOnlyTroubleBecomesAKubernetesEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := &posts{}
		s := NewEvents(to, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { s.Run(ctx); close(ended) }()
		before := Update{}
		for _, change := range []func(*Update){
			func(u *Update) { u.Phase = "Idle" },
			func(u *Update) { u.Level, u.Reasons = plan.Required, []plan.Reason{{ID: "libc6"}} },
			func(u *Update) { u.Phase = "Rebooting" },
			func(u *Update) {
				u.Failure = &plan.Failure{Moment: plan.Moment{At: night}, Count: 1, Why: "logind refused"}
			},
			func(u *Update) { u.LastReboot = &plan.LastReboot{Moment: plan.Moment{At: night}} },
			func(u *Update) { u.Unhealthy = "the kubelet is not Ready" },
			func(u *Update) { u.NotHelped = true },
			func(u *Update) { u.Credential = &Credential{Trouble: "refused"} },
			func(u *Update) { u.NodeUID, u.NotHelped = "", false },
			func(u *Update) { u.NotHelped = true }, // there is no Node to tell it about
		} {
			after := before
			if before.Phase == "" {
				after.Node, after.NodeUID = "node-1", "uid-1"
			}
			change(&after)
			s.Take(before, after)
			before = after
		}
		synctest.Wait()
		cancel()
		<-ended
		want := []string{
			"node-1|uid-1|RebootGivenUp|gave up (failure 1): logind refused|Warning",
			"node-1|uid-1|RebootUnhealthy|not healthy after the boot: the kubelet is not Ready|Warning",
			"node-1|uid-1|RebootNotHelped|the reboot did not help: libc6|Warning",
			"node-1|uid-1|CredentialTrouble|the agent's credential: refused|Warning",
		}
		if diff := cmp.Diff(want, to.all); diff != "" {
			t.Error(diff)
		}
	})
}

// core is a client of the core API for a test server.
func core(t *testing.T, handler http.HandlerFunc) rest.Interface {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client, err := rest.RESTClientFor(&rest.Config{Host: server.URL, APIPath: "/api", ContentConfig: rest.ContentConfig{
		GroupVersion:         &corev1.SchemeGroupVersion,
		NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestAnEventIsOnePostAboutTheNode(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	client := core(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.URL.Path + "\n" + string(body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	})
	err := NewPoster(client).PostEvent(t.Context(), "node-1", "uid-1", "RebootGivenUp", "gave up", "Warning")
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(<-got, "\n")
	if head != "POST /api/v1/namespaces/default/events" {
		t.Error(head)
	}
	for _, part := range []string{
		`"kind":"Event","apiVersion":"v1"`,
		`"name":"node-1.` + strings.TrimPrefix(eventName("node-1", "uid-1", "RebootGivenUp", "gave up"), "node-1.") +
			`","namespace":"default"`,
		`"involvedObject":{"kind":"Node","name":"node-1","uid":"uid-1","apiVersion":"v1"}`,
		`"reason":"RebootGivenUp","message":"gave up","source":{"component":"kured-agent","host":"node-1"}`,
		`"count":1,"type":"Warning","eventTime":null,"reportingComponent":"kured-agent","reportingInstance":"node-1"`,
	} {
		if !strings.Contains(body, part) {
			t.Errorf("%s is not in %s", part, body)
		}
	}
}

func TestAnAnswerToAnEventIsPostedRefusedOrTriedAgain(t *testing.T) {
	t.Parallel()
	for code, c := range map[int]struct{ fails, permanent bool }{
		http.StatusConflict:            {}, // it is there already
		http.StatusForbidden:           {true, true},
		http.StatusUnprocessableEntity: {true, true},
		http.StatusServiceUnavailable:  {true, false},
	} {
		reason := map[int]string{409: "AlreadyExists", 403: "Forbidden", 422: "Invalid"}[code]
		client := core(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"`+reason+`"}`)
		})
		err := NewPoster(client).PostEvent(t.Context(), "node-1", "uid-1", "RebootGivenUp", "gave up", "Warning")
		if (err != nil) != c.fails || errors.Is(err, errPermanent) != c.permanent {
			t.Errorf("%d: %v", code, err)
		}
	}
}

func TestEventsStayWithinTheLimitsOfTheAPI(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a.", 126) + "b"
	event := nodeEvent(long, "uid", "RebootGivenUp", strings.Repeat("ü\n", 4096), "Warning", time.Now())
	if problems := validation.IsDNS1123Subdomain(event.Name); len(problems) > 0 {
		t.Errorf("name %q: %v", event.Name, problems)
	}
	if len(event.Message) > 1024 || len(event.ReportingInstance) > 128 {
		t.Errorf("message of %d, reportingInstance of %d bytes", len(event.Message), len(event.ReportingInstance))
	}
	first, same, other := eventName("n", "1", "r", "m"), eventName("n", "1", "r", "m"), eventName("n", "2", "r", "m")
	if first != same || first == other {
		t.Error("the same text about the same Node should make the same name, and only that")
	}
}
