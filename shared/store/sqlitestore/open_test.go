package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestOpenMakesFileAndFoldersForThisUserOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "sub", "store.db")
	s := open(t, path)
	defer func() { _ = s.Close() }()
	for name, want := range map[string]os.FileMode{
		filepath.Dir(path): 0o700,
		path:               0o600,
		path + "-wal":      0o600,
	} {
		info, err := os.Stat(name)
		commontest.OK(t, err)
		commontest.SameIn(t, name, want, info.Mode().Perm())
	}
}

func TestOpenTakesAnyPath(t *testing.T) {
	for _, name := range []string{"a b.db", "100%41?x=1&y#z.db", "ü'\"\\.db", ":memory:", "file:x"} {
		path := filepath.Join(t.TempDir(), name)
		s := open(t, path)
		commontest.OKIn(t, name, s.Create(t.Context(), storage.Session{ID: "s1"}))
		o := open(t, path)
		_, _, err := o.Load(t.Context(), "s1", "b")
		commontest.CheckIn(t, name, err)
		if info, err := os.Stat(path + "-wal"); err != nil || info.Size() == 0 {
			t.Errorf("%s: the store is not where it was asked for: %v", name, err)
		}
		_, _ = o.Close(), s.Close()
	}
}

// execute runs SQL on a file without the store.
func execute(t *testing.T, path, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	commontest.OK(t, err)
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(t.Context(), query)
	commontest.OK(t, err)
}

// asVersion7 turns a file back into the format of 0.1.0-alpha.1.
const asVersion7 = `DROP TABLE upstream_tokens; DROP TABLE grants; PRAGMA user_version=7`

func TestOpenBringsAnOlderStoreUpToDate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := open(t, path)
	old := batch("old", 1, `1`)
	old.Expires = time.Now().Add(-time.Hour)
	put(t, s, batch("r", 1, `1`, `2`), ended(batch("r", 3, `3`)), old)
	commontest.OK(t, errors.Join(s.Create(t.Context(), storage.Session{ID: "s1", Level: "info"}), s.Close()))
	execute(t, path, asVersion7)
	var handles []*Store
	for range 2 {
		s = open(t, path)
		defer func() { _ = s.Close() }()
		handles = append(handles, s)
	}
	for i, s := range handles {
		upToDate(t, s, strconv.Itoa(i))
	}
	commontest.OK(t, s.Sweep(t.Context()))
	commontest.SameIn(t, "batches that have not expired", 2, count(t, s, "events"))
}

// upToDate checks that the data of the old version is there, and that the newer features
// work.
func upToDate(t *testing.T, s *Store, name string) {
	t.Helper()
	p := read(t, s, "r", 0)
	commontest.SameIn(t, "events and Final", []any{[]storage.Index{1, 2, 3}, true}, []any{indexes(p), p.Final()})
	x, _, err := s.Load(t.Context(), "s1", "b")
	commontest.SameIn(t, "session", []any{"info", nil}, []any{x.Level, err})
	put(t, s, ended(batch("r", 3, `3`))) // the store recognizes the same batch
	again := batch("old", 1, `2`)
	again.Expires = time.Now().Add(-time.Hour)
	put(t, s, again) // this overwrites an expired batch, for an hour that the table purges already has
	commontest.Check(t, errors.Join(
		s.PutConnection(t.Context(), storage.Connection{ID: "c"}),
		s.Keys().Create(t.Context(), storage.Key{ID: name}),
		s.Grants().Create(t.Context(), storage.Grant{ID: name}),
		s.UpstreamTokens().Create(t.Context(), storage.UpstreamToken{ID: name}),
		s.PutEntryTicket(t.Context(), storage.EntryTicket{Hash: name}),
		s.SaveHandshake(t.Context(), storage.Handshake{Digest: name, Expires: time.Now().Add(time.Hour)}),
	))
	_, err = s.SaveValue(t.Context(), storage.Value{
		Key: storage.ValueKey{Tenant: "acme", Server: "a", Scope: storage.ValueOfServer, Name: name}, Data: []byte("1"),
	})
	commontest.OKIn(t, "SaveValue", err)
}

func TestOpenRefusesAStoreOfAnotherVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	commontest.OK(t, open(t, path).Close())
	for version, want := range map[int]string{
		8:                 " is of no release (schema 8, before or between those of releases); name another file",
		schemaVersion + 1: fmt.Sprintf(" was written by a newer version (schema %d, this one knows %d); update dormouse or name another file", schemaVersion+1, schemaVersion),
	} {
		execute(t, path, fmt.Sprintf("PRAGMA user_version=%d", version))
		_, err := Open(path)
		wantCode(t, "Open", err, storage.Invalid)
		commontest.SameIn(t, "message", path+want, err.Error())
	}
}

