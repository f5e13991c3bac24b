package sockets

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
	"golang.org/x/sync/semaphore"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	// flushTime is how long a closing connection may take to send the messages in its queue.
	flushTime = 5 * time.Second
	// writeWithin is how long a client may take to read one message. readWithin is how long it may
	// take to send one that it has begun. After that the connection is dropped.
	writeWithin = 30 * time.Second
	readWithin  = time.Minute
	// turnTime is the longest time for which a message counts in [Rooms.Turns].
	turnTime = 100 * time.Millisecond
)

var (
	errGone = storage.Errorf(storage.Closed, "the connection is gone")
	errFull = storage.Errorf(storage.Unavailable, "the client does not read what it is sent")
)

// closing is how a connection ends: the close frame that is sent or was received. Its code and
// reason are also the arguments of Routes.Disconnect.
type closing struct {
	code   websocket.StatusCode
	reason string
	// cut means that the client gets no close frame, because it is gone or has sent its own.
	cut bool
}

var (
	goingAway     = closing{code: websocket.StatusGoingAway, reason: "Going away"}
	closedByPost  = closing{code: websocket.StatusNormalClosure, reason: "Connection Closed Normally"}
	tooBig        = closing{code: websocket.StatusMessageTooBig, reason: "Message too big"}
	binaryMessage = closing{code: websocket.StatusUnsupportedData, reason: "Binary messages are not supported"}
	brokenText    = closing{code: websocket.StatusInvalidFramePayloadData, reason: "Text is not UTF-8"}
	cutOff        = closing{code: websocket.StatusAbnormalClosure, cut: true}
)

// wsConn is one connection. The goroutine of its HTTP handler writes. Other goroutines take turns
// at reading: one reads a message and then handles it, while the next one reads. So the reader
// need not wake another goroutine to handle a message.
type wsConn struct {
	Conn
	api *API
	ws  *websocket.Conn

	// turn has capacity 1. A goroutine that reads has put a value into it.
	turn chan struct{}

	// wake tells the writer that queue or end has changed.
	wake chan struct{}
	// writing is the context of all writes. stopWriting cancels it, so that a client that does not
	// read cannot delay the close.
	writing     context.Context
	stopWriting context.CancelFunc

	// buffer limits the bytes in queue and in the current write. Goroutines that wait for it get it
	// in the order in which they came.
	buffer *semaphore.Weighted
	rooms  Rooms // limits that the caller's connections share; rooms.Out counts the same bytes as buffer
	// open is done when shut is called, or when write returns. Then nothing
	// waits for buffer or rooms any more.
	open    context.Context
	endOpen context.CancelFunc

	mu         sync.Mutex
	conn       net.Conn // the network connection that ws uses
	idle       *time.Timer
	queue      [][]byte
	end        *closing
	free, busy int // goroutines that read or wait for their turn, and goroutines that handle a message
}

// message is a message from the client. Until release is called, its bytes count in [Rooms.In]. It
// also counts in [Rooms.Turns], for turnTime at most.
type message struct {
	data    []byte
	release func()
}

func newWSConn(a *API, r *http.Request) *wsConn {
	now := time.Now()
	c := &wsConn{
		Conn: Conn{ID: awsapi.NewID(), SourceIP: awsapi.SourceIP(r), UserAgent: r.UserAgent(), Host: r.Host, ConnectedAt: now},
		api:  a, turn: make(chan struct{}, 1), free: 1,
		wake: make(chan struct{}, 1), buffer: semaphore.NewWeighted(int64(a.limits.SendBuffer)),
	}
	c.writing, c.stopWriting = context.WithCancel(context.Background())
	c.open, c.endOpen = context.WithCancel(context.Background())
	return c
}

// start makes the connection available for posts, after Connect has accepted it. Posted messages
// wait in the queue until serve begins.
func (c *wsConn) start() {
	c.mu.Lock()
	c.idle = time.AfterFunc(c.api.limits.Idle, func() { c.shut(goingAway) })
	c.mu.Unlock()
	if !c.api.register(c) {
		c.shut(goingAway)
	}
}

