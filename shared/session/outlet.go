package session

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Poster sends to a WebSocket connection (PostToConnection). Success means that
// the gateway took it, no more. Errors: Closed if the connection is gone, or not
// up yet, and this post certainly did not arrive; Unavailable if nothing is
// known; TooLarge.
type Poster interface {
	Post(ctx context.Context, conn string, data []byte) error
}

// Clients reaches the connections of WebSocket clients.
type Clients interface {
	Poster
	// Close closes a connection. One that is gone is fine.
	Close(ctx context.Context, conn string) error
}

// MaxPost is the most bytes one message to a WebSocket client may have.
const MaxPost = 131_072

// Outlet is the one way an event gets into the log and from there to a client
// that is pushed to (I1 as code). Whoever appends to the stream of a request, or
// to the common stream, does it through an Outlet. It holds nothing between
// calls; safe for concurrent use.
//
// The usual event goes from the log straight to the connection its request came
// over, and no record is touched. Once that connection has gone, the session's
// record says what is owed (see owed.go).
type Outlet struct {
	Store   Store
	Clients Clients // nil: nothing can be pushed from here, and what is owed stays owed
}

// Posting is a batch that is in the log, and the address it is for.
type Posting struct {
	To    Address
	Batch Batch
}

// Append writes a batch of a stream of a and delivers it. It may be repeated
// after Unavailable; a client that is pushed to may then get an event twice, and
// after no other error.
//
// Errors: Conflict (nothing was written, see [Log]), Unavailable.
func (o Outlet) Append(ctx context.Context, a Address, b Batch) error {
	if err := o.Write(ctx, a, b); err != nil {
		return err
	}
	return o.Send(ctx, Posting{a, b})
}

// Write is the first half of Append: the log. The end of an initialize settles
// the session before it can be read, so that no client is faster; an error ends
// the session, once it is known to be what the client gets. Lists go into the
// handshake record, and out of it when they have changed.
func (o Outlet) Write(ctx context.Context, a Address, b Batch) error {
	if b.Stream == Common {
		if err := o.forgetLists(ctx, a, b); err != nil {
			return err
		}
	}
	if ends := b.Final && b.Stream == a.Stream; !ends || !a.Init {
		if err := o.Store.Append(ctx, b); err != nil || !ends || a.List == "" {
			return err
		}
		return o.noteList(ctx, a, b)
	}
	result := wire.Lookup(b.Events[len(b.Events)-1], "result")
	if result != nil {
		if err := settle(ctx, o.Store, a.Session, result); err != nil {
			return err
		}
	}
	if err := o.Store.Append(ctx, b); err != nil || result != nil {
		return err
	}
	return o.failed(ctx, a.Session, quitOf(b.Events[len(b.Events)-1]))
}

// settle takes over what a box answered to initialize. A session that is gone
// has nothing to settle.
func settle(ctx context.Context, store Store, id ID, result []byte) error {
	s, _, err := store.Load(ctx, id, "")
	if err == nil {
		_, err = update(ctx, store, s, func(s *Session) bool {
			if s.State != Created && s.State != Ready {
				return false
			}
			version, pushes := s.Version, s.Pushes
			s.settle(result)
			return s.Version != version || s.Pushes != pushes
		})
	}
	return unlessGone(err)
}

// failed ends a session whose initialize was answered with an error: there never
// was one.
func (o Outlet) failed(ctx context.Context, id ID, why Quit) error {
	s, _, err := o.Store.Load(ctx, id, "")
	if err == nil {
		_, err = quit(ctx, o.Store, s, why)
	}
	return unlessGone(err)
}

func unlessGone(err error) error {
	if errors.Is(err, NotFound) {
		return nil
	}
	return err
}

// Send is the second half of Append, for batches of one session that were written
// together: all in one batch to the Out stream if it has one, each event to its
// connection if it has one.
func (o Outlet) Send(ctx context.Context, ps ...Posting) error {
	if err := o.copyOut(ctx, ps); err != nil {
		return err
	}
	for _, p := range ps {
		if p.To.Conn == "" {
			continue
		}
		if err := o.post(ctx, p.To, p.Batch); err != nil {
			return err
		}
	}
	return nil
}

