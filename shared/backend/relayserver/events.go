package relayserver

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// This file handles frames of the type events.
//
// Nothing checks that events are JSON-RPC. A hostile runner can write only to sessions of its own
// box, whose clients get the messages of that server in any case. The store refuses events with a
// line feed, which would break the framing of SSE. An event that does not parse counts as no
// response.

// streamPart is the part of an events frame that belongs to one stream.
type streamPart struct {
	sessions.Published
	asks   *storage.Item // not nil: the delivery is suspended, and this item is written before the events
	marked bool          // the store may have an item of the request, in state Taken
	of     *request      // the request of a box in this program; nil for other boxes and for the standalone stream
}

// parts opens the tickets of an events frame and cuts its payload. It refuses the whole frame,
// with Invalid, if a part is wrong, or if the frame has more streams, tickets or events than a
// batch holds.
func (r runner) parts(ctx context.Context, f frame.Events) ([]streamPart, error) {
	count := 0
	for _, it := range f.Items {
		count += len(it.Lens)
	}
	if most := storage.MaxBatchEvents; max(count, len(f.Items), len(f.Tickets)) > most {
		return nil, storage.Errorf(storage.Invalid, "an events frame of session %s has more than %d events", f.Session, most)
	}
	parts := make([]streamPart, len(f.Items))
	rest := f.Payload
	expires := time.Now().Add(r.h.EventAge)
	for i, it := range f.Items {
		t, err := r.open(ctx, it.Ticket)
		if err != nil {
			return nil, err
		}
		if t.Session != f.Session || it.Stream != storage.Standalone && it.Stream != t.Stream {
			return nil, storage.Errorf(storage.Invalid, "a ticket of session %s does not fit the stream it came with", t.Session)
		}
		var events [][]byte
		var again []byte
		var ok bool
		if events, again, rest, ok = cut(it, rest); !ok {
			return nil, storage.Errorf(storage.Invalid, "an events frame of session %s has lengths that do not fit its payload", t.Session)
		}
		p := streamPart{marked: it.Marked, Published: sessions.Published{To: t.Address, Batch: storage.Batch{
			Session: t.Session, Stream: it.Stream, First: it.First, Gen: f.Gen, Seq: f.Seq,
			Final: it.Final && it.Stream != storage.Standalone, Events: events, Expires: expires,
		}}}
		if it.Asks != nil {
			asks, err := suspension(t, it, again)
			if err != nil {
				return nil, err
			}
			p.asks = &asks
		}
		parts[i] = p
	}
	return parts, nil
}

// cut takes the events of an item from the front of a payload. If it.Asks is set, again is the
// request that follows the events.
func cut(it frame.EventItem, payload []byte) (events [][]byte, again, rest []byte, ok bool) {
	lens := it.Lens
	if it.Asks != nil {
		lens = append(slices.Clone(lens), it.Asks.Len)
	}
	size := 0
	for _, n := range lens {
		size += min(max(n, 0), len(payload)+1) // lengths may be lies; their sum must not overflow
		if size > len(payload) {
			return nil, nil, nil, false
		}
	}
	events, ok = frame.Split(payload[:size], lens)
	if !ok || len(it.Lens) == 0 {
		return nil, nil, nil, false
	}
	if it.Asks != nil {
		again = events[len(events)-1]
	}
	return events[:len(it.Lens)], again, payload[size:], true
}

// events stores a batch in this order: items for the tickets in f.Tickets, the standalone stream, the
// streams of requests. If a request is suspended, its item is stored before its events. After the
// writes, events pushes the stored events to connected clients, removes the items of ended requests,
// and returns the ack. A runner that got no ack sends the batch again, and events may repeat all of
// it.
func (r runner) events(ctx context.Context, f frame.Events) (frame.Frame, error) {
	parts, err := r.parts(ctx, f)
	if errors.Is(err, storage.Invalid) {
		r.h.Log.WarnContext(ctx, "events refused", "box", f.Box, "session_id", f.Session, "error", err)
		return refused(f), nil // closes the batch's streams, so that the box does not stay awake for them
	}
	if err != nil {
		return nil, err
	}
	if err := r.mark(ctx, f.Tickets); err != nil {
		return nil, err
	}
	ack := &frame.Ack{Seq: f.Seq, Session: f.Session}
	if sent, err := r.h.publish(ctx, f.Box, parts, ack, r.account); err != nil || !sent {
		return nil, err // without an ack the runner sends the batch again
	}
	return *ack, nil
}

