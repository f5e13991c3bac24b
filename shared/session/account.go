package session

import (
	"context"
	"strings"
	"time"
)

// Poster sends to a WebSocket connection (PostToConnection). Success means that
// the gateway took it, no more. Errors: Closed if the connection is gone, or not
// up yet, and this post certainly did not arrive; Unavailable if nothing is
// known; TooLarge.
type Poster interface {
	Post(ctx context.Context, conn string, data []byte) error
}

// Clients reaches the connections of WebSocket clients.
type Clients interface {
	Poster
	// Close closes a connection. One that is gone is fine.
	Close(ctx context.Context, conn string) error
}

// MaxPost is the most bytes one message to a WebSocket client may have.
const MaxPost = 131_072

// Account is what is known of an invocation of a function when it has ended: for whom
// it was, and what went over the wire. Who counts gets it.
type Account struct {
	Over    Gateway
	Tenant  string // "" if nobody was let in
	Server  string // a configured one, or ""
	Session ID
	Conn    string // WebSocket connection it came over, or ""
	Poll    bool   // it came for what is there, and brought no message
	In, Out int    // bytes of what came and of what was answered
	Took    time.Duration
	Code    Code // what went wrong, or ""
}

// Gateway is what a function was invoked by.
type Gateway string

// The gateways. Each bills in its own way.
const (
	OverREST   Gateway = "rest"   // the REST API of HTTP clients
	OverSocket Gateway = "socket" // the WebSocket API of clients
	OverRelay  Gateway = "relay"  // the WebSocket API of runners
	OverEvent  Gateway = "event"  // an event of AWS, or of a function: nothing went over a wire
)

// Meter counts. Where one can be given, none is fine: nothing is counted then.
type Meter interface {
	// Spent ends an invocation. It returns attributes for its log line, pairs of
	// name and value as slog takes them.
	Spent(a Account) []any
}

// Parts takes a box's name apart; see [BoxFor].
func (id BoxID) Parts() (tenant, server string) {
	i := strings.LastIndexByte(string(id), '/')
	if i < 0 {
		return "", string(id)
	}
	return string(id[:i]), string(id[i+1:])
}

type traceKey struct{}

// WithTrace gives what is done for a client's request its name in all logs: the id
// that the gateway has for it.
func WithTrace(ctx context.Context, trace string) context.Context {
	return context.WithValue(ctx, traceKey{}, trace)
}

// TraceOf is the name that [WithTrace] has given, or "".
func TraceOf(ctx context.Context) string {
	trace, _ := ctx.Value(traceKey{}).(string)
	return trace
}
