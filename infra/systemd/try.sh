#!/usr/bin/env bash
# try.sh DORMOUSE: boots systemd in a container of this machine's own files, and walks
# docs/vps.md with that program: the units, a kill, a restart, the sleep of the host,
# backup and restore, HTTPS on the ports of the socket unit. One session goes on through
# all of it. The container has a network of its own and keeps its changes in memory.
#
# It needs root and systemd-nspawn, and ends with 69 and a sentence without them.
set -euo pipefail

without() { printf 'NOT RUN: %s.\n' "$1" >&2; exit 69; }

here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { printf 'usage: %s DORMOUSE\n' "$0" >&2; exit 2; }
[ "$(id -u)" = 0 ] || without 'only root can boot a container'
for program in systemd-nspawn nsenter unshare curl openssl python3; do
  command -v "$program" >/dev/null || without "$program is not on the PATH (Debian has systemd-nspawn in systemd-container)"
done
[ -x /lib/systemd/systemd ] || without 'this machine has no systemd to boot'

if [ "${TRY_INSIDE:-}" != yes ]; then
  # A mount namespace of its own: nothing stays mounted, however this ends.
  TRY_INSIDE=yes exec unshare --mount "$0" "$(realpath "$1")"
fi
work=$(mktemp -d)
mount -t tmpfs tmpfs "$work"
mkdir "$work"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root" || without 'this machine gives no overlays'
root=$work/root

# Only what systemd brings, and no service of this machine.
rm -rf "$root"/etc/systemd/system/*.wants
for unit in docker.socket docker.service containerd.service ssh.service networking.service cron.service getty.target console-getty.service systemd-logind.service systemd-timesyncd.service; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
install -m 755 "$1" "$root/usr/local/bin/dormouse"
mkdir -p "$root/etc/dormouse" "$root/etc/systemd/system/dormouse.service.d" "$root/etc/systemd/system/dormouse.socket.d"
cp "$here/dormouse.service" "$here/dormouse.socket" "$root/etc/systemd/system/"
cat >"$root/usr/local/lib/echo.py" <<'END'
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    reply = {"jsonrpc": "2.0", "id": m.get("id"), "error": {"code": -32601, "message": "no such method"}}
    results = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "echo", "version": "1.0.0"}},
        "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": m.get("params", {}).get("arguments", {}).get("message", "")}]},
    }
    if m.get("method") in results:
        del reply["error"]
        reply["result"] = results[m["method"]]
    if "id" in m:
        print(json.dumps(reply, separators=(",", ":")), flush=True)
END
cat >"$root/etc/dormouse/servers.json" <<'END'
{"mcpServers": {"echo": {"command": "/usr/bin/python3", "args": ["/usr/local/lib/echo.py"]}}}
END

systemd-nspawn --quiet --directory="$root" --machine="dormouse-try-$$" --register=no --keep-unit --private-network --boot </dev/null >"$work/boot.log" 2>&1 &
nspawn=$!
stop() {
  local code=$?
  [ "$code" = 0 ] || tail -n 40 "$work/boot.log" >&2
  kill "$nspawn" 2>/dev/null || true
  wait "$nspawn" 2>/dev/null || true
  umount --lazy "$root" "$work" && rmdir "$work"
  exit "$code"
}
trap stop EXIT
inside() { nsenter --target "$leader" --all env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
until leader=$(pgrep -P "$nspawn" | head -n 1) && [ -n "$leader" ] && inside systemctl is-system-running --wait >/dev/null 2>&1; do
  kill -0 "$nspawn" 2>/dev/null || { cat "$work/boot.log" >&2; without 'systemd did not boot'; }
  sleep 0.2
done
inside systemctl --version | head -n 1

say() { printf '%s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; inside journalctl --unit dormouse --no-pager --lines 30 >&2; exit 1; }
flags() { printf '[Service]\nEnvironment="DORMOUSE_FLAGS=%s"\n' "$*" >"$root/etc/systemd/system/dormouse.service.d/override.conf"; inside systemctl daemon-reload; }
post() { # post URL BODY [FLAGS OF CURL]
  local url=$1 body=$2
  shift 2
  inside curl --silent --show-error --max-time 120 --resolve mcp.example.com:443:127.0.0.1 -H "Authorization: Bearer $key" -H 'Host: mcp.example.com' \
    -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' --data "$body" "$@" "$url"
}
endpoint=http://127.0.0.1:8787/echo/mcp
call() { # call MESSAGE: in the one session
  [[ $(post "$endpoint" '{"jsonrpc":"2.0","id":"'"$1"'","method":"tools/call","params":{"name":"echo","arguments":{"message":"'"$1"'"}}}' \
    -H "Mcp-Session-Id: $session" "${tls[@]}") == *'"text":"'"$1"'"'* ]] || fail "the call \"$1\" was not answered"
}
tls=()

flags --public-url https://mcp.example.com
inside systemctl enable --quiet --now dormouse.socket dormouse || fail 'the units do not start'
key=$(inside dormouse keys create ada --server echo --data /var/lib/dormouse 2>/dev/null | head -n 1)
session=$(post "$endpoint" '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"try","version":"1"}}}' \
  --dump-header - --output /dev/null | tr -d '\r' | sed -n 's/^[Mm]cp-[Ss]ession-[Ii]d: //p')
[ -n "$session" ] || fail 'initialize gave no session'
call first
[ "$(inside ps -o user= -C dormouse | sort -u)" = dormouse ] || fail 'it does not run as the user of the unit'
say 'the units host a server, as a user without a home'

inside systemctl kill --signal KILL dormouse
call killed
inside systemctl reload dormouse
inside systemctl restart dormouse
call restarted
say 'the session goes on after a kill and a restart'

flags --public-url https://mcp.example.com --idle 2s --exit-when-idle 2s
inside systemctl disable --quiet dormouse
inside systemctl restart dormouse
call tired
for _ in {1..600}; do [ "$(inside systemctl is-active dormouse || true)" = inactive ] && break; sleep 0.2; done
[ "$(inside systemctl is-active dormouse || true)" = inactive ] || fail 'the service does not end when it is idle'
call woken
say 'the host sleeps, and a connection wakes it'

inside bash -euc 'umask 077; systemctl stop dormouse.socket dormouse
tar -C / --exclude=var/lib/private/dormouse/cache -czf /root/dormouse.tgz etc/dormouse var/lib/private/dormouse
rm -r /etc/dormouse /var/lib/private/dormouse; rm -f /var/lib/dormouse
tar -C / -xzf /root/dormouse.tgz; systemctl start dormouse.socket'
call restored
say 'a backup is restored'

inside openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /etc/dormouse/key.pem -out /etc/dormouse/cert.pem -days 1 \
  -subj /CN=mcp.example.com -addext subjectAltName=DNS:mcp.example.com 2>/dev/null
inside chmod 644 /etc/dormouse/key.pem
printf '[Socket]\nListenStream=\nListenStream=443\nListenStream=444\n' >"$root/etc/systemd/system/dormouse.socket.d/override.conf"
flags --public-url https://mcp.example.com --tls-cert /etc/dormouse/cert.pem --tls-key /etc/dormouse/key.pem
inside systemctl stop dormouse dormouse.socket
inside systemctl start dormouse.socket
endpoint=https://mcp.example.com/echo/mcp tls=(--cacert /etc/dormouse/cert.pem)
call encrypted
say 'HTTPS is served on the ports of the socket unit'
