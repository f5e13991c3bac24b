package transport_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// what is refused gets JSON, whatever the client
// accepts, and reaches no server.
func TestModernLadder(t *testing.T) {
	ok, discover := toolCall("echo"), ask{method: "server/discover"}
	with := func(headers ...string) ask { a := ok; a.headers = headers; return a }
	tests := []struct {
		name   string
		ask    ask
		change func(*http.Request)
		status int
		code   wire.Code
	}{
		{"no version header", with("MCP-Protocol-Version", ""), nil, 400, wire.CodeHeaderMismatch},
		{"no method header", with("Mcp-Method", ""), nil, 400, wire.CodeHeaderMismatch},
		{"another method in the header", with("Mcp-Method", "tools/list"), nil, 400, wire.CodeHeaderMismatch},
		{"method header in another case", with("Mcp-Method", "Tools/Call"), nil, 400, wire.CodeHeaderMismatch},
		{"no name header", with("Mcp-Name", ""), nil, 400, wire.CodeHeaderMismatch},
		{"another name in the header", with("Mcp-Name", "Echo"), nil, 400, wire.CodeHeaderMismatch},
		{"name header twice", ok, func(r *http.Request) { r.Header.Add("Mcp-Name", "echo") }, 400, wire.CodeHeaderMismatch},
		{"name header for a body without", ask{method: "tools/call", headers: []string{"Mcp-Name", "echo"}}, nil, 400, wire.CodeHeaderMismatch},
		{"unsupported version", with("MCP-Protocol-Version", "2099-01-01"), func(r *http.Request) {
			reword(r, "2026-07-28", "2099-01-01")
		}, 400, wire.CodeUnsupportedVersion},
		{"no capabilities", ok, func(r *http.Request) { reword(r, "clientCapabilities", "other") }, 400, wire.CodeInvalidParams},
		{"no version in _meta", ok, func(r *http.Request) { reword(r, "io.modelcontextprotocol/protocolVersion", "other") }, 400, wire.CodeInvalidParams},
		{"unknown log level", ask{method: "tools/list", meta: `,"io.modelcontextprotocol/logLevel":"loud"`}, nil, 400, wire.CodeInvalidParams},
		{"logging/setLevel", ask{method: "logging/setLevel"}, nil, 404, wire.CodeMethodNotFound},
		{"a method nobody knows, without _meta", ask{method: "custom/method"}, bare, 400, wire.CodeInvalidParams},
		{"tools/list without _meta", ask{method: "tools/list"}, bare, 400, wire.CodeInvalidParams},
		{"neither the method header nor capabilities", with("Mcp-Method", ""), func(r *http.Request) { reword(r, "clientCapabilities", "other") }, 400, wire.CodeHeaderMismatch},
		{"discover, another version in _meta", discover, func(r *http.Request) { reword(r, "2026-07-28", "2025-11-25") }, 400, wire.CodeHeaderMismatch},
		{"discover without the header", ask{method: "server/discover", headers: []string{versionIs, ""}}, nil, 400, wire.CodeHeaderMismatch},
		{"discover of an older version", ask{method: "server/discover", headers: []string{versionIs, "2025-11-25"}}, func(r *http.Request) { reword(r, "2026-07-28", "2025-11-25") }, 400, wire.CodeUnsupportedVersion},
		{"discover without capabilities", discover, func(r *http.Request) { reword(r, "clientCapabilities", "other") }, 400, wire.CodeInvalidParams},
		{"discover without _meta", discover, bare, 400, wire.CodeInvalidParams},
		{"an argument in no base64", with("Mcp-Param-City", "=?base64?!?="), nil, 400, wire.CodeHeaderMismatch},
		{"resources/subscribe", ask{method: "resources/subscribe"}, nil, 404, wire.CodeMethodNotFound},
		{"an answer", ok, func(r *http.Request) { setBody(r, `{"jsonrpc":"2.0","id":1,"result":{}}`) }, 400, wire.CodeInvalidRequest},
		{"a batch", ok, func(r *http.Request) { setBody(r, "["+bodyOf(r)+"]") }, 400, wire.CodeInvalidRequest},
	}
	for _, tt := range tests {
		in(t, tt.name, modern, func(t *testing.T, w *world) {
			r := tt.ask.request()
			if tt.change != nil {
				tt.change(r)
			}
			got := w.do(r)
			got.is(t, tt.name, tt.status, tt.code)
			readable(t, got)
			commontest.EqualIn(t, "supported versions", tt.code == wire.CodeUnsupportedVersion, wire.Lookup([]byte(got.body), "error", "data", "supported") != nil)
			w.silent()
		})
	}
}

// bare removes everything from a request except its method.
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

func TestModernHeaderValuesAreDecoded(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		for header, tool := range map[string]string{"=?base64?ZWNobw==?=": "echo", "zwéi": "zwéi"} { // as go-sdk sends one
			a := toolCall(tool)
			a.headers = []string{"Mcp-Name", header, "Mcp-Param-City", "=?base64?WsO8cmljaA==?="}
			w.do(a.request()).result(t)
		}
	})
}

func TestNoLegacyVerbReachesThePinnedSession(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.do(toolCall("echo").request()).result(t)
		id := sessions.PinnedID(sessions.Caller{Server: sessions.Server{Name: "quiet"}, Identity: storage.Identity{Tenant: "tenant", Principal: "ada"}})
		_, _, err := w.store.Load(t.Context(), id, "")
		commontest.OK(t, err)
		c := w.at("/quiet/mcp", string(id))
		for name, got := range map[string]*answer{
			"POST":    c.call("echo"),
			"GET":     c.get(""),
			"DELETE":  c.del(),
			"message": w.do(request("POST", "/quiet/message?sessionId="+string(id), callOf("echo"))),
			"sse":     w.do(request("GET", "/quiet/sse?sessionId="+string(id), "")),
		} {
			got.is(t, name, 404, 0)
		}
	})
}
