// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kured-agent/kured-agent/internal/text"
)

// pod is what a drain needs of a Pod. The whole object of a few hundred pods would double the agent's memory.
type pod struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		Labels            map[string]string `json:"labels"`
		DeletionTimestamp *string           `json:"deletionTimestamp"`
		DeletionGrace     *int64            `json:"deletionGracePeriodSeconds"`
		Annotations       struct {
			Mirror *string `json:"kubernetes.io/config.mirror"`
		} `json:"annotations"`
		OwnerReferences []owner `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		NodeName   string `json:"nodeName"`
		Priority   int32  `json:"priority"`
		Grace      *int64 `json:"terminationGracePeriodSeconds"`
		Containers []struct {
			Image string `json:"image"`
		} `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

type owner struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

type podList struct {
	Metadata struct {
		Continue string `json:"continue"`
	} `json:"metadata"`
	Items []pod `json:"items"`
}

func (p *pod) name() string { return text.Line(p.Metadata.Namespace+"/"+p.Metadata.Name, maxText) }

// controller is the owner that would start the pod again, or nil.
func (p *pod) controller() *owner {
	for i := range p.Metadata.OwnerReferences {
		if p.Metadata.OwnerReferences[i].Controller {
			return &p.Metadata.OwnerReferences[i]
		}
	}
	return nil
}

// neighbours are the pods of DaemonSets.
func neighbours(pods []pod) []Neighbour {
	var all []Neighbour
	for i := range pods {
		p := &pods[i]
		owner := p.controller()
		if owner == nil || owner.Kind != "DaemonSet" {
			continue
		}
		n := Neighbour{Namespace: p.Metadata.Namespace, DaemonSet: owner.Name, Labels: p.Metadata.Labels}
		for _, c := range p.Spec.Containers {
			n.Images = append(n.Images, c.Image)
		}
		all = append(all, n)
	}
	return all
}

// grace is how many seconds the pod may take to end.
func (p *pod) grace() int64 {
	switch {
	case p.Metadata.DeletionGrace != nil:
		return *p.Metadata.DeletionGrace
	case p.Spec.Grace != nil:
		return *p.Spec.Grace
	}
	return 30 // the API's default
}

// class is what a drain does with a pod.
type class int

const (
	stays       class = iota // through the reboot
	evicted                  // has to go
	terminating              // is going
	blocks                   // has to go, and nothing would bring it back
)

func (c class) String() string {
	switch c {
	case stays:
		return "stays"
	case evicted:
		return "evicted"
	case terminating:
		return "terminating"
	case blocks:
		return "blocks"
	}
	return fmt.Sprintf("class(%d)", int(c))
}

// classify says what a drain of the node does with the pod. emptyDir volumes do not count: a reboot ends the pod, and
// what is in them, anyway.
func classify(p *pod, node string, skip labels.Selector, evictUnmanaged bool) class {
	switch {
	case p.Spec.NodeName != node:
		return stays // never trust a list with an eviction on another node
	case p.Metadata.Annotations.Mirror != nil:
		return stays // a static pod: the kubelet would start it again
	case p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed":
		return stays // nothing runs any more
	case skip != nil && skip.Matches(labels.Set(p.Metadata.Labels)):
		return stays
	}
	controller := p.controller()
	switch {
	case controller != nil && controller.Kind == "DaemonSet":
		return stays // comes back on this node at once, cordoned or not
	case p.Metadata.DeletionTimestamp != nil:
		return terminating
	case controller == nil && !evictUnmanaged:
		return blocks
	}
	return evicted
}
