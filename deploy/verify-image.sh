#!/usr/bin/env bash
# Builds the server image for CPU hosts with buildah instead of a Docker engine, and checks that the image serves a
# bundle. Run as root or under `buildah unshare`. The ports 50051 and 9464 must be free.
#
#   deploy/verify-image.sh BUNDLE [OPTION OF buildah build]...
set -euo pipefail
bundle=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
export BUILDAH_ISOLATION=chroot

fail() {
    echo "verify-image: $1" >&2
    exit 1
}
in_container() { buildah run --volume "$bundle:/bundles/default:ro" "$container" -- "$@"; }
# `buildah run` does not forward signals to the process in the container, so stop() sends the signal inside.
serve() { in_container sh -c 'echo $$ > /tmp/server.pid && exec headwaiter-server --provider cpu'; }
stop() { in_container sh -c 'kill -TERM "$(cat /tmp/server.pid)"'; }
clean_up() {
    [ -z "${server:-}" ] || stop 2> /dev/null || true
    buildah rm "$container" > /dev/null
}

# shellcheck disable=SC2046 # two words: TAG=… and REVISION=…
export $(deploy/tag.sh)
buildah build --format docker --tag headwaiter-verify --build-arg PROVIDER=cpu \
    --build-arg "VERSION=$TAG" --build-arg "REVISION=$REVISION" "$@" .
container=$(buildah from --pull-never headwaiter-verify)
trap clean_up EXIT

user=$(in_container id -u)
[ "$user" = 10001 ] || fail "the image runs as user $user instead of 10001: check USER in the Dockerfile"
label=$(buildah inspect --format '{{index .OCIv1.Config.Labels "org.opencontainers.image.revision"}}' "$container")
[ "$label" = "$REVISION" ] || fail "the image's label names the commit '$label' instead of $REVISION: check its LABEL"
in_container python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is not None)' ||
    fail "the image contains torch: check the requirements of the extra 'server'"
# Nothing is left to install if each package has the locked version.
in_container pip install --quiet --no-cache-dir --no-index --no-deps --dry-run --require-hashes \
    --requirement /requirements.txt ||
    fail "the image has other versions than requirements/server-cpu.txt: check the Dockerfile"
serve &
server=$!
until in_container headwaiter-client probe 2> /dev/null; do
    kill -0 "$server" 2> /dev/null || fail "the server exited before it was serving: read its log above"
    sleep 1
done
stop
wait "$server" || fail "the server exited with status $? after SIGTERM instead of 0"
server=
echo "verify-image: the image serves a bundle, and exits with 0 after SIGTERM"
