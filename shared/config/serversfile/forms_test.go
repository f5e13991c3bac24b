package serversfile_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// outside holds the environment variables of these tests.
var outside = map[string]string{"MINE_KEY": "key-of-mine", "HOME": "/home/ada", "SRC": "/srv/notes"}

// clientFiles are the files of testdata/forms: one of each client that has mcpServers, in a
// folder named for it.
func clientFiles(t testing.TB) []string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"*/*.json", "*/.*.json", "*/.*/*.json"} {
		found, err := filepath.Glob("testdata/forms/" + pattern)
		commontest.OK(t, err)
		files = append(files, found...)
	}
	slices.Sort(files)
	return slices.Compact(files)
}

func TestFilesOfClientsWithOurFormAreRead(t *testing.T) {
	folder, err := filepath.Abs("testdata/forms")
	commontest.OK(t, err)
	for _, file := range clientFiles(t) {
		client := strings.Split(filepath.ToSlash(file), "/")[2]
		t.Run(client, func(t *testing.T) {
			c, warnings, err := serversfile.LoadHere(file, variables(outside))
			commontest.OK(t, err)
			if client != "claude-code" && client != "cursor" { // they have nothing that these have not
				commontest.Equal(t, 0, len(c.Rejected()))
				return
			}
			got := strings.ReplaceAll(readOut(c, warnings), folder+"/"+client, "FOLDER")
			golden := filepath.Join(folder, client, "golden")
			if *update {
				commontest.OK(t, os.WriteFile(golden, []byte(got), 0o600))
			}
			want, err := os.ReadFile(golden)
			commontest.OK(t, err)
			commontest.Same(t, string(want), got)
		})
	}
}

// readOut describes everything that was read from a file.
func readOut(c *serversfile.File, warnings []serversfile.Warning) string {
	var out bytes.Buffer
	for _, name := range c.Names() {
		s, _ := c.Server(name)
		var pretty bytes.Buffer
		_ = json.Indent(&pretty, []byte(s.Marshal()), "", "  ")
		fmt.Fprintf(&out, "%s\n", pretty.Bytes())
	}
	for _, r := range c.Rejected() {
		fmt.Fprintln(&out, r)
	}
	for _, w := range warnings {
		fmt.Fprintf(&out, "warning: %s:%d:%d: %s\n", filepath.Base(w.File), w.Line, w.Column, w.Text)
	}
	return out.String()
}

func TestAFileOfAnotherFormSaysWhatToType(t *testing.T) {
	for file, test := range map[string]struct{ text, want string }{
		"/p/.vscode/mcp.json":   {`{"inputs": [], "servers": {"x": {"command": "a"}}}`, `1:1: no "mcpServers" in the file: if it is of another client, copy its servers into servers.json with dormouse import /p/.vscode/mcp.json`},
		"/my zed/settings.json": {"{\n\"context_servers\": {}}", `1:1: no "mcpServers" in the file: if it is of another client, copy its servers into servers.json with dormouse import '/my zed/settings.json'`},
		"/p/servers.json":       {`{"x": {"command": "a"}}`, `1:1: no "mcpServers" in the file: if it is of another client, copy its servers with mv /p/servers.json /p/servers.before.json && dormouse import /p/servers.before.json --servers /p/servers.json`},
		"/p/config":             {"# Codex\n[mcp_servers.x]\n", `1:1: the file is TOML: if it is of another client, copy its servers into servers.json with dormouse import /p/config`},
	} {
		t.Run(file, func(t *testing.T) {
			_, _, err := serversfile.Parse([]byte(test.text), file, nil)
			_, entries := serversfile.Entries([]byte(test.text), file)
			for _, err := range []error{err, entries} {
				if want := file + ":" + test.want; err == nil || err.Error() != want {
					t.Errorf("\n got %v\nwant %s", err, want)
				}
			}
		})
	}
}

func TestValuesFromFilesAreInNoComplaint(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, ".env", "A=hunter2\nhunter2\nB=\"hunter2\nC=hunter2\n")
	write(t, folder, "e.env", "hunter2 hunter2=1\nD='hunter2'hunter2\n")
	write(t, folder, "servers.json", server(`"command": "serve", "envFile": "e.env", "args": ["${A}", "${NONE}", [1]]`))
	c, warnings, err := serversfile.LoadHere(filepath.Join(folder, "servers.json"), nil)
	commontest.OK(t, err)
	rejected := c.Rejected()
	if len(rejected) != 1 || len(rejected[0].Errors) != 4 || len(warnings) != 2 {
		t.Errorf("rejected %v, warnings %v", rejected, warnings)
	}
	said := fmt.Sprint(rejected, warnings)
	for _, e := range rejected[0].Errors {
		said += e.Error()
	}
	if strings.Contains(said, "hunter2") {
		t.Error(said)
	}
}

