package provision

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// fakePython puts a Python and a uv into the PATH. The Python knows its version. uv makes
// virtual environments and wheels, notes its arguments and what it is to resolve, and runs
// the script in the file "pip" before it resolves or installs.
func (r *rig) fakePython() {
	r.program("python3", `
case "$*" in
*executable*) echo "$0" ;;
*) cat "$(dirname "$PIP_LOG_OF_TEST")/version"; echo version >>"$PIP_LOG_OF_TEST" ;;
esac
`)
	r.program("uv", `
root="$(dirname "$PIP_LOG_OF_TEST")"
for last; do
	[ "$before" = --out-dir ] && : >"$last/project-1-py3-none-any.whl"
	[ "$before" = --python ] && export VENV="$(dirname "$last")/.."
	before=$last
done
[ "$1" = pip ] && echo "$*" >>"$PIP_LOG_OF_TEST" || echo "$1" >>"$PIP_LOG_OF_TEST"
case "$1 $2" in
venv*)
	mkdir -p "$last/bin" "$last/lib/python3.11/site-packages"
	cp "$root/bin/python3" "$last/bin/python" ;;
"pip compile")
	echo "wanted" $(cat "$last") >>"$PIP_LOG_OF_TEST"
	export VENV="$root/nowhere"
	mkdir -p "$VENV/bin"
	{ . "$root/pip"; } >&2
	echo "${LOCK:-a==1} --hash=sha256:1" ;;
"pip install") . "$root/pip" ;;
esac
exit 0
`)
	r.write(map[string]string{"version": "cpython-311 3.11.7 test\n", "pip": "echo noise; echo more noise >&2\n"})
}

func (r *rig) python(files map[string]string) Server {
	r.t.Helper()
	r.fakePython()
	r.write(files)
	return Server{Command: "python", Args: []string{"server.py"}, HostPath: r.host()}
}

// The second start installs nothing. An install runs with the rights of the runner, so it takes
// nothing that a process has written.
func TestDependenciesAreInstalledOncePerManifest(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{"host/requirements.txt": "mcp==1.26.0\n", "host/server.py": "1"})
	first := r.stage(s)
	if r.count("wanted mcp==1.26.0") != 1 || r.count("pip install --quiet --no-deps --python "+first.Env["VIRTUAL_ENV"]+"/bin/python --only-binary :all: --require-hashes -r ") != 1 {
		t.Error(r.log())
	}
	r.write(map[string]string{"host/server.py": "changed"})
	for _, name := range []string{"requirements.txt", "setup.py", "pyproject.toml"} {
		commontest.OK(t, os.WriteFile(filepath.Join(first.Workspace, name), []byte("[project] evil"), 0o600))
	}
	second := r.stage(s)
	if r.count("venv") != 1 || first.Env["VIRTUAL_ENV"] != second.Env["VIRTUAL_ENV"] {
		t.Error(r.log())
	}
	r.write(map[string]string{"host/requirements.txt": "mcp==1.27.0\n"})
	if third := r.stage(s); r.count("venv") != 2 || third.Env["VIRTUAL_ENV"] == first.Env["VIRTUAL_ENV"] {
		t.Error("another manifest is another install:", r.log())
	}
	r.write(map[string]string{"version": "cpython-312 3.12.0 test\n"})
	r.stage(s)
	commontest.EqualIn(t, "another Python is another install", 3, r.count("venv"))
}

func TestManifestsOfEveryKindAreFound(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string // what uv is asked for, "" for nothing
	}{
		{"none", map[string]string{"host/server.py": ""}, ""},
		{"requirements", map[string]string{"host/requirements.txt": "a"}, "a"},
		{"project", map[string]string{"host/pyproject.toml": "[project]\nname='a'"}, "wheel"},
		{"settings of tools alone", map[string]string{"host/pyproject.toml": "[tool.ruff]\n"}, ""},
		{"setup.py", map[string]string{"host/setup.py": ""}, "wheel"},
		{"setup.cfg", map[string]string{"host/setup.cfg": "[metadata]\nname=a"}, "wheel"},
		{"both", map[string]string{"host/pyproject.toml": "[project]", "host/requirements.txt": "a"}, "wheel a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			l := r.stage(r.python(c.files))
			asked := ""
			for _, line := range r.log() {
				switch {
				case line == "build" && asked == "":
					asked = "wheel "
				case strings.HasPrefix(line, "wanted a"):
					asked += "a"
				}
			}
			if strings.TrimSpace(asked) != c.want || (l.Env["VIRTUAL_ENV"] == "") != (c.want == "") {
				t.Errorf("log %q", r.log())
			}
		})
	}
}