// serve runs the upgraded connection until it ends.
func (c *wsConn) serve(conn net.Conn) {
	c.mu.Lock()
	c.conn = conn
	c.mu.Unlock()
	c.ws.SetReadLimit(-1) // c.read limits the length of a message
	life := time.AfterFunc(c.api.limits.Life-time.Since(c.ConnectedAt), func() { c.shut(goingAway) })
	defer life.Stop()
	c.api.work.Go(c.takeTurns)
	c.write()
	// A goroutine that reads now fails, and calls c.shut with the reason before it gives up its turn.
	// If no goroutine reads, the reason is cutOff.
	c.turn <- struct{}{}
	c.shut(cutOff)
	<-c.turn
}

// ended unregisters a connection that has ended, and calls Disconnect.
func (c *wsConn) ended() {
	c.api.unregister(c)
	c.mu.Lock()
	end := *c.end
	for _, data := range c.queue { // messages that were never sent
		c.giveRoom(data)
	}
	c.queue = nil
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.api.ctx, c.api.limits.Route)
	defer cancel()
	c.api.cfg.Disconnect(ctx, c.Conn, int(end.code), end.reason)
}

// cut ends the connection at once, without a close frame. It closes the network connection,
// because closing ws could wait for the client's close frame.
func (c *wsConn) cut() {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // an error means that the connection has ended already
	}
}

// takeTurns reads and handles messages, one after another. It returns when the connection has
// ended, or when two other goroutines are free to read.
func (c *wsConn) takeTurns() {
	for {
		c.turn <- struct{}{}
		m, ok := c.next()
		alone := ok && c.begin()
		<-c.turn
		if !ok {
			return
		}
		if alone {
			c.api.work.Go(c.takeTurns)
		}
		c.handle(m)
		if !c.finish() {
			return
		}
	}
}

// begin counts a message that will be handled. If it returns true, the caller must start another
// goroutine that reads, which c.free already counts. If Limits.InWork messages are being handled,
// nobody reads until finish is called.
func (c *wsConn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free--
	c.busy++
	if c.free > 0 || c.busy >= c.api.limits.InWork {
		return false
	}
	c.free++
	return true
}

// finish counts a message that was handled. It reports whether its goroutine should read again.
func (c *wsConn) finish() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
	if c.free > 1 {
		return false
	}
	c.free++
	return true
}

// next returns the next message to handle. ok is false if the connection has ended.
//
// If a client sends messages but does not read the replies, its messages are not read either: next
// waits for one free byte in the buffer, behind all replies that already wait for room in it.
func (c *wsConn) next() (m message, ok bool) {
	if c.buffer.Acquire(c.open, 1) != nil {
		return message{}, false
	}
	c.buffer.Release(1)
	m, end := c.read()
	if end != nil {
		c.shut(*end)
		return message{}, false
	}
	if !c.active() {
		m.release()
		return message{}, false
	}
	return m, true
}

func (c *wsConn) read() (message, *closing) {
	// The context must not end: that would drop the connection without a close frame.
	kind, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return message{}, endOf(err)
	}
	if kind != websocket.MessageText {
		return message{}, &binaryMessage
	}
	if c.rooms.Turns.Acquire(c.open, 1) != nil {
		return message{}, &cutOff // the connection is shut already, and c.end keeps the first reason
	}
	turn := sync.OnceFunc(func() { c.rooms.Turns.Release(1) })
	turnOver := time.AfterFunc(turnTime, turn)
	limit := c.api.limits.Message
	held := int64(limit)
	release := func() {
		turnOver.Stop()
		turn()
		c.rooms.In.Release(held)
	}
	if c.rooms.In.Acquire(c.open, held) != nil {
		held = 0
		release()
		return message{}, &cutOff
	}
	late := time.AfterFunc(readWithin, c.cut)
	data, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	late.Stop()
	end := (*closing)(nil)
	switch {
	case err != nil:
		end = endOf(err)
	case len(data) > limit:
		end = &tooBig
	case !utf8.Valid(data):
		end = &brokenText
	}
	if end != nil {
		release()
		return message{}, end
	}
	c.rooms.In.Release(held - int64(len(data)))
	held = int64(len(data))
	return message{data: data, release: release}, nil
}

// endOf returns how the client has ended the connection, given the error of a read.
func endOf(err error) *closing {
	peer, ok := errors.AsType[websocket.CloseError](err)
	if !ok {
		return &cutOff
	}
	if peer.Code == websocket.StatusNoStatusRcvd {
		peer.Reason = "Client-side close frame status not set"
	}
	return &closing{code: peer.Code, reason: peer.Reason, cut: true}
}

