package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/config/override"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/bodies"
)

// missing is the error of a route that this API does not have, for example on a stack.
// Its text says where else to look.
type missing string

func (m missing) Error() string { return string(m) }

const codeNotHere = "not_here"

// maxBody bounds the body of a request, in bytes. A servers file in JSON may have more.
const (
	maxBody  = 64 << 10
	maxPlain = override.MaxFile * 3 / 2
)

// Caller is who sends a request.
type Caller struct {
	Principal string   // in words for clients: "stopped by ada"
	Tenant    string   // whose records the caller sees; "" for all tenants
	Servers   []string // storage.EveryServer for all
	Role      storage.Role
	User      bool // has signed in, and has no API key
}

// may reports whether a caller sees records of a tenant and a server.
func (c Caller) may(tenant, server string) bool {
	return (c.Tenant == "" || c.Tenant == tenant) && apikey.May(c.Servers, server)
}

func (c Caller) seesAll() bool { return slices.Contains(c.Servers, storage.EveryServer) }

// owns reports whether a caller is the owner of the place, who decides for all tenants: an
// operator for all servers of the owner's tenant, or the user of the machine.
func (c Caller) owns() bool {
	return c.reads() && c.seesAll() && (c.Tenant == "" || c.Tenant == ownTenant)
}

// reads reports whether a caller may read what servers write to stderr, and so also reasons
// of failures, which quote it.
func (c Caller) reads() bool { return apikey.Has(c.Role, apikey.ToAct) }

// Options are what an API works with. Store, Caller and Info are needed. A route that
// needs a field that is nil answers not_here.
type Options struct {
	Info  Info // Place, URL and Access; the API knows the others
	Store storage.Store
	// Caller returns who sent a request, after checking that they have a right. Errors:
	// Unauthenticated, Forbidden, Invalid, Unavailable.
	Caller func(r *http.Request, right apikey.Right) (Caller, error)
	// Servers returns the servers file as it is served now.
	Servers func() *serversfile.File
	// Missing says why the program of a server is not on this machine; nil: it is not known.
	Missing func(s serversfile.Server) error
	// Notes returns what is wrong with the servers file except the servers that it
	// rejects, and what only a container engine can run.
	Notes func() []string
	Acts
	Edits
	// Vitals returns how the machine is. nil: this place has none.
	Vitals func(context.Context) (Vitals, error)
	// Status returns what runs on a machine. LastCall, Principal and Client of processes
	// are filled in by the API. nil: the store says which boxes are up.
	Status func(ctx context.Context) (Status, error)
	// Output passes the kept output of processes to emit, oldest process first. With
	// Follow it returns when ctx ends.
	Output func(ctx context.Context, of Outputs, emit func(Output) error) error
	// NativeTools returns the tools of a native server, as it lists them for a caller of
	// a tenant. nil: such servers are not in this program.
	NativeTools func(ctx context.Context, tenant, server string) ([]json.RawMessage, error)
	// Held keeps what was accepted of servers' tools. nil: nothing is held.
	Held *held.Keeper
	// Reload reads the servers file at once.
	Reload func() Reloaded
	// Prepare installs a server and starts it once, so that its lists are known. It waits for a
	// preparation that goes on already.
	Prepare func(ctx context.Context, server string) (Prepared, error)
	// Pushed says that functions take the servers file from the store.
	Pushed bool
	// Idle is how long a box without work stays awake if its server sets no time.
	Idle time.Duration
	// Hide replaces the secrets of all servers in a text.
	Hide func(text string) string
	// Bill returns what was used since a time; the zero time is the beginning.
	Bill func(ctx context.Context, since time.Time) (Bill, error)

	History
	// Changes waits until something that the caller sees has changed after an earlier time,
	// which is what Changes returned before, or 0. It returns the servers that have
	// changed. The error is that of ctx.
	Changes func(ctx context.Context, after uint64, may func(tenant, server string) bool) (servers []string, now uint64, err error)
	// Entry returns a link to the console that works once. Only the user of the machine may
	// ask for it.
	Entry func(context.Context) (Entry, error)

	Observer observe.Observer // gets each request
	Meter    storage.Meter    // counts the costs of each request; nil: nothing is counted
}

