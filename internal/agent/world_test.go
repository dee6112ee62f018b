// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// sim is one machine and its cluster, small enough to be right. Every call of a port passes through op, where a fault
// may be injected: the call fails before or after its effect, the process dies, or the power goes. It lives in a bubble
// of testing/synctest, and so does all of this package's time: a sleep here takes none.
type sim struct {
	t    *testing.T
	mu   *sync.Mutex // of the whole pool
	pool *pool

	// the cluster
	node  plan.Node
	lease string // uid of our slot; empty: free
	owner string // uid of the Node object that owns it
	taken int    // slots taken so far
	pods  int

	// the machine
	bootNo   int
	bootedAt time.Time
	record   plan.Record
	need     bool // a file in /run: gone after a boot
	shutdown bool
	bootUnit bool
	reboots  int
	human    bool // a human cordoned the node
	inhibit  []string

	// the fault
	ops   int
	fault map[int]fault
	away  func(time.Duration) bool // the API server does not answer at this age of the world; may be nil
	deaf  int                      // this many accepted reboots are never carried out

	// what else a test may turn
	tweak      func(a *Agent, bootUnit bool)   // of every process before it starts; may be nil
	window     func(now time.Time) plan.Window // nil: always open
	latency    time.Duration                   // of every call to the API server
	proof      string                          // fingerprint of the credential
	persist    bool                            // the need outlives a boot
	stuck      bool                            // the pods do not go
	gates      []string                        // closed ones
	incomplete string                          // what keeps boot-complete.target from being reached
	unreadable error                           // what comes of reading the record
	diskFull   bool
	noLogind   bool
	forbidden  error         // what a preflight says
	packages   string        // the package manager at work
	able       []plan.Kind   // kinds of reboot but the full one
	delaying   bool          // our delay inhibitor is held
	forGood    bool          // a stop is not a restart
	dark       bool          // the power is off: nobody says a last word
	robbed     bool          // somebody took the slot away
	emptied    bool          // somebody shut the system down, and the node was drained for it without a slot
	pastLogind bool          // the system goes down, and logind knows nothing of it
	forgetful  bool          // the state directory does not outlive a boot
	passDue    time.Duration // uptime
	listings   int           // of pods
	cordons    int
	patches    int // of the Node

	began   time.Time
	changed chan struct{}
	kill    context.CancelFunc // ends both processes of this boot
	// terminate is SIGTERM for the agent, which is started again
	terminate context.CancelFunc
}

type fault int

const (
	failBefore fault = iota
	failAfter
	crashBefore
	crashAfter
	powerBefore
	powerAfter
)

var faultNames = [...]string{"fails before", "fails after", "crashes before", "crashes after", "loses power before",
	"loses power after"}

var errInjected = errors.New("injected")

// pool is what machines share: n slots.
type pool struct {
	n        int
	machines []*sim
}

func (p *pool) held() (n int) {
	for _, s := range p.machines {
		if s.lease != "" {
			n++
		}
	}
	return n
}

func (p *pool) cordoned() (n int) {
	for _, s := range p.machines {
		if s.node.Marker != "" && s.node.Unschedulable && !s.emptied {
			n++
		}
	}
	return n
}

// robbed says that a human freed a slot: until the holder notices, another may be cordoned too.
func (p *pool) robbed() bool {
	return slices.ContainsFunc(p.machines, func(s *sim) bool { return s.robbed })
}

// crash is the panic that ends a process without a word.
type crash struct{}

func newSim(t *testing.T) *sim {
	s := &sim{
		t: t, mu: new(sync.Mutex), pods: 3, need: true, began: time.Now(), changed: make(chan struct{}, 1), fault: map[int]fault{},
		node: plan.Node{UID: "uid-1"},
	}
	s.pool = &pool{n: 1, machines: []*sim{s}}
	return s
}

// booted has the machine be up in its n-th boot, the kubelet included, without anything of ours running.
func (s *sim) booted(n int) *sim {
	s.bootNo, s.bootedAt = n, time.Now()
	s.node.BootID, s.node.Ready = s.boot(), true
	return s
}

// returned has the machine be back from a reboot that we asked for, with everything still on the Node.
func (s *sim) returned() *sim {
	s.booted(2)
	s.need = false
	s.node.Unschedulable, s.node.Marker, s.node.Tainted = true, "boot-1", true
	s.lease, s.owner = "lease-1@boot-1", s.node.UID
	s.record = plan.Record{
		Boot: "boot-1", NodeUID: s.node.UID, Marked: true, Proof: s.proof,
		Slot: &plan.SlotRef{Name: "slot-default-0", UID: s.lease}, Asked: &plan.Asked{At: time.Minute},
	}
	return s
}

