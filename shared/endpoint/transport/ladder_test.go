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
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// rung is one fault of a request of a session: the change that makes it, and the answer to it.
type rung struct {
	name   string
	status int
	code   wire.Code
	breaks func(*http.Request)
}

// ladder returns the faults of a POST in the order in which they are checked.
func ladder(session string) []rung {
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) {
			if r.Header.Del(name); value != "" {
				r.Header.Set(name, value)
			}
		}
	}
	body := func(text string, headers ...string) func(*http.Request) {
		return func(r *http.Request) {
			setBody(r, text)
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
		}
	}
	return []rung{
		{"host", 403, wire.CodeServer, func(r *http.Request) { r.Host = "evil.example" }},
		{"origin", 403, wire.CodeServer, header("Origin", "https://evil.example")},
		{"path", 404, wire.CodeServer, func(r *http.Request) { r.URL.Path = "/quiet" }},
		{"method", 405, wire.CodeServer, func(r *http.Request) { r.Method = "PUT" }},
		{"principal", 401, wire.CodeServer, header("Authorization", "Bearer nobody")},
		{"server", 404, wire.CodeServer, func(r *http.Request) { r.URL.Path = strings.Replace(r.URL.Path, "quiet", "absent", 1) }},
		{"accept", 406, wire.CodeServer, header("Accept", "text/event-stream")},
		{"content type", 415, wire.CodeServer, header("Content-Type", "text/plain")},
		{"size", 413, wire.CodeInvalidRequest, body(strings.Repeat(" ", 2000))},
		{"json", 400, wire.CodeParse, body(`{"jsonrpc":`)},
		{"json-rpc", 400, wire.CodeInvalidRequest, body(`{"id":7}`)},
		{"two ids to some readers", 400, wire.CodeInvalidRequest, body(`{"jsonrpc":"2.0","id":7,"ID":8,"method":"tools/list"}`)},
		{"two tokens to some readers", 400, wire.CodeInvalidRequest, body(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":7},"_meta":{}}}`)},
		{"initialize in a batch", 400, wire.CodeInvalidRequest, body("[" + initialize + "]")},
		{"initialize with a session", 400, wire.CodeInvalidRequest, body(initialize, sessionIs, session)},
		{"modern", 400, wire.CodeHeaderMismatch, body(`{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`)},
		{"version", 400, wire.CodeServer, header(versionIs, "1999-01-01")},
		{"batch", 400, wire.CodeInvalidRequest, body("["+list+"]", versionIs, "2025-06-18")},
		{"no session", 400, wire.CodeServer, header(sessionIs, "")},
		{"unknown session", 404, wire.CodeSessionNotFound, header(sessionIs, "absent")},
	}
}

// a client can read every refusal. No request that is refused reaches the server.
func TestEachRungBeatsAllThatAreBelowIt(t *testing.T) {
	w := newWorld(t)
	w.opts.MaxBody = 1000
	c := w.visit("quiet")
	w.taken()
	rungs := ladder(c.session)
	for i, upper := range rungs {
		for _, lower := range rungs[i:] {
			r := request("POST", c.path, list, sessionIs, c.session)
			lower.breaks(r)
			upper.breaks(r)
			got := w.do(r)
			got.is(t, upper.name+" before "+lower.name, upper.status, upper.code)
			readable(t, got)
		}
	}
	w.silent()
}

// readable asserts that an answer is a refusal that its client can read: one JSON-RPC error
// with the content type JSON.
func readable(t *testing.T, a *answer) {
	t.Helper()
	var message map[string]json.RawMessage
	if err := json.Unmarshal([]byte(a.body), &message); err != nil || a.status < 400 || a.header.Get("Content-Type") != wire.MediaJSON {
		t.Errorf("got %d %s %s, %v", a.status, a.header.Get("Content-Type"), a.body, err)
		return
	}
	code, text := a.rpcError(t)
	if !slices.Equal(slices.Sorted(maps.Keys(message)), []string{"error", "id", "jsonrpc"}) || code == 0 || text == "" {
		t.Errorf("got %s", a.body)
	}
}

func TestAccept(t *testing.T) {
	for accept, want := range map[string]struct{ post, get int }{
		"application/json, text/event-stream":                          {404, 404},
		"text/event-stream;q=0.5,application/json;charset=utf-8;q=1.0": {404, 404},
		"*/*":               {404, 404},
		"text/event-stream": {406, 404},
		"application/*":     {404, 406},
		"text/event-stream;q=0, application/json": {404, 406},
		"": {406, 404},
	} {
		w := newWorld(t)
		for method, status := range map[string]int{"POST": want.post, "GET": want.get} {
			r := request(method, "/quiet/mcp", callOf("x"), sessionIs, "absent")
			if r.Header.Del("Accept"); accept != "" {
				r.Header["Accept"] = strings.Split(accept, "\n")
			}
			w.do(r).is(t, method+" "+accept, status, 0)
		}
	}
}

func TestContentType(t *testing.T) {
	for value, want := range map[string]int{
		"application/json": 404, "Application/JSON;charset=\"UTF-8\"": 404, "application/json;charset=utf8": 404,
		"application/json; charset=utf-16": 415, "application/json-rpc": 415, "text/json": 415, "": 415, ";": 415,
	} {
		newWorld(t).do(request("POST", "/quiet/mcp", callOf("x"), "Mcp-Session-Id", "absent", "Content-Type", value)).is(t, value, want, 0)
	}
}

func TestBodyOverTheLimitIsRefused(t *testing.T) {
	const fits = `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`
	for name, tt := range map[string]struct {
		limit, declared int64
		body            io.Reader
		want            int
	}{
		"as long as it may be":        {int64(len(fits)), int64(len(fits)), strings.NewReader(fits), 404},
		"one byte longer, undeclared": {int64(len(fits)), -1, strings.NewReader(fits + " "), 413},
		"4 MiB and a byte":            {0, 4<<20 + 1, strings.NewReader(""), 413},
		"it breaks off":               {0, -1, iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(fits))), 400},
	} {
		w := newWorld(t)
		w.opts.MaxBody = tt.limit
		r := request("POST", "/quiet/mcp", "", "Mcp-Session-Id", "absent")
		r.Body, r.ContentLength = io.NopCloser(tt.body), tt.declared
		w.do(r).is(t, name, tt.want, 0)
	}
}

