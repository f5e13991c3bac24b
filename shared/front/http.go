package front

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Options are the options of an endpoint. Servers, Host and Auth are required. Other
// fields that are zero get the default that their comment names.
type Options struct {
	// Servers finds a configured server by its name.
	Servers func(name string) (host.Server, bool)
	// Names returns the names of the servers that are served. The error for an unknown
	// name lists the servers that the caller may use. nil: it lists none.
	Names func() []string
	// Unserved returns why a server of the servers file is not served, in words for its
	// users. It returns "" for a server that is not in the file. nil: the endpoint gives
	// the same answer in both cases.
	Unserved func(name string) string
	// Removed returns the text of the 404 for a server that was in the servers file, in
	// words for its users. It returns "" for any other name. nil: all names get the same
	// text.
	Removed func(name string) string
	// Groups returns a group of servers by its name; "" is the group at /mcp. nil: there are
	// none.
	Groups func(name string) (Group, bool)
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
	// AllowedOrigins are the origins of web pages that may call, besides the request's own
	// Host and port. They are exact, such as "https://app.example", or "*" for all. All
	// names of the loopback address count as one host. A request without an Origin does not
	// come from a page that could read the answer. exchange.streams checks further those
	// requests that hold a function.
	AllowedOrigins []string
	// Log gets one line for each request, and nothing else. nil: no log. The line of a
	// tools/call has the tool and an outcome: done, failed, or open if the call goes on
	// after the request. A later line with the same stream then has the outcome.
	Log *slog.Logger
	// AnswerFirst sends an answer before its log line is written. By default the server
	// sends it when ServeHTTP returns.
	AnswerFirst bool
	// JSONWindow is how long a response may take and still be plain JSON; 1 s. A
	// response that takes longer, or comes after other messages, is an event stream.
	JSONWindow time.Duration
	// KeepAlive is the silence after which an event stream gets a comment; 15 s.
	KeepAlive time.Duration
	// Limit is how long any response may be held; 14 min. It must be below the platform's
	// limit. A deadline of the request's context limits the response too.
	Limit time.Duration
	// Sealer seals the state that modern clients carry between the rounds of a call.
	// nil: a server's questions to modern clients are refused.
	Sealer Sealer
	// MaxBody bounds the body of a POST in bytes; 4 MiB.
	MaxBody int64
	// ShowErrors has the log lines of failed calls repeat what the server answered. Set it
	// where the operator is the only caller.
	ShowErrors bool
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
// answers it with 500. If the response has begun by then, ServeHTTP aborts it with
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

// server returns a server that a caller may use. If the servers file has the server but
// it is not served, the error gives the reason. If the file does not have it, the error
// says so if the server was removed. Otherwise it names the servers that the sender of r
// may use, or has the text unknown if there are none. r may be nil.
func (o Options) server(r *http.Request, name, unknown string) (host.Server, error) {
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
	removed := ""
	if o.Removed != nil {
		removed = o.Removed(name)
	}
	if removed == "" && r != nil {
		unknown = o.unknown(r, name, unknown)
	}
	return host.Server{}, refusal(http.StatusNotFound, session.NotFound, wire.CodeServer, cmp.Or(removed, unknown))
}

func (o *Options) admitted(ctx context.Context, c host.Caller) (release func(), err error) {
	if o.Admit == nil {
		return func() {}, nil
	}
	return o.Admit(ctx, c)
}
