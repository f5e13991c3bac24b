package runner_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
)

// drainsAfter makes a runner drain after this time of its life. Its messages may take
// a minute.
func drainsAfter(d time.Duration) func(*runner.Config) {
	return func(c *runner.Config) {
		c.PingEvery, c.Longest, c.Deadline = time.Hour, time.Minute, time.Now().Add(d+time.Minute+20*time.Second)
	}
}

// A draining runner has too little time left for a new call, which may take a minute.
func TestADrainingRunnerBeginsNoCallAndGivesItBack(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("long", fromInbox)
		time.Sleep(5*time.Minute - time.Second)
		b.deliver("before", fromInbox)
		time.Sleep(2 * time.Second)
		b.deliver("after")
		back := b.expect(frame.TypeReturn)
		if back.Ticket != "ticket-after" || back.Gen != benchGen || back.Box != benchBox || back.NotAfter == 0 ||
			string(back.Payload) != `{"jsonrpc":"2.0","id":1,"method":"ping"}` {
			t.Errorf("got %+v back", back)
		}
		b.deliver("after") // the return was lost
		b.expect(frame.TypeReturn)
		b.deliver("note", func(f *frametest.Frame) { f.AckWithin = 0 })
		b.deliver("claimed", fromInbox)
		b.send(frametest.Frame{Type: frame.TypeNudge})
		b.nothing()
		equal(t, "executed", b.box.told(), []string{"deliver long", "deliver before"})
		b.finishes("before")
		b.runs()
		b.ends("long", "end")
		b.box.idleFrom(time.Now())
		b.ack(b.expect(frame.TypeEvents))
		b.soon(frame.TypeBye, time.Second)
		b.deliver("later")
		b.nothing()
	}, drainsAfter(5*time.Minute))
}

// A runner that lives for 90 s would drain after 10 s. It drains after half of its life
// instead, so that it does some work.
func TestARunnerWithTooShortALifeDrainsAfterHalfOfIt(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		time.Sleep(40 * time.Second)
		b.deliver("first", fromInbox)
		time.Sleep(10 * time.Second)
		b.deliver("second")
		b.expect(frame.TypeReturn)
		equal(t, "executed", b.box.told(), []string{"deliver first"})
	}, drainsAfter(10*time.Second))
}
