package storage

import (
	"context"
	"log/slog"
	"strings"
	"time"
)

// This file does not concern storage drivers.

// Poster sends messages to WebSocket connections. It is safe for concurrent use.
type Poster interface {
	// Post sends one message. nil means that the gateway has taken it, not that it has
	// arrived.
	//
	// Errors: Closed if the connection is gone or not ready yet, so that the message did
	// not arrive; TooLarge; Unavailable if the outcome is unknown.
	Post(ctx context.Context, conn string, data []byte) error
}

// Clients reaches the connections of WebSocket clients. One message has at most MaxPost
// bytes.
type Clients interface {
	Poster
	// Close closes a connection. It is no error if the connection is gone.
	Close(ctx context.Context, conn string) error
}

// Account describes one invocation of a function: its caller, and what it transferred.
type Account struct {
	Over   Gateway
	Tenant string // "" if the caller was refused
	// Principal is the caller; "" for events and for frames of runners, which have no caller.
	Principal string
	Server    string // name of a configured server, or ""
	Session   ID
	Poll      bool          // the request brought no message; it only asked for events
	In, Out   int           // bytes of the request's body and of the response's
	Took      time.Duration // of the invocation
	Code      Code          // of the error that the client got, or ""
}

// Gateway is the service that invoked a Lambda function.
type Gateway string

// Values of Account.Over.
const (
	OverREST   Gateway = "rest"   // the REST API of HTTP clients
	OverSocket Gateway = "socket" // the WebSocket API of clients
	OverRelay  Gateway = "relay"  // the WebSocket API of runners
	OverEvent  Gateway = "event"  // an event of AWS, or a call by another function
)

// Meter counts what invocations use. A nil Meter counts nothing.
type Meter interface {
	// Spent is called once, at the end of each invocation. It returns what the invocation has used.
	Spent(a Account) Spent
}

// Spent is what an invocation has used.
type Spent struct {
	Units   Units // that AWS bills
	Wakes   int   // how many boxes it has woken
	Metrics []slog.Attr
}

// Work is what a message asks a server to do, before any of it has begun.
type Work struct {
	Tenant    string
	Principal string
	Server    string
	Session   ID
	Stream    StreamID // the stream that will have the responses
	Tools     []string // name of the tool of each tools/call; a name may repeat
}

// Gate decides whether work may begin. A Gate is safe for concurrent use. A nil Gate admits all work.
type Gate interface {
	// Admit charges the work to the limits of its principal and tenant. Call undo if the work did
	// not begin after all; it takes the charge back.
	//
	// Errors: Busy if a limit refuses the work, with a [Limited] as the cause.
	Admit(ctx context.Context, w Work) (undo func(), err error)
}

// Needs says which keys and tokens at third parties a message needs of its caller.
type Needs struct {
	Tenant    string
	Principal string
	Server    string
	Session   ID       // its client is told when the user has connected an account; "" for none
	Providers []string // the third parties, by their names in the servers file
	Need      bool     // the call fails if one is missing
}

// Secrets returns the keys and tokens that callers have at third parties. It is safe for
// concurrent use.
type Secrets interface {
	// Secrets returns the keys and tokens of the caller in w, by provider.
	//
	// Errors: Forbidden with a [NotConnected] as the cause, if Need is set and something is missing;
	// Unavailable.
	Secrets(ctx context.Context, w Needs) (map[string]Secret, error)
}

type (
	traceKey   struct{}
	addressKey struct{}
	lazyKey    struct{}
)

// Lazily returns a context in which Save of a session, and SaveHandshake, need not wait for the disk. A
// power cut may lose these writes until a later write is on the disk, so the caller must be able to do
// without them.
func Lazily(ctx context.Context) context.Context { return context.WithValue(ctx, lazyKey{}, true) }

// IsLazy reports whether ctx comes from [Lazily].
func IsLazy(ctx context.Context) bool { return ctx.Value(lazyKey{}) != nil }

// WithAddress returns a context whose log lines name the network address that the client's
// request came from.
func WithAddress(ctx context.Context, address string) context.Context {
	return context.WithValue(ctx, addressKey{}, address)
}

// AddressOf returns the address of [WithAddress], or "".
func AddressOf(ctx context.Context) string {
	address, _ := ctx.Value(addressKey{}).(string)
	return address
}

// WithTrace returns a context whose log lines carry trace: the gateway's id of the
// client's request.
func WithTrace(ctx context.Context, trace string) context.Context {
	return context.WithValue(ctx, traceKey{}, trace)
}

// WithParent returns a context whose trace also has the trace id and the flags of the client's
// traceparent: REQUEST.TRACEID-FLAGS. The traceparent must be "" or well formed (W3C Trace Context,
// version 00). WithParent returns ctx itself if traceparent is "", or if ctx has no trace or one that
// already names a parent.
func WithParent(ctx context.Context, traceparent string) context.Context {
	trace := TraceOf(ctx)
	if trace == "" || traceparent == "" || strings.Contains(trace, ".") {
		return ctx
	}
	return WithTrace(ctx, trace+"."+traceparent[3:35]+traceparent[52:])
}

// TraceOf returns the trace of [WithTrace], or "".
func TraceOf(ctx context.Context) string {
	trace, _ := ctx.Value(traceKey{}).(string)
	return trace
}
