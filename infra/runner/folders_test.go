package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// used makes the folders of a runner and leaves something in them.
func used(t *testing.T, id session.BoxID, gen int64) string {
	t.Helper()
	work, _ := folders(id, gen)
	if err := os.MkdirAll(filepath.Join(work, ".mcp", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	return work
}

func TestWorkspacesOfAnEarlierRunnerOfTheBoxAreRemoved(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("DORMOUSE_CACHE", cache)
	killed, older := used(t, "tenant/server", 2), used(t, "tenant/server", 1)
	other, newer := used(t, "tenant/other", 1), used(t, "tenant/server", 4)
	used(t, "tenant/server", 3)
	for _, gone := range []string{killed, older} {
		if _, err := os.Stat(gone); !errors.Is(err, fs.ErrNotExist) {
			t.Error(gone, err)
		}
	}
	for _, stays := range []string{other, newer} {
		if _, err := os.Stat(stays); err != nil {
			t.Error(err)
		}
	}
}

func TestFoldersOfABoxAreItsOwn(t *testing.T) {
	root := t.TempDir()
	t.Setenv("DORMOUSE_CACHE", root)
	seen := map[string]bool{}
	for _, id := range []session.BoxID{"a/b", "a/../b", "../../a", "", "a"} {
		work, cache := folders(id, 1)
		if seen[work] || cache != root || !strings.HasPrefix(work, filepath.Join(root, "work")+"/") || filepath.Clean(work) != work {
			t.Errorf("box %q works in %s", id, work)
		}
		seen[work] = true
	}
}