// Acts change what the hosts of sessions do. The fields are functions of [Options].
type Acts struct {
	// End ends a session for an operator. Errors: NotFound, Unavailable.
	End func(ctx context.Context, id storage.ID) error
	// Give hands a session over to another principal of its tenant, and returns all that it
	// has given with it; see sessions.Manager.Give.
	Give func(ctx context.Context, id storage.ID, principal string) ([]storage.Session, error)
	// Halt stops processes of a box; see relayserver.Backend.Halt.
	Halt func(ctx context.Context, box storage.BoxID, of storage.ID, by string, within time.Duration) (up bool, err error)
	// Forget forgets the handshake record of a tenant's server. nil: it stays.
	Forget func(ctx context.Context, tenant string, s serversfile.Server) error
	// Relist has the clients of a tenant's server ask for its tools again. nil: they find out
	// by themselves.
	Relist func(ctx context.Context, tenant string, s serversfile.Server) error
}

// History is the record of calls that a place keeps. The fields are functions of
// [Options].
type History struct {
	// Calls and Series return what was called. Metrics writes what the caller may see of
	// the counts since the start of the program, in the text format of Prometheus.
	Calls   func(context.Context, CallQuery) (Calls, error)
	Series  func(context.Context, SeriesQuery) (Series, error)
	Metrics func(w io.Writer, may func(tenant, server string) bool) error
	// Bodies returns what calls said, of those that are kept for the role of the query. The
	// newest call comes first.
	Bodies func(context.Context, bodies.Query) ([]bodies.Body, error)
	// People returns the principals who called. The newest caller comes first.
	People func(context.Context, PeopleQuery) ([]Person, error)
	// Starts returns the newest starts of a server, the newest first.
	Starts func(context.Context, StartQuery) ([]Start, error)
	// Busy returns when calls were executed: those of a tenant and server together, and in
	// the order of their begin.
	Busy func(context.Context, PeopleQuery) ([]Busy, error)
}

type handler struct {
	Options
	mux *http.ServeMux
}

// New returns the API as a handler for all paths below [Prefix].
func New(o Options) http.Handler {
	o.Info.Version, o.Info.Protocol = Version(), append([]string{wire.V20260728}, wire.LegacyVersions()...)
	h := &handler{Options: o, mux: http.NewServeMux()}
	for _, r := range h.routes() {
		h.mux.Handle(r.method+" "+Prefix+r.path, r.handler(h))
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{h: h, r: r, response: response{w: w}}
		x.fail(storage.Errorf(storage.NotFound, "there is nothing at %s %s; docs/http-api.md lists the routes", r.Method, r.URL.Path))
	})
	return h.mux
}

// route is one method and path with the right that it needs. This table is all that
// decides who may do what.
type route struct {
	method, path string
	right        apikey.Right
	serve        func(*exchange) (any, error)
}

