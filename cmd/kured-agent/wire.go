// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/kured-agent/kured-agent/internal/agent"
	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/config"
	"github.com/kured-agent/kured-agent/internal/drain"
	"github.com/kured-agent/kured-agent/internal/gate"
	"github.com/kured-agent/kured-agent/internal/host"
	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/logind"
	"github.com/kured-agent/kured-agent/internal/node"
	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/report"
	"github.com/kured-agent/kured-agent/internal/signal"
	"github.com/kured-agent/kured-agent/internal/slot"
	"github.com/kured-agent/kured-agent/internal/units"
	"github.com/kured-agent/kured-agent/internal/window"
)

// rebootDeadline is how long an accepted reboot may take to become a visible shutdown. logind says so at once.
const rebootDeadline = 2 * time.Minute

// errNodeName is a configuration error that only the host can tell.
var errNodeName = errors.New("finding the name of this node (set node.name)")

// parts is everything one process is made of, wired by hand.
type parts struct {
	config   *config.Config
	host     host.Host
	boot     boot
	uptime   func() time.Duration
	name     string // of the Node
	bus      *bus.Bus
	kube     *kube.Client
	pods     *kube.Client // lists and evicts pods: the kubelet's own, or kube
	renewal  *renewal
	node     *node.Client
	sources  *signal.Set // nil in processes that decide nothing about the need
	reporter *report.Reporter
	agent    *agent.Agent
	wake     chan struct{}
	metrics  bool
}

func (o *options) host() host.Host { return host.Host{Root: o.root, State: o.state, Run: o.run} }

func (o *options) load() (*config.Config, error) {
	return config.Load(o.config, config.Options{SourceTypes: signal.Types, CheckSource: checkSource})
}

func checkSource(typ string, opts map[string]any) []config.SourceProblem {
	var all []config.SourceProblem
	for _, p := range signal.Check(typ, opts) {
		all = append(all, config.SourceProblem{Key: p.Key, Message: p.Message})
	}
	return all
}

// wiring says how the processes differ.
type wiring struct {
	sources  bool // run the sources: without them nothing is required
	bootUnit bool // this is kured-agent-boot.service
	dry      bool // write nothing
	podless  bool // go on where pods can't be looked at
}

// wire builds the parts for this boot. It opens no connection.
func (o *options) wire(cfg *config.Config, w wiring, now boot, logger *slog.Logger) (*parts, error) {
	p := &parts{config: cfg, host: o.host(), boot: now, wake: make(chan struct{}, 1)}
	p.uptime = func() time.Duration { return host.Uptime() - o.booted }
	var err error
	p.kube, err = kube.Connect(kube.Options{
		Kubeconfig: cfg.Cluster.Kubeconfig, State: filepath.Join(o.root, o.state), RenewAfter: o.renewAfter,
		UserAgent: productName + "/" + version, Logger: logger, PodsElsewhere: cfg.Drain.Identity == config.IdentityKubelet,
	})
	if err != nil {
		return nil, err
	}
	if p.name, err = kube.FindNodeName(o.root, cfg.Node.Name, p.kube.BoundNode()); err != nil {
		return nil, fmt.Errorf("%w: %w", errNodeName, err)
	}
	if err := p.wirePods(o, w, logger); err != nil {
		return nil, err
	}
	p.renewal = &renewal{client: p.kube, changed: p.look, log: logger}
	p.bus = bus.New(bus.Options{Logger: logger})
	if w.sources {
		if err := p.wireSources(o, logger); err != nil {
			return nil, err
		}
	}
	p.wireAgent(o, w, logger)
	p.bus.OnChange(p.look)
	return p, nil
}

// wirePods finds the credential that handles the pods.
func (p *parts) wirePods(o *options, w wiring, logger *slog.Logger) error {
	p.pods = p.kube
	if p.config.Drain.Identity != config.IdentityKubelet {
		return nil
	}
	client, err := o.kubelet(p.name, logger)
	switch {
	case err == nil:
		p.pods = client
	case w.podless:
		logger.Warn("going on without the kubelet's credential, which is not needed here", "err", err)
		return nil
	}
	return err
}

func (o *options) kubelet(node string, logger *slog.Logger) (*kube.Client, error) {
	path, copied, err := kube.FindKubelet(o.root, os.Getenv("CREDENTIALS_DIRECTORY"), node)
	if err != nil {
		return nil, err
	}
	return kube.Connect(kube.Options{
		Kubeconfig: path, Kubelet: true, Copied: copied, UserAgent: productName + "/" + version, Logger: logger,
	})
}

func (p *parts) wireSources(o *options, logger *slog.Logger) error {
	specs := signal.Defaults()
	if len(p.config.Sources) > 0 {
		specs = nil
		for _, s := range p.config.Sources {
			specs = append(specs, signal.Spec{Type: s.Type, Options: s.Options})
		}
	}
	sources, err := signal.Build(specs,
		signal.Env{
			Bus: p.bus, Root: o.root, Runtime: filepath.Join(o.root, o.run), Logger: logger, Started: p.boot.started,
		})
	if err != nil {
		return err
	}
	// What was required in another boot says nothing about this one. A record that can't be read seeds nothing; the loop
	// tells about it.
	var seed []plan.Reason
	if record, err := p.host.ReadRecord(); err == nil && record.Boot == p.boot.id {
		seed = record.Reasons
	}
	p.sources = signal.NewSet(sources, seed, sourceSettle, logger)
	return nil
}

// sourceSettle is how long a need must have been gone: some updaters remove their file and write it again in one run.
const sourceSettle = 5 * time.Second

