// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/kured-agent/kured-agent/internal/text"
)

// wanted is what the configuration says about taints.
type wanted struct {
	Key, Effect string
	Startup     []string // "key" or "key:Effect"
	Former      string   // "key:Effect" that an earlier configuration had; empty: none
}

// former is an entry that we put there before the configuration was changed.
func (w wanted) former(t taint) bool {
	return t.Value == "" && t.Key+":"+t.Effect == w.Former && !w.ours(t)
}

// ours is an entry that the agent may take away. One with our key and another effect, or with a value, was put there
// by somebody else.
func (w wanted) ours(t taint) bool { return t.Key == w.Key && t.Effect == w.Effect && t.Value == "" }

// occupied is an entry that leaves no room for ours: key and effect are unique in the list.
func (w wanted) occupied(t taint) bool {
	return t.Key == w.Key && t.Effect == w.Effect && t.Value != ""
}

func (w wanted) startup(t taint) bool {
	return slices.ContainsFunc(w.Startup, func(s string) bool {
		key, effect, given := strings.Cut(s, ":")
		return t.Key == key && (!given || t.Effect == effect)
	})
}

// tainted also holds for an entry of somebody else in our place, once the reasons annotation says that we want it
// there: it does what ours would do, and without an answer the agent would try for ever.
func (w wanted) tainted(o *object) bool {
	if slices.ContainsFunc(o.taints, w.ours) {
		return true
	}
	_, said := o.Metadata.Annotations[reasonsKey]
	return said && slices.ContainsFunc(o.taints, w.occupied)
}

// change is a difference to a Node; what is nil stays.
type change struct {
	annotations   map[string]*string // nil value: remove
	unschedulable *bool
	taints        *[]json.RawMessage
}

func (c *change) set(key, value string) { c.annotate(key, &value) }
func (c *change) remove(key string)     { c.annotate(key, nil) }

func (c *change) annotate(key string, value *string) {
	if c.annotations == nil {
		c.annotations = map[string]*string{}
	}
	c.annotations[key] = value
}

func (c *change) empty() bool {
	return len(c.annotations) == 0 && c.unschedulable == nil && c.taints == nil
}

// taintChange adds our taint behind the others.
func taintChange(o *object, w wanted, note string) change {
	var c change
	if w.tainted(o) {
		if kept := o.without(w.former); len(kept) < len(o.Spec.Taints) {
			c.taints = &kept
		}
		return c
	}
	if !slices.ContainsFunc(o.taints, w.occupied) {
		entry, err := json.Marshal(struct {
			Key    string `json:"key"`
			Effect string `json:"effect"`
		}{w.Key, w.Effect})
		if err != nil { // two strings cannot fail
			panic(err)
		}
		taints := append(o.without(w.former), entry)
		c.taints = &taints
	}
	if note = text.Line(note, maxText); note != "" || c.taints == nil {
		c.set(reasonsKey, note)
	}
	return c
}

// cordonChange takes the node out of scheduling and says in the same write that it was us. A cordon of somebody else
// stays as it is and gets no marker, so that nothing of ours ever lifts it (kubereboot/kured#63, #1328).
func cordonChange(o *object, boot string) change {
	var c change
	if !o.Spec.Unschedulable || o.cordonedByUs() {
		if !o.Spec.Unschedulable {
			yes := true
			c.unschedulable = &yes
		}
		if o.Metadata.Annotations[markerKey] != boot {
			c.set(markerKey, boot)
		}
	}
	remembered := setByUs(o)
	set := slices.Clone(remembered)
	for _, key := range autoscaler {
		if _, there := o.Metadata.Annotations[key]; !there {
			c.set(key, autoscalerValue)
			if !slices.Contains(set, key) {
				set = append(set, key)
			}
		}
	}
	if !slices.Equal(set, remembered) {
		c.set(setKey, strings.Join(set, ","))
	}
	return c
}

// setByUs are the autoscaler annotations that setKey remembers. It is an annotation like any other, so anything else
// in it is not believed.
func setByUs(o *object) []string {
	var set []string
	for key := range strings.SplitSeq(o.Metadata.Annotations[setKey], ",") {
		if slices.Contains(autoscaler, key) && !slices.Contains(set, key) {
			set = append(set, key)
		}
	}
	return set
}

// rollBackChange undoes cordonChange.
func rollBackChange(o *object) change {
	var c change
	if o.cordonedByUs() {
		no := false
		c.unschedulable = &no
	}
	for _, key := range setByUs(o) {
		if o.Metadata.Annotations[key] == autoscalerValue { // another value is somebody else's by now
			c.remove(key)
		}
	}
	for _, key := range []string{markerKey, setKey} {
		if _, there := o.Metadata.Annotations[key]; there {
			c.remove(key)
		}
	}
	return c
}

// without are the taints, raw and in their order, that gone does not name.
func (o *object) without(gone func(taint) bool) []json.RawMessage {
	kept := make([]json.RawMessage, 0, len(o.Spec.Taints)+1)
	for i, t := range o.taints {
		if !gone(t) {
			kept = append(kept, o.Spec.Taints[i])
		}
	}
	return kept
}

// cleanChange undoes everything of ours, and removes the start-up taints when asked.
func cleanChange(o *object, w wanted, startup bool) change {
	c := rollBackChange(o)
	if _, there := o.Metadata.Annotations[reasonsKey]; there {
		c.remove(reasonsKey)
	}
	kept := o.without(func(t taint) bool { return w.ours(t) || w.former(t) || startup && w.startup(t) })
	if len(kept) < len(o.Spec.Taints) {
		c.taints = &kept
	}
	return c
}

// mergePatch is the request body: a JSON merge patch that only applies to exactly the object it was computed from.
// Without the resourceVersion it would wipe out taints that others add in between.
func mergePatch(o *object, c change) ([]byte, error) {
	type metadata struct {
		UID             string             `json:"uid"`
		ResourceVersion string             `json:"resourceVersion"`
		Annotations     map[string]*string `json:"annotations,omitempty"`
	}
	body := struct {
		Metadata metadata                   `json:"metadata"`
		Spec     map[string]json.RawMessage `json:"spec,omitempty"`
	}{metadata{o.Metadata.UID, o.Metadata.ResourceVersion, c.annotations}, map[string]json.RawMessage{}}

	if c.unschedulable != nil {
		body.Spec["unschedulable"] = json.RawMessage("null")
		if *c.unschedulable {
			body.Spec["unschedulable"] = json.RawMessage("true")
		}
	}
	if c.taints != nil {
		body.Spec["taints"] = json.RawMessage("null")
		if len(*c.taints) > 0 {
			body.Spec["taints"] = slices.Concat([]byte("["), bytes.Join(rawBytes(*c.taints), []byte(",")), []byte("]"))
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // would rewrite the text of foreign taints
	if err := encoder.Encode(body); err != nil {
		return nil, fmt.Errorf("building the patch: %w", err)
	}
	return bytes.TrimSpace(out.Bytes()), nil
}

func rawBytes(list []json.RawMessage) [][]byte {
	out := make([][]byte, len(list))
	for i := range list {
		out[i] = list[i]
	}
	return out
}
