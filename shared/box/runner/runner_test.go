package runner_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestCutIsFollowedByTheNextLinkWithTheOpenQuestions(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.box.asks("s1", "q-1", "q-2")
		b.conn.cut()
		time.Sleep(time.Second)
		b.connected()
		hello := b.expect(frame.TypeHello)
		commontest.EqualIn(t, "hello has link", 2, hello.Link)
		commontest.EqualIn(t, "hello has link", benchGen, hello.Gen)
		commontest.Same(t, map[storage.ID][]string{"s1": {"q-1", "q-2"}}, hello.Questions)
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: 2})
		b.nothing() // the generation is the same: no pull
	})
}

func TestHelloDoesNotWaitForABoxThatIsBlocked(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.box.block = make(chan struct{})
		defer close(b.box.block)
		b.deliver("d1")
		b.conn.cut()
		time.Sleep(time.Second)
		b.connected()
		b.nothing()
		time.Sleep(time.Second)
		b.expect(frame.TypeHello)
	})
}

func TestPingIsAHelloWithTheSameLinkAndNeedsAnAnswer(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		for range 3 {
			time.Sleep(5*time.Minute - time.Second)
			b.nothing()
			time.Sleep(time.Second)
			if ping := b.expect(frame.TypeHello); ping.Link != 1 || ping.Token != "" {
				t.Errorf("ping has link %d and token %q", ping.Link, ping.Token)
			}
			b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: 1})
			b.nothing()
		}
		time.Sleep(5 * time.Minute)
		silent := b.conn
		for range 3 {
			commontest.EqualIn(t, "hello has link", 1, b.expect(frame.TypeHello).Link)
			b.nothing()
			time.Sleep(5 * time.Second)
		}
		commontest.EqualIn(t, "the silent connection is closed", true, silent.isClosed())
		time.Sleep(time.Second)
		b.connected()
		commontest.EqualIn(t, "hello has link", 2, b.expect(frame.TypeHello).Link)
	})
}

func TestRenewalMakesBeforeItBreaks(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		old := b.conn
		b.pass(110*time.Minute - time.Second)
		b.deliver("d1", fromInbox)
		time.Sleep(time.Second)
		b.connected()
		if hello := b.expect(frame.TypeHello); hello.Link != 2 || b.conn == old {
			t.Fatalf("hello has link %d", hello.Link)
		}
		// The runner sends on the old connection until the welcome, and on the new one
		// after it. It reads both.
		b.says("d1", "progress")
		if f, _ := b.received(); f.Type != frame.TypeEvents || f.conn != old {
			t.Errorf("%s before the welcome came elsewhere", f.Type)
		}
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: 2})
		events := b.expect(frame.TypeEvents) // not acked yet, so they come again on the new connection
		old.send(request("d2", fromInbox))
		equal(t, "executed", b.box.told(), []string{"deliver d1", "deliver d2"})
		old.send(frametest.Frame{Type: frame.TypeAck, Seq: events.Seq, Session: "s1"})
		b.ends("d1", "end")
		b.expect(frame.TypeEvents)
		time.Sleep(4 * time.Second)
		commontest.EqualIn(t, "the old connection was closed at once", false, old.isClosed())
		time.Sleep(time.Second)
		if !old.isClosed() || b.conn.isClosed() {
			t.Error("the old connection is open, or the new one closed")
		}
		b.runs()
	}, func(c *runner.Config) { c.PingEvery = 7 * time.Minute })
}

func TestRenewalThatFailsIsTriedAgainAndTellsTheHost(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		old := b.conn
		b.pass(110*time.Minute - time.Second)
		b.dialed()
		b.conn.cut()
		// The host may take the dead connection for the newest: a newer hello corrects that.
		b.conn = old
		hello := b.expect(frame.TypeHello)
		commontest.EqualIn(t, "hello on the old connection has link", 3, hello.Link)
		b.welcome(hello, benchGen)
		commontest.EqualIn(t, "hello has link", 4, b.dialed().Link)
	}, func(c *runner.Config) { c.PingEvery = 7 * time.Minute })
}

func TestFencedStopsAtOnceAndSendsNothingMore(t *testing.T) {
	for name, fence := range map[string]func(b *bench){
		"a frame": func(b *bench) { b.send(frametest.Frame{Type: frame.TypeFenced, Link: 1}) },
		"an ack": func(b *bench) {
			b.says(storage.Standalone, "a")
			b.ack(b.expect(frame.TypeEvents), func(f *frametest.Frame) { f.Fenced = true })
		},
		"a close code": func(b *bench) {
			b.wire.set(nil, closedWith(runner.CloseFenced))
			b.conn.cut()
		},
		"after a bye": func(b *bench) {
			b.finishes("d1")
			b.box.idleFrom(time.Now())
			b.send(frametest.Frame{Type: frame.TypeFenced, Link: b.soon(frame.TypeBye, 3*time.Minute).Link})
		},
	} {
		t.Run(name, func(t *testing.T) {
			onAwakeBench(t, func(b *bench) {
				b.deliver("d1")
				fence(b)
				b.returnedWith(storage.Fenced)
				b.ends("d1", "end")
				b.nothing()
				commontest.EqualIn(t, "the connection is closed", true, b.conn.isClosed())
			})
		})
	}
}

