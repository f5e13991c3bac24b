package sockets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

// flushTime is how long a closing connection may take to send the messages that wait for
// its client.
const flushTime = 5 * time.Second

var (
	errGone = errors.New("the connection is closed")
	errFull = errors.New("the client does not read what it is sent")
)

// closing is how a connection ends: the close frame that is sent or was received, and the
// arguments of $disconnect.
type closing struct {
	code   websocket.StatusCode
	reason string
	// cut means that the client is gone and gets no close frame.
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

// wsConn is one connection. The goroutine of its HTTP handler writes. Other goroutines take
// turns at reading: the one that has read a message handles it, and another one reads on.
// So no goroutine is woken to handle a message.
type wsConn struct {
	Conn
	api *API
	ws  *websocket.Conn

	// turn holds a token while a goroutine reads.
	turn chan struct{}

	// wake tells the writer that queue or end has changed.
	wake chan struct{}
	// writing is the context of all writes. stopWriting ends it, so that a client
	// that does not read cannot delay the close.
	writing     context.Context
	stopWriting context.CancelFunc

	mu         sync.Mutex
	conn       net.Conn // the network connection below ws
	lastActive time.Time
	idle       *time.Timer
	queue      [][]byte
	waiting    int           // bytes in queue and in the write in progress
	room       chan struct{} // closed and replaced when waiting decreases
	end        *closing
	free, busy int // goroutines that read or wait for their turn, and that handle a message
}

func newWSConn(a *API, r *http.Request) *wsConn {
	now := time.Now()
	c := &wsConn{
		Conn: Conn{ID: awsapi.NewID(), SourceIP: awsapi.SourceIP(r), UserAgent: r.UserAgent(), Host: r.Host, ConnectedAt: now},
		api:  a, lastActive: now, turn: make(chan struct{}, 1), free: 1,
		wake: make(chan struct{}, 1), room: make(chan struct{}),
	}
	c.writing, c.stopWriting = context.WithCancel(context.Background())
	return c
}

// open makes the connection available for posts after $connect has accepted it. Messages
// posted before serve begins wait for it.
func (c *wsConn) open() {
	c.mu.Lock()
	c.idle = time.AfterFunc(c.api.limits.Idle, func() { c.shut(goingAway) })
	c.mu.Unlock()
	if !c.api.register(c) {
		c.shut(goingAway)
	}
}

// serve runs the upgraded connection to its end.
func (c *wsConn) serve(conn net.Conn) {
	c.mu.Lock()
	c.conn = conn
	c.mu.Unlock()
	c.ws.SetReadLimit(-1) // read has its own limit
	life := time.AfterFunc(c.api.limits.Life-time.Since(c.ConnectedAt), func() { c.shut(goingAway) })
	defer life.Stop()
	c.api.work.Go(c.takeTurns)
	c.write()
	// If a write failed, the goroutine that reads says how the connection ended. Nobody reads
	// while the most messages are in work.
	c.turn <- struct{}{}
	c.shut(cutOff)
	<-c.turn
}

// ended removes a connection that was open.
func (c *wsConn) ended() {
	c.api.unregister(c)
	c.mu.Lock()
	end := *c.end
	c.mu.Unlock()
	c.disconnected(end)
}

// cut ends the connection at once, without a close frame. It closes the network
// connection, because ws may wait for the client's close frame.
func (c *wsConn) cut() {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // the connection may have ended by itself
	}
}

// takeTurns reads messages and handles them, until the connection ends or two other goroutines
// are free to do so.
func (c *wsConn) takeTurns() {
	for {
		c.turn <- struct{}{}
		data, delay, ok := c.next()
		alone := ok && c.begin()
		<-c.turn
		if !ok {
			return
		}
		if alone {
			c.api.work.Go(c.takeTurns)
		}
		c.handle(data, delay)
		if !c.finish() {
			return
		}
	}
}

// begin counts a message that will be handled. It returns true if a further goroutine must
// read on, for which it counts. If the limit is reached, nobody reads on until finish.
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

// finish counts a message that was handled, and reports whether its goroutine shall go on.
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

// next waits for a message to handle, and says how long it must be held up first. When the
// connection has ended, ok is false.
func (c *wsConn) next() (data []byte, delay time.Duration, ok bool) {
	if c.ending() {
		return nil, 0, false
	}
	data, end := c.read()
	if end != nil {
		c.shut(*end)
		return nil, 0, false
	}
	if !c.active() {
		return nil, 0, false
	}
	c.api.meter(func(u *Usage) { u.MessagesIn += units(data) })
	return data, c.api.delay(), true
}

// read returns the next message, or how the connection ended.
func (c *wsConn) read() ([]byte, *closing) {
	// The context must not end, because that would cut the connection without a close
	// frame.
	kind, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return nil, endOf(err)
	}
	if kind != websocket.MessageText {
		return nil, &binaryMessage
	}
	limit := c.api.limits.Message
	data, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	switch {
	case err != nil:
		return nil, endOf(err)
	case len(data) > limit:
		return nil, &tooBig
	case !utf8.Valid(data):
		return nil, &brokenText
	}
	return data, nil
}

