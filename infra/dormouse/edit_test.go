package dormouse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/nativetest"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// desk is a folder in which commands change files. It is the working folder and the home
// of the user.
type desk struct {
	t     *testing.T
	dir   string
	clock time.Time
	ask   asker // nil: no terminal

	testdata string // path of the folder of golden files
}

// newDesk makes a desk with the given files, and with programs that stand for npm, pip and
// the runners of packages.
func newDesk(t *testing.T, files string) *desk {
	t.Helper()
	testdata, err := filepath.Abs("testdata")
	commontest.OK(t, err)
	d := &desk{t: t, dir: t.TempDir(), clock: noon(), testdata: testdata}
	t.Chdir(d.dir)
	for name, script := range map[string]string{
		"npm": `case "$2" in @ada/weather) echo 2.1.0;; *) echo "npm error 404 '$2' could not be found
npm error A complete log of this run can be found in: a.log" >&2; exit 1;; esac`,
		"python3": `[ "$5" = mcp-server-time ] && echo "mcp-server-time (0.6.2)" && echo "Available versions: 0.6.2, 0.6.1"`,
		"npx":     "", "uvx": "", "docker": "",
	} {
		d.file("bin/"+name, "#!/bin/sh\n"+script+"\n", 0o700)
	}
	t.Setenv("PATH", filepath.Join(d.dir, "bin"))
	t.Setenv("HOME", d.dir)
	t.Setenv("XDG_RUNTIME_DIR", d.dir) // no command finds the machine of another test
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		if provision.IsNetwork(name) || slices.Contains([]string{"XDG_CONFIG_HOME", "DORMOUSE_URL", "DORMOUSE_KEY"}, name) {
			t.Setenv(name, "")
		}
	}
	for _, f := range txtar.Parse([]byte(files)).Files {
		d.file(f.Name, string(f.Data), 0o600)
	}
	return d
}

func (d *desk) file(name, text string, mode os.FileMode) {
	d.t.Helper()
	writeFile(d.t, filepath.Join(d.dir, name), text, mode)
}

// prepare stands for the preparation of servers, which takes 3.2 s.
func (d *desk) prepare(_ context.Context, p preparation) (all []outcome, err error) {
	d.clock = d.clock.Add(3200 * time.Millisecond)
	for _, name := range p.names {
		o := outcome{server: name, readiness: readiness{version: "1.0", tools: 4}}
		switch name {
		case "broken":
			o = outcome{server: name, err: errors.New("exited with code 1: ZeroDivisionError: division by zero")}
		case "lacking":
			o = outcome{server: name, err: errors.New("exited with code 1: ModuleNotFoundError: No module named 'x'")}
		case "needy":
			if env, err := os.ReadFile(".env"); err != nil || !strings.Contains(string(env), "ACME_TOKEN=") {
				o = outcome{server: name, err: errors.New("exited with code 1: Error: ACME_TOKEN environment variable is required")}
			}
		case "inside":
			o = outcome{server: name, err: errors.New("the remote server inside cannot be reached: the address is not public; x-dormouse.remote.private permits it: 127.0.0.1")}
		case "stale":
			return nil, errNotTaken
		}
		all = append(all, o)
	}
	return all, nil
}

// try stands for the trial of another version. Version 9.0.0 does not start, and the tool says
// which one it is of.
func (d *desk) try(_ context.Context, what trying) (one, two tried, err error) {
	for i, of := range []*tried{&one, &two} {
		f, err := serversedit.Parse(what.text, what.file)
		if err != nil {
			return one, two, err
		}
		p, _ := f.Package(what.names[i])
		if of.server = what.names[i]; p.Version == "9.0.0" {
			of.err = errors.New("exited with code 1: Error: it is a new one")
			continue
		}
		tool := `{"name":"forecast","description":"Of ` + p.Version + `."}`
		if p.Kind == "pypi" {
			tool = `{"name":"now"}`
		}
		of.tools = []json.RawMessage{json.RawMessage(tool)}
	}
	return one, two, nil
}

