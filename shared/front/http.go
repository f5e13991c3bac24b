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

// Options are the options of an endpoint. Servers, Host and Auth are needed. Other fields
// that are zero get the default that their comment names.
type Options struct {
	// Servers finds a configured server by its name.
	Servers func(name string) (host.Server, bool)
	// Unserved returns why a server of the servers file is not served, in words for its
	// users. It returns "" for a server that is not in the file. nil: both get the same
	// answer.
	Unserved func(name string) string
	// Host serves the sessions.
	Host *host.Host
	// Auth finds out who sent a request. nil: every request is refused.
	Auth Authenticator
	// SignIn tells clients where to get the tokens that Auth takes. nil: Auth takes
	// none.
	SignIn SignIn
	// Tickets serve WebSocket clients that cannot send headers. nil: there are none.
	Tickets Tickets
	// AllowedHosts are the values of Host that are served: "name" with any port,
	// "name:port", or "*" for all. Empty: 127.0.0.0/8, ::1 and localhost.
	AllowedHosts []string
	// AllowedOrigins are web pages that may call, besides those of the request's own
	// Host and port: exact origins such as "https://app.example", or "*" for all. All
	// names of the loopback address count as one host. A request without an Origin does
	// not come from a page that could read the answer; see exchange.streams for those
	// that hold a function.
	AllowedOrigins []string
	// Log gets one line for each request, and nothing else. nil: no log.
	Log *slog.Logger
	// JSONWindow is how long a response may take and still be plain JSON; 1 s. A
	// response that takes longer, or comes after other messages, is an event stream.
	JSONWindow time.Duration
	// KeepAlive is the silence after which an event stream gets a comment; 15 s.
	KeepAlive time.Duration
	// Limit is how long any response may be held; 14 min. It must be below the
	// platform's limit. A deadline of the request's context bounds the response too.
	Limit time.Duration
	// Sealer seals the state that modern clients carry between the rounds of a call.
	// nil: a server's questions to modern clients are refused.
	Sealer Sealer
	// MaxBody bounds the body of a POST in bytes; 4 MiB.
	MaxBody int64
	// Meter counts the costs of each request, for its log line. nil counts nothing.
	Meter session.Meter
	// Admit is called for each request, message and connection once its caller is
	// known, before the body is read. An error refuses the request; its code is Busy.
	// The endpoint calls release when the request has been handled. nil: all are
	// admitted.
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

// HTTP is the endpoint of all servers, an http.Handler. It keeps no state between
// requests, so a new one could serve each. It is safe for concurrent use.
type HTTP struct{ opts Options }

// New returns the endpoint.
func New(opts Options) *HTTP { return &HTTP{opts: opts.withDefaults()} }

// ServeHTTP answers one request, which takes up to [Options].Limit. It logs a panic and
// answers it with 500. If the response has begun, it breaks the response off with
// http.ErrAbortHandler.
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

// server returns a server that a caller may use. If the server is not served, the error
// has the reason. If it is not in the servers file, the error text is unknown.
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
