package local

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Limits on what callers may use of this machine; see docs/promises.md.
const (
	maxConnections  = 2048             // connections of an endpoint; a new one beyond the limit closes the one that has been idle longest
	maxInWork       = 1024             // requests, messages and WebSockets of one principal that are open or being handled
	maxBodies       = 256 << 20        // bytes of all bodies and WebSocket messages that are being read or handled
	maxCallerBodies = 64 << 20         // bytes of the bodies and messages of one principal
	maxUnread       = 128 << 20        // bytes that wait for the clients of all WebSockets to read them
	maxCallerUnread = 16 << 20         // bytes that wait for the clients of one principal
	maxBody         = 4 << 20          // bytes of one body; the endpoint has the same limit
	maxForms        = 32 << 20         // bytes of all forms at the pages where people sign in
	maxForm         = 64 << 10         // bytes of one form; the pages have the same limit
	formWithin      = 10 * time.Second // how long a form may take to arrive once memory is reserved for it
	roomWithin      = time.Minute      // how long a body waits for memory
	bodyWithin      = time.Minute      // how long a request may take to arrive, with its body
	restWithin      = time.Second      // time to read the rest of a body that the handler did not read
	headWithin      = 10 * time.Second // time to read the head of a request
	idleConnections = 5 * time.Minute  // how long a connection without a request stays open
)

// callers counts the open requests, messages and WebSockets of each principal. The
// zero value is ready.
type callers struct {
	mu sync.Mutex
	of map[string]*share // by tenant and principal
}

// share counts what one principal uses on this machine.
type share struct {
	n      int
	room   *semaphore.Weighted // memory for the principal's request bodies, and for its messages over WebSockets
	unread *semaphore.Weighted // memory for messages that the principal's WebSocket clients have not read
	turns  *semaphore.Weighted // number of the principal's WebSocket messages that are handled at once
}

// maxTurns is the limit of share.turns: enough to keep all processors busy, and not so many that
// messages of other principals wait for long. See [sockets.Rooms].Turns.
func maxTurns() int64 { return int64(max(16, 4*runtime.GOMAXPROCS(0))) }

// bodyKey and connectionKey are the context keys of a *guardedBody and a *connection.
type (
	bodyKey       struct{}
	connectionKey struct{}
)

// connection is an open WebSocket that counts in the share of its caller.
type connection struct {
	share   *share // what the caller uses; nil until admit has counted the connection
	release func()
}

// rooms returns the limits on the memory of a caller's WebSockets. The argument counted is a
// *connection. For any other value, or before admit has counted the connection, rooms returns no
// limits.
func rooms(counted any, all bodies) sockets.Rooms {
	c, ok := counted.(*connection)
	if !ok || c.share == nil {
		return sockets.Rooms{}
	}
	return sockets.Rooms{In: twoRooms{c.share.room, all.room}, Out: twoRooms{c.share.unread, all.unread}, Turns: c.share.turns}
}

// twoRooms are the memory limits of one caller, nil if unknown, and of all callers.
type twoRooms [2]*semaphore.Weighted

// TryAcquire implements [sockets.Room]. Both limits must be known.
func (r twoRooms) TryAcquire(n int64) bool {
	if !r[0].TryAcquire(n) {
		return false
	}
	if !r[1].TryAcquire(n) {
		r[0].Release(n)
		return false
	}
	return true
}

// Acquire implements [sockets.Room].
func (r twoRooms) Acquire(ctx context.Context, n int64) error {
	if r[0] != nil {
		if err := r[0].Acquire(ctx, n); err != nil {
			return err
		}
	}
	err := r[1].Acquire(ctx, n)
	if err != nil {
		twoRooms{r[0]}.Release(n)
	}
	return err
}

// Release implements [sockets.Room].
func (r twoRooms) Release(n int64) {
	for _, room := range r {
		if room != nil {
			room.Release(n)
		}
	}
}

// admit counts one request, message or WebSocket of a caller: a WebSocket until it ends, and the
// others until release is called. It also makes the body of a request wait for memory in the caller's
// share. If the caller has maxInWork open, the error has the code Busy.
func (w *callers) admit(ctx context.Context, c sessions.Caller) (release func(), err error) {
	who := c.Tenant + "\x00" + c.Principal
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string]*share{}
	}
	s := w.of[who]
	if s == nil {
		s = &share{room: semaphore.NewWeighted(maxCallerBodies), unread: semaphore.NewWeighted(maxCallerUnread), turns: semaphore.NewWeighted(maxTurns())}
		w.of[who] = s
	}
	if s.n >= maxInWork {
		return nil, storage.Errorf(storage.Busy, "%d requests and connections of this caller are handled or held at this time, which is the limit; close some or wait for their ends", maxInWork).
			Because(&storage.Limited{Kind: "concurrent", Scope: "principal", After: time.Second})
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
		conn.share, conn.release = s, release
		return func() {}, nil
	}
	return release, nil
}

