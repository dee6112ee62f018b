#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# boot.sh ROOTFS STATE NAME NETNS: one boot of a machine, in the mount namespace that the caller made for it.
# Replaced by systemd-nspawn, whose exit status is 133 when the guest asks for a reboot and 0 when it powers off.
set -eu
rootfs=$1 state=$2 name=$3 netns=$4
# A host in legacy or hybrid mode would make nspawn boot the guest that way too: show it a pure cgroup 2 host.
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/systemd/nspawn
mount -t tmpfs tmpfs /run/systemd/nspawn
mount -t overlay overlay -o "lowerdir=$rootfs,upperdir=$state/upper,workdir=$state/work" "$state/root"
# The kernel is the host's; a new time namespace makes the guest's uptime begin near zero at each boot.
up=$(cut -d. -f1 /proc/uptime)
# --keep-unit: this host may have no system bus to register with.
exec unshare --time --boottime="-$up" --monotonic="-$up" -- \
	systemd-nspawn --quiet --boot --directory="$state/root" --machine="$name" --register=no --keep-unit \
	--private-users=no --network-namespace-path="/run/netns/$netns" --capability=CAP_NET_ADMIN \
	--resolv-conf=off --timezone=off --link-journal=no --kill-signal=SIGRTMIN+4 --console=pipe \
	--bind="$state/share:/share"