// run executes a command line, in which "quotes" keep words together. `cat` prints a file
// with its permissions.
func (d *desk) run(line string) (printed string, code int) {
	d.t.Helper()
	var args []string
	for _, word := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1) {
		args = append(args, strings.ReplaceAll(strings.Trim(word, `"`), "'", `"`))
	}
	if args[0] == "cat" {
		text, problem := os.ReadFile(args[1])
		info, _ := os.Stat(args[1])
		if problem != nil {
			return "none\n", 1
		}
		return fmt.Sprintf("%v\n%s", info.Mode(), strings.ReplaceAll(string(text), d.dir, "DIR")), 0
	}
	in := strings.NewReader(`{"name":"piped","command":"npx","args":["-y","x"],"env":{"PIPED_TOKEN":"hunter2"}}`)
	printed, code = printedBy(args, terminal{program: Program{Native: nativetest.Servers()}, in: in, now: func() time.Time { return d.clock }, ask: d.ask, prepare: d.prepare, try: d.try})
	return strings.ReplaceAll(printed, d.dir, "DIR"), code
}

// TestCommandsThatWriteFilesPrint compares outputs with the archives of testdata/edit.
// Each archive has files, then an empty file "commands", and then a file for each command
// line. The file's name is the line and the exit code, and its content is the whole
// output.
func TestCommandsThatWriteFilesPrint(t *testing.T) {
	goldens, err := filepath.Glob("testdata/edit/*.txtar")
	if err != nil || len(goldens) == 0 {
		t.Fatal(goldens, err)
	}
	for _, golden := range goldens {
		t.Run(strings.TrimSuffix(filepath.Base(golden), ".txtar"), func(t *testing.T) {
			golden, err := filepath.Abs(golden)
			commontest.OK(t, err)
			archive, err := txtar.ParseFile(golden)
			commontest.OK(t, err)
			files, lines, begun := txtar.Archive{}, 0, false
			var d *desk
			for n, f := range archive.Files {
				switch {
				case f.Name == "commands":
					d, begun = newDesk(t, string(txtar.Format(&files))), true
				case !begun:
					files.Files = append(files.Files, f)
				default:
					line, wants, _ := strings.Cut(f.Name, " => ")
					printed, code := d.run(line)
					archive.Files[n] = txtar.File{Name: fmt.Sprintf("%s => %d", line, code), Data: []byte(printed)}
					if diff := cmp.Diff(string(f.Data), printed); !*update && (diff != "" || wants != fmt.Sprint(code)) {
						t.Errorf("dormouse %s: exit code %d, want %s (-want +got):\n%s", line, code, wants, diff)
					}
					lines++
				}
			}
			if lines == 0 {
				t.Fatal("no commands")
			}
			if *update {
				commontest.OK(t, os.WriteFile(golden, txtar.Format(archive), 0o600))
			}
		})
	}
}

func TestValuesOfVariablesAreInNoOutputAndNotInTheServersFile(t *testing.T) {
	d := newDesk(t, `-- theirs.json --
{"mcpServers": {
  "a": {"command": "npx", "args": ["-y", "a", "--api-key", "hunter2", "postgres://ada:hunter2@db/x"], "env": {"TOKEN": "hunter2", "OTHER": "hunter2 x"}},
  "b": {"command": "npx", "args": ["-y", "b"], "env": {"TOKEN": "hunter2b"}},
  "c": {"url": "https://example.com", "headers": {"Authorization": "Bearer hunter2"}},
  "d": {"command": "npx", "env": {"TOKEN": ["hunter2"]}}
}}
-- .cursor/mcp.json --
{"mcpServers": {"a": {"command": "npx", "env": {"TOKEN": "hunter2", "OTHER": "hunter2"}, "args": ["--token=hunter2"]}}}
`)
	for _, line := range []string{
		"add x -e KEY=hunter2 -e OTHER=hunter2 --no-pin -- npx -y x --token hunter2",
		"add broken -e KEY=hunter2 -- npx -y broken@1.0.0",
		"add y --json {'command':'npx','env':{'TOKEN':'hunter2'}}",
		"add z -e hunter2 -- npx",
		"add z --json {'command':'npx','env':'hunter2'}",
		"import theirs.json --dry-run",
		"import theirs.json",
		"import theirs.json --replace --json",
		"import -",
		"disable x a",
		"enable x a",
		"connect cursor",
		"connect cursor --json",
		"connect cursor --write",
		"remove b",
	} {
		if printed, _ := d.run(line); strings.Contains(printed, "hunter2") {
			t.Errorf("%s prints %s", line, printed)
		}
	}
	if text, _ := d.run("cat servers.json"); strings.Contains(text, "hunter2") || !strings.Contains(text, `"TOKEN": "${B_TOKEN}"`) && !strings.Contains(text, `"piped"`) {
		t.Error(text)
	}
	if text, _ := d.run("cat .env"); !strings.HasPrefix(text, "-rw-------\n") || strings.Count(text, "hunter2") < 6 {
		t.Error(text)
	}
}

