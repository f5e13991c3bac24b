// Package observe has the events that report the end of a client's request, of a box's message, or of a
// tools/call. An [Observer] gets each event. The Observer of [Log] writes log lines.
package observe

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Kinds of an [Event]. The kind is also the message of the event's log line.
const (
	Request = "request" // a request of an HTTP client has ended
	Socket  = "socket"  // an event of a client's WebSocket was handled
	API     = "api"     // a request of an operator has ended
	Frame   = "frame"   // a message of a box was handled
	Other   = "event"   // another event was handled, such as an alarm
	Work    = "work"    // a message is sent to a server; the level is Debug if it cannot start a process
	Held    = "held"    // a server has listed tools that clients do not see until an operator accepts them
)

// Outcomes of a tools/call.
const (
	Done    = "done"
	Failed  = "failed"
	Refused = "refused" // the caller may not make the call, or a limit of the caller is used up
	Open    = "open"    // the call goes on; a later event reports its end
)

// Event is one request, frame or other event that was handled, or a message that was sent to a server
// ([Work]). Fields that do not belong to its Kind may be empty. Only Said, Ended and Why may contain
// secrets: they repeat what a client or a server has said. The first Observer that gets an Event writes
// the bodies in Said and Ended for auditors, and removes them.
type Event struct {
	Kind            string
	Level           slog.Level
	storage.Account                // in a Work event, its fields Over, In, Out and Took are zero
	Spent           *storage.Spent // what it cost; nil without a [storage.Meter]

	HTTPMethod string
	Path       string // of the URL; of an API event, the pattern of the route
	Status     int    // of the HTTP response
	RPCMethod  string // of a client's message
	RPCID      string // the JSON type of its id: number, string or none
	What       string // of a Socket: connect, message, disconnect or push; of Held: how many tools
	Type       string // of a Frame
	Box        storage.BoxID
	Conn       string // the connection of a Socket or a Frame
	Error      string
	Stack      string // after a panic
	Trace      string

	Client   string // the name that the client gave itself
	Parent   string // the traceparent that the client sent
	Protocol string // the protocol version in the client's header

	Refused bool             // the request was refused, so no tool was called
	Refusal string           // why the caller was refused: a code, or the kind of a limit
	Caller  *Caller          // of a tools/call or a refusal
	Tool    string           // of a tools/call, or of the first in a Work event
	Outcome string           // how a tools/call has ended; if Tool is "", it is the earlier call with this Stream
	Stream  storage.StreamID // of the call, if it goes on or an earlier request has begun it
	Why     string           // why it failed or was refused, one line
	Said    *Said            // bodies of a tools/call; nil for none

	Ended  []Ended  // calls that have ended while no request waited for their end
	Traces []string // of the requests in a Frame
}

// Caller is the sender of a request. Server, Tenant and Principal may be claims without proof. All
// three are empty if Event.Principal is set, except in events of Kind [API].
type Caller struct {
	Server, Tenant, Principal string
	Key                       string // ID of an API key
	Address                   string // network address
}

// Ended is the end of a call.
type Ended struct {
	Stream   storage.StreamID `json:"stream"`
	Why      string           `json:"why,omitempty"` // why it failed
	Response json.RawMessage  `json:"-"`             // the message with the result or the error
}

// Said is what the parties of a tools/call have said. An observer must not change or keep it.
type Said struct {
	Stream    storage.StreamID // of the call, "" if it has no log
	Arguments json.RawMessage  // nil if they came with an earlier request of the call
	Response  json.RawMessage  // the message with the result or the error; nil if the end was not seen
}

// Observer gets each event when it happens. It must not keep e. A nil Observer gets nothing.
type Observer func(ctx context.Context, e *Event)

// Tell passes e to o. If m is not nil, Tell first sets e.Spent to what m counted for the event.
func (o Observer) Tell(ctx context.Context, m storage.Meter, e *Event) {
	if m != nil {
		spent := m.Spent(e.Account)
		e.Spent = &spent
	}
	if o != nil {
		o(context.WithoutCancel(ctx), e)
	}
}