func (h *handler) routes() []route {
	return []route{
		{"GET", "{$}", apikey.ToSee, (*exchange).info},
		{"GET", "servers", apikey.ToSee, (*exchange).servers},
		{"POST", "servers", apikey.ToAct, (*exchange).addServer},
		{"POST", "servers/{server}/switch", apikey.ToAct, (*exchange).switchServer},
		{"POST", "servers/{server}/value", apikey.ToAct, (*exchange).setValue},
		{"POST", "servers/{server}/clients", apikey.ToSee, (*exchange).clients},
		{"GET", "quotas", apikey.ToSee, (*exchange).quotas},
		{"POST", "quotas/{tenant}", apikey.ToAct, (*exchange).setQuota},
		{"GET", "machine", apikey.ToSee, (*exchange).vitals},
		{"PUT", "servers", apikey.ToAct, (*exchange).push},
		{"GET", "servers/{server}/tools", apikey.ToSee, (*exchange).tools},
		{"GET", "servers/{server}/held", apikey.ToSee, (*exchange).held},
		{"POST", "servers/{server}/accept", apikey.ToAct, (*exchange).accept},
		{"GET", "servers/{server}/settings", apikey.ToAct, (*exchange).settings},
		{"GET", "servers/{server}/starts", apikey.ToSee, (*exchange).starts},
		{"POST", "servers/{server}/prepare", apikey.ToAct, (*exchange).prepare},
		{"POST", "servers/{server}/stop", apikey.ToAct, (*exchange).stopServer},
		{"GET", "processes", apikey.ToSee, (*exchange).processes},
		{"POST", "stop", apikey.ToAct, (*exchange).stopAll},
		{"POST", "reload", apikey.ToAct, (*exchange).reload},
		{"GET", "sessions", apikey.ToSee, (*exchange).sessions},
		{"POST", "sessions/{session}/stop", apikey.ToAct, (*exchange).stopSession},
		{"POST", "sessions/{session}/give", apikey.ToAct, (*exchange).giveSession},
		{"DELETE", "sessions/{session}", apikey.ToAct, (*exchange).endSession},
		{"GET", "logs", apikey.ToAct, (*exchange).logs},
		{"GET", "keys", apikey.ToSee, (*exchange).keys},
		{"POST", "keys", apikey.ToAct, (*exchange).createKey},
		{"POST", "keys/{key}/rotate", apikey.ToAct, (*exchange).rotateKey},
		{"DELETE", "keys/{key}", apikey.ToAct, (*exchange).revokeKey},
		{"GET", "calls", apikey.ToSee, (*exchange).calls},
		{"GET", "bodies", apikey.ToSee, (*exchange).bodies},
		{"GET", "series", apikey.ToSee, (*exchange).series},
		{"GET", "people", apikey.ToSee, (*exchange).people},
		{"GET", "changes", apikey.ToSee, (*exchange).changes},
		{"POST", "entry", apikey.ToAct, (*exchange).entry},
		{"GET", "metrics", apikey.ToSee, (*exchange).metrics},
		{"GET", "savings", apikey.ToSee, (*exchange).savings},
		{"GET", "bill", apikey.ToSee, (*exchange).bill},
	}
}

type exchange struct {
	h      *handler
	r      *http.Request
	caller Caller
	response
}

// response is what an exchange answers.
type response struct {
	w     http.ResponseWriter
	begun bool
	code  int // HTTP status
}

func (rt route) handler(h *handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		x := &exchange{h: h, r: r, response: response{w: w}}
		limit := int64(maxBody)
		if rt.method == http.MethodPut {
			limit = maxPlain
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		answer, err := x.serve(rt)
		switch {
		case err != nil:
			x.fail(err)
		case !x.begun:
			x.answer(http.StatusOK, answer)
		}
		x.tell(rt, time.Since(begun), err)
	}
}

func (x *exchange) serve(rt route) (any, error) {
	if x.r.Header.Get("Origin") != "" {
		return nil, storage.Errorf(storage.Forbidden, "web pages of other origins may not use the API")
	}
	var err error
	if x.caller, err = x.h.Caller(x.r, rt.right); err != nil {
		return nil, err
	}
	// A caller who sees all tenants may ask for one.
	if tenant := x.r.URL.Query().Get("tenant"); tenant != "" && x.caller.Tenant == "" && x.r.Method == http.MethodGet {
		x.caller.Tenant = tenant
	}
	return rt.serve(x)
}

func (a *response) answer(status int, body any) {
	a.begun, a.code = true, status
	a.w.Header().Set("Content-Type", "application/json")
	a.w.Header().Set("Cache-Control", "no-store")
	a.w.WriteHeader(status)
	_ = json.NewEncoder(a.w).Encode(body) // the caller may be gone
}

// lines begins a response of lines of JSON and returns the function that writes one. The
// response begins with the first line.
func (a *response) lines() func(any) error {
	enc, flush := json.NewEncoder(a.w), http.NewResponseController(a.w)
	a.w.Header().Set("Content-Type", "application/x-ndjson")
	a.w.Header().Set("Cache-Control", "no-store")
	return func(v any) error {
		a.begun, a.code = true, http.StatusOK
		if err := enc.Encode(v); err != nil {
			return err
		}
		return flush.Flush()
	}
}