func TestServerOfTheRegistryIsAdded(t *testing.T) {
	published, err := os.ReadFile("../internal/serversedit/testdata/forms/registry-npm/server.json")
	commontest.OK(t, err)
	d := newDesk(t, "")
	remote := func(name, url, header string) string {
		return fmt.Sprintf(`{"server": {"name": "io.github.eve/%s", "version": "1.0.0", "remotes": [{"type": "streamable-http", "url": %q, "headers": [%s]}]}}`, name, url, header)
	}
	const far, ofRegistry = "https://mcp.example.com/mcp", "/near/mcp"
	answers := map[string]string{
		"io.github.ada%2Fweather.mcp": fmt.Sprintf(`{"server": %s, "_meta": {}}`, published), "io.github.ada%2Fodd": `{"mcpServers": {}}`,
		"io.github.eve%2Fheader":   remote("header", far, `{"name": "X-Trace", "value": "v1 ${env:MINE_KEY}"}`),
		"io.github.eve%2Fvariable": remote("variable", far, `{"name": "Authorization", "value": "Bearer {mine_key}", "variables": {"mine_key": {"isRequired": true}}}`),
		"io.github.eve%2Flink":     remote("link", far+"?of=${MINE_KEY:-none}", ""),
	}
	const keyed = `{"name": "Authorization", "value": "Bearer {own_key}", "isRequired": true, "variables": {"own_key": {"isRequired": true, "isSecret": true}}}`
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimSuffix(strings.TrimPrefix(r.URL.EscapedPath(), "/v0.1/servers/"), "/versions/latest")
		answer, known := answers[name]
		switch {
		case name == "io.github.ada%2Fbroken":
			w.WriteHeader(http.StatusBadGateway)
		case known:
			_, _ = io.WriteString(w, answer)
		case !strings.HasPrefix(name, "local%2F"):
			w.WriteHeader(http.StatusNotFound)
		case r.Header.Get("Authorization") != "Bearer hunter3":
			w.WriteHeader(http.StatusUnauthorized)
		case name == "local%2Fnear":
			_, _ = io.WriteString(w, remote("near", "http://"+r.Host+ofRegistry, keyed))
		default:
			_, _ = io.WriteString(w, remote("elsewhere", far, keyed))
		}
	}))
	defer registry.Close()
	for line, want := range map[string]string{
		"add io.github.ada/odd":    "io.github.ada/odd: it is no server.json",
		"add io.github.ada/none":   "has no server io.github.ada/none",
		"add io.github.ada/broken": "the MCP registry answers 502",
		"add near --no-start":      "has no server near",
		"add local/near":           "--registry-key",
		"add local/elsewhere --no-start --registry-key hunter3": "OWN_KEY is not set",
	} {
		t.Run(line, func(t *testing.T) {
			if printed, code := d.run(line + " --registry " + registry.URL); code != 1 || !strings.Contains(printed, want) {
				t.Errorf("%s: %d %s", line, code, printed)
			}
		})
	}
	// A server at the address of the registry gets the registry's key. Other servers do
	// not.
	if printed, code := d.run("add local/near --no-start --private --registry-key hunter3 --registry " + registry.URL); code != 0 || !strings.Contains(printed, "added near") {
		t.Error(code, printed)
	}
	if text, _ := d.run("cat servers.json"); !strings.Contains(text, `"Bearer ${OWN_KEY}"`) || !strings.Contains(text, `"private": true`) || strings.Contains(text, "hunter3") {
		t.Error(text)
	}
	if text, _ := d.run("cat .env"); !strings.Contains(text, "OWN_KEY=hunter3") {
		t.Error(text)
	}
	if printed, code := d.run("add other local/elsewhere --no-start --registry-key hunter3 --registry " + registry.URL); code != 1 || !strings.Contains(printed, "would send OWN_KEY, which is set here, to "+far) {
		t.Error(code, printed)
	}
	printed, code := d.run("add io.github.ada/weather.mcp -e MINE_KEY=hunter2 --registry " + registry.URL)
	if want := "MINE_KEY of weather.mcp: in .env, which only you can read\nadded weather.mcp 1.0: 4 tools in 3.2 s\n"; code != 0 || printed != want {
		t.Error(code, printed)
	}
	if text, _ := d.run("cat servers.json"); !strings.Contains(text, `"@ada/weather@1.0.2"`) || !strings.Contains(text, `"MINE_KEY": "${MINE_KEY}"`) {
		t.Error(text)
	}
	// add refuses a server that would get a variable which is set for another server,
	// unless the user gives the value with -e.
	for _, name := range []string{"header", "variable", "link"} {
		printed, code := d.run("add io.github.eve/" + name + " --no-start --registry " + registry.URL)
		if text, _ := d.run("cat servers.json"); code != 1 || !strings.Contains(printed, "would send MINE_KEY, which is set here, to https://mcp.example.com/mcp") || strings.Contains(text, `"`+name+`":`) {
			t.Errorf("%s: %d %s\n%s", name, code, printed, text)
		}
	}
	if printed, code := d.run("add io.github.eve/variable -e MINE_KEY=hunter2 --no-start --registry " + registry.URL); code != 0 || !strings.Contains(printed, "added variable") {
		t.Error(code, printed)
	}
	if printed, code := d.run("remove variable"); code != 0 {
		t.Error(printed)
	}
	// add leaves nothing behind if a value is missing, and says how to give it.
	if printed, code := d.run("remove weather.mcp"); code != 0 {
		t.Error(printed)
	}
	commontest.OK(t, os.Remove(".env"))
	printed, code = d.run("add io.github.ada/weather.mcp --registry " + registry.URL)
	if text, _ := d.run("cat servers.json"); code != 1 || !strings.Contains(printed, "weather.mcp was not added: it needs MINE_KEY: dormouse add io.github.ada/weather.mcp -e MINE_KEY=…") || strings.Contains(text, "weather.mcp") {
		t.Error(code, printed, text)
	}
}