// lostRecord is returned with an empty state directory.
func (s *sim) lostRecord() *sim {
	s.proof = "credential"
	s.returned().record = plan.Record{}
	return s
}

// runFor runs the agent of a machine that is up, and returns it for a last look.
func (s *sim) runFor(d time.Duration) *Agent {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	s.kill = cancel
	a := s.agent(false)
	a.Run(ctx)
	return a
}

// stopAfter runs the agent and has it leave.
func (s *sim) stopAfter(d time.Duration) {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	s.kill = cancel
	s.run(ctx)
}

// after changes the world at that time from now, and tells the agent.
func (s *sim) after(d time.Duration, change func()) {
	time.AfterFunc(d, func() {
		s.mu.Lock()
		change()
		s.mu.Unlock()
		s.hint()
	})
}

func (s *sim) hint() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// nothingLeft says that nothing of ours is on the Node, in the lock or in the record.
func (s *sim) nothingLeft(what string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node.Tainted || s.node.Marker != "" || s.node.Unschedulable != s.human || s.lease != "" || s.record.Marked {
		s.t.Errorf("%s: node %+v, slot %q, record %+v", what, s.node, s.lease, s.record)
	}
}

// notHeld says that neither cordon nor slot is ours.
func (s *sim) notHeld(what string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node.Marker != "" || s.node.Unschedulable != s.human || s.lease != "" {
		s.t.Errorf("%s: node %+v, slot %q, record %+v", what, s.node, s.lease, s.record)
	}
}

func (s *sim) boot() string { return fmt.Sprintf("boot-%d", s.bootNo) }

func (s *sim) uptime() time.Duration { return time.Since(s.bootedAt) + time.Second }

// op runs effect, unless a fault says otherwise. remote calls fail while the API server is away.
func (s *sim) op(remote bool, effect func() error) error {
	if remote && s.latency > 0 {
		time.Sleep(s.latency)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if remote && s.away != nil && s.away(time.Since(s.began)) {
		return errors.New("connection refused")
	}
	f, faulty := s.fault[s.ops]
	s.ops++
	if faulty {
		switch f {
		case failBefore:
			return errInjected
		case crashBefore:
			panic(crash{})
		case powerBefore:
			s.powerCut()
			panic(crash{})
		default: // the others come after it
		}
	}
	err := effect()
	if faulty && err == nil {
		switch f {
		case failAfter:
			return errInjected
		case crashAfter:
			panic(crash{})
		case powerAfter:
			s.powerCut()
			panic(crash{})
		default: // the others came before it
		}
	}
	s.check()
	return err
}

func (s *sim) powerCut() {
	s.shutdown, s.dark = true, true
	s.kill()
}

// check is what must never be seen, at any moment.
func (s *sim) check() {
	if s.node.Marker != "" && s.node.Unschedulable && s.lease == "" && !s.robbed && !s.emptied {
		s.t.Errorf("cordoned by us without a slot")
	}
	if n := s.pool.cordoned(); n > s.pool.n && !s.pool.robbed() {
		s.t.Errorf("%d nodes are cordoned by us, of %d", n, s.pool.n)
	}
	if s.human && !s.node.Unschedulable {
		s.t.Errorf("the cordon of a human was taken off")
	}
}

// life runs the machine for that long: boots, its two processes, and their restarts after a crash.
func (s *sim) life(d time.Duration) {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	for ctx.Err() == nil {
		s.oneBoot(ctx)
	}
}

func (s *sim) oneBoot(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.bootNo++
	s.bootedAt, s.shutdown, s.dark, s.kill = time.Now(), false, false, cancel
	if s.forgetful {
		s.record = plan.Record{}
	}
	s.bootUnit = s.bootNo > 1 && s.record.Marked // it looks at the record before all else
	if s.bootNo > 1 && !s.persist {
		s.need = false
	}
	s.mu.Unlock()
	var processes sync.WaitGroup
	processes.Go(func() { // the kubelet
		select {
		case <-time.After(7 * time.Second):
			s.mu.Lock()
			s.node.BootID, s.node.Ready = s.boot(), true
			s.mu.Unlock()
		case <-ctx.Done():
		}
	})
	if s.bootUnit {
		processes.Go(func() {
			for !s.process(func() { _ = s.agent(true).ReturnNode(ctx) }) && ctx.Err() == nil {
				time.Sleep(30 * time.Second) // RestartSec=
			}
			s.mu.Lock()
			s.bootUnit = false
			s.mu.Unlock()
		})
	}
	processes.Go(func() {
		for ctx.Err() == nil {
			s.process(func() { s.run(ctx) })
			time.Sleep(5 * time.Second)
		}
	})
	processes.Wait()
}

// process runs one and says whether it ended by itself.
func (s *sim) process(run func()) (ended bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
		}
	}()
	run()
	return true
}

