package host

import "github.com/dormouse-mcp/dormouse/shared/session"

// Host opens sessions, takes their messages, and ends them. Each of its parts serves one
// kind of client, and can be handed to code that needs only that part. A Host keeps
// nothing between calls, so any instance can serve any message. It is safe for concurrent
// use.
type Host struct {
	*core
	Streams
	Stateless
	Tasks
	Sockets
}

// core has what all verbs share: the store, the backend, and the functions that change the
// record of a session.
type core struct {
	store   session.Store
	backend Backend
	limits  Limits
	out     Outlet
}

// Streams has the verbs for clients that listen to a stream or come back for one.
type Streams struct{ *core }

// Stateless has the verbs for clients without a session (MCP 2026-07-28). Each works on
// the session that is pinned to the caller; see [PinnedID].
type Stateless struct{ *core }

// Tasks finds calls of [Stateless.Send] again whose clients have gone away.
type Tasks struct{ *core }

// Sockets has the verbs for the connections of WebSocket clients.
type Sockets struct{ *core }

// New makes a Host. Zero limits get their defaults. It cannot push to WebSocket clients;
// see [Host.WithClients].
func New(store session.Store, backend Backend, limits Limits) *Host {
	return newHost(core{store: store, backend: backend, limits: limits.withDefaults(), out: Outlet{Store: store}})
}

func newHost(c core) *Host {
	return &Host{core: &c, Streams: Streams{&c}, Stateless: Stateless{&c}, Tasks: Tasks{&c}, Sockets: Sockets{&c}}
}

// WithClients returns the same Host with the connections of WebSocket clients: it can
// push to them and close them.
func (h *Host) WithClients(clients session.Clients) *Host {
	with := *h.core
	with.out.Clients = clients
	return newHost(with)
}

// Limits returns the limits in force.
func (h *core) Limits() Limits { return h.limits }

// Caller says who calls a verb, and over which transport. A caller can use a session only if
// Server.Name, Tenant, Principal and Transport are those of the caller that opened it.
type Caller struct {
	Server    Server
	Tenant    string
	Principal string
	Transport session.Transport
	Conn      string // WebSocket connection that also gets the events, or ""
	EventIDs  bool   // the client of Conn wants event ids
	// Credential names what the caller proved itself with; see Identity. A session does
	// not depend on it.
	Credential string
	Props      []byte // see Identity; a session keeps the latest
}

func (c Caller) box() session.BoxID { return session.BoxFor(c.Tenant, c.Server.Name) }
