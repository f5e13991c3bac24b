package runner_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	benchBox   = storage.BoxID("tenant/everything")
	benchGen   = storage.Generation(7)
	benchToken = "one-time"
)

// bench is a runner between a host that the test plays and a box that records its calls.
// It lives in a synctest bubble, where hours pass in no time and a test can find out that
// no more frames come.
type bench struct {
	t      *testing.T
	runner *runner.Runner
	box    *recordingBox
	wire   *memoryWire
	conn   *memoryConn // the last that was dialed
	cancel context.CancelCauseFunc
	result chan error
}

// onBench runs a test in a bubble with a runner that was started.
func onBench(t *testing.T, test func(b *bench), set ...func(*runner.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{
			t: t, box: &recordingBox{}, result: make(chan error, 1),
			wire: &memoryWire{frames: make(chan framed, 100_000), dialed: make(chan *memoryConn, 1000)},
		}
		c := runner.Config{
			URL: "wss://relay", Box: benchBox, Gen: benchGen, Token: benchToken, Task: "task-1",
			Executor: b.box, Dial: b.wire.dial,
		}
		for _, s := range set {
			s(&c)
		}
		b.runner = runner.New(c)
		ctx, cancel := context.WithCancelCause(t.Context())
		b.cancel = cancel
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.result <- b.runner.Run(ctx)
		}()
		defer func() {
			cancel(errors.New("test is over"))
			<-ended
		}()
		test(b)
	})
}

// onAwakeBench is onBench with a runner that was welcomed and has an empty inbox.
func onAwakeBench(t *testing.T, test func(b *bench), set ...func(*runner.Config)) {
	t.Helper()
	onBench(t, func(b *bench) {
		b.welcome(b.dialed(), benchGen)
		b.emptyInbox()
		test(b)
	}, set...)
}

func (b *bench) emptyInbox() {
	b.t.Helper()
	b.send(frametest.Frame{Type: frame.TypePulled, N: b.expect(frame.TypePull).N})
}

// connected takes the next connection that was dialed.
func (b *bench) connected() *memoryConn {
	b.t.Helper()
	synctest.Wait()
	select {
	case b.conn = <-b.wire.dialed:
		return b.conn
	default:
		b.t.Fatal("no connection was dialed")
		return nil
	}
}

func (b *bench) send(f frametest.Frame) { b.conn.send(f) }

// dialed waits for the next connection and takes the hello on it.
func (b *bench) dialed() frametest.Frame {
	b.t.Helper()
	for range 1000 {
		synctest.Wait()
		if len(b.wire.dialed) > 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.connected()
	return b.expect(frame.TypeHello)
}

// soon waits for the next frame, which must be of type want.
func (b *bench) soon(want frame.Type, within time.Duration) frametest.Frame {
	b.t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end) && len(b.wire.frames) == 0; {
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
	}
	return b.expect(want)
}

func (b *bench) welcome(hello frametest.Frame, gen storage.Generation) {
	b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: gen, Link: hello.Link})
}

// received returns the next frame, and the connection it came on.
func (b *bench) received() (framed, bool) {
	synctest.Wait()
	select {
	case f := <-b.wire.frames:
		return f, true
	default:
		return framed{}, false
	}
}

// expect returns the next frame, which must be of type want and on the newest
// connection.
func (b *bench) expect(want frame.Type) frametest.Frame {
	b.t.Helper()
	f, ok := b.received()
	if !ok {
		b.t.Fatalf("no frame came, want %s", want)
	}
	if f.Type != want {
		b.t.Fatalf("%s came, want %s", f.Type, want)
	}
	if f.conn != b.conn {
		b.t.Fatalf("%s came on another connection", f.Type)
	}
	return f.Frame
}

func (b *bench) nothing() {
	b.t.Helper()
	if f, ok := b.received(); ok {
		b.t.Fatalf("%s came, want nothing", f.Type)
	}
}

