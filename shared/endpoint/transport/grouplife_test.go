package transport_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// A session at the address of several servers lives as long as it is used: a client may list
// once and then only call, or call a server for the first time after days.
func TestASessionOfAGroupLivesAsLongAsItIsUsed(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		c := w.greet("/mcp") // it never says that it is initialized
		for i, body := range []string{list, callOf("s0__echo"), callOf("s0__echo"), callOf("s1__echo"), callOf("s1__echo"), list, list, callOf("s2__echo")} {
			c.post(body).is(t, fmt.Sprint("request ", i), http.StatusOK, 0)
			time.Sleep(5 * 24 * time.Hour)
		}
	})
}

// A group's session that its client or an operator has ended is over at every member.
func TestEndOfAGroupsSessionEndsThoseOfItsServers(t *testing.T) {
	for by, end := range map[string]func(w *world, c *client){
		"client": func(w *world, c *client) { c.del().is(w.t, "DELETE", http.StatusNoContent, 0) },
		"operator": func(w *world, c *client) {
			commontest.OK(w.t, sessions.New(w.store, w.backend, w.limits).Terminate(w.t.Context(), storage.ID(c.session)))
		},
	} {
		grouped(t, 2, nil, func(t *testing.T, w *world) {
			c := w.openGroup()
			c.call("s1__echo").is(t, "a call", http.StatusOK, 0)
			stream := c.listen("")
			time.Sleep(time.Second)
			end(w, c)
			if a := stream.end(); a.took > 20*time.Second {
				t.Errorf("%s: the stream was open for %s", by, a.took)
			}
			for _, tool := range []string{"s1__echo", "s0__echo"} {
				c.call(tool).is(t, by+", "+tool, http.StatusNotFound, 0)
			}
			s, _, err := w.store.Load(t.Context(), sessions.MemberID(storage.ID(c.session), "s1"), "")
			if by == "client" && (err != nil || s.State != storage.Ended) {
				t.Errorf("the server's session is %s, %v", s.State, err)
			}
		})
	}
}

// A place in a stream, and an answer, name a server of the group, or are refused. A server whose
// session has ended hides no other.
func TestOnlyServersOfTheGroupAreReached(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		c.get("s9~1/"+string(storage.NewStreamID())).is(t, "a stream of no server of the group", http.StatusForbidden, 0)
		c.get("s0~x").is(t, "no place", http.StatusBadRequest, 0)
		c.post(`{"jsonrpc":"2.0","id":"s9~q-1","result":{}}`).is(t, "an answer to no server of the group", http.StatusForbidden, 0)
		stream := c.listen("")
		c.call("s0__echo")
		commontest.OK(t, sessions.New(w.store, w.backend, w.limits).Terminate(t.Context(), sessions.MemberID(storage.ID(c.session), "s0")))
		c.call("s1__echo")
		w.outside(sessions.MemberID(storage.ID(c.session), "s1")).say("of s1")
		commontest.SameIn(t, "the stream has", []string{said("of s1")}, stream.leave().datas(t))
		c.get("s0~1/"+string(storage.NewStreamID())).is(t, "a stream of a server whose session has ended", http.StatusOK, 0)
	})
}

func TestPollOfAGroupIsToldToComeBackWhenTheStoreIsDown(t *testing.T) { // P3
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		c.call("s0__echo")
		last := c.get("").lastID(t)
		for _, methods := range [][]string{{"Load"}, {"Save"}, {"Wait"}} {
			w.down(methods...)
			a := c.get(last)
			events := a.events(t)
			if end := events[len(events)-1]; end.Retry == 0 || !strings.HasPrefix(end.ID, "s0~") {
				t.Errorf("%s is down: the client gets %+v", methods, end)
			}
			last = a.lastID(t)
			w.down()
		}
		if got := c.get(last).events(t); !strings.HasPrefix(got[0].ID, "s0~") {
			t.Errorf("afterwards it gets %+v", got)
		}
	})
}

// A client that comes back gets nothing twice of a server whose session was ended.
func TestTheEndOfAServersSessionLosesNoPlaceOverSSE(t *testing.T) {
	for by, back := range map[string]func(c *sseClient, a *answer){
		"event id": func(c *sseClient, a *answer) { c.follow("", lastEventIs, a.lastID(c.w.t)) },
		"session":  func(c *sseClient, _ *answer) { c.follow("?sessionId=" + c.session) },
	} {
		grouped(t, 2, nil, func(t *testing.T, w *world) {
			c := w.openSSE("", "").open()
			for range 2 {
				c.accepted(callOf("s0__echo")) // the second one opens the session again before the stream hears of its end
				time.Sleep(time.Minute)
				c.accepted(callOf("s0__echo"))
				commontest.OK(t, sessions.New(w.store, w.backend, w.limits).Terminate(t.Context(), sessions.MemberID(storage.ID(c.session), "s0")))
			}
			time.Sleep(time.Minute)
			commontest.EqualIn(t, by+": answers at once, with that to initialize", 5, len(messagesOf(t, c.read())))
			answers := 0
			for _, call := range []string{callOf("s1__echo"), callOf("s0__echo")} {
				c.accepted(call)
				a := c.gone()
				c.accepted(callOf("s0__echo")) // which no stream is there to hear
				back(c, a)
				answers += len(messagesOf(t, a))
			}
			answers += len(c.messages())
			commontest.EqualIn(t, by+": answers", 9, answers)
		})
	}
}
