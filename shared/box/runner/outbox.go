package runner

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	maxBatch   = 1000     // the most events in a batch
	maxPayload = 4 << 20  // the most bytes in a batch, unless a single event is larger
	maxBacklog = 32 << 20 // if a session has more bytes of events, [Runner.Event] blocks
)

// outboxes holds the events of all sessions until the host has them. For each session one batch is
// sent at a time, and is repeated with the same bytes until its [frame.Ack] comes.
type outboxes struct {
	cfg        *Config
	executing  *executing
	links      *links
	transfers  *transfers
	deliveries *deliveries

	boxes map[storage.ID]*outbox
	seqs  int64 // the highest batch number of the outboxes that were forgotten
}

type outbox struct {
	session storage.ID
	ticket  string        // the ticket of the newest delivery
	seq     int64         // the number of the last batch; after an outbox was forgotten, the next one goes on from seqs
	next    storage.Index // index of the next standalone event; 0 if only the host knows it
	unacked *batch
	common  [][]byte        // standalone events that are in no batch yet
	voucher string          // the ticket of the newest event in common
	streams []*delivery     // deliveries with pending events, in the order of their first event
	size    int             // bytes of all events of the session, including the unacked batch
	rooms   []chan struct{} // channels to close when the outbox has room for more events
	used    time.Time       // when an event or an ack last came
}

type batch struct {
	seq      int64
	gen      storage.Generation
	data     []byte // the frame; nil if it is sent in parts
	transfer *transfer
	size     int // bytes of events
	common   bool
	ends     []*delivery // deliveries that end or are suspended with this batch
	traces   []*delivery // deliveries for which this batch asks the host to make an item in the store
	again    alarm
}

func (ob *outboxes) outbox(id storage.ID) *outbox {
	o, ok := ob.boxes[id]
	if !ok {
		o = &outbox{session: id, seq: ob.seqs}
		ob.boxes[id] = o
	}
	o.used = time.Now()
	return o
}

// event takes an event of a process. The channel room is closed when the session's outbox has room
// for more.
func (ob *outboxes) event(e frame.Event, room chan struct{}) {
	o := ob.outbox(e.Session)
	ob.gather(o, e)
	if o.size > maxBacklog {
		o.rooms = append(o.rooms, room)
	} else {
		close(room)
	}
	ob.flush(o)
}

func (ob *outboxes) gather(o *outbox, e frame.Event) {
	round := 0
	if d := ob.deliveries.byID[e.Stream]; d != nil {
		round = d.round
	}
	fit, why := frame.Fit(e, round)
	if why != "" {
		ob.cfg.Log.Warn("event that cannot be sent as it is", "session_id", e.Session, "stream", e.Stream, "bytes", len(e.Raw), "reason", why)
	}
	for _, e := range fit {
		ob.add(o, e)
	}
}

func (ob *outboxes) add(o *outbox, e frame.Event) {
	raw := e.Raw
	if e.Stream == storage.Standalone {
		ticket := cmp.Or(e.Ticket, o.ticket)
		if ticket == "" {
			ob.cfg.Log.Error("event of a session that was never delivered to", "session_id", e.Session, "bytes", len(raw))
			return
		}
		o.common, o.voucher = append(o.common, raw), ticket
		o.size += len(raw)
		return
	}
	d := ob.deliveries.byID[e.Stream]
	if d == nil || d.ended || d.session != e.Session {
		ob.cfg.Log.Debug("event of a stream that is closed", "session_id", e.Session, "stream", e.Stream, "bytes", len(raw))
		return
	}
	if len(d.pending) == 0 {
		o.streams = append(o.streams, d)
	}
	d.pending = append(d.pending, raw)
	o.size += len(raw)
	if e.Asks != nil {
		d.asks = e.Asks
		o.size += len(e.Asks.Raw)
	}
	d.ended = e.Final || e.Asks != nil
}

// flush sends the next batch of a session, unless a batch is being sent.
func (ob *outboxes) flush(o *outbox) {
	if o.unacked != nil || !ob.links.linked() || len(o.common) == 0 && len(o.streams) == 0 {
		return
	}
	f, events, b := ob.batch(o)
	if b.size > frame.MaxFrame { // sent in parts, without a copy of all events
		b.transfer = ob.transfers.transfer(append([][]byte{frame.Encode(f), {'\n'}}, events...)...)
	} else {
		f.Payload = bytes.Join(events, nil)
		if b.data = frame.Encode(f); len(b.data) > frame.MaxFrame {
			b.transfer, b.data = ob.transfers.transfer(b.data), nil
		}
	}
	o.unacked = b
	ob.sendBatch(b)
}

