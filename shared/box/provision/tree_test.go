package provision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func (r *rig) bare() Server { return Server{Command: "a", HostPath: r.host()} }

func TestWorkspaceIsACopyWithoutRepositoriesAndCaches(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{
		"host/server.py": "code", "host/lib/deep/x.txt": "x", "host/.env": "TOKEN=1", "host/empty/": "",
		"host/.git/HEAD": "", "host/lib/__pycache__/x.pyc": "", "host/y.pyc": "", "host/.pytest_cache/a": "", "host/.venv/bin/python": "",
		"host/myenv/pyvenv.cfg": "", "host/a.egg-info/x": "", "host/.cache/x": "", "host/.tmp/x": "", "host/.DS_Store": "", "host/.mypy_cache/x": "",
		"host/node_modules/m/index.js": "js",
	})
	commontest.OK(t, os.Chmod(filepath.Join(r.host(), "server.py"), 0o755))
	l := r.stage(r.bare())
	want := map[string]string{
		"server.py": "code", "lib/": "", "lib/deep/": "", "lib/deep/x.txt": "x", ".env": "TOKEN=1", "empty/": "",
		// There is no manifest, so node_modules is copied.
		"node_modules/": "", "node_modules/m/": "", "node_modules/m/index.js": "js",
	}
	commontest.Same(t, want, list(t, l.Workspace))
	if info, err := os.Stat(filepath.Join(l.Workspace, "server.py")); err != nil || info.Mode().Perm() != 0o755 {
		t.Error(info.Mode(), err)
	}
}

func TestNothingTheProcessDoesReachesTheHostPath(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"host/a": "1", "host/d/b": "2", "host/l": "-> a"})
	before := list(t, r.host())
	l := r.stage(r.bare())
	for _, name := range []string{"a", "d/b", "l"} {
		commontest.OK(t, os.WriteFile(filepath.Join(l.Workspace, name), []byte("changed"), 0o600))
	}
	r.stage(r.bare())
	commontest.Same(t, before, list(t, r.host()))
}

func TestLinksThatStayInsideAreKept(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{
		"host/a": "1", "host/d/": "", "host/rel": "-> a", "host/d/up": "-> ../a", "host/dir": "-> d", "host/through": "-> dir/up", "host/dangling": "-> nowhere",
		"host/abs": "-> " + filepath.Join(r.host(), "d/up"), "host/d/abs": "-> " + filepath.Join(r.host(), "a"), "host/toabs": "-> abs",
	})
	l := r.stage(r.bare())
	want := map[string]string{
		"a": "1", "d/": "", "rel": "-> a", "d/up": "-> ../a", "dir": "-> d", "through": "-> dir/up", "dangling": "-> nowhere",
		"abs": "-> d/up", "d/abs": "-> ../a", "toabs": "-> abs",
	}
	commontest.Same(t, want, list(t, l.Workspace))
	if data, err := os.ReadFile(filepath.Join(l.Workspace, "toabs")); string(data) != "1" {
		t.Error(err)
	}
}

func TestLinksThatLeadOutAreRefused(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"relative":    {"host/l": "-> ../secret"},
		"absolute":    {"host/l": "-> /etc/passwd"},
		"in a folder": {"host/a/b/l": "-> ../../../secret"},
		// a/../.. is the host by its text, but above the host when links are followed
		"through a link": {"host/d/e/": "", "host/a": "-> d/e", "host/l": "-> a/../../../secret"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for n, text := range files {
				files[n] = strings.ReplaceAll(text, "$HOST", r.host())
			}
			r.write(map[string]string{"secret": "hunter2", "host/ok": ""})
			r.write(files)
			r.fails(r.bare(), SessionCreate, "leads out of the folder")
		})
	}
}

// L-4: Without a record of the last copy, refresh removes all that is not at the source,
// except the folders of dependencies and caches.
func TestRefreshRemovesStaleSourcesAndKeepsDependencies(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"host/server.py": "new", "host/requirements_.txt": "x", "host/.env": "TOKEN=new"})
	l := r.stage(r.bare())
	commontest.OK(t, os.Remove(filepath.Join(filepath.Dir(l.Workspace), "staged.json")))
	rel, _ := filepath.Rel(r.root, l.Workspace)
	r.write(map[string]string{
		rel + "/.venv/bin/python": "venv", rel + "/.cache/x": "c", rel + "/.tmp/x": "t", rel + "/node_modules/m/i.js": "m",
		rel + "/.env": "TOKEN=old", rel + "/server.py": "old", rel + "/removed.py": "stale", rel + "/removed_dir/deep/old.txt": "stale",
	})
	r.stage(r.bare())
	want := map[string]string{
		"server.py": "new", "requirements_.txt": "x", ".env": "TOKEN=new",
		".venv/": "", ".venv/bin/": "", ".venv/bin/python": "venv", ".cache/": "", ".cache/x": "c", ".tmp/": "", ".tmp/x": "t",
		"node_modules/": "", "node_modules/m/": "", "node_modules/m/i.js": "m",
	}
	commontest.Same(t, want, list(t, l.Workspace))
}

