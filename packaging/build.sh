#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build.sh [ARCH [KIND]]: packages into dist/, for amd64 and arm64, as deb and rpm, unless told which. VERSION is needed.
# The same tree, VERSION and SOURCE_DATE_EPOCH give the same bytes.
set -eu
cd "$(dirname "$0")/.."
export VERSION="${VERSION:?}"
# The time of the commit; of now in a tree without git.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
# Not a later release: those depend on modules that not every Go proxy serves.
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2

mkdir -p dist/man dist/completions
for page in docs/man/*.[58]; do
    gzip -9nc "$page" >"dist/man/${page##*/}.gz"
done

compile() {
    CGO_ENABLED=0 GOOS=linux GOARCH=$1 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" \
        -o "dist/$1/kured-agent" ./cmd/kured-agent
}
host=$(go env GOHOSTARCH)
compile "$host"
for shell in bash fish zsh; do
    "dist/$host/kured-agent" completion "$shell" >"dist/completions/kured-agent.$shell"
done

for ARCH in ${1:-amd64 arm64}; do
    export ARCH
    [ "$ARCH" = "$host" ] || compile "$ARCH"
    for kind in ${2:-deb rpm}; do
        go run "$nfpm" package -f nfpm.yaml -p "$kind" -t dist/
        if [ "$kind" = deb ] && command -v dpkg-deb >/dev/null; then
            # What is installed, with which mode, changes only together with this list.
            dpkg-deb -c "dist/kured-agent_$VERSION-1_$ARCH.deb" | awk '{print $1, $2, $6}' |
                diff -u test/packaging/testdata/deb.txt - >&2
        fi
    done
done
