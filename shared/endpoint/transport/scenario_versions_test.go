package transport_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// the message of initialize alone decides the version
// of a session. The endpoint ignores a version header beside it, older, newer or of
// another era: a client that begins again may send the header of its last session.
func TestVersionOfASessionIsWhatItsInitializeSays(t *testing.T) {
	for name, tt := range map[string]struct{ header, message string }{
		"an older header":             {"2025-03-26", "2025-11-25"},
		"a newer header":              {"2025-11-25", "2025-03-26"},
		"a header of HTTP+SSE":        {"2024-11-05", "2025-11-25"},
		"a header of the modern era":  {"2026-07-28", "2025-06-18"},
		"a version that there is not": {"1999-01-01", "2025-06-18"},
		"a header that is none":       {"latest", "2025-06-18"},
		"the same":                    {"2025-11-25", "2025-11-25"},
		"no header":                   {"", "2025-11-25"},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *world) {
				w.backend.tool(wire.MethodInitialize, func(r run) {
					r.end(`{"protocolVersion":` + string(wire.Lookup([]byte(r.raw), "params", "protocolVersion")) + `,"capabilities":{}}`)
				})
				body := strings.Replace(initialize, "2025-11-25", tt.message, 1)
				a := w.do(request("POST", "/quiet/mcp", body, versionIs, tt.header))
				if got, _ := wire.String(wire.Lookup(a.result(t), "protocolVersion")); got != tt.message {
					t.Errorf("the session has version %q", got)
				}
				commontest.EqualIn(t, "the server got", body, string(w.backend.delivered[0].Raw))
				v := w.at("/quiet/mcp", a.header.Get(sessionIs))
				v.version = tt.message
				v.post(initialized)
				if a := v.call("x"); a.status != http.StatusOK {
					t.Errorf("a call got %d %s", a.status, a.body)
				}
			})
		})
	}
}

// a first message that is refused opens no session and
// reaches no server. If it names neither a session nor the modern era, the error says that
// it needs a session, whatever version it names.
func TestFirstPOSTThatIsRefusedOpensNoSession(t *testing.T) {
	tests := []struct {
		name, body string
		headers    []string
		status     int
		code       wire.Code
		says       string
	}{
		{"a request", list, nil, 400, wire.CodeServer, "names no session"},
		{"a request of an older client", list, []string{versionIs, "2025-11-25"}, 400, wire.CodeServer, "names no session"},
		{"a request that names an older version", strings.Replace(list, `list"`, `list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}}`, 1), []string{versionIs, "2025-11-25"}, 400, wire.CodeServer, "names no session"},
		{"a notification", initialized, nil, 400, wire.CodeServer, "names no session"},
		{"a version that there is not", list, []string{versionIs, "1999-01-01"}, 400, wire.CodeServer, "not supported"},
		{"a version to come", list, []string{versionIs, "2099-01-01", wire.HeaderMethod, "tools/list"}, 400, wire.CodeUnsupportedVersion, "not spoken"},
		{"initialize in a batch", "[" + initialize + "]", nil, 400, wire.CodeInvalidRequest, "batch"},
		{"initialize that does not take JSON", initialize, []string{"Accept", wire.MediaSSE}, 406, wire.CodeServer, "accept"},
		{"initialize that is no JSON", initialize, []string{"Content-Type", "text/plain"}, 415, wire.CodeServer, "JSON"},
		{"initialize that breaks off", initialize[:40], nil, 400, wire.CodeParse, "not valid JSON"},
		{"initialize of the modern era", strings.Replace(modernAsk, wire.MethodDiscover, wire.MethodInitialize, 1), []string{versionIs, "2026-07-28", wire.HeaderMethod, wire.MethodInitialize}, 404, wire.CodeMethodNotFound, "not served"},
	}
	scenario(t, func(t *testing.T, w *world) {
		for _, tt := range tests {
			a := w.do(request("POST", "/quiet/mcp", tt.body, tt.headers...))
			code, message := a.rpcError(t)
			if a.status != tt.status || wire.Code(code) != tt.code || !strings.Contains(message, tt.says) || a.header.Get(sessionIs) != "" {
				t.Errorf("%s: got %d %s", tt.name, a.status, a.body)
			}
		}
		w.nothingCame(t)
	})
}

