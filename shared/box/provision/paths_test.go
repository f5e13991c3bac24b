package provision

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// L-2: Only paths below the mounted folder are rewritten, not paths that only begin
// with the same letters.
func TestPathsBelowTheHostPathAreRewritten(t *testing.T) {
	from := []string{"/real/mcp", "/home/user/mcp"}
	for _, c := range []struct{ path, want string }{
		{"/home/user/mcp", "/w"},
		{"/home/user/mcp/server.py", "/w/server.py"},
		{"/home/user/mcp/src/../main.py", "/w/main.py"},
		{"/home/user/mcp/../other", "/home/user/mcp/../other"},
		{"/real/mcp/server.py", "/w/server.py"},
		{"/home/user/mcpserver.py", "/home/user/mcpserver.py"},
		{"home/user/mcp/server.py", "home/user/mcp/server.py"},
		{"", ""},
	} {
		commontest.EqualIn(t, c.path, c.want, rewritePath(c.path, from, "/w"))
	}
}

func TestCommandsOfAVirtualEnvironmentBecomePlain(t *testing.T) {
	from := []string{"/h"}
	for _, c := range []struct{ cmd, want, plain string }{
		{"/h/.venv/bin/python", "python", "python"},
		{"/h/.env/Scripts/python.exe", "python", "python.exe"},
		{"/h/.venv/bin/my-server", "my-server", "my-server"},
		{"./.venv/bin/my-server", "my-server", "my-server"},
		{"/h/run.sh", "/w/run.sh", ""},
		{"/h-other/.venv/bin/python", "/h-other/.venv/bin/python", ""},
	} {
		got, plain := rewriteCommand(c.cmd, from, "/w")
		commontest.EqualIn(t, c.cmd, c.want, got)
		commontest.EqualIn(t, "plain", c.plain, plain)
	}
}

func TestCommandLineIsThatOfTheWorkspace(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"host/server.py": "", "host/sub/": "", "link": "-> host"})
	host, link := r.host(), filepath.Join(r.root, "link")
	for _, c := range []struct {
		name string
		s    Server
		want []string // cwd, command, args; $W is the workspace
	}{
		{
			"absolute paths",
			Server{Command: host + "/run", Args: []string{host + "/server.py", "--config=" + host + "/c", "--root", host, "x=" + host}},
			[]string{"$W", "$W/run", "$W/server.py", "--config=$W/c", "--root", "$W", "x=" + host},
		},
		{"host path by a link", Server{Command: link + "/run", Args: []string{host + "/a"}, HostPath: link}, []string{"$W", "$W/run", "$W/a"}},
		{"cwd in the host path", Server{Command: "a", Cwd: host + "/sub"}, []string{"$W/sub", "a"}},
		{"relative cwd", Server{Command: "./a", Cwd: "sub"}, []string{"$W/sub", "./a"}},
		{"cwd elsewhere", Server{Command: "a", Cwd: "/tmp"}, []string{"/tmp", "a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.s.HostPath == "" {
				c.s.HostPath = host
			}
			before := append([]string{}, c.s.Args...)
			l := r.stage(c.s)
			got := append([]string{l.Cwd, l.Command}, l.Args...)
			for i, w := range c.want {
				c.want[i] = strings.ReplaceAll(w, "$W", l.Workspace)
			}
			commontest.Same(t, c.want, got)
			commontest.SameIn(t, "the configured arguments were changed", before, append([]string{}, c.s.Args...))
		})
	}
}

func TestCwdThatLeadsOutIsRefused(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"host/": ""})
	r.fails(Server{Command: "a", Cwd: "../..", HostPath: r.host()}, SessionCreate, "leads out of the workspace")
}

func TestHostPathIsInferred(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{
		"py/pyproject.toml": "", "py/src/a/server.py": "", "py/.venv/bin/python": "", "py/data/": "",
		"js/package.json": "", "js/dist/index.js": "", "plain/server.py": "", "plain/lib/x.py": "",
		"repo/.git/": "", "repo/tool/main.py": "", "package.json.not": "",
	})
	at := func(name string) string { return filepath.Join(r.root, name) }
	for _, c := range []struct {
		name, cmd string
		args      []string
		want      string
	}{
		{"nothing absolute", "python", []string{"server.py"}, ""},
		{"programs of the system", "/usr/bin/env", []string{"x"}, ""},
		{"a file", "python", []string{at("plain/server.py")}, at("plain")},
		{"the command in a virtual environment", at("py/.venv/bin/python"), []string{"-m", "a"}, at("py")},
		{"a file deep in a project", "python", []string{at("py/src/a/server.py")}, at("py")},
		{"nothing in common but the disk", "a", []string{at("plain/server.py"), "/nonexistent"}, at("plain")},
	} {
		commontest.EqualIn(t, c.name, c.want, InferHostPath(c.cmd, c.args))
	}
}

func TestAutoStagesWhatIsInferred(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"host/package.json": "{}", "host/dist/index.js": "x"})
	l := r.stage(Server{Command: "node", Args: []string{r.host() + "/dist/index.js"}, HostPath: Auto})
	commontest.Equal(t, l.Workspace+"/dist/index.js", l.Args[0])
	r.fails(Server{Command: "node", Args: []string{"index.js"}, HostPath: Auto}, SessionCreate, "write the folder itself")
}

func TestHostPathIsAFolderAndNotOneOfTheSystem(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"a/x": "", "file": "", "alias": "-> a", "system": "-> /etc"})
	at := func(name string) string { return filepath.Join(r.root, name) }
	for path, want := range map[string]string{
		at("a"):           "",
		at("missing"):     "no such file",
		at("file"):        "is not a folder",
		"relative":        "absolute path",
		at("a") + "/../a": "not hold the name",
		at("system"):      "folder of the system",
		"/":               "folder of the system",
		"/etc":            "folder of the system",
	} {
		t.Run(path, func(t *testing.T) {
			_, err := (Server{Command: "a", HostPath: path}).host("/home")
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", path, err, want)
			}
		})
	}
}
