package front

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Authenticator says who callers are. Package auth has those there are.
type Authenticator interface {
	// Authenticate says who sent a request, and that it may use a server: a name
	// from the address, which need not be one that is configured. It looks at the
	// headers only.
	//
	// Errors: Unauthenticated is answered with 401, Forbidden with 403, others by the
	// table. An identity without a tenant or a principal is one too, and let in nowhere.
	Authenticate(r *http.Request, server string) (session.Identity, error)
	// Confirm says whether the credential of somebody who was authenticated earlier is
	// still good for a server. Errors are those of Authenticate.
	Confirm(ctx context.Context, credential, server string) error
}

// Tickets lets clients connect to a WebSocket that cannot send headers with it: a
// page in a browser. A ticket is good for one connection.
type Tickets interface {
	// Issue makes a ticket for somebody who was authenticated; life is for how long it
	// is good.
	Issue(ctx context.Context, who session.Identity, server string) (ticket string, life time.Duration, err error)
	// Redeem says for whom a ticket was issued. It is worth nothing afterwards,
	// whatever comes of it. Errors are those of Authenticate.
	Redeem(ctx context.Context, ticket, server string) (session.Identity, error)
}

// nobody lets nobody in.
type nobody struct{}

func (nobody) Authenticate(*http.Request, string) (session.Identity, error) {
	return session.Identity{}, session.Unauthenticated
}
func (nobody) Confirm(context.Context, string, string) error { return session.Unauthenticated }

// whole refuses an identity that does not say whose somebody is: all who have none would
// share their sessions and boxes.
func whole(who session.Identity, err error) (session.Identity, error) {
	if err == nil && (who.Tenant == "" || who.Principal == "") {
		return session.Identity{}, session.Errorf(session.Internal, "the authenticator has let in somebody without a tenant or a principal")
	}
	return who, err
}

// caller is who was authenticated, as the core knows it.
func caller(who session.Identity, server host.Server, over session.Transport) host.Caller {
	return host.Caller{
		Server: server, Tenant: who.Tenant, Principal: who.Principal, Credential: who.Credential, Transport: over,
		Props: who.Props,
	}
}

// challenge is the header that says how to authenticate (RFC 6750 §3). A request
// that did not try is told no error. A 403 has none: clients would open a browser for
// insufficient_scope, and no login gives an API key another server.
func challenge(r *http.Request) string {
	switch {
	case len(r.Header.Values("Authorization")) > 0:
		return `Bearer error="invalid_token"`
	default:
		return "Bearer"
	}
}

// ticket issues a ticket for one WebSocket connection to the server:
//
//	POST /<server>/ticket   200 {"ticket":"…","expires_in":60}
//
// The body of the request is not read.
func (x *exchange) ticket() error {
	c := x.caller
	ticket, life, err := x.opts.Tickets.Issue(x.ctx(), session.Identity{
		Tenant: c.Tenant, Principal: c.Principal, Credential: c.Credential, Props: c.Props,
	}, c.Server.Name)
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

// queryTicket is where a client that connects puts its ticket.
const queryTicket = "ticket"

// identify says who asks for a connection: whose ticket it brings, or who the headers
// name.
func (x *turn) identify(ctx context.Context, r *http.Request, server string) (session.Identity, error) {
	ticket := r.URL.Query().Get(queryTicket)
	if ticket == "" {
		return x.opts.Auth.Authenticate(r, server)
	}
	if x.opts.Tickets == nil {
		return session.Identity{}, session.Errorf(session.Unauthenticated, "no tickets are taken here; send an Authorization header")
	}
	who, err := x.opts.Tickets.Redeem(ctx, ticket, server)
	if err == nil {
		err = x.opts.Auth.Confirm(ctx, who.Credential, server)
	}
	return who, err
}

// confirm sees that the client of a connection may still use the server. One that
// may not loses the connection: what it is told, it is told when it connects anew.
func (x *turn) confirm(ctx context.Context, c session.Connection) error {
	err := x.opts.Auth.Confirm(ctx, c.Credential, c.Server)
	if code := session.CodeOf(err); code == session.Unauthenticated || code == session.Forbidden {
		x.recall.forget(c.ID)
		// If it stays open, the next message closes it.
		_ = x.opts.Host.Drop(ctx, c.ID)
	}
	return err
}
