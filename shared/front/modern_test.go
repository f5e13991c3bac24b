package front_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/front"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

func newSealer(t *testing.T) front.Sealer {
	t.Helper()
	s, err := bridge.NewSealer([]byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// modern bubbles a test of the modern era: the box is awake, so that answers to
// its questions are handed over.
func modern(t *testing.T, test func(t *testing.T, w *world)) {
	bubble(t, func(t *testing.T, w *world) {
		w.opts.Sealer = newSealer(t)
		for _, server := range []string{"quiet", "pushy", "known"} {
			if err := w.store.SaveBox(t.Context(), session.Box{ID: session.BoxFor("tenant", server), State: session.Awake, Gen: 1}); err != nil {
				t.Fatal(err)
			}
		}
		test(t, w)
	})
}

// ask is one modern request before it is written down.
type ask struct {
	server  string // "quiet" if it is not said
	id      string // JSON; 7
	method  string
	params  string // members of params, without _meta
	caps    string // {}
	meta    string // more members of _meta, each with a comma in front
	headers []string
}

func (a ask) request() *http.Request {
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":` + or(a.caps, "{}") + a.meta + `}`
	params := meta
	if a.params != "" {
		params = a.params + "," + meta
	}
	body := `{"jsonrpc":"2.0","id":` + or(a.id, "7") + `,"method":"` + a.method + `","params":{` + params + `}}`
	headers := []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", a.method}
	if name, ok := wire.String(wire.Lookup([]byte(body), "params", "name")); ok {
		headers = append(headers, "Mcp-Name", name)
	} else if uri, ok := wire.String(wire.Lookup([]byte(body), "params", "uri")); ok {
		headers = append(headers, "Mcp-Name", uri)
	}
	return request("POST", "/"+or(a.server, "quiet")+"/mcp", body, append(headers, a.headers...)...)
}

func toolCall(tool string) ask {
	return ask{method: "tools/call", params: `"name":"` + tool + `","arguments":{}`}
}

// result is the result of a JSON answer.
func (a *answer) result(t *testing.T) json.RawMessage {
	t.Helper()
	r := wire.Lookup([]byte(a.body), "result")
	if a.status != 200 || r == nil {
		t.Fatalf("no result: %d %s", a.status, a.body)
	}
	return r
}

func TestModernLadder(t *testing.T) {
	ok := toolCall("echo")
	with := func(headers ...string) ask { a := ok; a.headers = headers; return a }
	tests := []struct {
		name   string
		ask    ask
		change func(*http.Request)
		status int
		code   wire.Code
	}{
		{"no version header", with("MCP-Protocol-Version", ""), nil, 400, wire.CodeHeaderMismatch},
		{"another version in the header", with("MCP-Protocol-Version", "2027-01-01"), nil, 400, wire.CodeHeaderMismatch},
		{"a legacy version in the header", with("MCP-Protocol-Version", "2025-11-25"), nil, 400, wire.CodeHeaderMismatch},
		{"no method header", with("Mcp-Method", ""), nil, 400, wire.CodeHeaderMismatch},
		{"another method in the header", with("Mcp-Method", "tools/list"), nil, 400, wire.CodeHeaderMismatch},
		{"method header in another case", with("Mcp-Method", "Tools/Call"), nil, 400, wire.CodeHeaderMismatch},
		{"no name header", with("Mcp-Name", ""), nil, 400, wire.CodeHeaderMismatch},
		{"another name in the header", with("Mcp-Name", "Echo"), nil, 400, wire.CodeHeaderMismatch},
		{"name header twice", ok, func(r *http.Request) { r.Header.Add("Mcp-Name", "echo") }, 400, wire.CodeHeaderMismatch},
		{"name header in broken base64", with("Mcp-Name", "=?base64?ZWNobw?="), nil, 400, wire.CodeHeaderMismatch},
		{"name header for a body without", ask{method: "tools/call", headers: []string{"Mcp-Name", "echo"}}, nil, 400, wire.CodeHeaderMismatch},
		{"param header that cannot be decoded", with("Mcp-Param-City", "=?base64?!?="), nil, 400, wire.CodeHeaderMismatch},
		{"unsupported version", with("MCP-Protocol-Version", "2099-01-01"), func(r *http.Request) {
			reword(r, "2026-07-28", "2099-01-01")
		}, 400, wire.CodeUnsupportedVersion},
		{"no capabilities", ok, func(r *http.Request) { reword(r, "clientCapabilities", "other") }, 400, wire.CodeInvalidParams},
		{"no version in _meta", ok, func(r *http.Request) { reword(r, "io.modelcontextprotocol/protocolVersion", "other") }, 400, wire.CodeInvalidParams},
		{"capabilities that are no object", ask{method: "tools/list", caps: "true"}, nil, 400, wire.CodeInvalidParams},
		{"unknown log level", ask{method: "tools/list", meta: `,"io.modelcontextprotocol/logLevel":"loud"`}, nil, 400, wire.CodeInvalidParams},
		{"progress token that is none", ask{method: "tools/list", meta: `,"progressToken":{}`}, nil, 400, wire.CodeInvalidParams},
		{"state that is no string", ask{method: "tools/call", params: `"name":"echo","requestState":7`}, nil, 400, wire.CodeInvalidParams},
		{"initialize", ask{method: "initialize"}, nil, 404, wire.CodeMethodNotFound},
		{"ping", ask{method: "ping"}, nil, 404, wire.CodeMethodNotFound},
		{"logging/setLevel", ask{method: "logging/setLevel"}, nil, 404, wire.CodeMethodNotFound},
		{"resources/subscribe", ask{method: "resources/subscribe"}, nil, 404, wire.CodeMethodNotFound},
		{"resources/unsubscribe", ask{method: "resources/unsubscribe"}, nil, 404, wire.CodeMethodNotFound},
		{"tasks/list", ask{method: "tasks/list"}, nil, 404, wire.CodeMethodNotFound},
		{"a method nobody knows", ask{method: "custom/method"}, nil, 404, wire.CodeMethodNotFound},
		{"ping without _meta", ask{method: "ping"}, bare, 404, wire.CodeMethodNotFound},
		{"logging/setLevel without _meta", ask{method: "logging/setLevel"}, bare, 404, wire.CodeMethodNotFound},
		{"tools/list without _meta", ask{method: "tools/list"}, bare, 400, wire.CodeInvalidParams},
		{"a method of servers", ask{method: "roots/list"}, nil, 404, wire.CodeMethodNotFound},
		{"a batch", ok, func(r *http.Request) { setBody(r, "["+bodyOf(r)+"]") }, 400, wire.CodeInvalidRequest},
		{"a response", ok, func(r *http.Request) { setBody(r, `{"jsonrpc":"2.0","id":1,"result":{}}`) }, 400, wire.CodeInvalidRequest},
		{"no json", ok, func(r *http.Request) { setBody(r, `{`) }, 400, wire.CodeParse},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				r := tt.ask.request()
				if tt.change != nil {
					tt.change(r)
				}
				got := w.do(r)
				if code, message := got.rpcError(t); got.status != tt.status || wire.Code(code) != tt.code || message == "" {
					t.Errorf("got %d %s, want %d with code %d", got.status, got.body, tt.status, tt.code)
				}
				if len(w.backend.got) > 0 {
					t.Errorf("the server got %s", w.backend.got)
				}
			})
		})
	}
}

