package runner

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func published(t *testing.T) (*installs, *registry) {
	r := newRegistry(t)
	r.publish("srv", "1.0.0", map[string]any{"bin": "cli.js"}, file("package/cli.js", "#!/usr/bin/env node\n"))
	r.index("py-srv", "py_srv-1.0.0-py3-none-any.whl", wheel(t, "py_srv", "1.0.0", nil, map[string]string{
		"py_srv.py": "import sys\ndef main(): print('said', sys.stdin.read())\n",
		"py_srv-1.0.0.dist-info/entry_points.txt": "[console_scripts]\npy-srv = py_srv:main\n",
	}))
	return newInstalls(t, r), r
}

// kept lists the installs that the boxes of a test have stored.
func (i *installs) kept() []string {
	i.t.Helper()
	all, err := filepath.Glob(filepath.Join(i.root, "kept", "*", "*.tar.zst"))
	commontest.OK(i.t, err)
	return all
}

// wake stages a server in a box that begins with an empty cache, and waits for what it
// stores. installed reports whether the box has asked the registry for anything.
func (i *installs) wake(box string, gen int64, server string) (installed bool) {
	i.t.Helper()
	i.forget()
	k, err := keeping{}.installsOf("folder:"+filepath.Join(i.root, "kept"), true, box, gen, i.at.work, slog.New(slog.DiscardHandler))
	commontest.OK(i.t, err)
	i.at.installs = k
	before := i.from.asked.Load()
	l, err := i.stage(server)
	commontest.OK(i.t, err)
	for k.busy() { // what stores ends by itself
		time.Sleep(time.Millisecond)
	}
	if info, err := os.Stat(l.Command); err != nil || info.Mode()&0o111 == 0 {
		i.t.Errorf("%s cannot be executed: %v", l.Command, err)
	}
	return i.from.asked.Load() != before
}

func TestABoxUnpacksWhatItInstalledBefore(t *testing.T) {
	for name, server := range map[string]string{
		"npm": `{"command": "npx", "args": ["-y", "srv"], "env": {"API_KEY": "canary-of-the-server"}}`, "pypi": pypi,
	} {
		t.Run(name, func(t *testing.T) {
			i, _ := published(t)
			t.Setenv("npm_config__authToken", "canary-of-npm")
			if !i.wake("acme/s", 1, server) || len(i.kept()) != 1 {
				t.Fatalf("the first start installs and keeps: %v", i.kept())
			}
			archive := i.kept()[0]
			i.hasNoSecret(archive)
			commontest.EqualIn(t, "the second start installs", false, i.wake("acme/s", 2, server))
			commontest.OK(t, os.Truncate(archive, 100))
			commontest.EqualIn(t, "it installs in the place of a damaged one", true, i.wake("acme/s", 3, server))
			commontest.EqualIn(t, "the start after that installs", false, i.wake("acme/s", 4, server))
			commontest.EqualIn(t, "another tenant installs", true, i.wake("evil/s", 1, server))
			commontest.EqualIn(t, "installs are kept", 2, len(i.kept()))
		})
	}
}

// hasNoSecret checks the files in an archive.
func (i *installs) hasNoSecret(name string) {
	i.t.Helper()
	archive, err := os.Open(name)
	commontest.OK(i.t, err)
	to := i.t.TempDir()
	commontest.OK(i.t, snapshot.Unpack(i.t.Context(), archive, to, installLimits()))
	commontest.OK(i.t, archive.Close())
	commontest.OK(i.t, filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "canary") {
			i.t.Errorf("%s has a secret", path)
		}
		return err
	}))
}

// A runner that is invited again and again must not collect the locks of ended boxes.
func TestABoxThatHasEndedReleasesItsInstalls(t *testing.T) {
	i, _ := published(t)
	log := slog.New(slog.DiscardHandler)
	p := &prepared{box: newBox(parsed(t, `{"command": "npx", "args": ["-y", "srv"]}`), i.setup(), log), at: i.at, release: func() error { return nil }, log: log}
	_, err := p.box.provisioner.Provision(t.Context(), "p", nil, nil)
	commontest.OK(t, err)
	p.box.installs = &keptInstalls{}
	for _, uploads := range []int64{1, 0} { // a box that slept would end its upload
		p.box.installs.uploads.Store(uploads)
		_, idle := p.box.IdleSince()
		commontest.EqualIn(t, "the box may sleep", uploads == 0, idle)
	}
	tidied := func() int {
		t.Helper()
		n, err := provision.Tidy(t.Context(), i.at.cache, provision.Keep{Bytes: 1})
		commontest.OK(t, err)
		_ = os.Remove(filepath.Join(i.at.cache, ".tidied")) // or the next Tidy would do nothing
		return n
	}
	if n := tidied(); n != 0 {
		t.Fatalf("while its box runs, Tidy removes the install (%d)", n)
	}
	p.remove()
	commontest.EqualIn(t, "after its box has ended, Tidy", 1, tidied())
}

