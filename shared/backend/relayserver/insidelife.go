package relayserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// life is one generation of a box in this program, from when it is woken until its bye.
//
//	begun ─▶ saved and joined: open ─▶ leaving ─▶ over (bye)
//	   │                        │ ▲        │
//	   └──▶ over (failed)       │ └────────┘ the bye could not be written
//	                            └──▶ over (panic, killed)
//
// A request that takes long gets an item in state Taken, its trace. If the program dies, the sweep
// finds the item and ends the request.
type life struct {
	in     *Inside
	id     storage.BoxID
	name   string // random; the record's Runner, and the client token of the task
	gen    storage.Generation
	saved  chan struct{} // closed when the record says that the box is awake, or failed says why not
	failed error
	record storage.Box   // as begin has written it
	joined chan struct{} // closed when Joining is set
	frame.Joining
	over   chan struct{} // closed when the life has ended
	news   chan struct{} // capacity 1: filled to have Run find out whether the box may sleep
	worked atomic.Bool   // a message did more than list or initialize

	mu         sync.Mutex
	changed    sync.Cond              // signals a change of leaving, of refusing, or of an outbox
	open       bool                   // the Executor takes calls; until then they wait in queue
	queue      []func(frame.Executor) // calls that wait until the box is open, in order
	inFlight   map[storage.StreamID]*request
	claimed    map[storage.StreamID]claimed // what the box got from the inbox, by request
	outboxes   map[storage.ID]*outbox       // by session
	seq        int64                        // number of the last batch
	deliveries int
	haltedAt   int  // 1 more than deliveries was when all processes were last stopped; 0: never
	reports    int  // how many reports are being written to the store
	pulling    bool // a goroutine reads the inbox
	pullAgain  bool // the inbox must be read once more
	leaving    bool // the bye is being written
	refusing   bool // new messages wait for the next life
	closing    bool // the ctx of Run is done
	retiring   bool
}

// request is a client's request that the box has and that has not ended.
type request struct {
	to      storage.Address
	round   int           // how often the request was suspended before
	marked  bool          // the store may have the item
	traced  bool          // the store has the item
	trace   *time.Timer   // writes the item; nil if the request came with one
	last    storage.Index // index of the last event that was put into a batch
	pending [][]byte      // events that are in no batch yet
	asks    *frame.Suspension
	ended   bool // the box has sent the last event, or has suspended the request
}

// claimed is a delivery that was taken from the inbox. round is how often the delivery was
// suspended before.
type claimed struct {
	round int
	at    time.Time
}

// outbox has the events of a session that are not in the log yet.
type outbox struct {
	session  storage.ID
	ticket   string        // of the newest standalone event, or the newest delivery
	next     storage.Index // index of the next standalone event; 0: not known
	common   [][]byte      // standalone events
	streams  []*request    // requests with pending events, in the order of their first pending event
	size     int           // bytes in common and streams
	writing  bool          // a goroutine writes the events
	inFlight int
	used     time.Time
}

func newLife(in *Inside, id storage.BoxID, gen storage.Generation) *life {
	l := &life{
		in: in, id: id, gen: gen, name: string(storage.NewID()), saved: make(chan struct{}), joined: make(chan struct{}), over: make(chan struct{}),
		news: make(chan struct{}, 1), inFlight: map[storage.StreamID]*request{}, claimed: map[storage.StreamID]claimed{}, outboxes: map[storage.ID]*outbox{},
	}
	l.changed.L = &l.mu
	return l
}

// began records the result of begin, and wakes the goroutines that wait for the box.
func (l *life) began(err error) {
	if l.failed = err; err != nil {
		l.in.remove(l)
		l.mu.Lock()
		l.end()
		l.mu.Unlock()
	}
	close(l.saved)
}

