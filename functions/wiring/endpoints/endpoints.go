// Package endpoints builds the handlers for clients over HTTP and WebSocket, and the handler for
// alarms of native servers. It is separate from package wiring because it links the MCP Go SDK,
// which the relay function does not need.
package endpoints

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/backend/remote"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/registry"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// Alarms says how native servers are called at a later time. With the zero value there are no
// alarms.
type Alarms struct {
	Schedule native.Scheduler
	// Invoke makes the HTTP function handle an event; see native.Config.
	Invoke func(ctx context.Context, payload []byte) error
	Here   bool // Invoke handles the event in this process
	// Command runs a command of the servers file; see remote.Server. It is nil on AWS.
	Command func(ctx context.Context, command string) (value string, forget func(), err error)
}

// HTTP has the handler for HTTP clients, and the one for alarms of native servers.
type HTTP struct {
	// Handler returns when all work that a request has started is done.
	Handler http.Handler
	Alarm   func(context.Context, native.Alarm) error
	// Operators are the options with which Handler serves the API for operators. The caller may
	// build another such API with them.
	Operators api.Options
	// Host is the session manager. The program itself can open sessions with it.
	Host *sessions.Manager
}

// NewHTTP returns an HTTP. The argument servers has the native servers of the program; NewHTTP
// fails if the servers file names another one. If not nil, changeEndpoint changes the options of
// the endpoint, and changeAPI those of the API for operators.
func NewHTTP(f *wiring.Function, servers native.Servers, alarms Alarms, changeEndpoint func(*transport.Options), changeAPI func(*api.Options)) (HTTP, error) {
	b, err := backend(f, servers, alarms)
	if err != nil {
		return HTTP{}, err
	}
	o := optionsOf(f, b, nil, changeEndpoint)
	o.Sealer = f.States
	operators := Operators(f, b)
	if changeAPI != nil {
		changeAPI(&operators)
	}
	endpoint := transport.New(o)
	published := registry.Registry{Records: f.Store, PublicURL: f.PublicURL, Keys: !f.Open && f.SignIn == nil}
	clients, forOperators, listing, cards := native.Handler(endpoint), api.New(operators), endpoint.Listing(published.Answer), endpoint.Listing(published.Cards)
	return HTTP{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasPrefix(r.URL.Path, api.Prefix):
				forOperators.ServeHTTP(w, r)
			case strings.HasPrefix(r.URL.Path, registry.Prefix):
				listing.ServeHTTP(w, r)
			case registry.IsCard(r.URL.Path):
				cards.ServeHTTP(w, r)
			default:
				clients.ServeHTTP(w, r)
			}
		}),
		Operators: operators, Host: o.Host,
		Alarm: wiring.Event(f, func(a native.Alarm) storage.Account {
			s, _ := f.Server(a.Server) // s.Name is "" for an unknown server: a caller must not be able to create metrics with names of its own
			return storage.Account{Tenant: a.Tenant, Server: s.Name, Session: a.Session}
		}, b.Handle),
	}, nil
}

// optionsOf returns the options of an endpoint with the backend b. The argument clients has the
// connections of WebSocket clients; it is nil if there are none. The function change, if not nil,
// changes the options.
func optionsOf(f *wiring.Function, b *native.Backend, clients storage.Clients, change func(*transport.Options)) transport.Options {
	o := transport.Options{
		Servers: f.Server, Unserved: f.Servers.Reason, Removed: f.Servers.Removed,
		Names: func() []string {
			return slices.DeleteFunc(f.Servers.Names(), func(name string) bool {
				_, ok := f.Server(name)
				return !ok
			})
		},
		Groups: func(name string) (transport.Group, bool) {
			if name == serversfile.AllServers {
				return transport.Group{}, false // the group of all servers is at /mcp only, not also at /g/<name>/mcp, so that its tokens have one audience
			}
			g, ok := f.Servers.Group(cmp.Or(name, serversfile.AllServers))
			return transport.Group{Servers: g.Servers, Plain: g.Plain, Search: g.Search}, ok
		},
		Host:         sessions.New(f.Store, b, f.Limits).With(sessions.Parts{Held: f.Held, Secrets: f.Vault, Boxes: f.Relay.BoxesOf, Clients: clients}),
		AllowedHosts: f.Hosts, AllowedOrigins: f.Origins, Observer: f.Observer, Meter: f.Meter,
		Auth: f.Auth, SignIn: f.SignIn, Tickets: f.Tickets, ShowErrors: f.ShowErrors,
	}
	if change != nil {
		change(&o)
	}
	limit(f, &o)
	return o
}

// Operators returns options of the API for operators: the API shows only what is in the store, and
// acts on sessions and native servers through b. Its callers need an API key with the role viewer,
// auditor or operator, or have signed in to the console.
func Operators(f *wiring.Function, b *native.Backend) api.Options {
	return api.Options{
		Info: api.Info{Place: api.PlaceStack, SignIn: signIn(f)}, Store: f.Store, Servers: func() *serversfile.File { return f.Servers },
		Caller: api.Holders(apikey.NewKeys(f.Store), f.Users),
		Acts: api.Acts{
			End: sessions.New(f.Store, b, f.Limits).Terminate, Give: sessions.New(f.Store, b, f.Limits).Give,
			Halt: relayserver.NewBackend(f.Relay).Halt,
			Forget: func(ctx context.Context, tenant string, s serversfile.Server) error {
				return sessions.Forget(ctx, f.Store, tenant, s.Name, s.RecordDigest())
			},
			Relist: func(ctx context.Context, tenant string, s serversfile.Server) error {
				if s.InPlace() {
					return b.ListChanged(ctx, tenant, s.Name, native.Tools)
				}
				return sessions.Relist(ctx, f.Store, tenant, s.Name)
			},
		},
		NativeTools: b.Tools, Held: f.Held,
		Pushed: f.Pushed, Observer: f.Observer, Meter: f.Meter,
	}
}

