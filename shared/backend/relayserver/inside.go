package relayserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Inside has the boxes that run in this program, and end with it. They get messages, and write
// events into the log, by function calls in place of frames. The record of such a box is like that
// of any other box. If the program dies, the next sweep finds the record and ends the requests that
// the box had.
//
// An Inside is safe for concurrent use. A program has one for its life.
type Inside struct {
	host    atomic.Pointer[Handler]
	context func(work string) context.Context // returns the context for work that no caller waits for

	mu    sync.Mutex
	lives map[storage.BoxID]*life // boxes that take messages, or are about to sleep
	lost  map[string]*life        // by life.name: boxes that ended with requests in flight, until settle has ended the requests
}

// NewInside returns an Inside without boxes. The function work returns the context for work that no
// caller waits for; name describes that work. If work is nil, the contexts never end.
func NewInside(work func(name string) context.Context) *Inside {
	return &Inside{context: work, lives: map[storage.BoxID]*life{}, lost: map[string]*life{}}
}

// Serve makes the boxes write through h from now on. Call it before the first message, and
// again with each new configuration.
func (in *Inside) Serve(h *Handler) { in.host.Store(h) }

// Bill counts what AWS would bill for messages that reach boxes without the relay.
type Bill interface {
	Woke()            // a box was woken
	Posted(bytes int) // a message was handed to a box
}

// insideConn begins the Conn in the record of a box in this program. The id of the box follows.
const insideConn = "inside:"

// InsideConn returns what records and events have in place of a connection, if the box is in
// this program.
func InsideConn(box storage.BoxID) string { return insideConn + string(box) }

// startFailed is the error of a box in this program that could not be started.
type startFailed struct{ why storage.Failure }

func (f *startFailed) Error() string { return f.why.Detail }

// insideLife returns the life of a box that runs in this program, when the box takes messages. If the
// box is asleep and its server is to run here, insideLife first wakes it. The result is nil for any
// other box. The argument b is the record that the caller read last.
//
// Errors: *startFailed, after which the box is asleep; Unavailable; the error of ctx.
func (x *boxes) insideLife(ctx context.Context, b storage.Box) (*life, error) {
	if x.Inside == nil {
		return nil, nil
	}
	_, server := b.ID.Parts()
	for {
		wakes := x.IsInside(server) && (b.State == storage.Asleep || b.Conn == InsideConn(b.ID))
		l, first := x.Inside.life(b, wakes)
		if l == nil {
			return nil, nil
		}
		if first {
			l.began(x.begin(context.WithoutCancel(ctx), l, b))
		}
		left, err := l.awaits(ctx)
		if err == nil && !left {
			return l, nil
		}
		if err != nil && !errors.Is(err, storage.Conflict) {
			return nil, err
		}
		if b, err = x.Store.Box(ctx, b.ID); err != nil {
			return nil, err
		}
	}
}

// If the box runs in this program, the result is its present record, else b.
func (x *boxes) now(b storage.Box) storage.Box {
	if x.Inside != nil {
		if l := x.Inside.find(b.ID); l != nil && isOver(l.saved) && l.failed == nil {
			return l.record
		}
	}
	return b
}

// The method life returns the life of a box, nil if there is none. If wakes is set, it makes a
// missing life. If first is true, it has made the life, and the caller must call begin.
func (in *Inside) life(b storage.Box, wakes bool) (l *life, first bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if l = in.lives[b.ID]; l == nil && wakes {
		l, first = newLife(in, b.ID, b.Gen+1), true
		in.lives[b.ID] = l
	}
	return l, first
}

func (in *Inside) find(id storage.BoxID) *life {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.lives[id]
}

// remove forgets a life that is over, so that the box can have another.
func (in *Inside) remove(l *life) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.lives[l.id] == l {
		delete(in.lives, l.id)
	}
}

// begin starts a box and writes into its record that it is awake. The box executes nothing before
// that write. If the record b says that the box is awake already, the program that wrote b has ended.
// begin returns Conflict if another program has woken the box since b was read.
func (x *boxes) begin(ctx context.Context, l *life, b storage.Box) error {
	task := ""
	for {
		if b.Gen != l.gen-1 || b.State == storage.Starting {
			return storage.Errorf(storage.Conflict, "the box was woken since its record was read")
		}
		if b.State == storage.Awake {
			b = lose(b, stopFailure(fleet.Status{}, false), time.Now())
		}
		b, _ = x.lease(b, "", false)
		b.State, b.Conn, b.Runner = storage.Awake, InsideConn(b.ID), l.name
		b.Owner, b.TokenHash, b.Until, b.Attempt, b.Place, b.Began = "", "", time.Time{}, 0, fleet.Inside, b.Changed
		if task == "" {
			env, err := x.launch(b)
			if err == nil {
				env[frame.EnvBox], env[frame.EnvGeneration], env[frame.EnvToken] = string(b.ID), strconv.FormatInt(int64(b.Gen), 10), l.name
				task, err = x.Fleet.Run(ctx, fleet.Task{ClientToken: l.name, Box: string(b.ID), Server: b.Server, Place: fleet.Inside, Env: env})
			}
			if err != nil {
				x.Log.WarnContext(ctx, "box start failed", "box", b.ID, "generation", b.Gen, "error", err)
				why := startFailure(err)
				why.Unsent = true
				return &startFailed{why}
			}
		}
		b.Task = task
		err := x.Store.SaveBox(ctx, b)
		if err == nil {
			b.Rev++
			l.record = b
			if x.Bill != nil {
				x.Bill.Woke()
			}
			return nil
		}
		if !errors.Is(err, storage.Conflict) {
			return err
		}
		if b, err = x.Store.Box(ctx, b.ID); err != nil {
			return err
		}
	}
}

