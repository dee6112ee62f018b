// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/text"
)

// object is what the agent reads of a Node. Taints stay the bytes that came: a typed round trip would drop what a newer
// server knows and we do not.
type object struct {
	Metadata struct {
		Name              string            `json:"name"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
		DeletionTimestamp *string           `json:"deletionTimestamp"`
		ManagedFields     []managedFields   `json:"managedFields"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable bool              `json:"unschedulable"`
		Taints        []json.RawMessage `json:"taints"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type              string `json:"type"`
			Status            string `json:"status"`
			LastHeartbeatTime string `json:"lastHeartbeatTime"`
		} `json:"conditions"`
		NodeInfo struct {
			BootID string `json:"bootID"`
		} `json:"nodeInfo"`
	} `json:"status"`

	taints []taint // of Spec.Taints, index by index
}

type taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

type managedFields struct {
	Manager     string `json:"manager"`
	Subresource string `json:"subresource"`
	FieldsV1    struct {
		Spec struct {
			Unschedulable *struct{} `json:"f:unschedulable"`
		} `json:"f:spec"`
	} `json:"fieldsV1"`
}

func parse(raw []byte) (*object, error) {
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, err
	}
	if o.Metadata.Name == "" || o.Metadata.UID == "" || o.Metadata.ResourceVersion == "" {
		return nil, fmt.Errorf("name, uid or resourceVersion is missing")
	}
	for i, raw := range o.Spec.Taints {
		var t taint
		if err := json.Unmarshal(raw, &t); err != nil {
			return nil, fmt.Errorf("taint %d: %w", i, err)
		}
		o.taints = append(o.taints, t)
	}
	return &o, nil
}

// Annotations of ours.
const (
	prefix         = "kured-agent/"
	markerKey      = prefix + "cordoned"
	reasonsKey     = prefix + "reasons"
	setKey         = prefix + "set-annotations"
	holdAnnotation = prefix + "hold"
)

// autoscaler annotations keep a drained, empty node from being taken for a useless one (kubereboot/kured#93, #707).
// They are the only foreign keys that the agent ever sets or removes, whatever setKey says.
var autoscaler = []string{"cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt"}

const autoscalerValue = "true"

// leavingTaints say that an autoscaler is about to delete the node.
var leavingTaints = []string{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"}

func (o *object) observed(w wanted) plan.Node {
	n := plan.Node{
		UID:           o.Metadata.UID,
		Unschedulable: o.Spec.Unschedulable,
		Marker:        text.Line(o.Metadata.Annotations[markerKey], maxText),
		Tainted:       w.tainted(o),
		Stray:         slices.ContainsFunc(o.taints, w.former),
		Startup:       slices.ContainsFunc(o.taints, w.startup),
		Leaving:       o.leaving(),
		BootID:        text.Line(o.Status.NodeInfo.BootID, maxText),
	}
	if hold, ok := o.Metadata.Annotations[holdAnnotation]; ok {
		if n.Hold = text.Line(hold, maxText); n.Hold == "" {
			n.Hold = "held"
		}
	}
	for _, label := range []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"} {
		if _, ok := o.Metadata.Labels[label]; ok {
			n.ControlPlane = true
		}
	}
	for _, condition := range o.Status.Conditions {
		switch condition.Type {
		case "Ready":
			n.Ready = condition.Status == "True"
			n.Heartbeat, _ = time.Parse(time.RFC3339, condition.LastHeartbeatTime) // zero proves nothing
		case "NetworkUnavailable":
			n.NetworkUnavailable = condition.Status == "True"
		}
	}
	return n
}

func (o *object) leaving() string {
	if o.Metadata.DeletionTimestamp != nil {
		return "the Node object is being deleted"
	}
	for _, t := range o.taints {
		if slices.Contains(leavingTaints, t.Key) {
			return fmt.Sprintf("taint %q", t.Key)
		}
	}
	return ""
}

// cordonedByUs is whether the cordon may be taken away: it carries our marker, and nobody took it off and put it on
// again since. The server keeps who set a field last; when it does not say, the marker decides.
func (o *object) cordonedByUs() bool {
	if _, marked := o.Metadata.Annotations[markerKey]; !marked || !o.Spec.Unschedulable {
		return false
	}
	foreign := false
	for _, fields := range o.Metadata.ManagedFields {
		if fields.Subresource != "" || fields.FieldsV1.Spec.Unschedulable == nil {
			continue
		}
		if fields.Manager == fieldManager {
			return true
		}
		foreign = true
	}
	return !foreign
}
