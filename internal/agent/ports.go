// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// The interfaces say what the loop needs, no more. Every call makes one attempt, bounded by a timeout; only the loop
// retries.

// Sources says whether a reboot is required.
type Sources interface {
	Need() (plan.Level, []plan.Reason)
}

// Node reads and patches our own Node object.
type Node interface {
	// Read may answer from an answer of the API server that is younger than maxAge. No such Node: the zero value.
	Read(ctx context.Context, maxAge time.Duration) (plan.Node, error)
	Taint(ctx context.Context, note string) error
	Cordon(ctx context.Context, boot string) error
	RollBack(ctx context.Context) error
	Clean(ctx context.Context) error // everything of ours, but start-up taints
	// Return removes everything of ours, and start-up taints, from a Node that is still fit: a conflicting write of
	// somebody else has fit asked again.
	Return(ctx context.Context, fit func(plan.Node) bool) error
}

// Claim is what came of a try to take or find a slot.
type Claim struct {
	Taken   bool
	Name    string
	UID     string
	Boot    string // the boot in which it was taken
	NodeUID string // the Node object that owns it
	Free    bool   // only looked at
	Why     string // why not
}

// Request says for which pool, Node object and boot a slot is wanted.
type Request struct {
	Pool, NodeUID, Boot string
	ControlPlane        bool
	Look                bool // take none, only say whether one is free
}

// Slots is the cluster-wide lock.
type Slots interface {
	// Acquire takes a free slot.
	Acquire(ctx context.Context, r Request) (Claim, error)
	// Nodes is about how many nodes may wait for the pool.
	Nodes(ctx context.Context, pool string) (int, error)
	// Find looks for a slot in our name, in every pool and of every boot.
	Find(ctx context.Context) (Claim, error)
	Verify(ctx context.Context, name, uid string) (ours bool, why string, err error)
	Release(ctx context.Context, name, uid string) error
}

// Drain moves the pods away.
type Drain interface {
	Look(ctx context.Context) (plan.Pods, error)
	Pass(ctx context.Context) error
	Delete(ctx context.Context) error
}

// Gates lists what stands in the way of a reboot, ready to print.
type Gates interface {
	Check(ctx context.Context) []string
}

// ReadyPods says which of the pods that must run before the node returns does not, or nothing.
type ReadyPods interface {
	Missing(ctx context.Context) (string, error)
}

// Logind asks for the reboot and tells who stands in its way.
type Logind interface {
	// Reboot asks for a reboot of this kind. why is shown to who is logged in.
	Reboot(ctx context.Context, kind plan.Kind, why string) error
	// Kinds are the kinds of reboot that this host can do now.
	Kinds(ctx context.Context) []plan.Kind
	// Preflight returns what logind would say to a reboot: nil, or the refusal. It changes nothing.
	Preflight(ctx context.Context) error
	PreparingForShutdown(ctx context.Context) (bool, error)
	Inhibitors(ctx context.Context) ([]string, error)
	// Scheduled is a shutdown that somebody scheduled, ready to print; empty: none.
	Scheduled(ctx context.Context) (string, error)

	// Delay takes the delay inhibitor for which a shutdown waits a few seconds, or does nothing when that is settled.
	Delay(ctx context.Context) error
	Delaying() bool
	LetGo()
}

// Beside finds the programs that reboot this host by themselves, ready to print.
type Beside interface {
	// Find asks systemd and reads settings: not for a tight loop.
	Find(ctx context.Context) ([]string, error)
	// Pods are those of them that the newest look at the pods has seen.
	Pods() []string
}

// Units speaks to systemd about the few units that concern us.
type Units interface {
	// PreReboot is how kured-agent-pre-reboot.target stands in this attempt, and which unit failed. An attempt is known by
	// the UID of its slot: what an earlier one started or failed does not count.
	PreReboot(ctx context.Context, attempt string) (plan.Target, string, error)
	StartPreReboot(ctx context.Context, attempt string) error
	// BootComplete says what keeps boot-complete.target from being reached, or nothing.
	BootComplete(ctx context.Context) (string, error)
	// BootUnitWorks says whether kured-agent-boot.service is queued or running.
	BootUnitWorks(ctx context.Context) (bool, error)
	// Restarting says whether the agent's own unit is being stopped only to be started again.
	Restarting(ctx context.Context) (bool, error)
	// GoingDown says whether the whole system is being shut down, by whatever way.
	GoingDown(ctx context.Context) (bool, error)
}

// Host keeps the record. The boot unit and the agent may both change it, so a change says only what it means.
type Host interface {
	ReadRecord() (plan.Record, error)
	UpdateRecord(change func(*plan.Record)) error
	// PackageManager is the package manager at work on this host, ready to print; empty: none.
	PackageManager() (string, error)
}

// Identity proves once that the credential and the Node name work.
type Identity interface {
	// Fingerprint changes with the credential and the Node name.
	Fingerprint() string
	Prove(ctx context.Context) error
	// Rest closes idle connections: an idle agent costs the API server nothing.
	Rest()
}

// Refusal is an error of Logind.Reboot after which a reboot may be under way all the same.
type Refusal interface {
	error
	MayGoDown() bool
}
