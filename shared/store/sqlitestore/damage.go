package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// damage holds the first sign that the file of a store is damaged, or is no longer there. From
// then on every method of the store returns this error: an answer from a damaged file could be
// wrong, and what is written to a file without a name is lost.
type damage struct {
	path  string
	told  func(error) // is called with the first sign of damage; may be nil
	once  sync.Once
	found atomic.Pointer[storage.Error]
}

// failed returns the result of the function failed, and notes an error that is a sign of damage.
func (d *damage) failed(err error) error {
	switch primaryCode(err) {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return d.note(damaged(d.path, err))
	}
	return failed(err)
}

// note keeps the first sign of damage, and calls told once.
func (d *damage) note(err *storage.Error) error {
	d.once.Do(func() {
		d.found.Store(err)
		if d.told != nil {
			d.told(err)
		}
	})
	return err
}

// known returns the first sign of damage, nil if there is none.
func (d *damage) known() error {
	if err := d.found.Load(); err != nil {
		return err
	}
	return nil
}

func damaged(path string, why error) *storage.Error {
	return storage.Errorf(storage.Unavailable, "the session store is damaged: stop dormouse run, and bring back a copy with dormouse restore FILE").
		Because(fmt.Errorf("%s: %w", path, why)).ForOperator()
}

func vanished(path string) *storage.Error {
	return storage.Errorf(storage.Unavailable, "a file of the session store was removed, replaced or cut while it was in use: stop dormouse run, and bring the file back, or a copy with dormouse restore FILE").
		Because(errors.New(path)).ForOperator()
}

// Check reads the whole file and returns an error if it is damaged. The file may be in use.
// Check takes some 4 ms for a megabyte.
//
// Errors: Unavailable (damaged, cannot be read), Invalid (no store, or of a newer version);
// it wraps [os.ErrNotExist] if there is no file.
func Check(ctx context.Context, path string) error {
	if err := look(path); err != nil {
		return err
	}
	d := &damage{path: path}
	c, err := connect(path, Options{}, d)
	if err != nil {
		return err
	}
	defer func() { _ = c.close() }() // only read: nothing can be lost
	var says string
	switch err := c.db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&says); {
	case err != nil:
		return d.failed(err)
	case says != "ok":
		return damaged(path, errors.New(says))
	}
	return nil
}

// Copy writes a whole copy of a SQLite file, as it is at one moment, to a new file that only
// this user can read. The file may be in use, and need not be a store. Errors wrap
// [os.ErrNotExist] if there is no file.
func Copy(ctx context.Context, path, to string) (err error) {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	d := &damage{path: path}
	c, err := connect(path, Options{}, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) // VACUUM INTO takes an empty file
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if _, err := c.db.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		return d.failed(err)
	}
	return nil
}

// Changed returns when the file was last written, by this store or by others.
func (d *database) Changed() time.Time {
	info, err := os.Stat(d.path)
	if err != nil {
		return time.Time{} // Writable says why
	}
	return info.ModTime()
}

// Inspect reads the whole file, as [Check], and notes the damage that it finds. From then on
// every method returns the error.
func (d *database) Inspect(ctx context.Context) error {
	err := Check(ctx, d.path)
	if known, ok := errors.AsType[*storage.Error](err); ok && storage.IsForOperator(err) {
		return d.damage.note(known)
	}
	return err
}

// present returns an error if the file or its write-ahead log was removed, renamed, replaced,
// emptied or cut, and notes it as damage. The caller holds health.mu.
func (d *database) present() error {
	info, err := os.Stat(d.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (info.Size() == 0 || !os.SameFile(info, d.opened)) {
		return d.damage.note(vanished(d.path))
	}
	log, err := os.Stat(d.path + "-wal")
	known := d.health.log
	switch {
	case known == nil:
	case errors.Is(err, fs.ErrNotExist), err == nil && (log.Size() < min(known.Size(), keptLog) || !os.SameFile(log, known)):
		return d.damage.note(vanished(d.path + "-wal"))
	}
	if err == nil {
		d.health.log = log
	}
	return nil // any other trouble is an error of the next read or write
}

// mark notes which file was opened, and writes a small file beside it, the mark. From then on, [Open]
// takes a missing or empty store for a lost one, and not for a new one.
func (d *database) mark() (err error) {
	if d.opened, err = os.Stat(d.path); err != nil {
		return failed(err)
	}
	mark := d.path + MarkEnding
	if _, err := os.Stat(mark); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// If this fails, the store works, but Open does not notice when the store is lost.
	_ = os.WriteFile(mark, []byte("dormouse keeps its sessions beside this file; without them it does not start\n"), 0o600)
	return nil
}

// MarkEnding ends the name of a small file that [Open] writes beside a store. The file shows later
// that there was a store.
const MarkEnding = ".kept"

// lost returns an error if there was a store at path, and now there is none or an empty file.
func lost(path string) error {
	marked, err := os.Stat(path + MarkEnding)
	if err != nil {
		return nil //nolint:nilerr // there was no store
	}
	info, err := os.Stat(path)
	if err == nil && info.Size() > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil //nolint:nilerr // Open returns any other error
	}
	what := "is gone"
	if err == nil {
		what = "is empty"
	}
	return storage.Errorf(storage.Invalid, "the session store %s %s, with all sessions and keys since %s: bring it back with its file %s-wal, or a copy with dormouse restore FILE; to begin a new one, remove %s",
		path, what, marked.ModTime().UTC().Format(time.DateOnly), filepath.Base(path), path+MarkEnding)
}
