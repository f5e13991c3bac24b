package local

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Bounds of what callers may take of this machine. README's table of limits names them.
const (
	maxConnections  = 2048             // of an endpoint; over it, the one that is idle for longest is closed
	maxInWork       = 1024             // requests and messages of one principal that are handled or held
	maxBodies       = 256 << 20        // bytes of bodies that are read or handled
	maxBody         = 4 << 20          // bytes of one body, as the front has it
	bodyWithin      = time.Minute      // after its first byte was asked for, a body is whole
	headWithin      = 10 * time.Second // after a connection was opened, a request's head is whole
	idleConnections = 5 * time.Minute  // a connection without a request is closed
)

// inWork counts what is handled or held for each principal. The zero value is ready.
type inWork struct {
	mu sync.Mutex
	of map[string]int // by tenant and principal
}

// admit counts one more for a caller, until release is called. The error is Busy.
func (w *inWork) admit(c session.Caller) (release func(), err error) {
	who := c.Tenant + "\x00" + c.Principal
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string]int{}
	}
	if w.of[who] >= maxInWork {
		return nil, session.Errorf(session.Busy, "%d requests of this caller are handled or held at this time, which is the limit; close some or wait for their ends", maxInWork)
	}
	w.of[who]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.of[who]--; w.of[who] == 0 {
			delete(w.of, who)
		}
	}, nil
}

// bodies bounds the memory of all bodies together.
type bodies struct{ room *semaphore.Weighted }

func newBodies() bodies { return bodies{semaphore.NewWeighted(maxBodies)} }

// guard bounds the body of a request: reading waits for room, and has to end in time.
// Call release when the request has been handled.
func (b bodies) guard(w http.ResponseWriter, r *http.Request) (release func()) {
	if r.Body == nil || r.Body == http.NoBody {
		return func() {}
	}
	size := r.ContentLength
	if size < 0 || size > maxBody {
		size = maxBody
	}
	body := &guardedBody{ReadCloser: r.Body, ctx: r.Context(), room: b.room, size: size, conn: http.NewResponseController(w)}
	r.Body = body
	return body.release
}

// guardedBody is read by one goroutine.
type guardedBody struct {
	io.ReadCloser
	ctx  context.Context
	room *semaphore.Weighted
	size int64
	conn *http.ResponseController

	taken, over bool
}

// Read waits for room before the first byte.
func (b *guardedBody) Read(p []byte) (int, error) {
	if !b.taken {
		if err := b.room.Acquire(b.ctx, b.size); err != nil {
			return 0, err
		}
		b.taken = true
		_ = b.conn.SetReadDeadline(time.Now().Add(bodyWithin)) // every connection of net/http has one
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil && !b.over {
		// The connection is read on, to see its client go.
		b.over = true
		_ = b.conn.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (b *guardedBody) release() {
	if b.taken {
		b.taken = false
		b.room.Release(b.size)
	}
}

// crowd bounds the connections of an HTTP server: over maxConnections it closes the one
// that waits for a request for longest.
type crowd struct {
	mu    sync.Mutex
	since map[net.Conn]time.Time // zero while a request is handled
}

// note is http.Server.ConnState.
func (c *crowd) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(c.since) >= maxConnections {
			c.closeOne()
		}
		c.since[conn] = time.Now()
	case http.StateIdle:
		c.since[conn] = time.Now()
	case http.StateActive:
		c.since[conn] = time.Time{}
	case http.StateHijacked, http.StateClosed:
		delete(c.since, conn)
	}
}

// closeOne is called with mu held. If every connection is in use, the new one is one more:
// their requests are bounded for themselves.
func (c *crowd) closeOne() {
	var oldest net.Conn
	var since time.Time
	for conn, t := range c.since {
		if !t.IsZero() && (oldest == nil || t.Before(since)) {
			oldest, since = conn, t
		}
	}
	if oldest != nil {
		_ = oldest.Close() // its server notes the end
		delete(c.since, oldest)
	}
}