// connected wraps the handler of WebSockets, so that each connection counts for its caller until
// it ends.
func (w *callers) connected(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		conn := &connection{release: func() {}}
		defer func() { conn.release() }()
		h.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), connectionKey{}, conn)))
	})
}

// bodies limits the memory of all bodies together, of the sign-in forms, and of the messages that
// WebSocket clients have not read.
type bodies struct{ room, strangers, unread *semaphore.Weighted }

func newBodies() bodies {
	return bodies{semaphore.NewWeighted(maxBodies), semaphore.NewWeighted(maxForms), semaphore.NewWeighted(maxUnread)}
}

// guard limits the body of a request: its first Read waits for memory, first in the caller's share
// and then in that of all callers. Call release when the request has been handled.
func (b bodies) guard(w http.ResponseWriter, r *http.Request) (guarded *http.Request, release func()) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, func() {}
	}
	size := r.ContentLength
	packed := r.Header.Get("Content-Encoding") != ""
	if packed || size < 0 || size > maxBody {
		size = maxBody
	}
	body := &guardedBody{packed: packed, ReadCloser: r.Body, ctx: r.Context(), room: twoRooms{1: b.room}, size: size, conn: http.NewResponseController(w)}
	r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
	r.Body = body
	return r, body.release
}

// ofStrangers limits the bodies of requests to the sign-in pages. These forms share maxForms, and
// must arrive within formWithin: nobody knows yet who sends them, and strangers must not take the
// memory of callers.
func (b bodies) ofStrangers(pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, ok := r.Body.(*guardedBody); ok {
			body.room[0], body.size, body.within = b.strangers, min(body.size, maxForm), formWithin
		}
		pages.ServeHTTP(w, r)
	})
}

// guardedBody is the body of a request. It waits for memory before its first byte is read. One
// goroutine reads it.
type guardedBody struct {
	io.ReadCloser
	ctx    context.Context
	room   twoRooms
	size   int64         // bytes of memory that the body reserves
	packed bool          // the body is compressed, so it may take more memory than it has bytes
	within time.Duration // how long the body may take to arrive once its memory is reserved; 0 leaves the deadline of the request (bodyWithin)
	conn   *http.ResponseController

	read        int64 // bytes that were read so far
	taken, over bool  // whether the body has its memory; whether it was read to its end
}

// Read implements io.Reader.
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
		if !b.packed {
			b.give(max(b.size-b.read, 0)) // a body without a Content-Length has reserved maxBody
		}
	}
	return n, err
}

// Unpacked tells the body how many bytes it has in memory once it is unpacked. A compressed body
// then keeps only so many bytes reserved.
func (b *guardedBody) Unpacked(bytes int) {
	if b.taken && b.packed {
		b.packed = false
		b.give(max(b.size-int64(bytes), 0))
	}
}

// take reserves memory in b.room. It waits roomWithin at most.
func (b *guardedBody) take() error {
	ctx, cancel := context.WithTimeout(b.ctx, roomWithin)
	defer cancel()
	if err := b.room.Acquire(ctx, b.size); err != nil {
		return err
	}
	b.taken = true
	if b.within > 0 {
		_ = b.conn.SetReadDeadline(time.Now().Add(b.within)) // net/http resets the deadline when the body ends
	}
	return nil
}

// give gives back n bytes of the reserved memory.
func (b *guardedBody) give(n int64) {
	b.size -= n
	b.room.Release(n)
}

// release gives all reserved memory back. If the handler did not read the body to its end, net/http
// reads some of the rest before it answers; release limits the time for that.
func (b *guardedBody) release() {
	if b.taken {
		b.taken = false
		b.give(b.size)
	}
	if !b.over {
		_ = b.conn.SetReadDeadline(time.Now().Add(restWithin))
	}
}

// openConnections limits the connections of an HTTP server. When a new one exceeds maxConnections,
// it closes the idle connection that has waited longest for a request.
type openConnections struct {
	mu    sync.Mutex
	since map[net.Conn]time.Time // since when the connection has waited for a request; zero while one is handled
}

// note implements http.Server.ConnState.
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

// any reports whether a connection is open, WebSockets left out.
func (c *openConnections) any() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.since) > 0
}

// closeOne closes the connection that has waited longest for a request. Call it with mu
// held. If all connections are in use, it closes none: their requests have limits of their
// own.
func (c *openConnections) closeOne() {
	var oldest net.Conn
	var since time.Time
	for conn, t := range c.since {
		if !t.IsZero() && (oldest == nil || t.Before(since)) {
			oldest, since = conn, t
		}
	}
	if oldest != nil {
		_ = oldest.Close() // the HTTP server notices that the connection is closed
		delete(c.since, oldest)
	}
}
