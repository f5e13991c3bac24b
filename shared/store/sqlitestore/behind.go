package sqlitestore

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/durable"
)

// behind brings the write-ahead log to the disk after writes have returned, for
// [Options].Behind. One fsync covers all that was written before it. After a power cut, SQLite
// uses the log up to the first incomplete transaction.
type behind struct {
	mu   sync.Mutex
	path string
	file *os.File     // the write-ahead log; nil before the first sync
	own  func() error // replaces the fsync, in tests; nil otherwise

	more    chan struct{} // capacity 1: has an element while writes wait for an fsync
	syncing sync.WaitGroup
}

// begin starts the goroutine that syncs what was written.
func (d *database) begin() {
	b := &d.behind
	b.path, b.own, b.more = d.path+"-wal", d.options.sync, make(chan struct{}, 1)
	b.syncing.Go(func() {
		for {
			select {
			case <-b.more:
				_ = d.noted(b.sync()) // d.Writable returns the error
			case <-d.closed:
				return
			}
		}
	})
}

// follow asks the goroutine of begin for a sync, and does not wait for it.
func (b *behind) follow() {
	select {
	case b.more <- struct{}{}:
	default: // a sync that is asked for already, and has not begun, covers this write too
	}
}

// sync returns when all that was written is on the disk.
func (b *behind) sync() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.own != nil {
		return b.own()
	}
	if b.file == nil {
		file, err := os.Open(b.path)
		if err != nil {
			return unsynced{err}
		}
		if err := errors.Join(syncData(file), durable.SyncFolder(filepath.Dir(b.path))); err != nil {
			_ = file.Close() // opened only for the fsync, so no write can be lost
			return unsynced{err}
		}
		b.file = file
		return nil
	}
	if err := syncData(b.file); err != nil {
		return unsynced{err}
	}
	return nil
}

// unsynced is the error of an fsync that failed.
type unsynced struct{ error }

// end waits until the goroutine of begin has ended, and syncs the rest.
func (b *behind) end() error {
	b.syncing.Wait()
	if b.more == nil {
		return nil
	}
	err := b.sync()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file != nil {
		err = errors.Join(err, b.file.Close())
		b.file = nil
	}
	return err
}
