#!/usr/bin/env bash
# engine.sh COMMAND...: runs a command with a Docker engine within its reach. One that
# is there is used. Else one is started for as long as the command runs: by root, with
# dockerd from the PATH, in namespaces of its own, so that it has no network but
# loopback and its containers', and that nothing of it is left behind.
#
# With ENGINE_INSTALL=yes a Debian machine without dockerd gets it first, which takes
# two minutes at most. It ends with the command's code; with 69, and a way out, if there
# is no engine.
set -euo pipefail

without() {
  printf 'NOT RUN: there is no Docker engine, and none can be started: %s.\n%s\n' "$1" \
    'Start Docker (https://docs.docker.com/engine/install); or, as root on Linux, apt-get install docker.io.' >&2
  exit 69
}

[ $# -gt 0 ] || { printf 'usage: %s COMMAND...\n' "$0" >&2; exit 2; }

if [ "${1:-}" != --inside ]; then
  if command -v docker >/dev/null && timeout 20 docker info >/dev/null 2>&1; then
    exec "$@"
  fi
  if [ "${ENGINE_INSTALL:-}" = yes ] && [ "$(id -u)" = 0 ] && ! command -v dockerd >/dev/null && command -v apt-get >/dev/null; then
    { timeout 60 apt-get update && timeout 120 apt-get install -y --no-install-recommends docker.io iproute2; } >/dev/null 2>&1 || true
  fi
  command -v docker >/dev/null || without 'docker is not on the PATH'
  [ "$(uname -s)" = Linux ] || without 'the one that is installed does not answer'
  command -v dockerd >/dev/null || without 'dockerd is not on the PATH'
  command -v unshare >/dev/null || without 'unshare is not on the PATH (util-linux)'
  command -v ip >/dev/null || without 'ip is not on the PATH (iproute2)'
  [ "$(id -u)" = 0 ] || without 'only root can start one'
  unshare --net --mount true 2>/dev/null || without 'this machine gives no namespaces'
  # Unix sockets have short names, and overlays do not lie on overlays everywhere.
  folder=$(mktemp -d "${TMPDIR:-/tmp}/engine.XXXXXX")
  trap 'rm -rf "$folder"' EXIT
  unshare --net --mount --pid --fork --kill-child --mount-proc "$0" --inside "$folder" "$@"
  exit
fi

folder=$2
shift 2
ip link set lo up
export DOCKER_HOST="unix://$folder/docker.sock" ENGINE_STARTED=yes
dockerd --host "$DOCKER_HOST" --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" \
  --iptables=false --ip6tables=false >"$folder/log" 2>&1 &
engine=$!
for _ in $(seq 150); do
  if docker info >/dev/null 2>&1; then
    up=yes
    break
  fi
  kill -0 "$engine" 2>/dev/null || break
  sleep 0.2
done
if [ -z "${up:-}" ]; then
  tail -n 20 "$folder/log" >&2
  without 'dockerd does not come up, see above'
fi
code=0
"$@" || code=$?
kill "$engine" 2>/dev/null || true
wait "$engine" 2>/dev/null || true
exit "$code"
