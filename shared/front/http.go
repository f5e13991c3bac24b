package front

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Options of a front. Servers, Host and Auth are needed; what else is zero
// gets the default that is named.
type Options struct {
	// Servers finds a configured server by its name.
	Servers func(name string) (host.Server, bool)
	// Unserved says why a server of the servers file is not served, in words for
	// whoever may use it; "" for one that is not in the file. Without it nothing is
	// known of such servers.
	Unserved func(name string) string
	// Host serves the sessions.
	Host *host.Host
	// Auth says who sent a request. Without it nobody is let in.
	Auth Authenticator
	// Tickets are for WebSocket clients that cannot send headers. Without it there
	// are none.
	Tickets Tickets
	// AllowedHosts are the values of Host that are served: "name" with any port,
	// "name:port", or "*" for all. Empty: 127.0.0.0/8, ::1 and localhost.
	AllowedHosts []string
	// AllowedOrigins are the web pages that may call besides those of the request's own
	// Host and port: exact origins as "https://app.example", or "*" for all. All names
	// of the loopback address are one host. A request without an Origin is not from a
	// page that could read the answer; only streams look whether it is from one at all.
	AllowedOrigins []string
	// Log gets one line for each request, and no other. Default: none.
	Log *slog.Logger
	// JSONWindow is how long a response may take to be answered as plain JSON. A
	// later one, or one that something else precedes, is an event stream; 1 s.
	JSONWindow time.Duration
	// KeepAlive is the pause after which a comment is sent on an event stream; 15 s.
	KeepAlive time.Duration
	// Limit is how long any response may be held. It must be below what the
	// platform allows; 14 min. A deadline of the request's context bounds it too.
	Limit time.Duration
	// Sealer seals what modern clients carry between the rounds of a call. Without
	// it they cannot be asked anything: a server's questions are refused.
	Sealer Sealer
	// MaxBody bounds the body of a POST in bytes; 4 MiB.
	MaxBody int64
	// Meter counts what each request costs, in its log line. nil for none.
	Meter session.Meter
	// Admit is asked for each request, message and connection whose caller is known,
	// before a body is read; an error, of code Busy, refuses it. release is called when it
	// has been handled. nil admits all.
	Admit func(ctx context.Context, c host.Caller) (release func(), err error)
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.JSONWindow, time.Second)
	def(&o.KeepAlive, 15*time.Second)
	def(&o.Limit, 14*time.Minute)
	if o.MaxBody == 0 {
		o.MaxBody = 4 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Auth == nil {
		o.Auth = nobody{}
	}
	return o
}

// HTTP is the endpoint of all servers, an http.Handler. It keeps nothing between
// requests: one made anew for each serves the same. Safe for concurrent use.
type HTTP struct{ opts Options }

// New makes the endpoint.
func New(opts Options) *HTTP { return &HTTP{opts: opts.withDefaults()} }

// ServeHTTP answers one request, which takes up to [Options].Limit. A panic below
// is logged and answered with 500, or, when the response has begun, breaks it off
// with http.ErrAbortHandler.
func (h *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{opts: &h.opts, w: w, r: r, begun: time.Now()}
	if h.opts.Meter != nil {
		x.sent = &counter{ResponseWriter: w}
		x.w = x.sent
	}
	defer x.finish()
	if err := x.serve(); err != nil {
		x.refuse(err)
	}
}

// server finds a server for somebody who may use it. If there is none, the error says
// why, or else what unknown says.
func (o Options) server(name, unknown string) (host.Server, error) {
	server, ok := o.Servers(name)
	if ok {
		return server, nil
	}
	if o.Unserved != nil {
		if reason := o.Unserved(name); reason != "" {
			return host.Server{}, refusal(http.StatusServiceUnavailable, session.Unavailable, wire.CodeServer,
				fmt.Sprintf("server %q is not served: %s", name, reason))
		}
	}
	return host.Server{}, refusal(http.StatusNotFound, session.NotFound, wire.CodeServer, unknown)
}

func (o *Options) admitted(ctx context.Context, c host.Caller) (release func(), err error) {
	if o.Admit == nil {
		return func() {}, nil
	}
	return o.Admit(ctx, c)
}
