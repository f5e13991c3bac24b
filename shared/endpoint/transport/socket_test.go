package transport_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/apigateway"
)

func wsCall(id, name string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + name + `"}}`
}

func TestSocketLadderOfAConnection(t *testing.T) {
	for name, c := range map[string]struct {
		query   string
		headers []string
		status  int
		says    string
	}{
		"all is well":          {"server=pushy", nil, 200, ""},
		"mcp not offered":      {"server=pushy", []string{"Sec-WebSocket-Protocol", "foo"}, 400, "offer mcp"},
		"page from elsewhere":  {"server=pushy", []string{"Origin", "https://evil.example"}, 403, "Origin"},
		"page from here":       {"server=pushy", []string{"Origin", "http://localhost"}, 200, ""},
		"no server":            {"", nil, 400, "?server=NAME"},
		"unknown server":       {"server=other", nil, 404, "no such server"},
		"not served":           {"server=weather", nil, 503, `server \"weather\" is not served: WEATHER_KEY is not set`},
		"nobody":               {"server=pushy", []string{"Authorization", "Bearer nobody"}, 401, "not authenticated"},
		"unknown session":      {"server=pushy&session=unknown", nil, 404, "no such session"},
		"event id, no session": {"server=pushy&last-event-id=1", nil, 400, "add session=ID"},
		"malformed event id":   {"server=pushy&session=x&last-event-id=1/./", nil, 400, "malformed"},
	} {
		status, protocol, body := newWorld(t).connect("c1", c.query, c.headers...)
		if status != c.status || !strings.Contains(protocol+body, c.says) {
			t.Errorf("%s: got %d %q %s", name, status, protocol, body)
		}
	}
}

func TestSocketAnswersInPlaceByTheRoute(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.connect("c1", "server=known&event-ids=1")
		got := []string{w.send("c1", initialize), w.send("c1", initialized), w.send("c1", `{"jsonrpc":"2.0","id":"p","method":"ping"}`)}
		commontest.Same(t, []string{greeting, ``, `{"jsonrpc":"2.0","id":"p","result":{}}`}, got)
		w.silent()
		c, err := w.store.Connection(t.Context(), "c1")
		commontest.OK(t, err)
		session := `{"jsonrpc":"2.0","method":"notifications/dormouse/event","params":{"sessionId":"` + string(c.Session) + `","eventId":"0"}}`
		commontest.SameIn(t, "pushed", []string{session}, w.api.take("c1"))
	})
}

// What cannot be served is answered with an error that says what to do, and nothing of the insides.
func TestSocketWithoutInitializeIsToldToSendIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.connect("c1", "server=pushy")
		reply := w.send("c1", wsCall("1", "x"))
		commontest.Contains(t, "", `"id":1,"error":{"code":-32600`, reply)
		commontest.Contains(t, "", "send initialize first", reply)

		w.backend.tool("initialize", func(r run) { r.fail(`{"code":-32603,"message":"mcp_init: no"}`) })
		w.send("c1", initialize)
		commontest.Contains(t, "pushed", "mcp_init", strings.Join(w.api.take("c1"), ""))
		commontest.Contains(t, "after an initialize that failed", "-32001", w.send("c1", wsCall("1", "x")))

		w.connect("c2", "server=pushy")
		w.fail(func(func() error) error { panic("the disk is on fire") }, "")
		if reply := w.send("c2", wsCall("1", "x")); !strings.Contains(reply, `"id":1,"error":{"code":-32603`) || strings.Contains(reply, "fire") {
			t.Errorf("got %s", reply)
		}
	})
}

func TestSocketAnswersErrorsAsFrames(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"no JSON":                {`{`, `"id":null,"error":{"code":-32700`},
		"a mark":                 {"\ufeff" + `{"jsonrpc":"2.0","id":5,"method":"server/discover"}`, `"id":5,"error":{"code":-32022`},
		"two ids to some":        {`{"jsonrpc":"2.0","id":3,"ID":7,"method":"tools/list"}`, `"id":3,"error":{"code":-32600`},
		"two tokens to some":     {`{"jsonrpc":"2.0","id":3,"method":"m","params":{"_meta":{"progressToken":7},"_Meta":{}}}`, `"id":3,"error":{"code":-32600`},
		"initialize again":       {initialize, `"id":0,"error":{"code":-32600`},
		"initialize in a batch":  {`[` + initialize + `]`, `"id":0,"error":{"code":-32600`},
		"batch":                  {`[` + wsCall("4", "x") + `,` + initialized + `,` + wsCall("6", "x") + `]`, `each message by itself"}},{"jsonrpc":"2.0","id":6,"error":{"code":-32600`},
		"modern":                 {`{"jsonrpc":"2.0","id":5,"method":"server/discover"}`, `"id":5,"error":{"code":-32022`},
		"response to nobody":     {`{"jsonrpc":"2.0","id":"q","result":{}}`, ``},
		"notification to nobody": {`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}`, ``},
	} {
		bubble(t, func(t *testing.T, w *world) {
			w.openSocket("c1")
			if reply := w.send("c1", c.data); !strings.Contains(reply, c.want) || c.want == "" && reply != "" {
				t.Errorf("%s: got %s", name, reply)
			}
		})
	}
}

