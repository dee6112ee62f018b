// SPDX-License-Identifier: Apache-2.0

package slot

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

func typesUID(n int) types.UID { return types.UID(fmt.Sprintf("uid-%d", n)) }

func testLease(name, node, boot string) *coordinationv1.Lease {
	since := metav1.NewMicroTime(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{poolLabel: "default"}, Annotations: map[string]string{bootAnnotation: boot},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "node-uid"}}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, AcquireTime: &since},
	}
}

func leases(names ...string) []coordinationv1.Lease {
	var out []coordinationv1.Lease
	for i, name := range names {
		out = append(out, *testLease(name, fmt.Sprintf("other-%d", i), "b"))
	}
	return out
}

func TestWhatAPoolOffers(t *testing.T) {
	malformed := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "by hand"}}
	for _, c := range []struct {
		name   string
		pools  map[string]string
		leases []coordinationv1.Lease
		free   []int
		why    string
	}{
		{name: "all free", pools: map[string]string{"default": "3"}, free: []int{0, 1, 2}},
		{name: "the gap is free", pools: map[string]string{"default": " 3\n"}, leases: leases("slot-default-1"),
			free: []int{0, 2}},
		{name: "full names the holder", pools: map[string]string{"default": "1"}, leases: leases("slot-default-0"),
			why: `the slot of pool "default" is taken: slot-default-0 by other-0 since 2026-11-30T12:00:00Z`},
		{name: "full names three", pools: map[string]string{"default": "4"},
			leases: leases("slot-default-3", "slot-default-1", "slot-default-0", "slot-default-2"), why: "and 1 more"},
		{name: "a pool that shrank waits", pools: map[string]string{"default": "1"}, leases: leases("slot-default-4"),
			why: "slot-default-4"},
		{name: "what cannot be read counts", pools: map[string]string{"default": "1"},
			leases: []coordinationv1.Lease{malformed}, why: "by hand by an unknown holder"},
		{name: "what cannot be read counts beside free names", pools: map[string]string{"default": "2"},
			leases: []coordinationv1.Lease{malformed}, free: []int{0, 1}},
		{name: "no such pool", pools: map[string]string{"other": "1"}, why: `-p '{"data":{"default":"1"}}'`},
		{name: "no data at all", why: "the admission policy gives no slot without it"},
		{name: "no number", pools: map[string]string{"default": "10%"}, why: `says "10%" for pool "default"`},
		{name: "negative", pools: map[string]string{"default": "-1"}, why: "not a number of slots"},
		{name: "absurd", pools: map[string]string{"default": "99999999999999999999"}, why: "not a number of slots"},
		{name: "none", pools: map[string]string{"default": "0"}, why: "has 0 slots"},
		{name: "paused", pools: map[string]string{"default": "5", "paused": "change\nfreeze"},
			why: "the fleet is paused: change freeze"},
		{name: "paused without a reason", pools: map[string]string{"default": "5", "paused": ""}, why: "the fleet is paused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := choose(c.pools, "default", c.leases, "n1")
			if !slices.Equal(v.Free, c.free) || !strings.Contains(v.Why, c.why) || (v.Why == "") != (c.why == "") {
				t.Errorf("got %+v", v)
			}
		})
	}
}

func TestWithoutASlotAcquireSaysWhatToDo(t *testing.T) {
	earlier := testLease("slot-default-0", "n1", "b0")
	recreated := testLease("slot-default-0", "n1", "b1")
	recreated.OwnerReferences[0].UID = "another"
	for _, c := range []struct {
		name   string
		server *leaseServer
		pool   string
		want   string
	}{
		{"no ConfigMap", newLeaseServer(nil), "default", "kubectl apply -k packaging/kubernetes"},
		{"impossible name", newLeaseServer(nil), "a/b", "cannot be the name of a pool"},
		{"reserved name", newLeaseServer(nil), "paused", "cannot be the name of a pool"},
		{"held from an earlier boot", newLeaseServer(map[string]string{"default": "2"}, earlier), "default",
			"from an earlier boot"},
		{"held for an earlier Node", newLeaseServer(map[string]string{"default": "2"}, recreated), "default",
			"earlier Node object"},
		{"held while paused", newLeaseServer(map[string]string{"default": "2", "paused": "x"}, earlier), "default",
			"from an earlier boot"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request
			r.Pool = c.pool
			got, err := client(t, c.server).Acquire(t.Context(), r)
			if err != nil || got.Taken || !strings.Contains(got.Why, c.want) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// FuzzPools: whatever the ConfigMap says, a pool has a bounded number of slots or a reason why it has none.
func FuzzPools(f *testing.F) {
	f.Add([]byte(`{"kind":"ConfigMap","apiVersion":"v1","data":{"default":"2","paused":"x"}}`), "default")
	f.Add([]byte(`{"kind":"ConfigMap","apiVersion":"v1","data":{"default":"-1"}}`), "default")
	f.Add([]byte(`{"data":null}`), "")
	f.Add([]byte(`{"kind":"ConfigMap","apiVersion":"v1","data":{"default":2}}`), "default")
	f.Add([]byte(`{"kind":"ConfigMap","apiVersion":"v1","data":[]}`), "default")
	var body atomic.Value
	client, _ := kubetest.Server(f, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		kubetest.JSON(w, http.StatusOK, body.Load())
	}))
	c := New(client.Core(), client.Coordination(), Options{Namespace: "kured-agent", Node: "n1"})
	f.Fuzz(func(t *testing.T, raw []byte, pool string) {
		body.Store(raw)
		pools, _, err := c.pools(t.Context())
		if err != nil {
			return
		}
		if n, why := slots(pools, pool); n < 0 || n > maxSlots || (n == 0) != (why != "") {
			t.Errorf("%d slots, %q", n, why)
		}
	})
}
