// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

// object is a Pod as the API server sends it.
type object map[string]any

func podObject(name string, with ...func(object)) object {
	p := object{
		"metadata": object{"name": name, "namespace": "default", "uid": "uid-" + name,
			"ownerReferences": []object{{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs",
				"controller": true}}},
		"spec":   object{"nodeName": "n1"},
		"status": object{"phase": "Running"},
	}
	for _, f := range with {
		f(p)
	}
	return p
}

func set(section, key string, value any) func(object) {
	return func(p object) { p[section].(object)[key] = value }
}

func owned(kind string) func(object) {
	return set("metadata", "ownerReferences", []object{{"kind": kind, "name": "x", "uid": kind, "controller": true}})
}

var (
	bare        = set("metadata", "ownerReferences", nil)
	mirror      = set("metadata", "annotations", object{"kubernetes.io/config.mirror": "hash", "x": "y"})
	ending      = set("metadata", "deletionTimestamp", "2026-11-30T12:00:00Z")
	emptyVolume = set("spec", "volumes", []object{{"emptyDir": object{}}})
)

func phase(p string) func(object)    { return set("status", "phase", p) }
func priority(n int) func(object)    { return set("spec", "priority", n) }
func label(k, v string) func(object) { return set("metadata", "labels", object{k: v}) }
func on(node string) func(object)    { return set("spec", "nodeName", node) }
func weakOwner(p object) {
	set("metadata", "ownerReferences", []object{{"kind": "Thing", "name": "x", "uid": "x"}})(p)
}
func parsePod(t *testing.T, o object) *pod {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var p pod
	if err := json.Unmarshal(raw, &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

func TestWhatHappensToEachKindOfPod(t *testing.T) {
	skip, err := labels.Parse("app in (keep)")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		pod   object
		want  class
		force class // with unmanaged_pods = "evict", when it differs
	}{
		{name: "of a ReplicaSet", pod: podObject("p"), want: evicted},
		{name: "of a StatefulSet", pod: podObject("p", owned("StatefulSet")), want: evicted},
		{name: "of a Job", pod: podObject("p", owned("Job")), want: evicted},
		{name: "of a DaemonSet", pod: podObject("p", owned("DaemonSet")), want: stays},
		{name: "static", pod: podObject("p", mirror, owned("Node")), want: stays},
		{name: "succeeded", pod: podObject("p", phase("Succeeded"), bare), want: stays},
		{name: "failed", pod: podObject("p", phase("Failed")), want: stays},
		{name: "pending", pod: podObject("p", phase("Pending")), want: evicted},
		{name: "with an emptyDir", pod: podObject("p", emptyVolume), want: evicted},
		{name: "to skip", pod: podObject("p", label("app", "keep")), want: stays},
		{name: "not to skip", pod: podObject("p", label("app", "go")), want: evicted},
		{name: "without a controller", pod: podObject("p", bare), want: blocks, force: evicted},
		{name: "with an owner that is no controller", pod: podObject("p", weakOwner), want: blocks, force: evicted},
		{name: "ending", pod: podObject("p", ending), want: terminating},
		{name: "ending without a controller", pod: podObject("p", ending, bare), want: terminating},
		{name: "on another node", pod: podObject("p", on("n2")), want: stays},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := parsePod(t, c.pod)
			if got := classify(p, "n1", skip, false); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if c.force == stays {
				c.force = c.want
			}
			if got := classify(p, "n1", skip, true); got != c.force {
				t.Errorf("forced: %s, want %s", got, c.force)
			}
		})
	}
}

// podServer keeps pods and evicts them as told.
type podServer struct {
	mu     sync.Mutex
	pods   map[string]object
	asked  map[string]int // evictions by pod
	bodies []map[string]any
	lists  int
	now    atomic.Int64 // uptime

	answer func(name string, w http.ResponseWriter) bool // false: evict
	linger bool                                          // evicted pods stay, terminating
	page   int
	inside atomic.Int32
	most   atomic.Int32
}

func newPodServer(pods ...object) *podServer {
	s := &podServer{pods: map[string]object{}, asked: map[string]int{}}
	s.now.Store(int64(time.Hour))
	s.add(pods...)
	return s
}

