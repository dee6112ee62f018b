#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the packages of this machine's architecture twice, as two strangers would: in folders of different names, under
# another umask, time zone, language and home, the second with an empty build cache. Fails when a byte differs.
set -eu
cd "$(dirname "$0")/.."
export VERSION="${VERSION:?}" SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:?}"
arch=$(go env GOHOSTARCH)
modules=$(go env GOMODCACHE) cache=$(go env GOCACHE)
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# build FOLDER UMASK NAME=VALUE...: the tree as it is, what git ignores left out.
build() {
    folder=$work/$1 mask=$2
    shift 2
    mkdir -p "$folder"
    git ls-files -z --cached --others --exclude-standard | xargs -0 tar -c | tar -x -C "$folder"
    (umask "$mask" && env GOMODCACHE="$modules" GOCACHE="$cache" "$@" "$folder/packaging/build.sh" "$arch")
    (cd "$folder/dist" && find . -name '*.deb' -o -name '*.rpm' -o -name '*.cdx.json' -o -name '*.licenses' |
        sort | xargs sha256sum) >"$work/sums"
}
build first 022 TZ=UTC LC_ALL=C
mv "$work/sums" "$work/before"
build another/of/a/longer/name 077 COMPILE_CACHE="$work/cache" TZ=Asia/Kathmandu LC_ALL=C.UTF-8 HOME="$work"
diff -u "$work/before" "$work/sums"
cat "$work/sums"
