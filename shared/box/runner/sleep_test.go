package runner_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func ids(s ...storage.StreamID) []storage.StreamID { return s }

func onParting(t *testing.T, test func(b *bench, bye frametest.Frame)) {
	t.Helper()
	onAwakeBench(t, func(b *bench) {
		b.box.idleFrom(time.Now())
		test(b, b.soon(frame.TypeBye, 3*time.Minute))
	})
}

func TestIdleBoxSaysByeLingersAndReturns(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		since := time.Now()
		b.box.idleFrom(since)
		bye := b.soon(frame.TypeBye, 3*time.Minute)
		if bye.Link != 1 || bye.Gen != benchGen || bye.Runner == "" || bye.Box != benchBox {
			t.Errorf("got %+v, want a bye", bye)
		}
		if idle := time.Since(since); idle < 2*time.Minute || idle > 2*time.Minute+time.Second {
			t.Errorf("said bye after %s", idle)
		}
		b.send(frametest.Frame{Type: frame.TypeByeOK, Link: 1})
		time.Sleep(5*time.Second - time.Millisecond)
		b.runs()
		time.Sleep(time.Millisecond)
		b.returnedWith("")
		b.nothing()
	})
}

// A box whose host needs memory ends an idle process, and sleeps after ten seconds without work.
func TestYieldingBoxSleepsAfterTenSeconds(t *testing.T) {
	yields := 0
	onAwakeBench(t, func(b *bench) {
		b.box.idleFrom(time.Now())
		time.Sleep(time.Second)
		b.send(frametest.Frame{Type: frame.TypeYield})
		time.Sleep(9*time.Second - 50*time.Millisecond)
		b.nothing()
		b.soon(frame.TypeBye, time.Second)
	}, func(c *runner.Config) { c.Yield = func() { yields++ } })
	commontest.EqualIn(t, "it ended idle processes", 1, yields)
}

func TestBoxDoesNotSleepBeforeTheHostHasItsEvents(t *testing.T) {
	for what, says := range map[string]func(*bench){
		"the end of a request":   func(b *bench) { b.deliver("d1", fromInbox); b.ends("d1", "end") },
		"an event of no request": func(b *bench) { b.says(storage.Standalone, "a") },
	} {
		t.Run(what, func(t *testing.T) {
			onAwakeBench(t, func(b *bench) {
				b.box.idleFrom(time.Now())
				says(b)
				for range 100 {
					b.expect(frame.TypeEvents)
					time.Sleep(5 * time.Second)
				}
			}, func(c *runner.Config) { c.PingEvery = time.Hour })
		})
	}
}

func TestDeliverAfterByeIsExecutedOnlyAfterTheWelcome(t *testing.T) {
	onParting(t, func(b *bench, bye frametest.Frame) {
		b.deliver("d1")
		hello := b.expect(frame.TypeHello) // on the same connection
		commontest.EqualIn(t, "hello has link", 2, hello.Link)
		commontest.EqualIn(t, "hello has link", benchGen, hello.Gen)
		b.deliver("d2")
		b.nothing()
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: bye.Link}) // of an old ping
		b.send(frametest.Frame{Type: frame.TypeByeOK, Link: bye.Link})                  // overtaken
		equal(t, "executed before", b.box.told(), nil)
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: 2})
		equal(t, "executed after", b.box.told(), []string{"deliver d1", "deliver d2"})
		time.Sleep(time.Second)
		b.expect(frame.TypeTaken)
		b.runs()
	})
}

func TestNudgeAfterByeIsFollowedByAPull(t *testing.T) {
	onParting(t, func(b *bench, _ frametest.Frame) {
		b.send(frametest.Frame{Type: frame.TypeNudge})
		b.welcome(b.expect(frame.TypeHello), benchGen)
		b.expect(frame.TypePull)
	})
}

func TestByeThatWasCutOffIsSaidOnTheNextConnection(t *testing.T) {
	onParting(t, func(b *bench, _ frametest.Frame) {
		b.conn.cut()
		b.welcome(b.dialed(), benchGen)
		b.soon(frame.TypeBye, 30*time.Second)
	})
}

// A draining runner has too little time left for a new call, which may take a minute.
func TestADrainingRunnerBeginsNoCallAndGivesItBack(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
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
		b.deliver("claimed", fromInbox)
		b.send(frametest.Frame{Type: frame.TypeNudge})
		b.nothing()
		equal(t, "executed", b.box.told(), []string{"deliver before"})
		b.box.idleFrom(time.Now())
		b.finishes("before")
		b.soon(frame.TypeBye, time.Second)
		b.deliver("later")
		b.nothing()
	}, func(c *runner.Config) {
		c.PingEvery, c.Longest, c.Deadline = time.Hour, time.Minute, time.Now().Add(6*time.Minute+20*time.Second)
	})
}

func TestHaltOfASessionReachesTheBoxAndOneOfAllHasItSleepSoon(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.box.idleFrom(time.Now())
		b.send(frametest.Frame{Type: frame.TypeHalt, Session: "s1", By: "ada", In: 30_000, Keep: true})
		commontest.SameIn(t, "the box was told", []string{"halt s1 ada 30s true"}, b.box.told())
		b.pass(time.Minute)
		b.send(frametest.Frame{Type: frame.TypeHalt, By: "ada"})
		commontest.SameIn(t, "the box was told", []string{"halt  ada 0s false"}, b.box.told())
		b.soon(frame.TypeBye, 2*time.Second)
	})
}

// onRetiring runs a test with a runner that has one call in flight and is then told to
// retire. Config.Retire ends Run's ctx, as it does in a real box.
func onRetiring(t *testing.T, test func(b *bench)) {
	t.Helper()
	var b *bench
	onAwakeBench(t, func(started *bench) {
		b = started
		b.deliver("d1")
		b.send(frametest.Frame{Type: frame.TypeDrain})
		synctest.Wait()
		hello := b.dialed()
		commontest.EqualIn(t, "a hello names the definition", "one", hello.Digest)
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: hello.Link, Retire: true})
		synctest.Wait()
		test(b)
	}, func(c *runner.Config) {
		c.Digest, c.Retire = "one", func() { b.cancel(errors.New("retired")) }
	})
}

func (b *bench) leaves() {
	b.t.Helper()
	b.box.idleFrom(time.Now())
	bye := b.soon(frame.TypeBye, time.Second)
	b.send(frametest.Frame{Type: frame.TypeByeOK, Link: bye.Link})
	b.returnedWith("")
}

func TestRetiringRunnerFinishesItsCallAndLeavesNewOnesToItsSuccessor(t *testing.T) {
	onRetiring(t, func(b *bench) {
		b.deliver("d2")
		b.send(frametest.Frame{Type: frame.TypeNudge})
		b.finishes("d1")
		b.leaves()
		equal(b.t, "executed", b.box.told(), []string{"deliver d1"})
	})
}

// A call of minutes must not keep all other clients of the server waiting.
func TestRetiringRunnerWithALongCallExecutesNewOnesAfterAWhile(t *testing.T) {
	onRetiring(t, func(b *bench) {
		b.soon(frame.TypeTaken, 2*time.Second)
		time.Sleep(5 * time.Second)
		b.emptyInbox()
		b.deliver("d2")
		b.runs()
		b.finishes("d2")
		b.runs()
		b.finishes("d1")
		b.leaves()
		equal(b.t, "executed", b.box.told(), []string{"deliver d1", "deliver d2"})
	})
}
