package front

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Authenticator finds out who callers are. Package auth has implementations.
type Authenticator interface {
	// Authenticate returns the identity of the client that sent a request, if it may
	// use the server. server is a name from the address; there may be no such server.
	// Authenticate reads only the headers.
	//
	// Errors: the endpoint answers Unauthenticated with 401, Forbidden with 403, and
	// others by the table. It refuses an identity without a tenant or a principal like
	// an error.
	Authenticate(r *http.Request, server string) (session.Identity, error)
	// Members returns the identities of a client that sent a request to the address of a
	// group. There is one for each of the servers that the client may use. group is the
	// address, such as "/mcp". It is "" for a request that lists servers at no server's
	// address. Each credential then counts for the servers that it was issued for.
	// Members looks up a credential only once. Errors are those of Authenticate;
	// Forbidden if the client may use none of the servers.
	Members(r *http.Request, group string, servers []string) (map[string]session.Identity, error)
	// Confirm returns nil if a credential that was authenticated earlier is still valid
	// for a server. Errors are those of Authenticate.
	Confirm(ctx context.Context, credential, server string) error
	// ConfirmMembers is Confirm for a credential that was authenticated at the address of
	// a group. It returns the servers for which the credential is still valid. Errors are
	// those of Members.
	ConfirmMembers(ctx context.Context, credential, group string, servers []string) ([]string, error)
}

// Tickets lets clients connect to a WebSocket if they cannot send headers with the
// request, such as a page in a browser. A ticket is valid for one connection.
type Tickets interface {
	// Issue returns a ticket for an authenticated caller. The result life is how long the
	// ticket is valid.
	Issue(ctx context.Context, who session.Identity, server string) (ticket string, life time.Duration, err error)
	// Redeem returns the identity that a ticket was issued for. A ticket works once,
	// even if Redeem fails. Errors are those of Authenticate.
	Redeem(ctx context.Context, ticket, server string) (session.Identity, error)
}

// nobody is an Authenticator that refuses every caller.
type nobody struct{}

func (nobody) Authenticate(*http.Request, string) (session.Identity, error) {
	return session.Identity{}, session.Unauthenticated
}

func (nobody) Members(*http.Request, string, []string) (map[string]session.Identity, error) {
	return nil, session.Unauthenticated
}
func (nobody) Confirm(context.Context, string, string) error { return session.Unauthenticated }

func (nobody) ConfirmMembers(context.Context, string, string, []string) ([]string, error) {
	return nil, session.Unauthenticated
}

// whole refuses an identity without a tenant or a principal: all callers with such an
// identity would share sessions and boxes.
func whole(who session.Identity, err error) (session.Identity, error) {
	if err == nil && (who.Tenant == "" || who.Principal == "") {
		return session.Identity{}, session.Errorf(session.Internal, "the authenticator has let in somebody without a tenant or a principal")
	}
	return who, err
}

// caller returns the host's caller for an identity.
func (o *Options) caller(who session.Identity, server host.Server, over session.Transport) host.Caller {
	c := host.Caller{
		Server: server, Tenant: who.Tenant, Principal: who.Principal, Credential: who.Credential, Transport: over,
		Props: who.Props, Scopes: who.Scopes, Scoped: who.Scoped, ToolRules: who.ToolRules,
	}
	c.Tools = server.Tools
	if o.SignIn != nil {
		if may := o.SignIn.Tools(who, server.Name); c.Tools.IsZero() {
			c.Tools = may
		} else if !may.IsZero() {
			c.Tools.And = &may
		}
	}
	return c
}

// ticket issues a ticket for one WebSocket connection to the server:
//
//	POST /<server>/ticket   200 {"ticket":"…","expires_in":60}
//
// or to a group, at /ticket and /g/<group>/ticket.
//
// The body of the request is not read.
func (x *exchange) ticket() error {
	c := x.caller
	who := session.Identity{
		Tenant: c.Tenant, Principal: c.Principal, Credential: c.Credential, Props: c.Props, Scopes: c.Scopes, Scoped: c.Scoped, ToolRules: c.ToolRules,
	}
	who.Members = x.rules()
	ticket, life, err := x.opts.Tickets.Issue(x.ctx(), who, c.Server.Name)
	if err != nil {
		return err
	}
	body, err := json.Marshal(struct {
		Ticket  string `json:"ticket"`
		Seconds int    `json:"expires_in"`
	}{ticket, int(life.Seconds())})
	if err != nil {
		return err
	}
	x.w.Header().Set("Cache-Control", "no-store")
	x.json(http.StatusOK, body)
	return nil
}

// queryTicket is the query parameter for the ticket of a client that connects.
const queryTicket = "ticket"

// identify returns the identity of the client that asks for a connection, by its ticket
// or else by its headers.
func (x *turn) identify(ctx context.Context, r *http.Request, server string) (session.Identity, error) {
	if !r.URL.Query().Has(queryTicket) {
		return x.opts.Auth.Authenticate(r, server)
	}
	who, err := x.redeem(ctx, r, server)
	if err == nil {
		err = x.opts.Auth.Confirm(ctx, who.Credential, server)
	}
	return who, err
}

// redeem returns the identity that the ticket of a request was issued for.
func (x *turn) redeem(ctx context.Context, r *http.Request, server string) (session.Identity, error) {
	if x.opts.Tickets == nil {
		return session.Identity{}, session.Errorf(session.Unauthenticated, "this endpoint takes no tickets; send an Authorization header")
	}
	return x.opts.Tickets.Redeem(ctx, r.URL.Query().Get(queryTicket), server)
}

// confirmed returns err, the result of confirming the credential of a connection. If err
// says that the client may not use the connection any more, confirmed closes it. The
// client gets the reason when it connects again.
func (x *turn) confirmed(ctx context.Context, err error) error {
	if code := session.CodeOf(err); code == session.Unauthenticated || code == session.Forbidden {
		x.recall.forget(x.conn)
		// If Drop fails, the client's next message closes the connection.
		_ = x.opts.Host.Drop(ctx, x.conn)
	}
	return err
}
