package relay_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/relay"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// warnings counts what is logged above Info, by message.
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
func ofVersion(v string, f relay.Frame) []byte {
	return bytes.Replace(relay.Encode(f), []byte(`"v":1`), []byte(`"v":`+v), 1)
}

// fromTheFuture is a frame with header fields that this version does not know.
func fromTheFuture(f relay.Frame) []byte {
	return bytes.Replace(relay.Encode(f), []byte(`{"v":1`), []byte(`{"new":{"v":[2,null]},"v":1,"also-new":"é"`), 1)
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
	}, func(c *relay.RunnerConfig) { c.Log = slog.New(log) })
}

func TestHostRefusesAnotherVersionAndTakesTheNextFrame(t *testing.T) {
	s := newSiege(t)
	hello := relay.Frame{Type: relay.Hello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 2}
	for _, v := range []string{"2", "-1", "99999"} {
		s.gainsNothing("version "+v, ofVersion(v, hello))
		var version *relay.VersionError
		if _, err := s.handle(ofVersion(v, hello)); session.CodeOf(err) != session.Invalid || !errors.As(err, &version) {
			t.Errorf("version %s: %v", v, err)
		}
	}
	if f, err := s.handle(relay.Encode(hello)); err != nil || f.Type != relay.Welcome {
		t.Errorf("answered with %+v, %v", f, err)
	}
}

func TestMessageWithoutAVersionIsNoFrameOfAnother(t *testing.T) {
	for _, data := range []string{`{"message":"Internal server error"}`, `{"v":1}`, `{}`, `{"t":"hello"}`} {
		var version *relay.VersionError
		if _, err := relay.Decode([]byte(data)); session.CodeOf(err) != session.Invalid || errors.As(err, &version) {
			t.Errorf("%s: %v", data, err)
		}
	}
}

func TestRunnerPassesOverFieldsItDoesNotKnow(t *testing.T) {
	onBench(t, func(b *bench) {
		b.connected()
		send := func(f relay.Frame) { b.conn.in <- fromTheFuture(f) }
		send(relay.Frame{Type: relay.Welcome, Gen: benchGen, Link: b.expect(relay.Hello).Link})
		send(relay.Frame{Type: relay.Pulled, N: b.expect(relay.Pull).N})
		send(request("d1", fromInbox))
		send(relay.Frame{Type: relay.Answer, Session: "s1", Question: "q", Payload: []byte("{}")})
		send(relay.Frame{Type: relay.Stop, Session: "s1"})
		equal(t, "box", b.box.told(), []string{"deliver d1", "answer s1 q {}", "stop s1"})
		b.ends("d1", "end")
		f := b.expect(relay.Events)
		send(relay.Frame{Type: relay.Ack, Seq: f.Seq, Session: "s1"})
		b.box.idleFrom(time.Now())
		send(relay.Frame{Type: relay.ByeOK, Link: b.soon(relay.Bye, 3*time.Minute).Link})
		time.Sleep(5 * time.Second)
		if err := b.returned(); err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestRunnerPassesOverTypesItDoesNotKnow(t *testing.T) {
	log := &warnings{n: map[string]int{}}
	onAwakeBench(t, func(b *bench) {
		for _, unknown := range []relay.Type{"from-the-future", "Deliver", "hello", " welcome", relay.Type(strings.Repeat("x", 1000))} {
			b.send(relay.Frame{Type: unknown, ID: "d1", Gen: benchGen, Link: 1, Lens: []int{0, 2}, Payload: []byte("{}")})
		}
		b.nothing()
		b.runs()
		equal(t, "box", b.box.told(), nil)
		if n := log.all(); n > 0 {
			t.Errorf("warnings: %v", log.n)
		}
	}, func(c *relay.RunnerConfig) { c.Log = slog.New(log) })
}

func TestHostPassesOverFieldsItDoesNotKnow(t *testing.T) {
	plain, extended := newSiege(t), newSiege(t)
	script := func(s *siege) []relay.Frame {
		events := s.events("m1", "d1", 1, s.ticket("m1", "d1", hostileBox, hostileGen))
		return []relay.Frame{
			{Type: relay.Hello, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 2},
			{Type: relay.Pull, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", N: 1},
			{Type: relay.Taken, Box: hostileBox, Gen: hostileGen, Tickets: []string{events.Items[0].Ticket}},
			events,
			{Type: relay.Part, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "0.a", Of: 1, Payload: fromTheFuture(events)},
			{Type: relay.Whole, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Frame: "0.a", Of: 1},
			{Type: "new", Box: hostileBox},
			{Type: relay.Bye, Box: hostileBox, Gen: hostileGen, Runner: "runner-m", Link: 2},
		}
	}
	frames := script(plain)
	for i, f := range script(extended) {
		want, err := plain.handle(relay.Encode(frames[i]))
		if err != nil {
			t.Fatalf("%s: %v", f.Type, err)
		}
		got, err := extended.handle(fromTheFuture(f))
		if err != nil {
			t.Errorf("%s: %v", f.Type, err)
		}
		if f.Type == relay.Hello && want.Ticket != "" && got.Ticket != "" {
			want.Ticket, got.Ticket = "", "" // passes are sealed with nonces of their own
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("answer to %s:\n%s", f.Type, diff)
		}
	}
	if b, err := extended.memory.Box(t.Context(), hostileBox); err != nil || b.State != session.Asleep {
		t.Errorf("the box is %q: %v", b.State, err)
	}
}