func TestInstallOfAProjectFollowsItsSource(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{"host/pyproject.toml": "[project]", "host/a.py": "1"})
	l := r.stage(s)
	r.stage(s)
	r.noted(1, "venv")
	commontest.OK(t, os.WriteFile(filepath.Join(l.Workspace, "a.py"), []byte("of the process"), 0o600))
	r.stage(s)
	commontest.EqualIn(t, "what the process writes starts an install", 1, r.count("venv"))
	r.write(map[string]string{"host/a.py": "2"})
	r.stage(s)
	commontest.EqualIn(t, "the installed project is not the source", 2, r.count("venv"))
}

func TestRequirementsThatNameOthersAreFollowed(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{
		"host/requirements.txt": "-r req/base.txt\n-c constraints.txt\nmcp\n", "host/req/base.txt": "--requirement=more.txt\n", "host/req/more.txt": "a\n", "host/constraints.txt": "mcp<2\n",
	})
	r.stage(s)
	for i, name := range []string{"host/constraints.txt", "host/req/more.txt", "host/req/base.txt"} {
		r.write(map[string]string{name: "other==1\n"})
		r.stage(s)
		r.noted(i+2, "venv")
	}
	for _, text := range []string{"-r ../outside.txt", "-r requirements.txt"} {
		r.write(map[string]string{"host/requirements.txt": text, "outside.txt": "a"})
		r.fails(s, DepInstall, "")
	}
}

func TestFailedInstallTellsExitCodeAndTheEndOfStderr(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{"host/requirements.txt": "nope"})
	long := strings.Repeat("ä", 600)
	r.write(map[string]string{"pip": "echo quiet; echo 'first " + long + " end: https://user:pass@host/x' >&2; exit 17\n"})
	e := r.failure(s)
	if e.Phase != DepInstall || e.ExitCode == nil || *e.ExitCode != 17 || len([]rune(e.Stderr)) != 500 {
		t.Errorf("%+v, %d characters", e, len([]rune(e.Stderr)))
	}
	commontest.Equal(t, "dependency install failed (exit 17): "+e.Stderr, e.Error())
	if !strings.HasSuffix(e.Stderr, "ä end: https://***@host/x") {
		t.Errorf("stderr ends in %q", e.Stderr[len(e.Stderr)-40:])
	}
	r.write(map[string]string{"pip": ""})
	r.stage(s) // the next start tries again
}

func TestInstallHasACleanEnvironment(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{"host/requirements.txt": "a"})
	r.write(map[string]string{"pip": "env | cut -d= -f1 | grep -v -e PWD -e SHLVL -e '^_$' -e VENV -e OLDPWD | sort >>\"$PIP_LOG_OF_TEST\"\n"})
	s.Env = map[string]string{"API_KEY": "x", "PIP_INDEX_URL": "https://index", "npm_config_registry": "https://r", "NODE_OPTIONS": "--x"}
	s.Unset = []string{"HTTP_PROXY"}
	cfg := config(r.root)
	cfg.Environ["HTTP_PROXY"], cfg.Environ["http_proxy"] = "p", "p"
	cfg.Environ["HTTPS_PROXY"], cfg.Environ["no_proxy"], cfg.Environ["DORMOUSE_TOKEN"], cfg.Environ["LD_PRELOAD"] = "p", "q", "t", ""
	r.stageWith(New(cfg, s))
	got := r.log()[len(r.log())-9:]
	want := []string{"HOME", "HTTPS_PROXY", "PATH", "PIP_INDEX_URL", "PIP_LOG_OF_TEST", "PYC_INVALIDATION_MODE", "TMPDIR", "no_proxy", "npm_config_registry"}
	if diff := cmp.Diff(want, got); diff != "" || strings.Contains(strings.Join(r.log(), " "), "API_KEY") {
		t.Error(diff, r.log())
	}
}

func TestStartThatIsGivenUpKillsItsInstall(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{"host/requirements.txt": "a"})
	r.write(map[string]string{"pip": "sleep 600 & echo $! >\"$PIP_LOG_OF_TEST.pid\"; wait\n"})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("nobody waits any more")
	done := make(chan error, 1)
	go func() {
		_, err := r.stager(s).Provision(ctx, "p", nil, nil)
		done <- err
	}()
	pid := r.installing()
	cancel(cause)
	err := <-done
	wantError(t, err, DepInstall, cause.Error())
	commontest.Eventually(t, "the child of the install is gone", func() bool { return !commontest.Alive(pid) })
	r.write(map[string]string{"pip": ""})
	r.stage(s)
}