func TestRefreshKeepsWhatTheProcessMade(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"host/same": "1", "host/changes": "1", "host/d/goes": "1"})
	l := r.stage(r.bare())
	rel, _ := filepath.Rel(r.root, l.Workspace)
	r.write(map[string]string{rel + "/memory.json": "mine", rel + "/d/mine": "mine", rel + "/same": "mine", rel + "/changes": "mine", "host/changes": "22"})
	commontest.OK(t, os.RemoveAll(filepath.Join(r.host(), "d")))
	r.stage(r.bare())
	want := map[string]string{"same": "mine", "changes": "22", "memory.json": "mine", "d/": "", "d/mine": "mine"}
	commontest.Same(t, want, list(t, l.Workspace))
}

// A restored workspace has what its process had changed, and what is new at the source. That
// holds for later starts in the same box, and after the next sleep.
func TestWorkspaceThatIsRestoredIsMergedWithItsSource(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{
		"host/main.py": "v1", "host/conf": "1", "host/sub/x": "x", "host/sub/y": "y", "host/turns/into/file": "x",
		"host/folder": "y", "host/unwanted": "1", "host/goes": "1", "host/link": "-> main.py",
	})
	store := snapshot.NewFolder(filepath.Join(r.root, "snapshots"))
	boxes := 0
	// live makes a new box, runs work as its process, then between, and saves the workspace.
	live := func(work func(folder string), between func(again func())) map[string]string {
		boxes++
		cfg := config(filepath.Join(r.root, fmt.Sprint("box", boxes)))
		s := New(cfg, r.bare())
		k := snapshot.NewKeeper(snapshot.Config{Store: store, Generation: int64(boxes), Key: func(owner string) string { return owner }})
		start := func() Launch {
			l, err := s.Provision(t.Context(), "p", nil, func(ctx context.Context, folder string) ([]string, error) {
				return k.Restore(ctx, "p", "p", folder)
			})
			commontest.OK(t, err)
			return l
		}
		l := start()
		work(l.Workspace)
		between(func() { start() })
		commontest.OK(t, k.Save(t.Context(), "p", "p", l.Workspace, l.Staged))
		return list(t, l.Workspace)
	}
	nothing, noNext := func(string) {}, func(func()) {}
	live(func(folder string) {
		in := func(name string) string { return filepath.Join(folder, name) }
		commontest.OK(t, errors.Join(
			os.WriteFile(in("conf"), []byte("mine"), 0o600), os.RemoveAll(in("sub")), os.Remove(in("unwanted")),
			os.RemoveAll(in("turns")), os.WriteFile(in("turns"), []byte("file"), 0o600),
			os.Remove(in("folder")), os.MkdirAll(in("folder/in"), 0o750), os.WriteFile(in("folder/in/x"), nil, 0o600),
			os.Remove(in("link")), os.Symlink("conf", in("link")), os.WriteFile(in("memory"), []byte("1"), 0o600),
		))
	}, noNext)

	r.write(map[string]string{"host/main.py": "v2!", "host/conf": "22", "host/sub/new": "z", "host/turns/into/other": "y"})
	commontest.OK(t, os.Remove(filepath.Join(r.host(), "goes")))
	want := map[string]string{
		"main.py": "v2!", "conf": "mine", "sub/": "", "sub/new": "z", "turns": "file",
		"folder/": "", "folder/in/": "", "folder/in/x": "", "link": "-> conf", "memory": "1",
	}
	got := live(nothing, func(again func()) {
		again()
		r.write(map[string]string{"host/memory": "theirs"}) // the process has made a file of this name before
		again()
	})
	commontest.SameIn(t, "in the next box", want, got)
	r.write(map[string]string{"host/main.py": "v3!!"})
	want["main.py"], want["more"] = "v3!!", "2"
	got = live(func(folder string) {
		commontest.OK(t, os.WriteFile(filepath.Join(folder, "more"), []byte("2"), 0o600))
	}, noNext)
	commontest.SameIn(t, "in the third box", want, got)
	commontest.SameIn(t, "in the fourth box", want, live(nothing, noNext))
}

