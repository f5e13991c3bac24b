// Package endpoints builds the handlers that clients reach: HTTP, WebSocket, and the
// alarms of native servers. It is separate from package wiring because it links
// go-sdk, which the relay function does not need.
package endpoints

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/front"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/native"
	"github.com/dormouse-mcp/dormouse/shared/relay/relayhost"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Alarms sets how native servers are called later. The zero value keeps no alarms and
// executes everything in place.
type Alarms struct {
	Schedule native.Scheduler
	// Invoke lets the HTTP function handle an event; see native.Config.
	Invoke func(ctx context.Context, payload []byte) error
}

// HTTP is the endpoint for HTTP clients, and the handler of native servers' alarms.
type HTTP struct {
	// Handler returns when everything that a request started has finished.
	Handler http.Handler
	Alarm   func(context.Context, native.Alarm) error
}

// NewHTTP returns an HTTP. The error names a server of the servers file whose native
// server is not in servers. options changes front.Options beyond the parts of f; it may
// be nil.
func NewHTTP(f *wiring.Function, servers native.Servers, alarms Alarms, options func(*front.Options)) (HTTP, error) {
	b, err := backend(f, servers, alarms)
	if err != nil {
		return HTTP{}, err
	}
	o := front.Options{
		Servers: f.Server, Unserved: f.Servers.Reason, Host: host.New(f.Store, b, f.Limits), AllowedHosts: f.Hosts, AllowedOrigins: f.Origins, Log: f.Log, Meter: f.Meter,
		Auth: f.Auth, Tickets: f.Tickets, Sealer: f.States,
	}
	if f.SignIn != nil {
		o.SignIn = f.SignIn
	}
	if options != nil {
		options(&o)
	}
	return HTTP{
		Handler: native.Handler(front.New(o)),
		Alarm: wiring.Event(f, func(a native.Alarm) session.Account {
			s, _ := f.Server(a.Server) // an unknown name must not become a metric of its own
			return session.Account{Tenant: a.Tenant, Server: s.Name, Session: a.Session}
		}, b.Handle),
	}, nil
}

// NewSocket returns the endpoint for WebSocket clients. push is as in
// front.SocketOptions; options and the error are as in [NewHTTP].
func NewSocket(f *wiring.Function, servers native.Servers, alarms Alarms, push func(context.Context, session.ID) error, options func(*front.Options)) (*front.Socket, error) {
	b, err := backend(f, servers, alarms)
	if err != nil {
		return nil, err
	}
	o := front.Options{
		Servers: f.Server, Unserved: f.Servers.Reason, Host: host.New(f.Store, b, f.Limits).WithClients(f.Relay.Clients), AllowedHosts: f.Hosts, AllowedOrigins: f.Origins,
		Log: f.Log, Auth: f.Auth, Tickets: f.Tickets, Meter: f.Meter,
	}
	if options != nil {
		options(&o)
	}
	return front.NewSocket(front.SocketOptions{Options: o, Push: push}), nil
}

// Janitor returns a Backend for a function that executes no native server. The HTTP
// function executes due work, through alarms.Invoke.
func Janitor(f *wiring.Function, alarms Alarms) *native.Backend {
	if alarms.Invoke == nil {
		alarms.Invoke = func(context.Context, []byte) error {
			return session.Errorf(session.Unavailable, "this function is not told which function executes native servers")
		}
	}
	return newBackend(f, alarms, nil)
}

// backend returns a Backend that executes the messages of native servers, and passes
// all others to their boxes.
func backend(f *wiring.Function, servers native.Servers, alarms Alarms) (*native.Backend, error) {
	for _, name := range f.Servers.Names() {
		s, _ := f.Servers.Server(name)
		if _, ok := servers[s.Native]; s.Native != "" && !s.Disabled && !ok {
			there := strings.Join(slices.Sorted(maps.Keys(servers)), ", ")
			if there == "" {
				there = "none"
			}
			return nil, fmt.Errorf("server %q: this program has no native server %q; it has %s", name, s.Native, there)
		}
	}
	return newBackend(f, alarms, servers), nil
}

func newBackend(f *wiring.Function, alarms Alarms, servers native.Servers) *native.Backend {
	return native.NewBackend(native.Config{
		Store: f.Store, Next: relayhost.NewBackend(f.Relay), Clients: f.Relay.Clients,
		Schedule: alarms.Schedule, Invoke: alarms.Invoke, EventAge: f.Limits.EventAge, Log: f.Log,
		Servers: func(name string) (native.Hosted, bool) {
			s, ok := f.Servers.Server(name)
			return native.Hosted{Make: servers[s.Native], ToolTimeout: s.ToolTimeout, AnswerTimeout: s.AnswerTimeout}, ok && s.Native != ""
		},
	})
}
