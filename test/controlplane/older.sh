#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# older.sh VERSION: builds the kube-apiserver of an older Kubernetes (1.30.14) from Go modules, keeps it in the user's
# cache, and prints its path. Checksums come from the Go checksum database, there is no go.sum for it.
set -eu
version=${1:?}
minor=${version#1.}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kured-agent
binary=$cache/kube-apiserver-$version
if [ ! -x "$binary" ]; then
	mkdir -p "$cache"
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	cd "$dir"
	echo "building kube-apiserver $version, first time only, about 5 minutes on two cores" >&2
	cat >main.go <<-'END'
		package main

		import (
			"os"

			"k8s.io/component-base/cli"
			"k8s.io/kubernetes/cmd/kube-apiserver/app"
		)

		// The first argument is "kube-apiserver", as for the program of build.sh.
		func main() {
			os.Args = os.Args[1:]
			os.Exit(cli.Run(app.NewAPIServerCommand()))
		}
	END
	# It requires its staging modules as v0.0.0: each is replaced by the published one.
	mod=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
	{
		printf 'module older\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$version"
		sed -n "s#^[[:space:]]*\(k8s.io/[a-z0-9-]*\) => ./staging/.*#\1 => \1 v0.$minor#p" "$mod"
		echo ')'
	} >go.mod
	go mod tidy >&2
	CGO_ENABLED=0 go build -ldflags="-s -w -X k8s.io/component-base/version.gitVersion=v$version \
		-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=${minor%%.*}" \
		-o "$binary.new" . >&2
	mv "$binary.new" "$binary"
fi
echo "$binary"
