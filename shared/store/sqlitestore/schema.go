package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// applicationID and schemaVersion are the values of PRAGMA application_id and
// user_version in the store's files.
const (
	applicationID = 0x646f726d // "dorm"
	schemaVersion = 9
)

// Version is the version of the files that this program writes.
const Version = schemaVersion

// schema creates the current tables. Times are Unix microseconds. Records that are read whole
// are JSON. Bytes that a client or a server wrote are a blob of their own, in the last column,
// so that SQLite reads the other columns without them.
//
// Tables with such blobs have row ids. WITHOUT ROWID would put the blobs into the tree that is
// searched: the search for the tail of a stream with events of 20 KB takes nine times as long.
const schema = `
CREATE TABLE sessions (
	id TEXT PRIMARY KEY, rev INTEGER NOT NULL, tenant TEXT NOT NULL, expires INTEGER NOT NULL,
	record TEXT NOT NULL, init BLOB
);
CREATE INDEX sessions_tenant ON sessions (tenant, id);
CREATE INDEX sessions_expires ON sessions (expires);

CREATE TABLE answers (
	session TEXT NOT NULL, question TEXT NOT NULL, expires INTEGER NOT NULL, raw BLOB,
	PRIMARY KEY (session, question)
);
CREATE INDEX answers_expires ON answers (expires);

` + eventsSchema + connectionsSchema + keysSchema + grantsSchema + upstreamSchema + statesSchema + handshakesSchema + `
CREATE TABLE boxes (
	id TEXT PRIMARY KEY, rev INTEGER NOT NULL, state TEXT NOT NULL, record TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX boxes_due ON boxes (id) WHERE state <> '';

CREATE TABLE items (
	box TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL, gen INTEGER NOT NULL,
	record TEXT NOT NULL, raw BLOB,
	PRIMARY KEY (box, id)
);

CREATE TABLE parts (
	box TEXT NOT NULL, frame TEXT NOT NULL, n INTEGER NOT NULL, expires INTEGER NOT NULL, data BLOB,
	PRIMARY KEY (box, frame, n)
);
CREATE INDEX parts_expires ON parts (expires);
`

// A row of events is a batch. It has n events, joined by line feeds in the column data; the column
// first is the index of the first one. Reads return the row until the time in expires. It is
// deleted after the time in the column purge. retry is in milliseconds.
//
// The table purges says when rows are due, with a row for each hour and session. An
// index by time would write one more page for each batch, a third of its cost.
const eventsSchema = `
CREATE TABLE events (
	session TEXT NOT NULL, stream TEXT NOT NULL, first INTEGER NOT NULL, n INTEGER NOT NULL,
	gen INTEGER NOT NULL, seq INTEGER NOT NULL, final INTEGER NOT NULL, retry INTEGER NOT NULL,
	bytes INTEGER NOT NULL, written INTEGER NOT NULL, expires INTEGER NOT NULL, purge INTEGER NOT NULL,
	hash BLOB NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (session, stream, first)
);
` + purgesSchema

const purgesSchema = `
CREATE TABLE purges (hour INTEGER NOT NULL, session TEXT NOT NULL, PRIMARY KEY (hour, session)) WITHOUT ROWID;
` + purgeTriggers

// The triggers use ON CONFLICT clauses. The conflict policy of the firing statement would override
// OR IGNORE, and this policy is ABORT for the update of an upsert.
const purgeTriggers = `
CREATE TRIGGER events_written AFTER INSERT ON events BEGIN
	INSERT INTO purges (hour, session) VALUES (new.purge / 3600000000, new.session) ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER events_kept AFTER UPDATE OF purge ON events BEGIN
	INSERT INTO purges (hour, session) VALUES (new.purge / 3600000000, new.session) ON CONFLICT DO NOTHING;
END;
`

const connectionsSchema = `
CREATE TABLE connections (id TEXT PRIMARY KEY, expires INTEGER NOT NULL, record TEXT NOT NULL);
CREATE INDEX connections_expires ON connections (expires);
`

const keysSchema = `
CREATE TABLE keys (
	id TEXT PRIMARY KEY, rev INTEGER NOT NULL, tenant TEXT NOT NULL, expires INTEGER NOT NULL, record TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE entry_tickets (hash TEXT PRIMARY KEY, expires INTEGER NOT NULL, record TEXT NOT NULL);
CREATE INDEX entry_tickets_expires ON entry_tickets (expires);
`