// signIn returns the name of the identity provider at which users sign in, or "".
func signIn(f *wiring.Function) string {
	if f.Access == nil {
		return ""
	}
	name, _ := f.Access.SignIn()
	return name
}

// NewSocket returns the endpoint for WebSocket clients. The argument push becomes the field Push of
// transport.SocketOptions. The other arguments and the error have the same meaning as in [NewHTTP].
func NewSocket(f *wiring.Function, servers native.Servers, alarms Alarms, push func(context.Context, storage.ID) error, changeEndpoint func(*transport.Options)) (*transport.Socket, error) {
	b, err := backend(f, servers, alarms)
	if err != nil {
		return nil, err
	}
	return transport.NewSocket(transport.SocketOptions{Options: optionsOf(f, b, f.Relay.Clients, changeEndpoint), Push: push}), nil
}

// limit makes an endpoint enforce the limits of the servers file, if the file has any. If a refused
// caller still sends ten times as many requests as its rate allows, the endpoint refuses all of them
// for some seconds, without reading the store.
func limit(f *wiring.Function, o *transport.Options) {
	if f.Quotas == nil {
		return
	}
	o.Host = o.Host.With(sessions.Parts{Gate: f.Quotas})
	next := o.Admit
	o.Admit = func(ctx context.Context, c sessions.Caller) (release func(), err error) {
		if err := f.Quotas.Flooding(c.Tenant, c.Principal); err != nil {
			return nil, err
		}
		if next == nil {
			return func() {}, nil
		}
		return next(ctx, c)
	}
}

// Janitor returns a Backend for a Lambda function that executes no native server. When a call of a
// native server must go on, the Backend starts the HTTP function with alarms.Invoke.
func Janitor(f *wiring.Function, alarms Alarms) *native.Backend {
	if alarms.Invoke == nil {
		alarms.Invoke = func(context.Context, []byte) error {
			return storage.Errorf(storage.Unavailable, "native servers cannot be invoked: the setting that names their function is missing")
		}
	}
	return newBackend(f, alarms, nil)
}

// backend returns a Backend that handles messages to native and remote servers itself, and passes
// all others to boxes.
func backend(f *wiring.Function, servers native.Servers, alarms Alarms) (*native.Backend, error) {
	for _, name := range f.Servers.Names() {
		s, _ := f.Servers.Server(name)
		if err := CheckNative(s, servers); err != nil {
			return nil, fmt.Errorf("server %q: %w", name, err)
		}
	}
	return newBackend(f, alarms, servers), nil
}

// CheckNative returns an error if s is an enabled native server that is not among those compiled
// into the program.
func CheckNative(s serversfile.Server, compiled native.Servers) error {
	if _, ok := compiled[s.Native]; s.Native == "" || s.Disabled || ok {
		return nil
	}
	there := strings.Join(slices.Sorted(maps.Keys(compiled)), ", ")
	if there == "" {
		there = "none: call the program that you have built with it, such as go run . run"
	}
	return fmt.Errorf("this program has no native server %q; it has %s", s.Native, there)
}

// remotes is this process's client of remote servers. It outlives the handlers, so that new
// handlers use its open connections.
var remotes = sync.OnceValue(remote.New)

func newBackend(f *wiring.Function, alarms Alarms, servers native.Servers) *native.Backend {
	hosted := func(s serversfile.Server) native.Hosted {
		h := native.Hosted{ToolTimeout: s.ToolTimeout, AnswerTimeout: s.AnswerTimeout}
		if s.Remote.URL == "" {
			h.Make = servers[s.Native]
			return h
		}
		h.Remote = remotes().Server(remote.Server{
			Name: s.Name, URL: s.Remote.URL, Headers: s.Remote.Headers, Commands: s.Remote.Commands, Run: alarms.Command, Transport: remote.Transport(s.Remote.Transport), Private: s.Remote.Private,
			Providers: s.Principal(), Startup: s.StartupTimeout, Secrets: f.Relay.Secrets, Answer: s.AnswerTimeout, Here: alarms.Here,
		})
		return h
	}
	return native.NewBackend(native.Config{
		Since: f.Limits.Since, Store: f.Store, Next: relayserver.NewBackend(f.Relay), Clients: f.Relay.Clients, Held: f.Held,
		Schedule: alarms.Schedule, Invoke: alarms.Invoke, EventAge: f.Limits.EventAge, ShowErrors: f.ShowErrors, Log: f.Log,
		Servers: func(name string) (native.Hosted, bool) {
			s, ok := f.Servers.Server(name)
			if !ok || !s.InPlace() {
				return native.Hosted{}, false
			}
			return hosted(s), true
		},
	})
}
