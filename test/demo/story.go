// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/kured-agent/kured-agent/test/cluster"
)

const (
	taintKey = "kured-agent/reboot-required"
	marker   = "kured-agent/cordoned"
)

// times are when each step of one machine was seen.
type times struct {
	required, tainted, turn, cordoned, down, up, clean, released time.Time
	evicted                                                      int
}

// story follows everything at once through watches, tells it, and keeps what the conclusion needs.
type story struct {
	c       *cluster.Cluster
	members []*member
	began   time.Time

	mu       sync.Mutex
	steps    map[string]*times
	cordoned map[string]bool
	most     int             // cordoned at once
	pods     map[string]pod  // of the application, by name
	leaving  map[string]bool // told as evicted
	fewest   int             // ready pods of the application
}

type pod struct {
	node  string
	ready bool
}

func newStory(c *cluster.Cluster, members []*member) *story {
	s := &story{
		c: c, members: members, began: time.Now(), steps: map[string]*times{}, cordoned: map[string]bool{},
		pods: map[string]pod{}, leaving: map[string]bool{}, fewest: replicas,
	}
	for _, m := range members {
		s.steps[m.Name()] = &times{}
	}
	return s
}

// require makes the machine need a reboot.
func (s *story) require(m *member) {
	s.mu.Lock()
	s.steps[m.Name()].required = s.say(m.Name(), "needs a reboot: %s", m.trigger)
	s.mu.Unlock()
	m.pull()
}

func (s *story) say(node, format string, args ...any) time.Time {
	now := time.Now()
	fmt.Printf("%7.2f  %-7s %s\n", now.Sub(s.began).Seconds(), node, fmt.Sprintf(format, args...))
	return now
}

func (s *story) follow(ctx context.Context) {
	watch(ctx, s, "/api/v1/nodes", s.node)
	watch(ctx, s, "/api/v1/namespaces/default/pods", s.pod)
	watch(ctx, s, "/apis/coordination.k8s.io/v1/namespaces/kured-agent/leases", s.lease)
	for _, m := range s.members {
		go s.machine(ctx, m)
	}
}

// watch decodes the objects and hands them on one at a time.
func watch[T any](ctx context.Context, s *story, path string, take func(kind string, object *T)) {
	s.c.Watch(ctx, path, func(kind string, raw json.RawMessage) {
		var object T
		if json.Unmarshal(raw, &object) != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		take(kind, &object)
	})
}

func (s *story) node(_ string, node *corev1.Node) {
	t := s.steps[node.Name]
	if t == nil {
		return
	}
	if t.tainted.IsZero() && tainted(node) {
		t.tainted = s.say(node.Name, "is tainted %s:PreferNoSchedule: new pods prefer other nodes", taintKey)
	}
	if cordoned := node.Annotations[marker] != "" && node.Spec.Unschedulable; cordoned != s.cordoned[node.Name] {
		if cordoned {
			s.cordoned[node.Name] = true
			t.cordoned = s.say(node.Name, "is cordoned")
		} else {
			delete(s.cordoned, node.Name)
		}
		s.most = max(s.most, len(s.cordoned))
	}
	if !t.down.IsZero() && t.up.IsZero() && node.Status.NodeInfo.BootID != "" && node.Status.NodeInfo.BootID != s.bootBefore(node.Name) {
		t.up = s.say(node.Name, "is back: its kubelet reports the new boot %.8s…", node.Status.NodeInfo.BootID)
	}
	if !t.up.IsZero() && t.clean.IsZero() && !tainted(node) && !node.Spec.Unschedulable {
		t.clean = s.say(node.Name, "is clean: the boot unit removed taint and cordon with one patch")
	}
}

func (s *story) bootBefore(node string) string {
	for _, m := range s.members {
		if m.Name() == node {
			return m.boot
		}
	}
	return ""
}

func tainted(node *corev1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == taintKey {
			return true
		}
	}
	return false
}

func (s *story) lease(kind string, lease *coordinationv1.Lease) {
	if lease.Spec.HolderIdentity == nil || s.steps[*lease.Spec.HolderIdentity] == nil {
		return
	}
	holder := *lease.Spec.HolderIdentity
	t := s.steps[holder]
	switch {
	case kind == "DELETED":
		t.released = s.say(holder, "gives %s back", lease.Name)
	case t.turn.IsZero():
		t.turn = s.say(holder, "has its turn: it holds %s", lease.Name)
	}
}

