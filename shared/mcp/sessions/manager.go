package sessions

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Manager opens sessions, takes their messages, and ends them. It is safe for concurrent use.
type Manager struct {
	store   storage.Store
	backend Backend
	limits  Limits
	parts   Parts
	out     Publisher // writes events to the log and sends them to clients; made of store and parts
}

// New makes a Manager. Zero limits get their defaults. The Manager cannot push to WebSocket
// clients; see [Manager.With].
func New(store storage.Store, backend Backend, limits Limits) *Manager {
	return newManager(store, backend, limits.withDefaults(), Parts{Held: Publisher{Store: store}.keeper()})
}

// Parts are the optional parts of a [Manager]. Each may be nil.
type Parts struct {
	Clients storage.Clients // posts to the connections of WebSocket clients, and closes them
	Held    *Held           // knows which tools of servers were accepted; see [Server.Pin]
	// Gate decides whether the backend gets a request, for instance by the caller's quota. Requests
	// that the Manager answers itself do not pass the Gate.
	Gate storage.Gate
	// Secrets returns the keys and tokens of callers at third parties ([Server.Providers]).
	Secrets storage.Secrets
	// Boxes returns how many boxes a tenant may have of a server with [Server.Spreads]. 0 counts as 1.
	Boxes func(ctx context.Context, tenant string) int
}

// With returns a copy of h in which the parts of p that are not nil replace those of h.
func (h *Manager) With(p Parts) *Manager {
	p.Clients, p.Held = cmp.Or(p.Clients, h.parts.Clients), cmp.Or(p.Held, h.parts.Held)
	p.Gate, p.Secrets = cmp.Or(p.Gate, h.parts.Gate), cmp.Or(p.Secrets, h.parts.Secrets)
	if p.Boxes == nil {
		p.Boxes = h.parts.Boxes
	}
	return newManager(h.store, h.backend, h.limits, p)
}

// Limits returns the limits that [New] got, with the defaults filled in.
func (h *Manager) Limits() Limits { return h.limits }

func newManager(store storage.Store, backend Backend, limits Limits, p Parts) *Manager {
	return &Manager{store, backend, limits, p, Publisher{Store: store, Clients: p.Clients, Held: p.Held}}
}

// Caller says who calls a method of Manager, and over which transport. A caller can use a
// session only if Server.Name, Tenant, Principal and Transport are those of the caller
// that opened it.
type Caller struct {
	storage.Identity // a session keeps the latest Props
	Server           Server
	Transport        storage.Transport
	Conn             string // the client's WebSocket connection, to which events are pushed; "" for none
	EventIDs         bool   // the client of Conn wants event ids
	// Group is not nil if Conn is a connection to a group of servers.
	Group *storage.GroupConnection
	// Kind is a hash of what a modern client declares besides the capabilities of MCP, such as
	// extensions; "" for nothing. Clients of different kinds get different processes, because
	// a process learns of its client only once, in initialize.
	Kind string
	// Tools are the tools that the client sees in lists. The transport refuses calls of other
	// tools, so Manager does not check calls.
	Tools storage.ToolFilter
}

func (c Caller) box(id storage.ID) storage.BoxID {
	return storage.BoxFor(c.Tenant, c.Server.Name).Numbered(id.Box())
}

// Client holds what a modern client says about itself with a request.
type Client struct {
	// Init are the params of initialize for the process, at most 64 KiB. The process is
	// initialized once, with the Init of the first client of a [Caller.Kind].
	Init json.RawMessage
	// Verbose means that the client wants log messages. After the first Verbose request the
	// server sends all its log messages in the session, and a transport must drop those that its
	// client does not want.
	Verbose bool
	Visits  bool // the client supports elicitation by URL: it can send its user to a page
	// Round is how often the client has made the call before and was asked for something. Each round of
	// a call with an idempotency key is executed at most once, whichever requestState comes with it.
	Round int
	// Check, if not nil, is called before Send sends anything. It gets the params that
	// [Manager.Learn] has kept, or nil. Send returns the error of Check. If brief is true, the
	// transport waits only until the call is accepted, not for its end.
	Check func(params json.RawMessage) (brief bool, err error)
	// List, if not nil, returns the params for Check if Learn has kept none. Send calls it after
	// it has got the caller's secrets, and before the server gets the request.
	List func(ctx context.Context) (params json.RawMessage, err error)
}
