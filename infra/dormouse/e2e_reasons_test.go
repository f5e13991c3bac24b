//go:build e2e

package dormouse_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fakeNpm puts a fake npm first on the PATH of a machine. The fake reports that the
// registry does not have the package.
func (m *machine) fakeNpm() {
	m.t.Helper()
	folder := m.t.TempDir()
	script := `#!/bin/sh
echo "npm error code E404
npm error 404  '@modelcontextprotocol/server-memori@*' is not in this registry." >&2
exit 1
`
	for name, text := range map[string]string{"npm": script, "npx": "#!/bin/sh\nexit 9\n"} {
		executable(m.t, filepath.Join(folder, name), text)
	}
	m.env = append(m.env, "PATH="+folder+":"+os.Getenv("PATH"))
}

// The reason why a server cannot be used is one text, wherever it is read.
func TestE2EReasonOfAFailedStartIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	program := stdio(t)
	hanging := map[string]any{"command": program, "args": []string{"-hang", "-stderr", "waiting for a license\n"}, "x-dormouse": map[string]any{"startup_timeout_sec": 1}}
	m := machineOf(t, map[string]any{
		"absent": map[string]any{"command": "no-such-program-anywhere"},
		"nonode": map[string]any{"command": "npx", "args": []string{"-y", "thing"}, "env": map[string]string{"PATH": t.TempDir()}},
		"typo":   map[string]any{"command": "npx", "args": []string{"-y", "@modelcontextprotocol/server-memori"}},
		"script": map[string]any{"command": "python3", "args": []string{"nowhere.py"}},
		"exits":  map[string]any{"command": program, "args": []string{"-stderr", "no license found\n", "-exit", "3"}},
		"chatty": map[string]any{"command": "sh", "args": []string{"-c", "echo hello from stdout; exit 4"}},
		"hangs":  hanging,
	})
	m.fakeNpm()
	m.run()
	every := m.awaitLine(m.log, patience, "the servers are announced", func(line string) bool { return strings.HasPrefix(line, "  exits  ") })
	// told is the beginning of the reason, because tables cut it. kept is in the server's
	// logs.
	for name, want := range map[string]struct{ says, told, kept string }{
		"absent": {"no-such-program-anywhere is not on the PATH of dormouse run", "cannot be started: no-such-program", "is not on the PATH of dormouse run"},
		"nonode": {"it needs npx, which is not installed: Node.js 20 or newer, or run the container image", "cannot be started: it needs npx", "it needs npx, which is not installed"},
		"typo":   {"npm knows no @modelcontextprotocol/server-memori", "cannot be started: npm knows no", "npm knows no @modelcontextprotocol/server-memori"},
		"script": {"there is no nowhere.py in ", "exited with code 2 before it answered initialize; there is no nowhere.py", "nowhere.py"},
		"exits":  {"no license found", "exited with code 3 before it answered initialize: no license found", "no license found"},
		"chatty": {"hello from stdout (stdout). It writes to stdout, which is for MCP only: write to stderr", "exited with code 4 before it answered initialize: hello from stdout", "stdout: hello from stdout"},
		"hangs":  {"did not answer initialize within 1s (startup_timeout_sec); it runs, and has said: waiting for a license", "did not answer initialize within 1s", "waiting for a license"},
	} {
		t.Run(name, func(t *testing.T) {
			m := m.in(t)
			url := strings.Replace(strings.Fields(every)[1], "/exits/", "/"+name+"/", 1)
			// While packages are installed, initialize is answered without the server.
			m.eventually(patience, "the client gets "+want.says, func() bool {
				_, answer := m.refusal(url)
				return strings.Contains(answer, want.says)
			})
			m.awaitLine(m.log, patience, "the terminal says why", func(line string) bool {
				return strings.Contains(line, " "+name+" failed ") && strings.Contains(line, want.says)
			})
			for _, read := range []struct {
				says    string
				command []string
			}{{want.told, []string{"list"}}, {want.told, []string{"ps", "--all"}}, {want.kept, []string{"logs", name}}} {
				m.eventually(patience, strings.Join(read.command, " ")+" says "+read.says, func() bool {
					out, err := m.command(read.command[0], read.command[1:]...).CombinedOutput()
					return err == nil && strings.Contains(string(out), read.says)
				})
			}
		})
	}
}

