// SPDX-License-Identifier: Apache-2.0

package slot

import (
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

func TestTheLastReadyControlPlaneNodeIsKept(t *testing.T) {
	type situation struct {
		others []health
		want   string
	}
	leases := []coordinationv1.Lease{*testLease("slot-control-plane-0", "cp4", "b4")}
	for name, c := range map[string]situation{
		"alone":                {},
		"another one is Ready": {[]health{{"cp2", false}, {"cp3", true}}, ""},
		"two of three are not": {[]health{{"cp2", false}, {"cp3", false}},
			"no other control-plane node is Ready (cp2, cp3): a reboot would leave 0"},
		"the Ready one is about to reboot": {[]health{{"cp2", false}, {"cp4", true}},
			"no other control-plane node is Ready (cp2, cp4 with a slot): a reboot would leave 0"},
	} {
		if got := lastOfControlPlane(c.others, leases); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestTheBudgetCountsTheOtherNodesThatAreNotReady(t *testing.T) {
	others := []health{{"a", false}, {"b", true}, {"c", false}, {"d", false}, {"e", false}}
	for _, c := range []struct {
		most *int
		want string
	}{
		{nil, ""}, {new(4), ""}, {new(5), ""},
		{new(3), `4 other nodes of pool "gpu" are not Ready (a, c, d, and 1 more), and slot.max_not_ready is 3`},
		{new(0), "slot.max_not_ready is 0"},
	} {
		got := overBudget(others, "gpu", c.most)
		if !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

const nodeTable = `{"kind":"Table","columnDefinitions":[{"name":"Name"},{"name":"Status"},{"name":"Roles"}],"rows":[
	{"cells":["n1","Ready","<none>"]},{"cells":["n2","NotReady,SchedulingDisabled","<none>"]},
	{"cells":["n3","Ready,SchedulingDisabled","<none>"]},{"cells":["n4","Unknown","<none>"]}]}`

func TestTheTableOfNodesIsRead(t *testing.T) {
	got, err := parseTable([]byte(nodeTable))
	want := []health{{"n1", true}, {"n2", false}, {"n3", true}, {"n4", false}}
	if err != nil || len(got) != len(want) {
		t.Fatalf("got %v, %v", got, err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("row %d: got %v, want %v", i, got[i], want[i])
		}
	}
	for _, broken := range []string{``, `{}`, `{"columnDefinitions":[{"name":"Name"},{"name":"Status"}],"rows":[{"cells":["n1"]}]}`,
		`{"columnDefinitions":[{"name":"Name"},{"name":"Status"}],"rows":[{"cells":["n1",7]}]}`} {
		if got, err := parseTable([]byte(broken)); err == nil {
			t.Errorf("%s gave %v", broken, got)
		}
	}
}

func FuzzParseTable(f *testing.F) {
	f.Add([]byte(nodeTable))
	f.Add([]byte(`{"rows":[{"cells":null}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if nodes, err := parseTable(raw); err != nil && nodes != nil {
			t.Errorf("both %v and %v", nodes, err)
		}
	})
}

// A look that finds no free slot reads no nodes: thousands may look.
func TestTheOtherNodesAreReadOnlyWhenASlotIsFree(t *testing.T) {
	s := newLeaseServer(map[string]string{"default": "1"}, testLease("slot-default-0", "n2", "b2"))
	s.nodes = nodeTable
	c := client(t, s)
	c.maxNotReady = new(1)
	request := Request{Pool: "default", NodeUID: "u1", Boot: "b1"}
	if got, err := c.Acquire(t.Context(), request); err != nil || got.Taken || len(s.asked) > 0 {
		t.Fatalf("got %+v, %v, asked %q", got, err, s.asked)
	}
	delete(s.leases, "slot-default-0")
	got, err := c.Acquire(t.Context(), request)
	if err != nil || got.Taken || !strings.Contains(got.Why, `2 other nodes of pool "default" are not Ready (n2, n4)`) ||
		len(s.asked) != 1 || !strings.Contains(s.asked[0], "as=Table") || s.created != 0 {
		t.Fatalf("got %+v, %v, asked %q", got, err, s.asked)
	}
	c.maxNotReady = new(2)
	if got, err = c.Acquire(t.Context(), request); err != nil || !got.Taken {
		t.Errorf("within the budget: %+v, %v", got, err)
	}
}

func TestAnAnswerAboutTheOtherNodesThatCannotBeReadTakesNoSlot(t *testing.T) {
	s := newLeaseServer(map[string]string{"control-plane": "1"})
	s.nodes = `{"kind":"NodeList","items":[]}`
	c := client(t, s)
	got, err := c.Acquire(t.Context(), Request{Pool: "control-plane", NodeUID: "u1", Boot: "b1", ControlPlane: true})
	if err == nil || got.Taken || s.created != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestTwoSlotsNeverTakeTheWholeControlPlane(t *testing.T) {
	for range 20 {
		s := newLeaseServer(map[string]string{"control-plane": "2"})
		s.nodes = `{"columnDefinitions":[{"name":"Name"},{"name":"Status"}],
			"rows":[{"cells":["n0","Ready"]},{"cells":["n1","Ready"]}]}`
		k, _ := kubetest.Server(t, s)
		var all sync.WaitGroup
		begin := make(chan struct{})
		for _, name := range []string{"n0", "n1"} {
			c := New(k.Core(), k.Coordination(), Options{Namespace: "kured-agent", Node: name})
			all.Go(func() {
				<-begin
				got, err := c.Acquire(t.Context(),
					Request{Pool: "control-plane", NodeUID: "u-" + name, Boot: "b", ControlPlane: true})
				if err != nil || !got.Taken && got.Why == "" {
					t.Errorf("%s: %+v, %v", name, got, err)
				}
			})
		}
		close(begin)
		all.Wait()
		if len(s.leases) > 1 {
			t.Fatalf("both nodes hold a slot, and none is left")
		}
	}
}
