package local

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Bounds of what callers may take of this machine. docs/limits.md has them.
const (
	maxConnections  = 2048             // of an endpoint; over it, the one that is idle for longest is closed
	maxInWork       = 1024             // requests, messages and WebSockets of one principal that are handled or held
	maxBodies       = 256 << 20        // bytes of bodies that are read or handled
	maxCallerBodies = 64 << 20         // of these, of one principal
	maxBody         = 4 << 20          // bytes of one body, as the front has it
	roomWithin      = time.Minute      // a body has found room; the front bounds how long it then takes to come
	restWithin      = time.Second      // what is left of a body that was not wanted has come
	headWithin      = 10 * time.Second // after a connection was opened, a request's head is whole
	idleConnections = 5 * time.Minute  // a connection without a request is closed
)

// callers counts what is handled or held for each principal. The zero value is ready.
type callers struct {
	mu sync.Mutex
	of map[string]*share // by tenant and principal
}

// share is what one principal has of this machine.
type share struct {
	n    int
	room *semaphore.Weighted // for its bodies
}

// bodyKey and connectionKey are the keys of contexts that have a *guardedBody, and a
// *connection.
type (
	bodyKey       struct{}
	connectionKey struct{}
)

// connection keeps the place of a WebSocket among what its caller holds.
type connection struct{ release func() }

// admit counts one more for a caller, until release is called, or until the connection of
// ctx ends. A body of ctx takes its room from the caller's. The error is Busy.
func (w *callers) admit(ctx context.Context, c host.Caller) (release func(), err error) {
	who := c.Tenant + "\x00" + c.Principal
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string]*share{}
	}
	s := w.of[who]
	if s == nil {
		s = &share{room: semaphore.NewWeighted(maxCallerBodies)}
		w.of[who] = s
	}
	if s.n >= maxInWork {
		return nil, session.Errorf(session.Busy, "%d requests and connections of this caller are handled or held at this time, which is the limit; close some or wait for their ends", maxInWork)
	}
	s.n++
	if b, ok := ctx.Value(bodyKey{}).(*guardedBody); ok {
		b.room[0] = s.room
	}
	release = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if s.n--; s.n == 0 {
			delete(w.of, who)
		}
	}
	if conn, ok := ctx.Value(connectionKey{}).(*connection); ok {
		conn.release = release
		return func() {}, nil
	}
	return release, nil
}

// connected serves WebSockets, and keeps the place of each until it ends.
func (w *callers) connected(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		conn := &connection{release: func() {}}
		defer func() { conn.release() }()
		h.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), connectionKey{}, conn)))
	})
}

// bodies bounds the memory of all bodies together.
type bodies struct{ room *semaphore.Weighted }

func newBodies() bodies { return bodies{semaphore.NewWeighted(maxBodies)} }

// guard bounds the body of a request: the first Read waits for room, that of its caller
// first. Call release when the request has been handled.
func (b bodies) guard(w http.ResponseWriter, r *http.Request) (guarded *http.Request, release func()) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, func() {}
	}
	size := r.ContentLength
	if size < 0 || size > maxBody {
		size = maxBody
	}
	body := &guardedBody{ReadCloser: r.Body, ctx: r.Context(), room: [2]*semaphore.Weighted{1: b.room}, size: size, conn: http.NewResponseController(w)}
	r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
	r.Body = body
	return r, body.release
}

// guardedBody is read by one goroutine.
type guardedBody struct {
	io.ReadCloser
	ctx  context.Context
	room [2]*semaphore.Weighted // the caller's, if it is known, and that of all
	size int64                  // that is taken, or will be
	conn *http.ResponseController

	read        int64
	taken, over bool
}

// Read waits for room before the first byte.
func (b *guardedBody) Read(p []byte) (int, error) {
	if !b.taken {
		if err := b.take(); err != nil {
			return 0, err
		}
	}
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if errors.Is(err, io.EOF) && !b.over {
		b.over = true
		b.give(max(b.size-b.read, 0)) // of a body that did not say its size
	}
	return n, err
}

// take waits for room until roomWithin is over.
func (b *guardedBody) take() error {
	ctx, cancel := context.WithTimeout(b.ctx, roomWithin)
	defer cancel()
	for i, room := range b.room {
		if room == nil {
			continue
		}
		if err := room.Acquire(ctx, b.size); err != nil {
			for _, had := range b.room[:i] {
				if had != nil {
					had.Release(b.size)
				}
			}
			return err
		}
	}
	b.taken = true
	return nil
}

func (b *guardedBody) give(n int64) {
	b.size -= n
	for _, room := range b.room {
		if room != nil {
			room.Release(n)
		}
	}
}

// release gives the room back. Of a body that was not wanted, net/http reads some before
// it answers: its client has little time for that.
func (b *guardedBody) release() {
	if b.taken {
		b.taken = false
		b.give(b.size)
	}
	if !b.over {
		_ = b.conn.SetReadDeadline(time.Now().Add(restWithin))
	}
}

// openConnections bounds the connections of an HTTP server: over maxConnections it closes the one
// that waits for a request for longest.
type openConnections struct {
	mu    sync.Mutex
	since map[net.Conn]time.Time // zero while a request is handled
}

// note is http.Server.ConnState.
func (c *openConnections) note(conn net.Conn, state http.ConnState) {
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
func (c *openConnections) closeOne() {
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
