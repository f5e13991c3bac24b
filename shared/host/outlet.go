package host

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Outlet is the one way an event gets into the log and from there to a client
// that is pushed to (I1 as code). Whoever appends to the stream of a request, or
// to the common stream, does it through an Outlet. It holds nothing between
// calls; safe for concurrent use.
//
// The usual event goes from the log straight to the connection its request came
// over, and no record is touched. Once that connection has gone, the session's
// record says what is owed (see owed.go).
type Outlet struct {
	Store   session.Store
	Clients session.Clients // nil: nothing can be pushed from here, and what is owed stays owed
}

// Posting is a batch that is in the log, and the address it is for.
type Posting struct {
	To    session.Address
	Batch session.Batch
	Again bool // it was in the log before: whoever wrote it may be posting it, or may have
}

// Append writes a batch of a stream of a and delivers it. One writer at a time may
// repeat it after Unavailable; a client that is pushed to may then get an event
// twice, and after no other error.
//
// Errors: Conflict (nothing was written, see [session.Log]), Unavailable.
func (o Outlet) Append(ctx context.Context, a session.Address, b session.Batch) error {
	again, err := o.Write(ctx, a, b)
	if err != nil {
		return err
	}
	if a.Conn == "" || !again {
		_, err = o.Send(ctx, Posting{a, b, false})
		return err
	}
	// Nobody else posts it.
	ps := []Posting{{a, b, true}}
	if err := o.copyOut(ctx, ps); err != nil {
		return err
	}
	return o.byRecord(ctx, ps, []session.Index{b.First - 1})
}

// Write is the first half of Append: the log. The end of an initialize settles
// the session before it can be read, so that no client is faster; an error ends
// the session, once it is known to be what the client gets. Lists go into the
// handshake record, and out of it when they have changed. again says, of a batch for
// a connection, that it was in the log before.
func (o Outlet) Write(ctx context.Context, a session.Address, b session.Batch) (again bool, err error) {
	if b.Stream == session.Common {
		if err := o.forgetLists(ctx, a, b); err != nil {
			return false, err
		}
	}
	if ends := b.Final && b.Stream == a.Stream; !ends || !a.Init {
		if again, err = o.write(ctx, a, b); err != nil || !ends || a.List == "" {
			return again, err
		}
		return again, o.noteList(ctx, a, b)
	}
	result := wire.Lookup(b.Events[len(b.Events)-1], "result")
	if result != nil {
		if err := settle(ctx, o.Store, a.Session, result); err != nil {
			return false, err
		}
	}
	if again, err = o.write(ctx, a, b); err != nil || result != nil {
		return again, err
	}
	return again, o.failed(ctx, a.Session, quitOf(b.Events[len(b.Events)-1]))
}

func (o Outlet) write(ctx context.Context, a session.Address, b session.Batch) (again bool, err error) {
	b.Once = a.Conn != ""
	err = o.Store.Append(ctx, b)
	if errors.Is(err, session.Duplicate) {
		return true, nil
	}
	return false, err
}

// settle takes over what a box answered to initialize. A session that is gone
// has nothing to settle.
func settle(ctx context.Context, store session.Store, id session.ID, result []byte) error {
	s, _, err := store.Load(ctx, id, "")
	if err == nil {
		_, err = update(ctx, store, s, func(s *session.Session) bool {
			if s.State != session.Created && s.State != session.Ready {
				return false
			}
			version, pushes := s.Version, s.Pushes
			adopt(s, result)
			return s.Version != version || s.Pushes != pushes
		})
	}
	return unlessGone(err)
}

// failed ends a session whose initialize was answered with an error: there never
// was one.
func (o Outlet) failed(ctx context.Context, id session.ID, why session.Quit) error {
	s, _, err := o.Store.Load(ctx, id, "")
	if err == nil {
		_, err = quit(ctx, o.Store, s, why)
	}
	return unlessGone(err)
}

// quitOf is why a session never was one, by the error response to its initialize.
func quitOf(response []byte) session.Quit {
	if string(wire.Lookup(response, "error", "code")) == strconv.Itoa(int(wire.CodeCancelled)) {
		return session.QuitCanceled
	}
	return session.QuitNoInit
}

func unlessGone(err error) error {
	if errors.Is(err, session.NotFound) {
		return nil
	}
	return err
}

