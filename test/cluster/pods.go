// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodOptions describe a pod; the zero value is a bare one in namespace default with the label app=<name>.
type PodOptions struct {
	Namespace   string
	Labels      map[string]string
	Annotations map[string]string
	Finalizers  []string
	// Owner is the kind of the controlling owner: ReplicaSet, StatefulSet, DaemonSet or Job. It is a real object named
	// OwnerName (default "app"), made on first use, so that the garbage collector leaves the pod alone.
	Owner, OwnerName string
	Priority         *int32 // of a PriorityClass "priority-N", made on first use
	GracePeriod      *int64 // seconds; default 1
	EmptyDir         bool
	Mirror           bool // a static pod's mirror
	Tolerations      []corev1.Toleration
	Requests         map[string]string // cpu, memory
	Mutate           func(*corev1.Pod) // last word
}

// Pod creates a pod that is bound to the node already, or one for the scheduler when node is empty.
func (c *Cluster) Pod(node, name string, o PodOptions) *corev1.Pod {
	c.t.Helper()
	namespace := orElse(o.Namespace, "default")
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Finalizers: o.Finalizers,
			Labels: map[string]string{"app": name}, Annotations: maps.Clone(o.Annotations),
		},
		Spec: corev1.PodSpec{
			NodeName: node, Tolerations: o.Tolerations, TerminationGracePeriodSeconds: o.GracePeriod,
			Containers: []corev1.Container{{Name: "main", Image: "example.com/app:1"}},
		},
	}
	maps.Copy(pod.Labels, o.Labels)
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		second := int64(1)
		pod.Spec.TerminationGracePeriodSeconds = &second
	}
	for name, quantity := range o.Requests {
		if pod.Spec.Containers[0].Resources.Requests == nil {
			pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{}
		}
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceName(name)] = resource.MustParse(quantity)
	}
	if o.EmptyDir {
		pod.Spec.Volumes = []corev1.Volume{{
			Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		}}
	}
	if o.Owner != "" {
		pod.OwnerReferences = []metav1.OwnerReference{c.owner(o.Owner, orElse(o.OwnerName, "app"), namespace)}
	}
	if o.Priority != nil {
		pod.Spec.PriorityClassName = c.priorityClass(*o.Priority)
	}
	if o.Mirror {
		// Only the node itself may create a mirror pod, controlled by its Node.
		yes := true
		pod.Annotations = orMap(pod.Annotations)
		pod.Annotations[corev1.MirrorPodAnnotationKey] = "static"
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: node, UID: c.Node(node).UID, Controller: &yes,
		}}
	}
	if o.Mutate != nil {
		o.Mutate(pod)
	}
	c.must(http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods", pod, pod)
	return pod
}

var ownerPaths = map[string][2]string{
	"ReplicaSet":  {"apps/v1", "replicasets"},
	"StatefulSet": {"apps/v1", "statefulsets"},
	"DaemonSet":   {"apps/v1", "daemonsets"},
	"Job":         {"batch/v1", "jobs"},
}

// owner returns a controlling reference to an object of the kind, which is made with no replicas when missing.
func (c *Cluster) owner(kind, name, namespace string) metav1.OwnerReference {
	c.t.Helper()
	where, ok := ownerPaths[kind]
	if !ok {
		c.t.Fatalf("making an owner of pods: kind %q is none of %v", kind, slices.Sorted(maps.Keys(ownerPaths)))
	}
	labels := map[string]string{"owner": name}
	spec := map[string]any{"template": map[string]any{
		"metadata": map[string]any{"labels": labels},
		"spec": map[string]any{
			"containers":    []map[string]any{{"name": "main", "image": "example.com/app:1"}},
			"restartPolicy": map[bool]string{true: "Never", false: "Always"}[kind == "Job"],
		},
	}}
	switch kind {
	case "Job":
		spec["suspend"] = true
	case "DaemonSet":
		spec["selector"] = map[string]any{"matchLabels": labels}
	default:
		spec["selector"] = map[string]any{"matchLabels": labels}
		spec["replicas"] = 0
	}
	if kind == "StatefulSet" {
		spec["serviceName"] = name
	}
	path := "/apis/" + where[0] + "/namespaces/" + namespace + "/" + where[1]
	err := c.Do(context.Background(), http.MethodPost, path, map[string]any{
		"apiVersion": where[0], "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}, nil)
	if err != nil && !isStatus(err, http.StatusConflict) {
		c.t.Fatalf("making %s %q: %v", kind, name, err)
	}
	var object metav1.PartialObjectMetadata
	c.must(http.MethodGet, path+"/"+name, nil, &object)
	yes := true
	return metav1.OwnerReference{
		APIVersion: where[0], Kind: kind, Name: name, UID: types.UID(object.UID), Controller: &yes, BlockOwnerDeletion: &yes,
	}
}

func (c *Cluster) priorityClass(value int32) string {
	c.t.Helper()
	name := fmt.Sprintf("priority-%d", value)
	err := c.Do(context.Background(), http.MethodPost, "/apis/scheduling.k8s.io/v1/priorityclasses", map[string]any{
		"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": map[string]any{"name": name}, "value": value,
	}, nil)
	if err != nil && !isStatus(err, http.StatusConflict) {
		c.t.Fatalf("making priority class %q: %v", name, err)
	}
	return name
}

// WaitRunning waits until the pods, "name" or "namespace/name", are Running and Ready.
func (c *Cluster) WaitRunning(names ...string) {
	c.t.Helper()
	for _, full := range names {
		namespace, name, ok := strings.Cut(full, "/")
		if !ok {
			namespace, name = "default", full
		}
		c.Eventually("pod "+full+" running", 30*time.Second, func() bool {
			var pod corev1.Pod
			path := "/api/v1/namespaces/" + namespace + "/pods/" + name
			return c.Do(context.Background(), http.MethodGet, path, nil, &pod) == nil && ready(&pod)
		})
	}
}

func ready(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && slices.ContainsFunc(pod.Status.Conditions, func(p corev1.PodCondition) bool {
		return p.Type == corev1.PodReady && p.Status == corev1.ConditionTrue
	})
}

// PDB creates a PodDisruptionBudget in namespace default; with the controller manager it returns when that has counted
// the pods, because until then every eviction is refused.
func (c *Cluster) PDB(name string, selector map[string]string, minAvailable int) {
	c.t.Helper()
	const path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
	c.must(http.MethodPost, path, map[string]any{
		"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"minAvailable": minAvailable, "selector": map[string]any{"matchLabels": selector}},
	}, nil)
	if !c.hasControllers() {
		return
	}
	c.Eventually("budget "+name+" counted", 30*time.Second, func() bool {
		var budget struct {
			Metadata struct{ Generation int64 }
			Status   struct{ ObservedGeneration int64 }
		}
		err := c.Do(context.Background(), http.MethodGet, path+"/"+name, nil, &budget)
		return err == nil && budget.Status.ObservedGeneration == budget.Metadata.Generation
	})
}

func isStatus(err error, code int) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == code
}

func orMap(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