// bare takes everything from a request but its method.
func bare(r *http.Request) {
	setBody(r, `{"jsonrpc":"2.0","id":7,"method":"`+r.Header.Get("Mcp-Method")+`","params":{}}`)
}

func bodyOf(r *http.Request) string {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	return string(body)
}

func setBody(r *http.Request, body string) {
	r.Body, r.ContentLength = request("POST", "/", body).Body, int64(len(body))
}

func reword(r *http.Request, old, with string) {
	setBody(r, strings.ReplaceAll(bodyOf(r), old, with))
}

func TestModernVersionsAreNamed(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		r := ask{method: "tools/list", headers: []string{"MCP-Protocol-Version", "2099-01-01"}}.request()
		reword(r, "2026-07-28", "2099-01-01")
		want := `"data":{"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"requested":"2099-01-01"}`
		if got := w.do(r); !strings.Contains(got.body, want) || !strings.Contains(got.body, `"id":7`) {
			t.Errorf("got %s, want %s", got.body, want)
		}
	})
}

func TestModernHeaderValuesAreDecoded(t *testing.T) {
	for name, header := range map[string]string{
		"plain":   "echo",
		"encoded": "=?base64?ZWNobw==?=",
	} {
		t.Run(name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				a := toolCall("echo")
				a.headers = []string{"Mcp-Name", header, "Mcp-Param-City", "=?base64?WsO8cmljaA==?="}
				w.do(a.request()).result(t)
			})
		})
	}
}

