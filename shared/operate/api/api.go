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
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/bodies"
)

// missing is the error of a route that this API does not have, for example on AWS. Its text says where
// else to look.
type missing string

func (m missing) Error() string { return string(m) }

const codeNotHere = "not_here"

// maxBody bounds the body of a request, in bytes, and maxPlain a body with a servers file.
const (
	maxBody  = 64 << 10
	maxPlain = override.MaxFile * 3 / 2
)

// Caller is who sends a request.
type Caller struct {
	Principal string   // also in messages to clients, such as "stopped by ada"
	Tenant    string   // whose records the caller sees; "" for all tenants
	Servers   []string // storage.EveryServer for all
	Role      storage.Role
	User      bool // the caller is a person who has signed in, and has no API key
}

// may reports whether a caller sees records of a tenant and a server.
func (c Caller) may(tenant, server string) bool {
	return (c.Tenant == "" || c.Tenant == tenant) && apikey.May(c.Servers, server)
}

func (c Caller) seesAll() bool { return slices.Contains(c.Servers, storage.EveryServer) }

// owns reports whether a caller decides for all tenants: the user of the machine, or an operator of
// ownTenant whose key is for all servers.
func (c Caller) owns() bool {
	return c.reads() && c.seesAll() && (c.Tenant == "" || c.Tenant == ownTenant)
}

// reads reports whether a caller may read what servers write to stderr. Reasons of failures quote that.
func (c Caller) reads() bool { return apikey.Has(c.Role, apikey.ToAct) }

// Options are what an API works with. Store, Caller and Info are needed. A route that
// needs a field that is nil answers not_here.
type Options struct {
	Info  Info // the API sets Version, Protocol, Edits and the fields about the caller
	Store storage.Store
	// Caller returns who sent a request, after checking that they have a right. Errors:
	// Unauthenticated, Forbidden, Invalid, Unavailable.
	Caller func(r *http.Request, right apikey.Right) (Caller, error)
	// Servers returns the servers file as it is served now.
	Servers func() *serversfile.File
	// Missing returns an error if the program of a server is not on this machine. The function
	// Missing is nil if that is unknown.
	Missing func(s serversfile.Server) error
	// Notes returns remarks about the servers file: which of its settings need a container engine,
	// and what is wrong with it. Rejected servers are not among them.
	Notes func() []string
	Acts
	Edits
	// Vitals returns the state of the machine. It is nil unless Info.Place is [PlaceMachine].
	Vitals func(context.Context) (Vitals, error)
	// Status returns what runs on a machine. The API fills in LastCall, Principal and Client of
	// processes. nil: the store says which boxes are up.
	Status func(ctx context.Context) (Status, error)
	// Output passes the kept output of processes to emit, oldest process first. With
	// Follow it returns when ctx ends.
	Output func(ctx context.Context, of Outputs, emit func(Output) error) error
	// NativeTools returns the tools of a native server, as it lists them for a caller of
	// a tenant. nil: such servers are not in this program.
	NativeTools func(ctx context.Context, tenant, server string) ([]json.RawMessage, error)
	// Held keeps which versions of tools operators have accepted. nil: no tool is held back.
	Held *held.Keeper
	// Reload reads the servers file again, and returns what has changed.
	Reload func() Reloaded
	// Prepare installs a server and starts it once, so that its lists are known. If the server
	// is being prepared already, Prepare waits for the result.
	Prepare func(ctx context.Context, server string) (Prepared, error)
	// Pushed says that Lambda functions take the servers file from the store.
	Pushed bool
	// Idle is how long an unused box stays awake if its server sets no time.
	Idle time.Duration
	// Hide replaces the secrets of all servers in a text.
	Hide func(text string) string
	// Bill returns what was used since a time; the zero time is the beginning.
	Bill func(ctx context.Context, since time.Time) (Bill, error)

	History
	// Changes returns the servers that changed after change number seen, and the number of the
	// newest change. It returns only servers that the caller may see, and waits until there is
	// one. If seen is 0, it returns at once, without servers. The error is that of ctx.
	Changes func(ctx context.Context, seen uint64, may func(tenant, server string) bool) (servers []string, newest uint64, err error)
	// Entry returns a link to the console that works once. Only the user of the machine may ask for
	// the link.
	Entry func(context.Context) (Entry, error)

	Observer observe.Observer // gets each request
	Meter    storage.Meter    // counts the costs of each request; nil: nothing is counted
}