// endOf returns how the client ended the connection, from the error of a read.
func endOf(err error) *closing {
	if errors.Is(err, errFrameTooBig) {
		return &tooBig
	}
	var peer websocket.CloseError
	if !errors.As(err, &peer) {
		return &cutOff
	}
	if peer.Code == websocket.StatusNoStatusRcvd {
		peer.Reason = "Client-side close frame status not set"
	}
	return &closing{code: peer.Code, reason: peer.Reason, cut: true}
}

func (c *wsConn) ending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end != nil
}

// active records a message in either direction. It returns false if the connection is
// closing.
func (c *wsConn) active() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		return false
	}
	c.lastActive = time.Now()
	c.idle.Reset(c.api.limits.Idle)
	return true
}

// handle has the routes handle a message, and sends their reply.
func (c *wsConn) handle(data []byte, delay time.Duration) {
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-c.api.ctx.Done():
			return
		}
	}
	ctx, cancel := context.WithTimeout(c.api.ctx, c.api.limits.Route)
	defer cancel()
	reply := c.api.cfg.Message(ctx, c.Conn, data)
	if len(reply) == 0 {
		return
	}
	if err := c.send(ctx, reply); err != nil {
		c.api.log.Info("a reply was not delivered", "connection", c.ID, "error", err)
	}
}

// send queues a message for the client. While the client does not read and its buffer is
// full, send waits for room until ctx ends. The error is errGone or errFull. The
// connection owns data.
func (c *wsConn) send(ctx context.Context, data []byte) error {
	for {
		room, err := c.enqueue(data)
		if !errors.Is(err, errFull) {
			return err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return errFull
		}
	}
}

// enqueue is send without the wait. With errFull it also returns a channel that is closed
// when there may be room.
func (c *wsConn) enqueue(data []byte) (room <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.end != nil:
		return nil, errGone
	case c.waiting > 0 && c.waiting+len(data) > c.api.limits.SendBuffer:
		return c.room, errFull
	}
	c.lastActive = time.Now()
	c.idle.Reset(c.api.limits.Idle)
	c.queue = append(c.queue, data)
	c.waiting += len(data)
	c.nudge()
	return nil, nil
}

// less subtracts n from the waiting bytes and wakes the senders that wait for room.
// Called with mu held.
func (c *wsConn) less(n int) {
	c.waiting -= n
	close(c.room)
	c.room = make(chan struct{})
}

func (c *wsConn) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// shut begins to end the connection: the connection takes no more messages, sends those
// that wait, and closes. The first reason wins.
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
	c.less(0) // wake the senders, which would wait for room in vain
	c.nudge()
}

// write sends the queue in order until the connection is shut and the queue is empty.
// Then it closes the connection, which also ends the goroutines that read.
func (c *wsConn) write() {
	defer c.stopWriting()
	for range c.wake {
		c.mu.Lock()
		batch, end := c.queue, c.end
		c.queue = nil
		c.mu.Unlock()
		for _, data := range batch {
			if err := c.writeMessage(data); err != nil {
				// The reader gets the same error and reports it.
				_ = c.ws.CloseNow()
				return
			}
			c.mu.Lock()
			c.less(len(data))
			c.mu.Unlock()
		}
		if end == nil {
			continue
		}
		if end.cut {
			_ = c.ws.CloseNow()
		} else {
			// Close cuts off a client that does not answer the close frame.
			_ = c.ws.Close(end.code, end.reason)
		}
		return
	}
}

// writeMessage sends one text message in frames of the gateway's size.
func (c *wsConn) writeMessage(data []byte) error {
	c.api.meter(func(u *Usage) { u.MessagesOut += units(data) })
	frame := c.api.limits.Frame
	if len(data) <= frame {
		return c.ws.Write(c.writing, websocket.MessageText, data)
	}
	w, err := c.ws.Writer(c.writing, websocket.MessageText)
	if err != nil {
		return fmt.Errorf("begin a message: %w", err)
	}
	for len(data) > 0 {
		n := min(frame, len(data))
		if _, err := w.Write(data[:n]); err != nil {
			return fmt.Errorf("write a frame: %w", err)
		}
		data = data[n:]
	}
	return w.Close()
}

// disconnected calls Routes.Disconnect, unless the API drops it.
func (c *wsConn) disconnected(end closing) {
	if c.api.cfg.DropDisconnect {
		return
	}
	ctx, cancel := context.WithTimeout(c.api.ctx, c.api.limits.Route)
	defer cancel()
	c.api.cfg.Disconnect(ctx, c.Conn, int(end.code), end.reason)
}

func units(data []byte) int64 { return int64(max(1, (len(data)+meterUnit-1)/meterUnit)) }
