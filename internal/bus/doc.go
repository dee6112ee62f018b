// SPDX-License-Identifier: Apache-2.0

// Package bus keeps one private connection to the system bus.
//
// A signal is a hint to read the state again, never the truth: it can be lost with the connection, overwritten here in
// a burst, or sent by anybody. The order is therefore always the same: connect, track the owner of every watched name,
// add the matches, and only then tell everyone (OnChange) to read. Every signal's sender is compared with the current
// owner of the name it was watched for, because any local user may send any signal (systemd/systemd#308), and a unicast
// one arrives without a match rule at all.
//
// The connection carries no file descriptors: a stranger could fill the agent's table with them. CallFile is for the
// one method whose answer is one.
package bus
