package transport_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// C-89: an authenticator that admits a caller without a principal has failed. The
// endpoint refuses that caller in every era, and the error does not name the caller's
// credential.
func TestWhoHasNoNameIsNotLetIn(t *testing.T) {
	for name, who := range map[string]storage.Identity{
		"nothing":      {Credential: "secret"},
		"no tenant":    {Principal: "ada", Credential: "secret"},
		"no principal": {Tenant: "tenant", Credential: "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *world) {
				w.opts.Auth = letsIn{who, principal(nil)}
				for _, r := range []*http.Request{
					request("POST", "/quiet/mcp", initialize),
					request("GET", "/quiet/sse", ""),
					saying{method: "tools/list", version: "2026-07-28", header: "tools/list", params: `{"_meta":{` + metaVersion + `,` + metaCaps + `}}`}.request("quiet"),
				} {
					a := w.do(r)
					if code, _ := a.rpcError(t); a.status != http.StatusInternalServerError || code != int(wire.CodeInternal) || strings.Contains(a.body, "secret") {
						t.Errorf("%s: got %d %s", r.Method, a.status, a.body)
					}
				}
				if status := w.link(url.Values{"server": {"quiet"}}).connect(); status != http.StatusInternalServerError {
					t.Errorf("a WebSocket got %d", status)
				}
				w.nothingCame(t)
			})
		})
	}
}

type letsIn struct {
	who storage.Identity
	principal
}

func (l letsIn) Authenticate(*http.Request, string) (storage.Identity, error) { return l.who, nil }
func (l letsIn) Members(r *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	return apikey.EachServer(l, r, servers)
}