func TestInitializeOpensASessionWhateverItsHeaderSays(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		got := w.do(request("POST", "/quiet/mcp", initialize, "MCP-Protocol-Version", "2026-07-28"))
		if version := wire.Lookup(got.result(t), "protocolVersion"); got.header.Get("Mcp-Session-Id") == "" || string(version) != `"2025-11-25"` {
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}

func TestModernNotificationIsTakenAndDropped(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		r := request("POST", "/quiet/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, "MCP-Protocol-Version", "2026-07-28")
		if got := w.do(r); got.status != 202 || got.body != "" {
			t.Errorf("got %d %q", got.status, got.body)
		}
		if len(w.backend.got) > 0 {
			t.Errorf("the server got %s", w.backend.got)
		}
	})
}

func TestModernClientMayOnlyPost(t *testing.T) {
	for _, method := range []string{"GET", "DELETE"} {
		modern(t, func(t *testing.T, w *world) {
			got := w.do(request(method, "/quiet/mcp", "", "MCP-Protocol-Version", "2026-07-28"))
			if got.status != 405 || !strings.Contains(got.header.Get("Allow"), "POST") {
				t.Errorf("%s: got %d, Allow %q", method, got.status, got.header.Get("Allow"))
			}
		})
	}
}

func TestModernHeadersOfSessionsAreIgnored(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		a := toolCall("echo")
		a.headers = []string{"Mcp-Session-Id", "nosuchsession", "Last-Event-ID", "nonsense/"}
		got := w.do(a.request())
		got.result(t)
		if id := got.header.Get("Mcp-Session-Id"); id != "" {
			t.Errorf("a session id: %q", id)
		}
	})
}

func TestModernCallIsForwardedAsItWasSaid(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		a := ask{
			id: "9007199254740993", method: "tools/call",
			params: `"name":"echo","arguments":{"n":12345678901234567890.50,"<k>":1},"inputResponses":{}`,
			meta:   `,"traceparent":"00-1","progressToken":"p"`,
		}
		got := w.do(a.request())
		want := `{"jsonrpc":"2.0","id":9007199254740993,"result":{"content":[],"resultType":"complete"}}`
		if got.body != want {
			t.Errorf("got %s, want %s", got.body, want)
		}
		m, err := wire.Parse([]byte(w.backend.got[0]))
		if err != nil {
			t.Fatal(err)
		}
		inside := `{"name":"echo","arguments":{"n":12345678901234567890.50,"<k>":1},"inputResponses":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`
		if !strings.HasPrefix(string(m.Params), inside) || !strings.Contains(string(m.Params), `"traceparent":"00-1","progressToken":"p"`) {
			t.Errorf("the server gets %s", m.Params)
		}
		if id, ok := wire.String(m.ID); !ok || session.StreamID(id).Time().IsZero() {
			t.Errorf("id inside %s", m.ID)
		}
	})
}

func TestModernEqualIDsDoNotMeet(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("slow", func(r run) { time.Sleep(time.Second); r.end(`{"content":[],"who":"slow"}`) })
		slow := w.start(toolCall("slow").request())
		if got := w.do(toolCall("echo").request()); strings.Contains(got.body, "who") {
			t.Errorf("got %s", got.body)
		}
		if got := <-slow; !strings.Contains(got.body, `"who":"slow"`) {
			t.Errorf("got %s", got.body)
		}
	})
}

