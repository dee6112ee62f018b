// SPDX-License-Identifier: Apache-2.0

// Package config reads the agent's TOML files into a validated Config, and reports every problem at once with file,
// line and key. config.example.toml describes the keys to an admin.
//
// Reading has three steps: the text of each file becomes plain TOML values with their lines; each top-level table is
// read over its defaults, so that a drop-in replaces whole tables; what concerns two tables is checked at the end.
package config

import (
	"time"

	"github.com/kured-agent/kured-agent/internal/window"
)

// Config is the validated configuration. Strings that name a choice are one of the constants of this package.
type Config struct {
	Node     Node
	Cluster  Cluster
	Sources  []Source // empty: the default set
	Taint    Taint
	Windows  []window.Window // empty: any time
	Slot     Slot
	Drain    Drain
	Gate     Gate
	Reboot   Reboot
	Boot     Boot
	Shutdown Shutdown
	Metrics  Metrics
	Notify   Notify
}

// Node is the Node object of this host.
type Node struct {
	Name string // empty: found from the kubelet's configuration
}

// Cluster is how to reach the API server.
type Cluster struct {
	Kubeconfig string // absolute path
}

// Source is where a required reboot is learned from. Options are the keys of its stanza without type, with the values
// that TOML gives them (string, int64, float64, bool, []any, map[string]any).
type Source struct {
	Type    string
	Options map[string]any
}

// When the taint is put on.
const (
	WhenRequired = "required" // as soon as a reboot is required
	WhenWindow   = "window"   // only while a window is open
)

// Taint is the mark on a Node that waits for its reboot. Its value is always empty.
type Taint struct {
	Key    string
	Effect string // PreferNoSchedule or NoSchedule
	When   string // WhenRequired or WhenWindow
}

// Slot is the claim in the cluster-wide lock.
type Slot struct {
	Pool        string // empty: control-plane or default, by the Node's role
	Nodes       string // label selector of the nodes of Pool; empty: not told
	MaxNotReady *int   // of the other nodes of the pool; nil: any number
	MaxHold     time.Duration
}

// What the drain does with a pod that has no controller, and what comes after its timeout.
const (
	UnmanagedBlock = "block"
	UnmanagedEvict = "evict"

	AfterRollBack = "roll-back"
	AfterReboot   = "reboot"
	AfterDelete   = "delete"
)

// Whose credential the API server sees where pods are listed and evicted.
const (
	IdentityAgent   = "agent"
	IdentityKubelet = "kubelet"
)

// Drain is how the pods leave.
type Drain struct {
	Enabled       bool
	Identity      string // IdentityAgent or IdentityKubelet
	Timeout       time.Duration
	GracePeriod   time.Duration // whole seconds; negative: each pod's own
	Skip          string        // label selector; empty: none is left alone
	UnmanagedPods string        // UnmanagedBlock or UnmanagedEvict
	AfterTimeout  string        // AfterRollBack, AfterReboot or AfterDelete
}

// Gate is what stands in the way of a reboot.
type Gate struct {
	Prometheus []Prometheus
	Pods       []string // label selectors
}

// FiringAlerts is the query of a gate that names none. A pending alert may stay pending for ever (kubereboot/kured#393),
// and alerts that always fire, such as Watchdog, are marked with this severity by those who write them.
const FiringAlerts = `ALERTS{alertstate="firing",severity!="none"}`

// Prometheus is a query whose every result blocks.
type Prometheus struct {
	URL       string // http or https
	Query     string // FiringAlerts unless given
	CAFile    string // absolute path; empty: the host's certificates
	TokenFile string // absolute path; empty: no token
}

// The least kind of reboot.
const (
	MethodFull  = "full"  // through the firmware
	MethodKexec = "kexec" // a new kernel that is loaded already
	MethodSoft  = "soft"  // the userspace only
	MethodAuto  = "auto"  // what the reasons need
)

// Reboot is how and how often this host reboots.
type Reboot struct {
	Method       string // MethodFull, MethodKexec, MethodSoft or MethodAuto
	MinInterval  time.Duration
	LoopGuard    time.Duration
	RefuseBeside bool // wait while another program would reboot this host
}

// Boot is when a Node may take pods again.
type Boot struct {
	Settle       time.Duration
	Deadline     time.Duration
	ReadyPods    []string // label selectors
	RemoveTaints []string // taint keys, or key:Effect
}

// Shutdown is what is done while the host goes down, whoever asked for it.
type Shutdown struct {
	Drain time.Duration // longest time for the drain; zero: none
}

// Metrics is where figures are given out.
type Metrics struct {
	Listen   string // host:port or unix:/path; empty: nowhere
	Textfile string // absolute path of a directory; empty: nowhere
}

// Notify is who is told.
type Notify struct {
	URLs []string // http or https
}

// Default returns what an empty file means.
func Default() *Config {
	return &Config{
		Cluster: Cluster{Kubeconfig: "/etc/kured/kubeconfig"},
		Taint: Taint{
			Key:    "kured-agent/reboot-required",
			Effect: "PreferNoSchedule",
			When:   WhenRequired,
		},
		Slot: Slot{MaxHold: 30 * time.Minute},
		Drain: Drain{
			Enabled:       true,
			Identity:      IdentityAgent,
			Timeout:       20 * time.Minute,
			GracePeriod:   -1,
			UnmanagedPods: UnmanagedBlock,
			AfterTimeout:  AfterRollBack,
		},
		Reboot: Reboot{
			Method:       MethodFull,
			MinInterval:  time.Hour,
			LoopGuard:    24 * time.Hour,
			RefuseBeside: true,
		},
		Boot: Boot{
			Settle:   10 * time.Second,
			Deadline: 15 * time.Minute,
		},
	}
}
