package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// used returns the path of a store that is closed and has rows in its tables, and its root
// pages by the name of their table or index.
func used(t *testing.T) (path string, roots map[string]int64) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "store.db")
	s := open(t, path)
	for n := range 20 {
		commontest.OK(t, s.Create(t.Context(), storage.Session{ID: storage.ID(fmt.Sprint("s", n)), Tenant: "t", Expires: time.Now().Add(time.Hour)}))
	}
	put(t, s, batch("r", 1, strings.Repeat("x", 100_000)))
	commontest.OK(t, s.Close())
	db, err := sql.Open("sqlite", path)
	commontest.OK(t, err)
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(t.Context(), "SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0")
	commontest.OK(t, err)
	defer func() { _ = rows.Close() }()
	roots = map[string]int64{"schema": 1}
	for rows.Next() {
		var name string
		var page int64
		commontest.OK(t, rows.Scan(&name, &page))
		roots[name] = page
	}
	commontest.OK(t, rows.Err())
	return path, roots
}

func overwrite(t *testing.T, path string, page int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	commontest.OK(t, err)
	defer func() { _ = f.Close() }()
	_, err = f.WriteAt([]byte(strings.Repeat("nonsense", 4096/8)), (page-1)*4096)
	commontest.OK(t, err)
}

// Whichever table or index is damaged, Check finds it in a file that is at rest. A store that
// runs and has looked, or met it, refuses everything, says so once, and lets nobody wait.
func TestDamageOfAnyTableIsFoundAndEndsAllUse(t *testing.T) {
	path, roots := used(t)
	commontest.OKIn(t, "before any damage", Check(t.Context(), path))
	whole, err := os.ReadFile(path)
	commontest.OK(t, err)
	if len(roots) < 15 {
		t.Fatalf("%d root pages: %v", len(roots), roots)
	}
	for name, page := range roots {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.db")
			commontest.OK(t, os.WriteFile(path, whole, 0o600))
			overwrite(t, path, page)
			if err := Check(t.Context(), path); storage.CodeOf(err) != storage.Unavailable && storage.CodeOf(err) != storage.Invalid {
				t.Errorf("Check: %v", err)
			}
			told := make(chan error, 10)
			s, err := Open(path, Options{Damaged: func(err error) { told <- err }})
			if err != nil {
				return // at the start, which Check comes before
			}
			defer func() { _ = s.Close() }()
			if err := s.Inspect(t.Context()); !storage.IsForOperator(err) {
				t.Fatalf("Inspect: %v", err)
			}
			_, err = s.Wait(t.Context(), "s1", "r", 1, time.Now().Add(time.Hour))
			for what, err := range map[string]error{
				"Wait": err, "Writable": s.Writable(t.Context()),
				"Append": s.Append(t.Context(), batch("r", 2, "y")),
				"Load":   func() error { _, _, err := s.Load(t.Context(), "s1", "b"); return err }(),
				"Key":    func() error { _, err := s.Keys().Get(t.Context(), "k"); return err }(),
			} {
				if storage.CodeOf(err) != storage.Unavailable || !storage.IsForOperator(err) {
					t.Errorf("%s: %v", what, err)
				}
			}
			commontest.EqualIn(t, "times that it was told", 1, len(told))
		})
	}
}

// A waiting call ends when another one meets the damage.
func TestDamageEndsThoseWhoWait(t *testing.T) {
	waiting(t, named("r1"), 0, func(t *testing.T, s, _ *Store, _ storage.StreamID, back <-chan outcome) {
		time.Sleep(10 * time.Second)
		_ = s.damage.note(damaged(s.path, context.Canceled))
		if o := <-back; !storage.IsForOperator(o.err) || o.took > 12*time.Second {
			t.Errorf("after %s: %v", o.took, o.err)
		}
	})
}

func TestAStoreWhoseFileGoesAwayTakesNothingMore(t *testing.T) {
	for name, do := range map[string]func(path string) error{
		"removed":     os.Remove,
		"emptied":     func(path string) error { return os.Truncate(path, 0) },
		"replaced":    func(path string) error { return os.Rename(path+".other", path) },
		"log removed": func(path string) error { return os.Remove(path + "-wal") },
		"log emptied": func(path string) error { return os.Truncate(path+"-wal", 0) },
		"log cut":     func(path string) error { return os.Truncate(path+"-wal", 8192) },
	} {
		t.Run(name, func(t *testing.T) {
			s := fresh(t)
			put(t, s, batch("r", 1, "x"))
			commontest.OK(t, os.WriteFile(s.path+".other", []byte("SQLite format 3\x00 and more"), 0o600))
			commontest.OK(t, s.Writable(t.Context()))
			commontest.OK(t, do(s.path))
			s.health.asked = time.Time{} // a second later
			wantCode(t, "Writable", s.Writable(t.Context()), storage.Unavailable)
			wantCode(t, "Append", s.Append(t.Context(), batch("r", 2, "y")), storage.Unavailable)
		})
	}
}

// An empty file where a store was is a lost store, and not a first start.
func TestALostStoreIsNotAFirstStart(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed": os.Remove,
		"emptied": func(path string) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			path, _ := used(t)
			commontest.OK(t, lose(path))
			_, err := Open(path)
			wantCode(t, "Open", err, storage.Invalid)
			wantCode(t, "look", look(path), storage.Invalid)
			wantCode(t, "Check", Check(t.Context(), path), storage.Invalid)
			if _, err := os.Stat(path); name == "removed" && err == nil {
				t.Error("Open made a new file")
			}
			if err := os.Remove(path + MarkEnding); err != nil { // as the error says
				t.Fatal(err)
			}
			s := open(t, path)
			_ = s.Close()
		})
	}
}
