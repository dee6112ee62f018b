// SPDX-License-Identifier: Apache-2.0

package slot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/text"
)

// The pools that need no selector, since a label tells their nodes.
const (
	controlPlanePool  = "control-plane"
	defaultPool       = "default"
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
)

// enough nodes to count: beyond it the pause between two looks at the slots does not grow.
const enough = "300"

// selector is the label selector of a pool's nodes; empty: nobody said.
func (c *Client) selector(pool string) string {
	switch {
	case c.nodes != "":
		return c.nodes
	case pool == controlPlanePool:
		return controlPlaneLabel
	case pool == defaultPool:
		return "!" + controlPlaneLabel
	}
	return ""
}

// Nodes is about how many nodes may wait for the pool: a waiting node looks the less often the more others do. It reads
// metadata only, of one Node where all are meant, and of a few hundred where a selector says which: then the API server
// does not tell how many remain.
func (c *Client) Nodes(ctx context.Context, pool string) (int, error) {
	request := c.core.Get().Resource("nodes").
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")
	if selector := c.selector(pool); selector != "" && pool != defaultPool {
		request.Param("labelSelector", selector).Param("limit", enough)
	} else {
		request.Param("limit", "1")
	}
	raw, err := api.Body(request.MaxRetries(0).Do(ctx))
	if err != nil {
		return 0, fmt.Errorf("counting the nodes: %w", err)
	}
	var list struct {
		Metadata struct {
			RemainingItemCount int `json:"remainingItemCount"`
		} `json:"metadata"`
		Items []struct{} `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return 0, fmt.Errorf("counting the nodes: %w", err)
	}
	return len(list.Items) + max(list.Metadata.RemainingItemCount, 0), nil
}

// budget says why no slot may be taken for the health of the other nodes, or nothing. A node that reboots counts as not
// Ready too. It is asked only when a slot is free.
func (c *Client) budget(ctx context.Context, r Request, leases []coordinationv1.Lease) (why string, err error) {
	if r.ControlPlane {
		others, err := c.others(ctx, controlPlaneLabel)
		if err != nil {
			return "", err
		}
		if why := lastOfControlPlane(others, leases); why != "" {
			return why, nil
		}
		if r.Pool == controlPlanePool {
			return overBudget(others, r.Pool, c.maxNotReady), nil
		}
	}
	if c.maxNotReady == nil {
		return "", nil
	}
	others, err := c.others(ctx, c.selector(r.Pool))
	if err != nil {
		return "", err
	}
	return overBudget(others, r.Pool, c.maxNotReady), nil
}

// health is one node as `kubectl get nodes` shows it.
type health struct {
	name  string
	ready bool
}

// lastOfControlPlane keeps one control-plane node beside us Ready, where there is one beside us (kubereboot/kured#841).
// One that holds a slot may be Ready, and will not be in a moment.
func lastOfControlPlane(others []health, leases []coordinationv1.Lease) string {
	var down []health
	for _, n := range others {
		leaves := ofNode(leases, n.name) != nil
		if n.ready && !leaves {
			return ""
		}
		if leaves {
			n.name += " with a slot"
		}
		down = append(down, n)
	}
	if len(down) == 0 {
		return ""
	}
	return fmt.Sprintf("no other control-plane node is Ready (%s): a reboot would leave 0", names(down))
}

// unlessLast gives a slot back that leaves the control plane without a Ready node: of two that took theirs at the same
// moment, each looked before the other's was there. Slots of all pools count.
func (c *Client) unlessLast(ctx context.Context, mine Result) (Result, error) {
	leases, err := c.list(ctx, "", false)
	why := ""
	if err == nil {
		var others []health
		if others, err = c.others(ctx, controlPlaneLabel); err == nil {
			why = lastOfControlPlane(others, leases)
		}
	}
	if err == nil && why == "" {
		return mine, nil
	}
	return Result{Why: why}, errors.Join(err, c.Release(context.WithoutCancel(ctx), mine.Name, mine.UID))
}

// overBudget allows most of the pool's other nodes to be not Ready; nil: any number.
func overBudget(others []health, pool string, most *int) string {
	var down []health
	for _, n := range others {
		if !n.ready {
			down = append(down, n)
		}
	}
	if most == nil || len(down) <= *most {
		return ""
	}
	return fmt.Sprintf("%d other nodes of pool %q are not Ready (%s), and slot.max_not_ready is %d",
		len(down), pool, names(down), *most)
}

func names(nodes []health) string {
	const shown = 3
	var all []string
	for i, n := range nodes {
		if i == shown {
			all = append(all, fmt.Sprintf("and %d more", len(nodes)-shown))
			break
		}
		all = append(all, text.Line(n.name, maxText))
	}
	return strings.Join(all, ", ")
}

// others lists the nodes that the selector selects but our own, as a table: whole Nodes are some ten kilobytes each.
func (c *Client) others(ctx context.Context, selector string) ([]health, error) {
	raw, err := api.Body(c.core.Get().Resource("nodes").
		SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").
		Param("includeObject", "None").Param("resourceVersion", "0").Param("labelSelector", selector).
		MaxRetries(0).Do(ctx))
	if err != nil {
		return nil, fmt.Errorf("looking at the other nodes: %w", err)
	}
	nodes, err := parseTable(raw)
	if err != nil {
		return nil, fmt.Errorf("looking at the other nodes: %w", err)
	}
	return slices.DeleteFunc(nodes, func(n health) bool { return n.name == c.node }), nil
}

// parseTable reads the columns Name and Status, the latter such as "Ready", "NotReady,SchedulingDisabled" or "Unknown".
func parseTable(raw []byte) ([]health, error) {
	var table struct {
		Columns []struct {
			Name string `json:"name"`
		} `json:"columnDefinitions"`
		Rows []struct {
			Cells []any `json:"cells"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(raw, &table); err != nil {
		return nil, err
	}
	name, status := -1, -1
	for i, column := range table.Columns {
		switch column.Name {
		case "Name":
			name = i
		case "Status":
			status = i
		}
	}
	if name < 0 || status < 0 {
		return nil, errors.New("the answer is not a table with the columns Name and Status")
	}
	nodes := make([]health, 0, len(table.Rows))
	for _, row := range table.Rows {
		if len(row.Cells) <= max(name, status) {
			return nil, errors.New("a row of the table is too short")
		}
		n, ok1 := row.Cells[name].(string)
		s, ok2 := row.Cells[status].(string)
		if !ok1 || !ok2 {
			return nil, errors.New("a name or status in the table is not a string")
		}
		nodes = append(nodes, health{n, slices.Contains(strings.Split(s, ","), "Ready")})
	}
	return nodes, nil
}
