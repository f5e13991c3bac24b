package stack_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// fakeAWS answers the commands of prove.sh as a stack does that has been called.
const fakeAWS = `#!/usr/bin/env bash
case "$*" in
*get-function-configuration*) printf 'PER_TENANT\t900\t%s\tarn:aws:iam::1:role/boxes\n' "${VARIABLES:-null}" ;;
*get-function-event-invoke-config*) printf '0\t60\n' ;;
*"lambda invoke"*"--tenant-id"*)
  printf '{"state":"stopped","exitCode":1,"reason":"the event is no invitation"}' >"${*: -1}"
  printf 'REPORT RequestId: 1\tDuration: 2.5 ms\tInit Duration: 310.20 ms\n' | base64 ;;
*"lambda invoke"*) echo 'An error occurred (InvalidParameterValueException) when calling the Invoke operation' >&2; exit 254 ;;
*list-attached-role-policies*) ;;
*list-role-policies*) echo log ;;
*get-role-policy*) printf '%s\n' "${ACTIONS:-$(printf 'logs:CreateLogStream\tlogs:PutLogEvents')}" ;;
*filter-log-events*/http*) for ms in ${ANSWERS-900 1100 1300}; do echo "{\"wake_first_answer_ms\":$ms}"; done ;;
*filter-log-events*/box*Runtime*) printf '%s' "${ERRORS-}" ;;
*filter-log-events*/box*REPORT*) printf 'REPORT RequestId: 1\tDuration: 81234.50 ms\tBilled\n' ;;
*filter-log-events*/box*welcomed*) echo one; echo two ;;
*filter-log-events*) ;;
*) echo "the fake has no answer to $*" >&2; exit 2 ;;
esac
`

// prove runs prove.sh with the fake, and returns its lines and whether it found no fault.
func prove(t *testing.T, env ...string) (said string, holds bool) {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "aws"), []byte(fakeAWS), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "./prove.sh", "stack")
	cmd.Env = append(append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH")), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func TestProofOfAStackSaysAVerdictALine(t *testing.T) {
	said, holds := prove(t)
	if !holds || strings.Contains(said, "FAILS") || strings.Contains(said, "no answer") {
		t.Errorf("a stack that is as it should be:\n%s", said)
	}
	for _, want := range []string{
		"holds   stack-box-512: no environment serves two boxes: PER_TENANT", "the runner answers (cold; Duration: 2.5 Init Duration: 310.20 )",
		"seen    the longest life of a box: 81234.50 ms", "seen    starts that came twice: 0 beside 2", "holds   first answer of a wake, median, at most 2500 ms: yes",
	} {
		commontest.Contains(t, "", want, said)
	}
	for what, c := range map[string]struct{ env, want string }{
		"a variable":   {`VARIABLES={"KEY":"x"}`, `FAILS   stack-box-512: has no variables: {"KEY":"x"}`},
		"a right":      {"ACTIONS=logs:PutLogEvents	lambda:InvokeFunction", "FAILS   the role of boxes may write to its log and do nothing else"},
		"slow answers": {"ANSWERS=900 9000 9500", "FAILS   first answer of a wake, median, at most 2500 ms: 9000 ms"},
		"an error":     {"ERRORS=Runtime.ExitError\n", "FAILS   the service takes a response that is held"},
	} {
		t.Run(what, func(t *testing.T) {
			if said, holds := prove(t, c.env); holds || !strings.Contains(said, c.want) {
				t.Errorf("%s: %s", what, said)
			}
		})
	}
	if said, holds := prove(t, "ANSWERS="); !holds || !strings.Contains(said, "unknown first answer of a wake, median: nobody has called in the last hour") {
		t.Errorf("nobody has called: %s", said)
	}
}
