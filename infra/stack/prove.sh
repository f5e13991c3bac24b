#!/usr/bin/env bash
# Checks on a real account what only an account can show of boxes on Lambda:
#   infra/stack/prove.sh STACK
# make boxes has deployed the boxes, and some clients have called a server with place: lambda in
# the last hour. The script invokes each function for boxes three times, with events that
# are no boxes, and changes nothing. It needs the AWS CLI with credentials and a region. It
# prints a verdict a line, and ends with 1 if a check has failed.
set -uo pipefail
stack=${1:?name the stack: infra/stack/prove.sh STACK}
failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT

# verdict WHAT PATTERN GOT: the check holds if all that was got matches the pattern.
verdict() {
  if grep -Eq "^($2)\$" <<<"$3"; then printf 'holds   %s: %s\n' "$1" "$3"; else printf 'FAILS   %s: %s\n' "$1" "${3:-nothing}"; failed=1; fi
}

# logged GROUP PATTERN: the messages of the last hour in a log group of the stack.
logged() {
  aws logs filter-log-events --log-group-name "/dormouse/$stack/$1" --start-time "$((($(date +%s) - 3600) * 1000))" \
    --filter-pattern "$2" --query 'events[].[message]' --output text
}

# quantile P: the P-th percentile of the numbers on stdin.
quantile() { sort -n | awk -v p="$1" '{ x[NR] = $1 } END { if (NR) { i = int(NR * p / 100 + 0.999); print x[i < 1 ? 1 : i] } }'; }

# within WHAT LIMIT GOT: the check holds if a time in milliseconds is at most the limit.
within() {
  if [ -z "$3" ]; then printf 'unknown %s: nobody has called in the last hour\n' "$1"; return; fi
  verdict "$1, at most $2 ms" yes "$(awk -v got="$3" -v limit="$2" 'BEGIN { print got <= limit ? "yes" : got " ms" }')"
}

for size in 512 1024 2048; do
  f=$stack-box-$size tenant=prove-$RANDOM$RANDOM
  about=$(aws lambda get-function-configuration --function-name "$f" --output text \
    --query '[TenancyConfig.TenantIsolationMode, Timeout, to_string(Environment.Variables), Role]')
  read -r isolation timeout variables role <<<"$about"
  verdict "$f: no environment serves two boxes" PER_TENANT "$isolation"
  verdict "$f: lives for 15 minutes" 900 "$timeout"
  verdict "$f: has no variables" null "$variables"
  verdict "$f: no event is tried twice, or after a minute" $'0\t60' "$(aws lambda get-function-event-invoke-config \
    --function-name "$f" --query '[MaximumRetryAttempts, MaximumEventAgeInSeconds]' --output text)"
  verdict "$f: no event without a box is taken" '.*InvalidParameterValueException.*' \
    "$(aws lambda invoke --function-name "$f" --cli-binary-format raw-in-base64-out --payload '{}' "$out" 2>&1 | tr '\n' ' ')"
  for start in cold warm; do
    : >"$out"
    took=$(aws lambda invoke --function-name "$f" --tenant-id "$tenant" --cli-binary-format raw-in-base64-out --payload '{}' --log-type Tail --query LogResult --output text "$out" |
      base64 -d 2>/dev/null | grep -oE '(Init )?Duration: [0-9.]+' | tr '\n' ' ')
    verdict "$f: the runner answers ($start; ${took:-no times})" '.*the event is no invitation.*' "$(cat "$out")"
  done
done

role=${role##*/}
verdict 'the role of boxes has no policy of others' '' "$(aws iam list-attached-role-policies --role-name "$role" --query 'AttachedPolicies[].PolicyName' --output text)"
verdict 'the role of boxes may write to its log and do nothing else' $'logs:CreateLogStream\tlogs:PutLogEvents' "$(
  for policy in $(aws iam list-role-policies --role-name "$role" --query 'PolicyNames[]' --output text); do
    aws iam get-role-policy --role-name "$role" --policy-name "$policy" --query 'PolicyDocument.Statement[].Action[]' --output text
  done)"

verdict 'the service takes a response that is held: errors of the last hour' 0 "$(logged box '?"Runtime." ?"Task timed out" ?"end the response"' | grep -c .)"
longest=$(logged box '"REPORT RequestId"' | grep -oE '	Duration: [0-9.]+' | grep -oE '[0-9.]+' | quantile 100)
printf 'seen    the longest life of a box: %s ms\n' "${longest:-none}"
welcomed=$(logged box '"welcomed by the host"' | grep -c .)
printf 'seen    starts that came twice: %s beside %s\n' "$(logged box '"fenced by a newer runner"' | grep -c .)" "$welcomed"
printf 'seen    lost boxes: %s\n' "$(logged sweep '"box lost"' | grep -c .)"
first=$(logged http '{ $.wake_first_answer_ms = * }' | grep -oE '"wake_first_answer_ms":[0-9]+' | grep -oE '[0-9]+$')
within 'first answer of a wake, median' 2500 "$(quantile 50 <<<"$first")"
within 'first answer of a wake, 95 of 100' 4000 "$(quantile 95 <<<"$first")"
exit "$failed"