// awaits waits until the box takes messages. left is true if the life has ended.
func (l *life) awaits(ctx context.Context) (left bool, err error) {
	select {
	case <-l.saved:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if l.failed != nil {
		return false, l.failed
	}
	defer context.AfterFunc(ctx, l.changed.Broadcast)()
	l.mu.Lock()
	defer l.mu.Unlock()
	for (l.leaving || l.refuses()) && !isOver(l.over) && ctx.Err() == nil {
		l.changed.Wait()
	}
	return isOver(l.over), ctx.Err()
}

// refuses reports whether new messages must wait for the next life. mu is held.
func (l *life) refuses() bool { return l.closing || l.refusing }

// end marks the life as over. mu is held.
func (l *life) end() {
	if !isOver(l.over) {
		close(l.over)
	}
	for _, d := range l.inFlight {
		d.stopTrace()
	}
	for _, o := range l.outboxes {
		l.hold(o, -o.size)
	}
	l.changed.Broadcast()
}

// do calls f with the Executor of the box: now, or when the box has opened. Calls keep their
// order.
func (l *life) do(f func(frame.Executor)) {
	l.mu.Lock()
	if !l.open {
		l.queue = append(l.queue, f)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	l.call(f)
}

// call calls f, which executes code of the box and may panic.
func (l *life) call(f func(frame.Executor)) {
	defer l.Guard.Catch()
	f(l.Executor)
}

// opens executes the calls that have waited for the start of the box. From then on, calls need not
// wait.
func (l *life) opens() {
	for {
		l.mu.Lock()
		waited := l.queue
		if l.queue = nil; len(waited) == 0 {
			l.open = true
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		for _, f := range waited {
			l.call(f)
		}
	}
}

// deliver gives the box a delivery. It returns false if the box takes no more deliveries.
func (l *life) deliver(to storage.Address, d frame.Deliver) bool {
	l.mu.Lock()
	if l.leaving || l.refuses() || isOver(l.over) {
		l.mu.Unlock()
		return false
	}
	d.Ticket = ticketOf(to)
	if d.AckWithin > 0 {
		o := &request{to: to, round: d.Round, marked: d.Inbox, traced: d.Inbox, last: d.Base}
		if l.inFlight[d.ID] == nil {
			l.outbox(d.Session).inFlight++
		}
		l.inFlight[d.ID] = o
		if !d.Inbox {
			o.trace = time.AfterFunc(time.Duration(d.AckWithin)*time.Millisecond, func() { l.traceLater(d.ID, o) })
		}
	}
	l.outbox(d.Session).ticket = d.Ticket
	l.deliveries++
	l.mu.Unlock()
	if !d.Looks {
		l.worked.Store(true)
	}
	l.do(func(e frame.Executor) { e.Deliver(d) })
	if h := l.in.host.Load(); to.Trace != "" {
		h.Observer.Tell(l.work("delivered", string(d.ID)), nil, &observe.Event{
			Kind: observe.Frame, Level: slog.LevelDebug, Type: string(frame.TypeDeliver), Box: l.id, Traces: []string{to.Trace},
			Account: storage.Account{Server: l.record.Server, Tenant: l.record.Tenant, Session: d.Session},
		})
	}
	return true
}

// take gives the box a delivery that comes as a frame: one from the inbox, or one without
// requests. Errors: Closed if the box does not take it.
func (l *life) take(f frame.Deliver) error {
	t, err := l.in.host.Load().Sealer.Open(f.Ticket)
	if err != nil || f.Gen != l.gen {
		return storage.Errorf(storage.Closed, "generation %d of the box is over", f.Gen)
	}
	if f.Inbox {
		l.mu.Lock()
		_, runs := l.inFlight[f.ID]
		done, was := l.claimed[f.ID]
		if runs || was && done.round >= f.Round {
			l.mu.Unlock()
			return nil
		}
		l.claimed[f.ID] = claimed{f.Round, time.Now()}
		l.mu.Unlock()
	}
	if !l.deliver(t.Address, f) {
		return storage.Errorf(storage.Closed, "the box is about to sleep")
	}
	return nil
}

// pullSoon starts a goroutine that delivers what waits in the inbox. If this goroutine runs
// already, it reads the inbox once more.
func (l *life) pullSoon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pullAgain = true; !l.pulling && l.open {
		l.pulling = true
		l.Guard.Go(l.pull)
	}
}

// pull delivers what waits in the inbox, and does so again if pullSoon was called meanwhile.
func (l *life) pull() {
	for {
		l.mu.Lock()
		if l.pulling = l.pullAgain && !isOver(l.over); !l.pulling {
			l.mu.Unlock()
			l.tell()
			return
		}
		l.pullAgain = false
		l.mu.Unlock()
		h := l.in.host.Load()
		if _, err := l.runner(h).pull(l.work("pull", ""), frame.Pull{Sender: l.sender()}); err != nil {
			h.Log.Warn("the inbox of a box cannot be read", "box", l.id, "error", err)
			l.mu.Lock()
			l.pullAgain = true
			l.mu.Unlock()
			l.rest(insideAgain)
		}
	}
}

// work returns the context for something that the box does by itself; see NewInside.
func (l *life) work(what, of string) context.Context {
	if l.in.context == nil {
		return context.Background()
	}
	return l.in.context(fmt.Sprintf("%s %d %s %s", l.id, l.gen, what, of))
}

// runner returns the box as the sender of frames.
func (l *life) runner(h *Handler) runner { return runner{h, l.sender(), l.record.Conn, &account{}} }

func (l *life) sender() frame.Sender {
	return frame.Sender{Box: l.id, Gen: l.gen, Runner: l.name}
}

// insideAgain is the pause after a failure of the store.
const insideAgain = time.Second

// rest waits for d, or until the life is over.
func (l *life) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.over:
	}
}

