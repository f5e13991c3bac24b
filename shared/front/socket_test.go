package front_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/front"
	"github.com/dormouse-mcp/dormouse/shared/front/lambdafront"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/intercept"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// sockets is the world of WebSocket clients: the API with its connections, and a server.
// Each event is served by a function that was made for it.
type sockets struct {
	t       *testing.T
	store   session.Store
	tools   map[string]func(say func(raw string, final bool))
	limits  host.Limits
	record  bool // the server has a handshake record
	adjust  func(*front.Options)
	mu      sync.Mutex
	got     map[string][]string // what was posted, by connection
	gone    map[string]bool
	pushes  []session.ID // who asked to be pushed to
	handled []string     // what the server got
}

func newSockets(t *testing.T) *sockets {
	w := &sockets{
		t: t, store: sessiontest.NewMemory(), got: map[string][]string{}, gone: map[string]bool{},
		tools: map[string]func(say func(string, bool)){},
	}
	if err := w.store.SaveHandshake(t.Context(), session.Handshake{
		Digest: session.RecordFor("tenant", "d"), Version: wire.V20251125, Result: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{}}`),
	}); err != nil {
		t.Fatal(err)
	}
	return w
}

func inSockets(t *testing.T, test func(t *testing.T, w *sockets)) {
	synctest.Test(t, func(t *testing.T) { test(t, newSockets(t)) })
}

// function returns a function that was just started.
func (w *sockets) function() *front.Socket {
	o := front.SocketOptions{
		Options: front.Options{
			Servers: func(name string) (host.Server, bool) {
				return host.Server{Name: name, Digest: "d", Record: w.record}, name == "s"
			},
			Unserved: func(name string) string {
				if name == "weather" {
					return "WEATHER_KEY is not set"
				}
				return ""
			},
			Host: host.New(w.store, w, w.limits).WithClients(w),
			Auth: principal(func(r *http.Request) (string, error) {
				if r.Header.Get("Authorization") == "nobody" {
					return "", session.Unauthenticated
				}
				return "ada" + r.Header.Get("Authorization"), nil
			}),
		},
		Push: func(_ context.Context, id session.ID) error { w.pushes = append(w.pushes, id); return nil },
	}
	if w.adjust != nil {
		w.adjust(&o.Options)
	}
	return front.NewSocket(o)
}

func (w *sockets) Post(_ context.Context, conn string, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone[conn] {
		return session.Errorf(session.Closed, "simulated: gone")
	}
	w.got[conn] = append(w.got[conn], string(data))
	return nil
}

func (w *sockets) Close(_ context.Context, conn string) error {
	w.cut(conn)
	return nil
}

func (w *sockets) cut(conn string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone[conn] = true
}

// Deliver implements host.Backend: an unknown tool answers {}.
func (w *sockets) Deliver(ctx context.Context, d host.Delivery, _ session.Box) (host.Tracker, error) {
	w.mu.Lock()
	w.handled = append(w.handled, string(d.Raw))
	w.mu.Unlock()
	if len(d.Requests) == 0 {
		return nil, nil
	}
	ctx = context.WithoutCancel(ctx)
	index := session.Index(0)
	say := func(raw string, final bool) {
		index++
		err := host.Outlet{Store: w.store, Clients: w}.Append(ctx, d.Address, session.Batch{
			Session: d.Session, Stream: d.Stream, First: index, Gen: 1, Seq: seq.Add(1), Final: final, Events: [][]byte{[]byte(raw)},
		})
		if err != nil {
			w.t.Error(err)
		}
	}
	name, _ := wire.String(wire.Lookup(d.Raw, "params", "name"))
	tool := w.tools[name]
	if tool == nil {
		result := `{}`
		if m, _ := wire.String(wire.Lookup(d.Raw, "method")); m == wire.MethodInitialize {
			result = `{"protocolVersion":"2025-11-25","capabilities":{"logging":{}}}`
		}
		tool = func(say func(string, bool)) {
			say(string(wire.ResultResponse(d.Requests[0], json.RawMessage(result))), true)
		}
	}
	go tool(say)
	return tender{}, nil
}

func (w *sockets) Track(context.Context, session.Session, session.StreamID) (host.Tracker, error) {
	return tender{}, nil
}
func (w *sockets) Answer(context.Context, session.Answer, session.Box) error { return nil }
func (w *sockets) End(context.Context, session.Session, session.Box) error   { return nil }

// connect asks for a connection; headers are pairs.
func (w *sockets) connect(conn, query string, headers ...string) (status int, protocol, body string) {
	w.t.Helper()
	r := httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://127.0.0.1/local?"+query, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	status, protocol, raw := w.function().Connect(w.t.Context(), conn, r)
	return status, protocol, string(raw)
}

// send sends a message and returns the reply. All messages that it causes have been pushed
// by then.
func (w *sockets) send(conn, data string) string {
	w.t.Helper()
	reply := w.function().Message(w.t.Context(), conn, []byte(data))
	synctest.Wait()
	return string(reply)
}

// take returns the messages that were pushed to a connection since its last call.
func (w *sockets) take(conn string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	got := w.got[conn]
	delete(w.got, conn)
	return got
}

const (
	wsInitialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	wsInitialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

func wsCall(id, name string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + name + `"}}`
}

// open opens a session over a connection, and returns its id.
func (w *sockets) open(conn string) session.ID {
	w.t.Helper()
	if status, _, body := w.connect(conn, "server=s&event-ids=1"); status != 200 {
		w.t.Fatalf("connect: %d %s", status, body)
	}
	reply := w.send(conn, wsInitialize)
	id, ok := wire.String(wire.Lookup([]byte(reply), "params", "sessionId"))
	if !ok {
		w.t.Fatalf("initialize: %s", reply)
	}
	if reply := w.send(conn, wsInitialized); reply != "" {
		w.t.Fatalf("initialized: %s", reply)
	}
	w.take(conn)
	return session.ID(id)
}

func TestSocketLadderOfAConnection(t *testing.T) {
	for name, c := range map[string]struct {
		query   string
		headers []string
		status  int
		says    string
	}{
		"all is well":           {"server=s", nil, 200, ""},
		"mcp offered":           {"server=s", []string{"Sec-WebSocket-Protocol", "foo, mcp"}, 200, "mcp"},
		"mcp not offered":       {"server=s", []string{"Sec-WebSocket-Protocol", "foo"}, 400, "offer mcp"},
		"page from elsewhere":   {"server=s", []string{"Origin", "https://evil.example"}, 403, "Origin"},
		"page from here":        {"server=s", []string{"Origin", "http://localhost"}, 200, ""},
		"page of another port":  {"server=s", []string{"Origin", "http://localhost:3000"}, 403, "--allow-origin"},
		"no server":             {"", nil, 400, "?server=NAME"},
		"unknown server":        {"server=other", nil, 404, "no such server"},
		"not served":            {"server=weather", nil, 503, `server \"weather\" is not served: WEATHER_KEY is not set`},
		"not served to nobody":  {"server=weather", []string{"Authorization", "nobody"}, 401, "not authenticated"},
		"nobody":                {"server=s", []string{"Authorization", "nobody"}, 401, "not authenticated"},
		"unknown session":       {"server=s&session=unknown", nil, 404, "no such session"},
		"event id, no session":  {"server=s&last-event-id=1", nil, 400, "add session=ID"},
		"malformed event id":    {"server=s&session=x&last-event-id=1/./", nil, 400, "malformed"},
		"event id of no stream": {"server=s&session=x&last-event-id=1/abc", nil, 404, "no such session"},
	} {
		t.Run(name, func(t *testing.T) {
			inSockets(t, func(t *testing.T, w *sockets) {
				status, protocol, body := w.connect("c1", c.query, c.headers...)
				if status != c.status || !strings.Contains(protocol+body, c.says) {
					t.Errorf("got %d %q %s", status, protocol, body)
				}
			})
		})
	}
}

func TestSocketAnswersInPlaceByTheRoute(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		w.record = true
		w.connect("c1", "server=s")
		got := []string{w.send("c1", wsInitialize), w.send("c1", wsInitialized), w.send("c1", `{"jsonrpc":"2.0","id":"p","method":"ping"}`)}
		want := []string{
			`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`, ``, `{"jsonrpc":"2.0","id":"p","result":{}}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if len(w.take("c1")) != 0 || len(w.handled) != 0 {
			t.Error("something went further than the function")
		}
	})
}

func TestSocketTellsTheSessionOfAnInitializeThatWasAnsweredInPlace(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		w.record = true
		if status, _, body := w.connect("c1", "server=s&event-ids=1"); status != 200 {
			t.Fatal(status, body)
		}
		w.send("c1", wsInitialize)
		c, err := w.store.Connection(t.Context(), "c1")
		if err != nil {
			t.Fatal(err)
		}
		want := `{"jsonrpc":"2.0","method":"notifications/dormouse/event","params":{"sessionId":"` + string(c.Session) + `","eventId":"0"}}`
		if diff := cmp.Diff([]string{want}, w.take("c1")); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSocketPushesWhatTheServerSaysInOrder(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		w.connect("c1", "server=s")
		w.send("c1", wsInitialize)
		w.send("c1", wsInitialized)
		if got := w.take("c1"); len(got) != 1 || !strings.Contains(got[0], `"protocolVersion":"2025-11-25"`) {
			t.Fatalf("initialize was answered by %q", got)
		}
		w.tools["steps"] = func(say func(string, bool)) {
			time.Sleep(time.Hour) // nothing of ours runs meanwhile
			say(said("one"), false)
			say(`{"jsonrpc":"2.0","id":7,"result":{}}`, true)
		}
		begun := time.Now()
		if reply := w.send("c1", wsCall("7", "steps")); reply != "" || time.Since(begun) > 2*time.Second {
			t.Fatalf("after %s the reply was %s", time.Since(begun), reply)
		}
		time.Sleep(2 * time.Hour)
		if diff := cmp.Diff([]string{said("one"), `{"jsonrpc":"2.0","id":7,"result":{}}`}, w.take("c1")); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSocketAnswersErrorsAsFrames(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"no JSON":                {`{`, `"id":null,"error":{"code":-32700`},
		"no JSON-RPC":            {`{"jsonrpc":"2.0","id":3,"method":4}`, `"id":3,"error":{"code":-32600`},
		"two ids to some":        {`{"jsonrpc":"2.0","id":3,"ID":7,"method":"tools/list"}`, `"id":3,"error":{"code":-32600`},
		"two tokens to some":     {`{"jsonrpc":"2.0","id":3,"method":"m","params":{"_meta":{"progressToken":7},"_Meta":{}}}`, `"id":3,"error":{"code":-32600`},
		"initialize again":       {wsInitialize, `"id":0,"error":{"code":-32600`},
		"initialize in a batch":  {`[` + wsInitialize + `]`, `"id":0,"error":{"code":-32600`},
		"batch":                  {`[` + wsCall("4", "x") + `]`, `"id":4,"error":{"code":-32600`},
		"modern":                 {`{"jsonrpc":"2.0","id":5,"method":"server/discover"}`, `"id":5,"error":{"code":-32022`},
		"an empty batch":         {`[]`, `"id":null,"error":{"code":-32600`},
		"response to nobody":     {`{"jsonrpc":"2.0","id":"q","result":{}}`, ``},
		"notification to nobody": {`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			inSockets(t, func(t *testing.T, w *sockets) {
				w.open("c1")
				if reply := w.send("c1", c.data); !strings.Contains(reply, c.want) || c.want == "" && reply != "" {
					t.Errorf("got %s", reply)
				}
			})
		})
	}
}

func TestSocketWaitsForAnInitializeThatWasOvertaken(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		w.connect("c1", "server=s")
		replies := make(chan string, 2)
		for _, m := range []string{wsCall("1", "x"), wsInitialized} {
			go func() { replies <- string(w.function().Message(t.Context(), "c1", []byte(m))) }()
		}
		time.Sleep(time.Second)
		w.send("c1", wsInitialize)
		if a, b := <-replies, <-replies; a+b != "" {
			t.Errorf("got %q, %q", a, b)
		}
		synctest.Wait()
		if got := w.take("c1"); len(got) != 2 {
			t.Errorf("pushed %q", got)
		}
	})
}

func TestSocketWithoutInitializeIsToldToSendIt(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		w.connect("c1", "server=s")
		if reply := w.send("c1", wsCall("1", "x")); !strings.Contains(reply, `"id":1,"error":{"code":-32600`) || !strings.Contains(reply, "send initialize first") {
			t.Errorf("got %s", reply)
		}
	})
}

func TestSocketResumesOnANewConnection(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		id := w.open("c1")
		w.tools["steps"] = func(say func(string, bool)) {
			for _, n := range []string{"one", "two", "three"} {
				time.Sleep(time.Minute)
				say(said(n), false)
			}
			say(`{"jsonrpc":"2.0","id":7,"result":{}}`, true)
		}
		accepted := w.send("c1", wsCall("7", "steps"))
		if request := wire.Lookup([]byte(accepted), "params", "requestId"); string(request) != "7" {
			t.Fatalf("the reply was %s", accepted)
		}
		time.Sleep(90 * time.Second)
		got := w.take("c1")
		if len(got) != 2 || got[0] != said("one") {
			t.Fatalf("got %q", got)
		}
		last, _ := wire.String(wire.Lookup([]byte(got[1]), "params", "eventId"))
		time.Sleep(time.Minute) // "two" goes to a connection whose client is no longer there

		status, _, body := w.connect("c2", "server=s&session="+string(id)+"&last-event-id="+last)
		if status != 200 || !w.gone["c1"] {
			t.Fatalf("got %d %s, old connection closed: %v", status, body, w.gone["c1"])
		}
		if diff := cmp.Diff([]session.ID{id}, w.pushes); diff != "" {
			t.Fatal(diff)
		}
		if err := w.function().Push(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{said("two"), said("three"), `{"jsonrpc":"2.0","id":7,"result":{}}`}, w.take("c2")); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSocketResumesARequestOfWhichNothingHadArrived(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		id := w.open("c1")
		proceed := make(chan struct{})
		w.tools["late"] = func(say func(string, bool)) {
			<-proceed
			say(`{"jsonrpc":"2.0","id":7,"result":{}}`, true)
		}
		last, _ := wire.String(wire.Lookup([]byte(w.send("c1", wsCall("7", "late"))), "params", "eventId"))
		w.connect("c2", "server=s&session="+string(id)+"&last-event-id="+last)
		close(proceed)
		synctest.Wait()
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{`{"jsonrpc":"2.0","id":7,"result":{}}`}, w.take("c2")); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSocketSessionOutlivesItsConnection(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		id := w.open("c1")
		w.function().Disconnect(t.Context(), "c1")
		if reply := w.send("c1", wsCall("1", "x")); !strings.Contains(reply, "-32001") {
			t.Errorf("over the old connection: %s", reply)
		}
		time.Sleep(6 * 24 * time.Hour)
		if status, _, body := w.connect("c2", "server=s&session="+string(id)); status != 200 {
			t.Fatalf("got %d %s", status, body)
		}
		if len(w.pushes) != 0 {
			t.Error("nothing is owed, but a push was asked for")
		}
		w.send("c2", wsCall("1", "x"))
		if diff := cmp.Diff([]string{`{"jsonrpc":"2.0","id":1,"result":{}}`}, w.take("c2")); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSocketSessionWhoseInitializeFailedIsNone(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		w.connect("c1", "server=s")
		w.tools["fails"] = func(say func(string, bool)) {
			say(`{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"mcp_init: no"}}`, true)
		}
		w.send("c1", strings.Replace(wsInitialize, `"params":{`, `"params":{"name":"fails",`, 1))
		if got := w.take("c1"); len(got) != 1 || !strings.Contains(got[0], "mcp_init") {
			t.Errorf("pushed %q", got)
		}
		if reply := w.send("c1", wsCall("1", "x")); !strings.Contains(reply, "-32001") {
			t.Errorf("got %s", reply)
		}
	})
}

func TestSocketLambdaReadsTheEventsOfTheAPI(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		invoke := func(event string) (status int, headers map[string]string, body string) {
			t.Helper()
			var e lambdafront.SocketEvent
			if err := json.Unmarshal([]byte(event), &e); err != nil {
				t.Fatal(err)
			}
			res, err := lambdafront.Socket(w.function())(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			return res.StatusCode, res.Headers, res.Body
		}
		status, headers, body := invoke(`{"headers":{"Host":"localhost","Sec-WebSocket-Protocol":"mcp"},"queryStringParameters":{"server":"s","event-ids":"1"},` +
			`"multiValueQueryStringParameters":{"server":["s"],"event-ids":["1"]},"requestContext":{"routeKey":"$connect","connectionId":"c1"}}`)
		if status != 200 || headers["Sec-WebSocket-Protocol"] != "mcp" || body != "" {
			t.Errorf("connect: %d %v %s", status, headers, body)
		}
		status, _, body = invoke(`{"body":"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}","requestContext":{"routeKey":"$default","connectionId":"c1"}}`)
		if status != 200 || body != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("message: %d %s", status, body)
		}
		if status, _, _ = invoke(`{"requestContext":{"routeKey":"$disconnect","connectionId":"c1"}}`); status != 200 {
			t.Errorf("disconnect: %d", status)
		}
		payload, err := lambdafront.PushEvent("unknown")
		if err != nil {
			t.Fatal(err)
		}
		if status, _, _ = invoke(string(payload)); status != 200 {
			t.Errorf("push: %d", status)
		}
		status, _, body = invoke(`{"headers":{"Host":"evil.example"},"requestContext":{"routeKey":"$connect","connectionId":"c2"}}`)
		if status != 403 {
			t.Errorf("another Host: %d %s", status, body)
		}
	})
}

func TestSocketReadsTheRecordOfAConnectionOnce(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		w.open("c1")
		counting := sessiontest.NewCounting(w.store)
		w.store = counting
		warm := w.function()
		for _, reads := range []int{2, 1} { // the connection, and the session
			counting.Reset()
			warm.Message(t.Context(), "c1", []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
			if n := counting.Counts(); n.Reads != reads || n.Writes != 0 {
				t.Errorf("%d reads and %d writes, want %d and 0", n.Reads, n.Writes, reads)
			}
		}
	})
}

func TestSocketSaysNothingOfItsInsides(t *testing.T) {
	inSockets(t, func(t *testing.T, w *sockets) {
		w.connect("c1", "server=s")
		w.store = intercept.New(w.store, func(context.Context, *intercept.Call, func(context.Context) error) error {
			panic("the disk is on fire")
		})
		if reply := w.send("c1", wsCall("1", "x")); !strings.Contains(reply, `"id":1,"error":{"code":-32603`) || strings.Contains(reply, "fire") {
			t.Errorf("got %s", reply)
		}
	})
}
