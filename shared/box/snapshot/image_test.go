package snapshot

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// with is a runner of a generation, which keeps images of a process with a workspace.
func with(t *testing.T, dir string, gen int64) *Keeper {
	t.Helper()
	k := NewKeeper(Config{Store: NewFolder(dir), Generation: gen, Key: func(owner string) string { return owner }})
	_, err := k.Restore(t.Context(), "s", "s", t.TempDir())
	must(t, err)
	return k
}

func freeze(t *testing.T, i *Keeper, place, image string) error {
	t.Helper()
	return i.SaveImage(t.Context(), "s", "s", place, "", text(image))
}

// thaw claims an image and notes beside it that a process got it. It is the program that a
// test kills. It returns an exit code.
func thaw(f *Folder, gen int64, hang func()) int {
	i := NewKeeper(Config{Store: f, Generation: gen, Key: func(owner string) string { return owner }})
	image, _, err := i.OpenImage("s")
	if err != nil || f.step("opened") != nil {
		return 1
	}
	if i.ClaimImage("s", image.Name()) != nil {
		return 1
	}
	thawed, err := os.OpenFile(filepath.Join(f.path, ".thawed"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = io.Copy(thawed, image)
	}
	if err != nil {
		return 1
	}
	hang()
	return 0
}

func thawed(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, ".thawed"))
	if !errors.Is(err, os.ErrNotExist) {
		must(t, err)
	}
	return string(text)
}

func TestAnImageIsThawedAtMostOnceWhereverRunnersAreKilled(t *testing.T) {
	for step, want := range map[string]string{"opened": "memory", "claim": "memory", "claimed": "", "deleted": "", "end": "memory"} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			must(t, freeze(t, with(t, dir, 7), workspace(t, files{"a": "1"}), "memory"))
			killAt(t, dir, step, "SNAPSHOT_TEST_CLAIM=on")
			code := thaw(NewFolder(dir), 9, func() {})
			commontest.EqualIn(t, "thawed", want, thawed(t, dir))
			commontest.EqualIn(t, "thawed", want != "" && step != "end", code == 0)
			must(t, freeze(t, with(t, dir, 9), workspace(t, files{"a": "2"}), "next"))
			commontest.Equal(t, 3, holds(t, dir))
		})
	}
}

func TestOneOfManyRunnersGetsAnImage(t *testing.T) {
	dir := t.TempDir()
	must(t, freeze(t, with(t, dir, 7), workspace(t, files{"a": "1"}), "memory"))
	var wg sync.WaitGroup
	for gen := range int64(8) {
		wg.Go(func() { thaw(NewFolder(dir), 7+gen%2, func() {}) })
	}
	wg.Wait()
	commontest.EqualIn(t, "thawed", "memory", thawed(t, dir))
}

func TestAFencedRunnerNeitherClaimsNorKeeps(t *testing.T) {
	dir := t.TempDir()
	old, place := with(t, dir, 7), workspace(t, files{"a": "1"})
	must(t, with(t, dir, 8).ClaimImage("s", "")) // a newer runner has started a process
	is(t, ErrStale, freeze(t, old, place, "memory"))
	must(t, freeze(t, with(t, dir, 8), place, "newer"))
	image, _, err := old.OpenImage("s")
	must(t, err)
	defer func() { _ = image.Close() }()
	is(t, ErrStale, old.ClaimImage("s", image.Name()))
	commontest.Equal(t, 3, holds(t, dir))
}

// An image and its workspace are of one moment: a workspace that is saved without memory, or the
// end of the session, deletes the image.
func TestAnImageGoesWithItsWorkspace(t *testing.T) {
	dir, place := t.TempDir(), workspace(t, files{"a": "1"})
	k := NewKeeper(Config{Store: NewFolder(dir), Generation: 7, Key: func(owner string) string { return owner }})
	_, err := k.Restore(t.Context(), "s", "s", t.TempDir())
	must(t, err)
	gone := func(after string) {
		t.Helper()
		if _, _, err := k.OpenImage("s"); !errors.Is(err, ErrNone) {
			t.Errorf("after %s: %v", after, err)
		}
	}
	must(t, freeze(t, k, place, "one"), freeze(t, k, place, "two")) // the workspace has not changed
	image, _, err := k.OpenImage("s")
	must(t, err)
	if b, err := io.ReadAll(image); string(b) != "two" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	must(t, image.Close())
	if all := k.folder.ImageFiles(); len(all) != 1 || all[0] != image.Name() {
		t.Error(all)
	}
	back := filepath.Join(t.TempDir(), "back")
	must(t, os.Mkdir(back, 0o755))
	other := NewKeeper(Config{Store: NewFolder(dir), Generation: 7, Key: func(owner string) string { return owner }})
	if names, err := other.Restore(t.Context(), "s", "s", back); err != nil || strings.Join(names, " ") != "a" {
		t.Error(names, err)
	}
	files{"b": "1"}.put(t, place)
	must(t, k.Save(t.Context(), "s", "s", place, ""))
	gone("a save without memory")

	files{"c": "1"}.put(t, place)
	must(t, freeze(t, k, place, "three"))
	if n, err := k.folder.Expire(t.Context(), time.Hour); n != 0 || err != nil {
		t.Error(n, err)
	}
	if n, err := k.folder.Expire(t.Context(), 0); n != 1 || err != nil {
		t.Error(n, err)
	}
	gone("its time")
	if g := got(t, k.folder, "s"); g == "none" {
		t.Error("the workspace went with the memory")
	}

	files{"d": "1"}.put(t, place)
	must(t, freeze(t, k, place, "four"), k.Forget(t.Context(), "s"))
	gone("the session")
	commontest.Equal(t, 0, holds(t, dir))
}

func TestAFreezeThatFailsLeavesTheMomentBefore(t *testing.T) {
	dir, place := t.TempDir(), workspace(t, files{"a": "1"})
	i := with(t, dir, 7)
	must(t, freeze(t, i, place, "old"))
	broken := errors.New("no room")
	for _, step := range []string{"sync", "commit"} {
		i.folder.fail = func(s string) error {
			if s == step {
				return broken
			}
			return nil
		}
		is(t, broken, freeze(t, i, place, "new"))
	}
	i.folder.fail = nil
	image, _, err := i.OpenImage("s")
	must(t, err)
	defer func() { _ = image.Close() }()
	if b, err := io.ReadAll(image); string(b) != "old" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	commontest.Equal(t, 3, holds(t, dir))
}