// stopTrace stops the timer that would write the item.
func (d *request) stopTrace() {
	if d.trace != nil {
		d.trace.Stop()
	}
}

// traceLater writes the item of a request that takes long. After a failure of the store the
// timer calls it again.
func (l *life) traceLater(id storage.StreamID, d *request) {
	if err := l.trace(l.work("trace", string(id)), d); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !isOver(l.over) && l.inFlight[id] == d {
			d.trace.Reset(insideAgain)
		}
	}
}

// trace writes an item for a request, if the request is in flight and has none. If the
// request ends during the write, trace deletes the item.
func (l *life) trace(ctx context.Context, d *request) error {
	h := l.in.host.Load()
	l.mu.Lock()
	if l.inFlight[d.to.Stream] != d || d.traced || isOver(l.over) {
		l.mu.Unlock()
		return nil
	}
	d.marked = true // from now on, whoever ends the request removes the item
	l.mu.Unlock()
	_, err := h.Store.PutItem(ctx, storage.Item{Box: l.id, ID: d.to.Stream, State: storage.Taken, Gen: l.gen, Address: d.to, Created: time.Now()})
	if err == nil {
		l.mu.Lock()
		gone := l.inFlight[d.to.Stream] != d && d.asks == nil
		d.traced = true
		l.mu.Unlock()
		if gone { // the request ended before the item was stored
			err = h.Store.DeleteItem(ctx, l.id, d.to.Stream, l.gen)
		}
	}
	return err
}

// maxInside is how many bytes of a session's events may wait for the store.
const maxInside = 4 << 20

// hold adds bytes, which may be negative, to the size of the outbox. mu is held.
func (l *life) hold(o *outbox, bytes int) {
	o.size += bytes
	if l.Hold != nil {
		l.Hold(bytes)
	}
}

// outbox returns the outbox of a session, and makes it if there is none. mu is held.
func (l *life) outbox(id storage.ID) *outbox {
	o := l.outboxes[id]
	if o == nil {
		o = &outbox{session: id}
		l.outboxes[id] = o
	}
	o.used = time.Now()
	return o
}

