package relay_test

import (
	"context"
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

// cutWire is a network with real WebSocket connections over pipes. It counts what each end
// writes at once, and cuts the connection once, at a chosen byte of a chosen write. A short
// WebSocket frame is one write, a long frame is several, and the HTTP handshake is the first.
// Behind the network is a gateway, which passes each message to the relay function in an
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
	frames [2]int // writes, up and down
	point  cutPoint
	cut    bool                  // the connection was cut
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

// cutPoint is where a connection is cut: at a byte of the write with this number in one
// direction, counted over all connections.
type cutPoint struct {
	way   way
	frame int // -1: nowhere
	at    cutAt
}

// cutAt says which byte of a write is the first one that is lost.
type cutAt int

const (
	before cutAt = iota // the boundary between two writes
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
		return &tappedConn{Conn: here, w: w}, nil
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

// pass returns how many of the bytes that one Write or Read moves get through, and whether the
// connection is cut after them.
func (w *cutWire) pass(to way, p []byte) (n int, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(p) == 0 {
		return 0, false
	}
	w.frames[to]++
	if w.cut || w.point.way != to || w.point.frame != w.frames[to]-1 {
		return len(p), false
	}
	w.cut = true
	return [...]int{before: 0, inHead: 1, inMiddle: len(p) / 2, beforeLast: len(p) - 1}[w.point.at], true
}

// tappedConn is the runner's end of a pipe.
type tappedConn struct {
	net.Conn
	w *cutWire
}

var errTapped = errors.New("the connection was cut")

func (c *tappedConn) Write(p []byte) (int, error) {
	n, cut := c.w.pass(upward, p)
	written, err := c.Conn.Write(p[:n])
	if cut {
		_ = c.Close()
		return written, errTapped
	}
	return written, err
}

func (c *tappedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	passed, cut := c.w.pass(downward, p[:n])
	if cut {
		_ = c.Close()
		return passed, errTapped
	}
	return passed, err
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
