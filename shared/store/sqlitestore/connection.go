package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// connection is one connection to the file, for one caller at a time.
type connection struct {
	db         *sql.DB              // with one connection
	turn       chan struct{}        // capacity 1: a caller has the connection from its send into turn until it receives from turn
	statements map[string]*sql.Stmt // by text; prepared when first used
	damage     *damage
	synced     bool // a commit ends with an fsync
}

func connect(path string, o Options, d *damage) (connection, error) {
	db, err := sql.Open("sqlite", dsn(path, o))
	if err != nil {
		return connection{}, d.failed(err)
	}
	db.SetMaxOpenConns(1)
	return connection{db: db, turn: make(chan struct{}, 1), statements: map[string]*sql.Stmt{}, damage: d, synced: !o.Behind}, nil
}

// synchronize sets whether the next commits end with an fsync. An fsync covers all that was
// committed before.
func (c *connection) synchronize(uncut context.Context, synced bool) error {
	if c.synced == synced {
		return nil
	}
	mode := "PRAGMA synchronous=NORMAL"
	if synced {
		mode = "PRAGMA synchronous=FULL"
	}
	_, err := c.db.ExecContext(uncut, mode)
	if err != nil {
		return c.damage.failed(err)
	}
	c.synced = synced
	return nil
}

// busyTimeout is how long SQLite waits for the write of another process to end.
const busyTimeout = 5 * time.Second

// keptLog is the size to which SQLite cuts the write-ahead log when it starts the log anew.
const keptLog = 64 << 20

func dsn(path string, o Options) string {
	u := url.URL{Scheme: "file", Path: path}
	synchronous := "FULL"
	if o.Behind {
		synchronous = "NORMAL"
	}
	parameters := url.Values{
		"_txlock": {"immediate"}, // a transaction here always writes
		"_pragma": {
			fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
			"journal_mode(WAL)",
			fmt.Sprintf("synchronous(%s)", synchronous),
			fmt.Sprintf("journal_size_limit(%d)", keptLog),
		},
	}
	if o.vfs != "" {
		parameters.Set("vfs", o.vfs)
	}
	u.RawQuery = parameters.Encode()
	return u.String()
}

func (c *connection) close() error {
	if c.db == nil {
		return nil
	}
	return c.db.Close()
}

// begin waits for the connection. The caller returns the connection with the method end.
//
// Statements run without the caller's context, because they end soon. With a context, database/sql
// and the driver would each start a goroutine to watch it, and would close the connection when the
// context ends.
func (c *connection) begin(ctx context.Context) (uncut context.Context, err error) {
	if err := ctx.Err(); err != nil {
		return nil, failed(err)
	}
	if err := c.damage.known(); err != nil {
		return nil, err
	}
	select {
	case c.turn <- struct{}{}:
		return context.WithoutCancel(ctx), nil
	case <-ctx.Done():
		return nil, failed(ctx.Err())
	}
}

func (c *connection) end() { <-c.turn }

// statement returns the prepared statement of a query. Statements stay prepared, because this
// package has a fixed number of queries.
func (c *connection) statement(uncut context.Context, query string) (*sql.Stmt, error) {
	if st, ok := c.statements[query]; ok {
		return st, nil
	}
	st, err := c.db.PrepareContext(uncut, query)
	if err != nil {
		return nil, c.damage.failed(err)
	}
	c.statements[query] = st
	return st, nil
}

// exec runs a statement and returns how many rows it changed.
func (c *connection) exec(uncut context.Context, query string, args ...any) (changed int64, err error) {
	st, err := c.statement(uncut, query)
	if err != nil {
		return 0, err
	}
	result, err := st.ExecContext(uncut, args...)
	if err == nil {
		changed, err = result.RowsAffected()
	}
	if err != nil {
		return 0, c.damage.failed(err)
	}
	return changed, nil
}

// scan reads the one row of a query. Without a row, found is false and err nil.
func (c *connection) scan(uncut context.Context, query string, args, into []any) (found bool, err error) {
	st, err := c.statement(uncut, query)
	if err != nil {
		return false, err
	}
	err = st.QueryRowContext(uncut, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, c.damage.failed(err)
	}
	return true, nil
}

// row reads the one row of a query. Without a row, found is false and err nil.
//
// It prefers the connection that writes, if that one is free: its page cache has the pages that
// it wrote.
func (d *database) row(ctx context.Context, query string, args, into []any) (found bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, failed(err)
	}
	if err := d.damage.known(); err != nil {
		return false, err
	}
	select {
	case d.writer.turn <- struct{}{}:
		defer d.writer.end()
		return d.writer.scan(context.WithoutCancel(ctx), query, args, into)
	default:
		return d.longRow(ctx, query, args, into)
	}
}

// longRow does what the method row does, for a query that reads many rows. It never holds up a
// write.
func (d *database) longRow(ctx context.Context, query string, args, into []any) (found bool, err error) {
	uncut, err := d.reader.begin(ctx)
	if err != nil {
		return false, err
	}
	defer d.reader.end()
	return d.reader.scan(uncut, query, args, into)
}

// listOf returns the decoded rows of a query.
func listOf[T any](ctx context.Context, d *database, query string, args []any, decode func(scan func(...any) error) (T, error)) ([]T, error) {
	var list []T
	err := d.rows(ctx, query, args, func(scan func(...any) error) (bool, error) {
		v, err := decode(scan)
		list = append(list, v)
		return true, err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// rows calls visit for every row of a query, until visit returns false or fails.
func (d *database) rows(ctx context.Context, query string, args []any, visit func(scan func(...any) error) (more bool, err error)) error {
	uncut, err := d.reader.begin(ctx)
	if err != nil {
		return err
	}
	defer d.reader.end()
	st, err := d.reader.statement(uncut, query)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(uncut, args...)
	if err != nil {
		return d.damage.failed(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		more, err := visit(rows.Scan)
		if err != nil {
			return d.damage.failed(err)
		}
		if !more {
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return d.damage.failed(err)
	}
	return nil
}
