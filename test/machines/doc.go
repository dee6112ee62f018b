// SPDX-License-Identifier: Apache-2.0

// Package machines boots Debian machines with real systemd, D-Bus, logind and polkit as systemd-nspawn containers, on a
// host that need not run systemd itself. A machine reboots when its logind is asked to, gets a new boot id, a fresh /run
// and a new uptime, and keeps its disk; its power can be cut at any moment.
//
// It needs root on Linux and what install-deps.sh installs. Everything ends with the test, also when that is killed, and
// what a killed test leaves (network namespaces, cgroups, files) the next one clears away.
//
// What a container cannot show: watchdog, udev, kernel panic, fsck, bootloader, kexec; memory and CPU limits of units
// are not enforced.
package machines
