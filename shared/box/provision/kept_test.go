package provision

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// shelf is a Kept that keeps installs in a folder of a test.
type shelf struct {
	folder string
	broken error // fails Unpack after it has filled the folder

	mu     sync.Mutex
	packed []string // names
}

func (s *shelf) Unpack(ctx context.Context, name, folder string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.packed, name) {
		return false, nil
	}
	err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(s.folder, name)+"/.", folder).Run()
	return err == nil && s.broken == nil, errors.Join(err, s.broken)
}

func (s *shelf) Pack(ctx context.Context, name, folder string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.packed, name) {
		return errors.New("packed twice")
	}
	s.packed = append(s.packed, name)
	return exec.CommandContext(ctx, "cp", "-a", folder, filepath.Join(s.folder, name)).Run()
}

// wake stages a server in a box whose cache is empty.
func (r *rig) wake(kept Kept, s Server) Launch {
	r.t.Helper()
	commontest.OK(r.t, removeInstall(filepath.Join(r.root, "cache")))
	return r.kept(kept, s)
}

// kept stages a server in a box that keeps its installs.
func (r *rig) kept(kept Kept, s Server) Launch {
	r.t.Helper()
	cfg := config(r.root)
	cfg.Kept = kept
	if _, err := os.Stat(filepath.Join(r.root, "locks")); err == nil {
		cfg.Locks = filepath.Join(r.root, "locks")
	}
	return r.stageWith(New(cfg, s))
}

func TestAKeptInstallIsUnpackedAndNotInstalled(t *testing.T) {
	r := newRig(t)
	s, kept := r.registry(), &shelf{folder: t.TempDir()}
	first := r.wake(kept, s)
	r.write(map[string]string{"offline": "", "latest": "2.0.0"})
	second := r.wake(kept, s)
	if first.Command != second.Command || !executable(second.Command) || strings.Join(second.Args, " ") != "--flag" {
		t.Errorf("got %+v, first %+v", second, first)
	}
	if r.count("npm ci ") != 1 || r.count("npm install ") != 1 || len(kept.packed) != 1 {
		t.Error(r.log(), kept.packed)
	}
	if r.kept(kept, s); r.count("npm ci ") != 1 { // the cache has it by now
		t.Error(r.log())
	}
	left, _ := filepath.Glob(filepath.Join(r.root, "cache/npm/*/made-*"))
	commontest.EqualIn(t, "left behind", 1, len(left))
}

// A kept install that Unpack refuses, for instance because its digest differs, is not used either.
// The server is installed.
func TestAKeptInstallOfAnotherShapeIsNotUsed(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"another digest":     nil,
		"nothing":            {},
		"a file":             {"made-1": "x"},
		"two installs":       {"made-1/node_modules/srv/package.json": `{"bin":"cli.js"}`, "made-1/node_modules/.bin/srv": "#!/bin/sh\n", "made-2/a": ""},
		"another name":       {"cache/node_modules/srv/package.json": `{"bin":"cli.js"}`, "cache/node_modules/.bin/srv": "#!/bin/sh\n"},
		"without a program":  {"made-1/node_modules/srv/package.json": `{"bin":"cli.js"}`},
		"the program is bad": {"made-1/node_modules/srv/package.json": `{"bin":"cli.js"}`, "made-1/node_modules/.bin/srv": "not executable"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s, kept := r.registry(), &shelf{folder: t.TempDir()}
			r.wake(kept, s)
			if files == nil {
				kept.broken = errors.New(name)
			}
			other := &rig{t: t, root: filepath.Join(kept.folder, kept.packed[0])}
			commontest.OK(t, os.RemoveAll(other.root))
			other.write(map[string]string{"/": ""})
			other.write(files)
			for file, text := range files {
				if strings.HasPrefix(text, "#!") {
					commontest.OK(t, os.Chmod(filepath.Join(other.root, file), 0o755))
				}
			}
			if l := r.wake(kept, s); r.count("npm ci ") != 2 || !executable(l.Command) {
				t.Errorf("got %+v, %v", l, r.log())
			}
			if left, _ := filepath.Glob(filepath.Join(r.root, "cache/npm/*/made-*")); len(left) != 1 {
				t.Error("left behind:", left)
			}
		})
	}
}

func TestAKeptInstallFitsItsRequest(t *testing.T) {
	r := newRig(t)
	s, kept := r.registry(), &shelf{folder: t.TempDir()}
	r.wake(kept, s)
	want := 1
	for _, change := range []func(){
		func() { s.Args = []string{"-y", "srv@1.0.0"} },
		func() { s.Args = []string{"-p", "srv", "srv"} },
		func() { s.Scripts = true },
		func() { r.program("node", `cat "$(dirname "$PIP_LOG_OF_TEST")/version" # another`) },
		func() {
			r.write(map[string]string{"locks/" + lockName("npm", "srv"): `{"packages":{"":{"dependencies":{"srv":"1.0.0"}},"node_modules/srv":{"integrity":"sha512-1.0.0"}}}`})
		},
	} {
		change()
		want++
		for range 2 {
			r.wake(kept, s)
			commontest.EqualIn(t, "change", want, len(kept.packed))
		}
	}
}

func TestAnInstallWithACredentialIsNotKept(t *testing.T) {
	for name, value := range map[string]string{
		"NPM_CONFIG__AUTHTOKEN": "npm_hunter2", "UV_INDEX_URL": "https://user:hunter2@index.example/simple", "PIP_INDEX_URL": "https://hunter2@index.example/simple",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s, kept := r.registry(), &shelf{folder: t.TempDir()}
			s.Env = map[string]string{name: value}
			r.wake(kept, s)
			if len(kept.packed) != 1 {
				t.Fatalf("%s: without the credential in a file it is kept", name)
			}
			npm, err := os.ReadFile(filepath.Join(r.root, "npm-does"))
			commontest.OK(t, err)
			r.write(map[string]string{"npm-does": string(npm) + "mkdir -p node_modules/other; echo 'x hunter2 npm_hunter2' >node_modules/other/x\n"})
			s.Args = []string{"-y", "srv@1"}
			if l := r.wake(kept, s); len(kept.packed) != 1 || !executable(l.Command) {
				t.Errorf("%s: %+v, kept are %d", name, l, len(kept.packed))
			}
		})
	}
}
