package apikey

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const ticketLife = time.Minute

// Tickets authenticates clients that cannot send headers, such as a web page that opens a
// WebSocket. A ticket is good for one connection, to one server, for a minute, because others may
// see its URL, in histories and logs. Tickets is safe for concurrent use.
type Tickets struct{ store storage.Keys }

// NewTickets returns Tickets that are kept in a store.
func NewTickets(store storage.Keys) *Tickets { return &Tickets{store} }

// Issue makes a ticket for an authenticated caller. The result life is how long the ticket can be
// redeemed. Cost: one write.
//
// Errors: Unavailable.
func (t *Tickets) Issue(ctx context.Context, who storage.Identity, server string) (ticket string, life time.Duration, err error) {
	ticket = newTicket()
	err = t.store.PutEntryTicket(ctx, storage.EntryTicket{
		Hash: hashOf(ticket), Server: server, Identity: who, Expires: time.Now().Add(ticketLife),
	})
	if err != nil {
		return "", 0, err
	}
	return ticket, ticketLife, nil
}

// Redeem consumes a ticket and returns the identity it was issued for. A ticket works once,
// even if Redeem fails. The caller must still confirm that the credential is good. Cost: one
// write; none for a malformed ticket.
//
// Errors: Unauthenticated if there is no such ticket, or it was redeemed or is too old.
// Forbidden if it is for another server. Unavailable: the ticket may be gone.
func (t *Tickets) Redeem(ctx context.Context, ticket, server string) (storage.Identity, error) {
	gone := storage.Errorf(storage.Unauthenticated, "this ticket is not known, was used or is too old; get a new one for each connection")
	if !isTicket(ticket) {
		return storage.Identity{}, gone
	}
	found, err := t.store.TakeEntryTicket(ctx, hashOf(ticket))
	switch {
	case errors.Is(err, storage.NotFound):
		return storage.Identity{}, gone
	case err != nil:
		return storage.Identity{}, err
	case found.Server != server:
		return storage.Identity{}, storage.Errorf(storage.Forbidden, "this ticket is for another server; get one from the server to connect to")
	}
	return found.Identity, nil
}