// Acts are what operators can do to sessions and boxes.
type Acts struct {
	// End ends a session for an operator. Errors: NotFound, Unavailable.
	End func(ctx context.Context, id storage.ID) error
	// Give hands a session over to another principal of its tenant. It returns all sessions
	// that now belong to the other principal; see sessions.Manager.Give.
	Give func(ctx context.Context, id storage.ID, principal string) ([]storage.Session, error)
	// Halt stops processes of a box; see relayserver.Backend.Halt.
	Halt func(ctx context.Context, box storage.BoxID, h frame.Halt) (up bool, err error)
	// Remembered lists the boxes that keep the memory of a sleeping process. Halt deletes that
	// memory, unless h.Keep is set. nil: no box keeps any.
	Remembered func() []storage.BoxID
	// Forget deletes a server's stored answers to initialize and to lists, for a tenant. nil: they
	// stay.
	Forget func(ctx context.Context, tenant string, s serversfile.Server) error
	// Relist makes the clients of a tenant's server ask for its tools again. nil: they find out
	// by themselves.
	Relist func(ctx context.Context, tenant string, s serversfile.Server) error
}

// History is the record of calls on a machine or stack.
type History struct {
	// Calls returns single calls, and Series returns counts of calls over time. Metrics writes counts
	// since the start of the program, in the text format of Prometheus, for the servers for which
	// visible returns true.
	Calls   func(context.Context, CallQuery) (Calls, error)
	Series  func(context.Context, SeriesQuery) (Series, error)
	Metrics func(w io.Writer, visible func(tenant, server string) bool) error
	// Bodies returns the arguments and results that keys of the query's role may read.
	Bodies func(context.Context, bodies.Query) ([]bodies.Body, error)
	// People returns the principals who called. The newest caller comes first.
	People func(context.Context, PeopleQuery) ([]Person, error)
	// Starts returns the newest starts of a server, the newest first.
	Starts func(context.Context, StartQuery) ([]Start, error)
	// Busy returns the times in which calls were executed. The times of one tenant and server are
	// together, sorted by their begin.
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

// route is one method and path.
type route struct {
	method, path string
	right        apikey.Right
	serve        func(*exchange) (any, error)
	here         bool    // this machine or stack has what the route needs
	elsewhere    missing // the error if here is false
}

func (h *handler) routes() []route {
	return []route{
		{"GET", "{$}", apikey.ToSee, (*exchange).info, true, ""},
		{"GET", "servers", apikey.ToSee, (*exchange).servers, h.Servers != nil, noServersFile},
		{"POST", "servers", apikey.ToAct, (*exchange).addServer, h.Add != nil, noEdits},
		{"POST", "servers/{server}/switch", apikey.ToAct, (*exchange).switchServer, h.Add != nil, noEdits},
		{"POST", "servers/{server}/value", apikey.ToAct, (*exchange).setValue, h.Add != nil, noEdits},
		{"POST", "servers/{server}/clients", apikey.ToSee, (*exchange).clients, true, ""},
		{"GET", "quotas", apikey.ToSee, (*exchange).quotas, h.Servers != nil, noLimits},
		{"POST", "quotas/{tenant}", apikey.ToAct, (*exchange).setQuota, h.Servers != nil, noLimits},
		{"GET", "machine", apikey.ToSee, (*exchange).vitals, h.Vitals != nil, noVitals},
		{"PUT", "servers", apikey.ToAct, (*exchange).push, h.Pushed, noPush},
		{"GET", "servers/{server}/tools", apikey.ToSee, (*exchange).tools, true, ""},
		{"GET", "servers/{server}/held", apikey.ToSee, (*exchange).held, h.Held != nil, noHeld},
		{"POST", "servers/{server}/accept", apikey.ToAct, (*exchange).accept, h.Held != nil, noHeld},
		{"GET", "servers/{server}/settings", apikey.ToAct, (*exchange).settings, h.Hide != nil, noSettings},
		{"GET", "servers/{server}/starts", apikey.ToSee, (*exchange).starts, h.Starts != nil, noCalls},
		{"POST", "servers/{server}/prepare", apikey.ToAct, (*exchange).prepare, h.Prepare != nil, noPrepare},
		{"POST", "servers/{server}/stop", apikey.ToAct, (*exchange).stopServer, h.Halt != nil, noHost},
		{"GET", "processes", apikey.ToSee, (*exchange).processes, true, ""},
		{"POST", "stop", apikey.ToAct, (*exchange).stopAll, h.Halt != nil, noHost},
		{"POST", "reload", apikey.ToAct, (*exchange).reload, h.Reload != nil, noReload},
		{"GET", "sessions", apikey.ToSee, (*exchange).sessions, true, ""},
		{"POST", "sessions/{session}/stop", apikey.ToAct, (*exchange).stopSession, h.Halt != nil, noHost},
		{"POST", "sessions/{session}/give", apikey.ToAct, (*exchange).giveSession, h.Give != nil && h.Halt != nil, noHost},
		{"DELETE", "sessions/{session}", apikey.ToAct, (*exchange).endSession, h.End != nil, noHost},
		{"GET", "logs", apikey.ToAct, (*exchange).logs, h.Output != nil, noOutput},
		{"GET", "keys", apikey.ToSee, (*exchange).keys, true, ""},
		{"POST", "keys", apikey.ToAct, (*exchange).createKey, true, ""},
		{"POST", "keys/{key}/rotate", apikey.ToAct, (*exchange).rotateKey, true, ""},
		{"DELETE", "keys/{key}", apikey.ToAct, (*exchange).revokeKey, true, ""},
		{"GET", "calls", apikey.ToSee, (*exchange).calls, h.Calls != nil, noCalls},
		{"GET", "bodies", apikey.ToSee, (*exchange).bodies, h.Bodies != nil, noBodies},
		{"GET", "series", apikey.ToSee, (*exchange).series, h.Series != nil, noCalls},
		{"GET", "people", apikey.ToSee, (*exchange).people, h.People != nil, noCalls},
		{"GET", "changes", apikey.ToSee, (*exchange).changes, h.Changes != nil, noChanges},
		{"POST", "entry", apikey.ToAct, (*exchange).entry, h.Entry != nil, noEntry},
		{"GET", "metrics", apikey.ToSee, (*exchange).metrics, h.Metrics != nil, noCalls},
		{"GET", "savings", apikey.ToSee, (*exchange).savings, h.Busy != nil && h.Servers != nil, noCalls},
		{"GET", "bill", apikey.ToSee, (*exchange).bill, h.Bill != nil, noBill},
	}
}

type exchange struct {
	h      *handler
	r      *http.Request
	caller Caller
	response
}

// response is the answer to an exchange.
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
	if !rt.here {
		return nil, rt.elsewhere
	}
	// A caller who sees all tenants may restrict the answer to one.
	if tenant := x.r.URL.Query().Get("tenant"); tenant != "" && x.caller.Tenant == "" && x.r.Method == http.MethodGet {
		x.caller.Tenant = tenant
	}
	return rt.serve(x)
}