func TestIDThatCannotBeOursIsUnknownWithoutALookup(t *testing.T) {
	for _, id := range []string{"a/b", "a.b", "a b", "é", strings.Repeat("a", 65)} {
		w := newWorld(t)
		w.down("")
		w.do(request("POST", "/quiet/mcp", callOf("x"), "Mcp-Session-Id", id)).is(t, id, 404, wire.CodeSessionNotFound)
	}
}

func TestCORS(t *testing.T) {
	const page = "https://app.example"
	for _, tt := range []struct {
		allowed      []string
		host         string
		good, others []string // origins
	}{
		{nil, "localhost", []string{"", "http://localhost:80"}, []string{page, "http://localhost.evil.example", "null", "file://localhost", "http://localhost\nhttp://localhost"}},
		// Another program of this machine may not call. The same may, by any of its addresses.
		{nil, "localhost:8787", []string{"http://127.0.0.1:8787"}, []string{"http://localhost:6274"}},
		{nil, "127.0.0.1:443", []string{"https://localhost"}, nil},
		{nil, "127.0.0.2:8787", []string{"http://[::1]:8787"}, nil},
		{[]string{"http://localhost:6274"}, "localhost:8787", []string{"http://localhost:6274"}, nil},
		{[]string{page}, "localhost", []string{page, "http://localhost"}, []string{"http://app.example", page + ":8443"}},
		{[]string{"*"}, "localhost", []string{page, "null"}, nil},
		{nil, "mcp.example", []string{"https://mcp.example", "https://MCP.example"}, []string{"https://mcp.example:8443", "https://other.example"}},
	} {
		for _, origin := range append(tt.good, tt.others...) {
			w := newWorld(t)
			w.opts.AllowedOrigins = tt.allowed
			if strings.HasPrefix(tt.host, "mcp.example") {
				w.opts.AllowedHosts = []string{"mcp.example"}
			}
			r := request("POST", "/quiet/mcp", callOf("x"), sessionIs, "absent")
			r.Host = tt.host
			if origin != "" {
				r.Header["Origin"] = strings.Split(origin, "\n")
			}
			got := w.do(r)
			what, status, echo := origin+" at "+tt.host, 404, origin
			if !slices.Contains(tt.good, origin) {
				status, echo = 403, ""
			}
			got.is(t, what, status, 0)
			commontest.EqualIn(t, what+": Vary", "Origin", got.header.Get("Vary"))
			commontest.EqualIn(t, what+": allowed", echo, got.header.Get("Access-Control-Allow-Origin"))
			commontest.EqualIn(t, what+", exposed", echo != "", strings.Contains(got.header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id, WWW-Authenticate"))
		}
	}
}

func TestHost(t *testing.T) {
	for _, tt := range []struct {
		allowed      []string
		good, others []string
	}{
		{
			nil,
			[]string{"localhost", "LOCALHOST:8787", "127.0.0.1:1", "127.0.0.2:8787", "127.255.255.254", "[::1]:1", "[::1]"},
			[]string{"128.0.0.1", "0.0.0.0:8787", "[::2]:8787", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""},
		},
		{[]string{"mcp.example"}, []string{"mcp.example", "MCP.example:8443"}, []string{"localhost"}},
		{[]string{"mcp.example:8443"}, []string{"mcp.example:8443"}, []string{"mcp.example", "mcp.example:1"}},
		{[]string{"a", "*"}, []string{"anything", ""}, nil},
	} {
		for _, host := range append(tt.good, tt.others...) {
			w := newWorld(t)
			w.opts.AllowedHosts = tt.allowed
			for era, r := range map[string]*http.Request{"legacy": request("POST", "/quiet/mcp", callOf("x"), "Mcp-Session-Id", "absent"), "modern": toolCall("x").request()} {
				r.Host = host
				commontest.EqualIn(t, era+", "+host, slices.Contains(tt.good, host), w.do(r).status != 403)
			}
		}
	}
}

// The headers of arguments have names that only the server knows. Libraries in a page, such as
// OpenTelemetry's, add headers to every request.
func TestPreflightIsAnsweredBeforeAnythingElse(t *testing.T) {
	w := newWorld(t)
	ask := func(path, origin, asked string) http.Header {
		return w.do(request("OPTIONS", path, "", "Origin", origin, "Authorization", "Bearer nobody", "Accept", "", "Access-Control-Request-Headers", asked)).header
	}
	const allowed = "Access-Control-Allow-Headers"
	own := ask("/quiet/mcp", "http://localhost", "").Get(allowed)
	for _, name := range []string{"content-type", "accept", "authorization", "mcp-session-id", "mcp-protocol-version", "last-event-id", "mcp-method", "mcp-name"} {
		commontest.Contains(t, allowed, name, strings.ToLower(own))
	}
	for _, path := range []string{"/quiet/mcp", "/absent/mcp"} {
		for name, want := range map[string]string{
			"Access-Control-Allow-Origin": "http://localhost", "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS", "Vary": "Origin", allowed: own,
		} {
			commontest.EqualIn(t, path+": "+name, want, ask(path, "http://localhost", "").Get(name))
		}
	}
	for asked, more := range map[string]string{
		"mcp-param-region, traceparent, traceparent, ACCEPT":         ", mcp-param-region, traceparent",
		"cookie, Cookie2, sec-fetch-site, proxy-authorization, host": "",
		"a b, *, x\x00y, <script>, x-é, (":                           "",
	} {
		commontest.EqualIn(t, asked, own+more, ask("/quiet/mcp", "http://localhost", asked).Get(allowed))
	}
	commontest.EqualIn(t, "a page that may not call", "", ask("/quiet/mcp", "https://evil.example", "traceparent").Get(allowed))
}
