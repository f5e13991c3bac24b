package sqlitestore

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Mark binds the socket by which this store is rung for the streams that begin here
// from now on, and returns the mark that belongs into their ids; see
// [session.NewMarkedStreamID]. It is empty if there can be none.
func (s *Store) Mark() string { return s.desk.open() }

// desk is where a process is rung for the streams that have its mark: one socket for
// all, and one goroutine that reads it, once there is a mark.
type desk struct {
	bells *bells

	mu      sync.Mutex
	mark    string
	conn    *net.UnixConn
	waiting map[string][]chan struct{} // by key of the stream
	// heard are the streams that were rung, or waited for, within the last memory at
	// least: of any other that is younger than that nothing has been missed. Those
	// of the time before are in older.
	heard, older map[string]struct{}
	turned       time.Time // when heard was begun
}

// memory is how long the desk remembers a ring that nobody waited for, and maxHeard
// how many of them: then it says of no stream that nothing has been missed.
const (
	memory   = 2 * time.Second
	maxHeard = 50_000
)

func deskName(mark string) string { return "desk." + mark }

func (d *desk) open() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mark != "" {
		return d.mark
	}
	mark := session.NewMark()
	conn, err := bind(filepath.Join(d.bells.dir, deskName(mark)))
	if err != nil {
		return ""
	}
	d.mark, d.conn = mark, conn
	d.waiting, d.heard, d.turned = map[string][]chan struct{}{}, map[string]struct{}{}, time.Now()
	go d.read(conn)
	return mark
}

func (d *desk) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != nil {
		_ = os.Remove(filepath.Join(d.bells.dir, deskName(d.mark)))
		_ = d.conn.Close()
	}
}

func (d *desk) read(conn *net.UnixConn) {
	buf := make([]byte, 64)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if n > 1 && buf[0] == ringing {
			d.rung(string(buf[1:n]))
		}
	}
}

func (d *desk) rung(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hear(key)
	for _, c := range d.waiting[key] {
		select {
		case c <- struct{}{}:
		default: // it has a ring already
		}
	}
}

// hear remembers a stream, and forgets what was heard long ago. Called with mu held.
func (d *desk) hear(key string) {
	if time.Since(d.turned) > memory {
		d.older, d.heard, d.turned = d.heard, map[string]struct{}{}, time.Now()
	}
	if len(d.heard) < maxHeard {
		d.heard[key] = struct{}{}
	}
}

// deskBell is one waiter for a stream with the mark of its desk.
type deskBell struct {
	desk *desk
	key  string
	ring chan struct{}
	// quiet says that nothing can have been written to the stream yet.
	quiet bool
}

// wait registers a waiter; nil if the stream has not the mark of this desk.
func (d *desk) wait(id session.ID, stream session.StreamID) *deskBell {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mark == "" || stream.Mark() != d.mark {
		return nil
	}
	e := &deskBell{desk: d, key: d.bells.key(id, stream), ring: make(chan struct{}, 1)}
	_, heard := d.heard[e.key]
	_, before := d.older[e.key]
	age := time.Since(stream.Time())
	e.quiet = !heard && !before && max(len(d.heard), len(d.older)) < maxHeard && age >= 0 && age < memory
	d.hear(e.key)
	d.waiting[e.key] = append(d.waiting[e.key], e.ring)
	return e
}

func (e *deskBell) rings() bool { return true }

func (e *deskBell) wait(ctx context.Context, until time.Time) (rung bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-e.ring:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (e *deskBell) takeDown() {
	d := e.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	left := slices.DeleteFunc(d.waiting[e.key], func(c chan struct{}) bool { return c == e.ring })
	if d.waiting[e.key] = left; len(left) == 0 {
		delete(d.waiting, e.key)
	}
}