func TestInstallLeavesNoProcessesBehind(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{"host/requirements.txt": "a"})
	r.write(map[string]string{"pip": "sleep 600 >/dev/null 2>&1 & echo $! >\"$PIP_LOG_OF_TEST.pid\"\n"})
	r.stage(s)
	pid := r.installing()
	commontest.Eventually(t, "the child of the install is gone", func() bool { return !commontest.Alive(pid) })
}

func TestVirtualEnvironmentWhoseInterpreterIsGoneIsMadeAnew(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{"host/requirements.txt": "a"})
	l := r.stage(s)
	commontest.OK(t, os.Remove(filepath.Join(l.Env["VIRTUAL_ENV"], "bin/python")))
	r.stage(s)
	r.noted(2, "venv")
}

// Requirements may name folders, archives and indexes. Folders are built, and the others
// go to uv with paths that do not depend on its working folder.
func TestRequirementsMayNameFoldersAndIndexes(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{
		"host/requirements.txt": "--index-url https://index/simple\n-f ./wheels\na\n-e ./lib[cli] # ours\n./b-1-py3-none-any.whl\n-r more/r.txt\n",
		"host/more/r.txt":       "c @ file:sub\n", "host/lib/x": "", "host/more/sub/x": "", "host/b-1-py3-none-any.whl": "",
	})
	r.write(map[string]string{"pip": `case "$last" in *lock.txt) cat "$last" >>"$PIP_LOG_OF_TEST" ;; esac` + "\n"})
	r.stage(s)
	log := strings.Join(r.log(), "\n")
	for _, want := range []string{
		"wanted --index-url https://index/simple -f " + r.host() + "/wheels a " + r.host() + "/b-1-py3-none-any.whl /",
		"/project-1-py3-none-any.whl[cli] /", "\n--index-url https://index/simple\n-f " + r.host() + "/wheels\n",
	} {
		commontest.Contains(t, "the log lacks", want, log)
	}
	if r.count("build") != 4 { // once for the lock, once for the install
		t.Error(log)
	}
	for _, text := range []string{"../outside\n", "x @ file:///etc\n", "-c ../outside.txt\n"} {
		r.write(map[string]string{"host/requirements.txt": text})
		r.fails(s, DepInstall, "")
	}
}

// fakeNode puts a Node.js into the PATH. Its npm notes its arguments and then runs the
// script in the file "npm".
func (r *rig) fakeNode() {
	r.program("node", `cat "$(dirname "$PIP_LOG_OF_TEST")/version"`)
	r.program("npm", `echo "npm $*" >>"$PIP_LOG_OF_TEST"; . "$(dirname "$PIP_LOG_OF_TEST")/npm-does"`)
	r.write(map[string]string{"version": "v20 115 linux x64", "npm-does": "mkdir -p node_modules/.bin node_modules/m; echo 1 >node_modules/m/i.js\n"})
}

func (r *rig) node(files map[string]string) Server {
	r.t.Helper()
	r.fakeNode()
	r.write(files)
	return Server{Command: "node", Args: []string{"index.js"}, HostPath: r.host()}
}

func TestLockedNodeDependenciesAreInstalledOnce(t *testing.T) {
	r := newRig(t)
	s := r.node(map[string]string{
		"host/package.json": `{"name":"a","scripts":{"prepare":"exit 1"}}`, "host/package-lock.json": "{}", "host/index.js": "1",
		"host/node_modules/stale/i.js": "", "host/.npmrc": "//registry/:_authToken=hunter2",
	})
	r.write(map[string]string{"npm-does": "cp package.json \"$PIP_LOG_OF_TEST.package\"; ls -A >>\"$PIP_LOG_OF_TEST\"; mkdir -p node_modules/m\n"})
	l := r.stage(s)
	r.stage(s)
	r.noted(1, "npm ci ")
	link, err := os.Readlink(filepath.Join(l.Workspace, "node_modules"))
	if err != nil || !strings.HasPrefix(link, filepath.Join(r.root, "cache", "node")) || !strings.HasPrefix(link, l.Reads[0]) {
		t.Error(link, err, l.Reads)
	}
	commontest.EqualIn(t, "modules", 1, len(list(t, link)))
	commontest.Equal(t, filepath.Join(link, ".bin"), l.Path[0])
	if data, err := os.ReadFile(filepath.Join(r.root, "log.package")); string(data) != `{"name":"a"}` {
		t.Error("scripts of the project were to be run", string(data), err)
	}
	commontest.EqualIn(t, "npm has not seen its settings", 1, r.count(".npmrc"))
	if _, err := os.Stat(filepath.Join(l.Reads[0], ".npmrc")); !os.IsNotExist(err) {
		t.Error("a token stays in the cache:", err)
	}
}

