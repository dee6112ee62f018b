// SPDX-License-Identifier: Apache-2.0

package slot

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kured-agent/kured-agent/internal/text"
)

// Names in the protocol; packaging/kubernetes knows them too.
const (
	poolsName = "kured-agent-pools"
	pausedKey = "paused"

	poolLabel       = "kured-agent/pool"
	bootAnnotation  = "kured-agent/boot-id"
	phaseAnnotation = "kured-agent/phase"

	maxSlots = 9999 // four digits in the name, as the admission policy has it
	maxPool  = 50
	maxText  = 200 // of one name or reason, in a why
)

var poolName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

func slotName(pool string, index int) string { return "slot-" + pool + "-" + strconv.Itoa(index) }

// view is what a pool looks like to one agent at one moment.
type view struct {
	Mine *coordinationv1.Lease // a slot in our name, of whatever boot
	Free []int                 // indices that may be tried
	Why  string                // why none may
}

// choose is the semaphore: a slot is free when fewer leases exist than the pool has slots. It counts every lease of the
// pool, also one it cannot read: an unknown holder is a holder (kubereboot/kured#478).
func choose(pools map[string]string, pool string, leases []coordinationv1.Lease, me string) view {
	v := view{Mine: ofNode(leases, me)}
	if v.Mine != nil {
		return v
	}
	if reason, paused := pools[pausedKey]; paused {
		v.Why = "the fleet is paused"
		if reason = text.Line(reason, maxText); reason != "" {
			v.Why += ": " + reason
		}
		return v
	}
	var n int
	if n, v.Why = slots(pools, pool); v.Why != "" {
		return v
	}
	if len(leases) >= n {
		v.Why = held(pool, n, leases)
		return v
	}
	taken := map[string]bool{}
	for i := range leases {
		taken[leases[i].Name] = true
	}
	for i := range n {
		if !taken[slotName(pool, i)] {
			v.Free = append(v.Free, i)
		}
	}
	return v
}

func ofNode(leases []coordinationv1.Lease, node string) *coordinationv1.Lease {
	for i := range leases {
		if holder(&leases[i]) == node {
			return &leases[i]
		}
	}
	return nil
}

func badPool(pool string) string {
	if pool == pausedKey || len(pool) > maxPool || !poolName.MatchString(pool) {
		return fmt.Sprintf("%q cannot be the name of a pool: lower-case letters, digits and dashes, at most %d",
			text.Line(pool, maxText), maxPool)
	}
	return ""
}

// slots reads N of the pool, or says what to do when there is none.
func slots(pools map[string]string, pool string) (n int, why string) {
	value, ok := pools[pool]
	if !ok {
		return 0, fmt.Sprintf("pool %q is not in ConfigMap %s, and the admission policy gives no slot without it: %s",
			pool, poolsName, setSlots(pool))
	}
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil || n < 0 || n > maxSlots {
		return 0, fmt.Sprintf("ConfigMap %s says %q for pool %q, which is not a number of slots from 0 to %d: %s",
			poolsName, text.Line(value, maxText), pool, maxSlots, setSlots(pool))
	}
	if n == 0 {
		return 0, fmt.Sprintf("pool %q has 0 slots", pool)
	}
	return n, ""
}

func setSlots(pool string) string {
	return fmt.Sprintf(`kubectl -n kured-agent patch configmap %s --type merge -p '{"data":{%q:"1"}}'`, poolsName, pool)
}

func held(pool string, n int, leases []coordinationv1.Lease) string {
	const shown = 3
	leases = slices.SortedFunc(slices.Values(leases), func(a, b coordinationv1.Lease) int {
		return strings.Compare(a.Name, b.Name)
	})
	var parts []string
	for i := range leases[:min(shown, len(leases))] {
		parts = append(parts, describe(&leases[i]))
	}
	if more := len(leases) - shown; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	if n == 1 {
		return fmt.Sprintf("the slot of pool %q is taken: %s", pool, strings.Join(parts, ", "))
	}
	return fmt.Sprintf("all %d slots of pool %q are taken: %s", n, pool, strings.Join(parts, ", "))
}

func describe(lease *coordinationv1.Lease) string {
	who := text.Line(holder(lease), maxText)
	if who == "" {
		who = "an unknown holder"
	}
	by := text.Line(lease.Name, maxText) + " by " + who
	if lease.Spec.AcquireTime != nil {
		by += " since " + lease.Spec.AcquireTime.UTC().Format("2006-01-02T15:04:05Z")
	}
	return by
}

func holder(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// ownerUID is the Node object that the lease belongs to, and goes away with.
func ownerUID(lease *coordinationv1.Lease) string {
	for _, owner := range lease.OwnerReferences {
		if owner.Kind == "Node" {
			return string(owner.UID)
		}
	}
	return ""
}
