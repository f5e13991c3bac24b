package runner_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/relay/frametest"
	"github.com/dormouse-mcp/dormouse/shared/relay/runner"
)

// warnings counts the log lines above Info, by message.
type warnings struct {
	slog.Handler
	mu sync.Mutex
	n  map[string]int
}

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Level > slog.LevelInfo {
		w.n[r.Message]++
	}
	return nil
}

func (w *warnings) Enabled(context.Context, slog.Level) bool { return true }

func (w *warnings) all() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, count := range w.n {
		n += count
	}
	return n
}

// ofVersion is a frame as another version might write it.
func ofVersion(v string, f frametest.Frame) []byte {
	return bytes.Replace(frametest.Encode(f), []byte(`"v":1`), []byte(`"v":`+v), 1)
}

// fromTheFuture is a frame with header fields that this version does not know.
func fromTheFuture(f frametest.Frame) []byte {
	return bytes.Replace(frametest.Encode(f), []byte(`{"v":1`), []byte(`{"new":{"v":[2,null]},"v":1,"also-new":"é"`), 1)
}

func TestRunnerRefusesAnotherVersionAndSaysSoOnceAConnection(t *testing.T) {
	log := &warnings{n: map[string]int{}}
	onAwakeBench(t, func(b *bench) {
		for _, v := range []string{"2", "-1", "99999"} {
			for range 3 {
				b.conn.in <- ofVersion(v, request("d1", fromInbox))
			}
		}
		equal(t, "executed", b.box.told(), nil)
		if n := log.all(); n != 1 {
			t.Errorf("%d warnings: %v", n, log.n)
		}
		if b.conn.isClosed() {
			t.Error("the connection was closed")
		}
		b.deliver("d1", fromInbox)
		equal(t, "executed", b.box.told(), []string{"deliver d1"})
		b.conn.cut()
		b.welcome(b.reconnected(), benchGen)
		before := log.all()
		b.conn.in <- ofVersion("2", request("d2"))
		b.conn.in <- ofVersion("2", request("d2"))
		b.runs()
		if n := log.all() - before; n != 1 {
			t.Errorf("%d warnings on the next connection", n)
		}
	}, func(c *runner.Config) { c.Log = slog.New(log) })
}

func TestRunnerPassesOverFieldsItDoesNotKnow(t *testing.T) {
	onBench(t, func(b *bench) {
		b.connected()
		send := func(f frametest.Frame) { b.conn.in <- fromTheFuture(f) }
		send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: b.expect(frame.TypeHello).Link})
		send(frametest.Frame{Type: frame.TypePulled, N: b.expect(frame.TypePull).N})
		send(request("d1", fromInbox))
		send(frametest.Frame{Type: frame.TypeAnswer, Session: "s1", Question: "q", Payload: []byte("{}")})
		send(frametest.Frame{Type: frame.TypeStop, Session: "s1"})
		equal(t, "box", b.box.told(), []string{"deliver d1", "answer s1 q {}", "stop s1"})
		b.ends("d1", "end")
		f := b.expect(frame.TypeEvents)
		send(frametest.Frame{Type: frame.TypeAck, Seq: f.Seq, Session: "s1"})
		b.box.idleFrom(time.Now())
		send(frametest.Frame{Type: frame.TypeByeOK, Link: b.soon(frame.TypeBye, 3*time.Minute).Link})
		time.Sleep(5 * time.Second)
		if err := b.returned(); err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestRunnerPassesOverTypesItDoesNotKnow(t *testing.T) {
	log := &warnings{n: map[string]int{}}
	onAwakeBench(t, func(b *bench) {
		for _, unknown := range []frame.Type{"from-the-future", "Deliver", "hello", " welcome", frame.Type(strings.Repeat("x", 1000))} {
			b.send(frametest.Frame{Type: unknown, ID: "d1", Gen: benchGen, Link: 1, Lens: []int{0, 2}, Payload: []byte("{}")})
		}
		b.nothing()
		b.runs()
		equal(t, "box", b.box.told(), nil)
		if n := log.all(); n > 0 {
			t.Errorf("warnings: %v", log.n)
		}
	}, func(c *runner.Config) { c.Log = slog.New(log) })
}
