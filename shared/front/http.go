package front

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
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

// exchange is one request and its answer: what is known of it by now.
type exchange struct {
	opts  *Options
	w     http.ResponseWriter
	r     *http.Request
	begun time.Time

	caller  host.Caller
	session session.ID
	id      json.RawMessage // of the first request in the body: errors are answered to it
	method  string          // of that request, or else of the first message
	asks    bool            // the body is that one request
	status  int             // what was sent; 0: nothing yet
	sent    *counter        // what was written, if anybody counts
	err     error           // what went wrong, also behind a status that says it did not
}

func (x *exchange) ctx() context.Context { return x.r.Context() }

// detached is for what has to be done also when the client has gone.
func (x *exchange) detached() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(x.ctx()), spare)
}

// serve goes down the part of the ladder that all methods share; what follows is
// in validate.go, post.go, get.go and sse.go. An error it returns has not been answered.
func (x *exchange) serve() error {
	if err := x.admit(); err != nil {
		return err
	}
	if x.r.Method == http.MethodOptions {
		x.preflight()
		return nil
	}
	name, serve, err := x.route()
	if err != nil {
		return err
	}
	who, err := whole(x.opts.Auth.Authenticate(x.r, name))
	if err != nil {
		return err
	}
	server, err := x.opts.server(name, "there is no such server; servers are at /<server>/mcp")
	if err != nil {
		return err
	}
	x.caller = caller(who, server, session.HTTP)
	release, err := x.opts.admitted(x.ctx(), x.caller)
	if err != nil {
		return err
	}
	defer release()
	return serve()
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

// until is when a response has to end that may be held for this long.
func (x *exchange) until(hold time.Duration) time.Time {
	end := x.begun.Add(min(hold, x.opts.Limit))
	if limit, ok := x.ctx().Deadline(); ok {
		end = earlier(end, limit.Add(-spare))
	}
	return end
}

// spare is what remains of a function's time when it begins to close a stream.
const spare = 2 * time.Second

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// json answers with a whole body, which is JSON.
func (x *exchange) json(status int, body []byte) {
	x.w.Header().Set("Content-Type", wire.MediaJSON)
	x.empty(status)
	if x.r.Method != http.MethodHead {
		// A client that has gone misses its answer, and there is nobody to tell.
		_, _ = x.w.Write(body)
	}
}

// text answers with a few words, which no client reads.
func (x *exchange) text(status int, body string) {
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	x.empty(status)
	_, _ = x.w.Write([]byte(body)) // as in json
}

// empty answers without a body.
func (x *exchange) empty(status int) {
	x.status = status
	x.w.WriteHeader(status)
}

// finish ends a request: it catches a panic and writes the log line.
func (x *exchange) finish() {
	fault := recover()
	if fault == nil {
		x.log()
		return
	}
	begun := x.status != 0
	x.err = session.Errorf(session.Internal, "panic: %v", fault)
	if !begun {
		x.refuse(x.err)
	}
	x.log(slog.String("stack", string(debug.Stack())))
	if begun {
		panic(http.ErrAbortHandler)
	}
}

// log writes the one line of this request. It holds no body, no message's id
// and of the headers the session's only.
func (x *exchange) log(more ...slog.Attr) {
	level := slog.LevelInfo
	attrs := append(make([]slog.Attr, 0, 10),
		slog.String("http_method", clip(x.r.Method)),
		slog.String("server", x.caller.Server.Name),
		slog.Int("status", x.status),
		slog.String("rpc_method", clip(x.method)),
		slog.String("rpc_id", kindOf(x.id)),
		slog.String("session_id", string(x.session)),
		slog.Int64("duration_ms", time.Since(x.begun).Milliseconds()),
	)
	if x.err != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("code", string(session.CodeOf(x.err))))
		if x.status >= http.StatusInternalServerError {
			level = slog.LevelError
		}
		// The text of a refusal follows from its code, and may repeat what was sent.
		if x.status < http.StatusBadRequest || x.status >= http.StatusInternalServerError {
			attrs = append(attrs, slog.String("error", x.err.Error()))
		}
	}
	attrs = append(append(attrs, more...), x.spent()...)
	x.opts.Log.LogAttrs(context.WithoutCancel(x.ctx()), level, "request", attrs...)
}

// clip keeps what a client wrote from filling the log.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(s[:most], ""), len(s))
}

func kindOf(id json.RawMessage) string {
	switch {
	case len(id) == 0:
		return "none"
	case id[0] == '"':
		return "string"
	default:
		return "number"
	}
}
