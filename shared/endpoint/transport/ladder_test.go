package transport_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/google/go-cmp/cmp"
)

// rung is one fault of a request: the change that makes it, and the answer to it.
type rung struct {
	name   string
	status int
	code   wire.Code
	breaks func(*attempt)
}

type attempt struct {
	method, path, host, body string
	headers                  map[string]string
	session                  string
}

// attempted returns a request of a session, before anything is wrong with it.
func attempted(session string) *attempt {
	return &attempt{
		method: "POST", path: "/quiet/mcp", host: "localhost", headers: map[string]string{"Mcp-Session-Id": session}, session: session,
		body: `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`,
	}
}

func (a *attempt) request() *http.Request {
	r := request(a.method, a.path, a.body)
	r.Host = a.host
	for name, value := range a.headers {
		r.Header.Set(name, value)
		if value == "" {
			r.Header.Del(name)
		}
	}
	return r
}

// ladder returns the faults of a POST in the order in which they are checked. An earlier
// fault may already have replaced the body that a later one would change. So a rung sets a
// body only if there is none yet.
func ladder() []rung {
	header := func(name, value string) func(*attempt) {
		return func(a *attempt) { a.headers[name] = value }
	}
	body := func(text string) func(*attempt) {
		return func(a *attempt) { a.body = text }
	}
	return []rung{
		{"host", 403, wire.CodeServer, func(a *attempt) { a.host = "evil.example" }},
		{"origin", 403, wire.CodeServer, header("Origin", "https://evil.example")},
		{"path", 404, wire.CodeServer, func(a *attempt) { a.path = "/quiet" }},
		{"method", 405, wire.CodeServer, func(a *attempt) { a.method = "PUT" }},
		{"principal", 401, wire.CodeServer, header("Authorization", "Bearer nobody")},
		{"server", 404, wire.CodeServer, func(a *attempt) { a.path = strings.Replace(a.path, "quiet", "absent", 1) }},
		{"accept", 406, wire.CodeServer, header("Accept", "text/event-stream")},
		{"content type", 415, wire.CodeServer, header("Content-Type", "text/plain")},
		{"size", 413, wire.CodeInvalidRequest, body(strings.Repeat(" ", 2000))},
		{"json", 400, wire.CodeParse, body(`{"jsonrpc":`)},
		{"json-rpc", 400, wire.CodeInvalidRequest, body(`{"id":7}`)},
		{"two ids to some readers", 400, wire.CodeInvalidRequest, body(`{"jsonrpc":"2.0","id":7,"ID":8,"method":"tools/list"}`)},
		{"two tokens to some readers", 400, wire.CodeInvalidRequest, body(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":7},"_meta":{}}}`)},
		{"initialize in a batch", 400, wire.CodeInvalidRequest, body("[" + initialize + "]")},
		{"initialize with a session", 400, wire.CodeInvalidRequest, func(a *attempt) {
			a.headers["Mcp-Session-Id"], a.body = a.session, initialize
		}},
		{"modern", 400, wire.CodeHeaderMismatch, func(a *attempt) {
			a.body = `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`
		}},
		{"version", 400, wire.CodeServer, header("MCP-Protocol-Version", "1999-01-01")},
		{"batch", 400, wire.CodeInvalidRequest, func(a *attempt) {
			a.headers["MCP-Protocol-Version"] = "2025-06-18"
			a.body = `[{"jsonrpc":"2.0","id":7,"method":"tools/list"}]`
		}},
		{"no session", 400, wire.CodeServer, header("Mcp-Session-Id", "")},
		{"unknown session", 404, wire.CodeSessionNotFound, header("Mcp-Session-Id", "absent")},
	}
}

// a client can read every refusal. No request that is refused reaches the
// server.
func TestEachRungBeatsAllThatAreBelowIt(t *testing.T) {
	rungs := ladder()
	for i, upper := range rungs {
		for _, lower := range rungs[i:] {
			t.Run(upper.name+" before "+lower.name, func(t *testing.T) {
				w := newWorld(t)
				w.opts.MaxBody = 1000
				a := attempted(w.visit("quiet").session)
				before := len(w.backend.got)
				lower.breaks(a)
				upper.breaks(a)
				got := w.do(a.request())
				if code := readable(t, got); got.status != upper.status || code != upper.code {
					t.Errorf("got %d %s, want %d with code %d", got.status, got.body, upper.status, upper.code)
				}
				if len(w.backend.got) != before {
					t.Errorf("the server got %s", w.backend.got[before:])
				}
			})
		}
	}
}

// readable asserts that an answer is a refusal that its client can read: one JSON-RPC error
// with the content type JSON. It returns the error's code.
func readable(t *testing.T, a *answer) wire.Code {
	t.Helper()
	var message map[string]json.RawMessage
	if err := json.Unmarshal([]byte(a.body), &message); err != nil || a.status < 400 || a.header.Get("Content-Type") != wire.MediaJSON {
		t.Errorf("got %d %s %s, %v", a.status, a.header.Get("Content-Type"), a.body, err)
		return 0
	}
	if diff := cmp.Diff([]string{"error", "id", "jsonrpc"}, slices.Sorted(maps.Keys(message))); diff != "" || string(message["jsonrpc"]) != `"2.0"` {
		t.Errorf("got %s", a.body)
	}
	code, text := a.rpcError(t)
	if code == 0 || text == "" {
		t.Errorf("got %s", a.body)
	}
	return wire.Code(code)
}

func TestServerThatIsNotServedSaysWhy(t *testing.T) {
	for _, c := range []struct {
		method, path, key string
		status            int
		says              string
	}{
		{"POST", "/weather/mcp", "", 503, `server \"weather\" is not served: WEATHER_KEY is not set (servers.json:14:32)`},
		{"POST", "/old/mcp", "", 404, "server old was removed from the servers file at 12:41"},
		{"GET", "/weather/mcp", "", 503, `is not served`},
		{"GET", "/weather/sse", "", 503, `is not served`},
		{"POST", "/weather/mcp", "Bearer nobody", 401, `not authenticated`},
		{"POST", "/absent/mcp", "", 404, `there is no such server`},
	} {
		a := newWorld(t).do(request(c.method, c.path, initialize, "Authorization", c.key))
		if a.status != c.status || !strings.Contains(a.body, c.says) || c.status == 401 && strings.Contains(a.body, "WEATHER") {
			t.Errorf("%s %s %s: got %d %s, want %d %s", c.method, c.path, c.key, a.status, a.body, c.status, c.says)
		}
		// Some clients hide an error that names no request of theirs.
		if c.method == "POST" && !strings.Contains(a.body, `"id":0,`) {
			t.Errorf("%s: got %s, want the id of the request", c.path, a.body)
		}
	}
}

func TestErrorCarriesTheIDOfTheFirstRequest(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"number kept digit by digit", `{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/list"}`, `"id":9007199254740993,`},
		{"string", `{"jsonrpc":"2.0","id":"a","method":"tools/list"}`, `"id":"a",`},
		{"first request of a batch", `[{"jsonrpc":"2.0","method":"m"},{"jsonrpc":"2.0","id":"b","method":"m"}]`, `"id":"b",`},
		{"a message that is refused", `{"id":5,"method":"m"}`, `"id":5,`},
		{"a notification has none", `{"jsonrpc":"2.0","method":"m"}`, `"id":null,`},
		{"a response has none of its own", `{"jsonrpc":"2.0","id":3,"result":{}}`, `"id":null,`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := newWorld(t).do(request("POST", "/quiet/mcp", tt.body, "Mcp-Session-Id", "absent"))
			if got.status < 400 || !strings.Contains(got.body, tt.want) {
				t.Errorf("got %d %s, want %s", got.status, got.body, tt.want)
			}
		})
	}
}

