package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestPermissionsAndTimesComeBackButNoSetuid(t *testing.T) {
	at := time.Date(2020, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	s := &memory{}
	lived(t, s, nil, func(dir string) {
		files{"tool": "#!", "secret": "s", "closed/in": "x"}.put(t, dir)
		must(t,
			os.Chmod(filepath.Join(dir, "tool"), 0o755|fs.ModeSetuid|fs.ModeSetgid),
			os.Chmod(filepath.Join(dir, "secret"), 0o400),
			os.Chmod(filepath.Join(dir, "closed"), 0o500|fs.ModeSticky),
			os.Chtimes(filepath.Join(dir, "tool"), at, at),
		)
	})
	dir := slept(t, s, nil)
	for name, want := range map[string]fs.FileMode{"tool": 0o755, "secret": 0o400, "closed": 0o500 | fs.ModeDir, "closed/in": 0o644} {
		t.Run(name, func(t *testing.T) {
			info, err := os.Lstat(filepath.Join(dir, name))
			commontest.OK(t, err)
			commontest.Equal(t, want, info.Mode())
		})
	}
	if info, err := os.Stat(filepath.Join(dir, "tool")); err != nil || !info.ModTime().Equal(at) {
		t.Errorf("its time is %v, want %v (%v)", info.ModTime(), at, err)
	}
}

func TestDependenciesAndCachesAreNotKept(t *testing.T) {
	s := &memory{}
	lived(t, s, nil, func(dir string) {
		files{".venv/x": "1", ".cache/x": "1", ".tmp/x": "1", "node_modules": "-> /cache", "sub/.cache": "kept", "not\xffutf8 \n": "odd", "dangles": "-> not/there"}.put(t, dir)
	})
	commontest.SameIn(t, "after the sleep", files{"sub": "/", "sub/.cache": "kept", "not\xffutf8 \n": "odd", "dangles": "-> not/there"}, seen(t, slept(t, s, nil)))
}

func TestNothingOfOthersIsSaved(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "others")
	must(t, os.WriteFile(outside, []byte("a secret of others"), 0o644))
	s := &memory{}
	lived(t, s, nil, func(dir string) {
		files{
			"absolute": "-> " + outside, "up": "-> ../../others", "by/way": "-> ..", "of": "-> by/way/../../x", "deep/er/way": "-> ../..", "others": "-> deep/er/way/../x",
			"one": "mine", "sub/x": "mine too",
		}.put(t, dir)
		must(t,
			os.Link(outside, filepath.Join(dir, "hard")),
			os.Link(filepath.Join(dir, "one"), filepath.Join(dir, "two")),
			os.Symlink(filepath.Join(dir, "sub", "x"), filepath.Join(dir, "sub", "own")),
			unix.Mkfifo(filepath.Join(dir, "pipe"), 0o666),
		)
	})
	want := files{"by": "/", "by/way": "-> ..", "deep": "/", "deep/er": "/", "deep/er/way": "-> ../..", "sub": "/", "sub/x": "mine too", "sub/own": "-> x", "one": "mine", "two": "mine"}
	commontest.SameIn(t, "after the sleep", want, seen(t, slept(t, s, nil)))
	commontest.EqualIn(t, "a file outside of the workspace was saved", false, strings.Contains(string(s.all["box\x00p"]), "a secret of others"))
}

func TestNothingIsSavedWhenNothingChanged(t *testing.T) {
	s := &memory{}
	staged := files{"a": "a"}
	lived(t, s, staged, func(string) {})
	commontest.Equal(t, 0, s.puts)
	lived(t, s, staged, func(dir string) { files{"b": "b"}.put(t, dir) })
	lived(t, s, staged, func(string) {})
	commontest.Equal(t, 1, s.puts)
	// An old snapshot is saved again, even without changes. Otherwise a sweep by age
	// would remove it.
	s.saved = time.Now().Add(-25 * time.Hour)
	lived(t, s, staged, func(string) {})
	commontest.Equal(t, 2, s.puts)
}

