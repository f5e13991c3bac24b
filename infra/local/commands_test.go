package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// commandsIn returns commands in a folder of their own, with a variable of this program.
func commandsIn(t *testing.T) (c *commands, folder string) {
	t.Helper()
	folder = t.TempDir()
	return newCommands(environ{"PATH=" + os.Getenv("PATH"), "VAULT=v1"}, filepath.Join(folder, "servers.json")), folder
}

func TestACommandGivesAValue(t *testing.T) {
	c, folder := commandsIn(t)
	for _, test := range []struct{ command, want, wrong string }{
		{command: `echo "$VAULT"`, want: "v1"},
		{command: `printf %s "$PWD"`, want: folder},
		{command: `echo s3cret; echo first >&2; echo "s3cret is locked" >&2; exit 3`, wrong: `failed (exit status 3): *** is locked`},
		{command: `head -c 100000 /dev/zero | tr '\0' x >&2; echo >&2; echo "it is locked" >&2; exit 3`, wrong: `failed (exit status 3): it is locked`},
		{command: `true`, wrong: "prints nothing"},
		{command: `head -c 17000 /dev/zero | tr '\0' x`, wrong: "prints more than 16 KB"},
	} {
		t.Run(test.command, func(t *testing.T) {
			got, err := c.run(t.Context(), test.command)
			if test.wrong == "" && (err != nil || got != test.want) {
				t.Errorf("%q, %v, want %q", got, err, test.want)
			}
			if test.wrong != "" && (err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the command %q ", test.command)) || !strings.Contains(err.Error(), test.wrong)) {
				t.Errorf("%v, want %q", err, test.wrong)
			}
		})
	}
}

// A command that takes too long is killed, with what it has started.
func TestACommandIsKilledInTime(t *testing.T) {
	c, _ := commandsIn(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.run(ctx, "sleep 1000 & sleep 1000"); err == nil || !strings.Contains(err.Error(), "did not end within") {
		t.Error(err)
	}
}

// A box gets the values at its wake, or is refused. A header is asked for once in a while.
func TestCommandsRunAtTheWake(t *testing.T) {
	c, folder := commandsIn(t)
	path := filepath.Join(folder, "servers.json")
	commontest.OK(t, os.WriteFile(path, []byte(`{"mcpServers": {"a": {"command": "a", "env": {"TOKEN": "exec:echo x >>ran; cat token"}}}}`), 0o600))
	servers, _, err := serversfile.LoadHere(path, nil)
	commontest.OK(t, err)
	task := fleet.Task{Server: "a", Env: map[string]string{"OWN": "1"}}
	var refused fleet.Refusal
	if _, err := c.filled(t.Context(), servers, task); !errors.As(err, &refused) || !strings.HasPrefix(refused.Why, `env "TOKEN": the command "echo x >>ran; cat token" failed`) {
		t.Error(err)
	}
	commontest.OK(t, os.WriteFile(filepath.Join(folder, "token"), []byte("t0p\n"), 0o600))
	got, err := c.filled(t.Context(), servers, task)
	if err != nil || got.Env["DORMOUSE_ENV_TOKEN"] != "t0p" || got.Env["OWN"] != "1" || len(task.Env) != 1 {
		t.Errorf("%v, %v; the task had %v", got.Env, err, task.Env)
	}
	for range 3 {
		value, forget, err := c.header(t.Context(), "echo y >>ran; cat ran | wc -l")
		if err != nil {
			t.Fatal(err)
		}
		if value == "4" { // the second value
			forget()
		}
	}
	if _, _, err := c.header(t.Context(), `printf 'a\nb'`); err == nil || !strings.Contains(err.Error(), "several lines") {
		t.Error(err)
	}
	if ran, err := os.ReadFile(filepath.Join(folder, "ran")); string(ran) != "x\nx\ny\n" {
		t.Errorf("the commands ran as %q, %v", ran, err)
	}
}