func TestStartAfterAFailedRestoreBeginsAnew(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"host/a": "1"})
	s := r.stager(r.bare())
	broken := errors.New("the store is down")
	_, err := s.Provision(t.Context(), "p", nil, func(_ context.Context, folder string) ([]string, error) {
		return nil, errors.Join(os.WriteFile(filepath.Join(folder, "half"), nil, 0o600), broken)
	})
	wantError(t, err, SessionCreate, broken.Error())
	l, err := s.Provision(t.Context(), "p", nil, func(context.Context, string) ([]string, error) { return nil, nil })
	commontest.OK(t, err)
	commontest.Same(t, map[string]string{"a": "1"}, list(t, l.Workspace))
}

func TestRefreshDoesNotFollowLinksOfTheProcess(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"host/d/a": "1", "host/b": "1", "host/e/stale": "1", "outside/a": "safe", "outside/stale": "safe"})
	l := r.stage(r.bare())
	out := filepath.Join(r.root, "outside")
	for name, link := range map[string]string{"d": out, "b": filepath.Join(out, "a"), "e": out} {
		commontest.OK(t, errors.Join(os.RemoveAll(filepath.Join(l.Workspace, name)), os.Symlink(link, filepath.Join(l.Workspace, name))))
	}
	r.write(map[string]string{"host/d/a": "22", "host/b": "22"})
	commontest.OK(t, os.Remove(filepath.Join(r.host(), "e/stale")))
	l2, err := r.try(r.bare())
	commontest.Same(t, map[string]string{"a": "safe", "stale": "safe"}, list(t, out))
	commontest.OK(t, err)
	want := map[string]string{"d/": "", "d/a": "22", "b": "22", "e/": ""}
	commontest.Same(t, want, list(t, l2.Workspace))
}

// L-5: files may vanish while the copy is refreshed, from the source or from the copy.
// That is no failure.
func TestFilesThatVanishMeanwhileAreNoFailure(t *testing.T) {
	r := newRig(t)
	r.write(map[string]string{"host/keep": "1"})
	l := r.stage(r.bare())
	over := make(chan struct{})
	var busy sync.WaitGroup
	for _, folder := range []string{r.host(), l.Workspace} {
		busy.Go(func() {
			for {
				for _, name := range []string{"x", "y", "z"} {
					file := filepath.Join(folder, name)
					_ = os.WriteFile(file, []byte(name), 0o600)
					_ = os.Remove(file)
				}
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	for range 60 {
		if _, err := r.try(r.bare()); err != nil {
			t.Error(err)
			break
		}
	}
	close(over)
	busy.Wait()
	if data, err := os.ReadFile(filepath.Join(l.Workspace, "keep")); string(data) != "1" {
		t.Error(err)
	}
}

func FuzzRecordOfTheCopy(f *testing.F) {
	f.Add([]byte(`{"a":{"m":420,"s":1,"t":"2026-01-01T00:00:00Z"},"l":{"m":134217728,"l":"a"}}`))
	for _, broken := range []string{"", "{", "[]", "null", `{"/etc/passwd":{}}`, `{"../outside":{}}`} {
		f.Add([]byte(broken))
	}
	f.Add([]byte(`{"":{},".":{}}`))
	f.Add([]byte(`{".":{}}`))
	f.Add([]byte(`{"` + strings.Repeat("z", 2000) + `":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		for _, name := range []string{"from", "to"} {
			commontest.OK(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		}
		outside := filepath.Join(dir, "outside")
		commontest.OK(t, errors.Join(os.WriteFile(filepath.Join(dir, "from/a"), []byte("1"), 0o600), os.WriteFile(filepath.Join(dir, "record"), data, 0o600), os.WriteFile(outside, nil, 0o600)))
		commontest.OK(t, refresh(t.Context(), filepath.Join(dir, "from"), filepath.Join(dir, "to"), filepath.Join(dir, "record")))
		got, err := os.ReadFile(filepath.Join(dir, "to/a"))
		if err != nil || !bytes.Equal(got, []byte("1")) {
			t.Fatal(string(got), err)
		}
		if !there(outside) {
			t.Fatal("what is outside of the copy is gone")
		}
	})
}
