package provision

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestCommandLinesOfNpxAreRead(t *testing.T) {
	for _, c := range []struct {
		line string
		want *request // nil for a command line that is left as it is
	}{
		{"npx -y pkg", &request{spec: "pkg", name: "pkg"}},
		{"npx --yes --quiet @scope/pkg@1.2.3 /data", &request{spec: "@scope/pkg@1.2.3", name: "@scope/pkg", args: []string{"/data"}}},
		{"npx -y pkg@^1.2", &request{spec: "pkg@^1.2", name: "pkg"}},
		{"npx -y -- pkg --flag", &request{spec: "pkg", name: "pkg", args: []string{"--flag"}}},
		{"npx -p pkg@1.0.0 run a", &request{spec: "pkg@1.0.0", name: "pkg", program: "run", args: []string{"a"}}},
		{"npx -y", nil},
		{"npx -p a -p b run", nil},
		{"npx --registry=https://x pkg", nil},
		{"npx github:user/repo", nil},
		{"npx git+https://x/y.git", nil},
		{"npx ./local", nil},
		{"npx pkg@npm:other@1.0.0", nil},
		{"node pkg", nil},
	} {
		check(t, c.line, "npm", c.want)
	}
}

func TestCommandLinesOfUvxAreRead(t *testing.T) {
	for _, c := range []struct {
		line string
		want *request
	}{
		{"uvx mcp-server-time --tz UTC", &request{spec: "mcp-server-time", name: "mcp-server-time", program: "mcp-server-time", args: []string{"--tz", "UTC"}}},
		{"uv tool run pkg a", &request{spec: "pkg", name: "pkg", program: "pkg", args: []string{"a"}}},
		{"uvx pkg@1.2.3", &request{spec: "pkg==1.2.3", name: "pkg", program: "pkg"}},
		{"uvx pkg[extra]>=1,<2", &request{spec: "pkg[extra]>=1,<2", name: "pkg", program: "pkg"}},
		{"uvx --from pkg==1.0.0 tool x", &request{spec: "pkg==1.0.0", name: "pkg", program: "tool", args: []string{"x"}}},
		{"uvx --with mcp<2 --with a,b pkg", &request{spec: "pkg", name: "pkg", program: "pkg", with: []string{"mcp<2", "a", "b"}}},
		{"uvx --python 3.11 pkg", &request{spec: "pkg", name: "pkg", program: "pkg", python: "3.11"}},
		{"uvx --from", nil},
		{"uvx --index-url https://x pkg", nil},
		{"uvx --from git+https://x/y pkg", nil},
		{"uvx pkg@git+https://x", nil},
		{"uvx --with -e pkg", nil},
		{"uv run x", nil},
	} {
		check(t, c.line, "pypi", c.want)
	}
}

func check(t *testing.T, line, kind string, want *request) {
	t.Helper()
	words := strings.Fields(line)
	got, ok := parseTool(words[0], words[1:])
	if ok && !slices.ContainsFunc(words, func(w string) bool { return w == got.word || strings.HasSuffix(w, "="+got.word) }) {
		t.Errorf("%s: the package is %q, which the line does not have", line, got.word)
	}
	got.word = ""
	switch {
	case want == nil && ok:
		t.Errorf("%s: taken for %+v", line, got)
	case want == nil:
	case !ok:
		t.Errorf("%s: left as it is", line)
	default:
		want.kind = kind
		commontest.Same(t, *want, got, cmp.AllowUnexported(request{}), cmp.Transformer("empty", func(s []string) string { return strings.Join(s, "|") }))
	}
}

func TestProgramOfAPackageIsTheOneNpxWouldTake(t *testing.T) {
	for _, c := range []struct{ bin, name, program, want string }{
		{`"cli.js"`, "pkg", "", "pkg"},
		{`{"only":"cli.js"}`, "pkg", "", "only"},
		{`{"pkg":"a","other":"b"}`, "@s/pkg", "", "pkg"},
		{`{"pkg":"a","other":"b"}`, "pkg", "other", "other"},
		{`{"a":"a","b":"b"}`, "pkg", "", ""},
		{`{"../x":"a"}`, "pkg", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := chooseBin(json.RawMessage(c.bin), request{name: c.name, program: c.program})
			commontest.Equal(t, c.want, got)
			commontest.Equal(t, c.want != "", err == nil)
		})
	}
}