func TestAccept(t *testing.T) {
	tests := []struct {
		accept    string
		post, get int
	}{
		{"application/json, text/event-stream", 404, 404},
		{"text/event-stream;q=0.5,application/json;charset=utf-8;q=1.0", 404, 404},
		{"*/*", 404, 404},
		{"application/*, text/*", 404, 404},
		{"APPLICATION/JSON, Text/Event-Stream", 404, 404},
		{"text/event-stream", 406, 404},
		{"application/json", 404, 406},
		{"application/*", 404, 406},
		{"text/event-stream;q=0, application/json", 404, 406},
		{"text/html", 406, 406},
		{"", 406, 404},
	}
	for _, tt := range tests {
		t.Run(tt.accept, func(t *testing.T) {
			w := newWorld(t)
			post := w.do(request("POST", "/quiet/mcp", callOf("x"), "Mcp-Session-Id", "absent", "Accept", tt.accept))
			get := w.do(request("GET", "/quiet/mcp", "", "Mcp-Session-Id", "absent", "Accept", tt.accept))
			if post.status != tt.post || get.status != tt.get {
				t.Errorf("POST %d, GET %d; want %d, %d", post.status, get.status, tt.post, tt.get)
			}
		})
	}
}

func TestAcceptInTwoHeadersIsOneList(t *testing.T) {
	r := request("POST", "/quiet/mcp", callOf("x"), "Mcp-Session-Id", "absent", "Accept", "application/json")
	r.Header.Add("Accept", "text/event-stream")
	if got := newWorld(t).do(r); got.status != 404 {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

func TestContentType(t *testing.T) {
	tests := map[string]int{
		"application/json": 404, "application/json; charset=utf-8": 404, "Application/JSON;charset=\"UTF-8\"": 404,
		"application/json; charset=utf-16": 415, "application/json-rpc": 415, "text/json": 415, "": 415, ";": 415,
	}
	for value, want := range tests {
		t.Run(value, func(t *testing.T) {
			if got := newWorld(t).do(request("POST", "/quiet/mcp", callOf("x"), "Mcp-Session-Id", "absent", "Content-Type", value)); got.status != want {
				t.Errorf("got %d, want %d", got.status, want)
			}
		})
	}
}

func TestBodyOverTheLimitIsRefused(t *testing.T) {
	fits := `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`
	tests := []struct {
		name     string
		body     string
		declared int64
		want     int
	}{
		{"as long as it may be", fits, int64(len(fits)), 404},
		{"as long as it may be, undeclared", fits, -1, 404},
		{"one byte longer", fits + " ", int64(len(fits)) + 1, 413},
		{"one byte longer, undeclared", fits + " ", -1, 413},
		{"declared longer than it is", fits, int64(len(fits)) + 1, 413},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.opts.MaxBody = int64(len(fits))
			r := request("POST", "/quiet/mcp", tt.body, "Mcp-Session-Id", "absent")
			r.ContentLength = tt.declared
			if got := w.do(r); got.status != tt.want {
				t.Errorf("got %d %s, want %d", got.status, got.body, tt.want)
			}
		})
	}
}

