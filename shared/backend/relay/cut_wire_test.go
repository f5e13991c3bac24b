package relay_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// cutWire is a network with real WebSocket connections over pipes. It counts the WebSocket
// frames of both directions, and cuts the connection once, at a chosen byte of a chosen
// frame. Behind it is a gateway, which passes each message to the relay function in an
// invocation of its own, after a random time.
type cutWire struct {
	t       *testing.T
	handler *relayserver.Handler
	client  *http.Client
	server  *http.Server
	calls   *pipeListener
	wg      sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc

	mu     sync.Mutex
	rng    *rand.Rand
	conns  map[string]*websocket.Conn
	opened int
	frames [2]int // up, down
	point  cutPoint
	cut    bool // it was
	longer []int
	types  [2]map[frame.Type]int // messages, up and down
	even   bool                  // everything takes as long each time
	limits []string              // of the gateway that connections ran into
}

// way is a direction.
type way int

const (
	upward way = iota
	downward
)

// cutPoint is where a connection is cut: at a byte of the frame with this number in one
// direction, counted over all connections.
type cutPoint struct {
	way   way
	frame int // -1: nowhere
	at    cutAt
}

// cutAt says which byte of a frame is the first one that is lost.
type cutAt int

const (
	before cutAt = iota // the boundary between two frames
	inHead
	inMiddle
	beforeLast
)

func (p cutPoint) String() string {
	return fmt.Sprintf("%s/%d/%s", [...]string{"up", "down"}[p.way], p.frame, [...]string{"before", "head", "middle", "last"}[p.at])
}

func newCutWire(t *testing.T, point cutPoint, seed uint64) *cutWire {
	w := &cutWire{
		t: t, point: point, rng: rand.New(rand.NewPCG(seed, 1)), conns: map[string]*websocket.Conn{},
		types: [2]map[frame.Type]int{{}, {}},
		calls: &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})},
	}
	w.ctx, w.cancel = context.WithCancel(t.Context())
	w.server = &http.Server{Handler: http.HandlerFunc(w.accept), ReadHeaderTimeout: time.Minute}
	w.wg.Go(func() { _ = w.server.Serve(w.calls) })
	w.client = &http.Client{Transport: &http.Transport{DialContext: w.dialPipe}}
	return w
}

// close closes all connections and waits until all goroutines have ended.
func (w *cutWire) close() {
	w.cancel()
	w.mu.Lock()
	conns := w.conns
	w.conns = map[string]*websocket.Conn{}
	w.mu.Unlock()
	for _, c := range conns {
		_ = c.CloseNow()
	}
	_ = w.server.Close()
	w.client.CloseIdleConnections()
	w.wg.Wait()
}

func (w *cutWire) dial(ctx context.Context, url string, header http.Header) (runner.Conn, error) {
	return runner.DialWith(ctx, url, header, w.client)
}