// begin sends the head of a response.
func (a *response) begin(status int, contentType string) {
	a.begun, a.code = true, status
	a.w.Header().Set("Content-Type", contentType)
	a.w.Header().Set("Cache-Control", "no-store")
	a.w.WriteHeader(status)
}

func (a *response) answer(status int, body any) {
	a.begin(status, "application/json")
	_ = json.NewEncoder(a.w).Encode(body) // the caller may be gone
}

// mediaLines is the type of a response that is lines of JSON.
const mediaLines = "application/x-ndjson"

// lines returns the function that writes one line of JSON.
func (a *response) lines() func(any) error {
	enc, flush := json.NewEncoder(a.w), http.NewResponseController(a.w)
	return func(v any) error {
		if !a.begun {
			a.begin(http.StatusOK, mediaLines)
		}
		if err := enc.Encode(v); err != nil {
			return err
		}
		return flush.Flush()
	}
}

// noLines begins a response of JSON lines to which no line was written.
func (a *response) noLines() {
	if !a.begun {
		a.begin(http.StatusOK, mediaLines)
	}
}

// fail answers with an error. If the head was sent already, fail adds nothing.
func (x *exchange) fail(err error) {
	if x.begun {
		return
	}
	code := storage.CodeOf(err)
	var f Failure
	f.Error.Code, f.Error.Message = string(code), "internal error; it has been logged"
	known, told := errors.AsType[*storage.Error](err)
	absent, isAbsent := errors.AsType[missing](err)
	status := statusOf(code)
	switch {
	case isAbsent:
		status, f.Error.Code, f.Error.Message = http.StatusNotImplemented, codeNotHere, string(absent)
	case told:
		f.Error.Message = known.Message
	}
	if code == storage.Unauthenticated {
		x.w.Header().Set("WWW-Authenticate", "Bearer")
	}
	x.answer(status, f)
}