// publish stores the events of one session, the standalone stream first, and pushes them to
// connected clients. It adds the ends of calls to a. If sent is false, the caller must call publish again.
func (x *boxes) publish(ctx context.Context, box storage.BoxID, parts []streamPart, ack *frame.Ack, a *account) (sent bool, err error) {
	stored := make([]sessions.Published, 0, len(parts))
	first := func(a, b streamPart) int { // the name of the standalone stream is ""
		return cmp.Compare(min(len(a.Batch.Stream), 1), min(len(b.Batch.Stream), 1))
	}
	for _, part := range slices.SortedStableFunc(slices.Values(parts), first) {
		p, ok, err := x.storePart(ctx, part, ack)
		if err != nil || ack.Fenced {
			return err == nil, err
		}
		if ok {
			stored = append(stored, p)
			a.addEnd(p, x.ShowErrors)
		}
	}
	if sent, err := x.out.Send(ctx, stored...); err != nil || !sent {
		return false, err
	}
	for _, p := range parts {
		// If the stream is in ack.Closed, another instance has stored the end of the stream,
		// and needs the item until it has pushed that end.
		if p.Batch.Final && p.marked && !slices.Contains(ack.Closed, p.Batch.Stream) {
			if err := x.Store.DeleteItem(ctx, box, p.Batch.Stream, 0); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// storePart writes one stream's events and records the outcome in the ack. It returns the
// events with their indexes in the log. ok is false if the events must not be pushed.
func (x *boxes) storePart(ctx context.Context, say streamPart, ack *frame.Ack) (stored sessions.Published, ok bool, err error) {
	p := say.Published
	if p.Batch.Stream != storage.Standalone {
		closed := false
		if say.asks != nil {
			if ok, err = x.suspend(ctx, *say.asks, say.marked); err != nil {
				return p, false, err
			}
			closed = !ok
		}
		if !closed {
			closed, err = x.appendStream(ctx, &p)
		}
		if closed {
			ack.Closed = append(ack.Closed, p.Batch.Stream)
		}
		return p, !closed, err
	}
	v, err := x.appendStandalone(ctx, &p)
	if err != nil {
		return p, false, err
	}
	if ack.Fenced = v == refuse; !ack.Fenced {
		ack.Next = p.Batch.Last() + 1
	}
	return p, v == write, nil
}

// refused returns the ack of a batch that was refused as a whole.
func refused(f frame.Events) frame.Ack {
	ack := frame.Ack{Seq: f.Seq, Session: f.Session}
	for _, it := range f.Items {
		if it.Stream != storage.Standalone {
			ack.Closed = append(ack.Closed, it.Stream)
		}
	}
	return ack
}

// appendStream writes to a request stream. A conflict means that the stream is closed,
// because the only other writer is an instance that ends the request with an error.
func (x *boxes) appendStream(ctx context.Context, p *sessions.Published) (closed bool, err error) {
	if p.Batch.First < 1 {
		return false, storage.Errorf(storage.Invalid, "a batch of stream %s begins at index %d", p.Batch.Stream, p.Batch.First)
	}
	p.Batch, p.Again, err = x.out.Write(ctx, p.To, p.Batch)
	if errors.Is(err, storage.Conflict) {
		return true, nil
	}
	return false, err
}

// appendStandalone writes a batch to the standalone stream. For a runner that is new to the
// session, First is 0: appendStandalone then sets First to the index after the last event. v is
// refuse if a newer generation has written to the stream, ignore if a later batch of the same
// runner is in the log, and write otherwise.
func (x *boxes) appendStandalone(ctx context.Context, p *sessions.Published) (v decision, err error) {
	b := &p.Batch
	if b.First > 0 {
		*b, p.Again, err = x.out.Write(ctx, p.To, *b)
		if errors.Is(err, storage.Conflict) {
			return refuse, nil
		}
		return write, err
	}
	for {
		tail, err := x.Store.Tail(ctx, b.Session, storage.Standalone)
		switch {
		case err != nil:
			return refuse, err
		case tail.Gen == b.Gen && tail.Seq >= b.Seq:
			v := write // the batch is stored already, and its ack was lost
			if tail.Seq > b.Seq {
				v = ignore
			}
			b.First, p.Again = tail.Last+1-storage.Index(len(b.Events)), p.To.Conn != ""
			return v, nil
		case tail.Gen > b.Gen:
			return refuse, nil
		}
		b.First = tail.Last + 1
		*b, p.Again, err = x.out.Write(ctx, p.To, *b)
		if !errors.Is(err, storage.Conflict) {
			return write, err
		}
	}
}