const grantsSchema = `
CREATE TABLE grants (
	id TEXT PRIMARY KEY, rev INTEGER NOT NULL, tenant TEXT NOT NULL, expires INTEGER NOT NULL, record TEXT NOT NULL
);
CREATE INDEX grants_expires ON grants (expires);
`

const upstreamSchema = `
CREATE TABLE upstream_tokens (
	id TEXT PRIMARY KEY, rev INTEGER NOT NULL, tenant TEXT NOT NULL, expires INTEGER NOT NULL, record TEXT NOT NULL
);
CREATE INDEX upstream_tokens_expires ON upstream_tokens (expires);
`

// A row of states is a durable value. For a value of a session, the column since is when the session
// was created, in milliseconds; otherwise it is 0. A trigger deletes the values of a session with
// the session's row.
const statesSchema = `
CREATE TABLE states (
	scope TEXT NOT NULL, owner TEXT NOT NULL, tenant TEXT NOT NULL, server TEXT NOT NULL, since INTEGER NOT NULL, name TEXT NOT NULL,
	rev INTEGER NOT NULL, expires INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (scope, owner, tenant, server, since, name)
);
CREATE INDEX states_expires ON states (expires);
CREATE TRIGGER sessions_states AFTER DELETE ON sessions BEGIN
	DELETE FROM states WHERE scope = 'session' AND owner = old.id;
END;
`

const handshakesSchema = `
CREATE TABLE handshakes (
	digest TEXT NOT NULL, version TEXT NOT NULL, taken TEXT NOT NULL, expires INTEGER NOT NULL, result BLOB,
	PRIMARY KEY (digest, version)
);
CREATE INDEX handshakes_expires ON handshakes (expires);
`

// steps has, by the version of a file, the statements that bring it to the current schema. Version 0
// is a new file, and the others are those that a release had (docs/releases.md).
var steps = map[int]string{
	0:             schema,
	7:             grantsSchema + upstreamSchema,
	schemaVersion: "",
}

// migrate brings the file to the current schema. It repeats on busy errors, because the change
// of a new file to WAL mode fails at once while another process makes that change, whatever the
// busy timeout.
func (d *database) migrate(ctx context.Context) error {
	deadline := time.Now().Add(busyTimeout)
	for {
		version, err := d.version(ctx, d.writer.db)
		if err == nil && version < schemaVersion {
			err = d.upgrade(ctx)
		}
		if !isBusy(err) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// version returns the file's schema version, 0 for a new file.
func (d *database) version(ctx context.Context, q querier) (int, error) {
	var application, version, tables int
	err := q.QueryRowContext(ctx, `SELECT (SELECT application_id FROM pragma_application_id),
		(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`).Scan(&application, &version, &tables)
	switch {
	case primaryCode(err) == sqlite3.SQLITE_NOTADB, err == nil && application != applicationID && (tables > 0 || version != 0):
		return 0, noStore(d.path).Because(err)
	case err != nil:
		return 0, d.damage.failed(err)
	case version > schemaVersion:
		return 0, tooNew(d.path, version)
	}
	if _, known := steps[version]; !known {
		return 0, storage.Errorf(storage.Invalid, "%s is of no release (schema %d, before or between those of releases); name another file", d.path, version)
	}
	return version, nil
}

func noStore(path string) *storage.Error {
	return storage.Errorf(storage.Invalid, "%s is not a session store; name another file", path)
}

func tooNew(path string, version int) *storage.Error {
	return storage.Errorf(storage.Invalid, "%s was written by a newer version (schema %d, this one knows %d); update dormouse or name another file",
		path, version, schemaVersion)
}

// upgrade brings a new file, or one of an older version, to the current schema.
func (d *database) upgrade(ctx context.Context) error {
	tx, err := d.writer.db.BeginTx(ctx, nil)
	if err != nil {
		return d.damage.failed(err)
	}
	defer func() { _ = tx.Rollback() }()
	// Another process may have upgraded the file in the meantime.
	version, err := d.version(ctx, tx)
	if err != nil || version == schemaVersion {
		return err
	}
	if _, err := tx.ExecContext(ctx, steps[version]+fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d;", applicationID, schemaVersion)); err != nil {
		return d.damage.failed(err)
	}
	if err := tx.Commit(); err != nil {
		return d.damage.failed(err)
	}
	return nil
}
