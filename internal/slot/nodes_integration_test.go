// SPDX-License-Identifier: Apache-2.0

//go:build integration

package slot_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/slot"
	"github.com/kured-agent/kured-agent/test/cluster"
)

// report sets the labels of a Node and what a kubelet would say of it.
func report(t *testing.T, node, label string, ready bool) {
	t.Helper()
	c := shared.For(t)
	status := map[bool]string{true: "True", false: "False"}[ready]
	for path, body := range map[string]string{
		"/api/v1/nodes/" + node:             fmt.Sprintf(`{"metadata":{"labels":{%q:""}}}`, label),
		"/api/v1/nodes/" + node + "/status": fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status),
	} {
		if err := c.Do(t.Context(), http.MethodPatch, path, []byte(body), nil, cluster.StrategicPatch); err != nil {
			t.Fatal(err)
		}
	}
}

// budgeted is the client of a node, under the agent's own rights, that keeps a budget.
func budgeted(t *testing.T, node, selector string, most *int) *slot.Client {
	t.Helper()
	k, _ := agent(t, node)
	return slot.New(k.Core(), k.Coordination(),
		slot.Options{Namespace: namespace, Node: node, Nodes: selector, MaxNotReady: most})
}

func TestNoSlotIsTakenWhileTooManyNodesOfThePoolAreNotReady(t *testing.T) {
	p, one := pool(t, "1"), 1
	label := "example.com/" + p
	uid := bareNode(t, p+"-0")
	for i := range 3 {
		if i > 0 {
			bareNode(t, fmt.Sprintf("%s-%d", p, i))
		}
		report(t, fmt.Sprintf("%s-%d", p, i), label, false)
	}
	a := budgeted(t, p+"-0", label, &one)
	r := slot.Request{Pool: p, NodeUID: uid, Boot: "b"}
	for range 3 {
		got, err := a.Acquire(t.Context(), r)
		if err != nil || got.Taken || !strings.Contains(got.Why, fmt.Sprintf("2 other nodes of pool %q are not Ready (%s-1, %s-2)", p, p, p)) {
			t.Fatalf("with two nodes down: %+v, %v", got, err)
		}
	}
	report(t, p+"-1", label, true)
	take(t, a, r) // one of the others is down, and so are we: that is no reason
	if n, err := a.Nodes(t.Context(), p); err != nil || n != 3 {
		t.Errorf("the pool has %d nodes, %v", n, err)
	}
}

func TestTheLastReadyControlPlaneNodeTakesNoSlot(t *testing.T) {
	const label = "node-role.kubernetes.io/control-plane"
	config(t, `{"data":{"control-plane":"1"}}`)
	uid := bareNode(t, "cp-1")
	report(t, "cp-1", label, true)
	a := budgeted(t, "cp-1", "", nil)
	r := slot.Request{Pool: "control-plane", NodeUID: uid, Boot: "b", ControlPlane: true}

	alone := take(t, a, r) // a cluster with one control-plane node must be able to reboot it
	if err := a.Release(t.Context(), alone.Name, alone.UID); err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{"cp-2", "cp-3"} {
		bareNode(t, other)
		report(t, other, label, false)
	}
	shared.For(t).Eventually("the others are seen", 10*time.Second, func() bool {
		got, err := a.Acquire(t.Context(), r)
		if got.Taken {
			if err := a.Release(t.Context(), got.Name, got.UID); err != nil {
				t.Fatal(err)
			}
		}
		return err == nil && !got.Taken && strings.Contains(got.Why, "no other control-plane node is Ready (cp-2, cp-3)")
	})
	report(t, "cp-3", label, true)
	take(t, a, r)
}