func (s *podServer) add(pods ...object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range pods {
		s.pods[p["metadata"].(object)["name"].(string)] = p
	}
}

func (s *podServer) advance(d time.Duration) { s.now.Add(int64(d)) }

func (s *podServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := s.inside.Add(1)
	defer s.inside.Add(-1)
	if n > s.most.Load() {
		s.most.Store(n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Path == "/api/v1/pods" {
		s.list(w, r)
		return
	}
	parts := strings.Split(r.URL.Path, "/") // /api/v1/namespaces/default/pods/NAME[/eviction]
	name := parts[6]
	s.asked[name]++
	var body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&body)
	s.bodies = append(s.bodies, body)
	if s.answer != nil && s.answer(name, w) {
		return
	}
	if s.pods[name] == nil {
		kubetest.Status(w, 404, "NotFound", "not found", nil)
		return
	}
	if s.linger {
		ending(s.pods[name])
	} else {
		delete(s.pods, name)
	}
	kubetest.JSON(w, 201, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
}

func (s *podServer) list(w http.ResponseWriter, r *http.Request) {
	s.lists++
	if r.URL.Query().Get("fieldSelector") != "spec.nodeName=n1" || r.URL.Query().Get("limit") != "250" {
		kubetest.Status(w, 400, "BadRequest", "unbounded list", nil)
		return
	}
	names := slices.Sorted(maps.Keys(s.pods))
	metadata := object{}
	if s.page > 0 {
		from := 0
		_, _ = fmt.Sscan(r.URL.Query().Get("continue"), &from)
		names = names[from:]
		if len(names) > s.page {
			names = names[:s.page]
			metadata["continue"] = fmt.Sprint(from + s.page)
		}
	}
	var items []object
	for _, name := range names {
		items = append(items, s.pods[name])
	}
	kubetest.JSON(w, 200, object{"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items})
}

func client(t *testing.T, s *podServer, change ...func(*Options)) *Client {
	t.Helper()
	k, _ := kubetest.Server(t, s)
	o := Options{Node: "n1", GracePeriod: -1, UnmanagedPods: "block",
		Uptime: func() time.Duration { return time.Duration(s.now.Load()) }}
	for _, f := range change {
		f(&o)
	}
	return New(k.Core(), o)
}

// round looks and, when a pass is due, makes it.
func round(t *testing.T, c *Client) (left int, next time.Duration, why string, fatal bool) {
	t.Helper()
	pods, err := c.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if pods.Next <= c.o.Uptime() && pods.Left > 0 && !pods.Fatal {
		if err := c.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return pods.Left, pods.Next, pods.Why, pods.Fatal
}

func TestADrainEmptiesTheNodeWaveByWave(t *testing.T) {
	s := newPodServer(podObject("a"), podObject("b"), podObject("critical", priority(2000000000)),
		podObject("low", priority(-10)),
		podObject("ds", owned("DaemonSet")), podObject("done", phase("Succeeded")))
	c := client(t, s)
	var order [][]string
	var whys []string
	for range 4 {
		before := maps.Clone(s.asked)
		left, _, why, _ := round(t, c)
		if left == 0 {
			break
		}
		whys = append(whys, why)
		var wave []string
		for name, n := range s.asked {
			if n > before[name] {
				wave = append(wave, name)
			}
		}
		slices.Sort(wave)
		order = append(order, wave)
	}
	if diff := cmp.Diff([][]string{{"low"}, {"a", "b"}, {"critical"}}, order); diff != "" {
		t.Errorf("waves (-want +got):\n%s", diff)
	}
	next := []string{"pod default/low is next", "pod default/a is next", "pod default/critical is next"}
	if diff := cmp.Diff(next, whys); diff != "" {
		t.Errorf("whys (-want +got):\n%s", diff)
	}
	if c.Evictions() != 4 || len(s.pods) != 2 {
		t.Errorf("%d evictions, left %v", c.Evictions(), s.pods)
	}
}

func TestAnEvictionMeansExactlyTheListedPod(t *testing.T) {
	s := newPodServer(podObject("a"))
	c := client(t, s, func(o *Options) { o.GracePeriod = 7 * time.Second })
	round(t, c)
	want := map[string]any{"apiVersion": "policy/v1", "kind": "Eviction",
		"metadata":      map[string]any{"name": "a", "namespace": "default"},
		"deleteOptions": map[string]any{"preconditions": map[string]any{"uid": "uid-a"}, "gracePeriodSeconds": 7.0}}
	if diff := cmp.Diff([]map[string]any{want}, s.bodies); diff != "" {
		t.Errorf("bodies (-want +got):\n%s", diff)
	}
}

func budgetAnswer(w http.ResponseWriter) {
	kubetest.Status(w, 429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.",
		map[string]any{"causes": []any{map[string]any{"reason": "DisruptionBudget",
			"message": "The disruption budget web needs 2 healthy pods and has 2 currently"}}})
}

func TestARefusingBudgetIsAskedAtMostFifteenTimesAMinute(t *testing.T) {
	s := newPodServer(podObject("web-1"))
	s.answer = func(_ string, w http.ResponseWriter) bool { budgetAnswer(w); return true }
	c := client(t, s)
	start := s.now.Load()
	round(t, c)
	left, next, why, fatal := round(t, c)
	if left != 1 || fatal || !strings.Contains(why, "default/web-1") ||
		!strings.Contains(why, "disruption budget web needs 2") {
		t.Errorf("left %d, fatal %v, why %q", left, fatal, why)
	}
	if wait := next - time.Duration(s.now.Load()); wait < 4*time.Second || wait > 6*time.Second {
		t.Errorf("first wait %s", wait)
	}
	for time.Duration(s.now.Load()-start) < time.Minute {
		round(t, c)
		s.advance(time.Second)
	}
	if n := s.asked["web-1"]; n < 3 || n > 15 {
		t.Errorf("asked %d times", n)
	}
	s.answer = nil
	s.advance(lastRetry + time.Second*4)
	round(t, c)
	if left, _, _, _ := round(t, c); left != 0 {
		t.Errorf("left %d after the budget allows it", left)
	}
}

func TestWhatEachAnswerMeans(t *testing.T) {
	causes := func(reason string) map[string]any {
		return map[string]any{"causes": []any{map[string]any{"reason": reason, "message": "m"}}}
	}
	for _, c := range []struct {
		name    string
		code    int
		reason  string
		message string
		details map[string]any
		want    verdict
		after   time.Duration
	}{
		{"gone", 404, "NotFound", "", nil, gone, 0},
		{"another pod of this name", 409, "Conflict", "Precondition failed: UID in precondition", nil, gone, 0},
		{"budget", 429, "TooManyRequests", "", causes("DisruptionBudget"), budget, 0},
		{"budget not processed yet", 429, "TooManyRequests", "", map[string]any{"retryAfterSeconds": 10,
			"causes": causes("DisruptionBudget")["causes"]}, budget, 10 * time.Second},
		{"budget below zero", 403, "Forbidden", "", causes("DisruptionBudget"), budget, 0},
		{"load", 429, "TooManyRequests", "slow down", map[string]any{"retryAfterSeconds": 3}, busy, 3 * time.Second},
		{"absurd wait", 429, "TooManyRequests", "", map[string]any{"retryAfterSeconds": 1000000}, busy, 5 * time.Minute},
		{"namespace ends", 403, "Forbidden", "", causes("NamespaceTerminating"), doomed, 0},
		{"missing right", 403, "Forbidden", "cannot create resource", nil, refused, 0},
		{"several budgets", 500, "InternalError",
			"This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.", nil, refused, 0},
		{"internal error", 500, "InternalError", "etcd", nil, unclear, 0},
		{"timeout", 504, "Timeout", "", nil, unclear, 0},
		{"expired credential", 401, "Unauthorized", "", nil, unclear, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, _ := kubetest.Server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				kubetest.Status(w, c.code, c.reason, c.message, c.details)
			}))
			got := judge(New(k.Core(), Options{GracePeriod: -1}).evict(t.Context(), parsePod(t, podObject("p"))))
			if got.Verdict != c.want || got.After != c.after {
				t.Errorf("got %+v", got)
			}
		})
	}
	if got := judge(context.DeadlineExceeded); got.Verdict != unclear {
		t.Errorf("no answer: %+v", got)
	}
}

func TestABusyServerIsLeftAloneForAsLongAsItAsks(t *testing.T) {
	s := newPodServer(podObject("a"), podObject("b"))
	s.answer = func(_ string, w http.ResponseWriter) bool {
		kubetest.Status(w, 429, "TooManyRequests", "slow down", map[string]any{"retryAfterSeconds": 20})
		return true
	}
	c := client(t, s)
	round(t, c)
	asked := s.asked["a"] + s.asked["b"]
	_, next, why, _ := round(t, c)
	if wait := next - time.Duration(s.now.Load()); wait != 20*time.Second || !strings.Contains(why, "busy") {
		t.Errorf("waits %s, %q", wait, why)
	}
	if err := c.Pass(t.Context()); err != nil || s.asked["a"]+s.asked["b"] != asked {
		t.Errorf("asked again: %v", s.asked)
	}
}

func TestWhatCannotBeEvictedIsFatalAndNamed(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"cannot create resource": func(w http.ResponseWriter) {
			kubetest.Status(w, 403, "Forbidden", `cannot create resource "pods/eviction"`, nil)
		},
		"more than one PodDisruptionBudget": func(w http.ResponseWriter) {
			kubetest.Status(w, 500, "InternalError", "This pod has more than one PodDisruptionBudget", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPodServer(podObject("a"))
			s.answer = func(_ string, w http.ResponseWriter) bool { answer(w); return true }
			c := client(t, s)
			round(t, c)
			if _, _, why, fatal := round(t, c); !fatal || !strings.Contains(why, "default/a") || !strings.Contains(why, name) {
				t.Errorf("fatal %v, %q", fatal, why)
			}
			s.advance(forget + time.Minute) // a later attempt starts afresh
			s.answer = nil
			if _, _, _, fatal := round(t, c); fatal {
				t.Error("still fatal in the next attempt")
			}
		})
	}
}

