package transport_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// allVersions is what the endpoint says of the versions that it speaks.
const allVersions = `["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"]`

// discovering is server/discover with the headers and the _meta that name a version.
func discovering(header, meta string) saying {
	return saying{
		name: "discover, header " + header + ", _meta " + meta, method: wire.MethodDiscover, version: header, header: wire.MethodDiscover,
		params: `{"_meta":{"io.modelcontextprotocol/protocolVersion":"` + meta + `",` + metaClient + `,` + metaCaps + `}}`,
	}
}

// the endpoint answers server/discover without a handshake and without
// a session. It does so whether or not the client names itself, and keeps nothing of the
// request.
func TestDiscoverNeedsNoSession(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.opts.Sealer = newSealer(t)
		w.handshake(t, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"tasks":{"list":{}},"logging":{}},"serverInfo":{"name":"srv","version":"1.0.0"},"instructions":"Use with <care>"}`)
		named := discovering("2026-07-28", "2026-07-28")
		nameless := named
		nameless.params = strings.Replace(named.params, metaClient+",", "", 1)
		for _, d := range []saying{named, nameless} {
			a := d.on(t, w, "known")
			want := `{"resultType":"complete","supportedVersions":` + allVersions +
				`,"capabilities":{"tools":{"listChanged":true},"logging":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"instructions":"Use with <care>","ttlMs":3600000,"cacheScope":"private",` +
				`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv","version":"1.0.0"}}}`
			commontest.Same(t, want, string(a.result(t)))
			if id := a.header.Get(sessionIs); id != "" {
				t.Errorf("a session: %s", id)
			}
		}
		w.nothingCame(t)
	})
}

// an invalid discover gets status 400 and JSON,
// whatever else the client accepts. If the version has no discover, or does not exist, the
// error names the supported versions.
func TestDiscoverThatDoesNotFitIsRefused(t *testing.T) {
	refused := func(y saying, code wire.Code, says string) saying {
		y.status, y.code, y.says = 400, code, says
		return y
	}
	without := func(y saying, member string) saying {
		y.name += " without " + member
		y.params = strings.Replace(y.params, member, `"other":{}`, 1)
		return y
	}
	const now = "2026-07-28"
	tests := []saying{
		refused(discovering("2099-01-01", "2099-01-01"), wire.CodeUnsupportedVersion, "supported versions"),
		refused(discovering("2025-11-25", "2025-11-25"), wire.CodeUnsupportedVersion, "supported versions"),
		refused(discovering(now, "2025-11-25"), wire.CodeHeaderMismatch, versionIs),
		refused(discovering("2025-11-25", now), wire.CodeHeaderMismatch, versionIs),
		refused(discovering("", now), wire.CodeHeaderMismatch, versionIs),
		refused(discovering("", "2025-11-25"), wire.CodeHeaderMismatch, versionIs),
		refused(without(discovering(now, now), metaCaps), wire.CodeInvalidParams, wire.MetaClientCapabilities),
		refused(without(discovering(now, now), metaVersion), wire.CodeInvalidParams, wire.MetaProtocolVersion),
		{"discover without _meta", wire.MethodDiscover, now, wire.MethodDiscover, `{}`, 400, wire.CodeInvalidParams, wire.MetaProtocolVersion},
		{"discover without _meta or header", wire.MethodDiscover, "", wire.MethodDiscover, `{}`, 400, wire.CodeHeaderMismatch, versionIs},
	}
	scenario(t, func(t *testing.T, w *world) {
		for _, tt := range tests {
			a := tt.on(t, w, "known")
			versions := wire.Lookup([]byte(a.body), "error", "data", "supported")
			if told := string(versions) == allVersions; told != (tt.code == wire.CodeUnsupportedVersion) {
				t.Errorf("%s: versions %s", tt.name, versions)
			}
			if requested, _ := wire.String(wire.Lookup([]byte(a.body), "error", "data", "requested")); tt.code == wire.CodeUnsupportedVersion && requested != tt.version {
				t.Errorf("%s: got %s", tt.name, a.body)
			}
		}
		w.nothingCame(t)
	})
}

// an older version needs a session. A client may ask server/discover first and then
// use 2025-11-25 without a session. The error tells it so, and the client may open a
// session.
func TestOlderVersionHasSessionsAlsoAfterDiscover(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		discovering("2026-07-28", "2026-07-28").on(t, w, "quiet")
		y := discovering("2025-11-25", "2025-11-25")
		y.name, y.method, y.header, y.status, y.code, y.says = "a list", "tools/list", "tools/list", 400, wire.CodeServer, "send initialize"
		y.on(t, w, "quiet")
		if a := w.visit("quiet").post(list); a.status != http.StatusOK {
			t.Errorf("in a session: got %d %s", a.status, a.body)
		}
	})
}

// the server itself refuses a method that nobody knows, because an extension may
// have it. In the modern era the status is 404, because a proxy sees only the status.
func TestUnknownMethodIsToldAsTheEraTellsIt(t *testing.T) {
	const method = "unknown/method"
	scenario(t, func(t *testing.T, w *world) {
		w.backend.tool(method, func(r run) {
			r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":{"code":-32601,"message":"of the server"}}`, true)
		})
		y := discovering("2026-07-28", "2026-07-28")
		y.method, y.header = method, method
		a := w.do(y.request("quiet"))
		if want := `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"of the server"}}`; a.status != http.StatusNotFound || a.body != want {
			t.Errorf("in the modern era: got %d %s, want %s", a.status, a.body, want)
		}
		a = w.visit("quiet").post(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{}}`)
		if want := `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"of the server"}}`; a.status != http.StatusOK || a.body != want {
			t.Errorf("got %d %s, want %s", a.status, a.body, want)
		}
	})
}

// R-89, C-87: the modern era has POST only. The endpoint refuses GET and DELETE before it
// looks for a session, whatever the client names.
func TestVerbsOfSessionsAreRefusedInTheModernEra(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		before := len(w.backend.delivered)
		for _, method := range []string{"GET", "DELETE"} {
			for _, headers := range [][]string{nil, {sessionIs, v.session}, {sessionIs, v.session, lastEventIs, "1"}} {
				w.calls = map[string]int{}
				a := w.do(request(method, "/pushy/mcp", "", append(headers, versionIs, "2026-07-28")...))
				if code, _ := a.rpcError(t); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") != "POST, OPTIONS" || code != int(wire.CodeServer) {
					t.Errorf("%s %v: got %d %s, Allow %q", method, headers, a.status, a.body, a.header.Get("Allow"))
				}
				if len(w.calls) > 0 {
					t.Errorf("%s %v: asked the store: %v", method, headers, w.calls)
				}
			}
		}
		if n := len(w.backend.delivered) - before; n > 0 {
			t.Errorf("the server got %d messages", n)
		}
		if a := v.call("x"); a.status != http.StatusOK {
			t.Errorf("the session: got %d %s", a.status, a.body)
		}
	})
}