func statusOf(code storage.Code) int {
	return cmp.Or(map[storage.Code]int{
		storage.Invalid: http.StatusBadRequest, storage.Unauthenticated: http.StatusUnauthorized, storage.Forbidden: http.StatusForbidden,
		storage.NotFound: http.StatusNotFound, storage.Conflict: http.StatusConflict, storage.TooLarge: http.StatusRequestEntityTooLarge,
		storage.Busy: http.StatusTooManyRequests, storage.Unavailable: http.StatusServiceUnavailable,
	}[code], http.StatusInternalServerError)
}

// tell reports a request to the observer, without its query and its body.
func (x *exchange) tell(rt route, took time.Duration, err error) {
	e := &observe.Event{
		Kind: observe.API, HTTPMethod: rt.method, Path: Prefix + rt.path, Status: x.code,
		Account: storage.Account{
			Over: storage.OverREST, Tenant: x.caller.Tenant, Principal: x.caller.Principal, In: int(max(0, x.r.ContentLength)), Took: took, Code: storage.CodeOf(err),
		},
	}
	if err != nil {
		e.Level = slog.LevelWarn
		if _, absent := errors.AsType[missing](err); absent {
			e.Code = codeNotHere // this stays a warning: the route does not exist here, so nothing failed
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
	return &observe.Caller{Tenant: cmp.Or(x.caller.Tenant, who.Tenant), Principal: cmp.Or(x.caller.Principal, who.Principal), Key: who.KeyID(), Address: address}
}

// body decodes the body of a request into what v points to. An empty body changes nothing.
func (x *exchange) body(v any) error {
	d := json.NewDecoder(x.r.Body)
	d.DisallowUnknownFields()
	var large *http.MaxBytesError
	switch err := d.Decode(v); {
	case err == nil, errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &large):
		return storage.Errorf(storage.TooLarge, "the body has over %d bytes", large.Limit)
	default:
		return storage.Errorf(storage.Invalid, "the body is not the JSON object that this route takes: %v", err)
	}
}

// Version returns the version of Dormouse in this program, such as v0.4.0, or devel if it has none.
func Version() string {
	info, _ := debug.ReadBuildInfo() // nil for a program that has none
	return VersionIn(info)
}

// VersionIn is Version for another program. info may be nil.
func VersionIn(info *debug.BuildInfo) string {
	if info != nil {
		for _, m := range append(info.Deps, &info.Main) { // in a program with servers in Go, the main module is another one
			if m.Path == "github.com/dormouse-mcp/dormouse" && m.Version != "" && m.Version != "(devel)" {
				return m.Version
			}
		}
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
	return x.h.Entry(x.r.Context())
}
