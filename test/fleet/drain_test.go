// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/lab"
)

const pods = 60

// binPacking fills one node before the next. The default spreading of a Deployment's pods would work against it.
const binPacking = `profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]
  - name: PodTopologySpread
    args: {defaultingType: List}
`

// setUp is one kind of cluster. bare is what cordon, evict and uncordon alone came to, without and with the taint.
type setUp struct {
	name           string
	scheduler      string
	nodes, needing int
	rounds         int
	target         int
	bare           string
}

var setUps = []setUp{
	{"default-5-of-5", "", 5, 5, 1, 72, "72 / 72"},
	{"default-3-of-6", "", 6, 3, 1, 30, "34 / 30"},
	{"packed-3-of-6", binPacking, 6, 3, 1, 60, "120 / 60"},
	{"packed-5-of-5", binPacking, 5, 5, 5, 60, "120 / 60 by order"},
}

// doubleDrain rolls a reboot out over real schedulers and counts the evictions that the API server granted.
func doubleDrain(t *testing.T) {
	var out strings.Builder
	fmt.Fprintf(&out, "\n%-16s %-6s %-10s %-8s %-8s %-20s %-8s %s\n", "set-up", "round", "evictions", "minimum", "target",
		"bare loop", "took", "pods at the start, in the order of going; * needs no reboot")
	for _, s := range setUps {
		t.Run(s.name, func(t *testing.T) { s.run(t, &out) })
	}
	t.Log(out.String())
}

func (s setUp) run(t *testing.T, out *strings.Builder) {
	c := cluster.Start(t, cluster.Options{Workloads: true, Scheduler: true, SchedulerConfig: s.scheduler, Audit: true})
	r := &rollOut{t: t, c: c, s: s}
	c.Apply(deployment)
	for i := range s.nodes {
		m := lab.New(t, c, fmt.Sprintf("n%d", i), lab.Options{Pool: "default"})
		m.Start()
		m.WaitPhase("Idle")
		r.machines = append(r.machines, m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, m := range r.machines {
		group.Go(func() { r.reboots(ctx, m) })
	}
	defer group.Wait()
	defer cancel()
	for round := range s.rounds {
		r.round(round+1, out)
	}
}

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: load}
spec:
  replicas: 0
  selector: {matchLabels: {app: load}}
  template:
    metadata: {labels: {app: load}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: "example.com/app:1", resources: {requests: {cpu: 50m, memory: 100Mi}}}
`

type rollOut struct {
	t        *testing.T
	c        *cluster.Cluster
	s        setUp
	machines []*lab.Machine

	mu    sync.Mutex
	order []string
}

// reboots makes what is asked of the faked logind a reboot of the machine.
func (r *rollOut) reboots(ctx context.Context, m *lab.Machine) {
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for done := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		if m.Asked() == done {
			continue
		}
		done = m.Asked()
		r.mu.Lock()
		r.order = append(r.order, m.Name)
		r.mu.Unlock()
		m.Login.PrepareForShutdown(true)
		m.PowerOff()
		m.PowerOn()
	}
}

func (r *rollOut) round(n int, out *strings.Builder) {
	r.t.Helper()
	r.scale(0)
	r.scale(pods)
	start := r.perNode()
	needing := r.needing(start)
	r.mu.Lock()
	r.order = nil
	r.mu.Unlock()
	begin := time.Now()
	for _, m := range needing {
		m.Require(fmt.Sprintf("kernel-%d", n))
	}
	r.c.Eventually("the roll-out is over", 5*time.Minute, func() bool {
		r.mu.Lock()
		gone := len(r.order)
		r.mu.Unlock()
		if gone < len(needing) {
			return false
		}
		for _, m := range needing {
			if taint, cordon, marker, slot := m.Marks(); taint || cordon || marker || slot {
				return false
			}
		}
		return true
	})
	took := time.Since(begin)
	granted := r.c.Requests(func(q cluster.Request) bool {
		return q.User == cluster.AgentUser && q.Resource == "pods" && q.Subresource == "eviction" && q.Verb == "create" &&
			q.Code == http.StatusCreated && q.Time.After(begin)
	})
	fmt.Fprintf(out, "%-16s %-6d %-10d %-8d %-8d %-20s %-8s %s\n", r.s.name, n, len(granted), r.minimum(start, needing),
		r.s.target, r.s.bare, took.Round(time.Second), r.story(start))
}

// scale sets the Deployment's size and returns when it has it.
func (r *rollOut) scale(replicas int) {
	r.t.Helper()
	r.c.MustKubectl("scale", "deployment", "load", fmt.Sprintf("--replicas=%d", replicas))
	r.c.Eventually(fmt.Sprintf("%d pods run", replicas), 2*time.Minute, func() bool {
		running := 0
		all := r.c.Pods("")
		for i := range all {
			if all[i].Status.Phase == corev1.PodRunning && all[i].DeletionTimestamp == nil {
				running++
			}
		}
		return running == replicas && len(all) == replicas
	})
}

func (r *rollOut) perNode() map[string]int {
	count := map[string]int{}
	all := r.c.Pods("")
	for i := range all {
		count[all[i].Spec.NodeName]++
	}
	return count
}

// needing are the machines to be rebooted, the fullest node among them.
func (r *rollOut) needing(start map[string]int) []*lab.Machine {
	fullest := 0
	for i, m := range r.machines {
		if start[m.Name] > start[r.machines[fullest].Name] {
			fullest = i
		}
	}
	var all []*lab.Machine
	for i := range r.s.needing {
		all = append(all, r.machines[(fullest+i)%len(r.machines)])
	}
	return all
}

// minimum is what must move: every pod of a node that needs the reboot, and where no node is clean those of the first
// once more.
func (r *rollOut) minimum(start map[string]int, needing []*lab.Machine) int {
	sum, least := 0, pods
	for _, m := range needing {
		sum += start[m.Name]
		least = min(least, start[m.Name])
	}
	if len(needing) == len(r.machines) {
		sum += least
	}
	return sum
}

func (r *rollOut) story(start map[string]int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var parts []string
	went := map[string]bool{}
	for _, name := range r.order {
		parts = append(parts, fmt.Sprintf("%s:%d", name, start[name]))
		went[name] = true
	}
	for _, m := range r.machines {
		if !went[m.Name] {
			parts = append(parts, fmt.Sprintf("%s*:%d", m.Name, start[m.Name]))
		}
	}
	return strings.Join(parts, " ")
}
