package sessions

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// deliver sends a message to the backend. The caller sets Raw, Tools, Needs, Wakes, Brief and once of d. Of
// its Address the caller sets only Requests, Init, List and Shown, which depend on the message, and Stream
// if the message has one already. For a delivery with requests, deliver gets the caller's secrets
// ([Parts.Secrets]) before it asks [Parts.Gate].
//
// Errors: those of [storage.Secrets], of the gate, and of the backend.
func (u *use) deliver(ctx context.Context, d Delivery) (*Call, error) {
	if err := u.getSecrets(ctx, &d); err != nil {
		return nil, err
	}
	return u.admit(ctx, d)
}

// getSecrets sets d.Secrets. Call it before anything is written or woken, so that a user who has not
// connected an account at a third party costs nothing. Messages that wake no box need no secrets.
func (u *use) getSecrets(ctx context.Context, d *Delivery) (err error) {
	if c, parts := u.caller, u.manager.parts; parts.Secrets != nil && len(c.Server.Providers) > 0 && (len(d.Requests) > 0 || d.Wakes) {
		want := storage.Needs{Tenant: c.Tenant, Principal: c.Principal, Server: c.Server.Name, Providers: c.Server.Providers, Need: d.Needs}
		if u.session.Transport != storage.Modern {
			want.Session = u.session.ID
		}
		d.Secrets, err = parts.Secrets.Secrets(ctx, want)
	}
	return err
}

// admit hands a delivery to the backend, unless an earlier request with the same idempotency key
// has begun the call, or [Parts.Gate] refuses it.
func (u *use) admit(ctx context.Context, d Delivery) (*Call, error) {
	if d.Stream == "" {
		d.Stream = d.once.newStream()
	}
	if d.once != nil {
		if call, err := u.reserve(ctx, d); call != nil || err != nil {
			return call, err
		}
	}
	gate := u.manager.parts.Gate
	if gate == nil || len(d.Requests) == 0 {
		return u.handOver(ctx, d)
	}
	undo, err := gate.Admit(ctx, storage.Work{
		Tenant: u.caller.Tenant, Principal: u.caller.Principal, Server: u.caller.Server.Name, Session: u.session.ID, Stream: d.Stream, Tools: d.Tools,
	})
	if err != nil {
		d.once.release(ctx)
		return nil, err
	}
	call, err := u.handOver(ctx, d)
	if err != nil {
		undo()
	}
	return call, err
}

func (u *use) handOver(ctx context.Context, d Delivery) (*Call, error) {
	h, c, s, box := u.manager, u.caller, u.session, u.box
	a, again := d.Address, s.Served
	if len(a.Requests) > 0 {
		if err := writable(ctx, h.store); err != nil {
			d.once.release(ctx)
			return nil, unexecuted(err)
		}
		var err error
		a.Moved = a.Moved || moves(s, c, box)
		// u.session stays as this request has read it. A power cut may lose this write: the next request
		// records the same again.
		if s, err = update(storage.Lazily(ctx), h.store, s, func(s *storage.Session) bool { return noteCaller(s, c, box, !a.Looks()) }); err != nil {
			d.once.release(ctx)
			return nil, err
		}
	}
	a.Session, a.Conn, a.EventIDs, a.LegacySSE = s.ID, c.Conn, c.EventIDs, c.Transport == storage.SSE
	a.Through, a.Held = s.Through(c.Group), c.Server.Pin != nil
	a.Digest, a.Box, a.Again = s.Record(), s.Box(), again
	a.Trace = storage.TraceOf(ctx)
	d.Address, d.Client, d.Server = a, s, c.Server.Name
	tracker, err := h.backend.Deliver(ctx, d, box)
	if refuses(err) {
		d.once.release(ctx)
	}
	if err != nil || len(a.Requests) == 0 {
		return nil, err
	}
	call := &Call{manager: h, session: s.ID, stream: d.Stream, tracker: tracker, pushed: a.Pushed(), begun: time.Now(), once: d.once}
	if d.Brief || c.Transport == storage.WebSocket {
		call.status.Next = call.begun.Add(firstTendBrief)
	}
	return call, nil
}

// firstTendBrief is how long after its beginning a call first calls [Tracker.Check] if the delivery
// is [Delivery.Brief] or the client has a WebSocket.
const firstTendBrief = 300 * time.Millisecond

// code returns the digest of the server definition that a caller's next request uses. A box that is
// up keeps the definition that it was woken with.
func (c Caller) code(box storage.Box) string {
	if box.State != storage.Asleep && box.Code != "" {
		return box.Code
	}
	return c.Server.Digest
}

// moves reports whether the server's lists may have changed since the session's last request: the server
// has another definition, or a fresh process had other lists than the handshake record and the session's
// client was not told.
func moves(s storage.Session, c Caller, box storage.Box) bool {
	code := c.code(box)
	return code != "" && s.Digest != code || box.Relisted.After(s.Created) && box.Relisted.After(s.Relisted)
}

// noteCaller records in s what a request changes: the digest of the server's definition, and the
// caller's latest Props. If work is true, it also records that the session's process does more than
// answer lists. It reports whether s changed.
func noteCaller(s *storage.Session, c Caller, box storage.Box, work bool) (news bool) {
	if moves(*s, c, box) {
		s.Digest, s.Relisted, news = c.code(box), box.Relisted, true
	}
	if work && !s.Served && !c.Server.InPlace {
		s.Served, news = true, true
	}
	if c.Props != nil && len(c.Props) <= storage.MaxProps && !bytes.Equal(s.Props, c.Props) {
		s.Props, news = bytes.Clone(c.Props), true
	}
	return news
}

// unexecuted adds to the text of an error that the request was not executed.
func unexecuted(err error) error {
	e, ok := errors.AsType[*storage.Error](err)
	if !ok {
		return err
	}
	told := *e
	told.Message = "the request was not executed: " + e.Message
	return &told
}

// writable returns an error if the store cannot be written to now. It asks the first
// [storage.Writable] among s and the stores that s wraps, and returns nil if there is none.
func writable(ctx context.Context, s storage.Store) error {
	for s != nil {
		if w, ok := s.(storage.Writable); ok {
			return w.Writable(ctx)
		}
		wrapper, ok := s.(interface{ Unwrap() storage.Store })
		if !ok {
			return nil
		}
		s = wrapper.Unwrap()
	}
	return nil
}
