package transport_test

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const (
	greeting = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`
	called   = `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`
)

func TestSSEStreamBeginsWithTheEndpointAndHasAllAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.backend.tool("talk", func(r run) { r.say("one"); r.say("two"); r.end(`{"content":[]}`) })
		c := w.openSSE("quiet", "").open()
		c.accepted(callOf("talk"))
		c.accepted(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
		a := c.gone()
		first := a.events(t)[0]
		want := wire.SSE{Name: "endpoint", ID: "0." + c.session + "/out", Data: []byte("/quiet/message?sessionId=" + c.session), HasData: true}
		commontest.Same(t, want, first)
		got := messagesOf(t, a)
		commontest.Same(t, []string{greeting, said("one"), said("two"), called, `{"jsonrpc":"2.0","id":"p","result":{}}`}, got)
	})
}

func TestSSEStreamIsHeldWithCommentsUntilTheLimit(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.openSSE("quiet", "").end()
		if a.took != 14*time.Minute || strings.Count(a.body, ": keep-alive") < 50 {
			t.Errorf("held for %s with %d comments", a.took, strings.Count(a.body, ": keep-alive"))
		}
		commontest.EqualIn(t, "events on an idle stream; most clients take no other event than a message", 1, len(a.events(t)))
	})
}

func TestSSEClientThatComesBackGoesOnInItsSession(t *testing.T) {
	// The client has seen two messages, and two came while it was away.
	for name, tt := range map[string]struct {
		query, last string
		messages    []string
	}{
		"with the session":      {"?sessionId=ID", "", []string{said("away"), called}},
		"with an older event":   {"", "1.ID/out", []string{said("here"), said("away"), called}},
		"with an event to come": {"", "99.ID/out", nil},
	} {
		in(t, name, bubble, func(t *testing.T, w *world) {
			w.backend.tool("slow", func(r run) { r.say("here"); time.Sleep(time.Minute); r.say("away"); r.end(`{"content":[]}`) })
			c := w.openSSE("quiet", "").open()
			c.accepted(callOf("slow"))
			commontest.Same(t, []string{greeting, said("here")}, c.messages())
			time.Sleep(2 * time.Minute)
			of := strings.NewReplacer("ID", c.session)
			back := w.openSSE("quiet", of.Replace(tt.query), lastEventIs, of.Replace(tt.last))
			commontest.EqualIn(t, "the session", c.session, back.session)
			commontest.Same(t, tt.messages, back.messages())
		})
	}
}

// TypeScript's client opens a new stream after the old one was cut. It does not name its
// session, and does not initialize the new one.
func TestSSEClientThatForgetsItsSessionNeedNotInitialize(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.openSSE("quiet", "").open().gone()
		c := w.openSSE("quiet", "")
		time.Sleep(5 * time.Minute) // longer than a session may go without initialize
		c.accepted(callOf("echo"))
		commontest.Same(t, []string{called}, c.messages())
	})
}

// go-sdk's client asks for the modern era before it sends initialize. It gets the refusal on the
// stream, like any answer. If the POST were refused, the client would end its connection.
func TestSSEClientThatAsksForTheModernEraIsToldTheVersions(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		for name, headers := range map[string][]string{
			`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}`: nil,
			callOf("echo"): {wire.HeaderProtocolVersion, wire.V20260728},
		} {
			c := w.openSSE("quiet", "")
			c.post(name, headers...).is(t, name, http.StatusAccepted, 0)
			c.open()
			got := c.messages()
			if len(got) != 2 || got[1] != greeting {
				t.Fatalf("%s: got %v", name, got)
			}
			refused := json.RawMessage(got[0])
			supported := string(wire.Lookup(refused, "error", "data", "supported"))
			if string(wire.Lookup(refused, "id")) != "1" || string(wire.Lookup(refused, "error", "code")) != "-32022" || !strings.Contains(supported, wire.V20241105) || strings.Contains(supported, wire.V20260728) {
				t.Errorf("%s: got %s", name, refused)
			}
		}
	})
}

func TestSSESecondStreamOfASessionTakesTheFirstOnesPlace(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.openSSE("quiet", "").open()
		second := w.openSSE("quiet", "?sessionId="+c.session)
		if a := c.end(); a.took > 30*time.Second {
			t.Errorf("the first was open for %s", a.took)
		}
		c.accepted(callOf("echo"))
		w.endSession(c.session)
		a := second.end()
		got := messagesOf(t, a)
		commontest.EqualIn(t, "the second heard last", called, got[len(got)-1])
		if a.took > time.Minute {
			t.Errorf("it was open for %s, though its session had ended", a.took)
		}
	})
}

func TestSSEMessageThatIsRefused(t *testing.T) {
	const good = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	bubble(t, func(t *testing.T, w *world) {
		c := w.openSSE("quiet", "").open()
		for name, tt := range map[string]struct {
			path, body string
			header     []string
			status     int
			code       wire.Code
		}{
			"other principal":     {"", good, []string{"Authorization", "Bearer eve"}, 404, wire.CodeSessionNotFound},
			"other server":        {"/pushy/message?sessionId=" + c.session, good, nil, 404, wire.CodeSessionNotFound},
			"content type":        {"", good, []string{"Content-Type", "text/plain"}, 415, wire.CodeServer},
			"no json":             {"", "{", nil, 400, wire.CodeParse},
			"two ids to some":     {"", `{"jsonrpc":"2.0","id":3,"ID":7,"method":"tools/list"}`, nil, 400, wire.CodeInvalidRequest},
			"initialized already": {"", `{"jsonrpc":"2.0","id":9,"method":"initialize","params":{"protocolVersion":"2024-11-05"}}`, nil, 400, wire.CodeInvalidRequest},
		} {
			a := w.do(request("POST", cmp.Or(tt.path, "/quiet/message?sessionId="+c.session), tt.body, tt.header...))
			a.is(t, name, tt.status, tt.code)
			readable(t, a)
		}
		commontest.SameIn(t, "on the stream", []string{greeting}, c.messages())
	})
}

func TestSSEStoreInTroubleIsNeverAnUnknownSession(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.openSSE("quiet", "").open()
		c.gone()
		w.down("")
		c.post(callOf("echo")).is(t, "a message", http.StatusServiceUnavailable, 0)
		w.do(request("GET", "/quiet/sse?sessionId="+c.session, "", "Accept", "text/event-stream")).is(t, "the stream", http.StatusServiceUnavailable, 0)
		w.down()
		c.accepted(callOf("echo"))
	})
}

// A client of HTTP+SSE takes a refused POST for a broken connection, so the endpoint
// sends the error on the stream.
func TestNoRoomIsSaidOnTheStreamOfHTTPAndSSE(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.openSSE("quiet", "").open()
		w.backend.err = storage.Errorf(storage.Busy, "no room")
		c.accepted(callOf("x"))
		commontest.Contains(t, "the stream", `"text":"no room"}],"isError":true`, c.gone().body)
	})
}
