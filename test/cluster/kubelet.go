// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// KubeletOptions describe one fake kubelet; the zero value is a usual node.
type KubeletOptions struct {
	MachineID, SystemUUID string // default: made of the name
	BootID                string // default: random
	Labels                map[string]string
	Taints                []corev1.Taint    // registered with the Node, as by --register-with-taints
	Capacity              map[string]string // default cpu 4, memory 8Gi, pods 110
	Address               string            // InternalIP, default 127.0.0.1
	PodDelete             time.Duration     // how long a terminating pod lingers; negative: for ever
	NeverRegister         bool              // the Node exists already
	StartDown             bool              // registers nothing and is silent until Up
	Heartbeat             time.Duration     // of Lease and status, default 10 s
}

// Kubelet plays the kubelet of one Node under the identity system:node:<name>: it registers the Node, keeps its Lease
// and status, starts every pod bound to it and ends every pod that is being deleted.
type Kubelet struct {
	c       *Cluster
	name    string
	client  *http.Client
	started string
	ctx     context.Context
	stop    context.CancelFunc
	tasks   sync.WaitGroup

	mu      sync.Mutex
	options KubeletOptions
	ready   bool
	down    bool
	awake   context.Context // ends when the machine goes down
	sleep   context.CancelFunc
}

// NewKubelet starts a kubelet and returns when its Node is Ready and free of the not-ready taint. It stops with the test.
func (c *Cluster) NewKubelet(node string, o KubeletOptions) *Kubelet {
	c.t.Helper()
	sum := sha256.Sum256([]byte(node))
	o.MachineID = orElse(o.MachineID, fmt.Sprintf("%x", sum[:16]))
	o.SystemUUID = orElse(o.SystemUUID, formatUUID(sum[:16]))
	o.BootID = orElse(o.BootID, NewBootID())
	o.Address = orElse(o.Address, "127.0.0.1")
	if o.Heartbeat == 0 {
		o.Heartbeat = 10 * time.Second
	}
	if o.Capacity == nil {
		o.Capacity = map[string]string{"cpu": "4", "memory": "8Gi", "pods": "110"}
	}
	certificate, err := c.ca.client("system:node:"+node, "system:nodes")
	if err != nil {
		c.t.Fatalf("issuing a kubelet certificate: %v", err)
	}
	transport, err := c.transport(certificate)
	if err != nil {
		c.t.Fatalf("making a kubelet client: %v", err)
	}
	k := &Kubelet{
		c: c, name: node, client: &http.Client{Transport: transport}, options: o, ready: true, down: o.StartDown,
		started: time.Now().UTC().Format(time.RFC3339),
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.awake, k.sleep = context.WithCancel(k.ctx)
	c.t.Cleanup(k.Stop)
	if !o.StartDown {
		k.Up(o.BootID)
	}
	k.tasks.Go(k.heartbeats)
	k.tasks.Go(k.pods)
	return k
}

// Name is the name of the Node.
func (k *Kubelet) Name() string { return k.name }

// BootID is the boot id that the kubelet reports.
func (k *Kubelet) BootID() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.options.BootID
}

// SetBoot reports another boot id and returns when the API has it.
func (k *Kubelet) SetBoot(id string) {
	k.c.t.Helper()
	k.mu.Lock()
	k.options.BootID = id
	k.mu.Unlock()
	k.mustReport()
}

// SetReady changes the Ready condition and returns when the API has it.
func (k *Kubelet) SetReady(ready bool) {
	k.c.t.Helper()
	k.mu.Lock()
	k.ready = ready
	k.mu.Unlock()
	k.mustReport()
}

// SetPodDelete changes KubeletOptions.PodDelete for pods whose deletion is seen from now on.
func (k *Kubelet) SetPodDelete(lingering time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.options.PodDelete = lingering
}

// Down silences the kubelet as a power cut would: no status, no Lease, no pod is started or ended.
func (k *Kubelet) Down() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = true
	k.sleep()
}

// Up ends Down, or StartDown, with the boot id of the new boot and returns when the Node is Ready. A Node that is missing
// is registered again.
func (k *Kubelet) Up(boot string) {
	k.c.t.Helper()
	if err := k.TryUp(boot); err != nil {
		k.c.t.Fatalf("starting the kubelet of node %q: %v", k.name, err)
	}
	k.waitReady()
}