func TestModernCallCommitsLate(t *testing.T) {
	tests := []struct {
		name    string
		takes   time.Duration
		json    bool
		flushes int
	}{
		{"at once", 0, true, 1},
		{"after 14 s", 14 * time.Second, true, 1},
		{"after 40 s", 40 * time.Second, false, 3}, // two comments, then the answer
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				w.backend.tool("takes", func(r run) { time.Sleep(tt.takes); r.end(`{}`) })
				got := w.do(toolCall("takes").request())
				if json := got.header.Get("Content-Type") == wire.MediaJSON; json != tt.json || len(got.flush) != tt.flushes {
					t.Fatalf("got %s in %d pieces", got.header.Get("Content-Type"), len(got.flush))
				}
				if tt.json {
					return
				}
				for _, e := range got.events(t) {
					if e.ID != "" || e.Retry != 0 || len(e.Data) > 0 && e.Name != "message" {
						t.Errorf("event %+v", e)
					}
				}
				if got.header.Get("X-Accel-Buffering") != "no" {
					t.Error("buffered")
				}
			})
		})
	}
}

func TestModernErrorsHaveAStatus(t *testing.T) {
	tests := []struct {
		error, want string
		status      int
	}{
		{`{"code":-32601,"message":"no"}`, `{"code":-32601,"message":"no"}`, 404},
		{`{"code":-32602,"message":"no","data":{"a":1}}`, `{"code":-32602,"message":"no","data":{"a":1}}`, 400},
		{`{"code":-32002,"message":"gone","data":{"uri":"a"}}`, `{"code":-32602,"message":"gone","data":{"uri":"a"}}`, 400},
		{`{"code":-32603,"message":"no"}`, `{"code":-32603,"message":"no"}`, 200},
		{`{"code":7,"message":"own"}`, `{"code":7,"message":"own"}`, 200},
	}
	for _, tt := range tests {
		modern(t, func(t *testing.T, w *world) {
			w.backend.tool("fails", func(r run) {
				r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":`+tt.error+`}`, true)
			})
			got := w.do(toolCall("fails").request())
			if want := `{"jsonrpc":"2.0","id":7,"error":` + tt.want + `}`; got.status != tt.status || got.body != want {
				t.Errorf("got %d %s, want %d %s", got.status, got.body, tt.status, want)
			}
		})
	}
}

func TestModernNotificationsAreThoseThatWereAskedFor(t *testing.T) {
	progress := func(n string) string {
		return `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":` + n + `}}`
	}
	message := func(level string) string {
		return `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"` + level + `","data":"x"}}`
	}
	events := []string{
		progress("1"), message("debug"), message("warning"), progress("1"), progress("0.5"), progress("2"),
		`{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}`,
	}
	tests := []struct {
		name, meta string
		want       []string
	}{
		{"nothing", ``, nil},
		{"progress, which goes up", `,"progressToken":"p"`, []string{progress("1"), progress("2")}},
		{"messages at or above a level", `,"io.modelcontextprotocol/logLevel":"info"`, []string{message("warning")}},
		{"all messages", `,"io.modelcontextprotocol/logLevel":"debug"`, []string{message("debug"), message("warning")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
				talk := func(r run) {
					for _, e := range events {
						r.append(e, false)
					}
					r.end(`{}`)
				}
				w.backend.tool("talks", talk)
				w.backend.tool("logging/setLevel", talk) // sent along in front
				a := toolCall("talks")
				a.meta = tt.meta
				got := w.do(a.request())
				if tt.want == nil {
					got.result(t)
					return
				}
				datas := got.datas(t)
				if diff := cmp.Diff(tt.want, datas[:len(datas)-1]); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestModernLogLevelIsSetOnceAndOnlyWhenWanted(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.do(toolCall("echo").request()).result(t)
		a := toolCall("echo")
		a.meta = `,"io.modelcontextprotocol/logLevel":"error"`
		w.do(a.request()).result(t)
		w.do(a.request()).result(t)
		var set []int
		for i, got := range w.backend.got {
			if strings.Contains(got, `"logging/setLevel","params":{"level":"debug"}`) {
				set = append(set, i)
			}
		}
		if diff := cmp.Diff([]int{1}, set); diff != "" || len(w.backend.got) != 3 {
			t.Errorf("deliveries %q", w.backend.got)
		}
	})
}

func TestModernPrincipalsDoNotShareAProcess(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		seen := map[session.ID]int{}
		w.backend.tool("who", func(r run) { seen[r.session]++; r.end(`{}`) })
		for _, who := range []string{"Bearer eve", "Bearer bob", "Bearer eve"} {
			a := toolCall("who")
			a.headers = []string{"Authorization", who}
			w.do(a.request()).result(t)
		}
		if len(seen) != 2 {
			t.Errorf("sessions %v", seen)
		}
	})
}

