// SPDX-License-Identifier: Apache-2.0

// Package fleet counts what only many nodes show: the evictions of a whole roll-out under the real scheduler, what
// thousands of waiting agents cost one API server and how soon they take a freed slot, and that never more than N hold
// one. `make fleet` runs it; docs/fleet.md has the figures. A figure that is missed is shown, not failed, because
// machines are noisy; a slot too many fails.
package fleet