// Event implements frame.Link. While earlier events of the session are being written, e waits in the
// outbox. Otherwise Event writes the end of a request before it returns, and a goroutine writes any
// other event. A goroutine also writes an end while other requests are in flight, so that several
// writes share an fsync of the store.
func (l *life) Event(e frame.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isOver(l.over) {
		return
	}
	o, round := l.outbox(e.Session), 0
	if d := l.inFlight[e.Stream]; d != nil {
		round = d.round
	}
	fit, why := frame.Fit(e, round)
	if why != "" {
		l.in.host.Load().Log.Warn("event that cannot be sent as it is", "session_id", e.Session, "stream", e.Stream, "bytes", len(e.Raw), "reason", why)
	}
	for _, e := range fit {
		l.gather(o, e)
	}
	switch {
	case o.writing:
		for o.size > maxInside && !isOver(l.over) {
			l.changed.Wait()
		}
	case o.size == 0:
	case o.inFlight > 1 && o.onlyEnd():
		parts, size := l.parts(o)
		l.Guard.Go(func() {
			defer l.tell()
			l.send(o, string(e.Stream), parts, size)
		})
	case e.Final || e.Asks != nil:
		o.writing = true
		l.mu.Unlock()
		l.flush(o)
		l.mu.Lock()
	default:
		o.writing = true
		l.Guard.Go(func() { l.flush(o) })
	}
}

// onlyEnd reports whether the outbox has one event, which ends a request and is not pushed to
// a connection. Pushed events must be written in their order. The mu of the life is held.
func (o *outbox) onlyEnd() bool {
	return len(o.common) == 0 && len(o.streams) == 1 && o.streams[0].ended && len(o.streams[0].pending) == 1 && !o.streams[0].to.Pushed()
}

// gather puts an event into the outbox. mu is held.
func (l *life) gather(o *outbox, e frame.Event) {
	if e.Stream == storage.Standalone {
		if e.Ticket != "" {
			o.ticket = e.Ticket
		}
		o.common = append(o.common, e.Raw)
		l.hold(o, len(e.Raw))
		return
	}
	d := l.inFlight[e.Stream]
	if d == nil || d.ended || d.to.Session != e.Session {
		return // the host has closed the stream
	}
	if len(d.pending) == 0 {
		o.streams = append(o.streams, d)
	}
	d.pending = append(d.pending, e.Raw)
	l.hold(o, len(e.Raw))
	if e.Asks != nil {
		d.asks = e.Asks
	}
	d.ended = e.Final || e.Asks != nil
}

