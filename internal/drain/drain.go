// SPDX-License-Identifier: Apache-2.0

// Package drain empties a node through the Eviction API: it chooses pods as "kubectl drain --ignore-daemonsets
// --delete-emptydir-data" does, and evicts one round of them a call.
//
//  1. Look lists the pods of the node and says how many must still go, what for, and when a pass is due.
//  2. Pass evicts what the last Look found due: the lowest priority that is still there, each pod at most every few
//     seconds, and only the pod that was listed (UID precondition).
//
// Nothing here waits. What it remembers between calls, when to try which pod again, costs a few requests when lost.
package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	pageLimit   = "250"
	maxPages    = 40
	maxText     = 300 // of what others say, in a why
	concurrency = 10

	// A budget that allows nothing is asked again after 5 s, then ever slower. Without any delay a drain is a hot loop
	// against the API server (kubermatic/kubeone#4105).
	firstRetry, lastRetry = 5 * time.Second, 30 * time.Second

	// How soon to look again at pods that are going: at once for those that end quickly, seldom for the others.
	firstLook, lastLook = time.Second, 5 * time.Second

	// A drain without an eviction for this long is over; the next one starts afresh.
	forget = 10 * time.Minute

	// How long past its grace period a pod may hang before it is called stuck.
	stuck = time.Minute

	// A pod that tolerates the cordon comes back. After two newcomers in its place it is left alone, like a DaemonSet's.
	maxNewcomers = 2
)

// Options say what to drain and how.
type Options struct {
	Node          string
	Skip          string        // label selector of pods left alone; empty: none
	GracePeriod   time.Duration // negative: each pod's own
	UnmanagedPods string        // "evict" or "leave" pods without a controller, or let them "block" the drain
	GoOn          bool          // evict the others although one blocks: after the timeout the node reboots all the same
	Uptime        func() time.Duration
	Stays         func([]Neighbour) // told at each Look which pods of DaemonSets the node has; may be nil
}

// Neighbour is a pod that a DaemonSet keeps on the node.
type Neighbour struct {
	Namespace, DaemonSet string
	Labels               map[string]string
	Images               []string
}

// Client drains one node. Its methods may be called from several goroutines.
type Client struct {
	core      rest.Interface
	o         Options
	skip      labels.Selector
	skipErr   error
	evictions atomic.Int64

	mu      sync.Mutex
	left    []pod           // that must go and are not going yet, of the last Look
	wave    []pod           // those of them whose turn it is
	tries   map[string]*try // by UID
	comers  map[string]int  // newcomers seen, by UID of their controller
	quiet   time.Duration   // uptime until which the API server asked for no evictions
	active  time.Duration   // uptime of the newest attempt; zero: none
	count   int             // that had to go at the last Look
	looking time.Duration   // until the next look at pods that are going
}

// try is what is known of one pod.
type try struct {
	due     time.Duration // uptime
	delay   time.Duration
	seen    time.Duration // uptime at which it was first seen going; zero: not yet
	comer   int           // how many before it were evicted and came back
	verdict verdict
	why     string
}

// New returns the client. It sends nothing; a malformed selector is reported by Look.
func New(core rest.Interface, o Options) *Client {
	c := &Client{core: core, o: o, tries: map[string]*try{}, comers: map[string]int{}}
	if o.Skip != "" {
		c.skip, c.skipErr = labels.Parse(o.Skip)
	}
	return c
}

// Evictions is the number of evictions and deletions that the API server accepted.
func (c *Client) Evictions() int64 { return c.evictions.Load() }

// Look lists the pods of the node and says what is left to do.
func (c *Client) Look(ctx context.Context) (plan.Pods, error) {
	if c.skipErr != nil {
		return plan.Pods{}, fmt.Errorf("reading the selector %q of pods to skip: %w", c.o.Skip, c.skipErr)
	}
	pods, err := c.list(ctx)
	if err != nil {
		return plan.Pods{}, err
	}
	if c.o.Stays != nil {
		c.o.Stays(neighbours(pods))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.observe(pods, c.o.Uptime()), nil
}

func (c *Client) list(ctx context.Context) ([]pod, error) {
	var all []pod
	next := ""
	for range maxPages {
		request := c.core.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+c.o.Node).
			Param("limit", pageLimit)
		if next != "" {
			request.Param("continue", next)
		}
		raw, err := api.Body(request.MaxRetries(0).Do(ctx))
		if err != nil {
			return nil, fmt.Errorf("listing the pods of node %q: %w", c.o.Node, err)
		}
		var page podList
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("reading the pods of node %q: %w", c.o.Node, err)
		}
		all = append(all, page.Items...)
		if next = page.Metadata.Continue; next == "" {
			return all, nil
		}
	}
	return nil, fmt.Errorf("listing the pods of node %q: more than %d", c.o.Node, len(all))
}

