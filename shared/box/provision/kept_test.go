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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// A kept install that Unpack refuses, for instance because its digest differs, is not used, and
// neither is one that lacks the program. The server is installed.
func TestAKeptInstallThatIsWrongIsNotUsed(t *testing.T) {
	for name, wrong := range map[string]func(*shelf) error{
		"another digest": func(s *shelf) error {
			s.broken = errors.New("another digest")
			return nil
		},
		"no program":  func(s *shelf) error { return os.RemoveAll(filepath.Join(s.made(t), "node_modules/.bin")) },
		"no install":  func(s *shelf) error { return os.RemoveAll(s.made(t)) },
		"two of them": func(s *shelf) error { return os.Mkdir(s.made(t)+"-2", 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s, kept := r.registry(), &shelf{folder: t.TempDir()}
			r.wake(kept, s)
			commontest.OK(t, wrong(kept))
			if l := r.wake(kept, s); r.count("npm ci ") != 2 || !executable(l.Command) {
				t.Errorf("got %+v, %v", l, r.log())
			}
			if left, _ := filepath.Glob(filepath.Join(r.root, "cache/npm/*/made-*")); len(left) != 1 {
				t.Error("left behind:", left)
			}
		})
	}
}

// made returns the folder of the one install that is kept.
func (s *shelf) made(t *testing.T) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(s.folder, s.packed[0], "made-*"))
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	return all[0]
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

// tidy calls Tidy, even if Tidy has just run. Meanwhile no test that runs beside this one starts
// a process: until it executes its program, it has the locks that this process has just closed.
func (r *rig) tidy(keep Keep) int {
	r.t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	_ = os.Remove(filepath.Join(r.root, "cache", tidiedFile))
	n, err := Tidy(r.t.Context(), filepath.Join(r.root, "cache"), keep)
	commontest.OK(r.t, err)
	return n
}

// unused sets the last use of an install to a time in the past.
func (r *rig) unused(l Launch, since time.Duration) {
	r.t.Helper()
	at := time.Now().Add(-since)
	commontest.OK(r.t, os.Chtimes(filepath.Join(filepath.Dir(l.Reads[0]), usedFile), at, at))
}

const day = 24 * time.Hour

func TestInstallThatNobodyUsesIsRemovedAndMadeAgain(t *testing.T) {
	r := newRig(t)
	server := r.registry()
	one := r.stager(server)
	l := r.stageWith(one)
	r.unused(l, 31*day)
	if n := r.tidy(Keep{Age: 30 * day}); n != 0 || !there(l.Reads[0]) {
		t.Errorf("removed %d, and a box that lives uses it", n)
	}
	r.stageWith(one) // now it is used
	one.Close()
	if n := r.tidy(Keep{Age: 30 * day}); n != 0 || !there(l.Reads[0]) {
		t.Errorf("removed %d before its time", n)
	}
	r.unused(l, 31*day)
	if n := r.tidy(Keep{Age: 30 * day}); n != 1 || there(l.Reads[0]) {
		t.Errorf("removed %d", n)
	}
	two := r.stager(server)
	defer two.Close()
	if again := r.stageWith(two); !there(again.Reads[0]) {
		t.Errorf("the next start gets %+v", again)
	}
}

func TestInstallsThatWereNotUsedForLongestGoWhenThereIsTooMuch(t *testing.T) {
	r := newRig(t)
	var all []Launch
	for i, manifest := range []string{"a\n", "b\n", "c\n", "d\n"} {
		server := r.python(map[string]string{"host/requirements.txt": manifest, "host/server.py": ""})
		r.write(map[string]string{"pip": `head -c 100000 /dev/zero >"$VENV/big"`})
		s := r.stager(server)
		l := r.stageWith(s)
		if i == 0 {
			defer s.Close() // a box lives
		} else {
			s.Close()
		}
		r.unused(l, time.Duration(10-i)*time.Hour)
		all = append(all, l)
	}
	commontest.EqualIn(t, "removed", 0, r.tidy(Keep{Bytes: 1 << 20}))
	commontest.EqualIn(t, "removed", 2, r.tidy(Keep{Bytes: 250_000}))
	for i, want := range []bool{true, false, false, true} {
		commontest.EqualIn(t, "install", want, there(all[i].Reads[0]))
	}
}

func TestInstallThatWasNeverFinishedIsRemoved(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"cache/npm/k/made-1/x": "x", "cache/npm/k/lock": "", "cache/work/lock": "", "cache/work/box-1/made-1/x": ""})
	at := time.Now().Add(-40 * day)
	commontest.OK(t, os.Chtimes(filepath.Join(r.root, "cache", "npm", "k", "lock"), at, at))
	unlock, _, err := tryLock(filepath.Join(r.root, "cache", "npm", "k", "lock"), unix.LOCK_EX)
	commontest.OK(t, err)
	commontest.EqualIn(t, "removed while it is being made", 0, r.tidy(Keep{Age: 30 * day}))
	unlock()
	commontest.EqualIn(t, "removed", 1, r.tidy(Keep{Age: 30 * day}))
	_, err = os.Stat(filepath.Join(r.root, "cache", "work", "box-1", "made-1", "x"))
	commontest.CheckIn(t, "what is no install", err)
}

func TestStartWaitsForWhoRemovesItsInstall(t *testing.T) {
	r := newRig(t)
	server := r.registry()
	one := r.stager(server)
	l := r.stageWith(one)
	one.Close()
	home := filepath.Dir(l.Reads[0])
	// As remove locks it, but a process that is just being started may have the lock of one for a moment.
	release, err := lock(t.Context(), filepath.Join(home, usedFile), unix.LOCK_EX, func() {})
	commontest.OK(t, err)
	two := r.stager(server)
	defer two.Close()
	done := make(chan Launch, 1)
	go func() { done <- r.stageWith(two) }()
	commontest.OK(t, os.RemoveAll(l.Reads[0]))
	release()
	if again := <-done; !there(again.Reads[0]) || !strings.HasPrefix(again.Reads[0], filepath.Join(r.root, "cache")) {
		t.Errorf("it got %+v", again)
	}
}
