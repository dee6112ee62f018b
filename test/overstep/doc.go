// SPDX-License-Identifier: Apache-2.0

// Package overstep takes every kind of credential that an agent may have, and a stranger's, and tries on a real API
// server what none of them may do. The list of what is tried, with the words of each refusal, is the table in
// docs/security.md; what is granted is asked of the API server itself, for every verb of every resource it has.
//
// A Stage tries the same list with one credential on a cluster of the caller's: test/e2e does, with one that it stole.
package overstep
