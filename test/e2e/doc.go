// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the packages as they are shipped, on booted Debian machines that really reboot, against a real API
// server. What depends on the version of systemd, D-Bus or polkit runs on every release of machines.Suites, the rest on
// one of them. "make e2e" builds what it needs; the tests carry the build tag e2e and need root.
package e2e