func (s *story) pod(kind string, object *corev1.Pod) {
	if object.Labels["app"] != "web" {
		return
	}
	before, known := s.pods[object.Name]
	now := pod{node: object.Spec.NodeName, ready: kind != "DELETED" && object.DeletionTimestamp == nil && ready(object)}
	if object.DeletionTimestamp != nil && !s.leaving[object.Name] {
		s.leaving[object.Name] = true
		if t := s.steps[now.node]; t != nil {
			t.evicted++
			s.say(now.node, "evicts %s", object.Name)
		}
	}
	if now.ready && known && !before.ready { // what is ready when first seen ran before
		s.say(now.node, "runs %s", object.Name)
	}
	if kind == "DELETED" {
		delete(s.pods, object.Name)
	} else {
		s.pods[object.Name] = now
	}
	if known {
		s.fewest = min(s.fewest, s.ready())
	}
}

func (s *story) ready() int {
	n := 0
	for _, p := range s.pods {
		if p.ready {
			n++
		}
	}
	return n
}

func ready(object *corev1.Pod) bool {
	for _, condition := range object.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// machine tells when the machine itself goes down.
func (s *story) machine(ctx context.Context, m *member) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if boots := m.Boots(); len(boots) > 1 {
			s.mu.Lock()
			t := s.steps[m.Name()]
			t.down = s.say(m.Name(), "is down: logind rebooted it")
			s.mu.Unlock()
			return
		}
	}
}

func (s *story) waitAll(ctx context.Context) {
	deadline := time.Now().Add(bound)
	for time.Now().Before(deadline) && ctx.Err() == nil && !s.finished() {
		time.Sleep(50 * time.Millisecond)
	}
	// A second reboot, or a cordon that comes back, would show up now.
	for quiet := time.Now().Add(3 * time.Second); s.finished() && time.Now().Before(quiet) && ctx.Err() == nil; {
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *story) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.steps {
		if t.clean.IsZero() || t.released.IsZero() {
			return false
		}
	}
	return true
}

// conclude prints the table and says whether all was as it should be.
func (s *story) conclude() bool {
	var problems []string
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	s.mu.Lock()
	defer s.mu.Unlock()

	fmt.Println()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tSYSTEM\tTAINT AFTER\tWAITED\tEVICTED\tDRAIN\tDOWN\tBACK TO CLEAN\tALL\tNODE WRITES")
	for _, m := range s.members {
		t := s.steps[m.Name()]
		writes := len(s.c.Requests(func(r cluster.Request) bool {
			return r.User == cluster.AgentUser && cluster.NodeWrites(m.Name())(r)
		}))
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d pods\t%s\t%s\t%s\t%s\t%d\n", m.Name(), m.system,
			between(t.required, t.tainted), between(t.tainted, t.turn), t.evicted, between(t.turn, t.down),
			between(t.down, t.up), between(t.up, t.clean), between(t.required, t.clean), writes)
		switch {
		case t.clean.IsZero() || t.released.IsZero():
			wrong("%s did not come through: its agent is in phase %q: %s", m.Name(), m.Property("Phase"), m.Property("Why"))
			continue
		case len(m.Boots()) != 2:
			wrong("%s booted %d times after its first boot, not once", m.Name(), len(m.Boots())-1)
		case m.BootID() == m.boot:
			wrong("%s has the boot id of before", m.Name())
		case t.turn.Before(t.tainted) || t.cordoned.Before(t.turn) || t.released.Before(t.clean):
			wrong("%s did things in another order than taint, turn, cordon, clean, release", m.Name())
		}
		if s.cordoned[m.Name()] {
			wrong("%s is cordoned", m.Name())
		}
		if writes != 3 {
			wrong("the agent of %s wrote its Node %d times, not 3", m.Name(), writes)
		}
	}
	_ = table.Flush()
	if s.most != 1 {
		wrong("%d nodes were cordoned at once", s.most)
	}
	if s.fewest < replicas-spare {
		wrong("only %d pods of the application were ready at one moment, its budget demands %d", s.fewest, replicas-spare)
	}
	fmt.Println()
	if len(problems) > 0 {
		fmt.Println("Not as it should be:")
		for _, problem := range problems {
			fmt.Println(" -", problem)
		}
		return false
	}
	fmt.Printf(`Shown:
 - A signal, a file and a request: each tainted its node at once.
 - The three machines took turns, never two cordoned together.
 - Each was drained and really rebooted through logind, proven by a new boot id.
 - Each was made clean by its boot unit.
 - Of %d pods never fewer than %d were ready.
`, replicas, s.fewest)
	return true
}

func between(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%.2f s", to.Sub(from).Seconds())
}
