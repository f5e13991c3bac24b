#!/usr/bin/env bash
# The ten experiments one after the other, in their long forms, and then a soak test for
# the rest of the time: make chaos DURATION=30m. Each prints a line: what was counted, and
# seconds. One that fails does not end the others; the last lines name those that did.
set -uo pipefail
cd "$(dirname "$0")/../.."

case "${1:-10m}" in
  *h) total=$((${1%h} * 3600)) ;;
  *m) total=$((${1%m} * 60)) ;;
  *s) total=${1%s} ;;
  *) echo "the duration is $1; want hours, minutes or seconds, such as 30m" >&2; exit 2 ;;
esac
[ "$total" -ge 120 ] || { echo "$total seconds are too few for twelve parts; want 2m or more" >&2; exit 2; }

logs=$(mktemp -d)
failed=()
share=$((total / 15)) # seconds of one experiment; what it leaves goes to the soak test
seed=$(date +%s)
echo "chaos for $total s: $share s an experiment, seeds from $seed; logs in $logs"

# tests NAME BUILD-TAGS PACKAGE: builds the tests of a package, once.
tests() {
  [ -x "$logs/$1.test" ] || go test ${2:+-tags "$2"} -c -o "$logs/$1.test" "$3"
}

# once NAME PACKAGE-TEST FOLDER PATTERN FLAGS...: runs tests, and adds to the experiment's log.
once() {
  local name=$1 program=$logs/$2.test folder=$3 pattern=$4
  shift 4
  (cd "$folder" && "$program" -test.run "$pattern" -test.v -test.timeout 3h "$@") >>"$logs/$name.log" 2>&1 &&
    ! grep -q 'no tests to run' "$logs/$name.log"
}

# again NAME PACKAGE-TEST FOLDER PATTERN: simulates worlds, of 300 seeds at a time, until the share
# is over.
again() {
  local until=$((SECONDS + share))
  while :; do
    once "$@" -sim.seed "$seed" -sim.seeds 300 || return 1
    seed=$((seed + 300))
    [ "$SECONDS" -lt "$until" ] || break
  done
}

# counted LOG: what the tests of a log have counted. Lists of several lines are added up.
counted() {
  awk '/^ +[a-z0-9_]+_test\.go:[0-9]+: tried and counted: *$/ { list = 1; next }
    list && /^ +[0-9]+ / { n = $1; sub(/^ +[0-9]+ /, ""); if (!($0 in sum)) order[++k] = $0; sum[$0] += n; next }
    { list = 0 }
    /^ +[a-z0-9_]+_test\.go:[0-9]+: / && !/events:$/ { sub(/^ +/, ""); print "    " $0 }
    END { for (i = 1; i <= k; i++) print "    " sum[order[i]] " " order[i] }' "$1"
}

# try NAME WHAT COMMAND...: runs an experiment and prints its line, with the last words of
# its tests.
try() {
  local name=$1 what=$2 begun=$SECONDS verdict=passed
  shift 2
  "$@" || { verdict=FAILED; failed+=("$name"); }
  printf '%s: %s: %s in %d s\n' "$name" "$what" "$verdict" $((SECONDS - begun))
  counted "$logs/$name.log" | cut -c1-400 | tail -n 12
  [ "$verdict" = passed ] || grep -hE '^ *--- FAIL|^panic:' "$logs/$name.log" | head -n 20
}

# How many messages are tried in a share, on two cores.
messages=$((share * 5000))

box() { once "$1" box shared/box "$2" "${@:3}"; }
relay() { again "$1" relay shared/backend/relay "$2"; }
end_to_end() { once "$1" dormouse infra/dormouse "$2"; }
# All faults at every call of the disk take four minutes.
disk() {
  if [ "$total" -ge 1200 ]; then once "$1" sqlitestore shared/store/sqlitestore "$2" -chaos; else once "$1" sqlitestore shared/store/sqlitestore "$2"; fi
}
hostile() {
  once hostile runner infra/runner '^TestHostilePackages' && once hostile relayhost shared/backend/relayserver '^TestHostileRunner$' -hostile.for "${share}s"
}

tests runner '' ./infra/runner && tests box '' ./shared/box &&
  tests relay '' ./shared/backend/relay && tests relayhost '' ./shared/backend/relayserver && tests sqlitestore '' ./shared/store/sqlitestore &&
  tests dormouse e2e ./infra/dormouse || exit 1
# A seal needs Linux, and boxes that are no functions.
[ "$(uname)/${DORMOUSE_TEST_FUNCTIONS:-inside}/${DORMOUSE_TEST_BOXES:-}" != Linux/inside/ ] || seals=on
[ -z "${seals:-}" ] || (cd infra/keeper && CGO_ENABLED=0 go test -c -o "$logs/keeper.test" ./dormouse-keeper) || exit 1

export DORMOUSE_TEST_GREEDY=${share}s
try escape 'a hostile server with each setting and each kind of runner' once escape runner infra/runner '^TestEscapeRoom$'
try readers "$messages nasty messages, read in several ways" box readers TestReadersInGo -readers "$messages"
try pause 'runners and functions that stand still' relay pause '^TestPauseAnything$'
try power 'the power is cut after each call of the disk' disk power '^TestPowerCut'
try disk 'a full and a slow disk' disk disk '^TestFullAndSlowDisk$'
try clocks 'clocks that jump and differ' relay clocks '^TestClocks$'
try greedy 'one principal that takes what it can' end_to_end greedy '^TestE2EGreedyNeighbour$'
try push 'slow WebSocket clients, and what is pushed to them' relay push '^TestPushOnce$'
try hostile 'hostile packages, and a hostile runner' hostile
[ -z "${seals:-}" ] || DORMOUSE_TEST_MEMORY=$((share > 30 ? share : 30))s try memory 'servers that keep their memory, while all is killed' once memory keeper infra/keeper/dormouse-keeper '^(TestMemoryIsThawedOnceWhateverIsKilled|TestCallsWaitForHumansWithoutAProcess)$'
repeats=$((share * 20)) # boxes as on Lambda start more slowly
[ "$total" -lt 1800 ] || [ -n "${DORMOUSE_TEST_BOXES:-}" ] || repeats=10000
export DORMOUSE_TEST_REPEATED=$repeats
try repeats "$DORMOUSE_TEST_REPEATED calls with keys, repeated blindly while everything is killed" end_to_end repeats '^TestE2ECallsWithAKeyAreExecutedOnce$'
rest=$((total - SECONDS))
export DORMOUSE_TEST_SOAK=$((rest > 60 ? rest : 60))s
export DORMOUSE_TEST_SOAK_LISTED=${seals:-}
try soak "two tenants call for $DORMOUSE_TEST_SOAK while everything is killed" end_to_end soak '^TestE2ESoak$'

if [ ${#failed[@]} -gt 0 ]; then
  echo "failed after $SECONDS s: ${failed[*]}; their logs are in $logs"
  exit 1
fi
echo "all held, in $SECONDS s"
rm -rf "$logs"
