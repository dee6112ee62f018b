#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the test control plane once, keeps it in the user's cache under a name made of its sources, and prints its path.
set -eu
cd "$(dirname "$0")"
version=v1.37.2
hash=$(cat go.mod go.sum main.go | sha256sum | cut -c1-12)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kured-agent
binary=$cache/controlplane-$hash
mkdir -p "$cache"

if [ ! -x "$binary" ]; then
	# Several test packages may ask at once: the second waits and finds it built.
	exec 9>"$cache/controlplane.lock"
	flock 9
fi
if [ ! -x "$binary" ]; then
	began=$(date +%s)
	told() {
		while sleep 15 >/dev/null 2>&1 9>&-; do
			echo "building the test control plane, first time only, about 7 minutes on two cores: $(($(date +%s) - began)) s so far" >&2
		done
	}
	told &
	teller=$!
	trap 'kill $teller 2>/dev/null || true' EXIT
	echo "building the test control plane, first time only, about 7 minutes on two cores" >&2
	# The API server compares versions with clients, so the version of a build without one will not do.
	CGO_ENABLED=0 go build -mod=readonly \
		-ldflags="-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$binary.new" . >&2
	mv "$binary.new" "$binary"
fi
echo "$binary"