func TestTooMuchIsNotSaved(t *testing.T) {
	for name, c := range map[string]struct {
		limits Limits
		work   files
	}{
		"bytes": {Limits{Bytes: 3 << 20}, files{"work/large": strings.Repeat("x", 4<<20)}},
		"files": {Limits{Files: 3}, files{"work/a": "", "work/b": "", "work/c": "", "work/d": ""}},
		"depth": {Limits{}, files{"work/" + strings.Repeat("deep/", 300): "/"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &memory{}
			lived(t, s, nil, func(dir string) { files{"before": "1"}.put(t, dir) })
			k := keeper(s, 2, c.limits)
			dir, record := k.begins(t, nil)
			c.work.put(t, dir)
			var limit *LimitError
			if err := k.Save(t.Context(), "p", "p", dir, record); !errors.As(err, &limit) {
				t.Errorf("got %v", err)
			}
			commontest.SameIn(t, "the snapshot before", files{"before": "1"}, seen(t, slept(t, s, nil)))
			// Once the changes fit the limit again, they are saved.
			must(t, os.RemoveAll(filepath.Join(dir, "work")), os.WriteFile(filepath.Join(dir, "after"), nil, 0o600), k.Save(t.Context(), "p", "p", dir, record))
			commontest.EqualIn(t, "after the sleep there", 2, len(seen(t, slept(t, s, nil))))
		})
	}
}

func TestWorkspaceThatWasNotRestoredIsNotSaved(t *testing.T) {
	s, broken := &memory{}, errors.New("store is down")
	lived(t, s, nil, func(dir string) { files{"a": "a"}.put(t, dir) })
	k := keeper(s, 2, Limits{})
	k.begins(t, nil)
	s.fail = broken
	dir, _, err := k.begin(t, nil)
	is(t, broken, err)
	s.fail = nil
	must(t, k.Save(t.Context(), "p", "p", dir, ""))
	commontest.EqualIn(t, "an empty workspace was saved over a snapshot", 1, s.puts)
	dir, record := k.begins(t, nil)
	files{"b": "b"}.put(t, dir)
	s.fail = broken
	is(t, broken, k.Save(t.Context(), "p", "p", dir, record))
	s.fail = nil
	must(t, k.Save(t.Context(), "p", "p", dir, record))
	commontest.SameIn(t, "saved in the end", files{"a": "a", "b": "b"}, seen(t, slept(t, s, nil)))
}

func TestProcessesBeginWithWhatTheLastOneOfTheirOwnerLeft(t *testing.T) {
	k := NewKeeper(Config{Store: &memory{}, Generation: 1, Key: func(owner string) string { return Key("b", owner) }})
	for _, step := range []struct{ process, owner, finds, writes string }{
		{"s1", "principal-ann", "", "of s1"},
		{"s2", "principal-bob", "", "of s2"},
		{"s3", "principal-ann", "of s1", "of s3"},
		{"s1", "principal-ann", "of s3", "again"},
	} {
		dir := workspace(t, nil)
		_, err := k.Restore(t.Context(), step.process, step.owner, dir)
		must(t, err)
		commontest.EqualIn(t, step.process, step.finds, seen(t, dir)["note"])
		files{"note": step.writes}.put(t, dir)
		must(t, k.Save(t.Context(), step.process, step.owner, dir, ""))
		k.Leave(step.process)
	}
}

// A process that does not end in time may replace files while they are saved.
func TestFileThatIsSwappedWhileItIsSavedIsNotRead(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "others")
	must(t, os.WriteFile(outside, []byte("x"), 0o644))
	for name, swap := range map[string]func(path string) error{
		"for a link out":  func(path string) error { return os.Symlink(outside, path) },
		"for a pipe":      func(path string) error { return unix.Mkfifo(path, 0o666) },
		"for another":     func(path string) error { return os.WriteFile(path, []byte("y"), 0o644) },
		"for a hard link": func(path string) error { return os.Link(outside, path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := workspace(t, files{"x": "x", "y": "y"})
			root, err := os.OpenRoot(dir)
			must(t, err)
			defer func() { must(t, root.Close()) }()
			now, err := scan(t.Context(), root, Limits{}.withDefaults(), false)
			must(t, err)
			c, err := compare(nil, now, Limits{}.withDefaults())
			must(t, err)
			must(t, os.Remove(filepath.Join(dir, "x")), swap(filepath.Join(dir, "x")))
			var out strings.Builder
			if err := pack(t.Context(), &out, root, c); err == nil {
				t.Error("it was saved")
			}
		})
	}
}