// pass lets time pass. It answers hellos; no other frames may come meanwhile.
func (b *bench) pass(d time.Duration) {
	b.t.Helper()
	for ; d > 0; d -= time.Minute {
		time.Sleep(min(d, time.Minute))
		for {
			f, ok := b.received()
			if !ok {
				break
			}
			if f.Type != frame.TypeHello {
				b.t.Fatalf("%s came, want nothing", f.Type)
			}
			b.conn = f.conn // pings and renewals
			b.welcome(f.Frame, f.Gen)
		}
	}
}

// returned returns the error of Run. Run must have returned by then.
func (b *bench) returned() error {
	b.t.Helper()
	synctest.Wait()
	select {
	case err := <-b.result:
		return err
	default:
		b.t.Fatal("Run has not returned")
		return nil
	}
}

// returnedWith checks that Run has returned with an error of this code, or with none for "".
func (b *bench) returnedWith(want storage.Code) {
	b.t.Helper()
	commontest.EqualIn(b.t, "Run returned", want, storage.CodeOf(b.returned()))
}

func (b *bench) runs() {
	b.t.Helper()
	synctest.Wait()
	select {
	case err := <-b.result:
		b.t.Fatalf("Run has returned: %v", err)
	default:
	}
}

func (b *bench) deliver(id storage.StreamID, set ...func(*frametest.Frame)) {
	b.send(request(id, set...))
	synctest.Wait()
}

// request is a deliver frame of session s1 with one request in it.
func request(id storage.StreamID, set ...func(*frametest.Frame)) frametest.Frame {
	f := frametest.Frame{
		Type: frame.TypeDeliver, ID: id, Gen: benchGen, Session: "s1", Server: "everything", Ticket: "ticket-" + string(id),
		NotAfter: time.Now().Add(10 * time.Minute).UnixMilli(), AckWithin: 1000,
	}
	raw := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	f.Lens, f.Payload = []int{2, len(raw)}, []byte("{}"+raw)
	for _, s := range set {
		s(&f)
	}
	return f
}

func fromInbox(f *frametest.Frame) { f.Inbox = true }

func (b *bench) says(stream storage.StreamID, raw string) { b.say("s1", stream, raw, false) }

func (b *bench) ends(stream storage.StreamID, raw string) { b.say("s1", stream, raw, true) }

func (b *bench) finishes(stream storage.StreamID) {
	b.t.Helper()
	b.ends(stream, "end")
	b.ack(b.expect(frame.TypeEvents))
}

func (b *bench) say(s storage.ID, stream storage.StreamID, raw string, final bool) {
	e := frame.Event{Session: s, Stream: stream, Raw: []byte(raw), Final: final}
	if stream == storage.Standalone {
		e.Ticket = "ticket-of-" + string(s)
	}
	go b.runner.Event(e)
	synctest.Wait()
}

func (b *bench) ack(f frametest.Frame, set ...func(*frametest.Frame)) {
	a := frametest.Frame{Type: frame.TypeAck, Seq: f.Seq, Session: f.Session}
	for _, s := range set {
		s(&a)
	}
	b.send(a)
}

// batchOf describes an events frame: stream, index of the first event, "!" if the last is
// final, and the events.
func batchOf(f frametest.Frame) string {
	var b strings.Builder
	rest := f.Payload
	for i, it := range f.Items {
		if i > 0 {
			b.WriteString(" | ")
		}
		fmt.Fprintf(&b, "%s@%d", it.Stream, it.First)
		for _, n := range it.Lens {
			fmt.Fprintf(&b, " %s", rest[:n])
			rest = rest[n:]
		}
		if it.Final {
			b.WriteString("!")
		}
	}
	return b.String()
}

type framed struct {
	frametest.Frame
	conn *memoryConn
	data []byte
}

