// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import "testing"

// TestFleet measures everything in two streams, so that it ends in eleven minutes: waiting is mostly waiting, and has
// the machine to itself by the time at which it is measured.
func TestFleet(t *testing.T) {
	t.Run("5,000 agents wait", func(t *testing.T) {
		t.Parallel()
		waitingAgents(t)
	})
	t.Run("beside", func(t *testing.T) {
		t.Parallel()
		t.Run("evictions of a whole roll-out", doubleDrain)
		t.Run("fifty agents never hold more than two slots", fiftyAgents)
		t.Run("an hour of waiting, in virtual time", hourOfWaiting)
		t.Run("a slot freed in a cluster of three", clusterOfThree)
	})
}
