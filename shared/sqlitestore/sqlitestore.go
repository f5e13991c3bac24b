// Package sqlitestore is the session.Store of one machine: a SQLite file that
// many processes read and write at once, and that outlives all of them.
//
// It hides SQL, the schema, the layout of the log, and how a process learns that
// another one has written (see [Store.Wait]). It does not know who uses it, and it
// does not log.
//
// What is written survives the death of any process. The newest writes may be
// lost, each as a whole, when the machine itself goes down: the file is in WAL
// mode with synchronous=NORMAL.
package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Options bound what the log keeps. Zero fields get their defaults.
type Options struct {
	// Events and Bytes bound the log of one session: its common stream and its
	// ended request streams together. Over a bound, the oldest batches go, except
	// the last of the common stream; the ends of request streams, which hold the
	// results, go after everything else. The log of a request that has not ended
	// is not counted; when it alone is over 16 times a bound it loses its front.
	// What was dropped is a [session.Page.Gap]. The bounds are looked after now
	// and then, so that the log may be over them for a while. Defaults: 1,000 and
	// 8 MiB.
	Events int
	Bytes  int64
	// Settle is how long nothing of an ended request is dropped for a bound, so
	// that its client has the time to fetch the result. Default: 1 minute.
	Settle time.Duration
	// Age is how long any event is kept at most. Default: [session.EventAge].
	Age time.Duration
}

func (o Options) withDefaults() Options {
	if o.Events == 0 {
		o.Events = 1000
	}
	if o.Bytes == 0 {
		o.Bytes = 8 << 20
	}
	if o.Settle == 0 {
		o.Settle = time.Minute
	}
	if o.Age == 0 {
		o.Age = session.EventAge
	}
	return o
}

// Store is a session.Store in a SQLite file. It holds one connection. Methods
// are safe for concurrent use. Besides what the interface says of errors: all
// trouble with the file is Unavailable with the cause attached, and so is a
// context that ended first (errors.Is still finds the context's error). A call
// that has begun to read or write is not cut off; it takes 5 seconds at most,
// and that only if another process holds the file.
type Store struct {
	options  Options
	path     string
	db       *sql.DB
	looks    looks
	waiters  waiters
	watch    watch
	sessions known[session.Session]
	boxes    known[session.Box]

	turn       chan struct{}        // holds one token: who has taken it has the connection
	statements map[string]*sql.Stmt // by text; prepared when first used
	closing    sync.Once
	closed     chan struct{}
}

var _ session.Store = (*Store)(nil)

// Open opens the store at path and makes it if it is not there, with its folder,
// for this user only. Of options at most the first counts. Beside the file there
// are two of SQLite's own.
//
// Errors: Invalid if the file is no store, or one of a newer version;
// Unavailable.
func Open(path string, options ...Options) (*Store, error) {
	var o Options
	if len(options) > 0 {
		o = options[0]
	}
	path, err := prepareFile(path)
	if err != nil {
		return nil, session.Errorf(session.Unavailable, "the session store cannot be opened; see that its folder can be written to").Because(err)
	}
	s := &Store{options: o.withDefaults(), path: path, turn: make(chan struct{}, 1), statements: map[string]*sql.Stmt{}, closed: make(chan struct{})}
	if s.db, err = sql.Open("sqlite", dsn(path)); err == nil {
		// One connection: more would only wait for one another, and each has a
		// cache of its own.
		s.db.SetMaxOpenConns(1)
		err = s.migrate(context.Background())
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Close gives up the connection. Calls under way end.
func (s *Store) Close() error {
	s.closing.Do(func() { close(s.closed) })
	if s.db == nil {
		return nil
	}
	if err := s.db.Close(); err != nil {
		return failed(err)
	}
	return nil
}

// prepareFile returns where path really is, and makes the file before SQLite does:
// it holds what clients sent and is nobody else's to read.
func prepareFile(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// busyTimeout is how long SQLite waits for another process's write to end.
const busyTimeout = 5 * time.Second

func dsn(path string) string {
	u := url.URL{Scheme: "file", Path: path}
	u.RawQuery = url.Values{
		"_txlock": {"immediate"}, // a transaction here always writes
		"_pragma": {
			fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
			"journal_mode(WAL)",
			"synchronous(NORMAL)",
			fmt.Sprintf("journal_size_limit(%d)", 64<<20),
		},
	}.Encode()
	return u.String()
}

// begin waits for the connection and returns the statement of a query text, one
// of the constants of this package. The caller gives the connection back with
// end.
//
// What runs on the connection runs without the caller's context: it is over in
// microseconds, while database/sql and the driver would start a goroutine each to
// watch the context, and throw the connection away when it ends.
func (s *Store) begin(ctx context.Context, query string) (st *sql.Stmt, uncut context.Context, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, failed(err)
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, failed(ctx.Err())
	}
	uncut = context.WithoutCancel(ctx)
	if st, ok := s.statements[query]; ok {
		return st, uncut, nil
	}
	if st, err = s.db.PrepareContext(uncut, query); err != nil {
		s.end()
		return nil, nil, failed(err)
	}
	s.statements[query] = st
	return st, uncut, nil
}

func (s *Store) end() { <-s.turn }

// write runs a statement and returns how many rows it changed.
func (s *Store) write(ctx context.Context, query string, args ...any) (changed int64, err error) {
	st, uncut, err := s.begin(ctx, query)
	if err != nil {
		return 0, err
	}
	defer s.end()
	result, err := st.ExecContext(uncut, args...)
	if err == nil {
		changed, err = result.RowsAffected()
	}
	if err != nil {
		return 0, failed(err)
	}
	return changed, nil
}

// row reads the one row of a query. It is not found without an error.
func (s *Store) row(ctx context.Context, query string, args, into []any) (found bool, err error) {
	st, uncut, err := s.begin(ctx, query)
	if err != nil {
		return false, err
	}
	defer s.end()
	err = st.QueryRowContext(uncut, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, failed(err)
	}
	return true, nil
}

// rows calls each for every row of a query until it returns false.
func (s *Store) rows(ctx context.Context, query string, args []any, each func(scan func(...any) error) (more bool, err error)) error {
	st, uncut, err := s.begin(ctx, query)
	if err != nil {
		return err
	}
	defer s.end()
	rows, err := st.QueryContext(uncut, args...)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		more, err := each(rows.Scan)
		if err != nil {
			return failed(err)
		}
		if !more {
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return failed(err)
	}
	return nil
}

// expiry is a time of expiry as a column. No time means never.
func expiry(t time.Time) int64 {
	if t.IsZero() {
		return math.MaxInt64
	}
	return t.UnixMicro()
}

func now() int64 { return time.Now().UnixMicro() }
