#!/usr/bin/env bash
# Prints the tag of the images that this commit builds, and the commit, as variables of Docker Compose:
#
#   export $(deploy/tag.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD)
# A tag must not name a commit whose files have changed since.
built_from=(Dockerfile .dockerignore pyproject.toml README.md LICENSE requirements proto playground server export serve client)
changed=$([ -z "$(git status --porcelain -- "${built_from[@]}")" ] || echo -changed)
echo "TAG=$version-${revision:0:12}$changed"
echo "REVISION=$revision$changed"
