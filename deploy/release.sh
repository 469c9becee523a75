#!/usr/bin/env bash
# Writes what a release consists of into build/release/, and prints the tags of its images. `make release` runs this
# script after `make sbom`, with hatchling on the PATH. The script publishes nothing, and needs no container engine.
set -euo pipefail
cd "$(dirname "$0")/.."
release=build/release

fail() {
    echo "release: $1" >&2
    exit 1
}

# shellcheck disable=SC2046 # two words: TAG=… and REVISION=…
export $(deploy/tag.sh)
version=${TAG%%-*}
[ "$TAG" = "${TAG%-changed}" ] || fail "files that a release contains differ from the commit $REVISION: commit them first"
chart=deploy/kubernetes/headwaiter/Chart.yaml
grep -qx "appVersion: $version" "$chart" || fail "$chart has another appVersion than $version: correct it"
# Text of links into docs/ stays, without targets: the notes are read outside of the repository.
notes=$(awk -v heading="## [$version]" '/^## /{found = index($0, heading) == 1; next} found' CHANGELOG.md |
    sed -zE 's/\[([^]]*)\]\(docs[^)]*\)/\1/g')
[ -n "$notes" ] || fail "CHANGELOG.md has no section [$version]: rename the section [Unreleased]"

rm -rf "$release"
mkdir -p "$release"
hatchling build -d "$release"
cp build/sbom/*.cdx.json "$release"
echo "$notes" > "$release/notes.md"
(cd "$release" && sha256sum -- * > SHA256SUMS)
echo "Files of headwaiter $version are in $release. Tags of the images that \`docker compose --profile export build\` builds:"
printf '%s\n' "headwaiter-server:$TAG" "headwaiter-server-cpu:$TAG" "headwaiter-export:$TAG"
