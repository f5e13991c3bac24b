#!/usr/bin/env bash
# What a new user meets: a clone into an empty folder, make run, the printed address,
# the first tool result. With empty caches of Go's builds and of
# npm; Go's modules are as they are. Prints the times; fails if anything does.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d)
runner=
finish() {
  if [ -n "$runner" ]; then
    kill -INT "$runner" 2>/dev/null || true
    wait "$runner" 2>/dev/null || true
  fi
  chmod -R u+w "$tmp" && rm -rf "$tmp"
}
trap finish EXIT
now() { date +%s%N; }
seconds() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f s", (b - a) / 1e9 }'; }

git clone --quiet "$here" "$tmp/dormouse"
cd "$tmp/dormouse"
export GOCACHE=$tmp/go-build
# A server's npm cache is in its home folder.
mkdir "$tmp/home"
if [ -f ~/.npmrc ]; then cp ~/.npmrc "$tmp/home"; fi
touch "$tmp/log"
begin=$(now)
make build
built=$(now)
HOME=$tmp/home bin/dormouse run --listen 127.0.0.1:0 2>"$tmp/log" &
runner=$!
until grep -q 'Nothing runs until' "$tmp/log"; do
  kill -0 "$runner" || { cat "$tmp/log" >&2; exit 1; }
done
url=$(now)
endpoint=$(awk '/\/mcp$/ { print $2; exit }' "$tmp/log")
curl -s --max-time 300 -D "$tmp/head" "$endpoint" -H 'Content-Type: application/json' \
  -H 'Accept: application/json, text/event-stream' \
  -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}' >"$tmp/body"
initialized=$(now)
grep -q '"serverInfo"' "$tmp/body" || { cat "$tmp/body" "$tmp/log" >&2; exit 1; }
session=$(tr -d '\r' <"$tmp/head" | awk 'tolower($1) == "mcp-session-id:" { print $2 }')
curl -s --max-time 60 "$endpoint" -H "Mcp-Session-Id: $session" -H 'Content-Type: application/json' \
  -H 'Accept: application/json, text/event-stream' \
  -d '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"message":"hello"}}}' >"$tmp/result"
result=$(now)
grep -q 'Echo: hello' "$tmp/result" || { cat "$tmp/result" "$tmp/log" >&2; exit 1; }
printf 'build, empty build cache        %s\n' "$(seconds "$begin" "$built")"
printf 'dormouse run to the URL         %s\n' "$(seconds "$built" "$url")"
printf 'make run to the URL             %s\n' "$(seconds "$begin" "$url")"
printf 'URL to initialize, npm cold     %s\n' "$(seconds "$url" "$initialized")"
printf 'URL to the first tool result    %s\n' "$(seconds "$url" "$result")"
printf 'make run to first tool result   %s\n' "$(seconds "$begin" "$result")"