// deliverInside hands a request to its box, if the box runs in this program or starts in it now. ok
// is false for any other box.
func (x *boxes) deliverInside(ctx context.Context, d sessions.Delivery, b storage.Box) (gen storage.Generation, ok bool, err error) {
	for {
		l, err := x.insideLife(ctx, b)
		if err != nil || l == nil {
			return 0, false, err
		}
		if l.deliver(d.Address, unsealed(d, l.record)) {
			if x.Bill != nil {
				x.Bill.Posted(len(d.Raw))
			}
			return l.gen, true, nil
		}
		if b, err = x.Store.Box(ctx, b.ID); err != nil { // the life has just ended, so read the record again
			return 0, false, err
		}
	}
}

// post gives a frame to a box in this program. Errors: Closed if the box does not run.
func (in *Inside) post(id storage.BoxID, f frame.Frame) error {
	l := in.find(id)
	if l == nil {
		return storage.Errorf(storage.Closed, "the box does not run any more")
	}
	switch f := f.(type) {
	case frame.Deliver:
		return l.take(f)
	case frame.Answer:
		l.worked.Store(true)
		l.do(func(e frame.Executor) { e.Answer(f.Session, f.Question, f.Payload) })
	case frame.Stop:
		l.do(func(e frame.Executor) { e.StopSession(f.Session) })
	case frame.Halt:
		l.do(func(e frame.Executor) { e.Halt(f) })
		if f.Session == "" {
			l.hurry()
		}
	case frame.Nudge:
		l.pullSoon()
	default:
		// The other frames are only for runners that have a connection.
	}
	return nil
}

// Retire ends each box whose server has another definition by now, as soon as the box has
// nothing in flight.
func (in *Inside) Retire() {
	h := in.host.Load()
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, l := range in.lives {
		if isOver(l.joined) && h.outdated(l.record.Server, l.Digest) {
			l.retire()
		}
	}
}

// Join gives a box that has started in this program its Link. Errors: NotFound if the host has
// given up that start.
func (in *Inside) Join(j frame.Joining) (frame.Link, error) {
	l := in.find(j.Box)
	if l == nil || l.name != j.Token {
		return nil, storage.Errorf(storage.NotFound, "this start of box %s is over", j.Box)
	}
	l.Joining = j
	l.Idle = cmp.Or(j.Idle, insideIdle)
	close(l.joined)
	return l, nil
}

// insideIdle is how long a box stays awake without work if its [frame.Joining] has no Idle.
const insideIdle = 2 * time.Minute

// Left records that nothing of a box runs any more. If the box has not said bye,
// [Sweeper.Stopped] ends its requests in flight. env is the environment of its task.
func (in *Inside) Left(env map[string]string) {
	id := storage.BoxID(env[frame.EnvBox])
	l := in.find(id)
	if l == nil || l.name != env[frame.EnvToken] {
		return
	}
	l.mu.Lock()
	l.end()
	lost := len(l.inFlight) > 0
	l.mu.Unlock()
	if lost {
		in.mu.Lock()
		in.lost[l.name] = l
		in.mu.Unlock()
	}
	in.remove(l)
}

// runs reports whether a task is a box of this program, even if the record of the box is not
// written yet.
func (in *Inside) runs(t fleet.Status) bool {
	if in == nil {
		return false
	}
	l := in.find(storage.BoxID(t.Box))
	return l != nil && l.name == t.ClientToken
}

// settle ends the requests in flight of a box whose task t has ended without a bye.
func (in *Inside) settle(ctx context.Context, x *boxes, t fleet.Status) error {
	if in == nil {
		return nil
	}
	in.mu.Lock()
	l := in.lost[t.ClientToken]
	delete(in.lost, t.ClientToken)
	in.mu.Unlock()
	if l == nil {
		return nil
	}
	l.mu.Lock()
	opened, left := l.open, slices.Collect(maps.Values(l.inFlight))
	l.mu.Unlock()
	why := stopFailure(t, !opened)
	why.Unsent = !opened
	var errs []error
	for _, d := range left {
		errs = append(errs, x.end(ctx, d.to, why))
	}
	return errors.Join(errs...)
}

// keepsTrace reports whether a request is in flight in a box. It writes the item of a request
// in flight, unless the store has the item.
func (in *Inside) keepsTrace(ctx context.Context, id storage.BoxID, gen storage.Generation, stream storage.StreamID) (bool, error) {
	l := in.find(id)
	if l == nil || l.gen != gen {
		return false, nil
	}
	l.mu.Lock()
	d := l.inFlight[stream]
	l.mu.Unlock()
	if d == nil {
		return false, nil
	}
	return true, l.trace(ctx, d)
}

// moved reports whether the server's lists may have changed since the session's last request: d
// says so, or the box runs other code than the session has seen.
func moved(d sessions.Delivery, b storage.Box) bool {
	return d.Moved || len(d.Requests) > 0 && b.Code != "" && d.Client.Digest != b.Code
}

// isOver reports whether a channel is closed.
func isOver(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// addressOf reads a ticket that this program has made.
func addressOf(ticket string) (a storage.Address, ok bool) {
	return a, json.Unmarshal([]byte(ticket), &a) == nil
}

// ticketOf returns a ticket of a box in this program. No other program sees it.
func ticketOf(a storage.Address) string {
	text, err := json.Marshal(a)
	if err != nil { // an Address holds only strings and valid raw ids, so this cannot fail
		panic("relay: an address that cannot be encoded: " + err.Error())
	}
	return string(text)
}
