package relay_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// echoBox answers every delivery, in another goroutine as a box does.
type echoBox struct {
	unasked
	runner *runner.Runner
	answer []byte
}

func (b *echoBox) Deliver(d runner.Delivery) {
	go b.runner.Event(runner.Event{Session: d.Session, Stream: d.ID, Ticket: d.Ticket, Raw: b.answer, Final: true})
}

func (*echoBox) IdleSince() (since time.Time, ok bool) { return time.Now(), true }

// hostConn is the host's end of a connection without a network.
type hostConn struct {
	*inbound
	up chan []byte
}

func (c *hostConn) Send(message []byte) error {
	select {
	case c.up <- message:
		return nil
	case <-c.closed:
		return io.ErrClosedPipe
	}
}

// BenchmarkRunner measures the work of a runner for a call, without its network and its
// box.
func BenchmarkRunner(b *testing.B) {
	conn := &hostConn{newInbound(), make(chan []byte, 16)}
	box := &echoBox{answer: []byte(`{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"Echo: hello"}]}}`)}
	box.runner = runner.New(runner.Config{
		Box: "local/echo", Gen: 3, Executor: box,
		Dial: func(context.Context, string, http.Header) (runner.Conn, error) { return conn, nil },
	})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- box.runner.Run(ctx) }()
	next := func(want frame.Type) frametest.Frame {
		f, err := frametest.Decode(<-conn.up)
		if err != nil || f.Type != want {
			b.Fatalf("%s came, want %s: %v", f.Type, want, err)
		}
		return f
	}
	hello := next(frame.TypeHello)
	conn.in <- frametest.Encode(frametest.Frame{Type: frame.TypeWelcome, Gen: 3, Link: hello.Link})
	conn.in <- frametest.Encode(frametest.Frame{Type: frame.TypePulled, N: next(frame.TypePull).N})
	deliver := benchFrames(b)["deliver"].(frame.Deliver)
	deliver.NotAfter = time.Now().Add(time.Hour).UnixMilli()
	b.ReportAllocs()
	for b.Loop() {
		deliver.ID = storage.NewStreamID()
		conn.in <- frame.Encode(deliver)
		f, err := frame.Decode(<-conn.up)
		events, ok := f.(frame.Events)
		if !ok {
			b.Fatalf("%T came, want events: %v", f, err)
		}
		conn.in <- frame.Encode(frame.Ack{Session: events.Session, Seq: events.Seq})
	}
	cancel()
	conn.in <- frametest.Encode(frametest.Frame{Type: frame.TypeByeOK, Link: next(frame.TypeBye).Link})
	commontest.Check(b, <-ended)
}
