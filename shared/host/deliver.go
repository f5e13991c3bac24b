package host

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// deliver hands a message over. The caller sets only the parts of the address that belong to
// the message: Requests, Init and List, and Stream if there is one already.
func (h *core) deliver(ctx context.Context, c Caller, s session.Session, box session.Box, raw []byte, a session.Address) (*Call, error) {
	return h.hand(ctx, c, s, box, Delivery{Raw: raw, Address: a})
}

// hand is deliver for a Delivery in which the caller sets Raw, Brief and those parts of the
// address.
func (h *core) hand(ctx context.Context, c Caller, s session.Session, box session.Box, d Delivery) (*Call, error) {
	a, again := d.Address, s.Served
	if len(a.Requests) > 0 {
		if err := writable(ctx, h.store); err != nil {
			return nil, unexecuted(err)
		}
		var err error
		if s, err = h.update(ctx, s, func(s *session.Session) bool { return noteCaller(s, c, !a.Looks()) }); err != nil {
			return nil, err
		}
	}
	if a.Stream == "" {
		a.Stream = session.NewStreamID()
	}
	a.Session, a.Conn, a.EventIDs, a.LegacySSE = s.ID, c.Conn, c.EventIDs, c.Transport == session.SSE
	a.Principal, a.Digest, a.Box, a.Again = c.Principal, session.RecordFor(c.Tenant, s.Digest), c.box(), again
	a.Trace = session.TraceOf(ctx)
	d.Address, d.Client, d.Server = a, s, c.Server.Name
	tracker, err := h.backend.Deliver(ctx, d, box)
	if err != nil || len(a.Requests) == 0 {
		return nil, err
	}
	call := &Call{host: h, session: s.ID, stream: d.Stream, tracker: tracker, pushed: a.Pushed(), begun: time.Now()}
	if d.Brief || c.Transport == session.WebSocket {
		call.status.Next = call.begun.Add(firstTendBrief)
	}
	return call, nil
}

// firstTendBrief is firstTend for a function that waits only until the request is accepted.
// Its runner says sooner that it has taken the request.
const firstTendBrief = 300 * time.Millisecond

// noteCaller notes in the session that a box gets work for it, and the latest Props of its
// caller. It reports whether s changed.
func noteCaller(s *session.Session, c Caller, work bool) (news bool) {
	if work && !s.Served && !c.Server.InPlace {
		s.Served, news = true, true
	}
	if c.Props != nil && len(c.Props) <= session.MaxProps && !bytes.Equal(s.Props, c.Props) {
		s.Props, news = bytes.Clone(c.Props), true
	}
	return news
}

// unexecuted adds to an error that the request was not executed because of it.
func unexecuted(err error) error {
	var e *session.Error
	if !errors.As(err, &e) {
		return err
	}
	told := *e
	told.Message = "the request was not executed: " + e.Message
	return &told
}

// writable returns the result of Writable of a store, or of the store that it wraps.
func writable(ctx context.Context, s session.Store) error {
	for s != nil {
		if w, ok := s.(session.Writable); ok {
			return w.Writable(ctx)
		}
		wrapper, ok := s.(interface{ Unwrap() session.Store })
		if !ok {
			return nil
		}
		s = wrapper.Unwrap()
	}
	return nil
}