// empty answers that there is no line.
func (a *response) empty() {
	a.begun, a.code = true, http.StatusOK
	a.w.Header().Set("Content-Type", "application/x-ndjson")
	a.w.Header().Set("Cache-Control", "no-store")
	a.w.WriteHeader(http.StatusOK)
}

// fail answers an error. After the beginning of the response it breaks the response off.
func (x *exchange) fail(err error) {
	if x.begun {
		return
	}
	code := storage.CodeOf(err)
	var f Failure
	f.Error.Code, f.Error.Message = string(code), "internal error; it has been logged"
	var known *storage.Error
	var absent missing
	status := statusOf(code)
	switch {
	case errors.As(err, &absent):
		status, f.Error.Code, f.Error.Message = http.StatusNotImplemented, codeNotHere, string(absent)
	case errors.As(err, &known):
		f.Error.Message = known.Message
	}
	if code == storage.Unauthenticated {
		x.w.Header().Set("WWW-Authenticate", "Bearer")
	}
	x.answer(status, f)
}

func statusOf(code storage.Code) int {
	switch code {
	case storage.Invalid:
		return http.StatusBadRequest
	case storage.Unauthenticated:
		return http.StatusUnauthorized
	case storage.Forbidden:
		return http.StatusForbidden
	case storage.NotFound:
		return http.StatusNotFound
	case storage.Conflict:
		return http.StatusConflict
	case storage.TooLarge:
		return http.StatusRequestEntityTooLarge
	case storage.Busy:
		return http.StatusTooManyRequests
	case storage.Unavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// tell tells the observer of a request. It has neither its query nor its body.
func (x *exchange) tell(rt route, took time.Duration, err error) {
	e := &observe.Event{
		Kind: observe.API, HTTPMethod: rt.method, Path: Prefix + rt.path, Status: x.code,
		Account: storage.Account{
			Over: storage.OverREST, Tenant: x.caller.Tenant, Principal: x.caller.Principal, In: int(max(0, x.r.ContentLength)), Took: took, Code: storage.CodeOf(err),
		},
	}
	var absent missing
	if err != nil {
		e.Level = slog.LevelWarn
		if errors.As(err, &absent) {
			e.Code = codeNotHere // which is no fault of this place
		} else if x.code >= http.StatusInternalServerError {
			e.Level, e.Error = slog.LevelError, err.Error()
		}
	}
	if x.code == http.StatusUnauthorized || x.code == http.StatusForbidden {
		e.Refused, e.Refusal, e.Why, e.Caller = true, string(e.Code), err.Error(), x.sender(err)
	}
	x.h.Observer.Tell(x.r.Context(), x.h.Meter, e)
}

func (x *exchange) sender(err error) *observe.Caller {
	address := storage.AddressOf(x.r.Context())
	if address == "" {
		address, _, _ = net.SplitHostPort(x.r.RemoteAddr)
	}
	who := storage.RefusedOf(err)
	return &observe.Caller{Tenant: cmp.Or(x.caller.Tenant, who.Tenant), Principal: cmp.Or(x.caller.Principal, who.Principal), Key: who.Credential, Address: address}
}

// body reads the body of a request. An empty body leaves into as it is.
func (x *exchange) body(into any) error {
	d := json.NewDecoder(x.r.Body)
	d.DisallowUnknownFields()
	var large *http.MaxBytesError
	switch err := d.Decode(into); {
	case err == nil, errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &large):
		return storage.Errorf(storage.TooLarge, "the body has over %d bytes", large.Limit)
	default:
		return storage.Errorf(storage.Invalid, "the body is not the JSON object that this route takes: %v", err)
	}
}

// Version returns the version of the program, such as v0.4.0, or devel without one.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func (x *exchange) info() (any, error) {
	i := x.h.Info
	i.Edits = x.h.Add != nil && x.caller.usesMachine()
	i.Principal, i.Tenant, i.Role, i.User = x.caller.Principal, x.caller.Tenant, string(x.caller.Role), x.caller.User
	return i, nil
}

const noEntry missing = "links to the console are made by the user of the machine only: dormouse open; otherwise sign in with an API key"

func (x *exchange) entry() (any, error) {
	if x.h.Entry == nil {
		return nil, noEntry
	}
	return x.h.Entry(x.r.Context())
}
