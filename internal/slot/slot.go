// SPDX-License-Identifier: Apache-2.0

// Package slot is the cluster-wide lock: N slots a pool, each a Lease that exists while it is held.
//
//  1. Acquire creates the Lease slot-<pool>-<i> with i < N. Names are unique in the cluster, so at most N exist; the
//     admission policy refuses every other index and holder.
//  2. The UID of the Lease is the fencing token. Verify reads it from the quorum before each step that cannot be
//     undone.
//  3. Release deletes exactly that UID. Deleting the Node object frees the slot too, through its ownerReference.
//
// There is no take-over by time. A node that does not return keeps its slot and so stops the roll-out; with a time to
// live, each failed reboot would let the next node go down.
package slot

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	// leaseDuration is information for people; nothing expires.
	leaseDuration int32 = 3600 // one hour, in seconds

	listLimit = "500"
	maxPages  = 40 // 20,000 leases
)

// Options say where the slots are and who we are.
type Options struct {
	Namespace string
	Node      string
	// Nodes selects the nodes of a pool that has a name of its own; empty: only the cluster as a whole is known.
	Nodes string
	// MaxNotReady is how many other nodes of the pool may be not Ready when a slot is taken; nil: any number.
	MaxNotReady *int
}

// Client takes and gives back slots. Its methods may be called from several goroutines.
type Client struct {
	core, coordination rest.Interface
	namespace, node    string
	nodes              string // label selector of the pool's nodes
	maxNotReady        *int
	// settled is whether every creation so far has had an answer. Until then the list has to come from the quorum: the
	// watch cache may not show yet what we created, and we would take a second slot.
	settled atomic.Bool

	mu    sync.Mutex
	known map[string]size // N of each pool, as the ConfigMap had it
}

// size is what a waiting node may believe of a pool for a while: a full pool needs no look at the ConfigMap.
type size struct {
	n     int
	looks int // since the ConfigMap was read
}

// sizeLooks is how many looks at a full pool believe an old N: a pool that grows is seen after so many.
const sizeLooks = 11

// New returns the client of one node's slots. It sends nothing.
func New(core, coordination rest.Interface, o Options) *Client {
	return &Client{
		core: core, coordination: coordination, namespace: o.Namespace, node: o.Node,
		nodes: o.Nodes, maxNotReady: o.MaxNotReady, known: map[string]size{},
	}
}

// Request says for which pool, Node object and boot a slot is wanted.
type Request struct {
	Pool, NodeUID, Boot string
	ControlPlane        bool // the Node is of the control plane: another one of those must be Ready
	Look                bool // take nothing: only say whether a slot is free
}

// Result is a slot, or why there is none.
type Result struct {
	Taken bool
	Name  string // also of a slot in our name that is not this boot's: Find it
	UID   string // of the Lease: the fencing token
	Boot  string // in which it was taken
	// NodeUID is of the Node object that owns the slot: the garbage collector deletes it together with that one.
	NodeUID string
	Since   time.Time // as the holder's clock had it; zero: unknown
	Why     string    // who holds what, what is paused, what is to be done
	Free    bool      // not taken, because only a look was asked for, and one is free
}

// Acquire takes a free slot, or says who has them. A slot that this boot holds already is simply returned.
func (c *Client) Acquire(ctx context.Context, r Request) (Result, error) {
	if r.NodeUID == "" || r.Boot == "" {
		return Result{}, errors.New("acquiring a slot: the Node's UID or the boot id is unknown")
	}
	if why := badPool(r.Pool); why != "" {
		return Result{Why: why}, nil
	}
	settled := c.settled.Load()
	leases, err := c.list(ctx, r.Pool, settled)
	if err != nil {
		return Result{}, err
	}
	if mine := ofNode(leases, c.node); mine != nil {
		return c.resume(ctx, mine.Name, r)
	}
	if !settled {
		c.settled.Store(true)
	}
	if why := c.full(r.Pool, leases); why != "" {
		return Result{Why: why}, nil
	}
	// Paused or not is read before every creation, and N with it.
	pools, why, err := c.pools(ctx)
	if err != nil || why != "" {
		return Result{Why: why}, err
	}
	v := choose(pools, r.Pool, leases, c.node)
	c.learn(pools, r.Pool)
	switch {
	case len(v.Free) == 0 && v.Why == "":
		return Result{Why: fmt.Sprintf("no slot of pool %q has a free name", r.Pool)}, nil
	case len(v.Free) == 0:
		return Result{Why: v.Why}, nil
	case r.Look:
		return Result{Free: true, Why: fmt.Sprintf("a slot of pool %q is free", r.Pool)}, nil
	}
	if why, err := c.budget(ctx, r, leases); err != nil || why != "" {
		return Result{Why: why}, err
	}
	rand.Shuffle(len(v.Free), func(i, j int) { v.Free[i], v.Free[j] = v.Free[j], v.Free[i] })
	for _, index := range v.Free[:min(2, len(v.Free))] { // of two losers in a row, a look at the list knows more
		result, err := c.create(ctx, slotName(r.Pool, index), r)
		if err == nil && result.Taken && r.ControlPlane {
			return c.unlessLast(ctx, result)
		}
		if err != nil || result.Taken {
			return result, err
		}
		why = result.Why
	}
	return Result{Why: why}, nil
}

