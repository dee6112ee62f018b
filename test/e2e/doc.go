// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the package as it is shipped, on booted Debian machines that really reboot, against a real API
// server. "make e2e" builds what it needs; the tests carry the build tag e2e and need root.
package e2e
