package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// TestMain makes the test binary a program that is killed while it saves.
func TestMain(m *testing.M) {
	if dir := os.Getenv("SNAPSHOT_TEST_FOLDER"); dir != "" {
		os.Exit(saveAndHang(dir, os.Getenv("SNAPSHOT_TEST_STEP")))
	}
	os.Exit(m.Run())
}

// saveAndHang saves something, reports when it reaches a step, and waits there to be
// killed.
func saveAndHang(dir, step string) int {
	hang := func() {
		_, _ = os.Stdout.WriteString("there\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	f := NewFolder(dir)
	f.fail = func(s string) error {
		if s == step {
			hang()
		}
		return nil
	}
	if os.Getenv("SNAPSHOT_TEST_CLAIM") != "" {
		return thaw(f, 8, hang)
	}
	err := f.Put(context.Background(), "key", 7, func(w io.Writer) error {
		if _, err := io.WriteString(w, "half of what is "); err != nil {
			return err
		}
		if step == "write" {
			hang()
		}
		_, err := io.WriteString(w, "new")
		return err
	})
	if err != nil {
		return 1
	}
	hang()
	return 0
}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func got(t *testing.T, s Store, key string) string {
	t.Helper()
	r, saved, err := s.Get(t.Context(), key)
	if errors.Is(err, ErrNone) {
		return "none"
	}
	must(t, err)
	b, err := io.ReadAll(r)
	must(t, err, r.Close())
	if saved.IsZero() || time.Since(saved) > time.Hour {
		t.Errorf("saved at %v", saved)
	}
	return string(b)
}

// holds counts the files of a store, except the lock file.
func holds(t *testing.T, dir string) int {
	t.Helper()
	n := 0
	for name, what := range seen(t, dir) {
		if what != "/" && !strings.HasPrefix(name, ".") {
			n++
		}
	}
	return n
}

func TestStoreGivesWhatWasPutLast(t *testing.T) {
	folder, temp, bucket := filepath.Join(t.TempDir(), "snapshots"), t.TempDir(), newBucket(t)
	for name, c := range map[string]struct {
		store Store
		left  func() int // files of snapshots, and what a store has left elsewhere
	}{
		"folder": {NewFolder(folder), func() int { return holds(t, folder) / 2 }}, // each has a pointer
		"bucket": {aged{bucket.store(temp), bucket}, func() int { return len(seen(t, temp)) + 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := c.store, t.Context()
			holdsNow := func(want string) {
				t.Helper()
				commontest.EqualIn(t, "there", want, got(t, s, "key"))
			}
			holdsNow("none")
			must(t, s.Put(ctx, "key", 1, text("one")), s.Put(ctx, "key", 2, text("two")))
			is(t, ErrStale, s.Put(ctx, "key", 1, text("late")))
			broken := errors.New("broken")
			is(t, broken, s.Put(ctx, "key", 3, func(io.Writer) error { return broken }))
			holdsNow("two")
			must(t, s.Put(ctx, "key", 3, text("")), s.Delete(ctx, "key", 2), s.Delete(ctx, "not there", 1))
			holdsNow("") // an older runner deletes no newer snapshot
			commontest.Equal(t, 1, c.left())
			must(t, s.Delete(ctx, "key", 3))
			holdsNow("none")
		})
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info.Mode(), err)
	}
}

func TestRunnerThatIsKilledWhileItSavesLeavesTheLastWholeSnapshot(t *testing.T) {
	for step, want := range map[string]string{"write": "old", "sync": "old", "commit": "old", "end": "half of what is new"} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			f := NewFolder(dir)
			must(t, f.Put(t.Context(), "key", 1, text("old")))
			killAt(t, dir, step)
			commontest.EqualIn(t, "there", want, got(t, f, "key"))
			// The lock ended with the killed process. The next save removes that
			// process's files.
			must(t, f.Put(t.Context(), "key", 8, text("next")))
			commontest.Equal(t, 2, holds(t, dir))
		})
	}
}

// killAt has another process save, and kills it at a step.
func killAt(t *testing.T, dir, step string, more ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(append(os.Environ(), "SNAPSHOT_TEST_FOLDER="+dir, "SNAPSHOT_TEST_STEP="+step), more...)
	in, err := cmd.StdinPipe()
	must(t, err)
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "there\n" {
		t.Errorf("it said %q (%v)", line, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
}

func TestManyWhoSaveAtOnceLeaveOneWholeSnapshot(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for gen := range 20 {
		all.Go(func() {
			f := NewFolder(dir)
			s := strings.Repeat(fmt.Sprintf("%02d", gen), 50_000)
			if err := f.Put(t.Context(), "key", int64(gen), text(s)); err != nil && !errors.Is(err, ErrStale) {
				t.Error(err)
			}
			if r, _, err := f.Get(t.Context(), "key"); err == nil {
				b, err := io.ReadAll(r)
				if err != nil || len(b) != 100_000 || string(b) != strings.Repeat(string(b[:2]), 50_000) || string(b[:2]) < fmt.Sprintf("%02d", gen) {
					t.Errorf("generation %d got %d bytes of %.2s: %v", gen, len(b), b, err)
				}
				_ = r.Close()
			} else {
				t.Error(err)
			}
		})
	}
	all.Wait()
	commontest.EqualIn(t, "the last is of generation", "19", got(t, NewFolder(dir), "key")[:2])
	commontest.Equal(t, 2, holds(t, dir))
}

func TestSweepTakesWhatNobodyUses(t *testing.T) {
	dir := t.TempDir()
	f := NewFolder(dir)
	const age = 24 * time.Hour
	for _, key := range []string{"old", "got", "new"} {
		must(t, f.Put(t.Context(), key, 1, text(key)))
	}
	past := time.Now().Add(-2 * age)
	for _, key := range []string{"old", "got"} {
		p, err := f.current(key)
		must(t, err, os.Chtimes(filepath.Join(f.of(key), pointerFile), past, past), os.Chtimes(filepath.Join(f.of(key), p.Object), past, past))
	}
	r, _, err := f.Get(t.Context(), "got") // which counts as used
	must(t, err, r.Close())
	must(t, os.Mkdir(filepath.Join(dir, "left"), 0o700), os.Chtimes(filepath.Join(dir, "left"), past, past))
	if n, err := f.Sweep(t.Context(), age); n != 2 || err != nil {
		t.Errorf("%d swept: %v", n, err)
	}
	for _, c := range [][2]string{{"old", "none"}, {"new", "new"}} {
		commontest.EqualIn(t, c[0], c[1], got(t, f, c[0]))
	}
	if n := len(outer(t, dir)); n != 4 { // two, the lock and the mark
		t.Errorf("there is %v", outer(t, dir))
	}
}

func TestPointerThatLeadsElsewhereIsRefused(t *testing.T) {
	for _, p := range []string{`{"generation":1,"object":"../../x.tar.zst"}`, `{"generation":1,"object":"passwd"}`, `{"gen`, ``} {
		f := NewFolder(t.TempDir())
		must(t, f.Put(t.Context(), "key", 1, text("x")), os.WriteFile(filepath.Join(f.of("key"), pointerFile), []byte(p), 0o600))
		_, _, err := f.Get(t.Context(), "key")
		is(t, ErrCorrupt, err)
	}
}
