package transport_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

func newSealer(t *testing.T) transport.Sealer {
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
	return request("POST", or(a.path, "/"+or(a.server, "quiet")+"/mcp"), body, append(headers, a.headers...)...)
}

// at is the same request at another server.
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
		if got.body != want {
			t.Errorf("got %s, want %s", got.body, want)
		}
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

func TestModernEqualIDsDoNotMeet(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("slow", func(r run) { time.Sleep(time.Second); r.end(`{"content":[],"who":"slow"}`) })
		slow := w.begin(toolCall("slow").request())
		if got := w.do(toolCall("echo").request()); strings.Contains(got.body, "who") {
			t.Errorf("got %s", got.body)
		}
		if got := slow.end(); !strings.Contains(got.body, `"who":"slow"`) {
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
				commontest.Same(t, tt.want, datas[:len(datas)-1])
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
		seen := map[storage.ID]int{}
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

// a modern client cancels its call when it closes the connection. That holds before
// the first byte of the response, and after it.
func TestModernClientThatGoesHasCancelled(t *testing.T) {
	for name, sent := range map[string]bool{"before anything was sent": false, "in the stream": true} {
		t.Run(name, func(t *testing.T) {
			modern(t, func(t *testing.T, w *world) {
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