// nothingCame asserts that there is no session, and that the server got nothing.
func (w *world) nothingCame(t *testing.T) {
	t.Helper()
	sessions, err := w.store.List(t.Context(), "tenant", "", 10)
	if err != nil || len(sessions) > 0 || w.calls["Create"] > 0 {
		t.Errorf("there are sessions: %v %v; calls of the store: %v", sessions, err, w.calls)
	}
	if len(w.backend.delivered) > 0 {
		t.Errorf("the server got %s", w.backend.delivered[0].Raw)
	}
}

// Members of _meta.
const (
	metaVersion = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	metaCaps    = `"io.modelcontextprotocol/clientCapabilities":{}`
	metaClient  = `"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}`
)

// saying is a request of the modern era, with the expected answer. A refused request must
// not reach a server.
type saying struct {
	name, method, version, header string // the headers of version and method
	params                        string
	status                        int
	code                          wire.Code // 0: it is served
	says                          string
}

func (y saying) request(server string) *http.Request {
	headers := []string{versionIs, y.version, wire.HeaderMethod, y.header}
	if name, ok := wire.String(wire.Lookup([]byte(y.params), "name")); ok {
		headers = append(headers, wire.HeaderName, name)
	}
	return request("POST", "/"+server+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"`+y.method+`","params":`+y.params+`}`, headers...)
}

// on sends a request to a server and checks the answer.
func (y saying) on(t *testing.T, w *world, server string) *answer {
	t.Helper()
	before := len(w.backend.delivered)
	a := w.do(y.request(server))
	if y.code == 0 {
		a.result(t)
		return a
	}
	code, message := a.rpcError(t)
	if a.status != y.status || wire.Code(code) != y.code || !strings.Contains(message, y.says) || !strings.Contains(a.body, `"id":1,`) {
		t.Errorf("%s: got %d %s", y.name, a.status, a.body)
	}
	if got := a.header.Get("Content-Type"); got != wire.MediaJSON {
		t.Errorf("%s: refused as %q", y.name, got)
	}
	if n := len(w.backend.delivered) - before; n > 0 {
		t.Errorf("%s: the server got %s", y.name, w.backend.delivered[before].Raw)
	}
	return a
}

// a modern request with all required parts is served, once. It need not name
// its client.
func TestModernRequestThatSaysAllOfItselfIsServedOnce(t *testing.T) {
	for name, meta := range map[string]string{
		"with clientInfo":    metaVersion + `,` + metaClient + `,` + metaCaps,
		"without clientInfo": metaVersion + `,` + metaCaps,
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *world) {
				saying{method: "tools/list", version: "2026-07-28", header: "tools/list", params: `{"_meta":{` + meta + `}}`}.on(t, w, "quiet")
				if n := len(w.backend.delivered); n != 1 || w.backend.delivered[0].Requests == nil {
					t.Errorf("the server got %d messages", n)
				}
			})
		})
	}
}

// the requirements for modern requests do not apply to requests of a session on the
// same URL, whether that session is known, unknown or over.
func TestMetadataIsAskedOfTheModernEraOnly(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		v := w.visit("quiet")
		unknown := w.at("/quiet/mcp", string(storage.NewID()))
		want := func(when string, a *answer, status int, code wire.Code) {
			t.Helper()
			if got := wire.Lookup([]byte(a.body), "error", "code"); a.status != status || code != 0 && string(got) != strconv.Itoa(int(code)) {
				t.Errorf("%s: got %d %s", when, a.status, a.body)
			}
		}
		before := len(w.backend.delivered)
		want("an unknown session", unknown.post(list), 404, wire.CodeSessionNotFound)
		want("a session", v.post(list), 200, 0)
		want("its end", v.del(), 204, 0)
		want("a session that is over", v.post(list), 404, wire.CodeSessionNotFound)
		saying{"the modern era", "tools/list", "2026-07-28", "tools/list", `{}`, 400, wire.CodeInvalidParams, "_meta"}.on(t, w, "quiet")
		if n := len(w.backend.delivered) - before; n != 1 {
			t.Errorf("the server got %d messages, want 1", n)
		}
	})
}

// before 2026-07-28 no header repeats the body, so no such header can be wrong.
func TestHeadersThatRepeatTheBodyAreTheModernEras(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		for _, headers := range [][]string{
			nil,
			{wire.HeaderMethod, "tools/list", wire.HeaderName, "other", wire.HeaderParamPrefix + "City", "=?base64?!?="},
		} {
			if a := w.visit("quiet").call("x", headers...); a.status != http.StatusOK {
				t.Errorf("%v: got %d %s", headers, a.status, a.body)
			}
		}
	})
}
