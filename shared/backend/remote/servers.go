package remote

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Transport is how a server is reached.
type Transport string

// The transports. Auto finds out which one the server has.
const (
	Auto       Transport = ""
	Streamable Transport = "http"
	SSE        Transport = "sse" // HTTP+SSE, which MCP 2024-11-05 has
)

// Server is a remote server, as the servers file has it.
type Server struct {
	Name    string
	URL     string
	Headers map[string]string // on each request; values may hold ${principal:NAME}
	// Commands has the headers whose values are the output of a command. Run executes the command,
	// and may keep the value. If the server refuses the value, forget is called. The error of Run
	// has no secrets.
	Commands  map[string]string
	Run       func(ctx context.Context, command string) (value string, forget func(), err error)
	Transport Transport
	Private   bool          // permits addresses that are not public
	Providers []string      // the names in ${principal:…}
	Startup   time.Duration // how long the handshake may take; 0: 30 s
	// Secrets returns the keys and tokens of a principal at Providers, for a call that goes on
	// while no caller is present. nil means that there are none.
	Secrets func(ctx context.Context, s storage.Session) (map[string]storage.Secret, error)
	Answer  time.Duration // how long a client may take to answer a question; 0: storage.MaxAsk
	// Here says that no other process goes on with calls of this server, so that the streams that
	// this process keeps open are always found.
	Here bool
}

// Servers is the client of remote servers. A process should have one, because it keeps
// connections and caches. It is safe for concurrent use.
type Servers struct {
	public, private *http.Client

	mu         sync.Mutex
	links      map[storage.ID]link
	greeted    int                        // bytes of the handshakes in links
	eras       map[string]era             // by URL
	headers    map[string]json.RawMessage // results of bridge.HeaderParams, by URL
	kept       []*waiting                 // those that wait longest come first
	traits     map[string]serverTraits    // by URL
	standalone map[standaloneKey]*standaloneStream
	endpoints  map[standaloneKey]*url.URL // of the sessions of HTTP+SSE
}

// These limit the caches of Servers. A cache that has as many entries as the constant most is
// emptied before it gets another. links is also emptied if its handshakes have more than
// mostGreeted bytes together.
const (
	most        = 10_000
	mostGreeted = 32 << 20
)

// New returns a Servers with empty caches.
func New() *Servers {
	return &Servers{
		public: newClient(false), private: newClient(true),
		links: map[storage.ID]link{}, eras: map[string]era{}, headers: map[string]json.RawMessage{},
		traits: map[string]serverTraits{}, standalone: map[standaloneKey]*standaloneStream{}, endpoints: map[standaloneKey]*url.URL{},
	}
}

// Server returns the executor of one remote server.
func (c *Servers) Server(s Server) native.Executor { return &server{c, s} }

// Close closes idle connections, and conversations that wait for answers.
func (c *Servers) Close() {
	c.mu.Lock()
	for len(c.kept) > 0 {
		c.drop(0).close()
	}
	c.mu.Unlock()
	c.public.CloseIdleConnections()
	c.private.CloseIdleConnections()
}

type server struct {
	*Servers
	Server
}

// Send implements native.Executor.
func (s *server) Send(ctx context.Context, r native.Request) native.Answer {
	x, fault := s.exchange(ctx, r)
	if fault != nil {
		return native.Answer{Fault: fault}
	}
	result, fault := x.send(ctx)
	a := x.out
	if a.Result, a.Fault = result, fault; fault != nil {
		fault.Message = hide(fault.Message, x.secrets)
	}
	said, _ := wire.String(wire.Lookup(a.Whole, "error", "message"))
	if hidden := hide(said, x.secrets); hidden != said {
		a.Whole, _ = wire.Replace(a.Whole, wire.AppendString(nil, hidden), "error", "message")
	}
	return a
}

// remember puts a value into a cache of c, which it empties first if it is full.
func remember[K comparable, V any](c *Servers, cache map[K]V, key K, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(cache) >= most {
		clear(cache)
	}
	cache[key] = value
}

// rememberLink puts a link into links, which it empties first if it is full.
func (c *Servers) rememberLink(id storage.ID, l link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.greeted += len(l.Handshake) - len(c.links[id].Handshake)
	if len(c.links) >= most || c.greeted > mostGreeted {
		clear(c.links)
		c.greeted = len(l.Handshake)
	}
	c.links[id] = l
}

func recall[K comparable, V any](c *Servers, cache map[K]V, key K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := cache[key]
	return v, ok
}

func forget[K comparable, V any](c *Servers, cache map[K]V, key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(cache, key)
}