// post sends a batch to the connection its request came over. The common stream
// is of no request: if anything of it is owed already, this is too.
func (o Outlet) post(ctx context.Context, a Address, b Batch) error {
	last := b.First + Index(len(b.Events)) - 1
	if o.Clients == nil {
		return o.owe(ctx, a.Session, Cursor{Stream: b.Stream, Index: b.First - 1}, last)
	}
	if b.Stream == Common {
		s, _, err := o.Store.Load(ctx, a.Session, "")
		if err != nil {
			return unlessGone(err)
		}
		if s.cursor(Common) != nil {
			return o.owe(ctx, a.Session, Cursor{Stream: Common}, last)
		}
	}
	for i, raw := range b.Events {
		id := EventID{Stream: b.Stream, Index: b.First + Index(i)}
		err := o.event(ctx, a.Conn, a.EventIDs, a.Session, id, raw)
		switch {
		case errors.Is(err, Closed):
			return o.owe(ctx, a.Session, Cursor{Stream: b.Stream, Index: id.Index - 1}, last)
		case errors.Is(err, Unavailable):
			return o.again(ctx, a, Cursor{Stream: b.Stream, Index: id.Index - 1}, last)
		case err != nil:
			return err
		}
	}
	return nil
}

// again is for a post of which nothing is known. That something is owed is noted
// before it is tried again, because whoever appends may not live to do so. If the
// connection has survived, the stream then goes on as before.
func (o Outlet) again(ctx context.Context, a Address, from Cursor, last Index) error {
	if err := o.owe(ctx, a.Session, from, last); err != nil || from.Stream == Common {
		return err
	}
	s, _, err := o.Store.Load(ctx, a.Session, "")
	if err == nil {
		_, err = update(ctx, o.Store, s, func(s *Session) bool {
			c := s.cursor(from.Stream)
			if c == nil || c.Index < last || !slices.Contains(s.Conns, a.Conn) {
				return false
			}
			s.Pushed = slices.DeleteFunc(s.Pushed, func(c Cursor) bool { return c.Stream == from.Stream })
			return true
		})
	}
	return unlessGone(err)
}

// event posts one event, and its id if the client wants to know it. An id that is
// lost is no harm: the next one says more.
func (o Outlet) event(ctx context.Context, conn string, ids bool, s ID, id EventID, raw []byte) error {
	if len(raw) == 0 {
		return nil // an event of pure pace, for event streams
	}
	if err := o.Clients.Post(ctx, conn, Fit(raw)); err != nil {
		return err
	}
	if ids {
		_ = o.Clients.Post(ctx, conn, EventNotice(s, id, nil))
	}
	return nil
}

// EventNotice is how a WebSocket client that asked for event ids is told one: the
// cursor to come back with. With the id of a request it says that this request
// was accepted, and which stream is its own.
func EventNotice(s ID, id EventID, request []byte) []byte {
	params := append([]byte(`{"sessionId":"`), s...)
	params = append(params, `","eventId":"`...)
	params = append(append(params, id.String()...), '"')
	if request != nil {
		params = append(append(params, `,"requestId":`...), request...)
	}
	return wire.NewNotification("notifications/dormouse/event", append(params, '}'))
}

// Fit is an event as a WebSocket client can get it: one that is over the limit
// becomes an error, or a warning, that says so. The log keeps the real one.
func Fit(raw []byte) []byte {
	if len(raw) <= MaxPost {
		return raw
	}
	const text = "this message is larger than the 131072 bytes a WebSocket connection carries; use Streamable HTTP for it"
	m, err := wire.Parse(raw)
	if err == nil && m.Kind == wire.Response {
		return wire.ErrorResponse(bytes.Clone(m.ID), &wire.Error{
			Code: wire.CodeInternal, Message: text, Data: map[string]any{"bytes": len(raw), "limit": MaxPost},
		})
	}
	return wire.NewNotification(wire.NotifyMessage, []byte(`{"level":"warning","logger":"dormouse","data":"`+text+`"}`))
}

// copyOut copies batches of a session with an Out stream there, in one batch, so
// that a repeat can be told by its generation and number.
func (o Outlet) copyOut(ctx context.Context, ps []Posting) error {
	var out Batch
	for _, p := range ps {
		if !p.To.Out {
			continue
		}
		if out.Events == nil {
			out = p.Batch
			out.Stream, out.Final, out.Retry, out.Events = Out, false, 0, nil
		}
		for _, raw := range p.Batch.Events {
			if len(raw) > 0 {
				out.Events = append(out.Events, raw)
			}
		}
	}
	if len(out.Events) == 0 {
		return nil
	}
	return o.appendOut(ctx, out)
}