// A reason that is not a failed start is the same text too, wherever it is read.
func TestE2EReasonsOfTheFileAreTheSameEverywhere(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	good := strings.TrimSuffix(strings.TrimSpace(read(t, m.servers)), "}\n}")
	write(t, m.servers, good+`,
    "weather": {"command": "x", "env": {"T": "${DORMOUSE_E2E_NOT_SET}"}, "colour": "blue"},
    "confirms": {"command": "x", "x-dormouse": {"confirm": ["slow"]}},
    "off": {"command": "x", "disabled": true}
  },
  "editor": 1
}
`)
	m.run()
	one := strings.Fields(m.awaitLine(m.log, patience, "the servers are announced", func(line string) bool { return strings.HasPrefix(line, "  one  ") }))[1]
	m.awaitLine(m.log, patience, "the first block is complete", func(line string) bool { return strings.HasPrefix(line, "Nothing runs until") })
	answer := func(name string) string {
		_, body := m.refusal(strings.Replace(one, "/one/", "/"+name+"/", 1))
		return body
	}
	printed := func(words ...string) string {
		out, _ := m.command(words[0], words[1:]...).CombinedOutput() // some fail, which is their answer
		return string(out)
	}
	const unset = "DORMOUSE_E2E_NOT_SET is not set: set it in the environment, in .env beside the file, or with --env-file"
	for what, test := range map[string]struct {
		says   string
		places map[string]string // what is read there
	}{
		"variable missing": {unset, map[string]string{
			"answer": strings.ReplaceAll(answer("weather"), `\"`, `"`), "terminal": m.log.tail(1000), "logs": printed("logs", "weather"), "call": printed("call", "weather", "x"), "tools": printed("tools", "weather"),
		}},
		"variable missing, in a line of a table": {"DORMOUSE_E2E_NOT_SET is not set: set it in", map[string]string{"list": printed("list")}},
		"the place of the variable":              {"(servers.json:", map[string]string{"answer": answer("weather"), "list": printed("list"), "logs": printed("logs", "weather"), "call": printed("call", "weather", "x")}},
		"wrong server": {"did you mean one?", map[string]string{
			"answer": answer("onee"), "logs": printed("logs", "onee"), "call": printed("call", "onee", "x"), "tools": printed("tools", "onee"), "stop": printed("stop", "onee"), "doctor": printed("doctor", "onee", "--servers", m.servers),
		}},
		"disabled": {"it is disabled in the servers file", map[string]string{"answer": answer("off"), "list": printed("list"), "logs": printed("logs", "off"), "call": printed("call", "off", "x")}},
		"unknown key of ours": {`unknown key "confirm" under x-dormouse: there are`, map[string]string{
			"answer": strings.ReplaceAll(answer("confirms"), `\"`, `"`), "terminal": m.log.tail(1000), "logs": printed("logs", "confirms"), "call": printed("call", "confirms", "x"), "list": strings.Join(strings.Fields(printed("list")), " "),
		}},
		"unknown key":     {"colour", map[string]string{"terminal": m.log.tail(1000), "list": printed("list")}},
		"never ran (one)": {"one has no output: it has not run lately", map[string]string{"logs": printed("logs", "one")}},
	} {
		t.Run(what, func(t *testing.T) {
			for place, text := range test.places {
				if !strings.Contains(text, test.says) {
					t.Errorf("%s: %s says %s, want %q", what, place, text, test.says)
				}
			}
		})
	}

	write(t, m.servers, "{\"mcpServers\": {\"one\": {\"command\": \"x\" \"args\"}}}")
	const broken = "1:40: not JSON: a comma is missing before this; what was there before is still served"
	m.awaitLine(m.log, patience, "the terminal says what is wrong", func(line string) bool { return strings.Contains(line, broken) })
	if list := printed("list"); !strings.Contains(list, "\nservers.json:"+broken+"\n") || !strings.Contains(list, one) {
		t.Errorf("list says %s", list)
	}
	check := m.command("check")
	check.Args = []string{check.Args[0], "check", m.servers}
	for _, command := range []*exec.Cmd{m.command("reload"), check} {
		if text, err := command.CombinedOutput(); err == nil || !strings.Contains(string(text), "servers.json:1:40: not JSON: a comma is missing before this") {
			t.Errorf("%s says %s, %v", command.Args[1], text, err)
		}
	}
	write(t, m.servers, good+"}}\n")
	m.eventually(patience, "list says nothing more", func() bool { return !strings.Contains(printed("list"), "servers.json") })
}

// The reason of a failed start stays in the list when the box of the server sleeps.
func TestE2EFailedStartIsListedWhileItsBoxSleeps(t *testing.T) {
	t.Parallel()
	program := stdio(t)
	m := machineOf(t, map[string]any{"exits": map[string]any{"command": program, "args": []string{"-stderr", "no license found\n", "-exit", "3"}}})
	m.start(sleepy()...)
	m.refusal(m.urls["exits"])
	m.asleep()
	if out, err := m.command("list").CombinedOutput(); err != nil || !regexp.MustCompile(`(?m)^exits +failed .* exited with code 3 before it answered initialize: no license found$`).Match(out) {
		t.Errorf("%v: list says\n%s", err, out)
	}
}