func TestAnUnmanagedPodStopsTheDrainBeforeItBegins(t *testing.T) {
	s := newPodServer(podObject("a"), podObject("bare-1", bare), podObject("bare-2", bare))
	c := client(t, s)
	left, _, why, fatal := round(t, c)
	if left != 3 || !fatal || !strings.Contains(why, "default/bare-1 (and 1 more)") ||
		!strings.Contains(why, `unmanaged_pods = "evict"`) {
		t.Errorf("left %d, fatal %v, %q", left, fatal, why)
	}
	if err := c.Pass(t.Context()); err != nil || len(s.asked) != 0 {
		t.Errorf("asked %v, %v", s.asked, err)
	}
	forced := client(t, s, func(o *Options) { o.UnmanagedPods = "evict" })
	round(t, forced)
	if len(s.pods) != 0 {
		t.Errorf("left %v", s.pods)
	}
}

func TestPodsThatAreEndingAreWaitedForAndNamed(t *testing.T) {
	grace := set("spec", "terminationGracePeriodSeconds", 10)
	s := newPodServer(podObject("a", grace), podObject("b", grace))
	s.linger = true
	c := client(t, s)
	round(t, c)
	if _, _, why, _ := round(t, c); why != "pod default/a and others are ending" {
		t.Errorf("why %q", why)
	}
	delete(s.pods, "b")
	var waits []time.Duration
	for range 5 {
		_, next, why, _ := round(t, c)
		if !strings.Contains(why, "default/a is ending") {
			t.Errorf("why %q", why)
		}
		waits = append(waits, next-time.Duration(s.now.Load()))
		s.now.Store(int64(next))
	}
	if diff := cmp.Diff([]time.Duration{1e9, 2e9, 4e9, 5e9, 5e9}, waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	s.advance(2 * time.Minute)
	if _, _, why, fatal := round(t, c); fatal || !strings.Contains(why, "look at its finalizers") {
		t.Errorf("why %q", why)
	}
	if s.asked["a"] != 1 {
		t.Errorf("asked %d times", s.asked["a"])
	}
}

func TestANewcomerIsEvictedTwiceAndThenLeftAlone(t *testing.T) {
	s := newPodServer(podObject("c-0"))
	c := client(t, s)
	for i := range 6 {
		round(t, c)
		s.add(podObject(fmt.Sprintf("c-%d", i+1)))
		s.advance(time.Second)
	}
	if left, _, _, _ := round(t, c); left != 0 || c.Evictions() != 3 {
		t.Errorf("left %d after %d evictions", left, c.Evictions())
	}
}

func TestEvictionsRunTenAtATime(t *testing.T) {
	s := newPodServer()
	for i := range 20 {
		s.add(podObject(fmt.Sprintf("p-%02d", i)))
	}
	c := client(t, s)
	round(t, c)
	if most := s.most.Load(); most > concurrency || c.Evictions() != 20 {
		t.Errorf("%d at a time, %d evictions", most, c.Evictions())
	}
}

func TestAllPagesOfALongListCount(t *testing.T) {
	s := newPodServer(podObject("a"), podObject("b"), podObject("c"), podObject("d"), podObject("e"))
	s.page = 2
	if left, _, _, _ := round(t, client(t, s)); left != 5 || s.lists != 3 {
		t.Errorf("left %d after %d lists", left, s.lists)
	}
}

func TestAListWithoutEndIsAnError(t *testing.T) {
	k, _ := kubetest.Server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		kubetest.JSON(w, 200, `{"metadata":{"continue":"again"},"items":[{}]}`)
	}))
	_, err := New(k.Core(), Options{Node: "n1", Uptime: func() time.Duration { return 1 }}).Look(t.Context())
	if err == nil || !strings.Contains(err.Error(), "more than 40") {
		t.Errorf("got %v", err)
	}
}