// full says who holds a pool that is full by what was learned of it, or nothing when the ConfigMap has to be read.
func (c *Client) full(pool string, leases []coordinationv1.Lease) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.known[pool]
	if known.n == 0 || len(leases) < known.n || known.looks >= sizeLooks {
		return ""
	}
	known.looks++
	c.known[pool] = known
	return held(pool, known.n, leases)
}

func (c *Client) learn(pools map[string]string, pool string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, why := slots(pools, pool)
	if _, paused := pools[pausedKey]; paused || why != "" {
		n = 0
	}
	c.known[pool] = size{n: n}
}

// pools reads the ConfigMap, or says what to do when it is missing.
func (c *Client) pools(ctx context.Context) (pools map[string]string, why string, err error) {
	var config corev1.ConfigMap
	err = c.core.Get().Namespace(c.namespace).Resource("configmaps").Name(poolsName).MaxRetries(0).Do(ctx).Into(&config)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Sprintf("ConfigMap %s/%s does not exist: kubectl apply -k packaging/kubernetes",
			c.namespace, poolsName), nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("getting ConfigMap %s/%s: %w", c.namespace, poolsName, err)
	}
	return config.Data, "", nil
}

// list returns the leases of a pool, or all of them. cached may be a moment old and costs the API server next to
// nothing, which counts when thousands wait.
func (c *Client) list(ctx context.Context, pool string, cached bool) ([]coordinationv1.Lease, error) {
	var all []coordinationv1.Lease
	next := ""
	for range maxPages {
		request := c.coordination.Get().Namespace(c.namespace).Resource("leases").Param("limit", listLimit)
		if pool != "" {
			request.Param("labelSelector", labels.Set{poolLabel: pool}.String())
		}
		if cached && next == "" {
			request.Param("resourceVersion", "0")
		}
		if next != "" {
			request.Param("continue", next)
		}
		var page coordinationv1.LeaseList
		if err := request.MaxRetries(0).Do(ctx).Into(&page); err != nil {
			return nil, fmt.Errorf("listing the slots: %w", err)
		}
		all = append(all, page.Items...)
		if next = page.Continue; next == "" {
			return all, nil
		}
	}
	return nil, fmt.Errorf("listing the slots: more than %d leases in namespace %q", len(all), c.namespace)
}

// create makes the Lease. Losing it to another is not an error.
func (c *Client) create(ctx context.Context, name string, r Request) (Result, error) {
	now := metav1.NowMicro()
	duration := leaseDuration
	lease := &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Namespace:   c.namespace,
			Labels:      map[string]string{poolLabel: r.Pool},
			Annotations: map[string]string{bootAnnotation: r.Boot, phaseAnnotation: "acquired"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: c.node, UID: types.UID(r.NodeUID)},
			},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &c.node, AcquireTime: &now, RenewTime: &now, LeaseDurationSeconds: &duration,
		},
	}
	var created coordinationv1.Lease
	err := c.coordination.Post().Namespace(c.namespace).Resource("leases").Param("fieldManager", "kured-agent").
		MaxRetries(0).Body(lease).Do(ctx).Into(&created)
	switch {
	case err == nil:
		return taken(&created), nil
	case apierrors.IsAlreadyExists(err), !answered(err):
		// Another's, or ours from a creation whose answer got lost: the name decides.
		c.settled.Store(false)
		result, look := c.resume(context.WithoutCancel(ctx), name, r)
		switch {
		case look != nil:
			return Result{}, fmt.Errorf("creating slot %q: %w", name, errors.Join(err, look))
		case apierrors.IsAlreadyExists(err):
			c.settled.Store(true)
			return result, nil
		case result.Taken:
			return result, nil
		}
		return Result{}, fmt.Errorf("creating slot %q: %w", name, err)
	}
	return Result{}, fmt.Errorf("creating slot %q: %w", name, err)
}

