package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

var _ storage.Writable = (*Store)(nil)

const (
	// leastFree is the free space, in bytes, below which the store takes no new work. It leaves
	// room for the answers to requests in flight, and for SQLite's own files beside the store.
	leastFree = 16 << 20
	// spaceEvery is the shortest time between two checks of the free space.
	spaceEvery = time.Second
	// probeEvery is the shortest time between two tries to write to a failed disk.
	probeEvery = 100 * time.Millisecond
)

// probeWrite writes a page without changing any value.
var probeWrite = fmt.Sprintf("PRAGMA user_version=%d", schemaVersion)

// health holds what the store knows about its disk. The zero value is a disk that has
// not failed.
type health struct {
	failed atomic.Pointer[error] // error of the last write, if the disk caused it
	since  atomic.Int64          // when the disk began to fail, in Unix nanoseconds; 0 if it works

	mu     sync.Mutex
	probed time.Time   // when the store last tried a failed disk
	asked  time.Time   // when the free space was last checked
	narrow error       // the result of that check: an error if there was too little space
	log    os.FileInfo // the write-ahead log at that check; nil before
}

// waitFailed is how long a disk may fail before calls of Wait end: what they wait for cannot be
// stored.
const waitFailed = 5 * time.Second

// lasting returns an error if the disk has failed for longer than waitFailed. On a full disk, a
// small write may succeed between others that fail; the disk then still counts as failing.
func (h *health) lasting() error {
	if since := h.since.Load(); since == 0 || time.Since(time.Unix(0, since)) < waitFailed {
		return nil
	}
	if last := h.failed.Load(); last != nil {
		return *last
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.narrow
}

// Writable reports whether the store could write the result of a new call; see
// [storage.Writable]. It returns Unavailable after the disk has failed a write, until
// a write succeeds; Writable tries one at most every 100 ms. It also returns
// Unavailable while the disk has less than 16 MiB free, which it checks once a
// second.
func (d *database) Writable(ctx context.Context) error {
	if err := d.damage.known(); err != nil {
		return err
	}
	if err := d.room(); err != nil {
		return err // and do not try a write, which might succeed because it is small
	}
	if last := d.health.failed.Load(); last != nil {
		if !d.health.due() {
			return *last
		}
		if _, err := d.write(ctx, probeWrite); err != nil {
			return err
		}
	}
	return nil
}

// well notes that a write has succeeded. A disk with too little space still counts as failing.
func (h *health) well() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.narrow == nil {
		h.since.Store(0)
	}
}

// due reports, to one caller in each probeEvery, that it is time to try the disk.
func (h *health) due() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if age := now.Sub(h.probed); age >= 0 && age < probeEvery {
		return false
	}
	h.probed = now
	return true
}

// room returns an error if the disk has less than leastFree bytes free, or if the file is
// no longer there.
func (d *database) room() error {
	h := &d.health
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if age := now.Sub(h.asked); age >= 0 && age < spaceEvery {
		return h.narrow
	}
	h.asked, h.narrow = now, d.present()
	if h.narrow == nil {
		h.narrow = narrow(d.path, d.options.space(d.path))
	}
	return h.narrow
}

// narrow returns an error if a store has too little room on its disk.
func narrow(path string, r room) error {
	if !r.known || r.free >= leastFree {
		return nil
	}
	return storage.Errorf(storage.Unavailable, "%s; nothing was lost", full(path, r)).ForOperator()
}

// HasRoom returns an error if the disk has too little room for the store at path, which then
// takes no new work.
func HasRoom(path string) error { return narrow(path, roomOf(path)) }

// noted records the outcome of a write. If the disk caused the error, noted returns an
// error that names the disk and says what to do.
func (d *database) noted(err error) error {
	if err == nil {
		if d.health.failed.Load() != nil {
			d.health.failed.Store(nil)
		}
		if d.health.since.Load() != 0 {
			d.health.well()
		}
		return nil
	}
	var text string
	code := primaryCode(err)
	if errors.As(err, new(unsynced)) {
		code = sqlite3.SQLITE_IOERR
	}
	switch code {
	case sqlite3.SQLITE_FULL:
		text = full(d.path, d.options.space(d.path))
	case sqlite3.SQLITE_IOERR:
		text = fmt.Sprintf("the disk of the session store %s fails%s: repair or replace the disk, or move the data and name the folder with --data", d.path, d.options.space(d.path))
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		text = fmt.Sprintf("the session store %s cannot be written%s: make the file and its folder writable, or name another folder with --data", d.path, d.options.space(d.path))
	default:
		return err
	}
	err = storage.Errorf(storage.Unavailable, "%s", text).Because(err).ForOperator()
	d.health.failed.Store(&err)
	d.health.since.CompareAndSwap(0, time.Now().UnixNano())
	return err
}

func full(path string, r room) string {
	return "the disk of " + filepath.Dir(path) + " is full" + r.String() + ": free some room, or move the data and name the folder with --data"
}

// String returns the free space for error messages, "" if it is not known.
func (r room) String() string {
	if !r.known {
		return ""
	}
	return fmt.Sprintf(" (%s of %s free)", size(r.free), size(r.total))
}

func size(bytes uint64) string {
	if bytes >= 1e9 {
		return fmt.Sprintf("%.1f GB", float64(bytes)/1e9)
	}
	return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
}

// room is the space on a disk in bytes.
type room struct {
	free, total uint64
	known       bool
}

// FreeSpace returns how many bytes this user may still write to the disk of a file.
func FreeSpace(path string) (free uint64, known bool) {
	r := roomOf(path)
	return r.free, r.known
}

// roomOf returns the room that this user has on the disk of a file.
func roomOf(path string) room {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil || st.Bsize <= 0 {
		return room{}
	}
	blocks := st.Bavail
	if os.Geteuid() == 0 {
		blocks = st.Bfree // Bavail leaves out the blocks reserved for root
	}
	return room{blocks * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), true}
}
