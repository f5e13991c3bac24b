//go:build clients

package clients

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/authorization"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/nativetest"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// coldSite is Dormouse's endpoint and its sign-in in this process, over SQLite. New
// handlers serve each request. A web server on loopback stands for the public host where
// clients publish their metadata documents, which Dormouse would not call on loopback.
type coldSite struct {
	url        string
	document   string // the URL of the metadata document of all clients
	fetched    atomic.Int32
	registered atomic.Int32

	settings  wiring.Settings
	parts     wiring.Parts
	documents *http.Client
}

func newColdSite(t *testing.T) *coldSite {
	t.Helper()
	store, err := sqlitestore.Open(filepath.Join(t.TempDir(), "store.db"))
	commontest.OK(t, err)
	t.Cleanup(func() { _ = store.Close() })
	s := &coldSite{document: "https://client.example.com/oauth/client.json"}
	public := httptest.NewTLSServer(http.HandlerFunc(s.publish)) // its certificate is for *.example.com
	t.Cleanup(public.Close)
	transport := public.Client().Transport.(*http.Transport).Clone()
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, public.Listener.Addr().String())
	}
	s.documents = &http.Client{Transport: transport}

	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/register" {
			s.registered.Add(1)
		}
		s.handler(t).ServeHTTP(w, r)
	}))
	t.Cleanup(at.Close)
	s.url = at.URL
	servers, warnings, err := serversfile.Parse([]byte(`{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}}}}`), "servers.json", nil)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	access, err := wiring.ReadBroker(servers, s.url, "", true)
	commontest.OK(t, err)
	s.settings = wiring.Settings{Servers: servers, Secret: make([]byte, 32), Access: access, AuthServer: true, PublicURL: s.url}
	s.parts = wiring.Parts{Store: store, Meter: meter.New(meter.Options{}), Log: slog.New(slog.DiscardHandler), Runners: nobody{}, Clients: nobody{}}
	return s
}

// publish serves the metadata document of all clients.
func (s *coldSite) publish(w http.ResponseWriter, r *http.Request) {
	s.fetched.Add(1)
	if r.Host != "client.example.com" || r.URL.Path != "/oauth/client.json" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"client_id": s.document, "client_name": "A client with a document", "token_endpoint_auth_method": "none",
		"redirect_uris": []string{"http://127.0.0.1/done", "http://127.0.0.1/oauth/callback"},
		"grant_types":   []string{"authorization_code", "refresh_token"}, "response_types": []string{"code"},
	})
}

// handler returns the handlers of functions that have just started.
func (s *coldSite) handler(t *testing.T) http.Handler {
	f, err := wiring.New(s.settings, s.parts)
	commontest.Check(t, err)
	calls, err := endpoints.NewHTTP(f, nativetest.Servers(), endpoints.Alarms{}, nil, nil)
	commontest.Check(t, err)
	pages, err := authorization.New(f, func(c *authserver.Config) { c.Documents = s.documents })
	commontest.Check(t, err)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if pages.Serves(r.URL.Path) {
			pages.ServeHTTP(w, r)
			return
		}
		calls.Handler.ServeHTTP(w, r)
	})
}

// mostFetches is how often handlers that have just started fetch a document during one
// sign-in. They keep it once a user has redeemed a code: strangers can store nothing.
const mostFetches = 8

// checkDocument checks that the client used its metadata document and did not register.
func (s *coldSite) checkDocument(t *testing.T) {
	t.Helper()
	if fetched, registered := s.fetched.Load(), s.registered.Load(); fetched == 0 || fetched > mostFetches || registered != 0 {
		t.Errorf("the document was fetched %d times, and the client has registered %d times", fetched, registered)
	}
}

// nobody stands for the connections of runners and of WebSocket clients, of which there
// are none.
type nobody struct{}

// Post implements storage.Poster.
func (nobody) Post(context.Context, string, []byte) error { return storage.NotFound }

// Close implements storage.Clients.
func (nobody) Close(context.Context, string) error { return nil }
