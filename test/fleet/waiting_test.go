// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/test/cluster"
)

const (
	waiting  = 5000
	starting = 5 * time.Minute // over which the need appears on all of them, so that looks are even from then on
	warmUp   = 80 * time.Second
	measured = 90 * time.Second
	frees    = 12

	edgePool = "edge" // one with a name of its own; a label of the same value selects its nodes
)

// waitingAgents has 5,000 agents wait for the one slot of a pool, beside two pools of three, and counts in
// the audit log what that costs; then it frees the slots one after another and takes the time until each is taken.
func waitingAgents(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Audit: true})
	next, err := rest.TransportFor(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	c.MustKubectl("-n", namespace, "patch", "configmap", "kured-agent-pools", "--type=merge", "-p",
		`{"data":{"default":"1","control-plane":"1","edge":"1"}}`)
	f := &field{t: t, c: c, next: next}
	all := f.pool("default", waiting)
	controlPlane, edge := f.pool("control-plane", 3), f.pool(edgePool, 3)

	began := time.Now()
	for _, p := range []*pool{controlPlane, edge} {
		p.hold()
		p.startAll(time.Second)
	}
	all.hold()
	all.startAll(starting)
	t.Logf("%d agents started after %s", waiting, time.Since(began).Round(time.Second))
	settle(t, warmUp)
	from := time.Now()
	settle(t, measured)
	to := time.Now()
	requests := c.Requests(func(r cluster.Request) bool {
		return r.UserAgent == userAgent && r.Time.After(from) && r.Time.Before(to)
	})
	rate := float64(len(requests)) / to.Sub(from).Seconds()

	var large, small, edged []time.Duration
	var group sync.WaitGroup
	group.Go(func() { large = all.frees(t.Context(), frees) })
	group.Go(func() { small = controlPlane.frees(t.Context(), frees) })
	group.Go(func() { edged = edge.frees(t.Context(), frees) })
	group.Wait()

	var out strings.Builder
	fmt.Fprintf(&out, "\n%-64s %-30s %s\n", "figure", "measured", "target")
	fmt.Fprintf(&out, "%-64s %-30s %s\n", fmt.Sprintf("requests/s of %d waiting agents, over %s", waiting, measured),
		fmt.Sprintf("%.1f", rate), "at most 20"+mark(rate <= 20))
	for kind, n := range cluster.Count(requests) {
		fmt.Fprintf(&out, "  %-62s %.1f\n", kind, float64(n)/to.Sub(from).Seconds())
	}
	for _, m := range []struct {
		what  string
		times []time.Duration
	}{
		{fmt.Sprintf("freed slot taken, pool of %d", waiting), large},
		{"freed slot taken, control-plane pool of 3 in the same cluster", small},
		{"freed slot taken, another pool of 3, with slot.nodes", edged},
	} {
		mid, low, high := spread(m.times)
		fmt.Fprintf(&out, "%-64s %-30s %s\n", m.what, fmt.Sprintf("median %s of %d (%s to %s)", mid, len(m.times), low, high),
			"median at most 5s"+mark(len(m.times) > 0 && mid <= 5*time.Second))
	}
	t.Log(out.String())
}

// clusterOfThree is the same where the pool is the whole cluster.
func clusterOfThree(t *testing.T) {
	c := cluster.Start(t, cluster.Options{})
	next, err := rest.TransportFor(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	f := &field{t: t, c: c, next: next}
	p := f.pool("default", 3)
	p.hold()
	p.startAll(time.Second)
	settle(t, 10*time.Second)
	times := p.frees(t.Context(), frees)
	mid, low, high := spread(times)
	t.Logf("freed slot taken, pool and cluster of 3: median %s of %d (%s to %s), target 5s%s", mid, len(times), low, high,
		mark(mid <= 5*time.Second))
}

func mark(met bool) string {
	if met {
		return ", met"
	}
	return ", MISSED"
}

func spread(times []time.Duration) (median, least, most time.Duration) {
	if len(times) == 0 {
		return 0, 0, 0
	}
	times = slices.Sorted(slices.Values(times))
	const unit = 100 * time.Millisecond
	return times[len(times)/2].Round(unit), times[0].Round(unit), times[len(times)-1].Round(unit)
}

// settle lets time pass: what is measured is what others do meanwhile.
func settle(t testing.TB, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal("the test ended early")
	}
}

