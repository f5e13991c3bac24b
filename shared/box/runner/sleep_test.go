package runner_test

import (
	"testing"
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

// onLingering is onParting with a bye that the host has taken.
func onLingering(t *testing.T, test func(b *bench)) {
	t.Helper()
	onParting(t, func(b *bench, bye frametest.Frame) {
		b.send(frametest.Frame{Type: frame.TypeByeOK, Link: bye.Link})
		test(b)
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

// A box whose host needs memory ends an idle process and sleeps after ten seconds without work, not
// before, and not any more once it has got work.
func TestYieldingBoxSleepsAfterTenSeconds(t *testing.T) {
	yields := 0
	counted := func(c *runner.Config) { c.Yield = func() { yields++ } }
	onAwakeBench(t, func(b *bench) {
		b.box.idleFrom(time.Now())
		time.Sleep(time.Second)
		b.send(frametest.Frame{Type: frame.TypeYield})
		time.Sleep(9*time.Second - 50*time.Millisecond)
		b.nothing()
		b.soon(frame.TypeBye, time.Second)
	}, counted)
	onAwakeBench(t, func(b *bench) {
		b.send(frametest.Frame{Type: frame.TypeYield})
		b.deliver("d1")
		b.finishes("d1")
		since := time.Now()
		b.box.idleFrom(since)
		b.soon(frame.TypeBye, 3*time.Minute)
		if idle := time.Since(since); idle < 2*time.Minute {
			t.Errorf("said bye %s after its last work", idle)
		}
	}, counted)
	commontest.EqualIn(t, "it ended idle processes", 2, yields)
}

func TestByeIsRepeatedUntilItIsTaken(t *testing.T) {
	onParting(t, func(b *bench, bye frametest.Frame) {
		time.Sleep(2 * time.Second)
		again := b.expect(frame.TypeBye)
		commontest.EqualIn(t, "bye again has link", bye.Link, again.Link)
		commontest.EqualIn(t, "bye again has link", bye.Gen, again.Gen)
		b.send(frametest.Frame{Type: frame.TypeByeOK, Link: 1})
		time.Sleep(4 * time.Second)
		b.nothing()
	})
}

func TestBusyRunnerSaysNoBye(t *testing.T) {
	t.Run("box not idle", func(t *testing.T) {
		onAwakeBench(t, func(b *bench) { b.pass(time.Hour) })
	})
	t.Run("request in flight", func(t *testing.T) {
		onAwakeBench(t, func(b *bench) {
			b.deliver("d1", fromInbox)
			b.box.idleFrom(time.Now())
			b.pass(time.Hour)
		})
	})
	t.Run("batch not acked", func(t *testing.T) {
		onAwakeBench(t, func(b *bench) {
			b.box.idleFrom(time.Now())
			b.deliver("d1", fromInbox)
			b.ends("d1", "end")
			for range 100 {
				b.expect(frame.TypeEvents)
				time.Sleep(5 * time.Second)
			}
		}, func(c *runner.Config) { c.PingEvery = time.Hour })
	})
	t.Run("pull open", func(t *testing.T) {
		onAwakeBench(t, func(b *bench) {
			b.box.idleFrom(time.Now())
			b.send(frametest.Frame{Type: frame.TypeNudge})
			for range 100 {
				b.expect(frame.TypePull)
				time.Sleep(2 * time.Second)
			}
		})
	})
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

func TestNudgeAfterByeSaysHelloAgainAndPulls(t *testing.T) {
	for name, gen := range map[string]storage.Generation{"bye not taken": benchGen, "bye taken": benchGen + 1} {
		t.Run(name, func(t *testing.T) {
			onParting(t, func(b *bench, _ frametest.Frame) {
				b.send(frametest.Frame{Type: frame.TypeNudge})
				commontest.EqualIn(t, "hello has link", 2, b.expect(frame.TypeHello).Link)
				b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: gen, Link: 2})
				commontest.EqualIn(t, "pull has generation", gen, b.expect(frame.TypePull).Gen)
			})
		})
	}
}

func TestCutAfterByeSaysHelloOnTheNextConnection(t *testing.T) {
	onParting(t, func(b *bench, _ frametest.Frame) {
		b.conn.cut()
		hello := b.dialed()
		commontest.EqualIn(t, "hello has link", 2, hello.Link)
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen + 1, Link: 2})
		b.emptyInbox()
		if bye := b.soon(frame.TypeBye, 30*time.Second); bye.Gen != benchGen+1 || bye.Link != 2 {
			t.Errorf("bye has link %d, generation %d", bye.Link, bye.Gen)
		}
	})
}

func TestCutWhileLingeringIsTheEnd(t *testing.T) {
	onLingering(t, func(b *bench) {
		b.conn.cut()
		time.Sleep(5 * time.Second)
		b.returnedWith("")
	})
}

func TestOutputAfterByeWaitsForTheNextWelcome(t *testing.T) {
	onLingering(t, func(b *bench) {
		b.says(storage.Standalone, "late")
		b.nothing()
		b.deliver("d1")
		b.expect(frame.TypeHello)
		b.nothing()
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen + 1, Link: 2})
		b.emptyInbox()
		if f := b.expect(frame.TypeEvents); f.Gen != benchGen+1 || batchOf(f) != "@0 late" {
			t.Errorf("generation %d: %s", f.Gen, batchOf(f))
		}
	})
}
