// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func parseNode(t *testing.T, text string) *node {
	t.Helper()
	var n node
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	return &n
}

// nodeText is a Node of boot b1 with these parts of its metadata and spec.
func nodeText(metadata, spec, ready string) string {
	return `{"metadata":{"name":"n1","uid":"u1"` + metadata + `},"spec":{` + spec + `},"status":{` +
		`"conditions":[{"type":"DiskPressure","status":"False"},{"type":"Ready","status":"` + ready + `"}],` +
		`"nodeInfo":{"bootID":"b1"}}}`
}

func TestThePhaseIsWhatTheClusterShows(t *testing.T) {
	t.Parallel()
	const (
		reasons  = `,"annotations":{"kured-agent/reasons":"linux-image"}`
		marked   = `,"annotations":{"kured-agent/cordoned":"b1"}`
		cordoned = `"unschedulable":true`
		taint    = `"taints":[{"key":"kured-agent/reboot-required","effect":"PreferNoSchedule"}]`
	)
	slotOf := func(boot string) []Slot { return []Slot{{Name: "slot-default-0", Boot: boot, Since: noon}} }
	for _, c := range []struct {
		name, metadata, spec, ready string
		slots                       []Slot
		phase                       Phase
		cordon                      Cordon
	}{
		{"nothing of ours", "", "", "True", nil, "", NotCordoned},
		{"a human's cordon alone", "", cordoned, "True", nil, "", NotCordoned},
		{"a foreign taint", "", `"taints":[{"key":"gpu"}]`, "True", nil, "", NotCordoned},
		{"taint", "", taint, "True", nil, Waiting, NotCordoned},
		{"reasons only", reasons, "", "True", nil, Waiting, NotCordoned},
		{"taint under a human's cordon", reasons, taint + "," + cordoned, "True", nil, Waiting, ByOther},
		{"hold only", `,"annotations":{"kured-agent/hold":""}`, "", "True", nil, Idle, NotCordoned},
		{"slot", reasons, taint, "True", slotOf("b1"), HasTurn, NotCordoned},
		{"slot and cordon", marked, taint + "," + cordoned, "True", slotOf("b1"), Cordoned, ByAgent},
		{"slot under a human's cordon", "", taint + "," + cordoned, "True", slotOf("b1"), Cordoned, ByOther},
		{"slot, not Ready", marked, cordoned, "False", slotOf("b1"), Down, ByAgent},
		{"slot, nobody knows", marked, cordoned, "Unknown", slotOf("b1"), Down, ByAgent},
		{"slot of the boot before", marked, cordoned, "True", slotOf("b0"), Returning, ByAgent},
		{"slot of the boot before, not Ready", marked, cordoned, "False", slotOf("b0"), Returning, ByAgent},
		{"slot, after soft reboots", marked, cordoned, "True", slotOf("b1.2"), Cordoned, ByAgent},
		{"cordon without slot", marked, cordoned, "True", nil, LostSlot, ByAgent},
		{"cordon of the boot before without slot", `,"annotations":{"kured-agent/cordoned":"b0"}`, cordoned, "True", nil,
			Returning, ByAgent},
		{"no kubelet has ever reported", "", "", "", slotOf("b1"), Down, NotCordoned},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v, ok := view(parseNode(t, nodeText(c.metadata, c.spec, c.ready)), c.slots)
			if ok != (c.phase != "") || v.Phase != c.phase || v.Cordon != c.cordon {
				t.Errorf("%v %+v", ok, v)
			}
		})
	}
}