// registry puts an npm into the PATH that installs the package "srv", with a program of
// that name. The file "latest" has its version.
func (r *rig) registry() Server {
	r.t.Helper()
	r.fakeNode()
	r.write(map[string]string{"latest": "1.0.0", "npm-does": `
root="$(dirname "$PIP_LOG_OF_TEST")"
[ -e "$root/offline" ] && { echo "npm error code ENOTFOUND" >&2; exit 1; }
latest=$(cat "$root/latest")
case $1 in
install)
	echo "noise on stdout"
	echo "{\"packages\":{\"\":{\"dependencies\":{\"srv\":\"$latest\"}},\"node_modules/srv\":{\"integrity\":\"sha512-$latest\"}}}" >package-lock.json ;;
ci)
	case $* in *--prefer-offline*) echo "npm error code ETARGET" >&2; exit 1 ;; esac
	latest=$(sed 's/.*sha512-\([0-9.]*\).*/\1/' package-lock.json)
	mkdir -p node_modules/srv node_modules/.bin
	echo "{\"version\":\"$latest\",\"bin\":\"cli.js\"}" >node_modules/srv/package.json
	printf '#!/bin/sh\n' >node_modules/srv/cli.js; chmod +x node_modules/srv/cli.js
	ln -s ../srv/cli.js node_modules/.bin/srv ;;
esac
`})
	return Server{Command: "npx", Args: []string{"-y", "srv", "--flag"}}
}

func TestProgramTheWorkspaceDependsOnIsTakenFromThere(t *testing.T) {
	r := newRig(t)
	s := r.registry()
	r.write(map[string]string{"host/package.json": "{}", "host/node_modules/.bin/srv": "local"})
	s.HostPath = r.host()
	l := r.stage(s)
	commontest.EqualIn(t, "command", l.Workspace+"/node_modules/.bin/srv", l.Command)
	r.noted(0, "npm")
}

func (r *rig) index() Server {
	r.t.Helper()
	r.fakePython()
	r.write(map[string]string{"latest": "1.0.0", "pip": `
root="$(dirname "$PIP_LOG_OF_TEST")"
[ -e "$root/offline" ] && { echo "no network" >&2; exit 1; }
latest=$(cat "$root/latest")
LOCK="py-srv==$latest"
mkdir -p "$VENV/lib/python3.11/site-packages/py_srv-$latest.dist-info"
printf '#!/bin/sh\n' >"$VENV/bin/py-srv"; chmod +x "$VENV/bin/py-srv"
`})
	return Server{Command: "uvx", Args: []string{"py-srv", "--flag"}}
}

func TestPackageIsInstalledOnceAndThenItsProgramIsExecuted(t *testing.T) {
	for kind, c := range map[string]struct {
		server            func(*rig) Server
		program, installs string // installs begins the line that an install notes
	}{"npx": {(*rig).registry, "/node_modules/.bin/srv", "npm ci"}, "uvx": {(*rig).index, "/venv/bin/py-srv", "venv"}} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			s := c.server(r)
			first := r.stage(s)
			if !strings.HasSuffix(first.Command, c.program) || strings.Join(first.Args, " ") != "--flag" || !strings.HasPrefix(first.Command, first.Reads[0]) || first.Path[0] != filepath.Dir(first.Command) {
				t.Errorf("got %+v", first)
			}
			before := len(r.log())
			r.write(map[string]string{"latest": "2.0.0", "offline": ""})
			commontest.EqualIn(t, "a later start executes something", first.Command, r.stage(s).Command)
			commontest.EqualIn(t, "a later start executes something", before, len(r.log()))
			commontest.OK(t, os.Remove(filepath.Join(r.root, "offline")))
			commontest.OK(t, os.RemoveAll(filepath.Join(r.root, "cache/locks"))) // as an operator does
			if second := r.stage(s); second.Command == first.Command || r.count(c.installs) != 2 {
				t.Error("not renewed:", r.log())
			}
			if _, err := os.Stat(first.Command); err != nil {
				t.Error("a process may still run the older one:", err)
			}
		})
	}
}