func TestNoLegacyVerbReachesThePinnedSession(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.do(toolCall("echo").request()).result(t)
		id := session.PinnedID(session.Caller{Server: session.Server{Name: "quiet"}, Tenant: "tenant", Principal: "ada"})
		if _, _, err := w.store.Load(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		c := &client{w: w, server: "quiet", session: string(id), version: wire.V20251125}
		for name, got := range map[string]*answer{
			"POST":    c.call("echo"),
			"GET":     c.get(""),
			"DELETE":  w.do(c.request("DELETE", "")),
			"message": w.do(request("POST", "/quiet/message?sessionId="+string(id), callOf("echo"))),
			"sse":     w.do(request("GET", "/quiet/sse?sessionId="+string(id), "")),
		} {
			if got.status != 404 {
				t.Errorf("%s: got %d %s", name, got.status, got.body)
			}
		}
	})
}

func TestModernClientThatGoesHasCancelled(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		begun := make(chan string, 1)
		w.backend.tool("slow", func(r run) { begun <- string(r.requests[0]) })
		r, cut := cuttable(toolCall("slow").request())
		done := w.start(r)
		time.Sleep(5 * time.Second)
		cut()
		<-done
		want := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + <-begun
		if got := w.backend.got[len(w.backend.got)-1]; !strings.HasPrefix(got, want) {
			t.Errorf("got %s, want %s…", got, want)
		}
	})
}

func TestModernCallThatIsLeftWhileTheBoxStartsNeverRuns(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		box, err := w.store.Box(t.Context(), session.BoxFor("tenant", "quiet"))
		if err != nil {
			t.Fatal(err)
		}
		box.State = session.Starting
		if err := w.store.SaveBox(t.Context(), box); err != nil {
			t.Fatal(err)
		}
		begun := make(chan session.Address, 1)
		w.backend.tool("slow", func(r run) { begun <- r.address })
		r, cut := cuttable(toolCall("slow").request())
		done := w.start(r)
		time.Sleep(5 * time.Second)
		cut()
		<-done
		at := <-begun
		if tail, err := w.store.Tail(t.Context(), at.Session, at.Stream); err != nil || !tail.Final {
			t.Errorf("the request has no end: %+v %v", tail, err)
		}
	})
}

func TestModernCallIsEndedAtTheLimit(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.opts.Limit = time.Minute
		w.backend.tool("slow", func(run) {})
		got := w.do(toolCall("slow").request())
		datas := got.datas(t)
		if len(datas) != 1 || !strings.Contains(datas[0], `"id":7,"error":{"code":-32603`) || got.took != time.Minute {
			t.Errorf("after %s: %s", got.took, datas)
		}
		if last := w.backend.got[len(w.backend.got)-1]; !strings.Contains(last, "notifications/cancelled") {
			t.Errorf("the server got %s", last)
		}
	})
}

func TestModernDiscover(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.handshake(t, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"tasks":{"list":{}},"logging":{}},`+
			`"serverInfo":{"name":"srv","version":"1.0.0"},"instructions":"be <kind>"}`)
		got := w.do(ask{server: "known", method: "server/discover", id: `"d1"`}.request())
		want := `{"jsonrpc":"2.0","id":"d1","result":{"resultType":"complete",` +
			`"supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],` +
			`"capabilities":{"tools":{"listChanged":true},"logging":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"instructions":"be <kind>","ttlMs":3600000,"cacheScope":"private",` +
			`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv","version":"1.0.0"}}}}`
		if got.body != want || got.status != 200 {
			t.Errorf("got  %d %s\nwant %s", got.status, got.body, want)
		}
		if len(w.backend.got) > 0 {
			t.Errorf("the server got %s", w.backend.got)
		}
	})
}

// handshake replaces the record of the server "known".
func (w *world) handshake(t *testing.T, result string) {
	t.Helper()
	h := session.Handshake{Digest: session.RecordFor("tenant", "known"), Version: wire.V20251125, Result: json.RawMessage(result)}
	if err := w.store.SaveHandshake(t.Context(), h); err != nil {
		t.Fatal(err)
	}
}