// answered is whether the API server refused, so that nothing can have been created.
func answered(err error) bool {
	status, answered := api.Refusal(err)
	return answered && status.Code >= 400 && status.Code < 500 && !apierrors.IsTimeout(err)
}

// resume reads a slot from the quorum and says whether this boot holds it.
func (c *Client) resume(ctx context.Context, name string, r Request) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	lease, err := c.get(ctx, name)
	switch {
	case err != nil:
		return Result{}, err
	case lease == nil:
		return Result{Why: fmt.Sprintf("slot %q was given back a moment ago", name)}, nil
	case holder(lease) != c.node:
		return Result{Why: fmt.Sprintf("another node was faster: %s", describe(lease))}, nil
	case ownerUID(lease) != r.NodeUID:
		return Result{Name: name, Why: fmt.Sprintf("slot %q belongs to an earlier Node object of this name", name)}, nil
	case lease.Annotations[bootAnnotation] != r.Boot:
		return Result{Name: name, Why: fmt.Sprintf("this node still holds %q from an earlier boot", name)}, nil
	}
	return taken(lease), nil
}

func taken(lease *coordinationv1.Lease) Result {
	r := Result{Taken: true, Name: lease.Name, UID: string(lease.UID), NodeUID: ownerUID(lease),
		Boot: text.Line(lease.Annotations[bootAnnotation], maxText)}
	if lease.Spec.AcquireTime != nil {
		r.Since = lease.Spec.AcquireTime.Time
	}
	return r
}

// get reads from the quorum; nil is a slot that nobody holds.
func (c *Client) get(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	if !strings.HasPrefix(name, "slot-") {
		return nil, fmt.Errorf("getting slot %q: not the name of a slot", name)
	}
	var lease coordinationv1.Lease
	err := c.coordination.Get().Namespace(c.namespace).Resource("leases").Name(name).MaxRetries(0).Do(ctx).Into(&lease)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("getting slot %q: %w", name, err)
	}
	return &lease, nil
}

// Verify asks the quorum whether the slot with this UID is still ours. A human who deletes the Lease stops the agent
// here, up to the last step before the reboot.
func (c *Client) Verify(ctx context.Context, name, uid string) (ours bool, why string, err error) {
	lease, err := c.get(ctx, name)
	switch {
	case err != nil:
		return false, "", err
	case lease == nil:
		return false, fmt.Sprintf("slot %q is gone: somebody released it", name), nil
	case holder(lease) != c.node:
		return false, fmt.Sprintf("slot %q is no longer ours: %s", name, describe(lease)), nil
	case string(lease.UID) != uid:
		return false, fmt.Sprintf("slot %q was released and taken again", name), nil
	case lease.DeletionTimestamp != nil:
		return false, fmt.Sprintf("slot %q is being deleted", name), nil
	}
	return true, "", nil
}

// Find looks for a slot in our name, of whatever boot: for a lost record. An empty pool means all pools.
func (c *Client) Find(ctx context.Context, pool string) (Result, error) {
	leases, err := c.list(ctx, pool, false)
	if err != nil {
		return Result{}, err
	}
	for i := range leases {
		if holder(&leases[i]) == c.node && strings.HasPrefix(leases[i].Name, "slot-") {
			return taken(&leases[i]), nil
		}
	}
	return Result{}, nil
}

// Release gives the slot with this UID back. One that is no longer ours is given back already.
func (c *Client) Release(ctx context.Context, name, uid string) error {
	if !strings.HasPrefix(name, "slot-") || uid == "" {
		return fmt.Errorf("releasing slot %q: not the name of a slot, or no UID", name)
	}
	id := types.UID(uid)
	err := c.coordination.Delete().Namespace(c.namespace).Resource("leases").Name(name).MaxRetries(0).
		Body(&metav1.DeleteOptions{
			TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
			Preconditions: &metav1.Preconditions{UID: &id},
		}).Do(ctx).Error()
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	case apierrors.IsForbidden(err):
		// The policy refuses to touch another's slot; whether it is another's now, only the slot says.
		if lease, look := c.get(ctx, name); look == nil && (lease == nil || holder(lease) != c.node) {
			return nil
		}
	}
	return fmt.Errorf("releasing slot %q: %w", name, err)
}
