// SPDX-License-Identifier: Apache-2.0
//go:build integration

package slot_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kured-agent/kured-agent/test/cluster"

	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
	"github.com/kured-agent/kured-agent/internal/slot"
)

const namespace = "kured-agent"

var shared *cluster.Cluster

func TestMain(m *testing.M) {
	cluster.Main(m, "slot-test", cluster.Options{ControllerManager: true}, &shared)
}

// pool sets N of a pool of its own for this test and returns its name.
func pool(t *testing.T, n string) string {
	t.Helper()
	name := fmt.Sprintf("p%x", time.Now().UnixNano())
	config(t, fmt.Sprintf(`{"data":{%q:%q}}`, name, n))
	return name
}

func config(t *testing.T, patch string) {
	t.Helper()
	shared.For(t).MustKubectl("-n", namespace, "patch", "configmap", "kured-agent-pools", "--type", "merge", "-p", patch)
}

// bareNode makes a Node object that no kubelet stands behind; a slot needs no more.
func bareNode(t *testing.T, name string) (uid string) {
	t.Helper()
	c := shared.For(t)
	body := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name}}
	if err := c.Do(t.Context(), http.MethodPost, "/api/v1/nodes", body, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.NodeOrNil(name) != nil {
			c.MustKubectl("delete", "node", name)
		}
	})
	return string(c.Node(name).UID)
}

func agent(t *testing.T, name string) (*kube.Client, *slot.Client) {
	t.Helper()
	k := kubetest.Connect(t, shared.For(t).AgentKubeconfig(name))
	return k, slot.New(k.Core(), k.Coordination(), slot.Options{Namespace: namespace, Node: name})
}

// take acquires, with patience for the policy's view of the ConfigMap, which lags a moment behind.
func take(t *testing.T, a *slot.Client, r slot.Request) slot.Result {
	t.Helper()
	var got slot.Result
	var err error
	shared.For(t).Eventually("a slot is given", 10*time.Second, func() bool {
		got, err = a.Acquire(t.Context(), r)
		return err == nil && got.Taken
	})
	return got
}

func TestASlotGoesThroughItsLifeWithTheConfinedToken(t *testing.T) {
	p, uid := pool(t, "1"), bareNode(t, "life")
	_, a := agent(t, "life")
	r := slot.Request{Pool: p, NodeUID: uid, Boot: "b1"}
	got := take(t, a, r)
	if got.Name != "slot-"+p+"-0" || got.Boot != "b1" || got.Since.IsZero() {
		t.Errorf("got %+v", got)
	}
	if again, err := a.Acquire(t.Context(), r); err != nil || again != got {
		t.Errorf("again %+v, %v", again, err)
	}
	if found, err := a.Find(t.Context(), p); err != nil || found != got {
		t.Errorf("found %+v, %v", found, err)
	}
	if ours, why, err := a.Verify(t.Context(), got.Name, got.UID); !ours || err != nil {
		t.Errorf("%v %q %v", ours, why, err)
	}
	if next, err := a.Acquire(t.Context(), slot.Request{Pool: p, NodeUID: uid, Boot: "b2"}); err != nil || next.Taken ||
		!strings.Contains(next.Why, "earlier boot") {
		t.Errorf("after a boot: %+v, %v", next, err)
	}
	bareNode(t, "life-2")
	_, other := agent(t, "life-2")
	if full, err := other.Acquire(t.Context(), slot.Request{Pool: p, NodeUID: "x", Boot: "b"}); err != nil || full.Taken ||
		!strings.Contains(full.Why, got.Name+" by life since ") {
		t.Errorf("full: %+v, %v", full, err)
	}
	// What is another's is not released, and that is no failure.
	if err := other.Release(t.Context(), got.Name, got.UID); err != nil {
		t.Errorf("release of another's: %v", err)
	}
	if ours, _, err := a.Verify(t.Context(), got.Name, got.UID); !ours || err != nil {
		t.Errorf("after the other's release: %v, %v", ours, err)
	}
	for range 2 {
		if err := a.Release(t.Context(), got.Name, got.UID); err != nil {
			t.Error(err)
		}
	}
}

func TestAHumanWhoDeletesTheLeaseStopsTheAgent(t *testing.T) {
	p, uid := pool(t, "1"), bareNode(t, "human")
	_, a := agent(t, "human")
	got := take(t, a, slot.Request{Pool: p, NodeUID: uid, Boot: "b1"})
	shared.For(t).MustKubectl("-n", namespace, "delete", "lease", got.Name)
	if ours, why, err := a.Verify(t.Context(), got.Name, got.UID); ours || err != nil ||
		!strings.Contains(why, "somebody released it") {
		t.Errorf("%v %q %v", ours, why, err)
	}
	second := take(t, a, slot.Request{Pool: p, NodeUID: uid, Boot: "b1"})
	if ours, why, err := a.Verify(t.Context(), got.Name, got.UID); ours || err != nil || second.UID == got.UID {
		t.Errorf("the old token is still good: %v %q %v", ours, why, err)
	}
	if err := a.Release(t.Context(), got.Name, got.UID); err != nil {
		t.Errorf("release with the old token: %v", err)
	}
	if ours, _, err := a.Verify(t.Context(), second.Name, second.UID); !ours || err != nil {
		t.Errorf("the old token released the new slot: %v", err)
	}
}

