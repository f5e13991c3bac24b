package sessions

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Publisher appends events to the log, and then pushes them to a client that has a WebSocket or the
// event stream of HTTP+SSE (I1 in the package comment). A Publisher is safe for concurrent use.
//
// Once the WebSocket connection of a request is gone, the session's record says which events the
// client has not got (see cursors.go).
type Publisher struct {
	Store   storage.Store
	Clients storage.Clients // nil: this Publisher pushes nothing to WebSockets; another instance pushes the events
	Held    *Held           // nil: a Keeper on Store that writes no log lines
}

// Published is a batch that is in the log, as [Publisher.Write] returned it, and the address that it
// is for.
type Published struct {
	To    storage.Address
	Batch storage.Batch
	Again bool // Write found the batch in the log: the instance that wrote it may be posting it now, or may have posted it
}

// Append writes a batch of events for the address a to the log and delivers it. After Unavailable
// one caller at a time may repeat Append. A repeated Append may send a connected client an event twice.
//
// Errors: Conflict (nothing was written, see [storage.Log]), Unavailable.
func (o Publisher) Append(ctx context.Context, a storage.Address, b storage.Batch) error {
	_, err := o.AppendShown(ctx, a, b)
	return err
}

// AppendShown is Append, and returns what the client may see of the batch.
func (o Publisher) AppendShown(ctx context.Context, a storage.Address, b storage.Batch) (storage.Batch, error) {
	b, again, err := o.Write(ctx, a, b)
	if err != nil {
		return b, err
	}
	if a.Conn == "" || !again {
		_, err = o.Send(ctx, Published{a, b, false})
		return b, err
	}
	// The batch was in the log. No other instance is posting it, because only this caller writes
	// it.
	ps := []Published{{a, b, true}}
	if err := o.copyOut(ctx, ps); err != nil {
		return b, err
	}
	return b, o.byRecord(ctx, ps, []storage.Index{b.First - 1})
}

// Write is the first half of Append: it writes to the log what the client may see of a batch, and
// returns what it wrote. With the function note, Write also updates the records of the session and the
// server. again is true if the address has a connection and the batch was in the log before.
func (o Publisher) Write(ctx context.Context, a storage.Address, b storage.Batch) (written storage.Batch, again bool, err error) {
	if written, err = o.shown(ctx, a, b); err != nil {
		return b, false, err
	}
	after, err := note(ctx, o.Store, a, b)
	if err != nil {
		return written, false, err
	}
	logged := written
	logged.Once = a.Conn != ""
	if err = o.Store.Append(ctx, logged); errors.Is(err, storage.Duplicate) {
		again, err = true, nil
	}
	if err == nil && after != nil {
		err = after(ctx)
	}
	return written, again, err
}