func (w *cutWire) dialPipe(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case w.calls.conns <- there:
		return &tappedConn{Conn: here, w: w, meters: [2]frameMeter{{way: upward}, {way: downward}}}, nil
	case <-w.calls.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pause draws the duration of a step. If even is set, the duration is always the same.
func (w *cutWire) pause(most time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.even {
		return most / 2
	}
	return draw(w.rng, most)
}

// accept is the gateway's end of one connection from a runner.
func (w *cutWire) accept(rw http.ResponseWriter, r *http.Request) {
	if err := w.handler.Sealer.Admit(r.Header); err != nil {
		http.Error(rw, err.Error(), http.StatusUnauthorized)
		return
	}
	conn, err := websocket.Accept(rw, r, nil)
	if err != nil {
		return // it was cut in the handshake
	}
	conn.SetReadLimit(gatewayMessage)
	w.mu.Lock()
	w.opened++
	name := fmt.Sprintf("c%d", w.opened)
	w.conns[name] = conn
	w.mu.Unlock()
	limit := func(why string) func() {
		return func() {
			w.mu.Lock()
			w.limits = append(w.limits, name+" "+why)
			w.mu.Unlock()
			_ = conn.Close(websocket.StatusGoingAway, why)
		}
	}
	idle := time.AfterFunc(gatewayIdle, limit("was idle"))
	life := time.AfterFunc(gatewayLife, limit("was open too long"))
	defer life.Stop()
	defer idle.Stop()
	for {
		kind, data, err := conn.Read(w.ctx)
		if err != nil {
			break
		}
		if kind != websocket.MessageText {
			w.t.Error("a runner sends a binary message")
		}
		idle.Reset(gatewayIdle)
		w.count(upward, data)
		w.wg.Go(func() { w.invoke(name, data) })
	}
	w.mu.Lock()
	delete(w.conns, name)
	w.mu.Unlock()
	_ = conn.CloseNow()
}

func (w *cutWire) invoke(name string, data []byte) {
	if nap(w.ctx, w.pause(30*time.Millisecond)) != nil {
		return
	}
	reply, err := w.handler.Frame(w.ctx, name, data)
	if err != nil {
		reply = []byte(`{"message":"Internal server error"}`)
	}
	if reply != nil {
		w.send(name, reply)
	}
}

// send writes a message to the runner, if the connection still exists.
func (w *cutWire) send(name string, data []byte) {
	w.mu.Lock()
	conn := w.conns[name]
	w.mu.Unlock()
	if conn != nil {
		w.count(downward, data)
		_ = conn.Write(w.ctx, websocket.MessageText, data) // lost
	}
}

// Post implements Poster. A message that it accepted may still be lost.
func (w *cutWire) Post(ctx context.Context, name string, data []byte) error {
	w.mu.Lock()
	conn := w.conns[name]
	w.mu.Unlock()
	if conn == nil {
		return storage.Errorf(storage.Closed, "connection %s is gone", name)
	}
	w.wg.Go(func() {
		if nap(w.ctx, w.pause(10*time.Millisecond)) == nil {
			w.send(name, data)
		}
	})
	return nap(ctx, time.Millisecond)
}

func (w *cutWire) count(to way, data []byte) {
	f, _ := frametest.Decode(data)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.types[to][f.Type]++
}

// pass returns how many of the next bytes get through, and whether the connection is cut
// after them.
func (w *cutWire) pass(m *frameMeter, p []byte) (n int, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n < len(p) {
		if m.beginning() {
			m.number = w.frames[m.way]
			w.frames[m.way]++
		}
		limit := -1
		if !w.cut && !m.shaking && w.point.way == m.way && w.point.frame == m.number {
			limit = m.until(w.point.at)
		}
		if limit == 0 {
			w.cut = true
			return n, true
		}
		step := m.take(p[n:], limit)
		n += step
		if m.ended() {
			if m.way == upward && m.size > frame.MaxWSFrame {
				w.longer = append(w.longer, m.size)
			}
			m.next()
		}
	}
	return n, false
}

// tappedConn is the runner's end of a pipe.
type tappedConn struct {
	net.Conn
	w      *cutWire
	meters [2]frameMeter
}

var errTapped = errors.New("the connection was cut")

func (c *tappedConn) Write(p []byte) (int, error) {
	n, cut := c.w.pass(&c.meters[upward], p)
	written, err := c.Conn.Write(p[:n])
	if cut {
		_ = c.Close()
		return written, errTapped
	}
	return written, err
}

func (c *tappedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	passed, cut := c.w.pass(&c.meters[downward], p[:n])
	if cut {
		_ = c.Close()
		return passed, errTapped
	}
	return passed, err
}

// frameMeter follows one direction of a connection: the HTTP handshake, then
// WebSocket frames.
type frameMeter struct {
	way     way
	shook   bool // the handshake is over
	shaking bool
	line    []byte // its last bytes
	head    []byte
	size    int // length of the frame with its head, 0 until it is known
	at      int // bytes of it that have passed
	number  int
}

// beginning reports whether the next byte begins a frame, or the handshake if no frame has
// come.
func (m *frameMeter) beginning() bool {
	m.shaking = !m.shook
	return m.shook && m.at == 0
}

// until returns how many more bytes pass before the cut, or -1 while that is not known.
func (m *frameMeter) until(at cutAt) int {
	switch {
	case at == before:
		return -m.at
	case at == inHead:
		return 1 - m.at
	case m.size == 0:
		return -1
	case at == inMiddle:
		return max(m.size/2-m.at, 0)
	default:
		return m.size - 1 - m.at
	}
}

// take passes some bytes, at most limit unless limit is negative.
func (m *frameMeter) take(p []byte, limit int) int {
	if m.shaking {
		m.line = append(m.line, p[0])
		if bytes.HasSuffix(m.line, []byte("\r\n\r\n")) {
			m.shook = true
		}
		return 1
	}
	n := 1
	if m.size > 0 {
		n = min(len(p), m.size-m.at)
	} else {
		m.head = append(m.head, p[0])
		m.size = sizeOfFrame(m.head)
	}
	if limit > 0 {
		n = min(n, limit)
	}
	m.at += n
	return n
}

func (m *frameMeter) ended() bool { return m.shook && m.size > 0 && m.at == m.size }

func (m *frameMeter) next() { m.head, m.size, m.at = m.head[:0], 0, 0 }

// sizeOfFrame returns the length of a frame with this head, 0 if the head is
// incomplete.
func sizeOfFrame(head []byte) int {
	if len(head) < 2 {
		return 0
	}
	size, length := 2, int(head[1]&0x7f)
	if head[1]&0x80 != 0 {
		size += 4
	}
	switch {
	case length < 126:
	case length == 126:
		if size += 2; len(head) >= 4 {
			length = int(binary.BigEndian.Uint16(head[2:]))
		}
	default:
		if size += 8; len(head) >= 10 {
			length = int(binary.BigEndian.Uint64(head[2:]))
		}
	}
	if len(head) < size {
		return 0
	}
	return size + length
}

// pipeListener gives the other ends of pipes to a server.
type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, io.EOF
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }
