package relayhost

import (
	"context"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// This file reads an events frame before anything of it is stored.
//
// Events are bytes here. This code does not check that they are JSON-RPC. An honest
// runner has parsed what it sends. A hostile runner can write only to sessions of its
// own box, and their clients get whatever that server says in any case. It must not
// break the framing in which its events travel to those clients, so the store refuses
// events with a line feed. A function that needs to know what an event is parses it,
// and treats an event it cannot read as one that is no response.

// said is the part of an events frame that belongs to one stream.
type said struct {
	host.Posting
	asks   *session.Item // not nil: the delivery is suspended, and this item is put before the events
	marked bool
}

// postings opens the tickets and cuts the payload. It refuses the whole frame, with
// Invalid, if anything in it is wrong, or if it has more streams, tickets or events
// than a batch holds. Each stream costs a write.
func (h *Handler) postings(ctx context.Context, f frame.Events) ([]said, error) {
	count := 0
	for _, it := range f.Items {
		count += len(it.Lens)
	}
	if most := session.MaxBatchEvents; max(count, len(f.Items), len(f.Tickets)) > most {
		return nil, session.Errorf(session.Invalid, "an events frame of session %s has more than %d events", f.Session, most)
	}
	postings := make([]said, len(f.Items))
	rest := f.Payload
	expires := time.Now().Add(h.EventAge)
	for i, it := range f.Items {
		t, err := h.open(ctx, f.Sender, it.Ticket)
		if err != nil {
			return nil, err
		}
		if t.Session != f.Session || it.Stream != session.Common && it.Stream != t.Stream {
			return nil, session.Errorf(session.Invalid, "a ticket of session %s does not fit the stream it came with", t.Session)
		}
		var events [][]byte
		var again []byte
		var ok bool
		if events, again, rest, ok = cut(it, rest); !ok {
			return nil, session.Errorf(session.Invalid, "an events frame of session %s has lengths that do not fit its payload", t.Session)
		}
		p := said{marked: it.Marked, Posting: host.Posting{To: t.Address, Batch: session.Batch{
			Session: t.Session, Stream: it.Stream, First: it.First, Gen: f.Gen, Seq: f.Seq,
			Final: it.Final && it.Stream != session.Common, Events: events, Expires: expires,
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

// cut takes the events of an item from the front of a payload. again is the request
// behind them if the item suspends its delivery.
func cut(it frame.EventItem, payload []byte) (events [][]byte, again, rest []byte, ok bool) {
	lens := it.Lens
	if it.Asks != nil {
		lens = append(slices.Clone(lens), it.Asks.Len)
	}
	size := 0
	for _, n := range lens {
		size += min(max(n, 0), len(payload)+1) // the sum of lengths that lie must not overflow
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
