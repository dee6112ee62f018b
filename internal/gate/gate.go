// SPDX-License-Identifier: Apache-2.0

// Package gate asks whether something stands in the way of a reboot now: firing alerts in Prometheus, or pods on this
// node that must not be disturbed. It fails closed: no answer blocks, and says so.
package gate

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/text"
)

const maxText = 400 // of one blocker

// Prometheus is one instant query; any result of it blocks.
type Prometheus struct {
	URL       string // of the server, may have a path prefix
	Query     string
	CAFile    string // PEM; empty: the system's
	TokenFile string // bearer token, read again for every query; empty: none
}

// Options list the gates.
type Options struct {
	Prometheus []Prometheus
	Pods       []string // label selectors; a running pod of these on the node blocks
	Node       string
	Core       rest.Interface // only for Pods
}

// Set is all gates of this node.
type Set struct{ o Options }

// New returns the gates. It sends nothing.
func New(o Options) *Set { return &Set{o} }

// Check asks all gates at once and returns what blocks, ready to print, in the order of the options. None: all open.
func (s *Set) Check(ctx context.Context) []string {
	answers := make([]string, len(s.o.Prometheus)+len(s.o.Pods))
	var group sync.WaitGroup
	for i, p := range s.o.Prometheus {
		group.Go(func() { answers[i] = p.check(ctx) })
	}
	for i, selector := range s.o.Pods {
		group.Go(func() { answers[len(s.o.Prometheus)+i] = s.pods(ctx, selector) })
	}
	group.Wait()
	var blockers []string
	for _, blocker := range answers {
		if blocker != "" {
			blockers = append(blockers, blocker)
		}
	}
	return blockers
}

// pods says which pod of the selector runs on this node. A pod that has ended never blocks: finished CronJob pods once
// held back whole clusters (kubereboot/kured#227). A pending one does.
func (s *Set) pods(ctx context.Context, selector string) string {
	const shown = 3
	pods, err := listPods(ctx, s.o.Core, s.o.Node, selector)
	if err != nil {
		return text.Line(fmt.Sprintf("pods %q: no answer: %v", selector, err), maxText)
	}
	if len(pods) == 0 {
		return ""
	}
	var names []string
	for _, p := range pods {
		names = append(names, p.String())
	}
	return text.Line(fmt.Sprintf("pods %q: %s", selector, first(names, shown)), maxText)
}

func first(names []string, n int) string {
	if more := len(names) - n; more > 0 {
		names = append(names[:n:n], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