// Send is the second half of Append, for batches of one session that were written
// together: all in one batch to the legacy SSE stream if it has one, each event to its
// connection if it has one. sent is false if somebody else may be posting them now:
// whoever wants to know is to write and send them again after some seconds.
func (o Outlet) Send(ctx context.Context, ps ...Posting) (sent bool, err error) {
	if err := o.copyOut(ctx, ps); err != nil {
		return false, err
	}
	ps = slices.DeleteFunc(slices.Clone(ps), func(p Posting) bool { return p.To.Conn == "" })
	reached := make([]session.Index, len(ps))
	for i, p := range ps {
		reached[i] = p.Batch.First - 1
	}
	if o.Clients != nil && slices.ContainsFunc(ps, func(p Posting) bool { return p.Again }) {
		if sent, err := o.repeat(ctx, ps); err != nil || !sent {
			return false, err
		}
		return true, o.byRecord(ctx, ps, reached)
	}
	until, all := time.Now().Add(straight), true
	for i, p := range ps {
		if reached[i], err = o.post(ctx, p.To, p.Batch, until); err != nil {
			return false, err
		}
		all = all && reached[i] == p.Batch.Last()
	}
	if all {
		return true, nil
	}
	return true, o.byRecord(ctx, ps, reached)
}

// post sends a batch straight to the connection its request came over, and says how
// far it came: not behind a post that failed, and no further than until. The common
// stream is of no request: if anything of it is owed already, this is too.
func (o Outlet) post(ctx context.Context, a session.Address, b session.Batch, until time.Time) (reached session.Index, err error) {
	reached = b.First - 1
	if o.Clients == nil {
		return reached, nil
	}
	if b.Stream == session.Common {
		s, _, err := o.Store.Load(ctx, a.Session, "")
		if err != nil {
			return b.Last(), unlessGone(err)
		}
		if c := cursorOf(&s, session.Common); c != nil && !c.Live {
			return reached, nil
		}
	}
	posting, cancel := context.WithDeadline(ctx, until.Add(onePost))
	defer cancel()
	for _, raw := range b.Events {
		if time.Now().After(until) {
			return reached, nil
		}
		err := o.event(posting, a.Conn, a.EventIDs, a.Session, session.EventID{Stream: b.Stream, Index: reached + 1}, raw)
		switch {
		case errors.Is(err, session.Closed), errors.Is(err, session.Unavailable), err != nil && posting.Err() != nil && ctx.Err() == nil:
			return reached, nil
		case err != nil:
			return reached, err
		}
		reached++
	}
	return reached, nil
}

// byRecord is for batches that were posted as far as reached says, where that is not
// all. It is noted first, because whoever appends may not live to do more. The rest is
// pushed by whoever has the lease.
func (o Outlet) byRecord(ctx context.Context, ps []Posting, reached []session.Index) error {
	id := ps[0].To.Session
	p := pusher{Outlet: o, nonce: session.NewNonce()}
	note := func(s *session.Session) (changed bool) {
		for i, p := range ps {
			changed = noteReached(s, p.Batch, reached[i]) || changed
		}
		return changed
	}
	done := func(s *session.Session) bool {
		return !slices.ContainsFunc(ps, func(p Posting) bool {
			c := cursorOf(s, p.Batch.Stream)
			return c != nil && !c.Settled() && c.Index < p.Batch.Last()
		})
	}
	if err := p.run(ctx, id, note, done); err != nil || o.Clients == nil || len(p.s.Conns) == 0 {
		return err
	}
	return o.revive(ctx, ps)
}

// noteReached notes how far a batch was posted straight. It says whether that is news.
func noteReached(s *session.Session, b session.Batch, i session.Index) bool {
	c := cursorOf(s, b.Stream)
	switch {
	case c != nil && (!c.Live || c.Index >= b.Last()):
		return false
	case i < b.Last():
		return owe(s, session.Cursor{Stream: b.Stream, Index: i})
	default:
		return owe(s, session.Cursor{Stream: b.Stream, Index: i, Final: b.Final, Live: true})
	}
}

// revive has streams go straight again of which all was pushed, and whose connections
// have survived.
func (o Outlet) revive(ctx context.Context, ps []Posting) error {
	for {
		s, _, err := o.Store.Load(ctx, ps[0].To.Session, "")
		if err != nil {
			return unlessGone(err)
		}
		s.Pushed = slices.Clone(s.Pushed)
		changed := false
		for _, p := range ps {
			c := cursorOf(&s, p.Batch.Stream)
			survives := slices.Contains(s.Conns, p.To.Conn) && (p.Batch.Stream != session.Common || len(s.Conns) == 1)
			if c == nil || c.Settled() || c.Index < p.Batch.Last() || !survives {
				continue
			}
			// Somebody may have ended the stream, and owe that.
			tail, err := o.Store.Tail(ctx, s.ID, c.Stream)
			if err != nil {
				return err
			}
			if tail.Last <= c.Index {
				*c, changed = session.Cursor{Stream: c.Stream, Index: c.Index, Live: true}, true
			}
		}
		if !changed {
			return nil
		}
		if heldAt(s.Pusher, time.Now()) {
			// Whoever has the lease would push what is then posted straight.
			if end, ends := ctx.Deadline(); ends && time.Until(end) < toNote {
				return errSlow
			}
			if err := sleepUntil(ctx, time.Now().Add(pushRetry)); err != nil {
				return err
			}
			continue
		}
		if err := o.Store.Save(ctx, s); !errors.Is(err, session.Conflict) {
			return unlessGone(err)
		}
	}
}

