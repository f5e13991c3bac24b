package relayserver

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// This file reads an events frame before the host stores any of it.
//
// Events are only bytes here. This code does not check that they are JSON-RPC. An honest
// runner has parsed the events that it sends. A hostile runner can write only to sessions
// of its own box, and their clients get that server's messages in any case. It must not
// break the framing in which its events travel to those clients, so the store refuses
// events with a line feed. A function that needs to know what an event is parses it. If it
// cannot, it treats the event as one that is no response.

// streamPart is the part of an events frame that belongs to one stream.
type streamPart struct {
	sessions.Published
	asks   *storage.Item // not nil: the delivery is suspended, and this item is written before the events
	marked bool
}

// postings opens the tickets and cuts the payload. It refuses the whole frame, with
// Invalid, if anything in it is wrong. It also refuses a frame that has more streams,
// tickets or events than a batch holds. Each stream costs a write.
func (h *Handler) postings(ctx context.Context, f frame.Events) ([]streamPart, error) {
	count := 0
	for _, it := range f.Items {
		count += len(it.Lens)
	}
	if most := storage.MaxBatchEvents; max(count, len(f.Items), len(f.Tickets)) > most {
		return nil, storage.Errorf(storage.Invalid, "an events frame of session %s has more than %d events", f.Session, most)
	}
	postings := make([]streamPart, len(f.Items))
	rest := f.Payload
	expires := time.Now().Add(h.EventAge)
	for i, it := range f.Items {
		t, err := h.open(ctx, f.Sender, it.Ticket)
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
		postings[i] = p
	}
	return postings, nil
}

// cut takes the events of an item from the front of a payload. If the item suspends its
// delivery, again is the request after them.
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

// events stores a batch in this order: the marks, the standalone stream, the request
// streams. If a request is suspended, its item is stored before its stream. Then it
// pushes the stored events to connected clients, removes the marks of ended requests, and
// returns the ack. All of it may be repeated.
func (h *Handler) events(ctx context.Context, f frame.Events) (frame.Frame, error) {
	postings, err := h.postings(ctx, f)
	if errors.Is(err, storage.Invalid) {
		// The host would refuse the same batch again. Close its streams, so that the
		// box does not stay awake for them.
		h.Log.WarnContext(ctx, "events refused", "box", f.Box, "session_id", f.Session, "error", err)
		return refused(f), nil
	}
	if err != nil {
		return nil, err
	}
	if err := h.mark(ctx, f.Sender, f.Tickets); err != nil {
		return nil, err
	}
	ack := &frame.Ack{Seq: f.Seq, Session: f.Session}
	if sent, err := h.publish(ctx, f.Box, postings, ack); err != nil || !sent {
		return nil, err // without an ack the runner sends the batch again
	}
	return *ack, nil
}

// outlet writes events to the log, and takes them to clients.
type outlet struct {
	items      items
	showErrors bool
}

// publish stores the events of one session, the standalone stream first, and pushes them. It
// notes in ack what the box has to know. sent is false if it has to be repeated.
func (o outlet) publish(ctx context.Context, box storage.BoxID, parts []streamPart, ack *frame.Ack) (sent bool, err error) {
	stored := make([]sessions.Published, 0, len(parts))
	for _, i := range commonFirst(parts) {
		p, ok, err := o.store(ctx, parts[i], ack)
		if err != nil || ack.Fenced {
			return err == nil, err
		}
		if ok {
			stored = append(stored, p)
			over(ctx, p, o.showErrors)
		}
	}
	if sent, err := o.items.out.Send(ctx, stored...); err != nil || !sent {
		return false, err
	}
	for _, p := range parts {
		// If the stream is in ack.Closed, another function stored the end. That function needs
		// the item until it has pushed the end.
		if p.Batch.Final && p.marked && !slices.Contains(ack.Closed, p.Batch.Stream) {
			if err := o.items.store.DeleteItem(ctx, box, p.Batch.Stream, 0); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// store writes one stream's events and records the outcome in the ack. It returns the
// events with their place in the log. ok is false if they must not be pushed.
func (o outlet) store(ctx context.Context, say streamPart, ack *frame.Ack) (stored sessions.Published, ok bool, err error) {
	p := say.Published
	if p.Batch.Stream != storage.Standalone {
		closed := false
		if say.asks != nil {
			if ok, err = o.items.suspend(ctx, *say.asks, say.marked); err != nil {
				return p, false, err
			}
			closed = !ok
		}
		if !closed {
			closed, err = o.appendStream(ctx, &p)
		}
		if closed {
			ack.Closed = append(ack.Closed, p.Batch.Stream)
		}
		return p, !closed, err
	}
	v, err := o.appendStandalone(ctx, &p)
	if err != nil {
		return p, false, err
	}
	if ack.Fenced = v == refuse; !ack.Fenced {
		ack.Next = p.Batch.Last() + 1
	}
	return p, v == write, nil
}

// refused returns the ack of a batch that was refused as a whole. It closes all request
// streams of the batch.
func refused(f frame.Events) frame.Ack {
	ack := frame.Ack{Seq: f.Seq, Session: f.Session}
	for _, it := range f.Items {
		if it.Stream != storage.Standalone {
			ack.Closed = append(ack.Closed, it.Stream)
		}
	}
	return ack
}

func commonFirst(parts []streamPart) []int {
	order := make([]int, 0, len(parts))
	for i, p := range parts {
		if p.Batch.Stream == storage.Standalone {
			order = slices.Insert(order, 0, i)
		} else {
			order = append(order, i)
		}
	}
	return order
}

// appendStream writes to a request stream. The runner numbers its events from 1. The
// only other writer is a function that ends the request with an error. A conflict
// therefore means that the stream is closed.
func (o outlet) appendStream(ctx context.Context, p *sessions.Published) (closed bool, err error) {
	if p.Batch.First < 1 {
		return false, storage.Errorf(storage.Invalid, "a batch of stream %s begins at index %d", p.Batch.Stream, p.Batch.First)
	}
	p.Batch, p.Again, err = o.items.out.Write(ctx, p.To, p.Batch)
	if errors.Is(err, storage.Conflict) {
		return true, nil
	}
	return false, err
}

// appendStandalone writes to the standalone stream and sets the first index of the batch. A
// runner that is new to a session does not know the next index and sends First 0.
// appendStandalone then finds the place by writing, and that write fences the runner's
// predecessor. The decision is write, refuse, or ignore; ignore is for a frame that
// comes after the next one of its session.
func (o outlet) appendStandalone(ctx context.Context, p *sessions.Published) (v decision, err error) {
	b := &p.Batch
	if b.First > 0 {
		*b, p.Again, err = o.items.out.Write(ctx, p.To, *b)
		if errors.Is(err, storage.Conflict) {
			return refuse, nil
		}
		return write, err
	}
	for {
		tail, err := o.items.store.Tail(ctx, b.Session, storage.Standalone)
		switch {
		case err != nil:
			return refuse, err
		case tail.Gen == b.Gen && tail.Seq >= b.Seq:
			v := write // stored already, the ack was lost
			if tail.Seq > b.Seq {
				v = ignore
			}
			b.First, p.Again = tail.Last+1-storage.Index(len(b.Events)), p.To.Conn != ""
			return v, nil
		case tail.Gen > b.Gen:
			return refuse, nil
		}
		b.First = tail.Last + 1
		*b, p.Again, err = o.items.out.Write(ctx, p.To, *b)
		if !errors.Is(err, storage.Conflict) {
			return write, err
		}
	}
}