// flush writes the events of a session until there are none left.
func (l *life) flush(o *outbox) {
	defer l.tell()
	for {
		l.mu.Lock()
		parts, size := l.parts(o)
		if over := isOver(l.over); len(parts) == 0 || over {
			if o.writing = false; !over {
				l.hold(o, -size)
			}
			l.changed.Broadcast()
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.send(o, "", parts, size)
	}
}

// send writes the parts of a batch, and tries again until the store has them. size is the sum of
// their bytes. If other batches of the session may be written at the same time, stream is the batch's
// stream; otherwise it is "".
func (l *life) send(o *outbox, stream string, parts []streamPart, size int) {
	var ack frame.Ack
	for !isOver(l.over) {
		if ack = (frame.Ack{}); l.write(o.session, stream, parts, size, &ack) {
			break
		}
		l.rest(insideAgain)
	}
	l.written(o, parts, size, &ack)
}

// parts takes the next batch out of an outbox. size is the sum of the batch's bytes. The outbox
// counts these bytes until the batch is written. mu is held.
func (l *life) parts(o *outbox) (parts []streamPart, size int) {
	room := storage.MaxBatchEvents
	take := func(pending [][]byte) (now, rest [][]byte) {
		n := 0
		for n < len(pending) && n < room && (size == 0 || size+len(pending[n]) <= maxInside) {
			size += len(pending[n])
			n++
		}
		room -= n
		return slices.Clone(pending[:n]), pending[n:]
	}
	expires := time.Now().Add(l.in.host.Load().EventAge)
	part := func(a storage.Address, stream storage.StreamID, first storage.Index, events [][]byte) streamPart {
		return streamPart{Published: sessions.Published{To: a, Batch: storage.Batch{
			Session: o.session, Stream: stream, First: first, Gen: l.gen, Seq: l.seq + 1, Events: events, Expires: expires,
		}}}
	}
	if len(o.common) > 0 {
		var now [][]byte
		now, o.common = take(o.common)
		if a, ok := addressOf(o.ticket); ok {
			parts = append(parts, part(a, storage.Standalone, o.next, now))
		}
	}
	for len(o.streams) > 0 && room > 0 {
		d := o.streams[0]
		var now [][]byte
		if now, d.pending = take(d.pending); len(now) == 0 {
			break
		}
		p := part(d.to, d.to.Stream, d.last+1, now)
		p.of = d
		d.last += storage.Index(len(now))
		if over := d.ended && len(d.pending) == 0; over && d.asks == nil {
			p.Batch.Final = true
		} else if over {
			within := min(d.asks.Within, storage.MaxAsk)
			before := storage.Item{Box: l.id, ID: d.to.Stream, Gen: l.gen, Round: d.round, Address: d.to}
			it := before.Suspend(d.asks.Questions, d.asks.Raw, d.last, time.Now(), within)
			p.asks = &it
		}
		parts = append(parts, p)
		if len(d.pending) > 0 {
			break
		}
		o.streams = o.streams[1:]
	}
	if len(parts) > 0 {
		l.seq++
	}
	return parts, size
}

// ackSize is as long as the ack that a relay would send for each batch: the bill counts it.
var ackSize [80]byte

// write writes one batch of a session, as [runner.events] does. If done is false, the caller must
// call write again.
func (l *life) write(id storage.ID, stream string, parts []streamPart, size int, ack *frame.Ack) (done bool) {
	h := l.in.host.Load()
	a := &account{config: &h.Config, begun: time.Now(), conn: l.record.Conn, size: size, proven: true, session: id, inside: true}
	ctx := l.work("write", string(id)+stream)
	for i, p := range parts {
		a.trace(p.To.Trace)
		if p.of == nil {
			continue
		}
		if !p.Batch.Final && p.asks == nil {
			// The client may see these events, so the store must have the request's item before.
			if err := l.trace(ctx, p.of); err != nil {
				return false
			}
		}
		l.mu.Lock()
		parts[i].marked = p.of.marked
		l.mu.Unlock()
	}
	stored, err := h.publish(ctx, l.id, parts, ack, a)
	_ = a.end(ctx, frame.Events{Sender: l.sender()}, ackSize[:], err)
	return err == nil && stored || ack.Fenced
}

// written forgets the events of a batch that the store has, or has refused. It closes streams
// that an instance has ended meanwhile.
func (l *life) written(o *outbox, parts []streamPart, size int, ack *frame.Ack) {
	var closed []*request
	l.mu.Lock()
	if isOver(l.over) {
		l.mu.Unlock()
		return
	}
	l.hold(o, -size)
	l.changed.Broadcast()
	var late []*request
	for _, p := range parts {
		switch d := p.of; {
		case d == nil:
			o.next = ack.Next
		case slices.Contains(ack.Closed, d.to.Stream):
			closed = append(closed, d)
			for _, raw := range d.pending {
				l.hold(o, -len(raw))
			}
			d.pending = nil
			o.streams = slices.DeleteFunc(o.streams, func(other *request) bool { return other == d })
			l.forget(d)
		case p.Batch.Final || p.asks != nil:
			l.forget(d)
			if p.Batch.Final && d.marked && !p.marked {
				late = append(late, d)
			}
		}
	}
	if ack.Fenced {
		l.end()
	}
	l.mu.Unlock()
	for _, d := range late { // the item of d was stored after the end of d; if this deletion fails, the sweep removes the item
		_ = l.in.host.Load().Store.DeleteItem(l.work("late", string(d.to.Stream)), l.id, d.to.Stream, l.gen)
	}
	for _, d := range closed {
		l.in.host.Load().Log.Warn("stream was ended by the host", "session_id", d.to.Session, "stream", d.to.Stream)
		l.call(func(e frame.Executor) { e.CloseStream(d.to.Session, d.to.Stream) })
	}
}

// forget forgets a request whose end, or whose questions, the store has. mu is held.
func (l *life) forget(d *request) {
	d.stopTrace()
	if l.inFlight[d.to.Stream] == d { // false if d was suspended and has come again
		delete(l.inFlight, d.to.Stream)
		l.outbox(d.to.Session).inFlight--
	}
}

// Status implements frame.Link.
func (l *life) Status(s frame.Status) {
	l.mu.Lock()
	l.reports++
	l.mu.Unlock()
	l.Guard.Go(func() {
		l.report(s)
		l.mu.Lock()
		l.reports--
		l.mu.Unlock()
		l.tell()
	})
}

func (l *life) report(f frame.Status) {
	h := l.in.host.Load()
	f.Sender, f.Payload = l.sender(), bytes.ToValidUTF8(f.Payload, []byte("\uFFFD"))
	ctx, r := l.work("report "+f.Lists, string(f.Session)), l.runner(h)
	var err error
	if len(f.Payload) == 0 {
		err = r.status(ctx, f)
	} else if a, ok := addressOf(f.Ticket); ok && !r.kept(ctx, a, f) {
		err = r.reported(ctx, f, Ticket{Address: a, Gen: l.gen})
	}
	if err != nil {
		h.Log.Warn("what a box reports is not kept", "box", l.id, "session_id", f.Session, "error", err)
	}
}

// kept reports whether f has only a handshake, and the store got the same one within the last day.
func (r runner) kept(ctx context.Context, a storage.Address, f frame.Status) bool {
	if f.Lists != "" || f.Era != "" {
		return false
	}
	was, err := r.h.Store.Handshake(ctx, a.Digest, f.Detail)
	return err == nil && bytes.Equal(was.Result, f.Payload) && time.Since(was.Taken) < storage.HandshakeLife/30
}

// Snapshot implements frame.Link.
func (l *life) Snapshot(ctx context.Context, f frame.Snapshot) (frame.Kept, error) {
	f.Sender = l.sender()
	for {
		reply, err := l.runner(l.in.host.Load()).snapshot(ctx, f)
		if kept, ok := reply.(frame.Kept); ok && err == nil {
			if kept.Refused != "" {
				return frame.Kept{}, storage.Errorf(kept.Refused, "the host refuses %q about a snapshot", f.Op)
			}
			return kept, nil
		}
		l.rest(insideAgain)
		if ctx.Err() != nil || isOver(l.over) {
			return frame.Kept{}, storage.Errorf(storage.Unavailable, "the host does not answer about a snapshot").Because(err)
		}
	}
}

// tell makes Run find out whether the box may sleep.
func (l *life) tell() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// hurry lets the box sleep without its idle time, as soon as it has nothing to do. The next delivery
// ends that.
func (l *life) hurry() {
	l.mu.Lock()
	l.haltedAt = l.deliveries + 1
	l.mu.Unlock()
	l.tell()
}

// retire makes the box end as soon as it has nothing in flight. During frame.RefuseFor, the box
// takes no message.
func (l *life) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retiring || l.closing || l.Joining.Retire == nil {
		return
	}
	l.in.host.Load().Log.Info("retiring: the server is configured differently by now", "box", l.id, "generation", l.gen, "in_flight", len(l.inFlight))
	l.retiring, l.refusing = true, true
	time.AfterFunc(frame.RefuseFor, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.refusing = l.closing
		l.changed.Broadcast()
	})
	l.tell()
}

