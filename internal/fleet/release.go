// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const wayNodes = "kubectl get nodes lists them"

// Hold writes or removes (nil) the annotation that holds one node back.
func (c *Client) Hold(ctx context.Context, name string, why *string) (Change, error) {
	n, err := c.readNode(ctx, name)
	if err != nil {
		return Change{}, fail(fmt.Sprintf("reading node %q", name), err, wayNodes)
	}
	change := Change{After: why}
	if before, there := n.Metadata.Annotations[holdAnnotation]; there {
		change.Before = &before
	}
	if !change.Changed() {
		return change, nil
	}
	err = c.patch(ctx, c.nodes(c.rest.Patch(types.MergePatchType)).Name(name), map[string]any{
		"metadata": map[string]any{
			"uid":         n.Metadata.UID,
			"annotations": map[string]*string{holdAnnotation: why},
		},
	})
	if err != nil {
		return Change{}, fail(fmt.Sprintf("annotating node %q", name), err, wayNodes)
	}
	return change, nil
}

// Held returns the slots of a node, and the node; nil when there is no such Node object.
func (c *Client) Held(ctx context.Context, name string) ([]Slot, *Node, error) {
	all, err := c.slots(ctx)
	if err != nil {
		return nil, nil, err
	}
	var slots []Slot
	for _, slot := range all {
		if slot.Holder == name {
			slots = append(slots, slot)
		}
	}
	n, err := c.readNode(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return slots, nil, nil
	case err != nil:
		return nil, nil, fail(fmt.Sprintf("reading node %q", name), err, wayNodes)
	}
	v, _ := view(n, slots)
	return slots, &v, nil
}

// Risk is what freeing a slot by hand means.
type Risk struct {
	Refuse bool // its agent may be at work: only by force
	Means  string
}

// Weigh says what freeing the slot means, as far as the cluster shows it. node is nil when it does not exist.
func Weigh(slot Slot, node *Node) Risk {
	switch {
	case node == nil:
		return Risk{Means: "The Node object is gone. The garbage collector frees the slot by itself, mostly within seconds."}
	case slot.HolderUID != "" && slot.HolderUID != node.uid:
		return Risk{Means: "The slot belongs to an earlier Node object of this name. " +
			"The garbage collector frees it by itself, mostly within seconds."}
	case node.Ready && (slot.Boot == "" || kernel(slot.Boot) == node.boot):
		return Risk{Refuse: true, Means: "The node is up and has not rebooted since it took the slot: its agent may be " +
			"draining it, or about to reboot it.\nAn agent that loses its slot stops before its next step, uncordons and " +
			"backs off. A reboot that logind has accepted\ngoes on, and then one node more than the pool allows is away."}
	case node.Ready:
		return Risk{Means: "The node has rebooted and its kubelet is Ready, but its agent does not find it healthy yet, or " +
			"does not run:\nsee \"kured-agent status\" there. The next node may go down at once, and meet the same trouble. " +
			"This one stays\ncordoned until it is healthy, or until you uncordon it."}
	default:
		return Risk{Means: "The node is not Ready: it is rebooting just now, or it does not come back. The next node may go " +
			"down at once, and\nmeet the same trouble. This one stays cordoned until its agent is back and finds it healthy, " +
			"or until you uncordon it."}
	}
}

// Free deletes exactly this slot. freed is false when it was given back, or taken by another, in the meantime.
func (c *Client) Free(ctx context.Context, slot Slot) (freed bool, err error) {
	if slot.UID == "" {
		return false, errors.New("freeing a slot: its UID is unknown")
	}
	uid := types.UID(slot.UID)
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if err != nil {
		return false, fmt.Errorf("freeing slot %q: %w", slot.Name, err)
	}
	err = c.leases(c.rest.Delete()).Name(slot.Name).Body(body).Do(ctx).Error()
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return false, nil
	case err != nil:
		return false, fail(fmt.Sprintf("freeing slot %q of node %q", slot.Name, slot.Holder), err, "")
	}
	return true, nil
}