func TestOpenRefusesWhatIsNoStore(t *testing.T) {
	dir := t.TempDir()
	text, other := filepath.Join(dir, "text.db"), filepath.Join(dir, "other.db")
	commontest.OK(t, os.WriteFile(text, []byte("this is a text and it is long enough to have a header of its own, which is not SQLite's"), 0o600))
	execute(t, other, "CREATE TABLE sessions (id); PRAGMA user_version=1")
	for _, path := range []string{text, other} {
		before, err := os.ReadFile(path)
		commontest.OK(t, err)
		_, err = Open(path)
		wantCode(t, "Open of "+filepath.Base(path), err, storage.Invalid)
		if path == text {
			after, err := os.ReadFile(path)
			commontest.SameIn(t, "the file afterwards", string(before), string(after))
			commontest.OKIn(t, "error", err)
		}
	}
	_, err := Open(filepath.Join(text, "store.db"))
	wantCode(t, "Open below a file", err, storage.Unavailable)
	if !errors.As(err, new(*os.PathError)) {
		t.Errorf("the error %v does not hold its cause", err)
	}
}

func TestTroubleIsUnavailableAndNeverNotFound(t *testing.T) {
	for name, break_ := range map[string]func(t *testing.T, s *Store){
		"closed":  func(t *testing.T, s *Store) { _ = s.Close() },
		"damaged": spoil,
		"no table": func(t *testing.T, s *Store) {
			execute(t, s.path, "DROP TABLE sessions; DROP TABLE items; DROP TABLE events; DROP TABLE handshakes")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := fresh(t)
			put(t, s, batch("r", 1, `1`))
			break_(t, s)
			_, _, err := s.Load(t.Context(), "s1", "b")
			wantCode(t, "Load", err, storage.Unavailable)
			_, err = s.Item(t.Context(), "b", "r")
			wantCode(t, "Item", err, storage.Unavailable)
			_, err = s.Handshake(t.Context(), "d", "v")
			wantCode(t, "Handshake", err, storage.Unavailable)
			_, err = s.Tail(t.Context(), "s1", "r")
			wantCode(t, "Tail", err, storage.Unavailable)
			wantCode(t, "Save", s.Save(t.Context(), storage.Session{ID: "s1"}), storage.Unavailable)
			wantCode(t, "Append", s.Append(t.Context(), batch("r", 2, `2`)), storage.Unavailable)
		})
	}
}

// spoil writes nonsense over all pages but the first.
func spoil(t *testing.T, s *Store) {
	t.Helper()
	execute(t, s.path, "PRAGMA wal_checkpoint(TRUNCATE)")
	info, err := os.Stat(s.path)
	commontest.OK(t, err)
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	commontest.OK(t, err)
	defer func() { _ = f.Close() }()
	for at := int64(4096); at < info.Size(); at += 8 {
		_, err := f.WriteAt([]byte("nonsense"), at)
		commontest.OK(t, err)
	}
	// Make the store forget the pages it has in memory.
	_, err = s.writer.db.ExecContext(t.Context(), "PRAGMA shrink_memory")
	commontest.OK(t, err)
}

func TestABusyFileIsUnavailableAndReadAllTheSame(t *testing.T) {
	s := fresh(t)
	put(t, s, batch("r", 1, `1`))
	tx, err := again(t, s).writer.db.BeginTx(t.Context(), nil)
	commontest.OK(t, err)
	_, err = s.writer.db.ExecContext(t.Context(), "PRAGMA busy_timeout=10")
	commontest.OK(t, err)
	wantCode(t, "Append", s.Append(t.Context(), batch("r", 2, `2`)), storage.Unavailable)
	commontest.SameIn(t, "events", []storage.Index{1}, indexes(read(t, s, "r", 0)))
	commontest.OK(t, tx.Rollback())
	put(t, s, batch("r", 2, `2`))
}

func TestAnEndedContextIsUnavailableWithItsError(t *testing.T) {
	s := fresh(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.writer.turn <- struct{}{} // another caller has the connection
	back := make(chan error)
	go func() { back <- s.Append(ctx, batch("r", 1, `1`)) }()
	cancel()
	for _, err := range []error{<-back, s.Append(ctx, batch("r", 1, `1`))} {
		wantCode(t, "Append", err, storage.Unavailable)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the error %v does not hold the context's", err)
		}
	}
	s.writer.end()
	commontest.SameIn(t, "events", []storage.Index(nil), indexes(read(t, s, "r", 0)))
}
