package sqlitestore

import (
	"context"
	"slices"
	"sync"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// write is one change of the file: a statement that runs once for each list of
// arguments. Either all runs happen or none.
type write struct {
	query string
	args  [][]any
	soon  bool  // with Options.Behind, the write may return before its fsync
	lazy  bool  // it needs no fsync of its own, see [storage.Lazily]
	into  []any // destinations for the columns of the row that the statement returns; nil if it returns none

	// These are set before done is closed:
	changed int64 // number of changed rows, if into is nil
	found   bool  // whether the statement returned a row
	err     error
	done    chan struct{}
}

// queue holds the writes that wait for the connection. The zero value is ready.
type queue struct {
	mu      sync.Mutex
	waiting []*write
}

func (q *queue) add(w *write) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, w)
}

// take returns the waiting writes and empties the queue.
func (q *queue) take() []*write {
	q.mu.Lock()
	defer q.mu.Unlock()
	group := q.waiting
	q.waiting = nil
	return group
}

// withdraw removes w from the queue and reports whether it was still there.
func (q *queue) withdraw(w *write) (waited bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, w)
	if i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	return i >= 0
}

// commit executes a write, or returns why it could not.
//
// Writes queue up while another write has the connection. The next caller to get the connection
// writes the whole queue in one transaction, with one fsync, and then releases all callers.
func (d *database) commit(ctx context.Context, w *write) error {
	if err := ctx.Err(); err != nil {
		return failed(err)
	}
	if err := d.damage.known(); err != nil {
		return err
	}
	w.done = make(chan struct{})
	d.queue.add(w)
	select {
	case d.writer.turn <- struct{}{}:
		uncut := context.WithoutCancel(ctx)
		d.writeGroup(uncut, d.queue.take())
		if _, known := d.watch.recent(); d.options.Alone && !known {
			// Store.kept needs a recent data version, and does not wait for the connection to read one.
			_, _ = d.ask(uncut)
		}
		d.writer.end()
	case <-w.done:
	case <-ctx.Done():
		if d.queue.withdraw(w) {
			return failed(ctx.Err())
		}
	}
	<-w.done
	return w.err
}

// write runs a statement and returns how many rows it changed.
func (d *database) write(ctx context.Context, query string, args ...any) (changed int64, err error) {
	w := write{query: query, args: [][]any{args}}
	err = d.commit(ctx, &w)
	return w.changed, err
}

// writeSoon does what the method write does, but may return before the fsync.
func (d *database) writeSoon(ctx context.Context, query string, args ...any) (changed int64, err error) {
	w := write{query: query, args: [][]any{args}, soon: true, lazy: storage.IsLazy(ctx)}
	err = d.commit(ctx, &w)
	return w.changed, err
}

// take runs a statement that returns the row it changed.
func (d *database) take(ctx context.Context, query string, args, into []any) (found bool, err error) {
	w := write{query: query, args: [][]any{args}, into: into}
	err = d.commit(ctx, &w)
	return w.found, err
}

// writeGroup writes a group in one transaction and releases the callers. If the
// transaction fails, each write runs on its own, so that a bad write fails alone.
func (d *database) writeGroup(uncut context.Context, group []*write) {
	synced := slices.ContainsFunc(group, func(w *write) bool { return !w.lazy })
	if err := d.writer.synchronize(uncut, synced && !d.options.Behind); err != nil {
		d.answer(group, d.written(err, synced))
		return
	}
	if len(group) > 1 {
		if err := d.together(uncut, group...); err == nil || isBroken(err) {
			d.answer(group, d.written(err, synced))
			return
		}
	}
	for i, w := range group {
		err := d.written(d.alone(uncut, w), synced)
		if isBroken(err) {
			d.answer(group[i:], err)
			return
		}
		d.answer(group[i:i+1], err)
	}
}

// written notes the outcome of a transaction. It ignores a success without an fsync, which does
// not show that the disk works.
func (d *database) written(err error, synced bool) error {
	if err == nil && (d.options.Behind || !synced) {
		return nil
	}
	return d.noted(err)
}

// answer tells the callers how their writes ended. With [Options].Behind, the caller of a successful
// write that is not soon waits for an fsync.
func (d *database) answer(group []*write, err error) {
	waits := err == nil && d.options.Behind && slices.ContainsFunc(group, func(w *write) bool { return !w.soon })
	for _, w := range group {
		if w.soon || !waits {
			w.err = err
			close(w.done)
		}
	}
	switch {
	case waits:
		err = d.noted(d.behind.sync())
		for _, w := range group {
			if !w.soon {
				w.err = err
				close(w.done)
			}
		}
	case err == nil && d.options.Behind && slices.ContainsFunc(group, func(w *write) bool { return !w.lazy }):
		d.behind.follow()
	}
}

// isBroken reports whether err comes from the file or the disk, so that the next write would fail too.
func isBroken(err error) bool {
	code := primaryCode(err)
	return isBusy(err) || code == sqlite3.SQLITE_IOERR || code == sqlite3.SQLITE_CORRUPT
}

const (
	beginWrites  = `BEGIN IMMEDIATE`
	commitWrites = `COMMIT`
	undoWrites   = `ROLLBACK`
)

// together runs writes in one transaction. If it returns an error, none of them has
// happened.
func (d *database) together(uncut context.Context, group ...*write) error {
	if _, err := d.writer.exec(uncut, beginWrites); err != nil {
		return err
	}
	var err error
	for _, w := range group {
		if err = d.run(uncut, w); err != nil {
			break
		}
	}
	if err == nil {
		_, err = d.writer.exec(uncut, commitWrites)
	}
	if err != nil {
		// SQLite rolls back by itself after some errors, and ROLLBACK then fails.
		_, _ = d.writer.exec(uncut, undoWrites)
	}
	return err
}

func (d *database) alone(uncut context.Context, w *write) error {
	if len(w.args) == 1 {
		return d.run(uncut, w) // a single statement is a transaction by itself
	}
	return d.together(uncut, w)
}

func (d *database) run(uncut context.Context, w *write) (err error) {
	w.changed, w.found = 0, false
	for _, args := range w.args {
		if w.into != nil {
			w.found, err = d.writer.scan(uncut, w.query, args, w.into)
		} else {
			var changed int64
			changed, err = d.writer.exec(uncut, w.query, args...)
			w.changed += changed
		}
		if err != nil {
			return err
		}
	}
	return nil
}
