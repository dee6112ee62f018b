// SPDX-License-Identifier: Apache-2.0

// Package node reads our own Node and writes the agent's marks on it: a taint, a cordon with the marker that says whose
// it is, and the way back. Every write is one merge patch that applies to exactly the object it was computed from, so
// foreign taints are neither lost nor rewritten.
package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	fieldManager = "kured-agent"

	// A Node is written every few seconds at most; ten conflicts in a row mean that something is wrong with it.
	maxTries = 10

	maxText = 256 // of one annotation, read or written

	// How old an answer a change may be computed from. An old one only costs a conflict.
	fresh = 30 * time.Second
	// proven is the same for a patch whose success proves that nothing has changed since the answer.
	proven = 5 * time.Minute
)

// Options name the Node and the taints.
type Options struct {
	Name          string
	TaintKey      string
	TaintEffect   string
	StartupTaints []string // "key" or "key:Effect"; a key alone means any effect
	FormerTaint   string   // "key:Effect" of an earlier configuration, which goes with ours; may be empty
}

// Client reads and marks one Node. Its methods may be called from several goroutines.
type Client struct {
	core   rest.Interface
	name   string
	want   wanted
	writes atomic.Int64
	pause  func(try int) time.Duration

	mu     sync.Mutex
	newest *object // of the newest answer; nil: none, or in doubt
	at     time.Time
}

// New returns the client of one Node. It sends nothing.
func New(core rest.Interface, o Options) *Client {
	return &Client{
		core:  core,
		name:  o.Name,
		want:  wanted{Key: o.TaintKey, Effect: o.TaintEffect, Startup: o.StartupTaints, Former: o.FormerTaint},
		pause: backoff,
	}
}

// Read returns the Node; one that does not exist is the zero Node. An answer not older than maxAge, of a read or of a
// patch of ours, is not asked for again.
func (c *Client) Read(ctx context.Context, maxAge time.Duration) (plan.Node, error) {
	o := c.recent(maxAge)
	if o == nil {
		var err error
		if o, err = c.get(ctx); err != nil {
			return plan.Node{}, err
		}
	}
	if o == nil {
		return plan.Node{}, nil
	}
	return o.observed(c.want), nil
}

// Taint adds our taint, and the note as an annotation. It does nothing when the taint is there.
func (c *Client) Taint(ctx context.Context, note string) error {
	return c.apply(ctx, "tainting", fresh, func(o *object) (change, error) { return taintChange(o, c.want, note), nil })
}

// Cordon takes the Node out of scheduling in the name of this boot. A cordon of somebody else stays theirs.
func (c *Client) Cordon(ctx context.Context, boot string) error {
	if boot == "" { // the marker would say nothing
		return errors.New("cordoning: no boot id")
	}
	return c.apply(ctx, "cordoning", fresh, func(o *object) (change, error) { return cordonChange(o, boot), nil })
}

// RollBack undoes Cordon and keeps the taint. Without a Node there is nothing to undo.
func (c *Client) RollBack(ctx context.Context) error {
	return ignoreAbsent(c.apply(ctx, "rolling back", fresh,
		func(o *object) (change, error) { return rollBackChange(o), nil }))
}

// Clean undoes everything of ours in one write. Without a Node there is nothing to undo.
func (c *Client) Clean(ctx context.Context) error {
	return ignoreAbsent(c.apply(ctx, "cleaning", fresh, func(o *object) (change, error) {
		return cleanChange(o, c.want, false), nil
	}))
}

// Return gives the Node back: it undoes everything of ours and removes the start-up taints, in one write, from a Node
// that fit accepts. fit is asked again after a conflict, since the write of somebody else may have been the kubelet's
// that the node is not ready any more; a write that the server takes proves that nothing has changed since. When the
// start-up taints may not be removed it still undoes the rest, and says so. Without a Node there is nothing to return.
func (c *Client) Return(ctx context.Context, fit func(plan.Node) bool) error {
	back := func(startup bool) error {
		return c.apply(ctx, "returning", proven, func(o *object) (change, error) {
			if !fit(o.observed(c.want)) {
				return change{}, errUnfit
			}
			return cleanChange(o, c.want, startup), nil
		})
	}
	err := back(true)
	if len(c.want.Startup) == 0 || !apierrors.IsForbidden(err) {
		return ignoreAbsent(err)
	}
	// A policy without the start-up taints in it must not keep the node cordoned.
	if rest := back(false); rest != nil {
		return ignoreAbsent(rest)
	}
	return fmt.Errorf("removing the start-up taints %s (let the admission policy allow them, see "+
		"packaging/kubernetes/optional/startup-taints.yaml): %w", strings.Join(c.want.Startup, ", "), err)
}

