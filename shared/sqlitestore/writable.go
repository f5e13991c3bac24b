package sqlitestore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

var _ session.Writable = (*Store)(nil)

const (
	// leastFree is the room below which nothing more is begun: it holds the answers
	// that are on their way, and what SQLite needs beside the file.
	leastFree = 16 << 20
	// spaceEvery is how often the room on the disk is asked for at most, probeEvery how
	// often a disk that has failed is tried again.
	spaceEvery = time.Second
	probeEvery = 100 * time.Millisecond
)

// probeWrite writes a page, and changes nothing.
var probeWrite = fmt.Sprintf("PRAGMA user_version=%d", schemaVersion)

// health is what is known of the disk. The zero value is a disk that has not failed.
type health struct {
	failed atomic.Pointer[error] // of the last write, if it was the disk's fault

	mu     sync.Mutex
	probed time.Time // when a disk that has failed was last tried
	asked  time.Time // when the room was last asked for
	narrow error     // what came of it
}

// Writable says whether what is executed now could be stored; see [session.Writable].
// It is not if the disk has failed the last write, until a write succeeds, which
// Writable tries every 100 ms at most; nor if the disk has less than 16 MiB free,
// which it looks at once a second.
func (s *Store) Writable(ctx context.Context) error {
	if last := s.health.failed.Load(); last != nil {
		if !s.health.due() {
			return *last
		}
		if _, err := s.write(ctx, probeWrite); err != nil {
			return err
		}
	}
	return s.room()
}

// due says, every probeEvery and to one caller, that the disk is to be tried.
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

// room returns an error if there is little.
func (s *Store) room() error {
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if age := now.Sub(h.asked); age >= 0 && age < spaceEvery {
		return h.narrow
	}
	h.asked, h.narrow = now, nil
	if free, known := s.options.space(s.path); known && free < leastFree {
		h.narrow = session.Errorf(session.Unavailable, "the session store %s has too little room: %s; free space there, or move --data", s.path, s.disk())
	}
	return h.narrow
}

// noted remembers what came of a write, and says more of an error that is the disk's.
func (s *Store) noted(err error) error {
	if err == nil {
		if s.health.failed.Load() != nil {
			s.health.failed.Store(nil)
		}
		return nil
	}
	var text string
	switch primaryCode(err) {
	case sqlite3.SQLITE_FULL:
		text = fmt.Sprintf("the session store %s is full: %s; free space there, or move --data", s.path, s.disk())
	case sqlite3.SQLITE_IOERR:
		text = fmt.Sprintf("the session store %s cannot reach its disk: %s; see to the disk, or move --data", s.path, s.disk())
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		text = fmt.Sprintf("the session store %s cannot be written to: %s; make the file and its folder writable, or move --data", s.path, s.disk())
	default:
		return err
	}
	err = session.Errorf(session.Unavailable, "%s", text).Because(err)
	s.health.failed.Store(&err)
	return err
}

// disk says where the file is and how much is free there.
func (s *Store) disk() string {
	free, known := s.options.space(s.path)
	if !known {
		return "it is on the disk at " + mountOf(s.path)
	}
	return fmt.Sprintf("the disk at %s has %.1f MB free", mountOf(s.path), float64(free)/1e6)
}

// freeSpace is how many bytes this user may still write beside a file.
func freeSpace(path string) (free uint64, known bool) {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil || st.Bsize <= 0 {
		return 0, false
	}
	blocks := st.Bavail
	if os.Geteuid() == 0 {
		blocks = st.Bfree // some are kept for root
	}
	return blocks * uint64(st.Bsize), true
}

// mountOf is the folder at which the file system of a path begins.
func mountOf(path string) string {
	device := func(path string) (dev any) {
		if info, err := os.Stat(path); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				return st.Dev
			}
		}
		return nil
	}
	dir := filepath.Dir(path)
	for own := device(dir); dir != filepath.Dir(dir) && device(filepath.Dir(dir)) == own; {
		dir = filepath.Dir(dir)
	}
	return dir
}
