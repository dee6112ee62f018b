// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/agent"
	"github.com/kured-agent/kured-agent/internal/node"
	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/slot"
)

const (
	namespace = "kured-agent"
	userAgent = "kured-agent/fleet"
)

// asAgent sends what one node's agent asks, in its name: an admin's impersonation, so that thousands share a connection
// and no token has to be made. Roles and admission policies see the agent.
type asAgent struct {
	node string
	next http.RoundTripper
}

func (a asAgent) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", userAgent)
	r.Header.Set("Impersonate-User", "system:serviceaccount:kured-agent:agent")
	r.Header.Set("Impersonate-Extra-Authentication.kubernetes.io%2fnode-Name", a.node)
	return a.next.RoundTrip(r)
}

// clients are the REST clients of one node's agent.
func clients(t testing.TB, host, node string, next http.RoundTripper) (core, coordination rest.Interface) {
	t.Helper()
	client := &http.Client{Transport: asAgent{node, next}, Timeout: 15 * time.Second}
	made := func(path string, gv schema.GroupVersion) rest.Interface {
		config := &rest.Config{Host: host, APIPath: path, QPS: -1, WarningHandler: rest.NoWarnings{},
			ContentConfig: rest.ContentConfig{
				GroupVersion: &gv, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
				ContentType: "application/json", AcceptContentTypes: "application/json",
			}}
		c, err := rest.RESTClientForConfigAndClient(config, client)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	return made("/api", corev1.SchemeGroupVersion), made("/apis", coordinationv1.SchemeGroupVersion)
}

// waiter is one node whose agent waits for its turn: the agent's own loop, Node and slots, and everything of the host
// faked.
type waiter struct {
	name, uid string
	pool      string
	pods      int // that would have to move
	slots     *slot.Client
	node      *node.Client
	taken     chan<- taking
	again     chan struct{} // lets the agent wait again after a taking
	cancel    context.CancelFunc
	done      chan struct{}
}

// taking is one slot taken. The agent goes no further, and waits again when it may: what follows is not measured here.
type taking struct {
	by   *waiter
	at   time.Time
	slot string
}

func newWaiter(t testing.TB, host, name, uid, pool string, pods int, next http.RoundTripper, taken chan<- taking) *waiter {
	core, coordination := clients(t, host, name, next)
	options := slot.Options{Namespace: namespace, Node: name}
	if pool == edgePool {
		options.Nodes = "pool=" + edgePool
	}
	return &waiter{
		name: name, uid: uid, pool: pool, pods: pods, taken: taken, again: make(chan struct{}, 1),
		slots: slot.New(core, coordination, options),
		node:  node.New(core, node.Options{Name: name, TaintKey: "kured-agent/reboot-required", TaintEffect: "PreferNoSchedule"}),
	}
}

const thisBoot = "00000001-0000-4000-8000-000000000000"

var reasons = []plan.Reason{{Source: "file:/run/reboot-required", ID: "kernel", Text: "kernel", Kind: plan.KindFull}}

// start runs the agent of a node on which the reboot has just become required.
func (w *waiter) start(ctx context.Context) {
	ctx, w.cancel = context.WithCancel(ctx)
	w.done = make(chan struct{})
	began := time.Now()
	h := hostOf{w, ctx}
	loop := agent.New(agent.Options{
		Policy: plan.Policy{MaxHold: 30 * time.Minute, DrainTimeout: 20 * time.Minute, RebootDeadline: 2 * time.Minute,
			LoopGuard: 24 * time.Hour, Settle: 10 * time.Second, BootDeadline: 15 * time.Minute},
		Pool: w.pool, TaintName: "kured-agent/reboot-required:PreferNoSchedule", Drain: true,
		Sources: h, Node: w.node, Slots: h, Drainer: podsOf{w}, Gates: h, Ready: h, Logind: h, Units: h,
		Host: &memory{record: plan.Record{Proof: "proven"}}, Identity: h,
		Boot:   thisBoot,
		Window: func(time.Time) plan.Window { return plan.Window{Open: true} },
		Now:    time.Now, Uptime: func() time.Duration { return time.Hour + time.Since(began) },
		Logger: slog.New(slog.DiscardHandler),
	})
	go func() {
		defer close(w.done)
		loop.Run(ctx)
	}()
}

func (w *waiter) stop() {
	w.cancel()
	<-w.done
}

// hostOf is a host on which a reboot is required and nothing stands in its way, and the slots, which it watches.
type hostOf struct {
	*waiter
	running context.Context
}

func (hostOf) Need() (plan.Level, []plan.Reason) {
	return plan.Required, reasons
}

func (h hostOf) Acquire(ctx context.Context, request agent.Request) (agent.Claim, error) {
	r, err := h.slots.Acquire(ctx, slot.Request(request))
	if r.Taken {
		h.taken <- taking{h.waiter, time.Now(), r.Name}
		select {
		case <-h.again:
			return agent.Claim{Why: "it was somebody else's turn"}, nil
		case <-h.running.Done():
		}
	}
	return agent.Claim{Taken: r.Taken, Name: r.Name, UID: r.UID, Boot: r.Boot, NodeUID: r.NodeUID, Free: r.Free, Why: r.Why}, err
}

func (h hostOf) Nodes(ctx context.Context, pool string) (int, error) { return h.slots.Nodes(ctx, pool) }

func (h hostOf) Find(ctx context.Context) (agent.Claim, error) {
	r, err := h.slots.Find(ctx, "")
	return agent.Claim{Taken: r.Taken, Name: r.Name, UID: r.UID, Boot: r.Boot, NodeUID: r.NodeUID}, err
}

func (h hostOf) Verify(ctx context.Context, name, uid string) (bool, string, error) {
	return h.slots.Verify(ctx, name, uid)
}

func (h hostOf) Release(ctx context.Context, name, uid string) error {
	return h.slots.Release(ctx, name, uid)
}

func (hostOf) Check(context.Context) []string          { return nil }
func (hostOf) Missing(context.Context) (string, error) { return "", nil }
func (hostOf) Reboot(context.Context, plan.Kind, string) error {
	return fmt.Errorf("rebooting: not here")
}
func (hostOf) Kinds(context.Context) []plan.Kind                  { return nil }
func (hostOf) Preflight(context.Context) error                    { return nil }
func (hostOf) Scheduled(context.Context) (string, error)          { return "", nil }
func (hostOf) Delay(context.Context) error                        { return nil }
func (hostOf) Delaying() bool                                     { return false }
func (hostOf) LetGo()                                             {}
func (hostOf) PreparingForShutdown(context.Context) (bool, error) { return false, nil }
func (hostOf) Inhibitors(context.Context) ([]string, error)       { return nil, nil }
func (hostOf) StartPreReboot(context.Context, string) error       { return nil }
func (hostOf) BootComplete(context.Context) (string, error)       { return "", nil }
func (hostOf) BootUnitWorks(context.Context) (bool, error)        { return false, nil }
func (hostOf) Restarting(context.Context) (bool, error)           { return false, nil }
func (hostOf) GoingDown(context.Context) (bool, error)            { return false, nil }
func (hostOf) Fingerprint() string                                { return "proven" }
func (hostOf) Prove(context.Context) error                        { return nil }
func (hostOf) Rest()                                              {}
func (hostOf) PreReboot(context.Context, string) (plan.Target, string, error) {
	return plan.TargetReached, "", nil
}

type podsOf struct{ *waiter }

func (p podsOf) Look(context.Context) (plan.Pods, error) {
	return plan.Pods{Known: true, Left: p.pods}, nil
}
func (podsOf) Pass(context.Context) error   { return nil }
func (podsOf) Delete(context.Context) error { return nil }

// memory is the record without its disk.
type memory struct {
	mu     sync.Mutex
	record plan.Record
}

func (m *memory) ReadRecord() (plan.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record, nil
}

func (m *memory) PackageManager() (string, error) { return "", nil }

func (m *memory) UpdateRecord(change func(*plan.Record)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.record)
	return nil
}