// Send is the second half of Append, for batches of one session that were written together. Send
// copies the batches of an HTTP+SSE session to the stream [storage.LegacySSE], as one batch. It
// posts the events of a WebSocket session to the connections of their addresses.
//
// If sent is false, another instance may be posting the batches. The caller must write and send
// them again some seconds later, because that instance may have died.
func (o Publisher) Send(ctx context.Context, ps ...Published) (sent bool, err error) {
	if err := o.copyOut(ctx, ps); err != nil {
		return false, err
	}
	ps = slices.DeleteFunc(slices.Clone(ps), func(p Published) bool { return p.To.Conn == "" })
	reached := make([]storage.Index, len(ps))
	for i, p := range ps {
		reached[i] = p.Batch.First - 1
	}
	if o.Clients != nil && slices.ContainsFunc(ps, func(p Published) bool { return p.Again }) {
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

// post sends a batch directly to the connection of its address. reached is the index of the last event
// that the connection took. post stops at the deadline, or when an event cannot be posted. While earlier
// events of the standalone stream are owed, post posts no later ones.
func (o Publisher) post(ctx context.Context, a storage.Address, b storage.Batch, deadline time.Time) (reached storage.Index, err error) {
	reached = b.First - 1
	if o.Clients == nil {
		return reached, nil
	}
	if b.Stream == storage.Standalone {
		s, _, err := o.Store.Load(ctx, a.Session, "")
		if err != nil {
			return b.Last(), storage.IgnoreNotFound(err)
		}
		if c := cursorOf(&s, storage.Standalone); c != nil && !c.Live {
			return reached, nil
		}
	}
	posting, cancel := context.WithDeadline(ctx, deadline.Add(onePost))
	defer cancel()
	for _, raw := range b.Events {
		if time.Now().After(deadline) {
			return reached, nil
		}
		err := o.event(posting, a.Conn, a.EventIDs, a.Session, a.Through, storage.EventID{Stream: b.Stream, Index: reached + 1}, raw)
		switch {
		case errors.Is(err, storage.Closed), errors.Is(err, storage.Unavailable), err != nil && posting.Err() != nil && ctx.Err() == nil:
			return reached, nil
		case err != nil:
			return reached, err
		}
		reached++
	}
	return reached, nil
}

// byRecord delivers what post has not posted of each batch: the events after reached[i]. byRecord
// writes reached to the session's record, because this instance may die at any time. The instance
// that holds the session's Pusher lease pushes the rest.
func (o Publisher) byRecord(ctx context.Context, ps []Published, reached []storage.Index) error {
	id := ps[0].To.Session
	p := o.redelivery()
	note := func(s *storage.Session) (changed bool) {
		for i, p := range ps {
			changed = noteReached(s, p.Batch, reached[i]) || changed
		}
		return changed
	}
	done := func(s *storage.Session) bool {
		return !slices.ContainsFunc(ps, func(p Published) bool {
			c := cursorOf(s, p.Batch.Stream)
			return c != nil && !c.Settled() && c.Index < p.Batch.Last()
		})
	}
	if err := p.run(ctx, id, note, done); err != nil || o.Clients == nil || len(p.s.Conns) == 0 {
		return err
	}
	return o.revive(ctx, ps)
}

// noteReached records in s that post has posted the events of b up to i. It reports whether s changed.
func noteReached(s *storage.Session, b storage.Batch, i storage.Index) bool {
	c := cursorOf(s, b.Stream)
	switch {
	case c != nil && (!c.Live || c.Index >= b.Last()):
		return false
	case i < b.Last():
		return owe(s, storage.Cursor{Stream: b.Stream, Index: i})
	default:
		return owe(s, storage.Cursor{Stream: b.Stream, Index: i, Final: b.Final, Live: true})
	}
}

// revive makes the cursor of a stream Live again, so that later events are posted directly. It
// changes only streams of ps whose events were all pushed and whose connection is still there.
func (o Publisher) revive(ctx context.Context, ps []Published) error {
	for {
		s, _, err := o.Store.Load(ctx, ps[0].To.Session, "")
		if err != nil {
			return storage.IgnoreNotFound(err)
		}
		s.Pushed = slices.Clone(s.Pushed)
		changed := false
		for _, p := range ps {
			c := cursorOf(&s, p.Batch.Stream)
			survives := slices.Contains(s.Conns, p.To.Conn) && (p.Batch.Stream != storage.Standalone || len(s.Conns) == 1)
			if c == nil || c.Settled() || c.Index < p.Batch.Last() || !survives {
				continue
			}
			// Another instance may have written the end of the stream and not pushed it yet.
			tail, err := o.Store.Tail(ctx, s.ID, c.Stream)
			if err != nil {
				return err
			}
			if tail.Last <= c.Index {
				*c, changed = storage.Cursor{Stream: c.Stream, Index: c.Index, Live: true}, true
			}
		}
		if !changed {
			return nil
		}
		if heldAt(s.Pusher, time.Now()) {
			// Wait for the holder of the lease, if there is time: the holder has the old
			// cursor, and would push again what other instances post directly.
			if end, ends := ctx.Deadline(); ends && time.Until(end) < toNote {
				return errSlow
			}
			if err := storage.Rest(ctx, pushRetry); err != nil {
				return err
			}
			continue
		}
		if err := o.Store.Save(ctx, s); !errors.Is(err, storage.Conflict) {
			return storage.IgnoreNotFound(err)
		}
	}
}

// copyOut copies the batches of an HTTP+SSE session to the stream [storage.LegacySSE]. It must write
// one batch, because appendOut recognizes a repeat by the generation and number of a batch.
func (o Publisher) copyOut(ctx context.Context, ps []Published) error {
	var out storage.Batch
	for _, p := range ps {
		if !p.To.LegacySSE {
			continue
		}
		if out.Events == nil {
			out = p.Batch
			out.Stream, out.Final, out.Retry, out.Events = storage.LegacySSE, false, 0, nil
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

// appendOut writes a batch at the end of the stream [storage.LegacySSE], whose tail always has Gen and Seq
// of the newest batch of a box. It drops a batch of a box that has the Gen of the tail and no higher Seq,
// because the stream has that batch. A batch of an older Gen, such as the 0 of an instance, gets Gen and
// Seq of the tail.
func (o Publisher) appendOut(ctx context.Context, b storage.Batch) error {
	gen, seq := b.Gen, b.Seq
	for {
		tail, err := o.Store.Tail(ctx, b.Session, storage.LegacySSE)
		switch {
		case err != nil:
			return err
		case gen != 0 && tail.Gen == gen && tail.Seq >= seq:
			return nil // the batch is stored already, and the box sent it again because it got no answer
		case gen < tail.Gen:
			b.Gen, b.Seq = tail.Gen, tail.Seq
		default:
			b.Gen, b.Seq = gen, seq
		}
		b.First = tail.Last + 1
		if err := o.Store.Append(ctx, b); !errors.Is(err, storage.Conflict) {
			return err
		}
	}
}

// End appends the end of a request in place of the box that should have ended it. Unlike Append,
// End must not be called again after an error. Before it pushes the end, End records that the client
// has not got it. If the instance dies before the push, [Publisher.Ended] continues.
//
// Errors: Conflict (nothing was written), Unavailable.
func (o Publisher) End(ctx context.Context, a storage.Address, b storage.Batch) error {
	if _, _, err := o.Write(ctx, a, b); err != nil {
		return err
	}
	if err := o.copyOut(ctx, []Published{{a, b, false}}); err != nil || a.Conn == "" {
		return err
	}
	return o.owe(ctx, a.Session, storage.Cursor{Stream: b.Stream, Index: b.First - 1}, b.Last())
}

// Ended delivers the end of a request that is in the log already. The instance that wrote the end may
// have died before it delivered the end. tail is the tail of the request's stream.
//
// Ended does nothing if the session's record, or the stream of HTTP+SSE, shows that the client got
// the end. If an instance died between the delivery and its record, the client gets the end twice.
// expires is when an event that Ended writes may be deleted.
//
// Errors: Unavailable.
func (o Publisher) Ended(ctx context.Context, a storage.Address, tail storage.Tail, expires time.Time) error {
	if !a.Pushed() {
		return nil
	}
	last, err := o.lastResponses(ctx, a, tail)
	if err != nil || len(last) == 0 {
		return err
	}
	if a.Conn != "" {
		return o.owe(ctx, a.Session, storage.Cursor{Stream: a.Stream, Index: tail.Last - storage.Index(len(last))}, tail.Last)
	}
	tail, err = o.Store.Tail(ctx, a.Session, storage.LegacySSE)
	if err != nil {
		return err
	}
	page, err := o.Store.Read(ctx, a.Session, storage.LegacySSE, max(0, tail.Last-recentOut), recentOut)
	if err != nil || slices.ContainsFunc(page.Events, func(e storage.Event) bool { return bytes.Equal(e.Raw, last[len(last)-1]) }) {
		return err
	}
	return o.appendOut(ctx, storage.Batch{Session: a.Session, Stream: storage.LegacySSE, Events: last, Expires: expires})
}

// recentOut is how many events [Publisher.Ended] searches, in the stream of HTTP+SSE, for a copy of
// the end.
const recentOut = 1000

// lastResponses returns the responses that the end of a request stream consists of. A box ends a
// stream with one response. An instance ends it with an error for each request of a batch.
func (o Publisher) lastResponses(ctx context.Context, a storage.Address, tail storage.Tail) ([][]byte, error) {
	n := storage.Index(1)
	if tail.Gen == 0 {
		n = storage.Index(max(1, len(a.Requests)))
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

// repeat decides whether this instance pushes batches that it found in the log. mine is false while
// their writer may still be posting them.
func (o Publisher) repeat(ctx context.Context, ps []Published) (mine bool, err error) {
	_, err = amend(ctx, o.Store, ps[0].To.Session, func(s *storage.Session) (changed bool) {
		mine = true
		for _, p := range ps {
			sure, noted := doubt(s, p.Batch)
			mine, changed = mine && sure, changed || noted
		}
		return changed
	})
	if errors.Is(err, storage.NotFound) {
		return true, nil // no client is left to push to
	}
	return mine, err
}

// owe adds cursor to the session: the client has not got the events after it. If the stream has a cursor,
// owe replaces it only if it is Live and before lastIndex. If the session has a connection, owe returns
// once the event at lastIndex was pushed.
func (o Publisher) owe(ctx context.Context, id storage.ID, cursor storage.Cursor, lastIndex storage.Index) error {
	p := o.redelivery()
	done := func(s *storage.Session) bool {
		c := cursorOf(s, cursor.Stream)
		return c == nil || c.Final || c.Index >= lastIndex
	}
	note := func(s *storage.Session) bool {
		c := cursorOf(s, cursor.Stream)
		return (c == nil || !c.Live || c.Index < lastIndex) && owe(s, cursor)
	}
	return p.run(ctx, id, note, done)
}
