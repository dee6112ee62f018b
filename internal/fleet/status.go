// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/text"
)

// Slot is a slot that somebody holds.
type Slot struct {
	Name      string
	UID       string // of the Lease
	Pool      string // empty: unknown
	Holder    string // node; empty: unknown
	HolderUID string // of the Node object it goes away with; empty: none
	Boot      string // in which it was taken
	Since     time.Time
}

func slotOf(lease *coordinationv1.Lease) (Slot, bool) {
	pool, labelled := lease.Labels[poolLabel]
	if !labelled && !strings.HasPrefix(lease.Name, "slot-") {
		return Slot{}, false
	}
	s := Slot{Name: lease.Name, UID: string(lease.UID), Pool: text.Line(pool, maxText),
		Boot: text.Line(lease.Annotations[bootAnnotation], maxText)}
	if lease.Spec.HolderIdentity != nil {
		s.Holder = text.Line(*lease.Spec.HolderIdentity, maxName)
	}
	if lease.Spec.AcquireTime != nil {
		s.Since = lease.Spec.AcquireTime.Time
	}
	for _, owner := range lease.OwnerReferences {
		if owner.Kind == "Node" {
			s.HolderUID = string(owner.UID)
		}
	}
	return s, true
}

// node is the part of a Node that matters here.
type node struct {
	Metadata struct {
		Name          string            `json:"name"`
		UID           string            `json:"uid"`
		Annotations   map[string]string `json:"annotations"`
		ManagedFields []managedFields   `json:"managedFields"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable bool `json:"unschedulable"`
		Taints        []struct {
			Key string `json:"key"`
		} `json:"taints"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
		NodeInfo struct {
			BootID string `json:"bootID"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

type managedFields struct {
	Time     time.Time `json:"time"`
	FieldsV1 struct {
		Metadata struct {
			Annotations map[string]json.RawMessage `json:"f:annotations"`
		} `json:"f:metadata"`
	} `json:"fieldsV1"`
}

func (n *node) annotation(key string) (string, bool) {
	value, ok := n.Metadata.Annotations[key]
	return text.Line(value, maxText), ok
}

func (n *node) ready() bool {
	for _, condition := range n.Status.Conditions {
		if condition.Type == "Ready" {
			return condition.Status == "True"
		}
	}
	return false
}

func (n *node) tainted() bool {
	for _, taint := range n.Spec.Taints {
		if taint.Key == taintKey {
			return true
		}
	}
	return false
}

// written is when the annotation, and what came with it in the same write, was put there. A taint that is not NoExecute
// has no time of its own.
func (n *node) written(annotation string) time.Time {
	var at time.Time
	for _, fields := range n.Metadata.ManagedFields {
		if _, owns := fields.FieldsV1.Metadata.Annotations["f:"+annotation]; owns && fields.Time.After(at) {
			at = fields.Time
		}
	}
	return at
}

// Phase of a node, as far as the cluster shows it; the agent itself knows more.
type Phase string

// Phases of nodes.
const (
	Idle      Phase = "idle"      // no reboot is required; it is shown because it is held
	Waiting   Phase = "waiting"   // a reboot is required, no slot yet
	HasTurn   Phase = "has turn"  // holds a slot, not cordoned yet, or not any more
	Cordoned  Phase = "cordoned"  // holds a slot, drains or is about to reboot
	Down      Phase = "down"      // holds a slot, not Ready since: it reboots, or does not come back
	Returning Phase = "returning" // has rebooted, and is not given back yet
	LostSlot  Phase = "lost slot" // cordoned by its agent, and the slot was taken away
	Gone      Phase = "gone"      // holds a slot, and there is no such Node
)

// Cordon says who cordoned a node.
type Cordon string

// Cordons.
const (
	NotCordoned Cordon = ""
	ByAgent     Cordon = "agent"
	ByOther     Cordon = "other"
)

// Node is a node that waits, holds a slot, or is held.
type Node struct {
	Name    string    `json:"name"`
	Phase   Phase     `json:"phase"`
	Ready   bool      `json:"ready"`
	Cordon  Cordon    `json:"cordon,omitempty"`
	Slots   []string  `json:"slots,omitempty"`   // one, unless somebody made another by hand
	Since   time.Time `json:"since,omitzero"`    // slot, else cordon, else taint, else hold; zero: unknown
	Hold    string    `json:"hold,omitempty"`    // why it is held
	Reasons string    `json:"reasons,omitempty"` // why it has to reboot

	uid, boot string
}

// Status is the whole fleet.
type Status struct {
	Problem string `json:"problem,omitempty"` // the ConfigMap is missing: what to do
	Pools
	Nodes []Node `json:"nodes"` // those that concern us, slot holders first
}

// view says how a node stands; ok is false when it does not concern us.
func view(n *node, slots []Slot) (v Node, ok bool) {
	v = Node{Name: text.Line(n.Metadata.Name, maxName), Ready: n.ready(), uid: n.Metadata.UID,
		boot: text.Line(n.Status.NodeInfo.BootID, maxText)}
	marker, marked := n.annotation(markerAnnotation)
	reasons, reasoned := n.annotation(reasonsKey)
	hold, held := n.annotation(holdAnnotation)
	v.Reasons = reasons
	if v.Hold = hold; held && hold == "" {
		v.Hold = "held"
	}
	switch {
	case n.Spec.Unschedulable && marked:
		v.Cordon = ByAgent
	case n.Spec.Unschedulable:
		v.Cordon = ByOther
	}
	for _, slot := range slots {
		v.Slots = append(v.Slots, slot.Name)
	}
	rebooted := func(boot string) bool { return boot != "" && v.boot != "" && kernel(boot) != v.boot }
	switch {
	case len(slots) > 0:
		v.Since = slots[0].Since
		v.Phase = HasTurn
		switch {
		case rebooted(slots[0].Boot):
			v.Phase = Returning
		case !v.Ready:
			v.Phase = Down
		case n.Spec.Unschedulable:
			v.Phase = Cordoned
		}
	case marked:
		v.Since = n.written(markerAnnotation)
		if v.Phase = LostSlot; rebooted(marker) {
			v.Phase = Returning
		}
	case n.tainted() || reasoned:
		v.Phase, v.Since = Waiting, n.written(reasonsKey)
	case held:
		v.Phase, v.Since = Idle, n.written(holdAnnotation)
	default:
		return Node{}, false
	}
	return v, true
}

// kernel is the kernel's part of a boot, and all of it that a kubelet tells: agents add the number of soft reboots to it,
// "id.2". So nothing in the cluster shows that a soft reboot has been.
func kernel(boot string) string {
	id, _, _ := strings.Cut(boot, ".")
	return id
}

// Status reads the pools, the slots and every Node, page by page.
func (c *Client) Status(ctx context.Context) (Status, error) {
	s := Status{Nodes: []Node{}} // an empty list is one in JSON too
	config, err := c.readConfig(ctx)
	switch {
	case apierrors.IsNotFound(err):
		s.Problem = c.configName() + " does not exist, so no agent gets a slot: " + wayInstall
	case err != nil:
		return Status{}, fail("reading "+c.configName(), err, "")
	}
	slots, err := c.slots(ctx)
	if err != nil {
		return Status{}, err
	}
	s.Pools = summarize(config.Data, slots)
	held := map[string][]Slot{}
	for _, slot := range slots {
		held[slot.Holder] = append(held[slot.Holder], slot)
	}
	err = each(ctx, func() *rest.Request { return c.nodes(c.rest.Get()) }, func(n *node) {
		if v, ok := view(n, held[n.Metadata.Name]); ok {
			s.Nodes = append(s.Nodes, v)
		}
		delete(held, n.Metadata.Name)
	})
	if err != nil {
		return Status{}, fail("listing the nodes", err, "")
	}
	for name, slots := range held {
		s.Nodes = append(s.Nodes, gone(name, slots))
	}
	slices.SortFunc(s.Nodes, inOrder)
	return s, nil
}

func gone(name string, slots []Slot) Node {
	v := Node{Name: name, Phase: Gone, Since: slots[0].Since}
	if name == "" {
		v.Name = "?"
	}
	for _, slot := range slots {
		v.Slots = append(v.Slots, slot.Name)
	}
	return v
}

// inOrder has first who is away or about to be, longest first; then who waits; then who is only held.
func inOrder(a, b Node) int {
	rank := func(n Node) int {
		switch n.Phase {
		case Waiting:
			return 1
		case Idle:
			return 2
		default:
			return 0
		}
	}
	if d := rank(a) - rank(b); d != 0 {
		return d
	}
	if d := a.Since.Compare(b.Since); d != 0 {
		return d
	}
	return strings.Compare(a.Name, b.Name)
}
