// Package sqlitestore implements storage.Store for one machine. The store is a SQLite file that
// many processes read and write at the same time. The package does not log.
//
// A write is on the disk when its method returns: it survives the death of any process, and of
// the machine. [Options].Behind lets most writes return before their fsync. A write with
// [storage.Lazily] needs no fsync.
package sqlitestore

import (
	"cmp"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Options limit what the log keeps. Zero fields get their defaults.
type Options struct {
	// Events and Bytes limit the log of one session: its standalone stream and its ended
	// request streams together. Over a limit, the store drops the oldest batches first. It
	// always keeps the last batch of the standalone stream. It drops the last batches of
	// request streams, which hold the results, after everything else.
	//
	// The log of a request that has not ended is not counted. If that log alone exceeds 16
	// times a limit, the store drops its front. Readers see dropped events as a
	// [storage.Page.Gap].
	//
	// The store checks the limits only at intervals, so the log may exceed them for a
	// while. Defaults: 1,000 events and 8 MiB.
	Events int
	Bytes  int64
	// Settle is how long the store keeps the whole log of an ended request, whatever the limits.
	// Default: 1 minute.
	Settle time.Duration
	// Age is the longest time for which the store keeps an event. Default:
	// [storage.EventAge].
	Age time.Duration
	// Behind lets most writes return when the operating system has them; their fsync follows at
	// once. The death of any process loses nothing. A power cut may lose the newest of these writes,
	// with all writes after the first lost one. Keys, grants, tokens, tickets, durable values, claimed
	// items and ends of sessions are on the disk when their method returns, and so is all that was
	// written before.
	Behind bool
	// Alone says that no other program executes calls of the sessions in this file. If Alone is set,
	// the Store caches sessions and boxes. A write through the Store removes its session or box from
	// the cache. A write of another program, such as a command, removes all of them some milliseconds
	// later.
	// [Store.Wait] finds within a second what another program appended.
	Alone bool
	// Damaged is called once, with the first sign that the file is damaged or is no longer
	// there. It must not call the store. It may be nil.
	Damaged func(error)

	// These are for tests: the name of SQLite's VFS, and replacements for the free space on the disk
	// and for the fsync that Behind puts off.
	vfs   string
	space func(path string) room
	sync  func() error
}

func (o Options) withDefaults() Options {
	o.Events = cmp.Or(o.Events, 1000)
	o.Bytes = cmp.Or(o.Bytes, 8<<20)
	o.Settle = cmp.Or(o.Settle, time.Minute)
	o.Age = cmp.Or(o.Age, storage.EventAge)
	if o.space == nil {
		o.space = roomOf
	}
	return o
}

// Store is a storage.Store in a SQLite file. The methods of Store are safe for concurrent use.
//
// Errors, besides the codes that storage.Store names: any trouble with the file is
// Unavailable with the cause attached. A context that ended first is Unavailable too, and
// errors.Is finds the context's error. A call that has begun to read or write ignores its
// context. Such a call takes at most 5 seconds, and only if another process holds the
// file.
type Store struct {
	database
	looks   looks
	waiters waiters
	records records
}

// database is the file of a Store: its connections, the writes on their way to the disk, and the state
// of file and disk. One of its two connections writes, and reads single rows when it has nothing to
// write. The other one only reads.
type database struct {
	options Options
	path    string
	writer  connection
	reader  connection
	queue   queue
	behind  behind
	health  health
	damage  *damage
	opened  os.FileInfo // the file that was opened
	watch   watch

	closing sync.Once
	closed  chan struct{}
}

var _ storage.Store = (*Store)(nil)

// Open opens the store at path. If the file does not exist, Open creates it and its
// folder, readable by this user only. SQLite keeps two files of its own beside it.
// Open uses the first of options, if any.
//
// Errors: Invalid if the file is no store, or a store of a newer version, or if it is empty
// or gone though it was a store before; Unavailable.
func Open(path string, options ...Options) (*Store, error) {
	var o Options
	if len(options) > 0 {
		o = options[0]
	}
	path, err := prepareFile(path)
	if err != nil {
		if _, ok := errors.AsType[*storage.Error](err); ok {
			return nil, err
		}
		return nil, storage.Errorf(storage.Unavailable, "the session store cannot be opened; see that its folder can be written to").Because(err)
	}
	s := &Store{database: database{options: o.withDefaults(), path: path, damage: &damage{path: path, told: o.Damaged}, closed: make(chan struct{})}}
	// Connect the writer first: it turns a new file into WAL mode.
	if s.writer, err = connect(path, s.options, s.damage); err == nil {
		err = s.migrate(context.Background())
	}
	if err == nil {
		s.reader, err = connect(path, s.options, s.damage)
	}
	if err == nil {
		err = s.mark()
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	if s.options.Behind {
		s.begin()
		if err := s.noted(s.behind.sync()); err != nil { // this also syncs a new schema, and what an earlier process wrote
			_ = s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Close closes both connections. Calls in progress return.
func (d *database) Close() error {
	d.closing.Do(func() { close(d.closed) })
	if err := errors.Join(d.behind.end(), d.reader.close(), d.writer.close()); err != nil {
		return failed(err)
	}
	return nil
}

// prepareFile resolves path to an absolute path without symbolic links. It creates
// the file before SQLite would, because the file holds clients' messages and only
// this user may read it.
func prepareFile(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	if err := lost(path); err != nil {
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

// expiry converts an expiry time to its column. The zero time means never.
func expiry(t time.Time) int64 {
	if t.IsZero() {
		return math.MaxInt64
	}
	return t.UnixMicro()
}

func now() int64 { return time.Now().UnixMicro() }