func write(t *testing.T, folder, name, content string) {
	t.Helper()
	commontest.OK(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
}

func TestWhatIsSetOutsideWinsOverFiles(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, ".env", "A=beside\nB=beside\nC=beside\nD=beside\n")
	write(t, folder, "named", "B=named\nC=named\n")
	write(t, folder, "servers.json", server(`"command": "a", "env": {"A": "${A}", "B": "${env:B}", "C": "${C:-no}", "I": "${input:d}"}, "envFile": ".env"`))
	c, warnings, err := serversfile.LoadHere(filepath.Join(folder, "servers.json"), variables(map[string]string{"C": "outside"}), filepath.Join(folder, "named"))
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	s, _ := c.Server("x")
	want := map[string]string{"A": "beside", "B": "named", "C": "outside", "I": "beside", "D": "beside"}
	commontest.Same(t, want, s.Env)
	// A file of variables that the caller names must exist.
	_, _, err = serversfile.LoadHere(filepath.Join(folder, "servers.json"), nil, filepath.Join(folder, "none"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	// Load is for AWS, where no file is beside the servers file.
	c, _, err = serversfile.Load(filepath.Join(folder, "servers.json"), variables(map[string]string{"A": "", "B": "", "D": ""}))
	if err != nil || !strings.Contains(c.Reason("x"), "envFile: it is read on one machine only") {
		t.Error(err, c.Reason("x"))
	}
}

func TestFileOfVariables(t *testing.T) {
	for file, want := range map[string]map[string]string{
		"A=1":                                    {"A": "1"},
		"\ufeffexport A = 1 \r\n\r\n# B=2\r\nC=": {"A": "1", "C": ""},
		"A=a b # c":                              {"A": "a b"},
		"A=pa$WORD${X}":                          {"A": "pa$WORD${X}"},
		`A="b\n\t\"\\\$\q" # c`:                  {"A": "b\n\t\"\\$\\q"},
		`A='b\n$x'`:                              {"A": `b\n$x`},
		"A=\"b\nc\"\nD=e":                        {"A": "b\nc", "D": "e"},
		"A='b\r\nc'\r\nD=e":                      {"A": "b\nc", "D": "e"},
	} {
		t.Run(file, func(t *testing.T) {
			folder := t.TempDir()
			write(t, folder, "keys", file)
			write(t, folder, "servers.json", server(`"command": "a", "envFile": "keys"`))
			c, _, err := serversfile.LoadHere(filepath.Join(folder, "servers.json"), nil)
			if err != nil || c.Reason("x") != "" {
				t.Fatal(err, c.Reason("x"))
			}
			s, _ := c.Server("x")
			commontest.Same(t, want, s.Env)
		})
	}
}

func TestLineOfVariablesThatIsWrongCostsItselfOnly(t *testing.T) {
	for file, want := range map[string]string{
		"A B=a\nB=1":          ".env:1: no name of a variable stands before =",
		"A=1\nA=\"c\nB=1":     ".env:2: the quote has no end: quote a value that holds a quote, too",
		"A=\"b\nc\"d\nB=1\nF": ".env:1: text stands behind the quotes .env:4: a line must be NAME=VALUE",
		"B=1\nA=\xff":         ".env:2: the value is not UTF-8, or holds a NUL",
	} {
		t.Run(file, func(t *testing.T) {
			folder := t.TempDir()
			write(t, folder, ".env", file)
			write(t, folder, "servers.json", server(`"command": "a", "env": {"B": "${B:-none}"}`))
			c, warnings, err := serversfile.LoadHere(filepath.Join(folder, "servers.json"), nil)
			commontest.OK(t, err)
			var got []string
			for _, w := range warnings {
				got = append(got, fmt.Sprintf("%s:%d: %s", filepath.Base(w.File), w.Line, strings.TrimPrefix(w.Text, "this line is not read: ")))
			}
			commontest.Equal(t, want, strings.Join(got, " "))
			if s, _ := c.Server("x"); strings.Contains(file, "B=1") != (s.Env["B"] == "1") {
				t.Errorf("B is %q", s.Env["B"])
			}
		})
	}
}