// field makes Nodes and their agents in one cluster.
type field struct {
	t    *testing.T
	c    *cluster.Cluster
	next http.RoundTripper
}

type pool struct {
	*field
	name    string
	waiters []*waiter
	taken   chan taking
}

// pool makes n Nodes, without kubelets: a waiting agent needs no more.
func (f *field) pool(name string, n int) *pool {
	f.t.Helper()
	p := &pool{field: f, name: name, taken: make(chan taking, n), waiters: make([]*waiter, n)}
	work := make(chan int)
	problems := make(chan error, n)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for i := range work {
				var err error
				if p.waiters[i], err = p.newNode(fmt.Sprintf("%s-%04d", name, i), i); err != nil {
					problems <- err
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	group.Wait()
	close(problems)
	for err := range problems {
		f.t.Fatal(err)
	}
	return p
}

func (p *pool) newNode(name string, i int) (*waiter, error) {
	object := corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo: corev1.NodeSystemInfo{BootID: thisBoot}},
	}
	switch p.name {
	case "control-plane":
		object.Labels["node-role.kubernetes.io/control-plane"] = ""
	case edgePool:
		object.Labels["pool"] = edgePool
	}
	if err := p.c.Do(p.t.Context(), http.MethodPost, "/api/v1/nodes", object, &object); err != nil {
		return nil, err
	}
	pods := 10 + i%41 // as nodes have them: others are let pass for half a second to two
	return newWaiter(p.t, p.c.URL(), name, string(object.UID), p.name, pods, p.next, p.taken), nil
}

// hold gives the only slot to somebody else.
func (p *pool) hold() {
	p.t.Helper()
	lease := map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": "slot-" + p.name + "-0", "labels": map[string]any{"kured-agent/pool": p.name}},
		"spec":     map[string]any{"holderIdentity": "somebody-else", "acquireTime": "2026-11-30T12:00:00.000000Z"},
	}
	path := "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
	if err := p.c.Do(p.t.Context(), http.MethodPost, path, lease, nil); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pool) startAll(over time.Duration) {
	p.t.Helper()
	tick := time.NewTicker(max(over/time.Duration(len(p.waiters)), time.Millisecond))
	defer tick.Stop()
	for _, w := range p.waiters {
		w.start(p.t.Context())
		p.t.Cleanup(w.stop)
		<-tick.C
	}
}

// frees deletes the slot n times, each time after it was held for a while, and returns how long it was free. Who had it
// waits again, as long as anybody, when the next has it: always all the other nodes of the pool wait.
func (p *pool) frees(ctx context.Context, n int) []time.Duration {
	var took []time.Duration
	var before *waiter
	bound := time.NewTimer(15 * time.Minute)
	defer bound.Stop()
	for range n {
		held := time.NewTimer(4*time.Second + rand.N(4*time.Second))
		select {
		case <-held.C:
		case <-ctx.Done():
			return took
		}
		free := time.Now()
		path := "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases/slot-" + p.name + "-0"
		if err := p.c.Do(p.t.Context(), http.MethodDelete, path, nil, nil); err != nil {
			p.t.Error(errors.Join(errors.New("freeing a slot"), err))
			return took
		}
		select {
		case now := <-p.taken:
			took = append(took, now.at.Sub(free))
			if before != nil {
				before.again <- struct{}{}
			}
			before = now.by
		case <-ctx.Done():
			return took
		case <-bound.C:
			p.t.Errorf("pool %q: nobody took the slot", p.name)
			return took
		}
	}
	return took
}
