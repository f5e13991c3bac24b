package sqlitestore

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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
	raw     syscall.RawConn // of conn
	buf     [maxRing]byte
	waiting map[string][]chan ring // by key of the stream
	heard   recent                 // streams that were rung, or waited for: of any other young one nothing has been missed
	others  recent                 // streams that other processes wait for
}

// recent are the keys that were added within the last memory at least; it is full
// when one may be missing. The zero value is ready.
type recent struct {
	keys, older map[string]struct{}
	turned      time.Time // when keys was begun
}

// memory is how long the desk remembers, and maxKeys how much.
const (
	memory  = 2 * time.Second
	maxKeys = 50_000
)

func (r *recent) add(key string) {
	if time.Since(r.turned) > memory {
		r.older, r.keys, r.turned = r.keys, map[string]struct{}{}, time.Now()
	}
	if len(r.keys) < maxKeys {
		r.keys[key] = struct{}{}
	}
}

func (r *recent) has(key string) bool {
	_, now := r.keys[key]
	_, before := r.older[key]
	return now || before
}

func (r *recent) full() bool { return max(len(r.keys), len(r.older)) >= maxKeys }

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
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return ""
	}
	d.mark, d.conn, d.raw, d.waiting = mark, conn, raw, map[string][]chan ring{}
	go d.read(raw)
	return mark
}

func (d *desk) close() {
	d.mu.Lock()
	mark, conn := d.mark, d.conn
	d.mu.Unlock()
	if conn != nil {
		_ = os.Remove(filepath.Join(d.bells.dir, deskName(mark)))
		_ = conn.Close() // it waits for read, which may wait for mu
	}
}

// read takes what comes through the socket, until it is closed.
func (d *desk) read(raw syscall.RawConn) {
	_ = raw.Read(func(fd uintptr) (done bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.take(int(fd))
		return false
	})
}

// take takes all that stands in the socket. Called with mu held, so that what was sent
// is either still there or has been dealt with.
func (d *desk) take(fd int) {
	for {
		n, err := unix.Read(fd, d.buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return
		case n < 1+keyLength:
			continue // a probe
		}
		switch key, rest := string(d.buf[1:1+keyLength]), d.buf[1+keyLength:n]; d.buf[0] {
		case ringing:
			d.rung(key, readRing(rest))
		case waiting:
			d.others.add(key)
		}
	}
}

// rings rings here without a socket; false if the mark is another desk's. Who said that
// it waits elsewhere, before it looked and found nothing, is rung as well.
func (d *desk) rings(mark, key string, r ring) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mark != mark {
		return false
	}
	_ = d.raw.Control(func(fd uintptr) { d.take(int(fd)) }) // a desk that is closed has nobody
	d.rung(key, r)
	return true
}

// rung is called with mu held.
func (d *desk) rung(key string, r ring) {
	d.heard.add(key)
	for _, c := range d.waiting[key] {
		select {
		case c <- r.clone():
		default: // it has a ring already
		}
	}
	if d.others.has(key) {
		d.bells.ringFrom(filepath.Join(d.bells.dir, key), 0)
	}
}

// deskBell is one waiter for a stream with the mark of its desk.
type deskBell struct {
	desk *desk
	key  string
	ring chan ring
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
	e := &deskBell{desk: d, key: d.bells.key(id, stream), ring: make(chan ring, 1)}
	age := time.Since(stream.Time())
	e.quiet = !d.heard.has(e.key) && !d.heard.full() && age >= 0 && age < memory
	d.heard.add(e.key)
	d.waiting[e.key] = append(d.waiting[e.key], e.ring)
	return e
}

func (e *deskBell) rings() bool { return true }

func (e *deskBell) wait(ctx context.Context, until time.Time) (r ring, rung bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case r := <-e.ring:
		return r, true
	case <-timer.C:
	case <-ctx.Done():
	}
	return ring{}, false
}

func (e *deskBell) takeDown() {
	d := e.desk
	d.mu.Lock()
	defer d.mu.Unlock()
	left := slices.DeleteFunc(d.waiting[e.key], func(c chan ring) bool { return c == e.ring })
	if d.waiting[e.key] = left; len(left) == 0 {
		delete(d.waiting, e.key)
	}
}
