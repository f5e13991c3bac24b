package sqlitestore

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/durable"
)

// behind brings the write-ahead log to the disk, behind the writes. A log that is cut off
// by a power cut has a beginning that is whole, so what one fsync covers includes all that
// was written before.
type behind struct {
	mu   sync.Mutex
	path string
	file *os.File // the log; nil before the first sync
	own  func() error

	more chan struct{} // capacity 1: there are writes without an fsync
	over sync.WaitGroup
}

// begin starts the goroutine that syncs what was written.
func (d *database) begin() {
	b := &d.behind
	b.path, b.own, b.more = d.path+"-wal", d.options.sync, make(chan struct{}, 1)
	b.over.Go(func() {
		for {
			select {
			case <-b.more:
				_ = d.noted(b.sync()) // the next call for new work gets the error, see Writable
			case <-d.closed:
				return
			}
		}
	})
}

// follow asks for a sync of what was written, without a wait for it.
func (b *behind) follow() {
	select {
	case b.more <- struct{}{}:
	default: // one that has not begun covers this write too
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
			_ = file.Close() // it was only read
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

type unsynced struct{ error }

// end waits for the goroutine and brings the rest to the disk.
func (b *behind) end() error {
	b.over.Wait()
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