// memoryWire is the network. Its channel frames carries the frames of all connections.
type memoryWire struct {
	frames chan framed
	dialed chan *memoryConn

	mu     sync.Mutex
	refuse error // of every dial; nil lets it through
	ending error // of a connection that is cut; nil for io.EOF
	dials  []time.Time
}

var errDown = errors.New("network is down")

func (w *memoryWire) set(refuse, ending error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse, w.ending = refuse, ending
}

func (w *memoryWire) gaps() (gaps []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, at := range w.dials[1:] {
		gaps = append(gaps, at.Sub(w.dials[i]))
	}
	return gaps
}

func (w *memoryWire) dial(context.Context, string, http.Header) (runner.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dials = append(w.dials, time.Now())
	if w.refuse != nil {
		return nil, w.refuse
	}
	c := &memoryConn{wire: w, in: make(chan []byte, 10_000), closed: make(chan struct{})}
	w.dialed <- c
	return c, nil
}

// memoryConn is a relay.Conn whose other end is the test.
type memoryConn struct {
	wire   *memoryWire
	in     chan []byte
	once   sync.Once
	closed chan struct{}
}

func (c *memoryConn) Send(data []byte) error {
	select {
	case <-c.closed:
		return io.ErrClosedPipe
	default:
	}
	f, err := frametest.Decode(data)
	if err != nil {
		return err
	}
	c.wire.frames <- framed{f, c, data}
	return nil
}

func (c *memoryConn) Receive() ([]byte, error) {
	select {
	case data := <-c.in:
		return data, nil
	case <-c.closed:
		c.wire.mu.Lock()
		defer c.wire.mu.Unlock()
		return nil, cmp.Or(c.wire.ending, io.EOF)
	}
}

func (c *memoryConn) Close(string) error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (c *memoryConn) send(f frametest.Frame) {
	for _, piece := range frame.Cut(frametest.Encode(f), "", storage.NewNonce()) {
		c.in <- piece
	}
	synctest.Wait()
}

// cut breaks the connection from outside.
func (c *memoryConn) cut() {
	_ = c.Close("cut")
	synctest.Wait()
}

func (c *memoryConn) isClosed() bool {
	synctest.Wait()
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// recordingBox is a box that records the calls of its methods.
type recordingBox struct {
	mu        sync.Mutex
	log       []string
	got       []frame.Deliver
	questions map[storage.ID][]string
	idle      time.Time
	block     chan struct{} // if set, Deliver waits until it is closed
}

func (x *recordingBox) note(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.log = append(x.log, fmt.Sprintf(format, args...))
}

// told returns the recorded calls since it was last called.
func (x *recordingBox) told() []string {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	log := x.log
	x.log = nil
	return log
}

func (x *recordingBox) deliveries() []frame.Deliver {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.got)
}

func (x *recordingBox) idleFrom(since time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.idle = since
}

func (x *recordingBox) asks(s storage.ID, questions ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.questions = map[storage.ID][]string{s: questions}
}

func (x *recordingBox) Deliver(d frame.Deliver) {
	x.note("deliver %s", d.ID)
	x.mu.Lock()
	x.got = append(x.got, d)
	block := x.block
	x.mu.Unlock()
	if block != nil {
		<-block
	}
}

func (x *recordingBox) Answer(s storage.ID, question string, raw []byte) {
	x.note("answer %s %s %s", s, question, raw)
}

func (x *recordingBox) CloseStream(s storage.ID, stream storage.StreamID) {
	x.note("close %s %s", s, stream)
}

func (x *recordingBox) Halt(h frame.Halt) {
	x.note("halt %s %s %s %t", h.Session, h.By, h.Within(), h.Keep)
}

func (x *recordingBox) StopSession(s storage.ID) { x.note("stop %s", s) }

func (x *recordingBox) Questions() map[storage.ID][]string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.questions)
}

func (x *recordingBox) IdleSince() (time.Time, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.idle, !x.idle.IsZero()
}

func equal[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	commontest.SameIn(t, what, want, got)
}