var errInsideOver = errors.New("the box has ended without a bye")

// insideLinger is how long Run goes on after the bye, so that the box ends its idle processes
// itself.
const insideLinger = 200 * time.Millisecond

// Run implements frame.Link. It returns nil when the record says that the box is asleep.
func (l *life) Run(ctx context.Context) error {
	select {
	case <-l.saved:
	case <-ctx.Done():
	}
	if l.failed != nil {
		return l.failed
	}
	l.opens()
	l.pullSoon()
	look := time.NewTimer(l.Idle)
	defer look.Stop()
	closing, flush := ctx.Done(), make(<-chan time.Time)
	for {
		select {
		case <-l.Guard.Panicked():
			return errInsideOver
		case <-l.over:
			return errInsideOver
		case <-closing:
			closing, flush = nil, time.After(l.Flush)
			l.mu.Lock()
			l.closing = true
			l.mu.Unlock()
		case <-flush:
			return fmt.Errorf("box %s was stopped with requests in flight: %w", l.id, context.Cause(ctx))
		case <-l.news:
		case <-look.C:
		}
		again := l.mayLeave()
		if again == 0 {
			select {
			case <-time.After(insideLinger):
			case <-ctx.Done():
			}
			return nil
		}
		look.Reset(again)
	}
}

// claimedFor is how long a life remembers what it has claimed from the inbox. It must be longer
// than the constant validity.
const claimedFor = 15 * time.Minute

