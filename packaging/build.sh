#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build.sh [ARCH [KIND]]: packages into dist/, those of kubectl-kured into dist/kubectl-kured/, for amd64 and arm64, as deb and rpm, unless told which. VERSION is needed.
# The same tree, VERSION and SOURCE_DATE_EPOCH give the same bytes.
set -eu
cd "$(dirname "$0")/.."
export VERSION="${VERSION:?}"
# The time of the commit; of now in a tree without git.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
# Not a later release: those depend on modules that not every Go proxy serves.
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2

mkdir -p dist/man dist/completions dist/kubectl-kured
for page in docs/man/*.[158]; do
    gzip -9nc "$page" >"dist/man/${page##*/}.gz"
done

# With the Go that go.mod names, and for any processor of its kind, whatever the builder has or prefers. COMPILE_CACHE is
# a build cache for our programs alone.
toolchain=$(sed -n 's/^toolchain //p' go.mod)
pinned() {
    env ${COMPILE_CACHE:+GOCACHE="$COMPILE_CACHE"} GOTOOLCHAIN="$toolchain" GOFLAGS= GOEXPERIMENT= \
        GOAMD64=v1 GOARM64=v8.0 go "$@"
}

# Without inlining a tenth of the program's pages are gone, and with them up to 0.9 MiB of the idle agent's resident
# memory. It waits for a living, so the calls that this costs are never noticed.

# compile ARCH: the programs, and for each its licences and its bill of materials.
compile() {
    for program in kured-agent kubectl-kured; do
        CGO_ENABLED=0 GOOS=linux GOARCH=$1 pinned build -trimpath -buildvcs=false -gcflags=all=-l \
            -ldflags "-s -w -X main.version=$VERSION" -o "dist/$1/$program" "./cmd/$program"
        pinned run ./packaging/bill -version "$VERSION" "dist/$1/$program"
    done
}
host=$(go env GOHOSTARCH)
compile "$host"
for program in kured-agent kubectl-kured; do
    for shell in bash fish zsh; do
        "dist/$host/$program" completion "$shell" >"dist/completions/$program.$shell"
    done
done

# package CONFIG KIND FOLDER
package() { go run "$nfpm" package -f "$1" -p "$2" -t "$3"; }

# What is installed, with which mode, changes only together with this list.
same() {
    if command -v dpkg-deb >/dev/null; then
        dpkg-deb -c "$1" | awk '{print $1, $2, $6}' | diff -u "test/packaging/testdata/$2" - >&2
    fi
}

for ARCH in ${1:-amd64 arm64}; do
    export ARCH
    [ "$ARCH" = "$host" ] || compile "$ARCH"
    for kind in ${2:-deb rpm}; do
        package nfpm.yaml "$kind" dist/
        package packaging/kubectl-kured/nfpm.yaml "$kind" dist/kubectl-kured/
        if [ "$kind" = deb ]; then
            same "dist/kured-agent_$VERSION-1_$ARCH.deb" deb.txt
            same "dist/kubectl-kured/kubectl-kured_$VERSION-1_$ARCH.deb" kubectl-kured.txt
        fi
    done
done
