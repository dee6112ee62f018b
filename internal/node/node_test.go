// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// nodeServer keeps one Node and applies merge patches to it with the server's checks on uid and resourceVersion.
type nodeServer struct {
	mu      sync.Mutex
	object  map[string]any // nil: does not exist
	version int
	gets    int
	patches int

	conflicts int                         // so many patches meet another writer
	patch     http.HandlerFunc            // answers patches instead
	before    func(object map[string]any) // another writer, between read and patch
}

func newNodeServer(t *testing.T, node string) *nodeServer {
	t.Helper()
	s := &nodeServer{version: 100}
	if node != "" {
		s.object = map[string]any{}
		if err := json.Unmarshal([]byte(node), &s.object); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *nodeServer) metadata() map[string]any { return s.object["metadata"].(map[string]any) }

func (s *nodeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Path != "/api/v1/nodes/n1" || s.object == nil {
		kubetest.Status(w, 404, "NotFound", `nodes "n1" not found`, nil)
		return
	}
	if r.Method == http.MethodGet {
		s.gets++
		s.metadata()["resourceVersion"] = fmt.Sprint(s.version)
		kubetest.JSON(w, 200, s.object)
		return
	}
	s.patches++
	if s.patch != nil {
		s.patch(w, r)
		return
	}
	if r.Header.Get("Content-Type") != "application/merge-patch+json" ||
		r.URL.Query().Get("fieldManager") != "kured-agent" || r.URL.Query().Get("fieldValidation") != "Strict" {
		kubetest.Status(w, 400, "BadRequest", "wrong headers", nil)
		return
	}
	if s.conflicts > 0 {
		s.conflicts--
		s.version++
		if s.before != nil {
			s.before(s.object)
		}
	}
	var patch map[string]any
	body, _ := io.ReadAll(r.Body)
	if json.Unmarshal(body, &patch) != nil {
		kubetest.Status(w, 400, "BadRequest", "no JSON", nil)
		return
	}
	sent := patch["metadata"].(map[string]any)
	switch {
	case sent["uid"] != s.metadata()["uid"]:
		kubetest.Status(w, 422, "Invalid", "invalid",
			map[string]any{"causes": []any{map[string]any{"field": "metadata.uid"}}})
	case sent["resourceVersion"] != fmt.Sprint(s.version):
		kubetest.Status(w, 409, "Conflict", "the object has been modified", nil)
	default:
		merge(s.object, patch)
		s.version++
		s.metadata()["resourceVersion"] = fmt.Sprint(s.version)
		kubetest.JSON(w, 200, s.object)
	}
}

func merge(target, patch map[string]any) {
	for key, value := range patch {
		inner, isMap := value.(map[string]any)
		switch {
		case value == nil:
			delete(target, key)
		case isMap:
			if _, ok := target[key].(map[string]any); !ok {
				target[key] = map[string]any{}
			}
			merge(target[key].(map[string]any), inner)
		default:
			target[key] = value
		}
	}
}

func client(t *testing.T, s http.Handler, startup ...string) *Client {
	t.Helper()
	k, _ := kubetest.Server(t, s)
	c := New(k.Core(),
		Options{Name: "n1", TaintKey: testWanted.Key, TaintEffect: testWanted.Effect, StartupTaints: startup})
	c.pause = func(int) time.Duration { return 0 }
	return c
}

const bare = `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u1"},"spec":{},"status":{}}`

func TestTheWholeCycleCostsOneReadAndThreeWrites(t *testing.T) {
	s := newNodeServer(t, bare)
	c := client(t, s)
	ctx := t.Context()
	look := func(want plan.Node) {
		t.Helper()
		got, err := c.Read(ctx, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("node (-want +got):\n%s", diff)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	look(plan.Node{UID: "u1"})
	do(c.Taint(ctx, "kernel"))
	look(plan.Node{UID: "u1", Tainted: true})
	do(c.Cordon(ctx, "b1"))
	look(plan.Node{UID: "u1", Tainted: true, Unschedulable: true, Marker: "b1"})
	do(c.Clean(ctx))
	look(plan.Node{UID: "u1"})
	if s.gets != 1 || s.patches != 3 || c.Writes() != 3 {
		t.Errorf("%d reads, %d patches, %d writes", s.gets, s.patches, c.Writes())
	}
	if annotations := s.metadata()["annotations"]; len(annotations.(map[string]any)) != 0 {
		t.Errorf("left behind: %v", annotations)
	}
}

func TestDoingItTwiceWritesOnce(t *testing.T) {
	s := newNodeServer(t, bare)
	c := client(t, s)
	for _, step := range []func() error{
		func() error { return c.Taint(t.Context(), "kernel") },
		func() error { return c.Cordon(t.Context(), "b1") },
		func() error { return c.RollBack(t.Context()) },
		func() error { return c.Clean(t.Context()) },
	} {
		before := s.patches
		for range 2 {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		if s.patches != before+1 {
			t.Errorf("%d patches", s.patches-before)
		}
	}
}

func TestRollBackKeepsTheTaint(t *testing.T) {
	c := client(t, newNodeServer(t, bare))
	for _, err := range []error{c.Taint(t.Context(), ""), c.Cordon(t.Context(), "b1"), c.RollBack(t.Context())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Read(t.Context(), 0)
	if diff := cmp.Diff(plan.Node{UID: "u1", Tainted: true}, got); err != nil || diff != "" {
		t.Errorf("%v, node (-want +got):\n%s", err, diff)
	}
}

func TestNothingToDoIsOnlyBelievedOnAFreshAnswer(t *testing.T) {
	s := newNodeServer(t, bare)
	c := client(t, s)
	if err := c.Taint(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	delete(s.object["spec"].(map[string]any), "taints") // somebody takes it off
	s.version++
	s.mu.Unlock()
	if err := c.Taint(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Read(t.Context(), 0); err != nil || !got.Tainted {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestConflictsAreReadAgainAndKeepWhatTheOtherWrote(t *testing.T) {
	s := newNodeServer(t, bare)
	s.conflicts = maxTries - 1
	n := 0
	s.before = func(object map[string]any) {
		n++
		spec := object["spec"].(map[string]any)
		taints, _ := spec["taints"].([]any)
		spec["taints"] = append(taints, map[string]any{"key": fmt.Sprintf("other-%d", n), "effect": "NoSchedule"})
	}
	c := client(t, s)
	if err := c.Taint(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if taints := s.object["spec"].(map[string]any)["taints"].([]any); len(taints) != maxTries {
		t.Errorf("taints %v", taints)
	}
}

func TestAStormOfConflictsEnds(t *testing.T) {
	s := newNodeServer(t, bare)
	s.conflicts = 1000
	c := client(t, s)
	if err := c.Taint(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "10 conflicts in a row") {
		t.Fatalf("got %v", err)
	}
	if s.patches != maxTries {
		t.Errorf("%d patches", s.patches)
	}
}

func TestTheWaitBetweenConflictsEndsWithTheContext(t *testing.T) {
	s := newNodeServer(t, bare)
	s.conflicts = 1000
	c := client(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	c.pause = func(int) time.Duration { cancel(); return time.Hour }
	if err := c.Taint(ctx, ""); err == nil {
		t.Fatal("no error")
	}
}

func TestBackoffStaysInItsBounds(t *testing.T) {
	for try := 1; try < 100; try++ {
		if d := backoff(try); d < 25*time.Millisecond || d > time.Second {
			t.Errorf("try %d: %s", try, d)
		}
	}
}

func TestANodeThatIsCreatedAnewIsNotWritten(t *testing.T) {
	s := newNodeServer(t, bare)
	c := client(t, s)
	if _, err := c.Read(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	s.metadata()["uid"] = "u2"
	if err := c.Cordon(t.Context(), "b1"); err == nil || !strings.Contains(err.Error(), "created anew") {
		t.Fatalf("got %v", err)
	}
	if got, err := c.Read(t.Context(), time.Minute); err != nil || got.UID != "u2" || got.Unschedulable {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWithoutANodeThereIsNothingToUndo(t *testing.T) {
	c := client(t, newNodeServer(t, ""))
	if got, err := c.Read(t.Context(), 0); err != nil || got != (plan.Node{}) {
		t.Errorf("%+v, %v", got, err)
	}
	for name, err := range map[string]error{"clean": c.Clean(t.Context()), "roll back": c.RollBack(t.Context())} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{"taint": c.Taint(t.Context(), ""), "cordon": c.Cordon(t.Context(), "b")} {
		if err == nil {
			t.Errorf("%s succeeds on nothing", name)
		}
	}
}

func TestStartUpTaintsThatMayNotBeRemovedDoNotKeepTheNodeCordoned(t *testing.T) {
	s := newNodeServer(t,
		strings.Replace(bare, `"spec":{}`, `"spec":{"taints":[{"key":"start/x","effect":"NoExecute"}]}`, 1))
	c := client(t, s, "start/x")
	if err := c.Cordon(t.Context(), "b1"); err != nil {
		t.Fatal(err)
	}
	s.patch = func(w http.ResponseWriter, _ *http.Request) {
		s.patch = nil // the next one has them in it no longer
		kubetest.Status(w, 403, "Forbidden", "kured-agent may only change taints with its own key", nil)
	}
	err := c.Return(t.Context(), func(plan.Node) bool { return true })
	if err == nil || !strings.Contains(err.Error(), "start/x") ||
		!strings.Contains(err.Error(), "optional/startup-taints.yaml") {
		t.Errorf("got %v", err)
	}
	got, err := c.Read(t.Context(), 0)
	if diff := cmp.Diff(plan.Node{UID: "u1", Startup: true}, got); err != nil || diff != "" {
		t.Errorf("%v, node (-want +got):\n%s", err, diff)
	}
}

func TestErrorsEndTheAttemptAndForgetTheAnswer(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"forbidden": func(w http.ResponseWriter, _ *http.Request) {
			kubetest.Status(w, 403, "Forbidden", "policy says no", nil)
		},
		"invalid": func(w http.ResponseWriter, _ *http.Request) { kubetest.Status(w, 422, "Invalid", "bad", nil) },
		"server error": func(w http.ResponseWriter, _ *http.Request) {
			kubetest.Status(w, 500, "InternalError", "oops", nil)
		},
		"too many": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
		},
		"half an answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newNodeServer(t, bare)
			c := client(t, s)
			if _, err := c.Read(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			s.patch = answer
			if err := c.Taint(t.Context(), ""); err == nil || !strings.Contains(err.Error(), `tainting Node "n1"`) {
				t.Fatalf("got %v", err)
			}
			if s.patches != 1 || c.Writes() != 0 {
				t.Errorf("%d patches, %d writes", s.patches, c.Writes())
			}
			s.gets = 0
			if _, err := c.Read(t.Context(), time.Hour); err != nil || s.gets != 1 {
				t.Errorf("the answer of before the failure is still believed: %v", err)
			}
		})
	}
}

func TestAWriteWithAnUnreadableAnswerCounts(t *testing.T) {
	s := newNodeServer(t, bare)
	s.patch = func(w http.ResponseWriter, _ *http.Request) { kubetest.JSON(w, 200, `{"kind":"Node"`) }
	c := client(t, s)
	if err := c.Taint(t.Context(), ""); err != nil || c.Writes() != 1 {
		t.Errorf("%v, %d writes", err, c.Writes())
	}
}

func TestAnAnswerAboutAnotherNodeIsAnError(t *testing.T) {
	for name, body := range map[string]string{
		"another name": `{"metadata":{"name":"n2","uid":"u","resourceVersion":"1"}}`,
		"no uid":       `{"metadata":{"name":"n1","resourceVersion":"1"}}`,
		"no JSON":      `<html>`,
		"a number":     `7`,
		"bad taints":   `{"metadata":{"name":"n1","uid":"u","resourceVersion":"1"},"spec":{"taints":[1]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { kubetest.JSON(w, 200, body) }))
			if got, err := c.Read(t.Context(), 0); err == nil {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestWhatIsSeenOfANode(t *testing.T) {
	const meta = `"name":"n1","uid":"u1","resourceVersion":"1"`
	for _, c := range []struct {
		name, node string
		want       plan.Node
	}{
		{"healthy", `{"metadata":{` + meta + `},"status":{"nodeInfo":{"bootID":"b1"},` +
			`"conditions":[{"type":"Ready","status":"True"},{"type":"NetworkUnavailable","status":"False"}]}}`,
			plan.Node{UID: "u1", BootID: "b1", Ready: true}},
		{"unknown is not ready", `{"metadata":{` + meta +
			`},"status":{"conditions":[{"type":"Ready","status":"Unknown"},{"type":"NetworkUnavailable","status":"True"}]}}`,
			plan.Node{UID: "u1", NetworkUnavailable: true}},
		{"held with a reason", `{"metadata":{` + meta + `,"annotations":{"kured-agent/hold":"backup\nruns"}}}`,
			plan.Node{UID: "u1", Hold: "backup runs"}},
		{"held without", `{"metadata":{` + meta + `,"annotations":{"kured-agent/hold":" "}}}`,
			plan.Node{UID: "u1", Hold: "held"}},
		{"control plane", `{"metadata":{` + meta + `,"labels":{"node-role.kubernetes.io/control-plane":""}}}`,
			plan.Node{UID: "u1", ControlPlane: true}},
		{"autoscaler deletes it", `{"metadata":{` + meta +
			`},"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","value":"1","effect":"NoSchedule"}]}}`,
			plan.Node{UID: "u1", Leaving: `taint "ToBeDeletedByClusterAutoscaler"`}},
		{"karpenter deletes it", `{"metadata":{` + meta +
			`},"spec":{"taints":[{"key":"karpenter.sh/disrupted","effect":"NoSchedule"}]}}`,
			plan.Node{UID: "u1", Leaving: `taint "karpenter.sh/disrupted"`}},
		{"being deleted", `{"metadata":{` + meta + `,"deletionTimestamp":"2026-11-30T12:00:00Z"}}`,
			plan.Node{UID: "u1", Leaving: "the Node object is being deleted"}},
		{"start-up taint of any effect", `{"metadata":{` + meta +
			`},"spec":{"taints":[{"key":"start/any","effect":"NoExecute"}]}}`,
			plan.Node{UID: "u1", Startup: true}},
		{"start-up taint of another effect", `{"metadata":{` + meta +
			`},"spec":{"taints":[{"key":"start/one","effect":"NoExecute"}]}}`,
			plan.Node{UID: "u1"}},
		{"our key with another effect", `{"metadata":{` + meta +
			`},"spec":{"taints":[{"key":"kured-agent/reboot-required","effect":"NoSchedule"}]}}`,
			plan.Node{UID: "u1"}},
		{"somebody's value in our place", `{"metadata":{` + meta +
			`},"spec":{"taints":[{"key":"kured-agent/reboot-required","value":"x","effect":"PreferNoSchedule"}]}}`,
			plan.Node{UID: "u1"}},
		{"the same, and we want it there", `{"metadata":{` + meta + `,"annotations":{"kured-agent/reasons":""}},` +
			`"spec":{"taints":[{"key":"kured-agent/reboot-required","value":"x","effect":"PreferNoSchedule"}]}}`,
			plan.Node{UID: "u1", Tainted: true}},
		{"endless text", `{"metadata":{` + meta + `,"annotations":{"kured-agent/hold":"` + strings.Repeat("ä", 5000) + `"}}}`,
			plan.Node{UID: "u1", Hold: strings.Repeat("ä", 126) + "…"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := parse([]byte(c.node))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, o.observed(testWanted)); diff != "" {
				t.Errorf("node (-want +got):\n%s", diff)
			}
		})
	}
}
