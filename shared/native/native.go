package native

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Server makes an author's server for one message of a session. It is called for
// each message, often in a process that was just started, so it does nothing that
// takes long, and returns a new server each time, made with [Session.Options]. What
// has to last goes into the session's state. An error is what the client gets.
type Server func(ctx context.Context, s Session) (*mcp.Server, error)

// Servers are an author's servers by the names that the servers file calls them by.
type Servers map[string]Server

// Session is what a message was sent in: a legacy client's session, or what is kept
// for all requests of one modern client. It is good until the message is answered.
type Session struct{ in *inside }

// inside is what a Session is about.
type inside struct {
	k      *Backend
	record session.Session // as it was read with the message
	server Hosted
	init   json.RawMessage // the client, as params of initialize
	extra  *mcp.RequestExtra
	method string // of the request, "" for none
	tool   string // that is called, "" for none
	// subscription is what the client asks of a resource, "" for nothing; see
	// inside.subscribe.
	subscription, uri string

	onAlarm func(context.Context, Alarm) error
}

// ID names the session. It is the same for as long as it lives, whatever was
// restarted, and nobody else's.
func (s Session) ID() string { return string(s.in.record.ID) }

// Server is the name of the server in the servers file.
func (s Session) Server() string { return s.in.record.Server }

// Tenant is who pays.
func (s Session) Tenant() string { return s.in.record.Tenant }

// Principal is who the client acts for.
func (s Session) Principal() string { return s.in.record.Principal }

// Props is what authentication says of the principal besides its name, a JSON
// object, nil for nothing: what it said for this message, or when nobody has called
// (an alarm, an answer that came) for the last one.
func (s Session) Props() json.RawMessage { return bytes.Clone(s.in.record.Props) }

// Version is the protocol version that the client speaks.
func (s Session) Version() string {
	if s.in.record.Transport == session.Modern {
		return wire.V20260728
	}
	return s.in.record.Version
}

// Client is what the client calls itself, nil if it did not say.
func (s Session) Client() *mcp.Implementation {
	return decoded[mcp.Implementation](wire.Lookup(s.in.init, "clientInfo"))
}

// Capabilities are what the client has declared: when its session began, or, of a
// modern client, with this request. Never nil.
func (s Session) Capabilities() *mcp.ClientCapabilities {
	if c := decoded[mcp.ClientCapabilities](wire.Lookup(s.in.init, "capabilities")); c != nil {
		return c
	}
	return &mcp.ClientCapabilities{}
}

// Subscribed are the resources that a legacy client has asked to hear of.
func (s Session) Subscribed() []string { return slices.Clone(s.in.record.Subscribed) }

// Options are what the server has to be made with, to be added to: schemas that are
// worked out once in a process, and no capability that is not there. A result says
// that it is for its caller only, and not fresh for any time; see SetCacheable.
func (s Session) Options() *mcp.ServerOptions {
	return &mcp.ServerOptions{
		SchemaCache:  s.in.k.schemas,
		Capabilities: &mcp.ServerCapabilities{},
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
		GetSessionID: func() string { return s.ID() },
	}
}

// AddTool is mcp.AddTool for a server that is made for one message: what an author has
// many of, and the message has no use for, is left out. go-sdk reads the schema of a
// tool each time it is added; with this a call costs as much however many tools there
// are.
func AddTool[In, Out any](s Session, server *mcp.Server, t *mcp.Tool, h mcp.ToolHandlerFor[In, Out]) {
	if s.in.uses(t.Name) {
		mcp.AddTool(server, t, h)
	}
}

// uses says whether the message needs to know of a tool.
func (in *inside) uses(tool string) bool {
	switch in.method {
	case wire.MethodToolsCall:
		return in.tool == tool
	case wire.MethodPromptsGet, wire.MethodPromptsList, wire.MethodResourcesRead, wire.MethodResourcesList,
		wire.MethodResourceTemplatesList, wire.MethodComplete:
		return false
	default:
		return true
	}
}

// decoded reads what a client has said of itself, nil for what is not there or
// cannot be read.
func decoded[T any](raw json.RawMessage) *T {
	var v T
	if raw == nil || json.Unmarshal(raw, &v) != nil {
		return nil
	}
	return &v
}

// extraOf is what tools see of a request besides its params.
func extraOf(s session.Session, header http.Header) *mcp.RequestExtra {
	info := &auth.TokenInfo{UserID: s.Principal, Extra: map[string]any{"tenant": s.Tenant}}
	if len(s.Props) > 0 {
		info.Extra["props"] = json.RawMessage(bytes.Clone(s.Props))
	}
	return &mcp.RequestExtra{TokenInfo: info, Header: header}
}

// presence is what a function knows of the request it is invoked for.
type presence struct {
	header http.Header
	open   sync.WaitGroup
}

type presenceKey struct{}

// Handler serves requests by h, and stays until all that was begun for one has been
// executed: a client may have gone, or have got its answer over another way, but a
// function must not end under what it executes. Headers of a request reach tools,
// those that prove who calls do not.
func Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := r.Header.Clone()
		header.Del("Authorization")
		header.Del("Cookie")
		here := &presence{header: header}
		defer here.open.Wait()
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), presenceKey{}, here)))
	})
}

// Stay calls f with a context for one invocation, and stays, as [Handler] does.
func Stay[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	here := &presence{}
	defer here.open.Wait()
	return f(context.WithValue(ctx, presenceKey{}, here))
}

// begun counts what is executed for the request of a context; what is returned ends
// it.
func begun(ctx context.Context) (ended func()) {
	here, ok := ctx.Value(presenceKey{}).(*presence)
	if !ok {
		return func() {}
	}
	here.open.Add(1)
	return here.open.Done
}

func headerOf(ctx context.Context) http.Header {
	if here, ok := ctx.Value(presenceKey{}).(*presence); ok {
		return here.header
	}
	return nil
}

// Hosted is a server as it is configured.
type Hosted struct {
	Make          Server
	ToolTimeout   time.Duration // for executing one round of a request; 0: as long as the function may run
	AnswerTimeout time.Duration // for a client's answer to a question; 0: session.MaxAsk
}