func TestNodeWithoutLockIsResolvedOnce(t *testing.T) {
	r := newRig(t)
	s := r.node(map[string]string{"host/package.json": `{"dependencies":{"m":"^1"},"scripts":{"prepare":"exit 1"}}`, "host/index.js": "1"})
	r.write(map[string]string{"npm-does": `case "$1" in install) echo '{"packages":{"":{},"node_modules/m":{"integrity":"sha512-x"}}}' >package-lock.json;; *) mkdir -p node_modules/m; (cat package.json; echo) >>"$PIP_LOG_OF_TEST";; esac` + "\n"})
	first, second := r.stage(s), r.stage(s)
	if r.count("npm install ") != 1 || r.count("npm ci ") != 1 || first.Reads[0] != second.Reads[0] || r.count("prepare") != 0 {
		t.Error(r.log())
	}
	r.write(map[string]string{"host/package.json": `{"dependencies":{"m":"^2"}}`})
	r.stage(s)
	r.noted(2, "npm install ")
	r.write(map[string]string{"host/package.json": `{"dependencies":{"m":"file:../m"}}`})
	r.fails(s, DepInstall, "run npm install")
}

// A server whose command is the path of a Python gets an environment made with that one.
func TestPathOfAPythonGetsTheDependencies(t *testing.T) {
	r := newRig(t)
	s := r.python(map[string]string{
		"host/requirements.txt": "a\n",
		"system/bin/python3":    "#!/bin/sh\necho of-the-system >>\"$PIP_LOG_OF_TEST\"\nexec " + filepath.Join(r.root, "bin", "python3") + " \"$@\"\n",
	})
	s.Command = filepath.Join(r.root, "system/bin/python3")
	commontest.OK(t, os.Chmod(s.Command, 0o700)) //nolint:gosec // it is a program
	if l := r.stage(s); l.Command != "python" || l.Env["VIRTUAL_ENV"] == "" || r.count("of-the-system") == 0 {
		t.Errorf("it starts %s in %q: %s", l.Command, l.Env["VIRTUAL_ENV"], r.log())
	}
}

func TestFailedNpmSaysHow(t *testing.T) {
	r := newRig(t)
	s := r.node(map[string]string{"host/package.json": "{}", "host/package-lock.json": "{}"})
	for script, want := range map[string]string{
		"kill -9 $$\n": "dependency install failed (was killed by SIGKILL)",
		"echo 'npm error nospc ENOSPC: no space left on device, write' >&2; exit 3": "the disk of the cache " + r.root + "/cache is full (",
	} {
		r.write(map[string]string{"npm-does": script})
		r.fails(s, DepInstall, want)
	}
}

func TestNodeProjectsOfManyPackagesAreInstalledWithTheirSource(t *testing.T) {
	r := newRig(t)
	lock := `{"packages":{"node_modules/b":{"resolved":"packages/b","link":true}}}`
	s := r.node(map[string]string{"host/package.json": "{}", "host/package-lock.json": lock, "host/packages/b/index.js": "1"})
	r.write(map[string]string{"npm-does": "mkdir -p node_modules && ln -s ../packages/b node_modules/b\n"})
	l := r.stage(s)
	if data, err := os.ReadFile(filepath.Join(l.Workspace, "node_modules/b/index.js")); string(data) != "1" {
		t.Error(err)
	}
	r.write(map[string]string{"host/packages/b/index.js": "2"})
	l = r.stage(s)
	if data, err := os.ReadFile(filepath.Join(l.Workspace, "node_modules/b/index.js")); string(data) != "2" {
		t.Error(string(data), err)
	}
}

func TestCredentialsInAddressesAreHidden(t *testing.T) {
	for in, want := range map[string]string{
		"a https://t@h b http://h/x@y":      "a https://***@h b http://h/x@y",
		"git+ssh://git@h/x":                 "git+ssh://***@h/x",
		"https://u:p@ss@h/x https://u:p@h2": "https://***@h/x https://***@h2",
	} {
		commontest.EqualIn(t, in, want, withoutCredentials(in))
	}
}