// Log returns the Observer that writes a line for each event whose level is enabled in the logger.
func Log(to *slog.Logger) Observer {
	if to == nil {
		return nil
	}
	return func(ctx context.Context, e *Event) {
		if !to.Enabled(ctx, e.Level) {
			return // to make the attributes is the expensive part
		}
		to.LogAttrs(ctx, e.Level, e.Kind, e.attrs()...) //nolint:sloglint // Kind is one of the constants above
	}
}

// attrs returns the attributes of the log line. It leaves out message bodies and ids of messages.
func (e *Event) attrs() []slog.Attr {
	all := make([]slog.Attr, 0, 32)
	always := func(key, text string) { all = append(all, slog.String(key, text)) }
	known := func(key, text string) {
		if text != "" {
			always(key, text)
		}
	}
	took := func() { all = append(all, slog.Int64("duration_ms", e.Took.Milliseconds())) }
	client := func() {
		always("rpc_method", e.RPCMethod)
		always("rpc_id", e.RPCID)
		always("session_id", string(e.Session))
	}
	session := func() {
		always("server", e.Server)
		always("session_id", string(e.Session))
	}
	principal := known
	switch e.Kind {
	case Request:
		always("http_method", e.HTTPMethod)
		known("path", e.Path)
		always("server", e.Server)
		all = append(all, slog.Int("status", e.Status))
		client()
		took()
	case Socket:
		always("event", e.What)
		always("server", e.Server)
		always("connection_id", e.Conn)
		client()
		took()
	case API:
		principal = always
		always("http_method", e.HTTPMethod)
		always("route", e.Path)
		all = append(all, slog.Int("status", e.Status))
		took()
	case Frame:
		always("type", e.Type)
		session()
		always("connection_id", e.Conn)
		known("box", string(e.Box))
		took()
	case Other:
		if e.Server != "" {
			session()
		}
		took()
	case Held:
		always("server", e.Server)
		always("what", e.What)
	case Work:
		principal = always
		session()
		always("tenant", e.Tenant)
	}
	known("code", string(e.Code))
	if e.Kind == Socket && e.Status != 0 {
		all = append(all, slog.Int("status", e.Status))
	}
	known("error", e.Error)
	principal("principal", e.Principal)
	known("client", e.Client)
	known("traceparent", e.Parent)
	known("protocol", e.Protocol)
	known("refusal", e.Refusal)
	if e.Caller != nil {
		all = append(all, e.caller())
	}
	if e.Refused {
		all = append(all, slog.Bool("refused", true))
	}
	known("stream", string(e.Stream))
	known("tool", e.Tool)
	known("outcome", e.Outcome)
	known("why", e.Why)
	known("stack", e.Stack)
	known("trace", e.Trace)
	if len(e.Ended) > 0 {
		all = append(all, slog.Any("ended", e.Ended))
	}
	if len(e.Traces) > 0 {
		all = append(all, slog.Any("traces", e.Traces))
	}
	if e.Spent != nil {
		all = append(append(all, slog.String("tenant", e.Tenant), slog.Any("units", e.Spent.Units)), e.Spent.Metrics...)
	}
	return all
}

// caller returns the attribute that says where a request came from. A refused caller can claim any name,
// so the attribute is a group, in which bills and metrics do not look.
func (e *Event) caller() slog.Attr {
	c, names := e.Caller, []slog.Attr{}
	if e.Principal == "" && e.Kind != API {
		names = append(names, slog.String("server", c.Server))
	}
	if e.Principal == "" || e.Kind == API {
		names = append(names, slog.String("tenant", c.Tenant), slog.String("principal", c.Principal))
	}
	return slog.Attr{Key: "caller", Value: slog.GroupValue(append(names, slog.String("key", c.Key), slog.String("address", c.Address))...)}
}
