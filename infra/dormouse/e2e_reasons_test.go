//go:build e2e

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fakeNpm puts an npm before the PATH of a machine that answers as the registry does about
// a package that it does not have.
func (m *machine) fakeNpm() {
	m.t.Helper()
	folder := m.t.TempDir()
	script := `#!/bin/sh
echo "npm error code E404
npm error 404  '@modelcontextprotocol/server-memori@*' is not in this registry." >&2
exit 1
`
	for name, text := range map[string]string{"npm": script, "npx": "#!/bin/sh\nexit 9\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o755); err != nil { //nolint:gosec // it is executed
			m.t.Fatal(err)
		}
	}
	m.env = append(m.env, "PATH="+folder+":"+os.Getenv("PATH"))
}

// U-15: the reason why a server cannot be used is one text, wherever it is read.
func TestE2EReasonOfAFailedStartIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	program, err := stdio()
	if err != nil {
		t.Fatal(err)
	}
	hanging := map[string]any{"command": program, "args": []string{"-hang", "-stderr", "waiting for a license\n"}, "x-dormouse": map[string]any{"startup_timeout_sec": 1}}
	m := machineOf(t, map[string]any{
		"absent": map[string]any{"command": "no-such-program-anywhere"},
		"typo":   map[string]any{"command": "npx", "args": []string{"-y", "@modelcontextprotocol/server-memori"}},
		"script": map[string]any{"command": "python3", "args": []string{"nowhere.py"}},
		"exits":  map[string]any{"command": program, "args": []string{"-stderr", "no license found\n", "-exit", "3"}},
		"chatty": map[string]any{"command": "sh", "args": []string{"-c", "echo hello from stdout; exit 4"}},
		"hangs":  hanging,
	})
	m.fakeNpm()
	m.run()
	every := m.awaitLine(m.log, patience, "the servers are announced", func(line string) bool { return strings.HasPrefix(line, "  exits  ") })
	// told is how the reason begins: tables cut it. kept is what the logs of a server have.
	for name, want := range map[string]struct{ says, told, kept string }{
		"absent": {"no-such-program-anywhere is not on the PATH of dormouse run", "cannot be started: no-such-program", "is not on the PATH of dormouse run"},
		"typo":   {"npm knows no @modelcontextprotocol/server-memori (did you mean @modelcontextprotocol/server-memory?)", "cannot be started: npm knows no", "did you mean @modelcontextprotocol/server-memory?"},
		"script": {"there is no nowhere.py in ", "exited with code 2 before it answered initialize; there is no nowhere.py", "nowhere.py"},
		"exits":  {"no license found", "exited with code 3 before it answered initialize: no license found", "no license found"},
		"chatty": {"hello from stdout (stdout). It writes to stdout, which is for MCP only: write to stderr", "exited with code 4 before it answered initialize: hello from stdout", "stdout: hello from stdout"},
		"hangs":  {"did not answer initialize within 1s (startup_timeout_sec); it runs, and has said: waiting for a license", "did not answer initialize within 1s", "waiting for a license"},
	} {
		t.Run(name, func(t *testing.T) {
			m := m.in(t)
			_, answer := m.refusal(strings.Replace(strings.Fields(every)[1], "/exits/", "/"+name+"/", 1))
			if !strings.Contains(answer, want.says) {
				t.Fatalf("the client gets %s, want %q", answer, want.says)
			}
			m.awaitLine(m.log, 5*time.Second, "the terminal says why", func(line string) bool {
				return strings.Contains(line, " "+name+" failed ") && strings.Contains(line, want.says)
			})
			for _, read := range []struct {
				says    string
				command []string
			}{{want.told, []string{"list"}}, {want.told, []string{"ps", "--all"}}, {want.kept, []string{"logs", name}}} {
				m.eventually(5*time.Second, strings.Join(read.command, " ")+" says "+read.says, func() bool {
					out, err := m.command(read.command[0], read.command[1:]...).CombinedOutput()
					return err == nil && strings.Contains(string(out), read.says)
				})
			}
		})
	}
}
