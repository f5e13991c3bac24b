package authorization_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/authorization"
	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// At a sign-in, the endpoint keeps the user's token from the identity provider if a
// server exchanges it. A later call of the user then has a token for the third party.
func TestASignInIsKeptForServersThatExchangeIt(t *testing.T) {
	var exchanged []string
	crm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		exchanged = append(exchanged, r.FormValue("subject_token"))
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "crm-token", "issued_token_type": r.FormValue("requested_token_type"), "token_type": "Bearer", "expires_in": 300})
	}))
	defer crm.Close()
	c, warnings, err := serversfile.Parse(fmt.Appendf(nil, `{
		"mcpServers": {
			"deals": {"command": "x", "env": {"TOKEN": "${principal:crm}"}, "x-dormouse": {"box": {"scope": "principal"}}},
			"plain": {"command": "x"}
		},
		"x-dormouse": {
			"access": {"issuer": "https://login.example.com", "name": "corp", "client_id": "us", "client_secret": "pw"},
			"connect": {"crm": {"token": "%s/token", "client_id": "us", "client_secret": "pw", "exchange": {"audience": "crm"}}}
		}
	}`, crm.URL), "servers.json", nil)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	access, err := wiring.ReadBroker(c, "https://mcp.example.com", "", true)
	commontest.OK(t, err)
	f, err := wiring.New(wiring.Settings{Servers: c, Secret: make([]byte, 32), Access: access, AuthServer: true},
		wiring.Parts{Store: storagetest.NewMemory(), Meter: meter.New(meter.Options{}), Log: slog.New(slog.DiscardHandler)})
	commontest.OK(t, err)
	var signedIn func(context.Context, storage.Identity, string, authserver.Token) error
	_, err = authorization.New(f, func(c *authserver.Config) { signedIn = c.SignedIn })
	commontest.OK(t, err)
	token := authserver.Token{Access: "token-of-u1", Refresh: "r", Until: time.Now().Add(time.Hour)}
	for _, step := range []struct{ server, has string }{{"plain", ""}, {"deals", "crm-token"}, {"plain", "crm-token"}} {
		commontest.OK(t, signedIn(t.Context(), storage.Identity{Tenant: "default", Principal: "corp:u1"}, step.server, token))
		got, _, err := f.Vault.Get(t.Context(), "default", "corp:u1", []string{"crm"})
		commontest.OK(t, err)
		commontest.EqualIn(t, "after a sign-in for "+step.server, step.has, got["crm"].Value)
	}
	commontest.Same(t, []string{"token-of-u1"}, exchanged)

	// Clients are told in JSON what is not here.
	h, err := authorization.Handler(f)
	commontest.OK(t, err)
	for path, want := range map[string]string{
		"/.well-known/oauth-authorization-server": "200 application/json", "/connect": "404 text/html; charset=utf-8", "/deals/mcp": "404 application/json",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://mcp.example.com"+path, nil))
		commontest.EqualIn(t, path, want, fmt.Sprint(w.Code, " ", w.Header().Get("Content-Type")))
	}
}
