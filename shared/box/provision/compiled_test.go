package provision

import (
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// compiling stages an npm package whose program is a shell script, with a Node that
// knows compile caches.
func (r *rig) compiling(script string, env map[string]string) Launch {
	r.t.Helper()
	s := r.registry()
	s.Env = env
	npm, err := os.ReadFile(filepath.Join(r.root, "npm-does"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.write(map[string]string{
		"version": "function", "cli.js": "#!/bin/sh\n" + script,
		"npm-does": strings.Replace(string(npm), `printf '#!/bin/sh\n' >`, `cat "$root/cli.js" >`, 1),
	})
	cfg := config(r.root)
	cfg.Compile = true
	l := r.stageWith(New(cfg, s))
	r.t.Cleanup(func() { // the test's folder can be removed only if the folders in it are writable
		homes, _ := filepath.Glob(filepath.Join(r.root, "cache/npm/*/made-*"))
		for _, dir := range homes {
			if err := removeInstall(dir); err != nil {
				r.t.Error(err)
			}
		}
	})
	return l
}

const asNode = `mkdir -p "$NODE_COMPILE_CACHE/v99-x64-aa-4711" && echo "$NODE_COMPILE_CACHE" >"$NODE_COMPILE_CACHE/v99-x64-aa-4711/0123"; `

func TestCompileCacheIsFilledOnceAndReadOnly(t *testing.T) {
	r := newRig(t)
	l := r.compiling(asNode+`echo "ran $# $API_KEY" >"$NODE_COMPILE_CACHE/../ran"; cat; exit 1`, map[string]string{"API_KEY": "hunter2"})
	folder := filepath.Join(l.Env["NODE_COMPILE_CACHE"], "v99-x64-aa-"+strconv.Itoa(os.Getuid()))
	// Node names files by their path from the cache. So the cache must be filled in a
	// sibling of the folder where processes read it.
	if text, err := os.ReadFile(filepath.Join(folder, "0123")); err != nil || filepath.Dir(string(text)) != filepath.Dir(l.Env["NODE_COMPILE_CACHE"]) {
		t.Errorf("%+v: it was filled at %q, %v", l.Env, text, err)
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o555 {
		t.Error(info, err)
	}
	if !strings.HasPrefix(folder, l.Reads[0]) {
		t.Errorf("%s is outside of what a confined process may read: %v", folder, l.Reads)
	}
	left, _ := filepath.Glob(filepath.Join(r.root, "cache/npm/*/made-*"))
	inside, _ := filepath.Glob(filepath.Join(l.Reads[0], "compiled*"))
	if len(left) != 1 || len(inside) != 1 {
		t.Error("left behind:", left, inside)
	}
}

func TestInstallDoesWithoutACompileCache(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		env    map[string]string
	}{
		"the program fails before it writes":   {script: "exit 3"},
		"the program writes several folders":   {script: asNode + `mkdir "$NODE_COMPILE_CACHE/v98-x64-aa-1"`},
		"the program writes a file":            {script: `echo x >"$NODE_COMPILE_CACHE/v99-x64-aa-0"`},
		"the program writes a link":            {script: `ln -s /etc "$NODE_COMPILE_CACHE/v99-x64-aa-0"`},
		"the program writes too much":          {script: asNode + `truncate -s 65M "$NODE_COMPILE_CACHE/v99-x64-aa-4711/big"`},
		"the server has a cache of its own":    {script: asNode, env: map[string]string{"NODE_COMPILE_CACHE": "/own"}},
		"the program is killed before it ends": {script: `kill -9 $$`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			l := r.compiling(c.script, c.env)
			if l.Env["NODE_COMPILE_CACHE"] != "" || !executable(l.Command) {
				t.Errorf("got %+v", l)
			}
		})
	}
}

// Only Node itself says whether it has a compile cache. If it has one, a confined process
// reads the part that belongs to the install.
func TestRealNodeProgramReadsTheCompileCacheOfItsInstall(t *testing.T) {
	cfg := real(t.TempDir())
	cfg.Compile = true
	l := stageReal(t, New(cfg, Server{Command: "npx", Args: []string{"-y", "semver@7", "1.2.3"}}))
	t.Cleanup(func() { _ = removeInstall(l.Reads[0]) })
	dir := filepath.Join(t.TempDir(), "work")
	inside, err := inSandbox(Workshop{Folder: dir, Read: l.Reads, Programs: realPaths(program(t, "node")), Offline: true})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd := command{argv: []string{"node", "-p", "require('module').getCompileCacheDir?.() ?? ''"}, env: []string{"PATH=" + os.Getenv("PATH"), "NODE_COMPILE_CACHE=" + l.Env["NODE_COMPILE_CACHE"]}, log: &out, start: inside.Start}
	if _, err := cmd.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	used := strings.TrimSpace(out.String())
	has, err := (command{argv: []string{"node", "-p", "typeof require('module').enableCompileCache"}, env: []string{"PATH=" + os.Getenv("PATH")}}).run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(has)) != "function" {
		if used != "" || l.Env["NODE_COMPILE_CACHE"] != "" {
			t.Errorf("used %q, %v", used, l.Env)
		}
		return
	}
	var said strings.Builder
	run := command{argv: append([]string{l.Command}, l.Args...), log: &said, env: []string{
		"PATH=" + os.Getenv("PATH"), "NODE_COMPILE_CACHE=" + l.Env["NODE_COMPILE_CACHE"], "NODE_COMPILE_CACHE_PORTABLE=1", "NODE_DEBUG_NATIVE=COMPILE_CACHE",
	}}
	if _, err := run.run(t.Context()); err != nil || !strings.Contains(said.String(), "was accepted") {
		t.Errorf("the program does not use its compile cache: %v\n%s", err, said.String())
	}
	files, err := filepath.Glob(filepath.Join(used, "*"))
	if err != nil || len(files) < 5 || !strings.HasPrefix(used, l.Reads[0]) {
		t.Errorf("used %q with %d files, %v", used, len(files), err)
	}
}

// Compiled modules work in an image and in a kept install, which do not preserve the
// modification times that Python would compare.
func TestCompiledModulesOfAnInstallNeedNoTimes(t *testing.T) {
	cfg := real(t.TempDir())
	cfg.Compile = true
	l := stageReal(t, New(cfg, Server{Command: "uvx", Args: []string{"pycowsay", "hello"}}))
	var all []string
	err := filepath.WalkDir(l.Reads[0], func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".pyc") {
			all = append(all, path)
		}
		return err
	})
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, file := range all {
		const unchecked = 1 // in the flags behind the magic number
		if text, err := os.ReadFile(file); err != nil || len(text) < 8 || binary.LittleEndian.Uint32(text[4:]) != unchecked {
			t.Errorf("%s begins %x, %v", filepath.Base(file), text[:min(8, len(text))], err)
		}
	}
}