func TestUnreadableAnswersAreErrors(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"html":      func(w http.ResponseWriter, _ *http.Request) { kubetest.JSON(w, 200, "<html>") },
		"truncated": func(w http.ResponseWriter, _ *http.Request) { kubetest.JSON(w, 200, `{"items":[{"metadata":`) },
		"types": func(w http.ResponseWriter, _ *http.Request) {
			kubetest.JSON(w, 200, `{"items":[{"spec":{"priority":"high"}}]}`)
		},
		"broken":    func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"forbidden": func(w http.ResponseWriter, _ *http.Request) { kubetest.Status(w, 403, "Forbidden", "no", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			k, _ := kubetest.Server(t, handler)
			_, err := New(k.Core(), Options{Node: "n1", Uptime: func() time.Duration { return 1 }}).Look(t.Context())
			if err == nil || !strings.Contains(err.Error(), `of node "n1"`) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAPassThatGetsNoAnswerSaysSo(t *testing.T) {
	s := newPodServer(podObject("a"))
	c := client(t, s)
	if _, err := c.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.answer = func(_ string, w http.ResponseWriter) bool {
		kubetest.Status(w, 504, "Timeout", "timeout", nil)
		return true
	}
	if err := c.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), `"default/a"`) {
		t.Errorf("got %v", err)
	}
}

func TestAMalformedSelectorIsReported(t *testing.T) {
	c := client(t, newPodServer(), func(o *Options) { o.Skip = "a in (" })
	if _, err := c.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "a in (") {
		t.Errorf("got %v", err)
	}
}

func TestDeletionTakesTheListedPodsAndNamesTheRightItNeeds(t *testing.T) {
	s := newPodServer(podObject("a"), podObject("critical", priority(2000000000)), podObject("ds", owned("DaemonSet")))
	c := client(t, s, func(o *Options) { o.GracePeriod = time.Second })
	if _, err := c.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.answer = func(_ string, w http.ResponseWriter) bool {
		kubetest.Status(w, 403, "Forbidden", `cannot delete resource "pods"`, nil)
		return true
	}
	if err := c.Delete(t.Context()); err == nil || !strings.Contains(err.Error(), "optional/delete-pods.yaml") {
		t.Errorf("got %v", err)
	}
	s.answer, s.bodies = nil, nil
	if err := c.Delete(t.Context()); err != nil || len(s.pods) != 1 {
		t.Errorf("%v, left %v", err, s.pods)
	}
	for _, body := range s.bodies {
		if body["gracePeriodSeconds"] != 1.0 || body["preconditions"] == nil {
			t.Errorf("body %v", body)
		}
	}
}
