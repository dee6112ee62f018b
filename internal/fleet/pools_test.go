// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAPercentageIsRoundedDownAndLetsOneGo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ percent, nodes, want int }{
		{10, 25, 2}, {10, 3, 1}, {33, 3, 1}, {34, 3, 1}, {50, 3, 1}, {67, 3, 2}, {100, 3, 3}, {1, 1, 1}, {1, 5000, 50},
		{99, 10, 9}, {100, 20_000, maxSlots},
	} {
		if got := Resolve(c.percent, c.nodes); got != c.want {
			t.Errorf("%d%% of %d: %d, want %d", c.percent, c.nodes, got, c.want)
		}
	}
}

func TestWhatIsNoPercentageSaysSo(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "%", "10", "0%", "101%", "-1%", "1.5%", "10 %", "ten%", "10%%"} {
		if n, err := ParsePercent(s); err == nil || !strings.Contains(err.Error(), "pools set") {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	}
	if n, err := ParsePercent("10%"); n != 10 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestWhatIsNoNumberOfSlotsSaysSo(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "-1", "10000", "two", "1.5", " 1", "99999999999999999999"} {
		if n, err := ParseSlots(s); err == nil {
			t.Errorf("%q: %d", s, n)
		}
	}
	if _, err := ParseSlots("10%"); err == nil || !strings.Contains(err.Error(), "--max-unavailable 10%") {
		t.Errorf("%v", err)
	}
	for s, want := range map[string]int{"0": 0, "9999": 9999} {
		if n, err := ParseSlots(s); n != want || err != nil {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	}
}

func TestPoolsAreNamedAsTheAdmissionPolicyHasIt(t *testing.T) {
	t.Parallel()
	for name, fine := range map[string]bool{
		"default": true, "gpu-2": true, "a": true, "paused": false, "": false, "-a": false, "A": false, "a_b": false, "a/b": false,
		strings.Repeat("a", 50): true, strings.Repeat("a", 51): false,
	} {
		if err := CheckPool(name); (err == nil) != fine {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestPoolsShowWhatIsTakenAndWhatIsWrong(t *testing.T) {
	t.Parallel()
	got := summarize(map[string]string{"default": " 2\n", "gpu": "10%", "Bad": "1", "none": "0", "paused": "change\nfreeze"},
		[]Slot{{Pool: "default", Holder: "n2"}, {Pool: "default", Holder: "n1"}, {Pool: "left", Holder: "n3"}, {}})
	want := Pools{Paused: true, PausedWhy: "change freeze", Pools: []Pool{
		{Name: "?", Problem: "not in the ConfigMap", Holders: []string{"?"}},
		{Name: "Bad", Problem: CheckPool("Bad").Error(), Holders: []string{}},
		{Name: "default", N: 2, Holders: []string{"n1", "n2"}},
		{Name: "gpu", Problem: `"10%" is not a number from 0 to 9999`, Holders: []string{}},
		{Name: "left", Problem: "not in the ConfigMap", Holders: []string{"n3"}},
		{Name: "none", Holders: []string{}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if empty := summarize(nil, nil); empty.Paused || len(empty.Pools) != 0 {
		t.Errorf("%+v", empty)
	}
}

func TestMembersAreThoseTheAgentWouldPutThere(t *testing.T) {
	t.Parallel()
	worker := map[string]string{"kubernetes.io/os": "linux"}
	for _, c := range []struct {
		pool   string
		labels map[string]string
		want   bool
	}{
		{"default", worker, true},
		{"default", nil, true},
		{"default", map[string]string{"node-role.kubernetes.io/control-plane": ""}, false},
		{"default", map[string]string{"node-role.kubernetes.io/master": ""}, false},
		{"control-plane", worker, false},
		{"control-plane", map[string]string{"node-role.kubernetes.io/control-plane": ""}, true},
		{"control-plane", map[string]string{"node-role.kubernetes.io/master": "true"}, true},
	} {
		members, err := MembersOf(c.pool, "")
		if err != nil || members.has(c.labels) != c.want {
			t.Errorf("pool %s has %v: not %v, %v", c.pool, c.labels, c.want, err)
		}
	}
	if _, err := MembersOf("workers", ""); err == nil || !strings.Contains(err.Error(), "--selector") {
		t.Errorf("%v", err)
	}
	if _, err := MembersOf("workers", "a in"); err == nil {
		t.Error("a broken selector was taken")
	}
	if members, err := MembersOf("control-plane", "a=b"); err != nil || members.selector != "a=b" || !members.has(worker) {
		t.Errorf("%+v, %v", members, err)
	}
}

func TestTheQuorumOfTheControlPlaneIsMinded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pool         string
		slots, nodes int
		want         bool
	}{
		{"control-plane", 1, 1, false}, {"control-plane", 1, 3, false}, {"control-plane", 2, 3, true},
		{"control-plane", 2, 5, false}, {"control-plane", 3, 5, true}, {"default", 3, 3, false},
	} {
		if got := LosesQuorum(c.pool, c.slots, c.nodes); got != c.want {
			t.Errorf("%d of %d in %s: %v", c.slots, c.nodes, c.pool, got)
		}
	}
}

func TestAReasonIsOnePrintableLine(t *testing.T) {
	t.Parallel()
	for why, want := range map[string]string{"incident 4711": "incident 4711", " two\nlines ": "two lines", "\x1b[2J": "[2J"} {
		if got, err := CheckWhy(why); got != want || err != nil {
			t.Errorf("%q: %q, %v", why, got, err)
		}
	}
	for _, why := range []string{"", "  ", "\n", strings.Repeat("x", 201)} {
		if got, err := CheckWhy(why); err == nil {
			t.Errorf("%q: %q", why, got)
		}
	}
}
