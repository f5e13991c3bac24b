package transport

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/aggregate"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Options are the options of an endpoint. Servers, Host and Auth are required. Other
// fields that are zero get the default that their comment names.
type Options struct {
	// Servers finds a configured server by its name.
	Servers func(name string) (sessions.Server, bool)
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
	// Kept caches which server of a group has which tool, prompt or resource. nil: there is
	// no cache.
	Kept *aggregate.Kept
	// Host serves the sessions.
	Host *sessions.Manager
	// Auth finds out who sent a request.
	Auth Authenticator
	// SignIn tells clients where to get the tokens that Auth takes. nil: Auth takes
	// none.
	SignIn SignIn
	// Tickets serve WebSocket clients that cannot send headers. nil: there are none.
	Tickets Tickets
	// AllowedHosts are the values of Host that are served: "name" with any port,
	// "name:port", or "*" for all. Empty: 127.0.0.0/8, ::1 and localhost.
	AllowedHosts []string
	// AllowedOrigins are the origins of web pages that may call, besides the request's own Host and
	// port. They are exact, such as "https://app.example", or "*" for all. All names of the loopback
	// address count as one host. A request without an Origin is let in: it does not come from a page
	// that could read the answer.
	AllowedOrigins []string
	// Observer gets an event for each request. The event of a tools/call has the tool and an
	// outcome: done, failed, or open if the call goes on after the request. A later event with the
	// same stream has the outcome of an open call.
	Observer observe.Observer
	// Outlive does work that goes on after a request. ctx ends with the program. nil: nothing does
	// such work, as on Lambda, and the Observer learns the end of an open call only from a later
	// request.
	Outlive func(work func(ctx context.Context))
	// AnswerFirst sends an answer before the Observer gets its event. By default the HTTP
	// server sends the answer only when ServeHTTP returns.
	AnswerFirst bool
	// JSONWindow is how long a response may take and still be plain JSON; 1 s. A
	// response that takes longer, or comes after other messages, is an event stream.
	JSONWindow time.Duration
	// KeepAlive is the silence after which an event stream gets a comment; 15 s.
	KeepAlive time.Duration
	// Limit is how long any response may be held; 14 min. It must be below the platform's
	// limit. A deadline of the request's context limits the response too.
	Limit time.Duration
	// Sealer seals the requestState that modern clients get, and the names of tasks. nil: a
	// server's questions to modern clients are refused, and there are no tasks.
	Sealer *storage.Sealer
	// MaxBody bounds the body of a POST in bytes; 4 MiB.
	MaxBody int64
	// ShowErrors makes the log lines of failed calls repeat what the server answered. Set it where the
	// operator is the only caller.
	ShowErrors bool
	// Meter counts the costs of each request, for the Observer's event. nil counts nothing.
	Meter storage.Meter
	// Admit is called for each request, message and connection once its caller is
	// known, before the body is read. An error refuses the request; its code is Busy.
	// The endpoint calls release when the request has been handled. nil: all are
	// admitted.
	Admit func(ctx context.Context, c sessions.Caller) (release func(), err error)

	asked *sync.Map // by stream, the request that has last asked the client of a call a question; used only with Outlive
}

func (o Options) withDefaults() Options {
	o.JSONWindow = cmp.Or(o.JSONWindow, time.Second)
	o.KeepAlive = cmp.Or(o.KeepAlive, 15*time.Second)
	o.Limit = cmp.Or(o.Limit, 14*time.Minute)
	o.MaxBody = cmp.Or(o.MaxBody, 4<<20)
	o.asked = &sync.Map{}
	return o
}

func (o *Options) admitted(ctx context.Context, c sessions.Caller) (release func(), err error) {
	if o.Admit == nil {
		return func() {}, nil
	}
	return o.Admit(ctx, c)
}

// Authenticator finds out who callers are. Package apikey has implementations.
type Authenticator interface {
	// Members returns the identities of a client that sent a request, one for each of the servers that
	// it may use. For a request to a server, servers has only this name from the address, perhaps of no
	// server. For a request to a group, the argument group is the group's address, such as "/mcp".
	// Otherwise group is "": each credential then counts for the servers that it was issued for. Members
	// reads only the headers, and looks up a credential once.
	//
	// Errors: the endpoint answers Unauthenticated with 401, Forbidden with 403, and others as errors.go
	// says. The error is Forbidden if the client may use none of the servers. The endpoint also refuses an
	// identity without a tenant or a principal.
	Members(r *http.Request, group string, servers []string) (map[string]storage.Identity, error)
	// ConfirmMembers returns those of the servers for which a credential that was authenticated earlier,
	// at this group, is still valid. Errors are those of Members.
	ConfirmMembers(ctx context.Context, credential, group string, servers []string) ([]string, error)
}

// Tickets lets clients connect to a WebSocket if they cannot send headers with the
// request, such as a page in a browser. A ticket is valid for one connection.
type Tickets interface {
	// Issue returns a ticket for an authenticated caller. The result life is how long the
	// ticket is valid.
	Issue(ctx context.Context, who storage.Identity, server string) (ticket string, life time.Duration, err error)
	// Redeem returns the identity that a ticket was issued for. A ticket works once,
	// even if Redeem fails. Errors are those of Authenticator.Members.
	Redeem(ctx context.Context, ticket, server string) (storage.Identity, error)
}

// SignIn tells clients how to sign in (MCP 2025-11-25, basic/authorization). Package resourceserver has
// an implementation. An address is the path of a server as a client calls it, with the client's trailing
// slash and query: clients compare it with the resource in the metadata.
type SignIn interface {
	// Metadata returns the protected resource metadata of a server or a group (RFC 9728 §2). The
	// argument server is the name that people see.
	Metadata(server, address string) []byte
	// Challenge returns the WWW-Authenticate header for a request that Auth has refused
	// with err, "" for none. tried reports that the request had a token.
	Challenge(address string, tried bool, err error) string
	// Tools returns which tools of a server a caller sees in lists.
	Tools(who storage.Identity, server string) storage.ToolFilter
	// Permit checks whether a caller may call tools of a server with its token. If a
	// token with more scopes would suffice, the error is Forbidden, and Challenge names
	// these scopes.
	Permit(who storage.Identity, server string, tools []string) error
	// MetadataURL returns the URL at which clients get the Metadata of an address.
	MetadataURL(address string) string
}

// Group is several servers at one address:
//
//	/mcp             all servers
//	/g/<group>/mcp   the servers of a group
//	/sse, /message   HTTP+SSE; for a group /g/<group>/sse and /message below it
//	/ticket          a ticket for one WebSocket connection; for a group /g/<group>/ticket
//
// A caller sees only the servers that it may use.
type Group struct {
	Servers []string // names of the members; nil: all servers
	Plain   bool     // a tool, prompt or resource gets no prefix if no other member has one of the same name
	Search  bool     // the client gets find_tools and call_tool in place of the tools
}