// observe takes in a list and says what it means. The caller holds the lock.
func (c *Client) observe(pods []pod, now time.Duration) plan.Pods {
	if c.active != 0 && now-c.active > forget {
		c.tries, c.comers, c.active, c.quiet = map[string]*try{}, map[string]int{}, 0, 0
	}
	present := map[string]*try{}
	var left, going []pod
	var blocking []string
	for i := range pods {
		p := &pods[i]
		kind := classify(p, c.o.Node, c.skip, c.o.UnmanagedPods == "evict")
		if kind == stays || kind == blocks && c.o.UnmanagedPods == "leave" {
			continue
		}
		t := c.tries[p.Metadata.UID]
		if t == nil {
			t = &try{}
			if owner := p.controller(); owner != nil {
				t.comer = c.comers[owner.UID]
			}
		}
		present[p.Metadata.UID] = t
		switch {
		case t.comer > maxNewcomers && kind != terminating:
		case kind == terminating:
			if t.seen == 0 {
				t.seen = now
			}
			going = append(going, *p)
		case kind == blocks:
			blocking = append(blocking, p.name())
		default:
			left = append(left, *p)
		}
	}
	c.tries = present // those that are gone are forgotten
	c.left, c.wave = left, nil
	wave := lowestPriority(left, going)
	for _, p := range left {
		if p.Spec.Priority == wave {
			c.wave = append(c.wave, p)
		}
	}
	out := plan.Pods{Left: len(left) + len(going) + len(blocking)}
	if out.Left != c.count {
		c.count, c.looking = out.Left, 0
	}
	switch {
	case out.Left == 0:
	case len(blocking) > 0 && !c.o.GoOn:
		c.left, c.wave = nil, nil // not half a drain either
		out.Fatal, out.Why = true, unmanaged(blocking)
	case len(left)+len(going) == 0: // only what blocks
		out.Fatal, out.Why, out.Next = true, unmanaged(blocking), now+lastRetry
	default:
		c.wait(&out, going, now)
	}
	return out
}

func unmanaged(names []string) string {
	more := ""
	if len(names) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(names)-1)
	}
	return fmt.Sprintf("pod %s%s has no controller, so nothing would start it again: delete it, or set [drain] "+
		"unmanaged_pods = \"evict\"", names[0], more)
}

// lowestPriority is the wave to evict now: important pods stay until the others have gone.
func lowestPriority(lists ...[]pod) int32 {
	lowest, found := int32(0), false
	for _, list := range lists {
		for i := range list {
			if p := list[i].Spec.Priority; !found || p < lowest {
				lowest, found = p, true
			}
		}
	}
	return lowest
}

// wait says what is waited for and until when.
func (c *Client) wait(out *plan.Pods, going []pod, now time.Duration) {
	if len(c.wave) == 0 { // all of this wave are going
		c.looking = min(max(2*c.looking, firstLook), lastLook)
		out.Next = now + c.looking
		out.Why = c.slowest(going, now)
		return
	}
	due := lastRetry + now
	for i := range c.wave {
		t := c.tries[c.wave[i].Metadata.UID]
		due = min(due, t.due)
		if t.verdict == refused {
			out.Fatal = true
			out.Why = fmt.Sprintf("pod %s cannot be evicted: %s", c.wave[i].name(), t.why)
		}
		if out.Why == "" && t.why != "" {
			out.Why = fmt.Sprintf("pod %s: %s", c.wave[i].name(), t.why)
		}
	}
	if due = max(due, c.quiet); due > now {
		out.Next = due
	}
	if out.Why == "" {
		out.Why = fmt.Sprintf("pod %s is next", c.wave[0].name())
	}
}

// slowest names a pod that is going, one past its time before all others.
func (c *Client) slowest(going []pod, now time.Duration) string {
	for i := range going {
		p := &going[i]
		grace := time.Duration(min(max(p.grace(), 0), 86400)) * time.Second
		if t := c.tries[p.Metadata.UID]; now-t.seen > grace+stuck {
			return fmt.Sprintf("pod %s is still there %s after it was told to end, its grace period is %s: look at its "+
				"finalizers and at the kubelet", p.name(), (now - t.seen).Round(time.Second), grace)
		}
	}
	if len(going) == 1 {
		return fmt.Sprintf("pod %s is ending", going[0].name())
	}
	return fmt.Sprintf("pod %s and others are ending", going[0].name())
}

