// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// There is no queue in the cluster: nodes that wait look at the slots now and then, and the first that finds one free has
// it. Two things make that fair and cheap.
//
//  1. A pool needs about one look a second, not one a node: the pause between two looks grows with the number of nodes
//     that may wait.
//  2. The lightest node goes first, by statistics: who has pods to move lets others pass for a moment. Under bin packing
//     the order decides whether pods move once or twice. The moment shrinks with the age of the wait, so none starves.
const (
	firstTry  = 2 * time.Second // for the other nodes of the same update to be tainted too
	tryEvery  = 5 * time.Second // the shortest pause between two looks
	trySeldom = 5 * time.Minute // the longest
	perNode   = time.Second     // of the pause: one look a second in the whole pool
	countAge  = 30 * time.Minute

	spreadFrom = 30 * time.Second // a pause from which the first looks are spread too

	// What is known of the Node, and of how many there are, is believed for so many looks at the slots, if that is longer:
	// 5,000 waiting nodes may ask for little more than the slots.
	nodeLooks, countLooks = 20, 24

	yieldPerPod = 50 * time.Millisecond
	yieldMost   = 3 * time.Second
	yieldHalf   = time.Hour // age at which the moment is half as long
)

// queue is what a waiting node knows about itself and the others.
type queue struct {
	since   time.Duration // uptime at which the wait began; zero: not yet, in this process
	pods    int           // that would have to move; of the newest look at them
	yielded bool          // others were let pass since the slot was found free
	nodes   int
	counted time.Duration // uptime; zero: never
	crowd   bool          // many may have begun to look at this very moment: a window opened, or the agents were restarted
}

// enqueue begins a wait: how much there is to move decides how long others are let pass. In a large pool the same update
// may have tainted thousands this very second, so that all but the taint is put off and spread.
func (a *Agent) enqueue(ctx context.Context) {
	a.queue = queue{nodes: a.queue.nodes, counted: a.queue.counted, crowd: a.queue.pause() > spreadFrom}
	if a.queue.crowd {
		a.waitTurn(firstTry+jitter(firstTry), "")
		return
	}
	a.queue.yielded = true
	a.weigh(ctx)
	a.waitTurn(firstTry+jitter(firstTry)+a.yieldFor(), "")
}

// weigh looks at what there is to move, once a wait. A restart in the middle of one weighs again: a loaded node that
// forgot its load would go first.
func (a *Agent) weigh(ctx context.Context) {
	if a.queue.since > 0 {
		return
	}
	a.queue.since = a.Uptime()
	if !a.Drain {
		return
	}
	if pods, err := a.Drainer.Look(ctx); err == nil {
		a.queue.pods = pods.Left
		a.foresee(pods)
	}
}

// spread lets a moment pass when many nodes may look at once, as long as a pause between two looks at the most.
func (a *Agent) spread(ctx context.Context, pool string) bool {
	if !a.queue.crowd {
		return false
	}
	a.queue.crowd = false
	pause := a.queue.pause()
	if a.queue.nodes == 0 { // else the others would count at this very moment too
		pause = a.lookEvery(ctx, pool)
	}
	a.waitTurn(rand.N(pause), "waiting a moment, since others may have begun to look just now")
	return true
}

// yields says whether others are still to be let pass.
func (a *Agent) yields() bool { return !a.queue.yielded && a.yieldFor() > 0 }

func (a *Agent) yieldFor() time.Duration {
	d := min(time.Duration(min(a.queue.pods, 1000))*yieldPerPod, yieldMost)
	for age := a.Uptime() - a.queue.since; age >= yieldHalf && d > 0; age -= yieldHalf {
		d /= 2
	}
	return d
}

// nextTurn says when to look again after a claim that was not taken.
func (a *Agent) nextTurn(ctx context.Context, pool string, claim Claim) plan.Turn {
	if claim.Free {
		a.queue.yielded = true
		return plan.Turn{
			Next: a.Uptime() + a.yieldFor(),
			Why:  fmt.Sprintf("%s; nodes with fewer than %d pods to move go first", claim.Why, a.queue.pods),
		}
	}
	a.queue.yielded = false
	return plan.Turn{Next: a.Uptime() + jitter(a.lookEvery(ctx, pool)), Why: claim.Why}
}

// lookEvery is the pause between two looks at the slots. A count that fails costs patience, not turns.
func (a *Agent) lookEvery(ctx context.Context, pool string) time.Duration {
	if q := &a.queue; q.counted == 0 || a.Uptime()-q.counted > max(countAge, countLooks*q.pause()) {
		nodes, err := a.Slots.Nodes(ctx, pool)
		if err != nil {
			a.Logger.Warn("counting the nodes: looking at the slots every minute", "err", err)
			nodes = int(time.Minute / perNode)
		}
		q.counted = max(a.Uptime(), 1)
		a.keepCount(nodes)
	}
	return a.queue.pause()
}

// keepCount remembers the number of nodes over restarts: the first wait of a process should know it before it begins.
func (a *Agent) keepCount(nodes int) {
	if a.queue.nodes == nodes {
		return
	}
	a.queue.nodes = nodes
	if err := a.Host.UpdateRecord(func(r *plan.Record) { r.Nodes = nodes }); err != nil {
		a.Logger.Debug("writing down how many nodes there are", "err", err)
	}
}

// pause is what the number of nodes asks for.
func (q queue) pause() time.Duration {
	return min(max(time.Duration(min(q.nodes, 1000))*perNode, tryEvery), trySeldom)
}
