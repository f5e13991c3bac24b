package transport_test

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

func newSealer(t *testing.T) *storage.Sealer {
	t.Helper()
	s, err := bridge.NewSealer([]byte(strings.Repeat("k", 32)))
	commontest.OK(t, err)
	return s
}

// modern runs a test of the modern era in virtual time. The box is awake, so answers to
// its questions reach it.
func modern(t *testing.T, test func(t *testing.T, w *world)) {
	bubble(t, func(t *testing.T, w *world) {
		w.opts.Sealer = newSealer(t)
		for _, server := range []string{"quiet", "pushy", "known"} {
			w.awake(server)
		}
		test(t, w)
	})
}

// ask is one modern request before it is encoded.
type ask struct {
	server  string // "quiet" if it is not said
	path    string // instead of that of the server
	id      string // JSON; 7
	method  string
	params  string // members of params, without _meta
	caps    string // {}
	meta    string // more members of _meta, each with a comma in front
	headers []string
}

func (a ask) request() *http.Request {
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":` + cmp.Or(a.caps, "{}") + a.meta + `}`
	params := meta
	if a.params != "" {
		params = a.params + "," + meta
	}
	body := `{"jsonrpc":"2.0","id":` + cmp.Or(a.id, "7") + `,"method":"` + a.method + `","params":{` + params + `}}`
	headers := []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", a.method}
	if name, ok := wire.String(wire.Lookup([]byte(body), "params", "name")); ok {
		headers = append(headers, "Mcp-Name", name)
	} else if uri, ok := wire.String(wire.Lookup([]byte(body), "params", "uri")); ok {
		headers = append(headers, "Mcp-Name", uri)
	}
	return request("POST", cmp.Or(a.path, "/"+cmp.Or(a.server, "quiet")+"/mcp"), body, append(headers, a.headers...)...)
}

func (a ask) at(server string) ask { a.server = server; return a }

func toolCall(tool string) ask {
	return ask{method: "tools/call", params: `"name":"` + tool + `","arguments":{}`}
}

func (a *answer) result(t *testing.T) json.RawMessage {
	t.Helper()
	r := wire.Lookup([]byte(a.body), "result")
	if a.status != 200 || r == nil {
		t.Fatalf("no result: %d %s", a.status, a.body)
	}
	return r
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
		commontest.Equal(t, want, got.body)
		commontest.EqualIn(t, "messages to the server", 1, len(w.backend.got))
		m, err := wire.Parse([]byte(w.backend.got[0]))
		commontest.OK(t, err)
		inside := `{"name":"echo","arguments":{"n":12345678901234567890.50,"<k>":1},"inputResponses":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`
		if !strings.HasPrefix(string(m.Params), inside) || !strings.Contains(string(m.Params), `"traceparent":"00-1","progressToken":"p"`) {
			t.Errorf("the server gets %s", m.Params)
		}
		if id, ok := wire.String(m.ID); !ok || storage.StreamID(id).Time().IsZero() {
			t.Errorf("id inside %s", m.ID)
		}
	})
}