// connect --remove takes out what connect --write has written, and keeps the earlier file.
func TestConnectRemovesWhatItHasWritten(t *testing.T) {
	d := newDesk(t, `-- servers.json --
{"mcpServers": {"notes": {"command": "npx", "args": ["x"]}}}
-- mine.json --
{"mcpServers": {"own": {"command": "own"}, "notes": {"url": "http://127.0.0.1:8787/notes/mcp"}, "one": {"url": "http://127.0.0.1:8787/mcp"}, "other": {"url": "https://mcp.example.com/notes/mcp"}}}
`)
	printed, code := d.run("connect cursor --remove --file mine.json")
	if code != 0 || !strings.Contains(printed, `- {"mcpServers"`) || !strings.Contains(printed, "mine.json is written; the earlier file is mine.json.bak") {
		t.Error(code, printed)
	}
	const left = `{"mcpServers":{"own":{"command":"own"},"other":{"url":"https://mcp.example.com/notes/mcp"}}}`
	if got, _ := d.run("cat mine.json"); !strings.Contains(strings.Join(strings.Fields(got), ""), left) {
		t.Error(got)
	}
	d.run("connect cursor --write --file mine.json")
	d.run("connect cursor --remove --file mine.json")
	for file, has := range map[string]string{"mine.json.bak": `"one"`, "mine.json.bak2": "8787/notes/mcp"} { // the first, and the last
		got, _ := d.run("cat " + file)
		commontest.Contains(t, file, has, got)
	}
	for line, want := range map[string]string{
		"connect cursor --remove --file mine.json":                               "mine.json has nothing of http://127.0.0.1:8787",
		"connect cursor --remove --file absent.json":                             "absent.json has nothing of http://127.0.0.1:8787",
		"connect cursor other --remove --url https://elsewhere --file mine.json": "has nothing of https://elsewhere",
		"connect cursor --remove --write --file mine.json":                       "--remove goes with the names of servers, --url and --file only",
	} {
		t.Run(line, func(t *testing.T) {
			if got, _ := d.run(line); !strings.Contains(got, want) {
				t.Errorf("%s: %s", line, got)
			}
		})
	}
}