// Writes is the number of patches that the server accepted.
func (c *Client) Writes() int64 { return c.writes.Load() }

var (
	errAbsent = errors.New("the Node does not exist")
	errUnfit  = errors.New("it is no longer fit to take pods")
)

func ignoreAbsent(err error) error {
	if errors.Is(err, errAbsent) {
		return nil
	}
	return err
}

// apply computes the change, writes it, and reads again after a conflict. A change computed to be nothing is only
// believed on an answer of now: EBS gave up on a stale one (kubernetes-sigs/aws-ebs-csi-driver#2575).
func (c *Client) apply(
	ctx context.Context, doing string, maxAge time.Duration, build func(*object) (change, error),
) error {
	uid := ""
	o := c.recent(maxAge)
	asked := false
	for try := 0; ; {
		if o == nil {
			var err error
			if o, err = c.get(ctx); err != nil {
				return fmt.Errorf("%s: %w", doing, err)
			}
			asked = true
		}
		switch {
		case o == nil:
			return fmt.Errorf("%s Node %q: %w", doing, c.name, errAbsent)
		case uid != "" && uid != o.Metadata.UID:
			// The slot and the record belong to the old object: the caller has to look again.
			return fmt.Errorf("%s Node %q: it was deleted and created anew meanwhile", doing, c.name)
		}
		uid = o.Metadata.UID
		change, err := build(o)
		if err != nil {
			return fmt.Errorf("%s Node %q: %w", doing, c.name, err)
		}
		if change.empty() {
			if asked {
				return nil
			}
			o = nil
			continue
		}
		err = c.patch(ctx, o, change)
		if err == nil {
			return nil
		}
		if !stale(err) {
			return fmt.Errorf("%s Node %q: %w", doing, c.name, err)
		}
		try++
		if try == maxTries {
			return fmt.Errorf("%s Node %q: %d conflicts in a row: %w", doing, c.name, try, err)
		}
		if err := sleep(ctx, c.pause(try)); err != nil {
			return fmt.Errorf("%s Node %q: %w", doing, c.name, err)
		}
		o = nil
	}
}

// stale is a refusal because the object is no longer the one that the patch was computed from.
func stale(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	status, answered := api.Refusal(err)
	if !answered || status.Code != http.StatusUnprocessableEntity || status.Details == nil {
		return false
	}
	for _, cause := range status.Details.Causes {
		if cause.Field == "metadata.uid" {
			return true
		}
	}
	return false
}

func (c *Client) get(ctx context.Context) (*object, error) {
	raw, err := api.Body(c.core.Get().Resource("nodes").Name(c.name).MaxRetries(0).Do(ctx))
	if apierrors.IsNotFound(err) {
		c.remember(nil)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("getting Node %q: %w", c.name, err)
	}
	return c.received(raw)
}

func (c *Client) patch(ctx context.Context, o *object, change change) error {
	body, err := mergePatch(o, change)
	if err != nil {
		return err
	}
	c.remember(nil) // until the server has answered, nobody knows
	raw, err := api.Body(c.core.Patch(types.MergePatchType).Resource("nodes").Name(c.name).
		Param("fieldManager", fieldManager).Param("fieldValidation", "Strict").
		MaxRetries(0).Body(body).Do(ctx))
	if err != nil {
		return err
	}
	c.writes.Add(1)
	// The write is done whatever the answer looks like; the next read tells.
	_, _ = c.received(raw)
	return nil
}

func (c *Client) received(raw []byte) (*object, error) {
	o, err := parse(raw)
	if err == nil && o.Metadata.Name != c.name {
		err = fmt.Errorf("the answer is about %q", text.Line(o.Metadata.Name, maxText))
	}
	if err != nil {
		return nil, fmt.Errorf("reading Node %q: %w", c.name, err)
	}
	c.remember(o)
	return o, nil
}

func (c *Client) remember(o *object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest, c.at = o, time.Now()
}

func (c *Client) recent(maxAge time.Duration) *object {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.newest == nil || time.Since(c.at) > maxAge {
		return nil
	}
	return c.newest
}

// backoff is 50 ms doubling to 1 s, between half and the whole of it.
func backoff(try int) time.Duration {
	wait := min(50*time.Millisecond<<min(try-1, 10), time.Second)
	return wait/2 + rand.N(wait/2)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
