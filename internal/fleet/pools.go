// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	maxSlots = 9999 // four digits in a slot's name, as the admission policy has it
	maxPool  = 50
	maxText  = 200 // of one reason
	maxName  = 253 // of a node
)

// Pools without a name in any configuration: the agent finds them by the Node's role.
const (
	controlPlanePool = "control-plane"
	defaultPool      = "default"
)

var (
	poolName          = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	controlPlaneRoles = []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}
)

// Pool is one pool as the ConfigMap and the slots show it.
type Pool struct {
	Name    string   `json:"name"`
	N       int      `json:"n"`                 // slots; 0 with a problem
	Problem string   `json:"problem,omitempty"` // why no agent gets a slot of it
	Holders []string `json:"holders"`           // nodes, sorted; a holder that cannot be read is "?"
}

// Pools is every pool, and whether slots are given out at all.
type Pools struct {
	Paused    bool   `json:"paused"`
	PausedWhy string `json:"pausedWhy,omitempty"`
	Pools     []Pool `json:"pools"` // by name
}

// summarize puts slots to their pools. A pool that is held but not listed shows up too.
func summarize(data map[string]string, slots []Slot) Pools {
	all := Pools{Pools: []Pool{}} // an empty list is one in JSON too
	byName := map[string]*Pool{}
	for name, value := range data {
		if name == pausedKey {
			all.Paused, all.PausedWhy = true, text.Line(value, maxText)
			continue
		}
		n, problem := parseSlots(name, value)
		byName[name] = &Pool{Name: text.Line(name, maxText), N: n, Problem: problem, Holders: []string{}}
	}
	for _, slot := range slots {
		pool := byName[slot.Pool]
		if pool == nil {
			pool = &Pool{Name: cmp.Or(slot.Pool, "?"), Problem: "not in the ConfigMap", Holders: []string{}}
			byName[slot.Pool] = pool
		}
		pool.Holders = append(pool.Holders, cmp.Or(slot.Holder, "?"))
	}
	for _, pool := range byName {
		slices.Sort(pool.Holders)
		all.Pools = append(all.Pools, *pool)
	}
	slices.SortFunc(all.Pools, func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// parseSlots reads N the way the agents do.
func parseSlots(name, value string) (n int, problem string) {
	if err := CheckPool(name); err != nil {
		return 0, err.Error()
	}
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil || n < 0 || n > maxSlots {
		return 0, fmt.Sprintf("%q is not a number from 0 to %d", text.Line(value, maxText), maxSlots)
	}
	return n, ""
}

// CheckPool says what is wrong with the name of a pool.
func CheckPool(name string) error {
	if name == pausedKey || len(name) > maxPool || !poolName.MatchString(name) {
		return fmt.Errorf("%q cannot be the name of a pool: lower-case letters, digits and dashes, at most %d, and not %q",
			text.Line(name, maxText), maxPool, pausedKey)
	}
	return nil
}

// ParseSlots reads a number of slots that a human gives.
func ParseSlots(s string) (int, error) {
	if strings.HasSuffix(s, "%") {
		return 0, fmt.Errorf("%q is no number of slots: \"pools sync --max-unavailable %s\" counts the nodes",
			text.Line(s, maxText), text.Line(s, maxText))
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > maxSlots {
		return 0, fmt.Errorf("%q is no number of slots from 0 to %d", text.Line(s, maxText), maxSlots)
	}
	return n, nil
}

// ParsePercent reads "10%".
func ParsePercent(s string) (int, error) {
	digits, ok := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 1 || n > 100 {
		return 0, fmt.Errorf("%q is no whole percentage from 1%% to 100%%: a number of nodes is set by \"pools set\"",
			text.Line(s, maxText))
	}
	return n, nil
}

// Resolve is how many of the nodes may be away: rounded down, but one node can always go.
func Resolve(percent, nodes int) int { return min(max(1, nodes*percent/100), maxSlots) }

// LosesQuorum is whether so many control-plane nodes away at once would stop a cluster that keeps its etcd on them.
func LosesQuorum(pool string, slots, nodes int) bool {
	return pool == controlPlanePool && slots > 1 && slots > (nodes-1)/2
}

// Members says which nodes are in a pool.
type Members struct {
	selector string
	has      func(labels map[string]string) bool
}

// MembersOf returns the nodes that a label selector finds. Without one, those that the agent would put in that pool by
// their role; it cannot know whose configuration names another pool.
func MembersOf(pool, selector string) (Members, error) {
	everyone := func(map[string]string) bool { return true }
	if selector != "" {
		if err := CheckSelector(selector); err != nil {
			return Members{}, err
		}
		return Members{selector: selector, has: everyone}, nil
	}
	switch pool {
	case controlPlanePool:
		return Members{has: isControlPlane}, nil
	case defaultPool:
		return Members{has: func(l map[string]string) bool { return !isControlPlane(l) }}, nil
	}
	return Members{}, fmt.Errorf("which nodes are in pool %q only their own configuration knows: give --selector", pool)
}

func isControlPlane(labels map[string]string) bool {
	return slices.ContainsFunc(controlPlaneRoles, func(role string) bool { _, ok := labels[role]; return ok })
}

// Count returns how many nodes the pool has. It lists their metadata only.
func (c *Client) Count(ctx context.Context, members Members) (int, error) {
	n := 0
	err := each(ctx, func() *rest.Request {
		r := c.nodes(c.rest.Get()).
			SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
		if members.selector != "" {
			r.Param("labelSelector", members.selector)
		}
		return r
	}, func(item *struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}) {
		if members.has(item.Metadata.Labels) {
			n++
		}
	})
	if err != nil {
		return 0, fail("counting the nodes", err, "")
	}
	return n, nil
}

// Pools reads the pools and who holds their slots.
func (c *Client) Pools(ctx context.Context) (Pools, error) {
	config, err := c.readConfig(ctx)
	if err != nil {
		return Pools{}, fail("reading "+c.configName(), err, wayInstall)
	}
	slots, err := c.slots(ctx)
	if err != nil {
		return Pools{}, err
	}
	return summarize(config.Data, slots), nil
}

// SetSlots writes how many nodes of the pool may be away.
func (c *Client) SetSlots(ctx context.Context, pool string, n int) (Change, error) {
	if err := CheckPool(pool); err != nil {
		return Change{}, err
	}
	value := strconv.Itoa(n)
	return c.edit(ctx, pool, &value)
}

// Pause lets no agent take a slot. A pause of somebody else is replaced, and returned as Before.
func (c *Client) Pause(ctx context.Context, why string) (Change, error) {
	return c.edit(ctx, pausedKey, &why)
}

// Resume ends the pause.
func (c *Client) Resume(ctx context.Context) (Change, error) { return c.edit(ctx, pausedKey, nil) }

// CheckWhy returns a reason as one printable line. There has to be one: the next human reads it.
func CheckWhy(why string) (string, error) {
	why = text.Plain(why)
	switch {
	case why == "":
		return "", errors.New("the reason is empty: say why, others will read it")
	case len(why) > maxText:
		return "", fmt.Errorf("the reason has %d bytes, and only %d are shown", len(why), maxText)
	}
	return why, nil
}