// TryUp is Up that returns an error, for instance when the API server is away, and does not wait for others to notice.
func (k *Kubelet) TryUp(boot string) error {
	k.mu.Lock()
	k.options.BootID = boot
	if k.down {
		k.down = false
		k.awake, k.sleep = context.WithCancel(k.ctx)
	}
	k.mu.Unlock()
	if err := k.register(); err != nil {
		return err
	}
	return k.report()
}

// Stop ends the kubelet; its Node stays as it is.
func (k *Kubelet) Stop() {
	k.stop()
	k.tasks.Wait()
}

// waitReady returns when the Node looks like one that works.
func (k *Kubelet) waitReady() {
	k.c.t.Helper()
	if !k.c.hasControllers() {
		k.c.removeNotReady(k.name) // nobody else would
	}
	k.c.Eventually("node "+k.name+" without its not-ready taint", 30*time.Second, func() bool {
		node := k.c.NodeOrNil(k.name)
		return node != nil && !hasTaint(node, corev1.TaintNodeNotReady) && !hasTaint(node, corev1.TaintNodeUnreachable)
	})
}

func (k *Kubelet) register() error {
	k.mu.Lock()
	o := k.options
	k.mu.Unlock()
	err := k.do(http.MethodGet, "/api/v1/nodes/"+k.name, nil, nil)
	var status *StatusError
	if err == nil || o.NeverRegister || !errors.As(err, &status) || status.Code != http.StatusNotFound {
		return err
	}
	labels := map[string]string{"kubernetes.io/hostname": k.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
	maps.Copy(labels, o.Labels)
	// NodeRestriction keeps a kubelet from labelling itself with a role, so an admin does, as in real clusters.
	return k.c.Do(k.ctx, http.MethodPost, "/api/v1/nodes", map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": k.name, "labels": labels},
		"spec":     map[string]any{"taints": o.Taints},
	}, nil)
}

func (k *Kubelet) mustReport() {
	k.c.t.Helper()
	if err := k.report(); err != nil {
		k.c.t.Fatalf("reporting the status of node %q: %v", k.name, err)
	}
}

// report writes the Node's status; the strategic patch leaves conditions of others alone.
func (k *Kubelet) report() error {
	k.mu.Lock()
	o, ready := k.options, k.ready
	k.mu.Unlock()
	condition, reason := "True", "KubeletReady"
	if !ready {
		condition, reason = "False", "KubeletNotReady"
	}
	now := time.Now().UTC().Format(time.RFC3339)
	status := map[string]any{
		"capacity": o.Capacity, "allocatable": o.Capacity,
		"conditions": []map[string]any{{
			"type": "Ready", "status": condition, "reason": reason, "message": "fake kubelet",
			"lastHeartbeatTime": now, "lastTransitionTime": now,
		}},
		"addresses": []map[string]any{
			{"type": "InternalIP", "address": o.Address}, {"type": "Hostname", "address": k.name},
		},
		"nodeInfo": map[string]any{
			"machineID": o.MachineID, "systemUUID": o.SystemUUID, "bootID": o.BootID,
			"kernelVersion": "6.1.0", "osImage": "Debian GNU/Linux", "operatingSystem": "linux", "architecture": "amd64",
			"containerRuntimeVersion": "fake://1", "kubeletVersion": "v1.37.2", "kubeProxyVersion": "",
		},
	}
	return k.do(http.MethodPatch, "/api/v1/nodes/"+k.name+"/status", map[string]any{"status": status}, nil, StrategicPatch)
}