// active restarts the idle timer after a message from the client. It returns false if the
// connection is closing.
func (c *wsConn) active() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		return false
	}
	c.idle.Reset(c.api.limits.Idle)
	return true
}

// handle calls the route for a message, and sends the reply.
func (c *wsConn) handle(m message) {
	defer m.release()
	ctx, cancel := context.WithTimeout(c.api.ctx, c.api.limits.Route)
	defer cancel()
	reply := c.api.cfg.Message(ctx, c.Conn, m.data)
	if len(reply) == 0 {
		return
	}
	if err := c.send(ctx, reply); err != nil {
		c.api.log.Info("a reply was not delivered", "connection", c.ID, "error", err)
	}
}

// send queues a message for the client. While the buffer is full, it waits for room until ctx
// ends. The error is errGone or errFull. The caller must not change data afterwards.
func (c *wsConn) send(ctx context.Context, data []byte) error {
	n := c.size(data)
	if !c.tryRoom(n) {
		ctx, cancel := context.WithCancel(ctx)
		defer context.AfterFunc(c.open, cancel)()
		defer cancel()
		if c.rooms.Out.Acquire(ctx, n) != nil {
			return c.noRoom()
		}
		if c.buffer.Acquire(ctx, n) != nil {
			c.rooms.Out.Release(n)
			return c.noRoom()
		}
	}
	return c.put(data)
}

// enqueue is like send, but fails instead of waiting for room.
func (c *wsConn) enqueue(data []byte) error {
	if !c.tryRoom(c.size(data)) {
		return c.noRoom()
	}
	return c.put(data)
}

// size returns how many bytes a message takes in the buffer. A message that is larger than the
// buffer takes the whole buffer.
func (c *wsConn) size(data []byte) int64 {
	return int64(min(len(data), c.api.limits.SendBuffer))
}

func (c *wsConn) tryRoom(n int64) bool {
	if !c.rooms.Out.TryAcquire(n) {
		return false
	}
	if !c.buffer.TryAcquire(n) {
		c.rooms.Out.Release(n)
		return false
	}
	return true
}

// noRoom returns errGone if the connection takes no more messages, and errFull otherwise.
func (c *wsConn) noRoom() error {
	if c.open.Err() != nil {
		return errGone
	}
	return errFull
}

// put queues a message whose bytes the caller has already counted in buffer and rooms.
func (c *wsConn) put(data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		c.giveRoom(data)
		return errGone
	}
	c.idle.Reset(c.api.limits.Idle)
	c.queue = append(c.queue, data)
	c.nudge()
	return nil
}

func (c *wsConn) giveRoom(data []byte) {
	n := c.size(data)
	c.buffer.Release(n)
	c.rooms.Out.Release(n)
}

func (c *wsConn) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// shut begins to end the connection. It takes no more messages, and sends those in the queue. Only
// the first call counts.
func (c *wsConn) shut(why closing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		return
	}
	c.end = &why
	c.idle.Stop()
	if why.cut {
		c.stopWriting()
	}
	time.AfterFunc(flushTime, c.stopWriting)
	c.endOpen() // ends all waits for buffer and rooms
	c.nudge()
}

// write sends the messages in the queue until shut was called and the queue is empty. Then it
// closes the connection, which also ends the goroutines that read.
func (c *wsConn) write() {
	defer c.stopWriting()
	defer c.endOpen() // otherwise a goroutine that reads might wait for the buffer forever
	for range c.wake {
		c.mu.Lock()
		batch, end := c.queue, c.end
		c.queue = nil
		c.mu.Unlock()
		for i, data := range batch {
			err := c.writeMessage(data)
			c.giveRoom(data)
			if err != nil {
				// A goroutine that reads fails too, and calls c.shut.
				_ = c.ws.CloseNow()
				c.mu.Lock()
				c.queue = append(batch[i+1:], c.queue...)
				c.mu.Unlock()
				return
			}
		}
		if end == nil {
			continue
		}
		if end.cut {
			_ = c.ws.CloseNow()
		} else {
			// If the client does not answer with a close frame, Close drops the connection after a
			// few seconds.
			_ = c.ws.Close(end.code, end.reason)
		}
		return
	}
}

func (c *wsConn) writeMessage(data []byte) error {
	ctx, cancel := context.WithTimeout(c.writing, writeWithin)
	defer cancel()
	return c.ws.Write(ctx, websocket.MessageText, data)
}