func (p *parts) wireAgent(o *options, w wiring, logger *slog.Logger) {
	cfg := p.config
	record, _ := p.host.ReadRecord() // one that can't be read names no former taint
	p.node = node.New(p.kube.Core(), node.Options{
		Name: p.name, TaintKey: cfg.Taint.Key, TaintEffect: cfg.Taint.Effect, StartupTaints: cfg.Boot.RemoveTaints,
		FormerTaint: record.Taint,
	})
	login, systemd := logind.New(p.bus), units.New(p.bus)
	login.Root, login.Logger = o.root, logger
	managers := &managers{root: o.root, units: systemd}
	drainer := drain.New(p.pods.Core(), drain.Options{
		Node: p.name, Skip: cfg.Drain.Skip, GracePeriod: cfg.Drain.GracePeriod, UnmanagedPods: cfg.Drain.UnmanagedPods,
		GoOn:   cfg.Drain.AfterTimeout != config.AfterRollBack,
		Uptime: p.uptime, Stays: managers.saw,
	})
	p.reporter = report.New(p.name, version)
	login.Watch(p.look)
	systemd.Watch(bootUnit, p.look)
	systemd.Watch(preRebootTarget, p.look)
	p.agent = agent.New(agent.Options{
		Policy: policy(cfg), Pool: cfg.Slot.Pool, TaintName: cfg.Taint.Key + ":" + cfg.Taint.Effect, Drain: cfg.Drain.Enabled,
		Sources: need{p.sources}, Node: p.node, Slots: slots{slot.New(p.kube.Core(), p.kube.Coordination(),
			slot.Options{
				Namespace: kube.DefaultNamespace, Node: p.name, Nodes: cfg.Slot.Nodes, MaxNotReady: cfg.Slot.MaxNotReady,
			})},
		Drainer: drainer, Gates: gate.New(gateOptions(p)), Ready: gate.NewReady(p.pods.Core(), p.name, cfg.Boot.ReadyPods),
		Logind: loginManager{login}, Units: systemManager{systemd, w.bootUnit, new(string)},
		Host: recorder{p.host, w.dry, logger}, Identity: &identity{p: p},
		Beside: managers, Farewell: w.sources && !w.dry,
		Boot: p.boot.id, Started: p.boot.started, Now: time.Now, Uptime: p.uptime, Logger: logger,
		Window:  func(t time.Time) plan.Window { return window.At(cfg.Windows, t) },
		Changed: p.wake, Report: (&news{p: p}).report,
	})
}

func gateOptions(p *parts) gate.Options {
	o := gate.Options{Pods: p.config.Gate.Pods, Node: p.name, Core: p.pods.Core()}
	for _, g := range p.config.Gate.Prometheus {
		o.Prometheus = append(o.Prometheus,
			gate.Prometheus{URL: g.URL, Query: g.Query, CAFile: g.CAFile, TokenFile: g.TokenFile})
	}
	return o
}

func policy(c *config.Config) plan.Policy {
	after := map[string]plan.AfterTimeout{
		config.AfterRollBack: plan.TimeoutRollsBack, config.AfterReboot: plan.TimeoutReboots,
		config.AfterDelete: plan.TimeoutDeletes,
	}
	methods := map[string]plan.Kind{
		config.MethodFull: plan.KindFull, config.MethodKexec: plan.KindKexec, config.MethodSoft: plan.KindSoft,
		config.MethodAuto: 0,
	}
	return plan.Policy{
		Method: methods[c.Reboot.Method], RefuseBeside: c.Reboot.RefuseBeside,
		TaintInWindow: c.Taint.When == config.WhenWindow, StartupTaints: len(c.Boot.RemoveTaints) > 0,
		AfterTimeout: after[c.Drain.AfterTimeout], MinInterval: c.Reboot.MinInterval, LoopGuard: c.Reboot.LoopGuard,
		MaxHold: c.Slot.MaxHold, DrainTimeout: c.Drain.Timeout, RebootDeadline: rebootDeadline,
		Settle: c.Boot.Settle, BootDeadline: c.Boot.Deadline,
	}
}

// look has the loop look again.
func (p *parts) look() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// start connects to the bus and runs the sources until ctx ends. It waits until both have said something, but not long.
func (p *parts) start(ctx context.Context, logger *slog.Logger) {
	go func() { _ = p.bus.Run(ctx) }()
	if !p.bus.Await(ctx, 5*time.Second) && ctx.Err() == nil {
		logger.Warn("the system bus does not answer; going on without it")
	}
	if p.sources == nil {
		return
	}
	go func() { _ = p.sources.Run(ctx) }()
	go func() {
		for {
			select {
			case <-p.sources.Changed():
				p.look()
			case <-ctx.Done():
				return
			}
		}
	}()
	p.sources.WaitFirst(ctx)
}

// identity proves the credential.
type identity struct{ p *parts }

func (i *identity) Fingerprint() string {
	fingerprint := i.p.kube.Fingerprint(i.p.name)
	if i.p.pods != i.p.kube {
		fingerprint += "+" + i.p.pods.Fingerprint(i.p.name)
	}
	return fingerprint
}

func (i *identity) Rest() {
	i.p.kube.CloseIdle()
	i.p.pods.CloseIdle()
}

func (i *identity) Prove(ctx context.Context) error {
	id, err := i.p.host.MachineID()
	if err != nil {
		return err
	}
	if err := i.p.kube.Prove(ctx, i.p.name, id); err != nil || i.p.pods == i.p.kube {
		return err
	}
	return i.p.pods.ProveKubelet(ctx, i.p.name)
}