// event posts one event, and its id if the client wants to know it. An id that is
// lost is no harm: the next one says more.
func (o Outlet) event(ctx context.Context, conn string, ids bool, s session.ID, id session.EventID, raw []byte) error {
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
func EventNotice(s session.ID, id session.EventID, request []byte) []byte {
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
	if len(raw) <= session.MaxPost {
		return raw
	}
	const text = "this message is larger than the 131072 bytes a WebSocket connection carries; use Streamable HTTP for it"
	m, err := wire.Parse(raw)
	if err == nil && m.Kind == wire.Response {
		return wire.ErrorResponse(bytes.Clone(m.ID), &wire.Error{
			Code: wire.CodeInternal, Message: text, Data: map[string]any{"bytes": len(raw), "limit": session.MaxPost},
		})
	}
	return wire.NewNotification(wire.NotifyMessage, []byte(`{"level":"warning","logger":"dormouse","data":"`+text+`"}`))
}

// copyOut copies batches of a session with a legacy SSE stream there, in one batch, so
// that a repeat can be told by its generation and number.
func (o Outlet) copyOut(ctx context.Context, ps []Posting) error {
	var out session.Batch
	for _, p := range ps {
		if !p.To.LegacySSE {
			continue
		}
		if out.Events == nil {
			out = p.Batch
			out.Stream, out.Final, out.Retry, out.Events = session.LegacySSE, false, 0, nil
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

// appendOut writes at the end of a legacy SSE stream. Who is no runner (Gen 0), or one
// that has been overtaken, repeats the tail's generation and number, so that a
// later repeat of the runner that wrote them is still known.
func (o Outlet) appendOut(ctx context.Context, b session.Batch) error {
	gen, seq := b.Gen, b.Seq
	for {
		tail, err := o.Store.Tail(ctx, b.Session, session.LegacySSE)
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
		if err := o.Store.Append(ctx, b); !errors.Is(err, session.Conflict) {
			return err
		}
	}
}

// Say writes messages of our own to the legacy SSE stream of a session of HTTP+SSE: what
// was answered in place.
func (h Streams) Say(ctx context.Context, id session.ID, raws ...[]byte) error {
	return h.out.appendOut(ctx, session.Batch{Session: id, Stream: session.LegacySSE, Events: raws, Expires: time.Now().Add(h.limits.EventAge)})
}

// End appends the end of a request that somebody writes in the place of its box.
// Unlike a runner's batch it may not be repeated by its writer: what is owed is
// noted first and then pushed, and if the writer dies, [Outlet.Ended] goes on.
//
// Errors: Conflict (nothing was written), Unavailable.
func (o Outlet) End(ctx context.Context, a session.Address, b session.Batch) error {
	if _, err := o.Write(ctx, a, b); err != nil {
		return err
	}
	if err := o.copyOut(ctx, []Posting{{a, b, false}}); err != nil || a.Conn == "" {
		return err
	}
	return o.owe(ctx, a.Session, session.Cursor{Stream: b.Stream, Index: b.First - 1}, b.Last())
}

// Ended is for somebody who wants to end a request that has ended, and cannot know
// whether whoever wrote the end lived to deliver it. What was delivered through
// the records is not again; what a relay function delivered that died before it
// could say so, is. expires is when an event written now may go.
//
// Errors: Unavailable.
func (o Outlet) Ended(ctx context.Context, a session.Address, tail session.Tail, expires time.Time) error {
	if !a.Pushed() {
		return nil
	}
	last, err := o.lastResponses(ctx, a, tail)
	if err != nil || len(last) == 0 {
		return err
	}
	if a.Conn != "" {
		return o.owe(ctx, a.Session, session.Cursor{Stream: a.Stream, Index: tail.Last - session.Index(len(last))}, tail.Last)
	}
	tail, err = o.Store.Tail(ctx, a.Session, session.LegacySSE)
	if err != nil {
		return err
	}
	page, err := o.Store.Read(ctx, a.Session, session.LegacySSE, max(0, tail.Last-recentOut), recentOut)
	if err != nil || slices.ContainsFunc(page.Events, func(e session.Event) bool { return bytes.Equal(e.Raw, last[len(last)-1]) }) {
		return err
	}
	return o.appendOut(ctx, session.Batch{Session: a.Session, Stream: session.LegacySSE, Events: last, Expires: expires})
}

// recentOut is how far back an end is looked for that may have been copied.
const recentOut = 1000

// lastResponses are the responses a request stream ends with, at most as many as
// its last writer can have written.
func (o Outlet) lastResponses(ctx context.Context, a session.Address, tail session.Tail) ([][]byte, error) {
	n := session.Index(1)
	if tail.Gen == 0 {
		n = session.Index(max(1, len(a.Requests)))
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
