package auth

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// ticketLife is how long a ticket can be redeemed.
const ticketLife = time.Minute

// Tickets lets those in who cannot send headers, as a page cannot that opens a
// WebSocket: who is authenticated is issued a ticket, and what connects redeems it.
// It stands in a URL, which others may see afterwards (histories, logs on the way);
// so it is good for one connection, to one server, for a minute. Safe for
// concurrent use.
type Tickets struct{ store session.Keys }

// NewTickets keeps tickets in a store.
func NewTickets(store session.Keys) *Tickets { return &Tickets{store} }

// Issue makes a ticket for who was authenticated. It costs a write.
//
// Errors: Unavailable.
func (t *Tickets) Issue(ctx context.Context, who session.Identity, server string) (ticket string, life time.Duration, err error) {
	ticket = newTicket()
	err = t.store.PutEntryTicket(ctx, session.EntryTicket{
		Hash: hashOf(ticket), Server: server, Identity: who, Expires: time.Now().Add(ticketLife),
	})
	if err != nil {
		return "", 0, err
	}
	return ticket, ticketLife, nil
}

// Redeem says for whom a ticket was issued, which it then is worth nothing any more,
// whatever comes of it. That the credential is still good is for the caller to
// confirm. It costs a write, and nothing for what cannot be a ticket.
//
// Errors: Unauthenticated: no ticket, or one that was redeemed or is too old;
// Forbidden: one for another server; Unavailable: the ticket may be gone.
func (t *Tickets) Redeem(ctx context.Context, ticket, server string) (session.Identity, error) {
	gone := session.Errorf(session.Unauthenticated, "this ticket is not known, was used or is too old; get a new one for each connection")
	if !isTicket(ticket) {
		return session.Identity{}, gone
	}
	found, err := t.store.TakeEntryTicket(ctx, hashOf(ticket))
	switch {
	case errors.Is(err, session.NotFound):
		return session.Identity{}, gone
	case err != nil:
		return session.Identity{}, err
	case found.Server != server:
		return session.Identity{}, session.Errorf(session.Forbidden, "this ticket is for another server; get one from the server to connect to")
	}
	return found.Identity, nil
}