func TestSocketWaitsForAnInitializeThatWasOvertaken(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.connect("c1", "server=pushy")
		replies := make(chan string, 2)
		for _, m := range []string{wsCall("1", "x"), initialized} {
			go func() { replies <- string(w.function().Message(t.Context(), "c1", []byte(m))) }()
		}
		time.Sleep(time.Second)
		w.send("c1", initialize)
		commontest.EqualIn(t, "replies", "", <-replies+<-replies)
		synctest.Wait()
		commontest.EqualIn(t, "messages", 2, len(w.api.take("c1")))
	})
}

func TestSocketResumesOnANewConnection(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		id := w.openSocket("c1")
		w.backend.tool("steps", func(r run) {
			for _, n := range []string{"one", "two", "three"} {
				time.Sleep(time.Minute)
				r.say(n)
			}
			r.end(`{}`)
		})
		accepted := w.send("c1", wsCall("7", "steps"))
		commontest.EqualIn(t, "accepted", "7", string(wire.Lookup([]byte(accepted), "params", "requestId")))
		time.Sleep(90 * time.Second)
		got := w.api.take("c1")
		if len(got) != 2 || got[0] != said("one") {
			t.Fatalf("got %q", got)
		}
		last, _ := wire.String(wire.Lookup([]byte(got[1]), "params", "eventId"))
		time.Sleep(time.Minute) // "two" goes to a connection whose client is no longer there

		status, _, body := w.connect("c2", "server=pushy&session="+string(id)+"&last-event-id="+last)
		if status != 200 || !w.api.gone["c1"] {
			t.Fatalf("got %d %s, old connection closed: %v", status, body, w.api.gone["c1"])
		}
		commontest.SameIn(t, "invoked again for", []storage.ID{id}, w.pushes)
		commontest.OK(t, w.function().Push(t.Context(), id))
		time.Sleep(time.Hour)
		commontest.Same(t, []string{said("two"), said("three"), `{"jsonrpc":"2.0","id":7,"result":{}}`}, w.api.take("c2"))
	})
}

func TestSocketSessionOutlivesItsConnection(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		id := w.openSocket("c1")
		w.function().Disconnect(t.Context(), "c1")
		commontest.Contains(t, "over the old connection", "-32001", w.send("c1", wsCall("1", "x")))
		time.Sleep(6 * 24 * time.Hour)
		w.connects("again", 200, "c2", "server=pushy&session="+string(id))
		commontest.EqualIn(t, "pushes, though nothing is owed", 0, len(w.pushes))
		w.send("c2", wsCall("1", "x"))
		commontest.Same(t, []string{called}, w.api.take("c2"))
	})
}

func TestSocketLambdaReadsTheEventsOfTheAPI(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		push, err := apigateway.PushEvent("unknown")
		commontest.OK(t, err)
		for _, step := range []struct {
			event  string
			status int
			body   string
		}{
			{`{"headers":{"Host":"localhost","Sec-WebSocket-Protocol":"mcp"},"queryStringParameters":{"server":"pushy","event-ids":"1"},` +
				`"multiValueQueryStringParameters":{"server":["pushy"],"event-ids":["1"]},"requestContext":{"routeKey":"$connect","connectionId":"c1"}}`, 200, ""},
			{`{"body":"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}","requestContext":{"routeKey":"$default","connectionId":"c1"}}`, 200, `{"jsonrpc":"2.0","id":1,"result":{}}`},
			{`{"requestContext":{"routeKey":"$disconnect","connectionId":"c1"}}`, 200, ""},
			{string(push), 200, ""},
			{`{"headers":{"Host":"evil.example"},"requestContext":{"routeKey":"$connect","connectionId":"c2"}}`, 403, "evil.example"},
		} {
			var e apigateway.SocketEvent
			commontest.OK(t, json.Unmarshal([]byte(step.event), &e))
			res, err := apigateway.Socket(w.function())(t.Context(), e)
			commontest.OK(t, err)
			if res.StatusCode != step.status || !strings.Contains(res.Body, step.body) || step.body == "" && res.Body != "" {
				t.Errorf("%s: %d %s", step.event, res.StatusCode, res.Body)
			}
			commontest.EqualIn(t, step.event, strings.Contains(step.event, `"mcp"`), res.Headers["Sec-WebSocket-Protocol"] == "mcp")
		}
	})
}
