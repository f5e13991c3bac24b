package sessions

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"

	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Manager opens sessions, takes their messages, and ends them. A Manager keeps nothing
// between calls, so any instance can serve any message. It is safe for concurrent use.
type Manager struct {
	store   storage.Store
	backend Backend
	limits  Limits
	parts   Parts
}

// New makes a Manager. Zero limits get their defaults. It cannot push to WebSocket clients;
// see [Manager.With].
func New(store storage.Store, backend Backend, limits Limits) *Manager {
	return &Manager{store, backend, limits.withDefaults(), Parts{Held: held.NewKeeper(store, nil, slog.New(slog.DiscardHandler), nil)}}
}

// Parts are what a [Manager] can have besides its store and backend. Each may be nil.
type Parts struct {
	Clients storage.Clients // connections of WebSocket clients, to push to them and close them
	Held    *Held           // keeps the tools that were accepted
	// Gate admits all work that the backend gets. Requests that the Manager answers itself do
	// not pass it.
	Gate storage.Gate
	// Secrets has the keys and tokens that callers have at third parties, for servers that
	// need it.
	Secrets storage.Secrets
	// Boxes returns the number of boxes that a tenant may have. The sessions of a server that
	// [Server.Spreads] may then be in as many boxes; see [storage.BoxID]. 0 is no number, and
	// leaves them in one.
	Boxes func(ctx context.Context, tenant string) int
}

// With returns a copy of h in which the parts of p that are not nil replace those of h.
func (h *Manager) With(p Parts) *Manager {
	p.Clients, p.Held = cmp.Or(p.Clients, h.parts.Clients), cmp.Or(p.Held, h.parts.Held)
	p.Gate, p.Secrets = cmp.Or(p.Gate, h.parts.Gate), cmp.Or(p.Secrets, h.parts.Secrets)
	if p.Boxes == nil {
		p.Boxes = h.parts.Boxes
	}
	return &Manager{h.store, h.backend, h.limits, p}
}

// Limits returns the limits in force.
func (h *Manager) Limits() Limits { return h.limits }

func (h *Manager) out() Publisher {
	return Publisher{Store: h.store, Clients: h.parts.Clients, Held: h.parts.Held}
}

// Caller says who calls a method of Manager, and over which transport. A caller can use a
// session only if Server.Name, Tenant, Principal and Transport are those of the caller
// that opened it.
type Caller struct {
	Server    Server
	Tenant    string
	Principal string
	Transport storage.Transport
	Conn      string // WebSocket connection that also gets the events, or ""
	EventIDs  bool   // the client of Conn wants event ids
	// Group is set for a Conn to a group of servers.
	Group *storage.GroupConnection
	// Kind names what a modern client declares besides the capabilities of MCP, such as
	// extensions; "" for nothing. A server that has initialize is told of it only once.
	Kind string
	// Credential names what the caller authenticated with; see Identity. A session does
	// not depend on it.
	Credential string
	Props      []byte // see Identity; a session keeps the latest
	Scopes     []string
	Scoped     bool // see Identity
	ToolRules  []string
	// Tools are the tools that the client sees in lists. The caller of Manager refuses calls
	// of the others.
	Tools storage.ToolFilter
}

func (c Caller) box(id storage.ID) storage.BoxID {
	return storage.BoxFor(c.Tenant, c.Server.Name).Numbered(id.Box())
}

// Client holds what a modern client says about itself. The process is initialized once, so
// it learns only of the first client of a kind.
type Client struct {
	Init json.RawMessage // params for initialize; at most 64 KiB
	// Verbose means that the client wants log messages. The server then sends all of them,
	// for the rest of its life. A caller whose client wants fewer must drop the others.
	Verbose bool
	Visits  bool // the client can be told to send its user to a page
	// Round is what makes a request another call than the one that its key has begun, although
	// both have the same key: the state that the client has brought. "" for a first request.
	Round string
	// Check, if not nil, is called before Send sends anything. It gets the params that
	// [Manager.Learn] keeps, or nil. Send returns its error. brief means that the caller
	// waits only until the call is accepted, not for its end.
	Check func(params json.RawMessage) (brief bool, err error)
	// List, if not nil, gets params for Check if none are kept. Send calls it when the caller
	// has been found to have what the server needs, and before the request goes to the server.
	List func(ctx context.Context) (params json.RawMessage, err error)
}
