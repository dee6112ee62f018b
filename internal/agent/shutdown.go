// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	// awayBound is how long a shutdown waits for an API server that does not answer: it may be going down too.
	awayBound = 10 * time.Second
	// awayPause is the time between two tries.
	awayPause = time.Second
)

// Shutdown empties this node while the whole system goes down, whoever asked for that: a cordon with our marker, which
// the boot unit takes off, then evictions until no pod is left or bound is over. An API server that does not answer is
// given 10 s of it. The error says what was left undone; the shutdown goes on either way.
//
// No slot is taken. A slot is the permission to decide on a reboot, and this one was decided on by somebody else: the
// node goes down now, with a slot or without.
func (a *Agent) Shutdown(ctx context.Context, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var node plan.Node
	err := insist(ctx, func(ctx context.Context) (err error) {
		node, err = a.ownNode(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if node.UID == "" {
		return errors.New("the Node object does not exist")
	}
	if err := a.stepAside(ctx, node); err != nil {
		return err
	}
	return a.empty(ctx)
}

// ownNode reads the Node, and proves before that it is this machine's unless an agent has done so.
func (a *Agent) ownNode(ctx context.Context) (plan.Node, error) {
	record, err := a.Host.ReadRecord()
	if err != nil {
		return plan.Node{}, err
	}
	if a.Identity.Fingerprint() != record.Proof {
		if err := a.Identity.Prove(ctx); err != nil {
			return plan.Node{}, fmt.Errorf("proving this node's identity: %w", err)
		}
	}
	return a.Node.Read(ctx, 0)
}

// stepAside cordons a Node that is not out of scheduling yet: by us in this boot, before a reboot of ours, or by a human.
// The record is on the disk first, or the next boot would not know that there is something to undo.
func (a *Agent) stepAside(ctx context.Context, n plan.Node) error {
	if n.Unschedulable && (n.Marker == "" || n.Marker == a.Boot) {
		a.Logger.Info("the node is cordoned already", "by_us", n.Marker != "")
		return nil
	}
	err := a.Host.UpdateRecord(func(r *plan.Record) {
		if r.NodeUID != n.UID { // what is outstanding on another Node object went with it
			r.Slot, r.Asked = nil, nil
		}
		r.Boot, r.NodeUID, r.Marked = a.Boot, n.UID, true
	})
	if err != nil {
		return err
	}
	if err := insist(ctx, func(ctx context.Context) error { return a.Node.Cordon(ctx, a.Boot) }); err != nil {
		return err
	}
	a.Logger.Info("cordoned")
	return nil
}

// empty evicts until no pod is left. What an eviction met shows in the next look, so only looks must succeed.
func (a *Agent) empty(ctx context.Context) error {
	var pods plan.Pods
	for left, looks := -1, 0; ; looks++ {
		err := insist(ctx, func(ctx context.Context) (err error) {
			pods, err = a.Drainer.Look(ctx)
			return err
		})
		switch {
		case err != nil:
			return err
		case pods.Left == 0:
			a.Logger.Info("no pod is left to evict")
			return nil
		case left < 0:
			a.Logger.Info("evicting pods", "left", pods.Left)
		}
		if pods.Left != left {
			left, looks = pods.Left, 0
		}
		if a.Uptime() >= pods.Next {
			a.pushOut(ctx)
		}
		if !rest(ctx, lookPause(looks)) {
			return fmt.Errorf("pods are left: %d, %s: %w", left, pods.Why, ctx.Err())
		}
	}
}

// pushOut is one pass that ends in time.
func (a *Agent) pushOut(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, awayBound)
	defer cancel()
	if err := a.Drainer.Pass(ctx); err != nil {
		a.Logger.Debug("evicting pods", "err", err)
	}
}

// insist repeats a request until it succeeds, the API server has not answered for awayBound, or ctx ends.
func insist(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, awayBound)
	defer cancel()
	for {
		err := request(ctx)
		if err == nil || !rest(ctx, awayPause) {
			return err
		}
	}
}

// rest says whether there is time left after a pause.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
