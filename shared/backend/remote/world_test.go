package remote_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/backend/remote"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// world is everything that outlives a message: the store, the upstream, and the endpoint of
// clients, whose handlers are made anew for each request.
type world struct {
	apikey.Open
	t       *testing.T
	store   storage.Store
	server  remote.Server
	sealer  *storage.Sealer
	warm    *remote.Servers // nil: each request meets a backend and a client of remote servers that know nothing
	backend *native.Backend // the one of warm
	once    sync.Once
	url     string
	upcalls atomic.Int64 // requests at the upstream
}

// newWorld returns a world whose server "far" is upstream.
func newWorld(t *testing.T, store storage.Store, upstream http.Handler) *world {
	sealer, err := bridge.NewSealer([]byte("a secret of thirty-two bytes, at least"))
	commontest.OK(t, err)
	w := &world{t: t, store: store, sealer: sealer}
	far := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.upcalls.Add(1)
		upstream.ServeHTTP(rw, r)
	}))
	w.server = remote.Server{Name: "far", URL: far.URL + "/mcp", Private: true}
	near := httptest.NewServer(http.HandlerFunc(w.serve))
	w.url = near.URL + "/far/mcp"
	t.Cleanup(func() {
		near.CloseClientConnections()
		near.Close()
		far.CloseClientConnections()
		far.Close()
	})
	return w
}

func onEachStore(t *testing.T, test func(t *testing.T, store storage.Store)) {
	t.Run("memory", func(t *testing.T) { test(t, storagetest.NewMemory()) })
	t.Run("sqlite", func(t *testing.T) {
		store, err := sqlitestore.Open(filepath.Join(t.TempDir(), "store.db"))
		commontest.OK(t, err)
		t.Cleanup(func() { _ = store.Close() })
		test(t, store)
	})
}

func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	servers := w.warm
	server := w.server
	if server.Here = servers != nil; !server.Here {
		servers = remote.New()
	}
	log := slog.New(slog.DiscardHandler)
	b := native.NewBackend(native.Config{
		Store: w.store, Log: log,
		Servers: func(name string) (native.Hosted, bool) {
			return native.Hosted{Remote: servers.Server(server)}, name == "far"
		},
	})
	if w.warm != nil {
		w.once.Do(func() { w.backend = b })
		b = w.backend
	}
	native.Handler(transport.New(transport.Options{
		Servers: func(name string) (sessions.Server, bool) {
			return sessions.Server{Name: name, Digest: "d", InPlace: true}, name == "far"
		},
		Host: sessions.New(w.store, b, sessions.Limits{}), Auth: w, Sealer: w.sealer, Observer: observe.Log(log),
	})).ServeHTTP(rw, r)
}

// Members implements transport.Authenticator: every client is ada.
func (w *world) Members(_ *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	return apikey.Same(storage.Identity{Tenant: "acme", Principal: "ada"}, servers), nil
}

// post returns a POST of a message with headers, which are names and values in turn.
func post(t *testing.T, url, message string, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(message))
	commontest.OK(t, err)
	r.Header.Set("Content-Type", wire.MediaJSON)
	r.Header.Set("Accept", wire.MediaJSON+", "+wire.MediaSSE)
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	return r
}

// sent sends a request, and returns the body and the header of the answer.
func sent(t *testing.T, r *http.Request) (string, http.Header) {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	commontest.OK(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	commontest.OK(t, err)
	return string(body), resp.Header
}

func (w *world) connect(client *mcp.Client) *mcp.ClientSession {
	w.t.Helper()
	s, err := client.Connect(w.t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url, DisableStandaloneSSE: true}, nil)
	commontest.OK(w.t, err)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// refusal returns why a client of go-sdk cannot connect to the endpoint.
func (w *world) refusal() error {
	_, err := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil).
		Connect(w.t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url, DisableStandaloneSSE: true}, nil)
	return err
}
