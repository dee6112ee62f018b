// SPDX-License-Identifier: Apache-2.0

package plan

import "time"

// Level says whether a reboot is required. The zero value is NotRequired.
type Level int

// What the sources say together.
const (
	NotRequired Level = iota
	Required
	// Unknown means that a source which asked for the reboot can't be read now. It never starts and never cancels
	// anything: kured took every failed check for an answer (kubereboot/kured#53, #894, #976).
	Unknown
)

var levelNames = [...]string{"not-required", "required", "unknown"}

func (l Level) String() string { return name(levelNames[:], int(l)) }

// Kind is the least kind of reboot that satisfies a reason, in rising order. The zero value is none.
type Kind int

// Kinds of reboots.
const (
	KindSoft  Kind = iota + 1 // userspace only: systemctl soft-reboot
	KindKexec                 // a new kernel without the firmware
	KindFull                  // through the firmware
)

var kindNames = [...]string{"", "soft", "kexec", "full"}

func (k Kind) String() string { return name(kindNames[:], int(k)) }

// Reason is one cause of a required reboot. ID identifies the cause over time and over reboots (a package name, a
// checksum, a version): the loop guard compares IDs. Text is for people. Both come from the outside: sources bound them
// to MaxReasonID and MaxReasonText bytes and strip control characters.
type Reason struct {
	Source string `json:"source"` // name of the source, e.g. "file:/run/reboot-required"
	ID     string `json:"id"`
	Text   string `json:"text,omitempty"`
	Kind   Kind   `json:"kind"`
}

// Bounds on what a source may say.
const (
	MaxReasonID   = 128
	MaxReasonText = 512
	MaxReasons    = 32
)

// API says whether the API server was asked for this observation and answered.
type API int

// What became of asking the API server.
const (
	APIUnneeded API = iota // nothing to ask: no reboot required, nothing of ours outstanding
	APIAway                // asked and not answered, or refused
	APIRead                // Node and Slot below are its answer
)

// Node is what the agent needs to know of its own Node object. The zero value is a Node that does not exist.
type Node struct {
	UID           string // empty: the Node object does not exist
	Unschedulable bool   // spec.unschedulable
	Marker        string // annotation kured-agent/cordoned: the boot in which we cordoned, or empty
	Tainted       bool   // our key and our effect is there
	Stray         bool   // a taint of ours is there that an earlier configuration put on
	Startup       bool   // one of the start-up taints from [boot] remove_taints is there
	Hold          string // annotation kured-agent/hold: a human holds this node back, with a reason
	Leaving       string // an autoscaler is about to delete this node: which mark says so
	ControlPlane  bool

	BootID             string // status.nodeInfo.bootID: the boot the kubelet reports for
	Ready              bool
	NetworkUnavailable bool
	Heartbeat          time.Time // when the kubelet last said whether it is Ready
}

// SlotState says how the slot stands.
type SlotState int

// How the slot may stand.
const (
	SlotNone SlotState = iota
	SlotOurs
	SlotLost // we took it in this boot, and it is gone or another's
)

// Slot is our claim in the cluster-wide lock.
type Slot struct {
	State SlotState
	Name  string        // "slot-<pool>-<i>"
	UID   string        // of the Lease: the fencing token
	Boot  string        // the boot in which it was taken
	Taken time.Duration // uptime at which it was taken; only of this boot
}

// Turn is what the last look at the lock told a waiting agent.
type Turn struct {
	Next time.Duration // uptime from which the agent may try to take a slot (again)
	Why  string        // who holds the slots, or why the pool is paused; empty before the first try
}

// Pods is what the drain still has to do.
type Pods struct {
	Known bool          // the pods were looked at, or need not be; the zero value drains nothing and reboots nothing
	Left  int           // pods that must go before the reboot
	Next  time.Duration // uptime from which another eviction pass is due; zero: now
	Why   string        // what is waited for, e.g. "PodDisruptionBudget default/web allows no disruption"
	// Fatal is set when no further pass can help: an unmanaged pod under unmanaged_pods = "block", a refused right.
	Fatal bool
}

// Target is the state of kured-agent-pre-reboot.target.
type Target int

// How the target may stand.
const (
	TargetReached Target = iota // also when the unit is not installed
	TargetInactive
	TargetStarting
	TargetFailed
)