func (k *Kubelet) heartbeats() {
	ticker := time.NewTicker(k.options.Heartbeat)
	defer ticker.Stop()
	for {
		if awake := k.awakeContext(); awake != nil {
			// A failure is a missed beat, the next one follows.
			_ = k.renew()
			_ = k.report()
		}
		select {
		case <-k.ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (k *Kubelet) renew() error {
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	spec := map[string]any{"holderIdentity": k.name, "leaseDurationSeconds": 40, "renewTime": now}
	err := k.do(http.MethodPatch, leases+"/"+k.name, map[string]any{"spec": spec}, nil, MergePatch)
	var status *StatusError
	if !errors.As(err, &status) || status.Code != http.StatusNotFound {
		return err
	}
	return k.do(http.MethodPost, leases, map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{"name": k.name}, "spec": spec,
	}, nil)
}

// pods watches the pods of the Node for as long as the kubelet lives, and starts anew after every interruption.
func (k *Kubelet) pods() {
	for k.ctx.Err() == nil {
		if awake := k.awakeContext(); awake != nil {
			_ = k.watchPods(awake)
		}
		select {
		case <-k.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// awakeContext ends when the machine goes down; nil while it is.
func (k *Kubelet) awakeContext() context.Context {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down {
		return nil
	}
	return k.awake
}

// watchPods begins with every pod there is, so nothing that happened meanwhile is missed.
func (k *Kubelet) watchPods(ctx context.Context) error {
	target := k.c.URL() + "/api/v1/pods?watch=true&fieldSelector=" + url.QueryEscape("spec.nodeName="+k.name)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	response, err := k.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	events := json.NewDecoder(response.Body)
	for {
		var event struct {
			Type   string
			Object corev1.Pod
		}
		if err := events.Decode(&event); err != nil {
			return err
		}
		if event.Type == "ADDED" || event.Type == "MODIFIED" {
			k.sync(ctx, &event.Object)
		}
	}
}

func (k *Kubelet) sync(ctx context.Context, pod *corev1.Pod) {
	switch {
	case pod.DeletionTimestamp != nil:
		k.mu.Lock()
		lingering := k.options.PodDelete
		k.mu.Unlock()
		if lingering < 0 {
			return
		}
		k.tasks.Go(func() {
			select {
			case <-ctx.Done():
			case <-time.After(lingering):
				_ = k.end(pod)
			}
		})
	case pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "":
		_ = k.run(pod)
	}
}

func (k *Kubelet) run(pod *corev1.Pod) error {
	now := time.Now().UTC().Format(time.RFC3339)
	var conditions, containers []map[string]any
	for _, kind := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		conditions = append(conditions, map[string]any{"type": kind, "status": "True", "lastTransitionTime": now})
	}
	for _, container := range pod.Spec.Containers {
		containers = append(containers, map[string]any{
			"name": container.Name, "image": container.Image, "imageID": container.Image, "ready": true, "started": true,
			"restartCount": 0, "state": map[string]any{"running": map[string]any{"startedAt": now}},
		})
	}
	return k.do(http.MethodPatch, podPath(pod)+"/status", map[string]any{"status": map[string]any{
		"phase": "Running", "startTime": now, "conditions": conditions, "containerStatuses": containers,
	}}, nil, StrategicPatch)
}

func (k *Kubelet) end(pod *corev1.Pod) error {
	return k.do(http.MethodDelete, podPath(pod), map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
		"preconditions": map[string]any{"uid": pod.UID},
	}, nil)
}

func podPath(pod *corev1.Pod) string {
	return "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name
}

func (k *Kubelet) do(method, path string, body, into any, contentType ...string) error {
	header := http.Header{"User-Agent": {"kubelet/fake"}}
	if len(contentType) > 0 {
		header.Set("Content-Type", contentType[0])
	}
	return do(k.ctx, k.client, header, method, k.c.URL()+path, body, into)
}

// removeNotReady does what the node lifecycle controller would do for a Ready Node.
func (c *Cluster) removeNotReady(node string) {
	c.t.Helper()
	c.Eventually("the not-ready taint of node "+node+" removed", 10*time.Second, func() bool {
		object := c.NodeOrNil(node)
		if object == nil {
			return false
		}
		for i, taint := range object.Spec.Taints {
			if taint.Key != corev1.TaintNodeNotReady {
				continue
			}
			patch := []map[string]any{
				{"op": "test", "path": "/metadata/resourceVersion", "value": object.ResourceVersion},
				{"op": "remove", "path": fmt.Sprintf("/spec/taints/%d", i)},
			}
			_ = c.Do(context.Background(), http.MethodPatch, "/api/v1/nodes/"+node, patch, nil, JSONPatch)
			return false
		}
		return true
	})
}

func hasTaint(node *corev1.Node, key string) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == key {
			return true
		}
	}
	return false
}

// NewBootID returns a random boot id in the kernel's form.
func NewBootID() string {
	var id [16]byte
	_, _ = rand.Read(id[:])
	return formatUUID(id[:])
}

func formatUUID(b []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

func orElse(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}