func TestBodyThatBreaksOffIsRefused(t *testing.T) {
	r := request("POST", "/quiet/mcp", "")
	r.Body = io.NopCloser(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(callOf("x")))))
	if got := newWorld(t).do(r); got.status != 400 {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

func TestBodyLimitIsFourMiB(t *testing.T) {
	w := newWorld(t)
	r := request("POST", "/quiet/mcp", "")
	r.ContentLength = 4<<20 + 1
	if got := w.do(r); got.status != 413 || !strings.Contains(got.body, "4194304") {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

func TestGetAndDeleteAreCheckedInOrder(t *testing.T) {
	tests := []struct {
		name, method string
		headers      []string
		status       int
		code         wire.Code
	}{
		{"accept first", "GET", []string{"Accept", "text/html", "MCP-Protocol-Version", "1999-01-01"}, 406, wire.CodeServer},
		{"then version", "GET", []string{"MCP-Protocol-Version", "1999-01-01"}, 400, wire.CodeServer},
		{"then session", "GET", []string{"Last-Event-ID", "?"}, 400, wire.CodeServer},
		{"then event id", "GET", []string{"Mcp-Session-Id", "absent", "Last-Event-ID", "?"}, 400, wire.CodeInvalidRequest},
		{"then lookup", "GET", []string{"Mcp-Session-Id", "absent", "Last-Event-ID", "1"}, 404, wire.CodeSessionNotFound},
		{"lookup without event id", "GET", []string{"Mcp-Session-Id", "absent"}, 404, wire.CodeSessionNotFound},
		{"version", "DELETE", []string{"MCP-Protocol-Version", "1999-01-01"}, 400, wire.CodeServer},
		{"session", "DELETE", nil, 400, wire.CodeServer},
		{"lookup", "DELETE", []string{"Mcp-Session-Id", "absent"}, 404, wire.CodeSessionNotFound},
		{"head", "HEAD", []string{"Mcp-Session-Id", "absent"}, 405, 0},
		{"patch", "PATCH", []string{"Mcp-Session-Id", "absent"}, 405, wire.CodeServer},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.name, func(t *testing.T) {
			got := newWorld(t).do(request(tt.method, "/quiet/mcp", "", tt.headers...))
			if got.status != tt.status {
				t.Fatalf("got %d %s, want %d", got.status, got.body, tt.status)
			}
			if tt.code == 0 {
				if got.body != "" {
					t.Errorf("a body: %s", got.body)
				}
			} else if code := readable(t, got); code != tt.code {
				t.Errorf("got %s, want code %d", got.body, tt.code)
			}
			if tt.status == 405 && got.header.Get("Allow") != "GET, POST, DELETE, OPTIONS" {
				t.Errorf("Allow %q", got.header.Get("Allow"))
			}
		})
	}
}

func TestPathsOfServers(t *testing.T) {
	tests := map[string]int{
		"/quiet/mcp": 404, "/quiet/mcp/": 404, // the session is what is not found
		"/": 0, "/mcp": 0, "//mcp": 0, "/quiet": 0, "/quiet/": 0, "/a/quiet/mcp": 0, "/quiet/mcp/x": 0,
		"/quiet/mcp//": 0, "/quietmcp": 0, "/absent/mcp": 0, "/QUIET/mcp": 0,
	}
	for path, want := range tests {
		t.Run(path, func(t *testing.T) {
			got := newWorld(t).do(request("POST", path, callOf("x"), "Mcp-Session-Id", "absent"))
			code, message := got.rpcError(t)
			switch {
			case want == 404 && code != int(wire.CodeSessionNotFound):
				t.Errorf("%s: got %d %s", path, got.status, got.body)
			case want == 0 && (got.status != 404 || !strings.Contains(message, "/<server>/mcp") || strings.Contains(message, "quiet")):
				t.Errorf("%s: got %d %s", path, got.status, got.body)
			}
		})
	}
}

func TestIDThatCannotBeOursIsUnknownWithoutALookup(t *testing.T) {
	for _, id := range []string{"a/b", "a.b", "a b", "é", strings.Repeat("a", 65)} {
		w := newWorld(t)
		w.down("")
		if got := w.do(request("POST", "/quiet/mcp", callOf("x"), "Mcp-Session-Id", id)); got.status != 404 {
			t.Errorf("%s: got %d %s", id, got.status, got.body)
		}
	}
}

func TestCORS(t *testing.T) {
	const page = "https://app.example"
	tests := []struct {
		name         string
		allowed      []string
		origin, host string
		want         bool
	}{
		{"none", nil, "", "localhost", true},
		{"another program of this machine", nil, "http://localhost:6274", "localhost:8787", false},
		{"another program, listed", []string{"http://localhost:6274"}, "http://localhost:6274", "localhost:8787", true},
		{"the same program by its address", nil, "http://127.0.0.1:8787", "localhost:8787", true},
		{"the same program by another address", nil, "http://[::1]:8787", "127.0.0.2:8787", true},
		{"the same program by another scheme", nil, "https://localhost", "127.0.0.1:443", true},
		{"same host", nil, "http://localhost:80", "localhost", true},
		{"looks like loopback", nil, "http://localhost.evil.example", "localhost", false},
		{"elsewhere", nil, page, "localhost", false},
		{"opaque", nil, "null", "localhost", false},
		{"no web page", nil, "file://localhost", "localhost", false},
		{"listed", []string{page}, page, "localhost", true},
		{"listed with a slash", []string{page + "/"}, page, "localhost", true},
		{"other scheme", []string{page}, "http://app.example", "localhost", false},
		{"other port", []string{page}, page + ":8443", "localhost", false},
		{"a list does not replace the own pages", []string{page}, "http://localhost", "localhost", true},
		{"all", []string{"*"}, page, "localhost", true},
		{"the name of the endpoint", nil, "https://mcp.example", "mcp.example", true},
		{"the name with the port of HTTPS", nil, "https://mcp.example", "mcp.example:443", true},
		{"the name in another case", nil, "https://MCP.example", "mcp.example", true},
		{"the name with a port", nil, "https://mcp.example:8443", "mcp.example:8443", true},
		{"another port of the name", nil, "https://mcp.example:8443", "mcp.example", false},
		{"another name", nil, "https://other.example", "mcp.example", false},
		{"all, opaque", []string{"*"}, "null", "localhost", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.opts.AllowedOrigins = tt.allowed
			if tt.host == "mcp.example" || strings.HasPrefix(tt.host, "mcp.example:") {
				w.opts.AllowedHosts = []string{"mcp.example"}
			}
			r := request("POST", "/quiet/mcp", callOf("x"), "Mcp-Session-Id", "absent", "Origin", tt.origin)
			r.Host = tt.host
			got := w.do(r)
			if (got.status != 403) != tt.want {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			if got.header.Get("Vary") != "Origin" {
				t.Errorf("Vary %q", got.header.Get("Vary"))
			}
			echo := tt.origin
			if !tt.want {
				echo = ""
			}
			commontest.EqualIn(t, "allowed origin", echo, got.header.Get("Access-Control-Allow-Origin"))
			if exposed := got.header.Get("Access-Control-Expose-Headers"); (echo != "") != strings.Contains(exposed, "Mcp-Session-Id, WWW-Authenticate") {
				t.Errorf("exposed %q", exposed)
			}
		})
	}
}

func TestTwoOriginsAreNone(t *testing.T) {
	r := request("POST", "/quiet/mcp", callOf("x"), "Origin", "http://localhost")
	r.Header.Add("Origin", "http://localhost")
	if got := newWorld(t).do(r); got.status != 403 {
		t.Errorf("got %d", got.status)
	}
}

func TestHost(t *testing.T) {
	tests := []struct {
		allowed []string
		host    string
		want    bool
	}{
		{nil, "localhost", true},
		{nil, "LOCALHOST:8787", true},
		{nil, "127.0.0.1:1", true},
		{nil, "127.0.0.2:8787", true},
		{nil, "127.255.255.254", true},
		{nil, "128.0.0.1", false},
		{nil, "0.0.0.0:8787", false},
		{nil, "[::2]:8787", false},
		{nil, "[::1]:1", true},
		{nil, "[::1]", true},
		{nil, "evil.example", false},
		{nil, "localhost.evil.example", false},
		{nil, "127.0.0.1.evil.example:80", false},
		{nil, "", false},
		{[]string{"mcp.example"}, "mcp.example", true},
		{[]string{"mcp.example"}, "MCP.example:8443", true},
		{[]string{"mcp.example"}, "localhost", false},
		{[]string{"mcp.example:8443"}, "mcp.example:8443", true},
		{[]string{"mcp.example:8443"}, "mcp.example", false},
		{[]string{"mcp.example:8443"}, "mcp.example:1", false},
		{[]string{"a", "*"}, "anything", true},
		{[]string{"*"}, "", true},
	}
	for _, tt := range tests {
		w := newWorld(t)
		w.opts.AllowedHosts = tt.allowed
		for era, r := range map[string]*http.Request{"legacy": request("POST", "/quiet/mcp", callOf("x"), "Mcp-Session-Id", "absent"), "modern": toolCall("x").request()} {
			r.Host = tt.host
			if got := w.do(r); (got.status != 403) != tt.want {
				t.Errorf("%s, %q with %q: got %d", era, tt.host, tt.allowed, got.status)
			}
		}
	}
}

func TestPreflightIsAnsweredBeforeAnythingElse(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/quiet/mcp", "/absent/mcp", "/"} {
		got := w.do(request("OPTIONS", path, "", "Origin", "http://localhost", "Authorization", "Bearer nobody", "Accept", ""))
		if got.status != 204 || got.body != "" {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		want := map[string]string{
			"Access-Control-Allow-Origin":  "http://localhost",
			"Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
			"Access-Control-Max-Age":       "86400",
			"Vary":                         "Origin",
		}
		for name, value := range want {
			commontest.EqualIn(t, name, value, got.header.Get(name))
		}
		headers := strings.ToLower(got.header.Get("Access-Control-Allow-Headers"))
		for _, name := range []string{
			"content-type", "accept", "authorization", "mcp-session-id", "mcp-protocol-version", "last-event-id", "mcp-method", "mcp-name",
		} {
			if !strings.Contains(headers, name) {
				t.Errorf("%s is not allowed in %s", name, headers)
			}
		}
	}
}

// The headers of arguments have names that only the server knows. Libraries in a page, such as
// OpenTelemetry's, add headers to every request.
func TestPreflightAllowsWhatAnAllowedPageAsksFor(t *testing.T) {
	ask := func(origin, headers string) string {
		a := newWorld(t).do(request("OPTIONS", "/quiet/mcp", "", "Origin", origin, "Access-Control-Request-Headers", headers))
		return a.header.Get("Access-Control-Allow-Headers")
	}
	own := ask("http://localhost", "")
	for asked, want := range map[string]string{
		"content-type, mcp-param-region":                             ", mcp-param-region",
		"traceparent,baggage , x-api-key, cache-control, user-agent": ", traceparent, baggage, x-api-key, cache-control, user-agent",
		"cookie, Cookie2, sec-fetch-site, proxy-authorization, host": "",
		"set-cookie, access-control-request-method, te, origin":      "",
		"a b, *, x\x00y, <script>, x-é, (":                           "",
		strings.Repeat("x", 129):                                     "",
		"traceparent, traceparent, ACCEPT":                           ", traceparent",
	} {
		if got := ask("http://localhost", asked); got != own+want {
			t.Errorf("%q: got %q, want %q", asked, got, own+want)
		}
	}
	if got := ask("https://evil.example", "traceparent"); got != "" {
		t.Errorf("a page that may not call: %q", got)
	}
}

func TestPrincipalMayRefuseWithAnyCode(t *testing.T) {
	tests := map[int]error{
		401: storage.Unauthenticated,
		403: storage.Forbidden,
		404: storage.Errorf(storage.NotFound, "gone"),
		429: storage.Errorf(storage.Busy, "slow down"),
		503: storage.Errorf(storage.Unavailable, "keys cannot be read"),
	}
	for want, err := range tests {
		w := newWorld(t)
		w.opts.Auth = principal(func(*http.Request) (string, error) { return "", err })
		if got := w.do(request("POST", "/quiet/mcp", initialize)); got.status != want {
			t.Errorf("got %d, want %d", got.status, want)
		}
	}
}
