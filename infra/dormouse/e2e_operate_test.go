//go:build e2e

package dormouse_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// operate runs a command of dormouse and returns its whole output and its exit code.
func operate(t *testing.T, args ...string) (printed string, code int) {
	t.Helper()
	return operateWith(t, "", nil, args...)
}

// operateWith is as operate, with a standard input and more variables.
func operateWith(t *testing.T, stdin string, env []string, args ...string) (printed string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "dormouse"), args...)
	cmd.Stdin, cmd.Env = strings.NewReader(stdin), append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return string(out), code
}

// The functions are programs, so the API on the endpoint has only the data that it has on
// AWS.
func TestE2ECommandsWorkOverAURLWithTheKeyOfAnOperator(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil}).asPrograms()
	m.start("--access", "keys")
	url := strings.TrimSuffix(m.urls["one"], "/one/mcp")
	keys := map[string]string{}
	for role, flags := range map[string][]string{
		"user": nil, "viewer": {"--role", "viewer"}, "operator": {"--role", "operator"}, "stranger": {"--role", "operator", "--tenant", "other"},
	} {
		keys[role] = m.keys("create", append([]string{"ada", "--server", "one"}, flags...)...)
	}
	at := func(role string, args ...string) (string, int) {
		return operate(t, append(args, "--url", url, "--key", keys[role])...)
	}
	if out, code := at("operator", "call", "one", "echo", "text=hello"); code != 0 || !strings.Contains(out, "hello") {
		t.Errorf("call: %d, %s", code, out)
	}
	c := m.as(keys["user"], "one")
	if got := c.text("count", ""); got != "1" {
		t.Fatalf("count: %q", got)
	}
	for _, test := range []struct {
		role, line, want string
		code             int
	}{
		{"operator", "list", "one   awake", 0},
		{"viewer", "list", "one   awake", 0},
		{"viewer", "sessions", c.session[:12], 0},
		{"stranger", "sessions --json", "[]\n", 0},
		{"stranger", "keys list --json", `"tenant": "other"`, 0},
		{"operator", "ps", "one     awake  default", 0},
		{"operator", "tools one", "echo", 0},
		{"operator", "logs one", "aws logs tail", 1},
		{"operator", "bill", "not counted here", 1},
		{"viewer", "stop one", "needs an API key of role operator", 1},
		{"viewer", "call one echo text=x", "for looking only, or for other servers", 1},
		{"user", "list", "may only call servers", 1},
		{"user", "tools one", "echo", 0},
		{"user", "call one echo text=hello", "hello", 0},
		{"stranger", "stop --all", "Nothing was running.", 0},
		{"stranger", "end " + c.session[:12], "no session", 1},
		{"operator", "stop one --now --json", "default/one", 0},
		{"operator", "keys create bob --server one", "dm_", 0},
		{"operator", "keys rotate bob", "is valid until", 0},
		{"operator", "end " + c.session[:12], "", 0},
	} {
		t.Run(test.role, func(t *testing.T) {
			if out, code := at(test.role, strings.Fields(test.line)...); code != test.code || !strings.Contains(out, test.want) {
				t.Errorf("%s, as %s: exit code %d, want %d: %s", test.line, test.role, code, test.code, out)
			}
		})
	}
	if out, code := operate(t, "list", "--url", url, "--key", "wrong"); code != 1 || !strings.Contains(out, "API key is unknown") {
		t.Errorf("with a wrong key: %d, %s", code, out)
	}
	if out, code := operate(t, "list", "--url", "http://127.0.0.1:1", "--key", "x"); code != 3 {
		t.Errorf("where nothing answers: %d, %s", code, out)
	}
}

func TestE2ELogsFollowsThroughAStop(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start()
	follow := exec.CommandContext(t.Context(), filepath.Join(programs, "dormouse"), "logs", "one", "-f", "--data", m.data) //nolint:gosec // the built program
	out := newJournal()
	follow.Stdout = out
	commontest.OK(t, follow.Start())
	c := m.session("one")
	c.text("count", "")
	started := func(n int) func() bool {
		return func() bool {
			lines, _ := out.lines()
			return strings.Count(strings.Join(lines, "\n"), " started") >= n
		}
	}
	m.eventually(patience, "the start of the process is shown", started(1))
	operate(t, "stop", "one", "--data", m.data)
	c.text("count", "")
	m.eventually(patience, "the start of the next process is shown", started(2))
	commontest.OK(t, follow.Process.Signal(os.Interrupt))
	commontest.CheckIn(t, "it ended with", follow.Wait())
}
