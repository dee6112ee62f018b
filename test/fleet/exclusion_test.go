// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/slot"
	"github.com/kured-agent/kured-agent/test/cluster"
)

const (
	fighters = 50
	fightN   = 2
	fight    = 60 * time.Second
)

// unreliable loses requests and answers, and has agents wait for some.
type unreliable struct{ next http.RoundTripper }

var errLost = errors.New("lost on the way")

func (u unreliable) RoundTrip(r *http.Request) (*http.Response, error) {
	switch rand.IntN(20) {
	case 0:
		return nil, errLost
	case 1:
		response, err := u.next.RoundTrip(r)
		if err == nil {
			_ = response.Body.Close()
		}
		return nil, errLost
	case 2:
		late := time.NewTimer(rand.N(300 * time.Millisecond))
		select {
		case <-late.C:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return u.next.RoundTrip(r)
}

// fiftyAgents lets agents that crash, over a network that loses requests and answers, fight
// for the slots of one pool for a minute. A watch of the slots counts them.
func fiftyAgents(t *testing.T) {
	c := cluster.Start(t, cluster.Options{})
	next, err := rest.TransportFor(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	c.MustKubectl("-n", namespace, "patch", "configmap", "kured-agent-pools", "--type=merge", "-p",
		fmt.Sprintf(`{"data":{"fight":"%d"}}`, fightN))
	p := (&field{t: t, c: c, next: unreliable{next}}).pool("fight", fighters)
	var seen ledger
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	c.Watch(watching, "/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases", seen.take)
	ctx, cancel := context.WithTimeout(t.Context(), fight)
	defer cancel()
	var holding, most, turns, crashes atomic.Int32
	var group sync.WaitGroup
	for _, w := range p.waiters {
		group.Go(func() {
			f := &fighter{waiter: w, client: w.slots, p: p}
			for ctx.Err() == nil {
				if !f.acquire(ctx) {
					continue
				}
				raise(&most, holding.Add(1))
				if rand.IntN(10) == 0 { // its process ends, and the next one knows nothing
					f.forget()
					crashes.Add(1)
					_ = f.again(context.WithoutCancel(ctx), func(ctx context.Context) (bool, error) {
						found, err := f.client.Find(ctx, "fight")
						if err == nil && !found.Taken {
							t.Errorf("%s lost its slot in a crash", w.name)
						}
						f.held = found
						return true, err
					})
				}
				holding.Add(-1)
				turns.Add(1)
				_ = f.again(context.WithoutCancel(ctx), func(ctx context.Context) (bool, error) {
					return true, f.client.Release(ctx, f.held.Name, f.held.UID)
				})
			}
			f.giveBack(context.WithoutCancel(ctx))
		})
	}
	group.Wait()
	c.Eventually("the watch has seen the last release", 10*time.Second, func() bool { return seen.now() == 0 })
	t.Logf("%d agents, N = %d, %s: %d turns, %d of them with a crash; at most %d held by the agents' account, at most %d seen "+
		"by a watch of %d slots taken", fighters, fightN, fight, turns.Load(), crashes.Load(), most.Load(), seen.most, seen.added)
	if most.Load() > fightN || seen.most > fightN || turns.Load() < fighters {
		t.Error("more slots than N were held, or too few turns were taken to tell")
	}
}

type fighter struct {
	*waiter
	p      *pool
	client *slot.Client
	held   slot.Result
}

// acquire takes a slot and verifies it; false: it has none that counts.
func (f *fighter) acquire(ctx context.Context) bool {
	got, err := f.client.Acquire(ctx, slot.Request{Pool: "fight", NodeUID: f.uid, Boot: "b"})
	if err != nil || !got.Taken {
		rest := time.NewTimer(rand.N(40 * time.Millisecond))
		defer rest.Stop()
		<-rest.C
		return false
	}
	f.held = got
	ours := false
	err = f.again(context.WithoutCancel(ctx), func(ctx context.Context) (done bool, err error) {
		ours, _, err = f.client.Verify(ctx, got.Name, got.UID)
		return true, err
	})
	return err == nil && ours
}

// giveBack releases a slot that a creation without an answer took at the very end.
func (f *fighter) giveBack(ctx context.Context) {
	_ = f.again(ctx, func(ctx context.Context) (bool, error) {
		found, err := f.client.Find(ctx, "fight")
		if err != nil || !found.Taken {
			return true, err
		}
		return true, f.client.Release(ctx, found.Name, found.UID)
	})
}

func (f *fighter) forget() {
	core, coordination := clients(f.p.t, f.p.c.URL(), f.name, f.p.next)
	f.client = slot.New(core, coordination, slot.Options{Namespace: namespace, Node: f.name})
}

// again does it until it has an answer, as the loop would.
func (f *fighter) again(ctx context.Context, do func(context.Context) (bool, error)) error {
	var err error
	for range 50 {
		var done bool
		if done, err = do(ctx); err == nil && done {
			return nil
		}
	}
	f.p.t.Errorf("%s: no answer in fifty tries: %v", f.name, err)
	return err
}

func raise(most *atomic.Int32, to int32) {
	for seen := most.Load(); to > seen && !most.CompareAndSwap(seen, to); seen = most.Load() {
	}
}

// ledger is what a watch, which tells every change in order, has shown of the slots.
type ledger struct {
	mu          sync.Mutex
	names       map[string]bool
	most, added int
}

func (l *ledger) take(kind string, object json.RawMessage) {
	var lease coordinationv1.Lease
	if json.Unmarshal(object, &lease) != nil || !strings.HasPrefix(lease.Name, "slot-fight-") {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = map[string]bool{}
	}
	switch kind {
	case "ADDED":
		l.names[lease.Name] = true
		l.added++
	case "DELETED":
		delete(l.names, lease.Name)
	}
	l.most = max(l.most, len(l.names))
}

func (l *ledger) now() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.names)
}
