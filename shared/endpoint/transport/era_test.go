package transport_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// olderVersions are the values of the version header of clients that do not poll; "" is none.
var olderVersions = []string{"", wire.V20241105, wire.V20250326, wire.V20250618}

// eraStreams plays every response with an event stream, as a client of a version gets it. The
// key says whether the response ends before its stream does, or is complete.
func eraStreams(t *testing.T, version string, look func(name string, early bool, a *answer)) {
	t.Helper()
	slow := func(w *world) { // no plain JSON
		w.backend.tool("slow", func(r run) { time.Sleep(3 * time.Second); r.end(`{"content":[]}`) })
		w.backend.tool("chatty", func(r run) { r.say("one"); r.end(`{"content":[]}`) })
		w.backend.tool("long", func(r run) { r.say("one"); time.Sleep(time.Minute); r.end(`{"content":[]}`) })
		w.backend.tool("closes", func(r run) {
			r.say("one")
			r.pause("", 5*time.Second)
			time.Sleep(20 * time.Second)
			r.end(`{"content":[]}`)
		})
	}
	polls := version == wire.V20251125
	bubble(t, func(t *testing.T, w *world) {
		slow(w)
		c := w.visit("pushy")
		c.version = version
		look("a slow call", false, c.call("slow"))
		look("a call that says something", false, c.call("chatty"))
		first := c.call("long")
		look("a long call", polls, first)
		look("a long call, resumed after its first event", polls, c.get(firstMessage(t, first)))
		look("a call whose stream the server closes", polls, c.call("closes"))
		look("the standalone stream", true, c.get(""))
		c.push("news")
		look("the standalone stream with an event", true, c.get(""))
		w.down("Wait")
		look("a poll in trouble", true, c.get(firstMessage(t, first)))
		w.down()
		w.outside(storage.ID(c.session)).pause("", 5*time.Second)
		look("the standalone stream that the server closes", true, c.get(""))
	})
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		slow(w)
		c := w.openGroup()
		c.version = version
		look("/mcp: the standalone stream of nobody", true, c.get(""))
		look("/mcp: a slow call", false, c.call("s0__slow"))
		first := c.call("s0__long")
		look("/mcp: a long call", polls, first)
		look("/mcp: a long call, resumed", polls, c.get(firstMessage(t, first)))
		look("/mcp: the standalone stream", true, c.get(""))
	})
}

func firstMessage(t *testing.T, a *answer) string {
	t.Helper()
	for _, e := range a.events(t) {
		if len(e.Data) > 0 {
			return e.ID
		}
	}
	t.Fatalf("no message in %s", a.body)
	return ""
}

// Java's clients up to 1.1 fail at a retry. Java's up to 0.17 and Go's up to 1.2 read an
// empty data line as JSON; Go's then closes its session. See java-sdk#1047, go-sdk#768. Such a
// client would not come back to a call, so its response stays open.
func TestP1AnOlderClientGetsMessagesOnly(t *testing.T) {
	for _, version := range olderVersions {
		t.Run(version, func(t *testing.T) {
			eraStreams(t, version, func(name string, early bool, a *answer) {
				for _, e := range a.events(t) {
					if len(e.Data) == 0 || e.Retry != 0 {
						t.Errorf("%s: got an event that has no message, or a retry:\n%s", name, a.body)
					}
				}
				if a.body == "" {
					t.Errorf("%s: nothing was sent; some gateways hold such a response", name)
				}
				if !early && !strings.Contains(a.body, `"result":`) {
					t.Errorf("%s: the response has ended without the answer:\n%s", name, a.body)
				}
			})
		})
	}
}

// P1: each begins with an id and empty data.
func TestP6RetryComesOnlyInTheEventThatEndsAResponseEarly(t *testing.T) {
	eraStreams(t, wire.V20251125, func(name string, early bool, a *answer) {
		events := a.events(t)
		last := events[len(events)-1]
		if !isPriming(events[0]) && !sendsAway(events[0]) {
			t.Errorf("%s: begins with %+v", name, events[0])
		}
		for _, e := range events[:len(events)-1] {
			commontest.EqualIn(t, name+", a retry before the end", 0, e.Retry)
		}
		for _, e := range events { // some clients fail on an event named ping, some drop a message without a name
			if (e.Name == "message") != (len(e.Data) > 0) || e.Name != "" && e.Name != "message" {
				t.Errorf("%s: an event with the wrong name: %+v", name, e)
			}
		}
		commontest.EqualIn(t, name+", ends early", early, last.Retry > 0 && len(last.Data) == 0)
	})
}

// A client whose version has no polling does not come back when a response ends in good
// order. If it comes back, the response is held until the answer. A call may take longer than a
// response is held, such as while a human thinks: each response leaves the client an id to come
// back with, and no event without a message if it has one.
func TestOlderClientThatComesBackIsHeldUntilTheAnswer(t *testing.T) {
	for _, version := range olderVersions {
		bubble(t, func(t *testing.T, w *world) {
			w.backend.tool("long", func(r run) { r.say("one"); time.Sleep(40 * time.Minute); r.end(`{"content":[]}`) })
			c := w.visit("quiet")
			c.version = version
			begun := time.Now()
			a := c.call("long")
			commontest.EqualIn(t, "events of the first response, which has an id to come back with", 1, len(a.events(t)))
			for tries := 0; !strings.Contains(a.body, `"result"`); tries++ {
				events := a.events(t)
				last := events[len(events)-1]
				if tries == 4 || last.ID == "" || last.Retry != 0 {
					t.Fatalf("version %q: after %d responses got %s", version, tries, a.body)
				}
				a = c.get(last.ID)
			}
			commontest.EqualIn(t, "the answer came after", 40*time.Minute, time.Since(begun))
		})
	}
}
