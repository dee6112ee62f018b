// SPDX-License-Identifier: Apache-2.0
//go:build integration

package slot_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/slot"
)

// kubereboot/kured#137, #173, #847: an autoscaler deleted the node that held the lock, and nobody rebooted for months.
func TestTheSlotOfADeletedNodeGoesToWhoWaitsAlsoWhenTheNameIsRegisteredAgain(t *testing.T) {
	for _, c := range []struct{ what, name string }{{"deleted", "scaled"}, {"deleted and registered again", "reborn"}} {
		t.Run(c.what, func(t *testing.T) {
			p, uid := pool(t, "1"), bareNode(t, c.name)
			_, a := agent(t, c.name)
			held := take(t, a, slot.Request{Pool: p, NodeUID: uid, Boot: "b1"})
			other := slot.Request{Pool: p, NodeUID: bareNode(t, c.name+"-waits"), Boot: "b1"}
			_, b := agent(t, c.name+"-waits")
			if got, err := b.Acquire(t.Context(), other); err != nil || got.Taken || !strings.Contains(got.Why, held.Name+" by "+c.name) {
				t.Fatalf("while the node is there: %+v, %v", got, err)
			}
			cluster := shared.For(t)
			cluster.MustKubectl("delete", "node", c.name)
			if c.name == "reborn" {
				body := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": c.name}}
				if err := cluster.Do(t.Context(), http.MethodPost, "/api/v1/nodes", body, nil); err != nil {
					t.Fatal(err)
				}
			}
			var got slot.Result
			cluster.Eventually("the node that waits has the slot", 60*time.Second, func() bool {
				var err error
				got, err = b.Acquire(t.Context(), other)
				return err == nil && got.Taken
			})
			if got.Name != held.Name || got.UID == held.UID || got.NodeUID != other.NodeUID {
				t.Errorf("got %+v, before it was %+v", got, held)
			}
		})
	}
}