// Pass evicts every pod that the last Look found due. What the API server says of a single pod shows in the next Look;
// an error means that it could not be asked.
func (c *Client) Pass(ctx context.Context) error {
	c.mu.Lock()
	now := c.o.Uptime()
	var due []pod
	if now >= c.quiet {
		for _, p := range c.wave {
			if t := c.tries[p.Metadata.UID]; t != nil && t.due <= now {
				due = append(due, p)
			}
		}
	}
	c.mu.Unlock()
	return c.each(ctx, due, c.evict)
}

// Delete deletes every pod that the last Look found left, past all budgets: the last resort of after_timeout =
// "delete". It needs a right that the agent does not have by default.
func (c *Client) Delete(ctx context.Context) error {
	c.mu.Lock()
	left := c.left
	c.mu.Unlock()
	var refusal atomic.Pointer[error]
	err := c.each(ctx, left, func(ctx context.Context, p *pod) error {
		err := c.delete(ctx, p)
		if apierrors.IsForbidden(err) {
			refusal.Store(&err)
		}
		return err
	})
	if refused := refusal.Load(); refused != nil {
		return fmt.Errorf("deleting pods (to allow it: kubectl apply -f packaging/kubernetes/optional/delete-pods.yaml): %w",
			*refused)
	}
	return err
}

// each asks for a few pods at a time and takes in the answers.
func (c *Client) each(ctx context.Context, pods []pod, ask func(context.Context, *pod) error) error {
	var (
		group   sync.WaitGroup
		gate    = make(chan struct{}, concurrency)
		mu      sync.Mutex
		unasked error
	)
	for i := range pods {
		if ctx.Err() != nil {
			break
		}
		gate <- struct{}{}
		group.Go(func() {
			defer func() { <-gate }()
			p := &pods[i]
			err := ask(ctx, p)
			if o := c.record(p, judge(err)); o.Verdict == unclear {
				mu.Lock()
				defer mu.Unlock()
				if unasked == nil {
					unasked = fmt.Errorf("evicting pod %q: %w", p.name(), err)
				}
			}
		})
	}
	group.Wait()
	if unasked == nil && ctx.Err() != nil {
		return fmt.Errorf("evicting pods: %w", ctx.Err())
	}
	return unasked
}

// record takes in one answer.
func (c *Client) record(p *pod, o outcome) outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.o.Uptime()
	c.active = now
	t := c.tries[p.Metadata.UID]
	if t == nil {
		t = &try{}
		c.tries[p.Metadata.UID] = t
	}
	t.verdict, t.why = o.Verdict, ""
	switch o.Verdict {
	case accepted:
		c.evictions.Add(1)
		if owner := p.controller(); owner != nil {
			c.comers[owner.UID] = max(c.comers[owner.UID], t.comer+1)
		}
	case gone:
		t.due = now + firstLook
	case budget:
		t.why = "its PodDisruptionBudget allows no disruption: " + o.Why
	case busy:
		t.why = "the API server is busy: " + o.Why
		c.quiet = max(c.quiet, now+max(o.After, firstLook))
	case doomed:
		t.why = "its namespace is being deleted"
	case refused, unclear:
		t.why = o.Why
	}
	switch o.Verdict {
	case accepted, budget, doomed, refused, unclear: // accepted: the next list shows it going, or it is asked again
		t.delay = min(max(t.delay*3/2, firstRetry), lastRetry)
		t.due = now + jitter(max(t.delay, o.After))
	case gone, busy: // due is set above
	}
	return o
}

// jitter spreads a delay by a tenth either way, so that pods of one budget are not asked for in step.
func jitter(d time.Duration) time.Duration { return d*9/10 + rand.N(d/5+1) }

func (c *Client) deleteOptions(p *pod) *metav1.DeleteOptions {
	uid := types.UID(p.Metadata.UID)
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if c.o.GracePeriod >= 0 {
		seconds := int64(c.o.GracePeriod / time.Second)
		options.GracePeriodSeconds = &seconds
	}
	return options
}

// evict is one attempt: client-go's own retries would hold the pass for minutes.
func (c *Client) evict(ctx context.Context, p *pod) error {
	return c.core.Post().Namespace(p.Metadata.Namespace).Resource("pods").Name(p.Metadata.Name).
		SubResource("eviction").MaxRetries(0).Body(&policyv1.Eviction{
		TypeMeta:      metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
		ObjectMeta:    metav1.ObjectMeta{Name: p.Metadata.Name, Namespace: p.Metadata.Namespace},
		DeleteOptions: c.deleteOptions(p),
	}).Do(ctx).Error()
}

func (c *Client) delete(ctx context.Context, p *pod) error {
	options := c.deleteOptions(p)
	options.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
	return c.core.Delete().Namespace(p.Metadata.Namespace).Resource("pods").Name(p.Metadata.Name).MaxRetries(0).
		Body(options).Do(ctx).Error()
}