func TestModernDiscoverWithoutARecordStartsTheServer(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("initialize", func(r run) {
			time.Sleep(4 * time.Second)
			r.end(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"srv","version":"1"}}`)
		})
		got := w.do(ask{method: "server/discover"}.request())
		if !strings.Contains(got.body, `"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`) {
			t.Errorf("got %s", got.body)
		}
		init := `"params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}},"clientInfo":{"name":"t","version":"1"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`
		if !strings.Contains(w.backend.got[0], init) {
			t.Errorf("the server got %s", w.backend.got[0])
		}
	})
}

func TestModernDiscoverDoesNotWaitForALongStart(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("initialize", func(r run) {
			time.Sleep(time.Minute)
			r.end(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"srv","version":"1"}}`)
		})
		begun := time.Now()
		got := w.do(ask{method: "server/discover"}.request())
		if took := time.Since(begun); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("it took %s", took)
		}
		result := wire.Lookup([]byte(got.body), "result")
		if !strings.Contains(got.header.Get("Content-Type"), "json") || string(wire.Lookup(result, "ttlMs")) != "0" || wire.Lookup(result, "capabilities", "prompts") == nil ||
			!strings.Contains(string(wire.Lookup(result, "supportedVersions")), `"2026-07-28","2025-11-25"`) {
			t.Errorf("got %s", got.body)
		}
		time.Sleep(time.Minute) // of the bubble: the start goes on
		if n := len(w.backend.got); n != 1 {
			t.Errorf("%d messages to the server", n)
		}
	})
}

func TestListOfWhatAServerDoesNotHaveIsEmpty(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		for method, key := range map[string]string{"prompts/list": "prompts", "resources/list": "resources", "resources/templates/list": "resourceTemplates"} {
			w.backend.tool(method, func(r run) {
				r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":{"code":-32601,"message":"Method not found"}}`, true)
			})
			got := w.do(ask{method: method}.request())
			if list := wire.Lookup([]byte(got.body), "result", key); string(list) != "[]" {
				t.Errorf("%s: %s", method, got.body)
			}
		}
	})
}

func TestModernDiscoverOfAServerThatDoesNotStartSaysWhy(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("initialize", func(r run) {
			r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":{"code":-32603,"message":"exit 1","data":{"phase":"mcp_init"}}}`, true)
		})
		got := w.do(ask{method: "server/discover"}.request())
		if got.status != 200 || !strings.Contains(got.body, `"phase":"mcp_init"`) {
			t.Errorf("got %d %s", got.status, got.body)
		}
	})
}

func TestModernResultsThatMayBeKeptSayForHowLong(t *testing.T) {
	tests := map[string]string{
		"tools/list": "300000", "prompts/list": "300000", "resources/list": "300000", "resources/templates/list": "300000", "resources/read": "0",
		"prompts/get": "", "completion/complete": "",
	}
	for method, ttl := range tests {
		modern(t, func(t *testing.T, w *world) {
			w.handshake(t, `{"capabilities":{},"serverInfo":{"name":"srv","version":"1"}}`)
			result := w.do(ask{server: "known", method: method}.request()).result(t)
			want := ""
			if ttl != "" {
				want = `"private"`
			}
			if string(wire.Lookup(result, "ttlMs")) != ttl || string(wire.Lookup(result, "cacheScope")) != want {
				t.Errorf("%s: %s", method, result)
			}
			if got := string(wire.Lookup(result, "_meta", "io.modelcontextprotocol/serverInfo", "name")); got != `"srv"` {
				t.Errorf("%s: %s", method, result)
			}
		})
	}
}

func TestModernStoreTroubleIs503(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.store.down("*")
		for _, a := range []ask{toolCall("echo"), {method: "server/discover"}} {
			got := w.do(a.request())
			if code, _ := got.rpcError(t); got.status != 503 || code != -32000 {
				t.Errorf("got %d %s", got.status, got.body)
			}
		}
	})
}

// cuttable is a request whose client can go.
func cuttable(r *http.Request) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	return r.WithContext(ctx), cancel
}