// mayLeave puts the box to sleep if it has nothing to do. It returns the time after which to
// call mayLeave again, or 0 if the box is asleep.
func (l *life) mayLeave() (again time.Duration) {
	l.mu.Lock()
	before := l.deliveries
	l.mu.Unlock()
	since, still := l.Executor.IdleSince()
	left := l.Idle - time.Since(since)
	l.mu.Lock()
	l.clean(time.Now().Add(-claimedFor))
	quiet := len(l.inFlight) == 0 && !l.pulling && l.reports == 0
	for _, o := range l.outboxes {
		quiet = quiet && !o.writing
	}
	if l.retiring && quiet && !l.closing {
		l.refusing = true
		l.mu.Unlock()
		l.Joining.Retire()
		return l.Idle
	}
	hasty := l.haltedAt == l.deliveries+1
	switch {
	case !quiet || !still || before != l.deliveries:
		again = min(l.Idle/4, frame.MostUnasked)
	case left > 0 && !hasty && !l.closing:
		again = left
	default:
		l.leaving = true
		l.mu.Unlock()
		if l.bye(max(time.Since(since), 0)) == nil {
			return 0
		}
		l.mu.Lock()
		l.leaving = false
		l.changed.Broadcast()
		again = insideAgain
	}
	if hasty {
		again = min(again, frame.UnaskedHasty)
	}
	if l.closing {
		again = frame.UnaskedClosing
	}
	l.mu.Unlock()
	return again
}

// clean forgets outboxes and claims that were last used before the given time. mu is held.
func (l *life) clean(old time.Time) {
	for id, o := range l.outboxes {
		if !o.writing && o.size == 0 && o.inFlight == 0 && o.used.Before(old) {
			delete(l.outboxes, id)
		}
	}
	for id, c := range l.claimed {
		if c.at.Before(old) && l.inFlight[id] == nil {
			delete(l.claimed, id)
		}
	}
}

// bye writes into the record that the box is asleep. idle is how long the box had nothing to do
// before.
func (l *life) bye(idle time.Duration) error {
	h := l.in.host.Load()
	_, err := l.runner(h).bye(l.work("bye", ""), frame.Bye{Sender: l.sender(), Looks: !l.worked.Load(), Idle: idle.Milliseconds()})
	if err != nil {
		h.Log.Warn("a box cannot sleep: its record is not written", "box", l.id, "error", err)
		return err
	}
	h.Log.Info("asleep", "box", l.id, "generation", l.gen)
	l.mu.Lock()
	l.end()
	l.mu.Unlock()
	l.in.remove(l)
	return nil
}
