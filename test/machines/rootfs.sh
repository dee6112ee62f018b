#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rootfs.sh SUITE [PACKAGE...]: builds a small Debian root once, with more packages if any are named, keeps it in the
# user's cache, and prints its path. Needs root. The mirror is the one that this host's apt uses.
set -eu
suite=${1:?usage: rootfs.sh SUITE [PACKAGE...]}
shift
kind=$suite$(printf '+%s' "$@" | sed 's/^+$//')
hash=$(sha256sum <"$0" | cut -c1-12)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kured-agent
root=$cache/rootfs-$kind-$hash
mkdir -p "$cache"

exec 9>"$cache/rootfs-$kind.lock"
flock 9
if [ -d "$root" ]; then
	echo "$root"
	exit
fi
echo "building a Debian root ($kind), first time only, about half a minute" >&2
# Debian 11 has other names: dbus-bin is part of dbus, and polkitd is in policykit-1.
packages=systemd,systemd-sysv,dbus,libpam-systemd,iproute2,procps,ca-certificates
case $suite in
bullseye) packages=$packages,policykit-1 ;;
*) packages=$packages,dbus-bin,polkitd ;;
esac
for package; do packages=$packages,$package; done
# shellcheck disable=SC1091
host=$(. /etc/os-release && echo "$VERSION_CODENAME")
sources=$(mktemp --suffix=.sources)
trap 'rm -rf "$sources" "$root.new"' EXIT
# Signed-By goes: the keyring named there may be too old for another suite; apt's own trusted keys are used.
if [ -e /etc/apt/sources.list.d/debian.sources ]; then
	sed "s/\b$host\b/$suite/g; /^Signed-By/d" /etc/apt/sources.list.d/debian.sources >"$sources"
else
	mv "$sources" "${sources%.sources}.list"
	sources=${sources%.sources}.list
	sed -n "s/\b$host\b/$suite/g; s/\[[^]]*\]//; /^deb /p" /etc/apt/sources.list >"$sources"
fi
rm -rf "$root.new"
mmdebstrap --quiet --mode=root --variant=minbase \
	--include="$packages" \
	--aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
	--aptopt='Acquire::Check-Valid-Until "false"' --dpkgopt=force-unsafe-io \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	"$suite" "$root.new" "$sources" >&2
# No nightly jobs in a test, and no login on a console that is a pipe.
for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer \
	e2scrub_reap.service console-getty.service getty@tty1.service; do
	ln -sf /dev/null "$root.new/etc/systemd/system/$unit"
done
# mmdebstrap copies these from the host; every machine gets its own.
rm -f "$root.new/etc/hostname" "$root.new/etc/resolv.conf" "$root.new/var/lib/dbus/machine-id"
: >"$root.new/etc/machine-id"
# The journal of earlier boots is what a failed test is explained with.
mkdir -p "$root.new/var/log/journal"
mv "$root.new" "$root"
echo "$root"