func TestASlotGoesWithItsNode(t *testing.T) {
	p, uid := pool(t, "1"), bareNode(t, "gone")
	_, a := agent(t, "gone")
	got := take(t, a, slot.Request{Pool: p, NodeUID: uid, Boot: "b1"})
	c := shared.For(t)
	c.MustKubectl("delete", "node", "gone")
	c.Eventually("the garbage collector frees the slot", 30*time.Second, func() bool {
		for _, lease := range c.Leases(namespace) {
			if lease.Name == got.Name {
				return false
			}
		}
		return true
	})
}

func TestThePoolsConfigMapIsObeyed(t *testing.T) {
	p, uid := pool(t, "1"), bareNode(t, "pools")
	_, a := agent(t, "pools")
	r := slot.Request{Pool: p, NodeUID: uid, Boot: "b1"}
	why := func(what, want string) {
		t.Helper()
		if got, err := a.Acquire(t.Context(), r); err != nil || got.Taken || !strings.Contains(got.Why, want) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	config(t, `{"data":{"paused":"change freeze"}}`)
	why("paused", "the fleet is paused: change freeze")
	config(t, `{"data":{"paused":null}}`)
	r.Pool = "unlisted"
	why("unlisted", "kubectl -n kured-agent patch configmap kured-agent-pools")
	r.Pool = p
	if got := take(t, a, r); got.Name == "" {
		t.Errorf("got %+v", got)
	}
}

// TestAPoolOfNNeverHasMoreThanNHolders lets twenty agents fight for two slots and has an observer of its own count
// them.
func TestAPoolOfNNeverHasMoreThanNHolders(t *testing.T) {
	const agents, rounds, n = 20, 2, 2
	p := pool(t, fmt.Sprint(n))
	c := shared.For(t)
	type contender struct {
		name, uid string
		client    *slot.Client
	}
	contenders := make([]contender, agents)
	for i := range contenders {
		name := fmt.Sprintf("fight-%02d", i)
		uid := bareNode(t, name)
		_, client := agent(t, name)
		contenders[i] = contender{name, uid, client}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var holding, most, taken atomic.Int32
	observed := make(chan int, 1)
	watching, stop := context.WithCancel(ctx)
	go func() {
		worst := 0
		for watching.Err() == nil {
			var list coordinationv1.LeaseList
			if c.Do(watching, http.MethodGet,
				"/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases?labelSelector=kured-agent/pool%3D"+p,
				nil, &list) == nil {
				worst = max(worst, len(list.Items))
			}
		}
		observed <- worst
	}()
	var group sync.WaitGroup
	problems := make(chan error, agents)
	for _, a := range contenders {
		group.Go(func() {
			for round := range rounds {
				r := slot.Request{Pool: p, NodeUID: a.uid, Boot: fmt.Sprintf("b%d", round)}
				var got slot.Result
				for !got.Taken {
					var err error
					if got, err = a.client.Acquire(ctx, r); ctx.Err() != nil {
						problems <- fmt.Errorf("%s never got a slot: %w", a.name, errors.Join(err, ctx.Err()))
						return
					}
				}
				now := holding.Add(1)
				for {
					seen := most.Load()
					if now <= seen || most.CompareAndSwap(seen, now) {
						break
					}
				}
				if ours, why, err := a.client.Verify(ctx, got.Name, got.UID); !ours {
					problems <- fmt.Errorf("%s lost %s: %s, %w", a.name, got.Name, why, err)
				}
				taken.Add(1)
				holding.Add(-1)
				if err := a.client.Release(ctx, got.Name, got.UID); err != nil {
					problems <- err
				}
			}
		})
	}
	group.Wait()
	stop()
	close(problems)
	for err := range problems {
		t.Error(err)
	}
	worst := <-observed
	t.Logf("%d turns, at most %d held at once, at most %d seen by the observer", taken.Load(), most.Load(), worst)
	if most.Load() > n || worst > n || taken.Load() != agents*rounds {
		t.Errorf("%d turns, %d held, %d seen", taken.Load(), most.Load(), worst)
	}
}

func TestEveryOverstepIsRefusedWithItsReason(t *testing.T) {
	p, uid := pool(t, "1"), bareNode(t, "over")
	other := bareNode(t, "over-2")
	k, a := agent(t, "over")
	held := take(t, a, slot.Request{Pool: p, NodeUID: uid, Boot: "b"})
	_, rival := agent(t, "over-2")
	if err := a.Release(t.Context(), held.Name, held.UID); err != nil {
		t.Fatal(err)
	}
	theirs := take(t, rival, slot.Request{Pool: p, NodeUID: other, Boot: "b"})
	lease := func(name, holder, owner, ownerUID string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q,`+
			`"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":%q,"uid":%q}]},"spec":{"holderIdentity":%q}}`,
			name, owner, ownerUID, holder)
	}
	for _, o := range []struct {
		name string
		body []byte
		want string
	}{
		{"in another's name", lease("slot-"+p+"-0", "over-2", "over", uid), "holderIdentity must be the agent's own node"},
		{"owned by another's Node", lease("slot-"+p+"-0", "over", "over-2", other), "must be owned by the agent's own Node"},
		{"owned by an older Node", lease("slot-"+p+"-0", "over", "over", "00000000-0000-0000-0000-000000000000"),
			"must be owned by the agent's own Node"},
		{"beyond N", lease("slot-"+p+"-1", "over", "over", uid),
			`slot "slot-` + p + `-1" is outside of ConfigMap kured-agent-pools`},
		{"of no pool", lease("slot-none-0", "over", "over", uid), "is outside of ConfigMap kured-agent-pools"},
		{"that is no slot", lease("something", "over", "over", uid), "is outside of ConfigMap kured-agent-pools"},
	} {
		t.Run(o.name, func(t *testing.T) {
			err := k.Coordination().Post().Namespace(namespace).Resource("leases").Body(o.body).Do(t.Context()).Error()
			if err == nil || !strings.Contains(err.Error(), o.want) {
				t.Errorf("got %v, want %q", err, o.want)
			}
		})
	}
	t.Run("deleting another's", func(t *testing.T) {
		err := k.Coordination().Delete().Namespace(namespace).Resource("leases").Name(theirs.Name).Do(t.Context()).Error()
		if err == nil || !strings.Contains(err.Error(), "only by its holder") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("leases elsewhere", func(t *testing.T) {
		err := k.Coordination().Post().Namespace("default").Resource("leases").Body(lease("x", "over", "over", uid)).
			Do(t.Context()).Error()
		if err == nil || !strings.Contains(err.Error(), "cannot create resource") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("changing the pools", func(t *testing.T) {
		err := k.Core().Delete().Namespace(namespace).Resource("configmaps").Name("kured-agent-pools").Do(t.Context()).Error()
		if err == nil || !strings.Contains(err.Error(), "cannot delete resource") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("while paused", func(t *testing.T) {
		config(t, `{"data":{"paused":"freeze"}}`)
		defer config(t, `{"data":{"paused":null}}`)
		shared.For(t).Eventually("the policy knows of the pause", 10*time.Second, func() bool {
			err := k.Coordination().Post().Namespace(namespace).Resource("leases").Param("dryRun", "All").
				Body(lease("slot-default-0", "over", "over", uid)).Do(t.Context()).Error()
			return err != nil && strings.Contains(err.Error(), "the fleet is paused: freeze")
		})
	})
	t.Run("a second slot", func(t *testing.T) {
		q := pool(t, "1")
		if err := rival.Release(t.Context(), theirs.Name, theirs.UID); err != nil {
			t.Fatal(err)
		}
		take(t, a, slot.Request{Pool: p, NodeUID: uid, Boot: "b"})
		shared.For(t).Eventually("the policy knows of the first slot", 10*time.Second, func() bool {
			err := k.Coordination().Post().Namespace(namespace).Resource("leases").Param("dryRun", "All").
				Body(lease("slot-"+q+"-0", "over", "over", uid)).Do(t.Context()).Error()
			return err != nil && strings.Contains(err.Error(), "the node holds slot-"+p+"-0 already")
		})
	})
	request := func(account, spec string) error {
		body := `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{` + spec + `}}`
		return k.Core().Post().Namespace(namespace).Resource("serviceaccounts").Name(account).SubResource("token").
			Body([]byte(body)).Do(t.Context()).Error()
	}
	token := func(node, nodeUID string, seconds int) error {
		return request("agent", fmt.Sprintf(`"expirationSeconds":%d,`+
			`"boundObjectRef":{"apiVersion":"v1","kind":"Node","name":%q,"uid":%q}`, seconds, node, nodeUID))
	}
	t.Run("a token", func(t *testing.T) {
		for what, c := range map[string]struct {
			err  error
			want string
		}{
			"of another node":    {token("over-2", other, 3600), "only renew a token bound to its own Node"},
			"for half a year":    {token("over", uid, 15552000), "at most 30 days"},
			"without a Node":     {request("agent", `"expirationSeconds":3600`), "only renew a token bound to its own Node"},
			"of another account": {request("default", `"expirationSeconds":3600`), "cannot create resource"},
		} {
			if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", what, c.err, c.want)
			}
		}
		if err := token("over", uid, 2592000); err != nil {
			t.Errorf("its own: %v", err)
		}
	})
}