func TestUvxTakesFurtherPackagesAndInterpreters(t *testing.T) {
	r := newRig(t)
	s := r.index()
	s.Args = []string{"--with", "mcp<2", "--from", "py-srv==1.0.0", "py-srv", "x"}
	r.stage(s)
	r.noted(1, "pip compile")
	r.noted(1, "wanted py-srv==1.0.0 mcp<2")
	s.Args = []string{"--python", "3.99", "py-srv"}
	commontest.EqualIn(t, "another interpreter than the one asked for was taken", "uvx", r.stage(s).Command)
}

// A lock of no bytes is what is left of a write that was cut off, so it names no packages.
func TestAnEmptyLockIsRefused(t *testing.T) {
	r := newRig(t)
	s := r.registry()
	r.stage(s)
	locks, err := filepath.Glob(filepath.Join(r.root, "cache", "locks", "*"))
	if err != nil || len(locks) == 0 {
		t.Fatal(locks, err)
	}
	for _, lock := range locks {
		commontest.OK(t, os.WriteFile(lock, []byte("\n"), 0o600))
	}
	commontest.Contains(t, "", filepath.Base(locks[0]), r.failure(s).Error())
}

// What npm 11 and uv 0.9 print.
const (
	npmKnowsNone = `npm error code E404
npm error 404 Not Found - GET https://registry.npmjs.org/@modelcontextprotocol%2fNAME
npm error 404
npm error 404  The requested resource '@modelcontextprotocol/NAME@*' could not be found or you do not have permission to access it.
npm error 404
npm error A complete log of this run can be found in: /home/me/.npm/_logs/debug-0.log`
	uvKnowsNone = `  × No solution found when resolving dependencies:
  ╰─▶ Because NAME was not found in the package registry and you require NAME, we can
      conclude that your requirements are unsatisfiable.`
)

func TestPackageThatTheIndexDoesNotHaveIsNamed(t *testing.T) {
	for _, c := range []struct{ line, name, said, want string }{
		{"npx @modelcontextprotocol/no-such-thing", "no-such-thing", npmKnowsNone, "npm knows no @modelcontextprotocol/no-such-thing"},
		{"npx srv", "part", npmKnowsNone, "npm knows no @modelcontextprotocol/part, which srv needs"},
		{"uvx other", "other", uvKnowsNone, "PyPI knows no other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			words := strings.Fields(c.line)
			r, ok := parseTool(words[0], words[1:])
			if !ok {
				t.Fatalf("%s is no command line of a package runner", c.line)
			}
			said := strings.ReplaceAll(c.said, "NAME", c.name)
			err := installError(r.unknown(&commandError{code: 1, said: said, more: said}))
			commontest.EqualIn(t, c.line, c.want+": "+said, err.Error())
		})
	}
	offline := &commandError{code: 1, said: "npm error code ENOTFOUND", more: "npm error code ENOTFOUND"}
	commontest.EqualIn(t, "without a network", "dependency install failed (exit 1): npm error code ENOTFOUND", installError(request{name: "srv", kind: "npm"}.unknown(offline)).Error())
}

// People see how much there is to install.
func TestAnInstallSaysHowManyPackagesItHas(t *testing.T) {
	for lock, want := range map[string]string{
		`{"packages": {"": {}, "node_modules/srv": {}, "node_modules/part": {}}}`: "2 packages of srv",
		`{"packages": {"": {}, "node_modules/srv": {}}}`:                          "srv",
		"srv==1.0 --hash=a\npart==2.0 \\\n  --hash=b\n":                           "2 packages of srv",
	} {
		commontest.EqualIn(t, lock, want, counted(request{name: "srv"}, locked{text: []byte(lock)}))
	}
}