// appendOut writes at the end of an Out stream. Who is no runner (Gen 0), or one
// that has been overtaken, repeats the tail's generation and number, so that a
// later repeat of the runner that wrote them is still known.
func (o Outlet) appendOut(ctx context.Context, b Batch) error {
	gen, seq := b.Gen, b.Seq
	for {
		tail, err := o.Store.Tail(ctx, b.Session, Out)
		switch {
		case err != nil:
			return err
		case gen != 0 && tail.Gen == gen && tail.Seq >= seq:
			return nil // stored already, the ack was lost
		case gen < tail.Gen:
			b.Gen, b.Seq = tail.Gen, tail.Seq
		default:
			b.Gen, b.Seq = gen, seq
		}
		b.First = tail.Last + 1
		if err := o.Store.Append(ctx, b); !errors.Is(err, Conflict) {
			return err
		}
	}
}

// Say writes messages of our own to the Out stream of a session of HTTP+SSE: what
// was answered in place.
func (h *Host) Say(ctx context.Context, id ID, raws ...[]byte) error {
	return h.out.appendOut(ctx, Batch{Session: id, Stream: Out, Events: raws, Expires: time.Now().Add(h.limits.EventAge)})
}

// End appends the end of a request that somebody writes in the place of its box.
// Unlike a runner's batch it may not be repeated by its writer: what is owed is
// noted first and then pushed, and if the writer dies, [Outlet.Ended] goes on.
//
// Errors: Conflict (nothing was written), Unavailable.
func (o Outlet) End(ctx context.Context, a Address, b Batch) error {
	if err := o.Write(ctx, a, b); err != nil {
		return err
	}
	if err := o.copyOut(ctx, []Posting{{a, b}}); err != nil || a.Conn == "" {
		return err
	}
	return o.owe(ctx, a.Session, Cursor{Stream: b.Stream, Index: b.First - 1}, b.First+Index(len(b.Events))-1)
}

// Ended is for somebody who wants to end a request that has ended, and cannot know
// whether whoever wrote the end lived to deliver it. What was delivered through
// the records is not again; what a relay function delivered that died before it
// could say so, is. expires is when an event written now may go.
//
// Errors: Unavailable.
func (o Outlet) Ended(ctx context.Context, a Address, tail Tail, expires time.Time) error {
	if !a.Pushed() {
		return nil
	}
	last, err := o.lastResponses(ctx, a, tail)
	if err != nil || len(last) == 0 {
		return err
	}
	if a.Conn != "" {
		return o.owe(ctx, a.Session, Cursor{Stream: a.Stream, Index: tail.Last - Index(len(last))}, tail.Last)
	}
	tail, err = o.Store.Tail(ctx, a.Session, Out)
	if err != nil {
		return err
	}
	page, err := o.Store.Read(ctx, a.Session, Out, max(0, tail.Last-recentOut), recentOut)
	if err != nil || slices.ContainsFunc(page.Events, func(e Event) bool { return bytes.Equal(e.Raw, last[len(last)-1]) }) {
		return err
	}
	return o.appendOut(ctx, Batch{Session: a.Session, Stream: Out, Events: last, Expires: expires})
}

// recentOut is how far back an end is looked for that may have been copied.
const recentOut = 1000

// lastResponses are the responses a request stream ends with, at most as many as
// its last writer can have written.
func (o Outlet) lastResponses(ctx context.Context, a Address, tail Tail) ([][]byte, error) {
	n := Index(1)
	if tail.Gen == 0 {
		n = Index(max(1, len(a.Requests)))
	}
	page, err := o.Store.Read(ctx, a.Session, a.Stream, max(0, tail.Last-n), int(n))
	if err != nil {
		return nil, err
	}
	var last [][]byte
	for _, e := range slices.Backward(page.Events) {
		if wire.Lookup(e.Raw, "error") == nil && !e.Final {
			break
		}
		last = slices.Insert(last, 0, e.Raw)
	}
	return last, nil
}
