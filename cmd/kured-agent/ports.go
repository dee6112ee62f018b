// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/kured-agent/kured-agent/internal/agent"
	"github.com/kured-agent/kured-agent/internal/beside"
	"github.com/kured-agent/kured-agent/internal/drain"
	"github.com/kured-agent/kured-agent/internal/host"
	"github.com/kured-agent/kured-agent/internal/logind"
	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/signal"
	"github.com/kured-agent/kured-agent/internal/slot"
	"github.com/kured-agent/kured-agent/internal/units"
)

// This file fits the adapters, which know nothing of the loop, to the ports of the loop, which knows nothing of them.

const (
	agentUnit       = "kured-agent.service"
	bootUnit        = "kured-agent-boot.service"
	preRebootTarget = "kured-agent-pre-reboot.target"
	bootComplete    = "boot-complete.target"
	shutdownTarget  = "shutdown.target"
)

type need struct{ set *signal.Set }

func (n need) Need() (plan.Level, []plan.Reason) {
	if n.set == nil {
		return plan.NotRequired, nil
	}
	level, reasons, _ := n.set.Snapshot()
	return level, reasons
}

type slots struct{ *slot.Client }

func (s slots) Acquire(ctx context.Context, r agent.Request) (agent.Claim, error) {
	return claim(s.Client.Acquire(ctx, slot.Request(r)))
}

func (s slots) Find(ctx context.Context) (agent.Claim, error) {
	return claim(s.Client.Find(ctx, ""))
}

func claim(r slot.Result, err error) (agent.Claim, error) {
	return agent.Claim{
		Taken: r.Taken, Name: r.Name, UID: r.UID, Boot: r.Boot, NodeUID: r.NodeUID, Free: r.Free, Why: r.Why,
	}, err
}

// recorder keeps the record, and a broken one aside.
type recorder struct {
	host.Host
	dry bool // a dry run writes nothing
	log *slog.Logger
}

func (r recorder) ReadRecord() (plan.Record, error) {
	record, err := r.Host.ReadRecord()
	if !errors.Is(err, host.ErrBroken) || r.dry {
		return record, err
	}
	r.log.Error("setting the record aside; Node and slot are looked at instead", "err", err)
	return r.SetAside()
}

func (r recorder) UpdateRecord(change func(*plan.Record)) error {
	if r.dry {
		return nil
	}
	return r.Host.UpdateRecord(change)
}

type loginManager struct{ *logind.Client }

func (l loginManager) Reboot(ctx context.Context, kind plan.Kind, why string) error {
	return refused(l.RebootWithReason(ctx, kind, "kured-agent: "+why))
}

func (l loginManager) Preflight(ctx context.Context) error { return refused(l.Client.Preflight(ctx)) }

func refused(err error) error {
	if refused, ok := errors.AsType[*logind.RefusedError](err); ok {
		return refusal{refused}
	}
	return err
}

func (l loginManager) Scheduled(ctx context.Context) (string, error) {
	what, at, err := l.ScheduledShutdown(ctx)
	if err != nil || what == "" || at.IsZero() {
		return what, err
	}
	return what + " at " + at.Format("Mon 2006-01-02 15:04:05 -0700"), nil
}

func (l loginManager) Delay(ctx context.Context) error { return l.Client.Delay.Take(ctx) }
func (l loginManager) Delaying() bool                  { return l.Client.Delay.Held() }
func (l loginManager) LetGo()                          { l.Client.Delay.Release() }

// managers are the other programs that reboot this host.
type managers struct {
	root  string
	units *units.Client

	mu   sync.Mutex
	pods []string
}

func (m *managers) Find(ctx context.Context) ([]string, error) {
	found, err := beside.Find(ctx, m.root, m.units)
	var all []string
	for _, manager := range found {
		all = append(all, manager.String())
	}
	return all, err
}

func (m *managers) Pods() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pods)
}

// saw looks through the pods that DaemonSets keep on this node.
func (m *managers) saw(neighbours []drain.Neighbour) {
	var found []string
	for _, n := range neighbours {
		if manager, ok := beside.FromPod(beside.Pod(n)); ok {
			found = append(found, manager.String())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods = found
}

// refusal tells the loop after which errors the machine may go down all the same.
type refusal struct{ *logind.RefusedError }

func (r refusal) MayGoDown() bool {
	return r.Class == logind.InProgress || r.Class == logind.Ambiguous
}

type systemManager struct {
	*units.Client
	isBootUnit bool
	started    *string // the attempt for which the pre-reboot target was started
}

// PreReboot says how the hooks of this attempt stand. The target itself stays active once reached, and a failed hook
// stays failed, so neither says anything about an attempt that has not started them.
func (s systemManager) PreReboot(ctx context.Context, attempt string) (plan.Target, string, error) {
	hooks, err := s.Hooks(ctx, preRebootTarget)
	switch {
	case err != nil:
		return plan.TargetStarting, "", err
	case len(hooks) == 0:
		return plan.TargetReached, "", nil
	case *s.started != attempt:
		return plan.TargetInactive, "", nil
	}
	for _, unit := range append(hooks, preRebootTarget) {
		state, _, err := s.Active(ctx, unit)
		if err != nil {
			return plan.TargetStarting, "", err
		}
		job, err := s.JobType(ctx, unit)
		if err != nil || job != "" || state == "activating" {
			return plan.TargetStarting, "", err
		}
	}
	failed, err := s.Failed(ctx, preRebootTarget)
	if err != nil {
		return plan.TargetStarting, "", err
	}
	if len(failed) > 0 {
		return plan.TargetFailed, strings.Join(failed, ", "), nil
	}
	return plan.TargetReached, "", nil
}

func (s systemManager) StartPreReboot(ctx context.Context, attempt string) error {
	if err := s.Start(ctx, preRebootTarget); err != nil {
		return err
	}
	*s.started = attempt
	return nil
}

// BootComplete asks for failed units first: boot-complete.target is only reached where something pulls it in, which our
// boot unit does, and a host on which nothing failed is as complete as systemd can say.
func (s systemManager) BootComplete(ctx context.Context) (string, error) {
	state, _, err := s.Active(ctx, bootComplete)
	if err != nil || state == "active" || state == "not-found" {
		return "", err
	}
	failed, err := s.Failed(ctx, bootComplete)
	if err != nil {
		return "", err
	}
	if len(failed) > 0 {
		return "boot-complete.target is not reached: failed are " + strings.Join(failed, ", "), nil
	}
	job, err := s.JobType(ctx, bootComplete)
	if err != nil {
		return "", err
	}
	if job != "" {
		return "boot-complete.target is not reached yet", nil
	}
	return "", nil
}

func (s systemManager) BootUnitWorks(ctx context.Context) (bool, error) {
	if s.isBootUnit {
		return false, nil
	}
	state, sub, err := s.Active(ctx, bootUnit)
	if err != nil {
		return false, err
	}
	if state == "activating" && sub != "auto-restart" { // between two tries of it the agent may do the work
		return true, nil
	}
	job, err := s.JobType(ctx, bootUnit)
	return job == "start", err
}

func (s systemManager) Restarting(ctx context.Context) (bool, error) {
	job, err := s.JobType(ctx, agentUnit)
	return strings.Contains(job, "restart"), err
}

// GoingDown asks for the job of shutdown.target, which every way down has from its first moment to the last unit's stop:
// reboot, power-off, kexec and soft reboot, through logind or past it, also in the middle of a boot.
func (s systemManager) GoingDown(ctx context.Context) (bool, error) {
	job, err := s.JobType(ctx, shutdownTarget)
	return job == "start", err
}
