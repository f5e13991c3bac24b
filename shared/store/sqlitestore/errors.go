package sqlitestore

import (
	"context"
	"errors"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// failed turns trouble with the file into an Unavailable error. An error that already
// has a code keeps it.
func failed(err error) error {
	if _, ok := errors.AsType[*storage.Error](err); ok {
		return err
	}
	return storage.Errorf(storage.Unavailable, "the session store %s; try again", trouble(err)).Because(err)
}

func trouble(err error) string {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return "did not answer within the time of the request"
	}
	switch primaryCode(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return "is busy"
	case sqlite3.SQLITE_FULL:
		return "is full"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return "cannot be written to"
	case sqlite3.SQLITE_IOERR:
		return "cannot reach its disk"
	}
	return "did not answer"
}

// primaryCode returns SQLite's result code without its extension, or 0 for an error
// that is not SQLite's.
func primaryCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

func isBusy(err error) bool {
	code := primaryCode(err)
	return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_LOCKED
}