func (s *sim) run(ctx context.Context) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	s.mu.Lock()
	s.terminate = stop
	s.mu.Unlock()
	a := s.agent(false)
	a.Run(running)
	s.mu.Lock()
	dark := s.dark
	s.mu.Unlock()
	if !dark {
		a.Leave(context.WithoutCancel(ctx))
	}
}

func (s *sim) agent(bootUnit bool) *Agent {
	a := New(Options{
		Policy: plan.Policy{
			MinInterval: time.Hour, LoopGuard: 24 * time.Hour, MaxHold: 30 * time.Minute, DrainTimeout: 20 * time.Minute,
			RebootDeadline: 2 * time.Minute, Settle: 10 * time.Second, BootDeadline: 15 * time.Minute,
		},
		Drain: true, Sources: simSources{s, bootUnit}, Node: simNode{s}, Slots: simSlots{s}, Drainer: simDrain{s},
		Gates: simHost{s}, Ready: simHost{s}, Logind: simLogind{s}, Units: simUnits{s, bootUnit}, Host: simHost{s},
		Identity: simHost{s}, Boot: s.boot(), Now: time.Now, Uptime: s.uptime, Changed: s.changed,
		Window: s.window, TaintName: "kured-agent/reboot-required:PreferNoSchedule",
		Logger: slog.New(slog.DiscardHandler),
	})
	if a.Window == nil {
		a.Window = func(time.Time) plan.Window { return plan.Window{Open: true} }
	}
	if s.tweak != nil {
		s.tweak(a, bootUnit)
	}
	return a
}

type simSources struct {
	*sim
	none bool
}

func (s simSources) Need() (plan.Level, []plan.Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.none || !s.need {
		return plan.NotRequired, nil
	}
	return plan.Required, []plan.Reason{{Source: "file", ID: "kernel"}}
}

type simNode struct{ *sim }

func (s simNode) Read(context.Context, time.Duration) (n plan.Node, err error) {
	err = s.op(true, func() error { n = s.node; return nil })
	return n, err
}

func (s simNode) Taint(context.Context, string) error {
	return s.op(true, func() error { s.node.Tainted = true; s.patches++; return nil })
}

func (s simNode) Cordon(_ context.Context, boot string) error {
	return s.op(true, func() error {
		if s.lease == "" && !s.robbed && !s.emptied {
			s.t.Error("cordoning without a slot")
		}
		if !s.node.Unschedulable || s.node.Marker != "" {
			s.node.Unschedulable, s.node.Marker = true, boot
		}
		s.cordons++
		s.patches++
		return nil
	})
}

func (s simNode) uncordon() {
	if s.node.Marker != "" {
		s.node.Unschedulable, s.node.Marker = false, ""
	}
}

func (s simNode) RollBack(context.Context) error {
	return s.op(true, func() error { s.uncordon(); return nil })
}

func (s simNode) Clean(context.Context) error {
	return s.op(true, func() error { s.uncordon(); s.node.Tainted = false; return nil })
}

func (s simNode) Return(_ context.Context, fit func(plan.Node) bool) error {
	return s.op(true, func() error {
		if !fit(s.node) {
			return errors.New("it is no longer fit to take pods")
		}
		if s.node.BootID != s.boot() || !s.node.Ready {
			s.t.Error("giving back a node whose kubelet has not reported this boot")
		}
		s.uncordon()
		s.node.Tainted, s.node.Startup = false, false
		return nil
	})
}

type simSlots struct{ *sim }

func (s simSlots) Nodes(context.Context, string) (int, error) { return 3, nil }

func (s simSlots) Acquire(_ context.Context, r Request) (c Claim, err error) {
	node, boot := r.NodeUID, r.Boot
	err = s.op(true, func() error {
		switch _, of, _ := cut(s.lease); {
		case s.lease == "" && s.pool.held() >= s.pool.n:
			c = Claim{Why: "the slot is taken"}
			return nil
		case s.lease == "" && r.Look:
			c = Claim{Free: true}
			return nil
		case s.lease == "":
			s.taken++
			s.lease, s.owner = fmt.Sprintf("lease-%d@%s", s.taken, boot), node
		case of != boot || s.owner != node:
			c = Claim{Name: "slot-default-0", Why: "this node still holds it from an earlier boot or Node object"}
			return nil
		}
		c = Claim{Taken: true, Name: "slot-default-0", UID: s.lease, Boot: boot, NodeUID: node}
		return nil
	})
	return c, err
}