// Asked is a reboot asked of logind in this boot.
type Asked struct {
	At      time.Duration `json:"at"` // uptime
	Reasons []Reason      `json:"reasons,omitempty"`
	Kind    Kind          `json:"kind,omitempty"` // zero: of a version that knew full reboots only
}

// Moment is when something was noted. In the same boot the uptime counts, since a host without a battery-backed clock
// learns the time of day only after its start; over boots the wall clock does.
type Moment struct {
	At   time.Time     `json:"at"` // wall clock
	Boot string        `json:"boot,omitempty"`
	Up   time.Duration `json:"up,omitempty"` // uptime
}

// LastReboot is the newest reboot we asked for that a new boot id has proven.
type LastReboot struct {
	Moment           // of the return
	Reasons []Reason `json:"reasons,omitempty"`
}

// Failure is the newest attempt that was given up.
type Failure struct {
	Moment
	Count int    `json:"count"`
	Why   string `json:"why"`
}

// SlotRef is the slot as the record keeps it.
type SlotRef struct {
	Name  string        `json:"name"`
	UID   string        `json:"uid"`
	Taken time.Duration `json:"taken"` // uptime
}

// Record is the small fsynced file in the state directory. It is a hint about what may be outstanding, never the truth:
// the truth is the Node, the Lease and the boot id.
type Record struct {
	Boot    string      `json:"boot,omitempty"`    // the boot that Slot and Asked belong to
	NodeUID string      `json:"nodeUID,omitempty"` // the Node object that may carry marks of ours
	Marked  bool        `json:"marked,omitempty"`  // a taint, cordon or slot of ours may exist
	Taint   string      `json:"taint,omitempty"`   // key:effect that the taint was put on with
	Slot    *SlotRef    `json:"slot,omitempty"`
	Asked   *Asked      `json:"asked,omitempty"`
	Last    *LastReboot `json:"last,omitempty"`
	Failure *Failure    `json:"failure,omitempty"`
	Startup string      `json:"startup,omitempty"` // boot in which the start-up taints were looked after
	Reasons []Reason    `json:"reasons,omitempty"` // active now: seeds the sources after a restart
	Proof   string      `json:"proof,omitempty"`   // fingerprint of the credential and Node name that were proven
	Nodes   int         `json:"nodes,omitempty"`   // about how many may wait for the pool
}

// Window is where Now stands in the maintenance windows.
type Window struct {
	Open   bool
	Opens  time.Time // when the next one opens; zero while open, or if none ever does
	Closes time.Time // when the open one closes; zero if it never does
}

// Health is whether this boot is fit to take pods again.
type Health struct {
	OK    bool
	Why   string        // what is missing
	Since time.Duration // uptime since which it has been OK
}

// Observed is everything a decision rests on, read at one moment. It holds no pointers into anything that changes.
type Observed struct {
	Now    time.Time     // wall clock, for windows and for what must survive a reboot
	Uptime time.Duration // CLOCK_BOOTTIME, for every wait inside one boot
	Boot   string        // of the running system: the kernel's boot id, and after soft reboots their number: "id.2"
	Began  time.Duration // uptime at which this boot's userspace began; zero unless a soft reboot did that

	Need    Level
	Reasons []Reason

	Shutdown        bool          // logind is shutting the machine down
	ShutdownUnknown bool          // logind can't be asked
	Delaying        bool          // a shutdown waits for our delay inhibitor, or would
	Scheduled       string        // a shutdown that somebody scheduled, ready to print
	Beside          []string      // programs that reboot this host by themselves, ready to print
	AskedHere       bool          // this very process asked logind, and was not refused
	Inhibitors      []string      // who blocks a shutdown, ready to print
	Gates           []string      // blockers that stand in the way, ready to print
	GatesSince      time.Duration // uptime since which there has been one
	Window          Window
	PreReboot       Target
	PreWhy          string // which unit failed
	Health          Health

	API    API
	APIWhy string // why it is away
	Node   Node
	Slot   Slot
	Turn   Turn
	Pods   Pods // only while the slot is ours and the node is cordoned

	Record Record

	Stopping      bool // the agent was told to stop for good, or clean up: undo everything
	BootUnitWorks bool // kured-agent-boot.service is queued or running: the return is its job
}
