package runner_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
)

// warnsTo writes the log lines above Info to lines.
func warnsTo(lines *commontest.Lines) func(*runner.Config) {
	return func(c *runner.Config) {
		c.Log = slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelInfo + 1}))
	}
}

func TestRunnerRefusesAnotherVersionAndSaysSoOnceAConnection(t *testing.T) {
	var log commontest.Lines
	onAwakeBench(t, func(b *bench) {
		for _, v := range []string{"2", "-1", "99999"} {
			for range 3 {
				b.conn.in <- frametest.EncodeAs(v, request("d1", fromInbox))
			}
		}
		equal(t, "executed", b.box.told(), nil)
		commontest.EqualIn(t, "warnings", 1, strings.Count(log.Take(), "\n"))
		commontest.EqualIn(t, "the connection was closed", false, b.conn.isClosed())
		b.deliver("d1", fromInbox)
		equal(t, "executed", b.box.told(), []string{"deliver d1"})
		b.conn.cut()
		b.welcome(b.dialed(), benchGen)
		log.Take() // of the cut
		b.conn.in <- frametest.EncodeAs("2", request("d2"))
		b.conn.in <- frametest.EncodeAs("2", request("d2"))
		b.runs()
		commontest.EqualIn(t, "warnings on the next connection", 1, strings.Count(log.Take(), "\n"))
	}, warnsTo(&log))
}

func TestRunnerPassesOverFieldsItDoesNotKnow(t *testing.T) {
	onBench(t, func(b *bench) {
		b.connected()
		send := func(f frametest.Frame) { b.conn.in <- frametest.EncodeWithMore(f) }
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
		b.returnedWith("")
	})
}

func TestRunnerPassesOverTypesItDoesNotKnow(t *testing.T) {
	var log commontest.Lines
	onAwakeBench(t, func(b *bench) {
		for _, unknown := range []frame.Type{"from-the-future", "Deliver", "hello", " welcome", frame.Type(strings.Repeat("x", 1000))} {
			b.send(frametest.Frame{Type: unknown, ID: "d1", Gen: benchGen, Link: 1, Lens: []int{0, 2}, Payload: []byte("{}")})
		}
		b.conn.in <- nil
		b.nothing()
		b.runs()
		equal(t, "box", b.box.told(), nil)
		commontest.EqualIn(t, "warnings", "", log.Take())
		b.conn.in <- []byte(`{"message": "Internal server error", "connectionId":"c", "requestId":"r"}`) // of API Gateway
		b.runs()
		if log.Take() == "" || b.conn.isClosed() {
			t.Error("of a message that is no frame the runner says nothing, or it closed the connection")
		}
	}, warnsTo(&log))
}