// One event may start two runners. The second one gets a fence in place of its launch,
// and its Run returns at once.
func TestAnInvitedRunnerThatIsRefusedEndsAtOnce(t *testing.T) {
	onBench(t, func(b *bench) {
		b.dialed()
		b.send(frametest.Frame{Type: frame.TypeFenced, Link: 1})
		b.returnedWith(storage.Fenced)
		b.nothing()
	}, func(c *runner.Config) {
		c.Executor = nil
		c.Begin = func(map[string]string) (runner.Started, error) {
			t.Error("a runner that was refused begins")
			return runner.Started{}, nil
		}
	})
}

func TestHostThatCannotBeReachedEndsTheRunner(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.wire.set(errDown, nil)
		b.conn.cut()
		time.Sleep(2*time.Minute - time.Second)
		b.runs()
		time.Sleep(time.Second)
		if err := b.returned(); !errors.Is(err, storage.Unavailable) || !errors.Is(err, errDown) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestHandshakeIsSentOnTheNextConnectionOtherStatusIsNot(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.conn.cut()
		b.runner.Status(frame.Status{Session: "s1", Process: "p1", Phase: "runtime"})
		b.runner.Status(frame.Status{Session: "s1", Ticket: "t1", Process: "p1", Detail: "2025-11-25", Payload: []byte(`{"a":1}`)})
		b.welcome(b.dialed(), benchGen)
		commontest.Same(t, frametest.Frame{
			V: frame.Version, Type: frame.TypeStatus, Box: benchBox, Gen: benchGen,
			Session: "s1", Ticket: "t1", Process: "p1", Detail: "2025-11-25", Payload: []byte(`{"a":1}`),
		}, b.expect(frame.TypeStatus))
		b.nothing()
	})
}

func TestStoppedRunnerLetsItsBoxFinishThenSaysBye(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("d1")
		b.cancel(errors.New("SIGTERM"))
		synctest.Wait()
		b.deliver("d2")
		equal(t, "executed", b.box.told(), []string{"deliver d1"})
		b.box.idleFrom(time.Now())
		b.finishes("d1")
		time.Sleep(100 * time.Millisecond)
		bye := b.expect(frame.TypeBye)
		b.send(frametest.Frame{Type: frame.TypeByeOK, Link: bye.Link})
		b.returnedWith("")
	})
}

func TestARunnerConnectsWithTheNewestPass(t *testing.T) {
	var passes []string
	onBench(t, func(b *bench) {
		b.connected()
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: b.expect(frame.TypeHello).Link, Ticket: "second"})
		b.emptyInbox()
		b.conn.cut()
		b.welcome(b.dialed(), benchGen) // of a host that gives none
		b.conn.cut()
		b.dialed()
		commontest.SameIn(t, "connected", []string{"first", "second", "second"}, passes)
	}, func(c *runner.Config) {
		c.Pass = "first"
		dial := c.Dial
		c.Dial = func(ctx context.Context, url string, header http.Header) (runner.Conn, error) {
			passes = append(passes, header.Get("Dormouse-Pass"))
			return dial(ctx, url, header)
		}
	})
}

func TestRunnerPassesOverWhatItDoesNotKnow(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.conn.in <- frametest.EncodeAs("2", request("d1", fromInbox))
		b.conn.in <- []byte(`{"message": "Internal server error", "connectionId":"c", "requestId":"r"}`) // of API Gateway
		b.send(frametest.Frame{Type: "from-the-future", ID: "d1", Gen: benchGen, Link: 1})
		equal(t, "box", b.box.told(), nil)
		more := func(f frametest.Frame) { b.conn.in <- frametest.EncodeWithMore(f) }
		more(request("d1", fromInbox))
		more(frametest.Frame{Type: frame.TypeAnswer, Session: "s1", Question: "q", Payload: []byte("{}")})
		more(frametest.Frame{Type: frame.TypeStop, Session: "s1"})
		equal(t, "box", b.box.told(), []string{"deliver d1", "answer s1 q {}", "stop s1"})
		b.ends("d1", "end")
		more(frametest.Frame{Type: frame.TypeAck, Seq: b.expect(frame.TypeEvents).Seq, Session: "s1"})
		b.box.idleFrom(time.Now())
		b.soon(frame.TypeBye, 3*time.Minute)
	})
}