// batch takes as many events as fit into one [frame.Events]: standalone events first, then the
// streams in the order of their first event. The caller sets the Payload of the frame.
func (ob *outboxes) batch(o *outbox) (f frame.Events, events [][]byte, b *batch) {
	o.seq++
	b = &batch{seq: o.seq, gen: ob.links.gen}
	f = frame.Events{Sender: ob.links.ofBox(), Seq: o.seq, Session: o.session}
	// take moves events from pending into events, until the batch is full. If take has moved the
	// last event, it also adds the argument tail.
	take := func(pending [][]byte, tail []byte) (rest [][]byte, lens []int) {
		for i, raw := range pending {
			size := len(raw)
			if i == len(pending)-1 {
				size += len(tail)
			}
			if len(events) >= maxBatch || len(events) > 0 && b.size+size > maxPayload {
				return pending[i:], lens
			}
			events, lens, b.size = append(events, raw), append(lens, len(raw)), b.size+size
		}
		events = append(events, tail)
		return nil, lens
	}
	var lens []int
	if len(o.common) > 0 {
		o.common, lens = take(o.common, nil)
		f.Items = append(f.Items, frame.EventItem{Ticket: o.voucher, First: o.next, Lens: lens})
		b.common = true
		if o.next > 0 {
			o.next += storage.Index(len(lens))
		}
	}
	for len(o.streams) > 0 {
		d := o.streams[0]
		if d.pending, lens = take(d.pending, d.again()); len(lens) == 0 {
			break
		}
		over := d.ended && len(d.pending) == 0
		final, asked := over && d.asks == nil, (*frame.Asks)(nil)
		if over && !final {
			asked = &frame.Asks{Round: d.round + 1, Questions: d.asks.Questions, Within: d.asks.Within.Milliseconds(), Len: len(d.asks.Raw)}
		}
		if !over && !d.traced {
			// Before the client sees progress, the store must have an item that says that this box
			// has to answer the request. A [frame.Taken] may have been lost, so this frame asks for
			// the item.
			f.Tickets = append(f.Tickets, d.ticket)
			d.reported = true
			b.traces = append(b.traces, d)
		}
		f.Items = append(f.Items, frame.EventItem{
			Ticket: d.ticket, Stream: d.id, First: d.sent + 1, Final: final, Marked: over && d.reported, Lens: lens, Asks: asked,
		})
		d.sent += storage.Index(len(lens))
		if over {
			b.ends = append(b.ends, d)
		}
		if len(d.pending) > 0 {
			break
		}
		o.streams = o.streams[1:]
	}
	return f, events, b
}

// sendBatch sends a batch, and repeats it until the ack comes.
func (ob *outboxes) sendBatch(b *batch) {
	switch {
	case !ob.links.linked():
		return // resumeOutboxes sends it later
	case b.transfer != nil:
		ob.transfers.sendParts(b.transfer)
		return
	default:
		ob.links.live.send(outgoing{data: b.data})
	}
	ob.links.againIfFree(&b.again, func() { ob.sendBatch(b) })
}

// acked handles an ack: the host has stored the batch, except for the streams in f.Closed.
func (ob *outboxes) acked(f frame.Ack) {
	o := ob.boxes[f.Session]
	if o == nil || o.unacked == nil || o.unacked.seq != f.Seq {
		return // a second ack, of a batch that was repeated
	}
	if f.Fenced {
		ob.links.fence()
		return
	}
	b := o.unacked
	o.unacked, o.used = nil, time.Now()
	b.again.stop()
	ob.transfers.dropTransfer(b.transfer)
	o.size -= b.size
	if b.common && b.gen == ob.links.gen && f.Next > 0 {
		o.next = f.Next
	}
	for _, d := range b.traces {
		d.traced = true
	}
	for _, d := range b.ends {
		ob.deliveries.forgetLater(d)
	}
	for _, id := range f.Closed {
		ob.closeStream(o, id)
	}
	if o.size <= maxBacklog {
		for _, room := range o.rooms {
			close(room)
		}
		o.rooms = nil
	}
	ob.flush(o)
}

// closeStream drops the waiting events of a stream that the host has ended, and tells the
// Executor.
func (ob *outboxes) closeStream(o *outbox, id storage.StreamID) {
	d := ob.deliveries.byID[id]
	if d == nil || d.session != o.session {
		return
	}
	for _, raw := range d.pending {
		o.size -= len(raw)
	}
	if len(d.pending) > 0 {
		o.size -= len(d.again())
	}
	d.pending, d.asks = nil, nil
	o.streams = slices.DeleteFunc(o.streams, func(other *delivery) bool { return other == d })
	ob.deliveries.forgetLater(d)
	ob.cfg.Log.Warn("stream was ended by the host", "session_id", d.session, "stream", id)
	ob.executing.call(func(e frame.Executor) { e.CloseStream(d.session, id) })
}

// resumeOutboxes continues after a [frame.Welcome]. If the connection is new (moved), it repeats
// the batches without an ack. If the generation is new (fresh), only the host knows the next index
// of each standalone stream.
func (ob *outboxes) resumeOutboxes(moved, fresh bool) {
	for _, id := range slices.Sorted(maps.Keys(ob.boxes)) {
		o := ob.boxes[id]
		if fresh {
			o.next = 0
		}
		switch {
		case o.unacked == nil:
			ob.flush(o)
		case moved:
			ob.sendBatch(o.unacked)
		}
	}
}

// unsent counts the events that the host does not have. A batch counts as one.
func (ob *outboxes) unsent() int {
	n := 0
	for _, o := range ob.boxes {
		n += len(o.common)
		for _, d := range o.streams {
			n += len(d.pending)
		}
		if o.unacked != nil {
			n++
		}
	}
	return n
}

func (ob *outboxes) forgetOutboxes(old time.Time) {
	maps.DeleteFunc(ob.boxes, func(_ storage.ID, o *outbox) bool {
		idle := o.size == 0 && o.unacked == nil && o.used.Before(old)
		if idle {
			// If the session sends events again, its batch numbers continue above all that it has
			// used.
			ob.seqs = max(ob.seqs, o.seq)
		}
		return idle
	})
}

func (ob *outboxes) status(f frame.Status) {
	f.Sender, f.Payload = ob.links.ofBox(), bytes.ToValidUTF8(f.Payload, []byte("\uFFFD"))
	data := frame.Encode(f)
	switch {
	case len(data) > frame.MaxJoined:
		ob.cfg.Log.Warn("report over the limit", "session_id", f.Session, "bytes", len(data), "limit", frame.MaxJoined)
	case len(data) > frame.MaxFrame:
		ob.transfers.transferKept(data)
	case len(f.Payload) > 0:
		ob.links.sendKept(data)
	case ob.links.linked():
		ob.links.live.send(outgoing{data: data})
	}
}