func (s simSlots) Find(context.Context) (c Claim, err error) {
	err = s.op(true, func() error {
		if s.lease != "" {
			_, boot, _ := cut(s.lease)
			c = Claim{Taken: true, Name: "slot-default-0", UID: s.lease, Boot: boot, NodeUID: s.owner}
		}
		return nil
	})
	return c, err
}

func cut(lease string) (uid, boot string, ok bool) {
	for i := range lease {
		if lease[i] == '@' {
			return lease[:i], lease[i+1:], true
		}
	}
	return lease, "", false
}

func (s simSlots) Verify(_ context.Context, _, uid string) (ours bool, why string, err error) {
	err = s.op(true, func() error { ours = s.lease == uid; return nil })
	return ours, "gone", err
}

func (s simSlots) Release(_ context.Context, _, uid string) error {
	return s.op(true, func() error {
		if s.node.Marker != "" && s.node.Unschedulable && s.lease == uid {
			s.t.Error("releasing the slot while our cordon is on the Node")
		}
		if s.lease == uid {
			s.lease = ""
		}
		return nil
	})
}

type simDrain struct{ *sim }

func (s simDrain) Look(context.Context) (p plan.Pods, err error) {
	err = s.op(true, func() error { s.listings++; p = plan.Pods{Left: s.pods, Next: s.passDue}; return nil })
	return p, err
}

func (s simDrain) Pass(context.Context) error {
	return s.op(true, func() error {
		if (s.lease == "" && !s.emptied || !s.node.Unschedulable) && !s.robbed {
			s.t.Error("evicting without slot or cordon")
		}
		s.passDue = s.uptime() + 5*time.Second
		if !s.stuck {
			s.pods = 0
		}
		return nil
	})
}

func (s simDrain) Delete(ctx context.Context) error { return s.Pass(ctx) }

type simLogind struct{ *sim }

func (s simLogind) Reboot(context.Context, plan.Kind, string) error {
	return s.op(false, func() error {
		switch {
		case s.lease == "" && !s.robbed:
			s.t.Error("asking for a reboot without the slot")
		case !s.need:
			s.t.Error("asking for a reboot that nobody needs")
		case s.pods != 0:
			s.t.Error("asking for a reboot with pods left")
		case len(s.inhibit) > 0:
			s.t.Error("asking for a reboot that is inhibited")
		}
		if s.window != nil && !s.window(time.Now()).Open {
			s.t.Error("asking for a reboot outside the window")
		}
		if s.deaf > 0 {
			s.deaf--
			return nil
		}
		s.reboots++
		s.shutdown = true
		kill := s.kill
		time.AfterFunc(3*time.Second, kill)
		return nil
	})
}

func (s simLogind) PreparingForShutdown(context.Context) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noLogind {
		return false, errors.New("no such service")
	}
	return s.shutdown, nil
}

func (s simLogind) Inhibitors(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noLogind {
		return nil, errors.New("no such service")
	}
	return s.inhibit, nil
}

func (s simLogind) Kinds(context.Context) []plan.Kind         { return s.able }
func (s simLogind) Scheduled(context.Context) (string, error) { return "", nil }

func (s simLogind) Preflight(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forbidden
}

func (s simLogind) Delay(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delaying = s.delaying || !s.shutdown
	return nil
}

func (s simLogind) Delaying() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.delaying
}

func (s simLogind) LetGo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delaying = false
}

type simUnits struct {
	*sim
	isBootUnit bool
}

func (s simUnits) PreReboot(context.Context, string) (plan.Target, string, error) {
	return plan.TargetReached, "", nil
}
func (s simUnits) StartPreReboot(context.Context, string) error { return nil }
func (s simUnits) Restarting(context.Context) (bool, error)     { return !s.forGood, nil }
func (s simUnits) GoingDown(context.Context) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shutdown || s.pastLogind, nil
}
func (s simUnits) BootComplete(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.incomplete, nil
}
func (s simUnits) BootUnitWorks(context.Context) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bootUnit && !s.isBootUnit, nil
}

type simHost struct{ *sim }

func (s simHost) ReadRecord() (plan.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unreadable != nil {
		return plan.Record{}, s.unreadable
	}
	return s.record, nil
}

func (s simHost) UpdateRecord(change func(*plan.Record)) error {
	return s.op(false, func() error {
		switch {
		case s.unreadable != nil:
			return s.unreadable
		case s.diskFull:
			return errors.New("no space left on device")
		}
		change(&s.record)
		return nil
	})
}
func (s simHost) Fingerprint() string         { return s.proof }
func (s simHost) Prove(context.Context) error { return nil }
func (s simHost) Rest()                       {}
func (s simHost) Check(context.Context) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gates
}
func (s simHost) PackageManager() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.packages, nil
}
func (s simHost) Missing(context.Context) (string, error) { return "", nil }