const pypi = `{"command": "uvx", "args": ["py-srv"]}`

// An image has what a server needs; a start asks no registry. Package image bakes a server of npm.
func TestABakedServerStartsWithoutARegistry(t *testing.T) {
	i, from := published(t)
	server := parsed(t, pypi)
	python, err := exec.LookPath("python3")
	commontest.OK(t, err)
	version, err := exec.CommandContext(t.Context(), python, "-c", "import sys; print('%d.%d' % sys.version_info[:2], end='')").Output()
	commontest.OK(t, err)
	// Bake installs into the folder that the image will have, so its paths are right in the
	// image.
	i.at.baked = filepath.Join(i.root, "image")
	bake := func(version string) (string, error) {
		return Bake(t.Context(), server, BakeConfig{
			Cache: i.at.cache, Work: i.at.work, Compile: true, Log: slog.New(slog.DiscardHandler),
			Image: provision.BakeConfig{To: i.at.baked, At: i.at.baked, Python: python, Version: version},
		})
	}
	if _, err := bake("2.7"); err == nil { // the interpreter of the image would not find its modules
		t.Error("a package of another Python was baked")
	}
	baked, err := bake(string(version))
	commontest.OK(t, err)
	i.forget()
	from.http.Close()
	commontest.EqualIn(t, "the image has the install", true, newBox(server, i.setup(), slog.New(slog.DiscardHandler)).provisioner.Baked())
	l, err := i.stage(pypi)
	if err != nil || !strings.HasPrefix(l.Command, filepath.Join(i.at.baked, baked)) || len(l.Reads) != 1 {
		t.Fatalf("%+v, %v", l, err)
	}
	cmd := exec.CommandContext(t.Context(), l.Command, l.Args...)
	cmd.Stdin = strings.NewReader("hello")
	if said, err := cmd.Output(); err != nil || string(said) != "said hello\n" {
		t.Errorf("it says %q, %v", said, err)
	}
}

// installed returns the text of a package's file in an install.
func (i *installs) installed(server, file string) string {
	i.t.Helper()
	l, err := i.stage(server)
	commontest.OK(i.t, err)
	found, err := filepath.Glob(filepath.Join(l.Reads[0], file))
	if err != nil || len(found) != 1 {
		i.t.Fatal(found, err)
	}
	text, err := os.ReadFile(found[0])
	commontest.OK(i.t, err)
	return string(text)
}

// forget removes the caches, including those of npm and pip.
func (i *installs) forget() {
	i.t.Helper()
	for _, dir := range []string{i.at.cache, filepath.Join(i.root, "home")} {
		commontest.OK(i.t, os.RemoveAll(dir))
		commontest.OK(i.t, os.MkdirAll(dir, 0o755))
	}
}

func TestLockGivesTheSamePackagesEverywhere(t *testing.T) {
	const node, python = `{"command": "npx", "args": ["-y", "top"]}`, `{"command": "uvx", "args": ["toppy"]}`
	const nodeFile, pythonFile = "node_modules/below/text", "venv/lib/python3*/site-packages/belowpy.py"
	from := newRegistry(t)
	i := newInstalls(t, from)
	publish := func(version string) {
		from.publish("top", version, map[string]any{"bin": "cli.js", "dependencies": map[string]string{"below": "*"}}, file("package/cli.js", "#!/usr/bin/env node\n"))
		from.publish("below", version, map[string]any{}, file("package/text", version))
		from.index("toppy", "toppy-"+version+"-py3-none-any.whl", wheel(t, "toppy", version, []string{"belowpy"}, nil))
		from.index("belowpy", "belowpy-"+version+"-py3-none-any.whl", wheel(t, "belowpy", version, nil, map[string]string{"belowpy.py": version}))
	}
	both := func(want string) {
		t.Helper()
		commontest.EqualIn(t, "npm has installed", want, i.installed(node, nodeFile))
		commontest.EqualIn(t, "pip has installed", want, i.installed(python, pythonFile))
	}
	publish("1.0.0")
	both("1.0.0")
	publish("2.0.0")
	both("1.0.0")
	// A new machine has only the locks of the old one.
	locks := filepath.Join(t.TempDir(), "locks")
	commontest.OK(t, os.Rename(filepath.Join(i.at.cache, "locks"), locks))
	i.forget()
	i.at.locks = locks
	both("1.0.0")

	// The registry now has other bytes for the same version, as after an attack.
	i.forget()
	from.publish("below", "1.0.0", map[string]any{}, file("package/text", "other"))
	from.index("belowpy", "belowpy-1.0.0-py3-none-any.whl", wheel(t, "belowpy", "1.0.0", nil, map[string]string{"belowpy.py": "other"}))
	for _, server := range []string{node, python} {
		_, err := i.stage(server)
		if err == nil || !strings.Contains(err.Error(), "the registry gives other bytes than the lock") || !strings.Contains(err.Error(), "remove the lock") {
			t.Errorf("%s: %v", server, err)
		}
	}
	i.at.locks = ""
	both("2.0.0")
}
