#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that "make e2e" and "make demo" need on this host, and says so. Does nothing when all are there.
set -eu
if [ "$(id -u)" != 0 ]; then
	echo "needs root: sudo make ${1:-demo}" >&2
	exit 1
fi
packages="mmdebstrap systemd-container iproute2 dbus util-linux procps"
missing=
for package in $packages; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "Installing on this host:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
# shellcheck disable=SC2086 # a list
apt-get -qq install -y --no-install-recommends $missing >/dev/null