func TestSinceIsWhenOurAnnotationWasWritten(t *testing.T) {
	t.Parallel()
	n := parseNode(t, nodeText(`,"annotations":{"kured-agent/reasons":"linux\u001b[2Jimage","kured-agent/hold":""},
		"managedFields":[
		{"manager":"kubelet","time":"2026-11-30T13:00:00Z","fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:other":{}}}}},
		{"manager":"kured-agent","time":"2026-11-30T12:00:00Z","fieldsV1":{"f:metadata":{"f:annotations":{"f:kured-agent/reasons":{}}},"f:spec":{}}},
		{"manager":"kubectl","time":null,"fieldsV1":null}]`, "", "True"))
	v, ok := view(n, nil)
	if !ok || !v.Since.Equal(noon) || v.Reasons != "linux [2Jimage" || v.Hold != "held" {
		t.Errorf("%v %+v", ok, v)
	}
}

func TestLeasesOfOthersAreNoSlots(t *testing.T) {
	t.Parallel()
	who, since := "n1", metav1.NewMicroTime(noon)
	lease := coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "slot-default-0", UID: "u", Labels: map[string]string{poolLabel: "default"},
			Annotations:     map[string]string{bootAnnotation: "b1"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Node", UID: "nu"}}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &who, AcquireTime: &since},
	}
	want := Slot{Name: "slot-default-0", UID: "u", Pool: "default", Holder: "n1", HolderUID: "nu", Boot: "b1", Since: noon}
	if got, ok := slotOf(&lease); !ok || got != want {
		t.Errorf("%v %+v", ok, got)
	}
	if _, ok := slotOf(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "leader"}}); ok {
		t.Error("a lease of somebody else counts")
	}
	bare := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "slot-by-hand"}}
	if got, ok := slotOf(&bare); !ok || got.Holder != "" {
		t.Errorf("%v %+v", ok, got)
	}
}

func TestWhoIsAwayComesFirstAndLongest(t *testing.T) {
	t.Parallel()
	nodes := []Node{
		{Name: "idle", Phase: Idle}, {Name: "w2", Phase: Waiting, Since: noon.Add(time.Hour)},
		{Name: "w1", Phase: Waiting, Since: noon}, {Name: "b", Phase: Down, Since: noon.Add(time.Minute)},
		{Name: "c", Phase: Cordoned, Since: noon.Add(time.Minute)}, {Name: "a", Phase: Returning, Since: noon},
	}
	slices.SortFunc(nodes, inOrder)
	var got []string
	for _, n := range nodes {
		got = append(got, n.Name)
	}
	if strings.Join(got, " ") != "a b c w1 w2 idle" {
		t.Error(got)
	}
}

func TestFreeingASlotSaysWhatItMeans(t *testing.T) {
	t.Parallel()
	slot := Slot{Name: "slot-default-0", Holder: "n1", HolderUID: "u1", Boot: "b1"}
	for _, c := range []struct {
		name   string
		slot   Slot
		node   *Node
		refuse bool
		means  string
	}{
		{"no Node", slot, nil, false, "garbage collector"},
		{"another Node object", slot, &Node{uid: "u2", Ready: true, boot: "b1"}, false, "earlier Node object"},
		{"up, not rebooted", slot, &Node{uid: "u1", Ready: true, boot: "b1"}, true, "may be draining"},
		{"up, and the slot does not say", Slot{HolderUID: "u1"}, &Node{uid: "u1", Ready: true, boot: "b1"}, true, "may be draining"},
		{"up, without owner", Slot{Boot: "b1"}, &Node{uid: "u1", Ready: true, boot: "b1"}, true, "may be draining"},
		{"up, after soft reboots", Slot{HolderUID: "u1", Boot: "b1.2"}, &Node{uid: "u1", Ready: true, boot: "b1"}, true,
			"may be draining"},
		{"up, rebooted", slot, &Node{uid: "u1", Ready: true, boot: "b2"}, false, "has rebooted"},
		{"not Ready", slot, &Node{uid: "u1", boot: "b1"}, false, "not Ready"},
		{"not Ready, rebooted", slot, &Node{uid: "u1", boot: "b2"}, false, "not Ready"},
	} {
		if risk := Weigh(c.slot, c.node); risk.Refuse != c.refuse || !strings.Contains(risk.Means, c.means) {
			t.Errorf("%s: %+v", c.name, risk)
		}
	}
}
