// Package sqlitestore is the session.Store of one machine: a SQLite file that
// many processes read and write at once, and that outlives all of them.
//
// It hides SQL, the schema, the layout of the log, and how a process learns that
// another one has written (see [Store.Wait]). It does not know who uses it, and it
// does not log.
//
// A write that has returned is on the disk: it survives the death of any process,
// and of the machine. Nobody reads a write that is not there yet. Writes that come
// while another is on its way to the disk go there together, by one fsync.
package sqlitestore

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

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
	// Volatile leaves out the fsync of each write, to measure what it costs. The
	// newest writes may be lost then, each as a whole, when the machine goes down.
	Volatile bool

	// For tests: the files as SQLite sees them, and the room beside one.
	vfs   string
	space func(path string) (free uint64, known bool)
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
	if o.space == nil {
		o.space = freeSpace
	}
	if o.Age == 0 {
		o.Age = session.EventAge
	}
	return o
}

// Store is a session.Store in a SQLite file. It holds two connections, of which one
// reads. Methods are safe for concurrent use; there are as many as session.Store has.
// Besides what the interface says of errors: all
// trouble with the file is Unavailable with the cause attached, and so is a
// context that ended first (errors.Is still finds the context's error). A call
// that has begun to read or write is not cut off; it takes 5 seconds at most,
// and that only if another process holds the file.
type Store struct {
	options  Options
	path     string
	writer   connection
	reader   connection
	queue    queue
	health   health
	looks    looks
	waiters  waiters
	watch    watch
	sessions known[session.Session]
	boxes    known[session.Box]

	closing sync.Once
	closed  chan struct{}
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
	s := &Store{options: o.withDefaults(), path: path, closed: make(chan struct{})}
	// The writer comes first: it turns a new file into WAL mode.
	if s.writer, err = connect(path, s.options); err == nil {
		err = s.migrate(context.Background())
	}
	if err == nil {
		s.reader, err = connect(path, s.options)
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Close gives up the connections. Calls under way end.
func (s *Store) Close() error {
	s.closing.Do(func() { close(s.closed) })
	if err := errors.Join(s.reader.close(), s.writer.close()); err != nil {
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

// expiry is a time of expiry as a column. No time means never.
func expiry(t time.Time) int64 {
	if t.IsZero() {
		return math.MaxInt64
	}
	return t.UnixMicro()
}

func now() int64 { return time.Now().UnixMicro() }
