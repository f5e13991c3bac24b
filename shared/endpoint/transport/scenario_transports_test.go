package transport_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// way is a request and the way it must be served. SESSION, STREAM and SOCKET in it stand
// for sessions of Streamable HTTP, HTTP+SSE and WebSocket.
type way struct {
	method, path string
	headers      []string
	body         string
	status       int
	says         string // in the body
	allow        string
}

const (
	anyMethod   = "GET, POST, DELETE, OPTIONS"
	list        = `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`
	modernAsk   = `{"jsonrpc":"2.0","id":7,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	listed      = `"id":7,"result":{"content":[]}`
	noSession   = `"code":-32001`
	endpointIs  = "event: endpoint\n"
	sessionIs   = "Mcp-Session-Id"
	versionIs   = "MCP-Protocol-Version"
	lastEventIs = "Last-Event-ID"
)

// ways is the whole of the routing: the clients of every protocol version use one family of paths.
var ways = map[string]way{
	"POST initialize: a session of Streamable HTTP": {"POST", "/pushy/mcp", nil, initialize, 200, `"id":0,"result"`, ""},
	"POST initialize with the header of a version":  {"POST", "/pushy/mcp", []string{versionIs, "2024-11-05"}, initialize, 200, `"id":0,"result"`, ""},
	"POST initialize with a session":                {"POST", "/pushy/mcp", []string{sessionIs, "SESSION"}, initialize, 400, "must not name one", ""},
	"POST initialize with one that is gone":         {"POST", "/pushy/mcp", []string{sessionIs, "absent"}, initialize, 200, `"id":0,"result"`, ""},
	"POST of a session":                             {"POST", "/pushy/mcp", []string{sessionIs, "SESSION", versionIs, "2025-06-18"}, list, 200, listed, ""},
	"POST of a session, a batch of 2025-03-26":      {"POST", "/pushy/mcp", []string{sessionIs, "SESSION", versionIs, "2025-03-26"}, "[" + list + "]", 200, "[{", ""},
	"POST of a session, a batch of 2025-06-18":      {"POST", "/pushy/mcp", []string{sessionIs, "SESSION", versionIs, "2025-06-18"}, "[" + list + "]", 400, "no batches", ""},
	"POST of a session, a batch of a ping":          {"POST", "/pushy/mcp", []string{sessionIs, "SESSION"}, `[{"jsonrpc":"2.0","id":4,"method":"ping"}]`, 200, `[{"jsonrpc":"2.0","id":4,"result":{}}]`, ""},
	"POST of a session, a batch without requests":   {"POST", "/pushy/mcp", []string{sessionIs, "SESSION"}, "[" + initialized + "]", 202, "", ""},
	"POST of a session, headers of the modern era":  {"POST", "/pushy/mcp", []string{sessionIs, "SESSION", "Mcp-Method", "tools/call", "Mcp-Name", "other", "Mcp-Param-City", "=?base64?!?="}, list, 200, listed, ""},
	"POST of a session of another server":           {"POST", "/known/mcp", []string{sessionIs, "SESSION"}, list, 404, noSession, ""},
	"POST of a session, an answer":                  {"POST", "/pushy/mcp", []string{sessionIs, "SESSION"}, `{"jsonrpc":"2.0","id":"q","result":{}}`, 202, "", ""},
	"POST without a session":                        {"POST", "/pushy/mcp", nil, list, 400, "names no session", ""},
	"POST of an unknown session":                    {"POST", "/pushy/mcp", []string{sessionIs, "absent"}, list, 404, noSession, ""},
	"POST of a session of HTTP+SSE":                 {"POST", "/pushy/mcp", []string{sessionIs, "STREAM"}, list, 404, noSession, ""},
	"POST of the modern era":                        {"POST", "/pushy/mcp", []string{versionIs, "2026-07-28", "Mcp-Method", "server/discover"}, modernAsk, 200, `"supportedVersions"`, ""},
	"POST of a server that is not served":           {"POST", "/weather/mcp", nil, initialize, 503, "WEATHER_KEY is not set (servers.json:14:32)", ""},
	"POST of a server that was removed":             {"POST", "/old/mcp", nil, initialize, 404, "server old was removed from the servers file at 12:41", ""},
	"GET of a version to come":                      {"GET", "/pushy/mcp", []string{versionIs, "2099-01-01", sessionIs, "SESSION"}, "", 400, `"supported":["2026-07-28","2025-11-25",`, ""},
	"DELETE of a version to come":                   {"DELETE", "/pushy/mcp", []string{versionIs, "2026-05-11", sessionIs, "SESSION"}, "", 400, `"code":-32022`, ""},

	"GET of a session: its standalone stream":               {"GET", "/pushy/mcp", []string{sessionIs, "SESSION", versionIs, "2025-11-25"}, "", 200, "\ndata: \n\n", ""},
	"GET of a session, resumed":                             {"GET", "/pushy/mcp", []string{sessionIs, "SESSION", lastEventIs, "0/abc"}, "", 200, "", ""},
	"GET of a session of HTTP+SSE":                          {"GET", "/pushy/mcp", []string{sessionIs, "STREAM"}, "", 404, noSession, ""},
	"GET of a session of a WebSocket":                       {"GET", "/pushy/mcp", []string{sessionIs, "SOCKET", lastEventIs, "0"}, "", 404, noSession, ""},
	"GET, which is for an event stream before its version":  {"GET", "/pushy/mcp", []string{"Accept", "text/html;q=0, a/b", versionIs, "1999-01-01"}, "", 406, `"code":-32000`, ""},
	"GET, whose event comes before its session":             {"GET", "/pushy/mcp", []string{sessionIs, "absent", lastEventIs, "?"}, "", 400, "malformed index", ""},
	"GET of an unknown session":                             {"GET", "/pushy/mcp", []string{sessionIs, "absent", lastEventIs, "1"}, "", 404, noSession, ""},
	"GET with an event and no session":                      {"GET", "/pushy/mcp", []string{lastEventIs, "1"}, "", 400, "names no session", ""},
	"GET with neither: HTTP+SSE":                            {"GET", "/pushy/mcp", []string{"Accept", wire.MediaSSE}, "", 200, endpointIs, ""},
	"GET by which people look there with any client":        {"GET", "/pushy/mcp/", []string{"Accept", "*/*"}, "", 406, "text/event-stream", ""},
	"GET of a browser":                                      {"GET", "/pushy/mcp", []string{"Accept", "text/html"}, "", 200, "claude mcp add", ""},
	"GET with the event of HTTP+SSE":                        {"GET", "/pushy/mcp", []string{lastEventIs, "0.STREAM/out"}, "", 200, "data: /pushy/message?sessionId=STREAM", ""},
	"GET of the modern era":                                 {"GET", "/pushy/mcp", []string{versionIs, "2026-07-28", sessionIs, "SESSION"}, "", 405, "use POST", "POST, OPTIONS"},
	"GET to listen to a server that says nothing by itself": {"GET", "/known/mcp", []string{sessionIs, "KNOWN"}, "", 405, "no standalone stream", "POST, DELETE, OPTIONS"},

	"DELETE of a session":            {"DELETE", "/pushy/mcp", []string{sessionIs, "SESSION"}, "", 204, "", ""},
	"DELETE without a session":       {"DELETE", "/pushy/mcp", nil, "", 400, "names no session", ""},
	"DELETE of an unknown session":   {"DELETE", "/pushy/mcp", []string{sessionIs, "absent"}, "", 404, noSession, ""},
	"DELETE of a session of another": {"DELETE", "/pushy/mcp", []string{sessionIs, "STREAM"}, "", 404, noSession, ""},
	"DELETE of the modern era":       {"DELETE", "/pushy/mcp", []string{versionIs, "2026-07-28"}, "", 405, "use POST", "POST, OPTIONS"},

	"GET of an event stream":                      {"GET", "/pushy/sse", nil, "", 200, endpointIs, ""},
	"GET of an event stream that was there":       {"GET", "/pushy/sse?sessionId=STREAM", nil, "", 200, "data: /pushy/message?sessionId=STREAM", ""},
	"GET of an event stream of an unknown one":    {"GET", "/pushy/sse?sessionId=absent", nil, "", 404, noSession, ""},
	"GET of an event stream of another transport": {"GET", "/pushy/sse?sessionId=SESSION", nil, "", 404, noSession, ""},
	"GET of an event stream by another's event":   {"GET", "/pushy/sse", []string{lastEventIs, "0.SESSION/out"}, "", 404, noSession, ""},
	"POST to an event stream, by who tries":       {"POST", "/pushy/sse", nil, initialize, 405, "use GET", "GET, OPTIONS"},
	"POST of a message":                           {"POST", "/pushy/message?sessionId=STREAM", nil, list, 202, "Accepted", ""},
	"POST of a message, session in a header":      {"POST", "/pushy/message", []string{sessionIs, "STREAM"}, list, 400, "names no session", ""},
	"POST of a message of an unknown session":     {"POST", "/pushy/message?sessionId=absent", nil, list, 404, noSession, ""},
	"POST of a message of Streamable HTTP":        {"POST", "/pushy/message?sessionId=SESSION", nil, list, 404, noSession, ""},
	"GET of messages":                             {"GET", "/pushy/message?sessionId=STREAM", nil, "", 405, "use POST", "POST, OPTIONS"},

	"another method":              {"PUT", "/pushy/mcp", []string{sessionIs, "SESSION"}, list, 405, "use GET, POST, DELETE", anyMethod},
	"HEAD":                        {"HEAD", "/pushy/mcp", []string{sessionIs, "SESSION"}, "", 405, "", anyMethod},
	"OPTIONS":                     {"OPTIONS", "/pushy/mcp", nil, "", 204, "", anyMethod},
	"a ticket where none is sold": {"POST", "/pushy/ticket", nil, "", 404, "/<server>/mcp", ""},
	"an unknown server":           {"POST", "/absent/mcp", nil, initialize, 404, "no such server", ""},
}

// everyWay plays each of the ways, with sessions of its own. The store in memory is enough
// for it, because routing does not depend on the store.
func everyWay(t *testing.T, origin string, look func(name string, w way, a *answer)) {
	bubble(t, func(t *testing.T, w *world) {
		session := func(over, server string) string {
			p := transports[over](w, server)
			p.leave()
			return p.id()
		}
		for name, way := range ways {
			names := strings.NewReplacer(
				"SESSION", session("Streamable HTTP", "pushy"), "STREAM", session("HTTP+SSE", "pushy"),
				"SOCKET", session("WebSocket", "pushy"), "KNOWN", session("Streamable HTTP", "known"),
			)
			headers := []string{"Origin", origin}
			for _, text := range way.headers {
				headers = append(headers, names.Replace(text))
			}
			way.says = names.Replace(way.says)
			look(name, way, w.begin(request(way.method, names.Replace(way.path), way.body, headers...)).leave())
		}
	})
}

// C-45 to C-51, C-53: the method, the path and the headers decide how a request is served. A request
// that fits none gets an error that names what exists. A page that may call may read every answer.
func TestEveryGenerationFindsItsPlaceOnOneFamilyOfPaths(t *testing.T) {
	const page = "http://localhost"
	everyWay(t, page, func(name string, w way, a *answer) {
		if a.status != w.status || !strings.Contains(a.body, w.says) || w.says == "" && a.body != "" {
			t.Errorf("%s: got %d %s, want %d and %q", name, a.status, a.body, w.status, w.says)
		}
		commontest.EqualIn(t, name+", Allow", w.allow, a.header.Get("Allow"))
		commontest.EqualIn(t, name+", Retry-After", "", a.header.Get("Retry-After")) // nothing here ends by itself
		if a.took > time.Second {
			t.Errorf("%s: was held for %s, though the client had gone", name, a.took)
		}
		commontest.EqualIn(t, name+", Access-Control-Allow-Origin", page, a.header.Get("Access-Control-Allow-Origin"))
	})
}

// C-51: a page of another site is refused on every path before any other check, and cannot
// read the refusal.
func TestPageOfElsewhereIsRefusedOnEveryPath(t *testing.T) {
	everyWay(t, "https://evil.example", func(name string, _ way, a *answer) {
		if a.status != http.StatusForbidden || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: got %d %v", name, a.status, a.header)
		}
	})
}

// C-56, C-57, C-59: the server gets the session's principal with every message. That holds
// over POST, HTTP+SSE and WebSocket, and also when a later instance serves the session.
func TestPrincipalReachesTheServerOverEveryTransport(t *testing.T) {
	everyParty(t, func(t *testing.T, w *world, open func(server string, headers ...string) party) {
		for who, p := range map[string]party{"ada": open("pushy"), "Bearer eve": open("pushy", "Authorization", "Bearer eve")} {
			p.leave()
			time.Sleep(time.Hour)
			p.back()
			p.say(callOf("echo"))
			p.heard()
			all := w.sent(p.id())
			commontest.EqualIn(t, "messages of "+who, 2, len(all))
			for _, d := range all {
				if d.Client.Principal != who || d.Client.Tenant != "tenant" || len(d.Client.Init) == 0 {
					t.Errorf("a message of %s came as of %q: %+v", who, d.Client.Principal, d.Client)
				}
			}
		}
	})
}
