// SPDX-License-Identifier: Apache-2.0

// Package fleet is the admin's view of all nodes at once: who waits, who holds a slot, how many slots a pool has, and
// the few writes that a human makes. It runs with the admin's credential, never with a node's.
//
// It changes three things: keys of the ConfigMap kured-agent-pools, the annotation kured-agent/hold of a Node, and it
// deletes slots. Everything else on a Node is its agent's. It also makes the credentials of agents.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/api"
)

// DefaultNamespace holds the slots and their ConfigMap; the admission policies name it.
const DefaultNamespace = "kured-agent"

// Names in the protocol; packaging/kubernetes, internal/slot and internal/node know them too.
const (
	poolsName = "kured-agent-pools"
	pausedKey = "paused"

	poolLabel      = "kured-agent/pool"
	bootAnnotation = "kured-agent/boot-id"

	taintKey         = "kured-agent/reboot-required"
	markerAnnotation = "kured-agent/cordoned"
	reasonsKey       = "kured-agent/reasons"
	holdAnnotation   = "kured-agent/hold"

	fieldManager = "kubectl-kured"
)

const (
	pageSize = 250  // whole Nodes are 10 to 20 KB each
	maxPages = 1000 // 250,000 nodes: a server that never ends its list is wrong
	attempts = 5    // at a write that others race
)

// Options say where the slots are, and whether anything is to be changed.
type Options struct {
	Namespace string // empty: DefaultNamespace
	DryRun    bool   // the API server checks each write and does none
}

// Client speaks to the API server as the admin.
type Client struct {
	rest      rest.Interface
	namespace string
	dryRun    bool
}

// New returns a client. It sends nothing. Credential plugins of the kubeconfig are run by the first request.
func New(config *rest.Config, o Options) (*Client, error) {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.QPS = -1 // a person's command; the server has its own limits, and a 429 is waited out
	config.WarningHandler = rest.NoWarnings{}
	scheme := runtime.NewScheme() // knows how to read a Status, and no more
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("using the kubeconfig: %w", err)
	}
	c := &Client{rest: client, namespace: o.Namespace, dryRun: o.DryRun}
	if c.namespace == "" {
		c.namespace = DefaultNamespace
	}
	return c, nil
}

func (c *Client) configMap(r *rest.Request) *rest.Request {
	return r.AbsPath("/api/v1").Namespace(c.namespace).Resource("configmaps").Name(poolsName)
}

func (c *Client) leases(r *rest.Request) *rest.Request {
	return r.AbsPath("/apis/coordination.k8s.io/v1").Namespace(c.namespace).Resource("leases")
}

func (c *Client) nodes(r *rest.Request) *rest.Request { return r.AbsPath("/api/v1").Resource("nodes") }

func decode(result rest.Result, into any) error {
	body, err := api.Body(result)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// each calls visit with every item of a list, page by page.
func each[T any](ctx context.Context, request func() *rest.Request, visit func(*T)) error {
	next := ""
	for range maxPages {
		r := request().Param("limit", strconv.Itoa(pageSize))
		if next != "" {
			r.Param("continue", next)
		}
		var page struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		if err := decode(r.Do(ctx), &page); err != nil {
			return err
		}
		for i := range page.Items {
			visit(&page.Items[i])
		}
		if next = page.Metadata.Continue; next == "" {
			return nil
		}
	}
	return fmt.Errorf("the list does not end after %d pages", maxPages)
}

type configMap struct {
	Metadata struct {
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Data map[string]string `json:"data"`
}

func (c *Client) readConfig(ctx context.Context) (configMap, error) {
	var config configMap
	err := decode(c.configMap(c.rest.Get()).Do(ctx), &config)
	return config, err
}

func (c *Client) configName() string { return fmt.Sprintf("ConfigMap %s/%s", c.namespace, poolsName) }

const wayInstall = "kubectl apply -k packaging/kubernetes creates it, and --namespace names another place"

// Change is what happened to one key; nil: the key is not there.
type Change struct {
	Before, After *string
}

// Changed is whether there was anything to do.
func (c Change) Changed() bool {
	if c.Before == nil || c.After == nil {
		return c.Before != c.After
	}
	return *c.Before != *c.After
}

// edit sets a key of the ConfigMap, or removes it. The patch names the resourceVersion it was decided on, so what Change
// says is what happened; a writer in between makes it look again.
func (c *Client) edit(ctx context.Context, key string, value *string) (Change, error) {
	var err error
	for range attempts {
		var config configMap
		if config, err = c.readConfig(ctx); err != nil {
			return Change{}, fail("reading "+c.configName(), err, wayInstall)
		}
		change := Change{After: value}
		if before, there := config.Data[key]; there {
			change.Before = &before
		}
		if !change.Changed() {
			return change, nil
		}
		err = c.patch(ctx, c.configMap(c.rest.Patch(types.MergePatchType)), map[string]any{
			"metadata": config.Metadata,
			"data":     map[string]*string{key: value},
		})
		if err == nil {
			return change, nil
		}
		if !apierrors.IsConflict(err) {
			break
		}
	}
	return Change{}, fail(fmt.Sprintf("changing %q in %s", key, c.configName()), err, wayInstall)
}

func (c *Client) patch(ctx context.Context, request *rest.Request, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	request.Param("fieldManager", fieldManager).Param("fieldValidation", "Strict")
	if c.dryRun {
		request.Param("dryRun", "All")
	}
	return request.Body(body).Do(ctx).Error()
}

// slots lists what is held. Leases of others in the namespace are left out.
func (c *Client) slots(ctx context.Context) ([]Slot, error) {
	var all []Slot
	err := each(ctx, func() *rest.Request { return c.leases(c.rest.Get()) }, func(lease *coordinationv1.Lease) {
		if slot, ok := slotOf(lease); ok {
			all = append(all, slot)
		}
	})
	if err != nil {
		return nil, fail(fmt.Sprintf("listing the leases of namespace %q", c.namespace), err, "")
	}
	return all, nil
}

func (c *Client) readNode(ctx context.Context, name string) (*node, error) {
	var n node
	if err := decode(c.nodes(c.rest.Get()).Name(name).Do(ctx), &n); err != nil {
		return nil, err
	}
	return &n, nil
}

// fail says what was being done, what the server said, and the way out. missing is the way out when it is not there.
func fail(doing string, err error, missing string) error {
	way := ""
	_, answered := api.Refusal(err)
	switch {
	case errors.Is(err, context.Canceled):
	case apierrors.IsNotFound(err):
		way = missing
	case apierrors.IsUnauthorized(err):
		way = "log in to the cluster again, or choose another --context"
	case apierrors.IsForbidden(err):
		way = "your account lacks this right: ask for it, or choose another --context"
	case apierrors.IsConflict(err):
		way = "others change it all the time: run it again"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		way = "the list took too long: run it again"
	case !answered:
		way = "is this the right cluster? --kubeconfig and --context choose it"
	}
	if way == "" {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w (%s)", doing, err, way)
}
