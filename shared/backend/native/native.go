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

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Server makes an author's server for one message of a session. It is called for each
// message, often in a process that has just started, so it must be quick. It returns a new
// server each time, made with [Session.Options]. Values that must last go into the session's
// [State]. The client gets the error of a Server.
type Server func(ctx context.Context, s Session) (*mcp.Server, error)

// Servers are an author's servers by their names in the servers file.
type Servers map[string]Server

// Session is the session of a message: a legacy client's session, or the one session
// for all requests of a modern client. It may be used until the message is answered.
type Session struct{ in *environment }

// environment describes the message for which the author's server is made.
type environment struct {
	k      *Backend
	record storage.Session // the record as it was read with the message
	server Hosted
	init   json.RawMessage // what the client says about itself, as params of initialize
	extra  *mcp.RequestExtra
	method string // method of the request, "" for none
	tool   string // the tool that is called, "" for none
	// subscription is the client's method if it is resources/subscribe or
	// resources/unsubscribe, "" otherwise; uri is the resource. See environment.subscribe.
	subscription, uri string

	onAlarm func(context.Context, Alarm) error
	secrets map[string]storage.Secret // the caller's keys and tokens at third parties; nil if the call goes on after an answer or a pause
}

// ID returns the id of the session. It stays the same over restarts and deployments.
func (s Session) ID() string { return string(s.in.record.ID) }

// Server returns the name of the server in the servers file.
func (s Session) Server() string { return s.in.record.Server }

// Tenant returns the tenant, which is the party that pays.
func (s Session) Tenant() string { return s.in.record.Tenant }

// Principal returns the identity of the client within its tenant. Without keys or sign-in all
// clients are one principal.
func (s Session) Principal() string { return s.in.record.Principal }

// Props returns a JSON object with the facts that authentication gives about the principal
// besides its name, or nil. For an alarm or an answer, which has no caller, Props returns the
// facts of the session's last message.
func (s Session) Props() json.RawMessage { return bytes.Clone(s.in.record.Props) }

// Version returns the protocol version that the client speaks.
func (s Session) Version() string {
	if s.in.record.Transport == storage.Modern {
		return wire.V20260728
	}
	return s.in.record.Version
}

// Client returns the client's name and version as it gave them, nil if it gave none.
func (s Session) Client() *mcp.Implementation {
	return decoded[mcp.Implementation](wire.Lookup(s.in.init, "clientInfo"))
}

// Capabilities returns the capabilities that the client has declared: a legacy client
// when its session began, a modern client with this request. It is never nil.
func (s Session) Capabilities() *mcp.ClientCapabilities {
	if c := decoded[mcp.ClientCapabilities](wire.Lookup(s.in.init, "capabilities")); c != nil {
		return c
	}
	return &mcp.ClientCapabilities{}
}

// Subscribed returns the resources to which a legacy client has subscribed.
func (s Session) Subscribed() []string { return slices.Clone(s.in.record.Subscribed) }

// Options returns the options with which to make the server; add your own to them. The server
// declares no capability that it does not have. Its results say that they are for their
// caller only, and not to be cached; see SetCacheable.
func (s Session) Options() *mcp.ServerOptions {
	return &mcp.ServerOptions{
		SchemaCache:  s.in.k.schemas,
		Capabilities: &mcp.ServerCapabilities{},
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
		GetSessionID: func() string { return s.ID() },
	}
}

// AddTool is mcp.AddTool for a server that is made for one message. It leaves out a tool that
// the message does not need.
func AddTool[In, Out any](s Session, server *mcp.Server, t *mcp.Tool, h mcp.ToolHandlerFor[In, Out]) {
	if s.in.uses(t.Name) {
		mcp.AddTool(server, t, h)
	}
}

// uses reports whether the server that is made for the message needs the tool with this name.
func (in *environment) uses(tool string) bool {
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

// decoded decodes a value that the client sent about itself. It returns nil if raw is not a
// T.
func decoded[T any](raw json.RawMessage) *T {
	var v T
	if raw == nil || json.Unmarshal(raw, &v) != nil {
		return nil
	}
	return &v
}

// extraOf returns the part of a request that tools see besides its params.
func extraOf(s storage.Session, header http.Header) *mcp.RequestExtra {
	info := &auth.TokenInfo{UserID: s.Principal, Extra: map[string]any{"tenant": s.Tenant}}
	if len(s.Props) > 0 {
		info.Extra["props"] = json.RawMessage(bytes.Clone(s.Props))
	}
	return &mcp.RequestExtra{TokenInfo: info, Header: header}
}

// invocation is one call of [Stay], or of the handler that [Handler] returns.
type invocation struct {
	header http.Header
	open   sync.WaitGroup // what the invocation has started and must wait for
}

type invocationKey struct{}

// Handler wraps h and returns only when everything that a request started has finished.
// Lambda freezes a function when its handler returns, so a request that outlives its response
// must end first. Tools see the headers of the request except Authorization and Cookie.
func Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := r.Header.Clone()
		header.Del("Authorization")
		header.Del("Cookie")
		here := &invocation{header: header}
		defer here.open.Wait()
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), invocationKey{}, here)))
	})
}

// Stay calls f with a context for one invocation. Like [Handler], it returns only when
// everything that f started has finished.
func Stay[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	here := &invocation{}
	defer here.open.Wait()
	return f(context.WithValue(ctx, invocationKey{}, here))
}

// begun makes the invocation of ctx last until ended is called.
func begun(ctx context.Context) (ended func()) {
	here, ok := ctx.Value(invocationKey{}).(*invocation)
	if !ok {
		return func() {}
	}
	here.open.Add(1)
	return here.open.Done
}

func headerOf(ctx context.Context) http.Header {
	if here, ok := ctx.Value(invocationKey{}).(*invocation); ok {
		return here.header
	}
	return nil
}

// Hosted is a configured server.
type Hosted struct {
	Make          Server
	Remote        Executor      // sends requests to a server that is not in Go; nil if Make makes the server
	ToolTimeout   time.Duration // how long each round of a request may run; 0: as long as the instance may
	AnswerTimeout time.Duration // how long a client may take to answer a question; 0: storage.MaxAsk
}
