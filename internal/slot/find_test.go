// SPDX-License-Identifier: Apache-2.0

package slot

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// The pool may have been changed in the configuration, and the Node object may have been deleted and created anew.
func TestASlotOfAnotherPoolOrNodeObjectIsFoundAndSaysWhoseItIs(t *testing.T) {
	lease := testLease("slot-workers-3", "n1", "b0")
	lease.Labels[poolLabel] = "workers"
	lease.OwnerReferences[0].UID = types.UID("earlier")
	c := client(t, newLeaseServer(map[string]string{"default": "1"}, testLease("slot-default-0", "n2", "b"), lease))
	got, err := c.Find(t.Context(), "")
	if err != nil || !got.Taken || got.Name != "slot-workers-3" || got.NodeUID != "earlier" || got.Boot != "b0" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// It is deleted together with that object at any moment, so that it must not carry a reboot.
func TestASlotOfAnEarlierNodeObjectIsNotTakenForOurs(t *testing.T) {
	lease := testLease("slot-default-0", "n1", request.Boot)
	lease.OwnerReferences[0].UID = types.UID("earlier")
	got, err := client(t, newLeaseServer(map[string]string{"default": "1"}, lease)).Acquire(t.Context(), request)
	if err != nil || got.Taken || got.Name != "slot-default-0" || !strings.Contains(got.Why, "earlier Node object") {
		t.Errorf("got %+v, %v", got, err)
	}
}
