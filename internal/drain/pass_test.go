// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

// With after_timeout = "reboot" or "delete" the node goes down under an unmanaged pod in the end: the others must not.
func TestAnUnmanagedPodHoldsUpNoOtherWhenTheNodeRebootsAllTheSame(t *testing.T) {
	goOn := func(o *Options) { o.GoOn = true }
	s := newPodServer(podObject("a"), podObject("b"), podObject("bare", bare))
	c := client(t, s, goOn)
	if left, _, _, fatal := round(t, c); left != 3 || fatal {
		t.Errorf("left %d, fatal %v", left, fatal)
	}
	if left := slices.Sorted(maps.Keys(s.pods)); !slices.Equal(left, []string{"bare"}) || s.asked["bare"] != 0 {
		t.Errorf("left %v after one pass, asked %v", left, s.asked)
	}
	left, next, why, fatal := round(t, c)
	if left != 1 || !fatal || !strings.Contains(why, "default/bare") || next < c.o.Uptime()+5*time.Second {
		t.Errorf("only the unmanaged pod is left: %d, fatal %v, %q, next pass in %s", left, fatal, why, next-c.o.Uptime())
	}

	s = newPodServer(podObject("a"), podObject("bare", bare))
	c = client(t, s, goOn)
	if _, err := c.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context()); err != nil || s.asked["a"] != 1 {
		t.Errorf("deleting: %v, asked %v", err, s.asked)
	}
}

// A shutdown takes an unmanaged pod down in any case: it starts again with the node.
func TestAnUnmanagedPodThatIsLeftIsNotWaitedFor(t *testing.T) {
	s := newPodServer(podObject("a"), podObject("bare", bare))
	c := client(t, s, func(o *Options) { o.UnmanagedPods = "leave" })
	if left, _, _, fatal := round(t, c); left != 1 || fatal {
		t.Errorf("left %d, fatal %v", left, fatal)
	}
	if left, _, _, fatal := round(t, c); left != 0 || fatal || s.asked["bare"] != 0 {
		t.Errorf("left %d, fatal %v, asked %v", left, fatal, s.asked)
	}
}

// A pass over many pods that each hang must leave the loop time to tell the watchdog that it lives.
func TestAPassEndsWithItsContextAndAsksNoFurther(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Int32
	pods := newPodServer()
	for i := range 60 {
		pods.add(podObject(fmt.Sprintf("p%02d", i)))
	}
	k, _ := kubetest.Server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			pods.ServeHTTP(w, r)
			return
		}
		if asked.Add(1) == concurrency {
			cancel()
		}
		<-r.Context().Done()
	}))
	c := New(k.Core(), Options{Node: "n1", GracePeriod: -1, Uptime: func() time.Duration { return time.Hour }})
	if _, err := c.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Pass(ctx); err == nil {
		t.Error("a pass that was cut short has no error")
	}
	if n := asked.Load(); n > concurrency {
		t.Errorf("%d pods were asked for after the context had ended", n-concurrency)
	}
}

func TestALookTellsWhichDaemonSetsHaveAPodHere(t *testing.T) {
	image := set("spec", "containers", []object{{"image": "ghcr.io/kubereboot/kured:1.23.0"}})
	s := newPodServer(podObject("web"), podObject("kured-x", owned("DaemonSet"), label("name", "kured"), image), podObject("bare", bare))
	var seen []Neighbour
	c := client(t, s, func(o *Options) { o.Stays = func(all []Neighbour) { seen = all } })
	if _, err := c.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []Neighbour{{"default", "x", map[string]string{"name": "kured"}, []string{"ghcr.io/kubereboot/kured:1.23.0"}}}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
}