// In the modern era an error has a status, because a proxy sees only the status.: the
// server itself refuses a method that nobody knows, because an extension may have it.
func TestModernErrorsHaveAStatus(t *testing.T) {
	for _, tt := range []struct {
		error, want string
		status      int
	}{
		{`{"code":-32601,"message":"no"}`, `{"code":-32601,"message":"no"}`, 404},
		{`{"code":-32602,"message":"no","data":{"a":1}}`, `{"code":-32602,"message":"no","data":{"a":1}}`, 400},
		{`{"code":-32002,"message":"gone","data":{"uri":"a"}}`, `{"code":-32602,"message":"gone","data":{"uri":"a"}}`, 400},
		{`{"code":-32603,"message":"no"}`, `{"code":-32603,"message":"no"}`, 200},
		{`{"code":7,"message":"own"}`, `{"code":7,"message":"own"}`, 200},
	} {
		modern(t, func(t *testing.T, w *world) {
			w.backend.tool("unknown/method", func(r run) { r.fail(tt.error) })
			got := w.do(ask{method: "unknown/method"}.request())
			got.is(t, tt.error, tt.status, 0)
			commontest.Equal(t, `{"jsonrpc":"2.0","id":7,"error":`+tt.want+`}`, got.body)
			got = w.visit("quiet").post(`{"jsonrpc":"2.0","id":1,"method":"unknown/method"}`)
			got.is(t, "in a session", 200, 0)
			commontest.Equal(t, `{"jsonrpc":"2.0","id":1,"error":`+tt.error+`}`, got.body)
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
		w.do(a.request()).result(t) // nothing was asked for
		for meta, want := range map[string][]string{
			`,"progressToken":"p"`:                        {progress("1"), progress("2")}, // which goes up
			`,"io.modelcontextprotocol/logLevel":"info"`:  {message("warning")},
			`,"io.modelcontextprotocol/logLevel":"debug"`: {message("debug"), message("warning")},
		} {
			a.meta = meta
			datas := w.do(a.request()).datas(t)
			commontest.SameIn(t, meta, want, datas[:len(datas)-1])
		}
	})
}

// a modern client cancels its call when it closes the connection. That holds before
// the first byte of the response, and after it.
func TestModernClientThatGoesHasCancelled(t *testing.T) {
	for name, sent := range map[string]bool{"before anything was sent": false, "in the stream": true} {
		in(t, name, modern, func(t *testing.T, w *world) {
			begun := make(chan string, 1)
			w.backend.tool("slow", func(r run) {
				if sent {
					r.append(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`, false)
				}
				begun <- string(r.requests[0])
			})
			call := toolCall("slow")
			call.meta = `,"progressToken":"p"`
			done := w.begin(call.request())
			id := <-begun
			synctest.Wait()
			if got := done.gone(); strings.Contains(got.body, "notifications/progress") != sent || !sent && got.body != "" {
				t.Fatalf("the client has %d %q of a stream", got.status, got.body)
			}
			want := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id
			if got := w.backend.got[len(w.backend.got)-1]; !strings.HasPrefix(got, want) {
				t.Errorf("got %s, want %s…", got, want)
			}
		})
	}
}

func TestModernCallThatIsLeftWhileTheBoxStartsNeverRuns(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		box, err := w.store.Box(t.Context(), storage.BoxFor("tenant", "quiet"))
		commontest.OK(t, err)
		box.State = storage.Starting
		commontest.OK(t, w.store.SaveBox(t.Context(), box))
		begun := make(chan storage.Address, 1)
		w.backend.tool("slow", func(r run) { begun <- r.address })
		done := w.begin(toolCall("slow").request())
		time.Sleep(5 * time.Second)
		done.gone()
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
		commontest.Contains(t, "the server got", "notifications/cancelled", w.backend.got[len(w.backend.got)-1])
	})
}

func TestModernNotificationsOfExtensionsReachTheServer(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.do(toolCall("echo").request()).result(t)
		tell := func(method string, headers ...string) *answer {
			r := ask{method: method, headers: headers}.request()
			setBody(r, strings.Replace(bodyOf(r), `"id":7,`, ``, 1))
			return w.do(r)
		}
		before := len(w.backend.got)
		for _, method := range []string{wire.NotifyCancelled, wire.NotifyRootsChanged, wire.NotifyMessage, wire.NotifyInitialized} {
			if a := tell(method); a.status != http.StatusAccepted || a.body != "" || len(w.backend.got) != before {
				t.Errorf("%s: %d, and the server got %s", method, a.status, w.backend.got[before:])
			}
		}
		if a := tell("notifications/com.example/x", "Mcp-Method", "notifications/com.example/y"); a.status != http.StatusBadRequest || len(w.backend.got) != before {
			t.Errorf("another method in the header: %d, and the server got %s", a.status, w.backend.got[before:])
		}
		a := tell("notifications/com.example/x")
		if a.status != http.StatusAccepted || len(w.backend.got) != before+1 || !strings.Contains(w.backend.got[before], `"method":"notifications/com.example/x"`) {
			t.Errorf("%d, and the server got %s", a.status, w.backend.got[before:])
		}
		commontest.OK(t, w.store.SaveBox(t.Context(), storage.Box{ID: storage.BoxFor("tenant", "quiet"), State: storage.Asleep, Gen: 1, Rev: 1}))
		tell("notifications/com.example/x").is(t, "while the box sleeps", http.StatusAccepted, 0)
		commontest.EqualIn(t, "the server got, which it does not wake", before+1, len(w.backend.got))
	})
}
