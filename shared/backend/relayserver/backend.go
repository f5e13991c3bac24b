package relayserver

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"log/slog"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Backend delivers clients' messages to boxes. It is safe for concurrent use.
type Backend struct{ *boxes }

// NewBackend returns a Backend. It does not check c.
func NewBackend(c Config) *Backend { return &Backend{newBoxes(c)} }

const (
	// A request that has not ended after ackWithin must have an item in the store. For an instance
	// that waits only until the request is accepted, this time is ackWithinBrief.
	ackWithin      = time.Second
	ackWithinBrief = 200 * time.Millisecond
	// lookForBye is the time until the next Check of a request that its box has given back,
	// because the box is about to sleep. lookAfter is that time for a request that a box executes.
	lookForBye = 2 * time.Second
	lookAfter  = 10 * time.Second
)

// Deliver implements sessions.Backend. It posts a request to an awake box. If the box is not
// awake, Deliver puts the request into the inbox and wakes the box. A message without requests
// never goes to the inbox. Deliver wakes the box for it if d.Wakes is set. If d.Wakes is not
// set and the box is not awake, Deliver drops the message.
//
// Errors: TooLarge for a message of more than frame.MaxMessage bytes, Busy when a quota
// is used up, Unavailable.
func (k *Backend) Deliver(ctx context.Context, d sessions.Delivery, box storage.Box) (sessions.Tracker, error) {
	if len(d.Raw) > frame.MaxMessage {
		return nil, storage.Errorf(storage.TooLarge, "the message has %d bytes; the relay carries up to %d", len(d.Raw), frame.MaxMessage)
	}
	box = k.now(box)
	if len(d.Requests) == 0 {
		// Post last: after an error the client sends the message again, and the box must not
		// get it twice.
		if err := k.cancelled(ctx, d); err != nil {
			return nil, err
		}
		if d.Wakes {
			return nil, k.deliverAwake(ctx, d, box)
		}
		if box.State == storage.Awake {
			k.postOnce(ctx, box.Conn, d.Session, k.deliverFrame(d, box, time.Now().Add(validity), false))
		}
		return nil, nil
	}
	if err := k.admit(ctx, d, box); err != nil {
		return nil, err
	}
	level := slog.LevelInfo
	if box.State == storage.Awake && d.Again {
		level = slog.LevelDebug // the observer knows the caller, and no process may start
	}
	k.announce(ctx, d, level)
	t := &tracker{k: k, d: d, notAfter: time.Now().Add(validity)}
	if err := t.send(ctx, box); err != nil {
		if !t.handed {
			return nil, err
		}
		k.Log.WarnContext(ctx, "request not sent on its way, and tried again", "session_id", d.Session, "error", err)
	}
	return t, nil
}

// deliverAwake waits up to awakeWithin for the box, and looks at it every awakeAgain.
const (
	awakeWithin = 20 * time.Second
	awakeAgain  = 100 * time.Millisecond
)

// deliverAwake wakes a box and posts a message without requests to it. Errors: Busy when a quota
// is used up; Unavailable if the box does not take messages in time.
func (k *Backend) deliverAwake(ctx context.Context, d sessions.Delivery, box storage.Box) error {
	if err := k.admit(ctx, d, box); err != nil {
		return err
	}
	if box.State != storage.Awake {
		k.announce(ctx, d, slog.LevelInfo)
	}
	for until := time.Now().Add(awakeWithin); ; {
		b, err := k.rouse(ctx, d.Box)
		if err != nil {
			return err
		}
		if b.State == storage.Awake {
			err = k.post(ctx, b.Conn, k.deliverFrame(d, b, time.Now().Add(validity), false))
			if !errors.Is(err, storage.Closed) {
				return err
			}
		}
		if b.State == storage.Asleep || time.Now().After(until) {
			return storage.Errorf(storage.Unavailable, "the process that asked sleeps, and its box could not be woken in time; send the answer again")
		}
		if err := storage.Rest(ctx, awakeAgain); err != nil {
			return err
		}
	}
}

// announce tells the observer that a message is sent, and for whom.
func (k *Backend) announce(ctx context.Context, d sessions.Delivery, level slog.Level) {
	tool := ""
	if len(d.Tools) > 0 {
		tool = wire.Clip(d.Tools[0])
	}
	k.Observer.Tell(ctx, nil, &observe.Event{
		Kind: observe.Work, Level: level, Client: wire.ClientName(d.Client.Init), Trace: d.Trace, Tool: tool,
		Account: storage.Account{Tenant: d.Client.Tenant, Principal: d.Client.Principal, Server: d.Server, Session: d.Session},
	})
}

// postOnce tries once to post a frame that need not arrive.
func (k *Backend) postOnce(ctx context.Context, conn string, of storage.ID, f frame.Frame) {
	if err := k.post(ctx, conn, f); err != nil && !errors.Is(err, storage.Closed) {
		k.Log.WarnContext(ctx, "post to a box failed", "type", frame.Kind(f), "session_id", of, "error", err)
	}
}

// deliverFrame returns the deliver frame of d for the generation of b. The argument inbox
// says that d was claimed from the inbox.
func (x *boxes) deliverFrame(d sessions.Delivery, b storage.Box, notAfter time.Time, inbox bool) frame.Deliver {
	f := unsealed(d, b)
	f.Ticket, f.Lens = x.Sealer.Seal(d.Address, b.Gen), []int{len(f.Init), len(f.Raw)}
	f.Sent, f.NotAfter, f.Inbox = time.Now().UnixMilli(), notAfter.UnixMilli(), inbox
	return f
}

// unsealed returns the part of a deliver frame that a box of this program needs, too.
func unsealed(d sessions.Delivery, b storage.Box) frame.Deliver {
	f := frame.Deliver{
		ID: d.Stream, Gen: b.Gen, Session: d.Session, Principal: principalHash(d), Level: d.Client.Level, Subscribed: d.Client.Subscribed,
		Again: d.Again, Moved: moved(d, b), Held: d.Held, Looks: d.Looks(), Trace: d.Trace, Secrets: d.Secrets, Init: d.Client.Init, Raw: d.Raw,
	}
	if len(d.Requests) > 0 {
		f.AckWithin = ackTime(d).Milliseconds()
	}
	return f
}

// ackTime returns after which time a request that has not ended must have an item.
func ackTime(d sessions.Delivery) time.Duration {
	if d.Brief || d.Client.Transport == storage.WebSocket {
		return ackWithinBrief
	}
	return ackWithin
}

// principalHash is what a box gets in place of the principal of a delivery. The hash is the same
// for all deliveries of one principal to the box, and does not reveal the principal.
func principalHash(d sessions.Delivery) string {
	sum := sha256.Sum256([]byte(string(d.Box) + "\x00" + d.Client.Principal))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// Track implements sessions.Backend.
func (k *Backend) Track(ctx context.Context, s storage.Session, stream storage.StreamID) (sessions.Tracker, error) {
	it, err := k.Store.Item(ctx, s.Box(), stream)
	if err != nil {
		return nil, err
	}
	if it.Address.Session != s.ID {
		return nil, storage.Errorf(storage.NotFound, "the stream is not one of this session")
	}
	return &tracker{
		k: k, d: sessions.Delivery{Address: it.Address, Client: s, Server: s.Server},
		notAfter: it.NotAfter, stored: true, bound: it.Gen, accepted: true,
	}, nil
}

// Answer implements sessions.Backend.
func (k *Backend) Answer(ctx context.Context, a storage.Answer, box storage.Box) error {
	if _, _, ok := storage.Suspends(a.Question); ok {
		return k.answered(ctx, a.Session, box.ID, a.Question)
	}
	if box = k.now(box); box.State == storage.Awake {
		k.postOnce(ctx, box.Conn, a.Session, answerFrame(a))
	}
	return nil
}

func answerFrame(a storage.Answer) frame.Answer {
	return frame.Answer{Session: a.Session, Question: a.Question, Payload: a.Raw}
}

// End implements sessions.Backend.
func (k *Backend) End(ctx context.Context, s storage.Session, box storage.Box) error {
	if box = k.now(box); box.State == storage.Awake {
		k.postOnce(ctx, box.Conn, s.ID, frame.Stop{Session: s.ID})
	}
	if err := k.leave(ctx, s, box); err != nil {
		k.Log.WarnContext(ctx, "the snapshot of an ended session stays until its age removes it", "session_id", s.ID, "error", err)
	}
	if !mayBeAsked(s) {
		return nil
	}
	return k.eachAsking(ctx, storage.Address{Session: s.ID, Box: box.ID}, func(it storage.Item) error {
		return k.endItem(ctx, it, sessionEnded())
	})
}

// tracker follows one request to its end. Only the instance that made the tracker uses it. If
// bound is 0 and stored is false, only the memory of the instance has the request.
type tracker struct {
	k        *Backend
	d        sessions.Delivery
	notAfter time.Time          // no box executes the request after this time
	posted   time.Time          // the time of the last post
	inside   bool               // a box of this program has the request
	bound    storage.Generation // the request was posted to this generation; no other may get it until this one has ended cleanly
	trying   bool               // the instance has tried a PutItem; the item may appear late
	stored   bool               // the store has, or had, an item of the request
	handed   bool               // the request was posted, or may be in the inbox
	returned bool               // the box has put the request into the inbox, because it will soon be asleep
	accepted bool               // the client may be told that the request is accepted
	tries    int                // number of resends, for the back-off
}

// send posts the request if the box is awake, and otherwise puts the request into the inbox.
// The argument box is the record just read. After a failed try to write the item, send never
// posts: the item may appear late, and two runners would execute the request.
func (t *tracker) send(ctx context.Context, box storage.Box) error {
	if !t.stored && !t.trying {
		box.ID = t.d.Box
		gen, ok, err := t.k.deliverInside(ctx, t.d, box)
		var failed *startFailed
		switch {
		case errors.As(err, &failed):
			return t.k.end(ctx, t.d.Address, failed.why)
		case err != nil:
			return err
		case ok:
			t.inside, t.bound, t.handed, t.posted = true, gen, true, time.Now()
			return nil
		}
	}
	if box.State != storage.Awake || t.stored || t.trying {
		return t.enqueue(ctx)
	}
	err := t.k.post(ctx, box.Conn, t.k.deliverFrame(t.d, box, t.notAfter, false))
	if errors.Is(err, storage.Closed) {
		return t.moved(ctx, box)
	}
	// After any other error the post may have arrived.
	t.bound, t.handed, t.posted = box.Gen, true, time.Now()
	return nil
}

// moved handles a post that certainly did not arrive. seen is the record whose connection is
// closed. If the box has another connection by now or sleeps, moved sends the request again at
// once. If not, the next Check tries again.
func (t *tracker) moved(ctx context.Context, seen storage.Box) error {
	b, err := t.k.Store.Box(ctx, t.d.Box)
	if err != nil {
		return err
	}
	if b.State == storage.Awake && b.Conn == seen.Conn {
		lost, err := t.k.missed(ctx, b)
		if err != nil || !lost {
			return err
		}
		return t.moved(ctx, seen) // the record now says that the box is asleep
	}
	if t.bound != 0 {
		return nil // an earlier post may have arrived; Check finds that out before it posts again
	}
	return t.send(ctx, b)
}

// enqueue puts the request into the inbox and then reads the record, in this order. An instance
// that wakes the box at the same time, or a runner that goes to sleep, either sees the item or
// has changed the record before enqueue reads it.
func (t *tracker) enqueue(ctx context.Context) error {
	_, err := t.k.Store.PutItem(ctx, storage.Item{
		Box: t.d.Box, ID: t.d.Stream, State: storage.Waiting, Address: t.d.Address, Raw: t.d.Raw,
		NotAfter: t.notAfter, Created: time.Now(),
	})
	t.trying = true
	t.handed = t.handed || err == nil || !errors.Is(err, storage.TooLarge) && !errors.Is(err, storage.Invalid)
	if err != nil {
		return err
	}
	t.stored = true
	return t.look(ctx)
}

// look makes sure that a runner will get the waiting item. It wakes a box that is asleep,
// repeats or gives up a start that is overdue, and nudges a runner that is awake. If the
// runner's connection is closed, look finds out whether the box is lost.
func (t *tracker) look(ctx context.Context) error {
	b, err := t.k.rouse(ctx, t.d.Box)
	if err != nil {
		return err
	}
	switch b.State {
	case storage.Starting:
		if t.k.overdue(b) {
			return t.k.doDue(ctx, t.d.Box)
		}
		t.accepted = true
	case storage.Awake:
		err := t.k.post(ctx, b.Conn, frame.Nudge{})
		if errors.Is(err, storage.Closed) {
			lost, err := t.k.missed(ctx, b)
			if err != nil || !lost {
				return err
			}
			return t.look(ctx) // the record now says that the box is asleep
		}
		if err != nil {
			t.k.Log.WarnContext(ctx, "post to a box failed", "type", frame.TypeNudge, "session_id", t.d.Session, "error", err)
		}
	case storage.Asleep: // another instance has given the start up and ended the request
	}
	return nil
}

// Check implements sessions.Tracker.
func (t *tracker) Check(ctx context.Context) (sessions.Status, error) {
	if err := t.step(ctx); err != nil {
		return sessions.Status{}, err
	}
	return sessions.Status{Accepted: t.accepted, Next: time.Now().Add(t.pause())}, nil
}

// pause is the time until the next Check. The pause is short while only the memory of the
// instance has the request, and long once the request was accepted.
func (t *tracker) pause() time.Duration {
	if t.returned {
		return lookForBye
	}
	if t.accepted {
		return lookAfter
	}
	if t.bound == 0 && !t.stored {
		return min(50*time.Millisecond<<min(t.tries, 6), time.Second)
	}
	return min(time.Second<<min(t.tries, 3), 8*time.Second)
}

// step finds out where the request is, and does what is due for it.
func (t *tracker) step(ctx context.Context) error {
	if t.inside {
		inFlight, err := t.k.Inside.keepsTrace(ctx, t.d.Box, t.bound, t.d.Stream)
		if err != nil || inFlight {
			t.accepted = err == nil
			return err
		}
		// The request has ended or was suspended, and the store says which. Do not send it again.
		t.inside, t.stored = false, true
	}
	it, err := t.k.Store.Item(ctx, t.d.Box, t.d.Stream)
	switch {
	case err == nil:
		return t.haveItem(ctx, it)
	case !errors.Is(err, storage.NotFound):
		return err
	}
	// Read the record before the log. If the record says that a generation is over, the log has
	// all events of that generation.
	b, err := t.k.Store.Box(ctx, t.d.Box)
	if err != nil {
		return err
	}
	t.tries++
	switch {
	case t.stored || t.bound != 0 && b.Over(t.bound):
		return t.withoutItem(ctx, b)
	case time.Now().After(t.notAfter) && t.bound != 0:
		return t.GiveUp(ctx)
	case time.Now().After(t.notAfter):
		return t.k.end(ctx, t.d.Address, expired)
	default:
		return t.send(ctx, b)
	}
}

// Handed implements sessions.Handover.
func (t *tracker) Handed() bool { return t.handed }

// GiveUp implements sessions.Handover. It first writes an item for which [runner.ask] forbids every
// runner to execute the request. The error that ends the request says that the outcome is unknown,
// or, if the request was in the inbox, that it was not executed.
func (t *tracker) GiveUp(ctx context.Context) error {
	it := storage.Item{Box: t.d.Box, ID: t.d.Stream, State: storage.Taken, Address: t.d.Address, Created: time.Now()}
	put, err := t.k.Store.PutItem(ctx, it)
	if err != nil {
		return err
	}
	if put {
		// After this time, a runner that gets the last post asks before it executes the request.
		if err := storage.Rest(ctx, time.Until(t.posted.Add(2*frame.LateAfter))); err != nil {
			return err
		}
		return t.k.endItemWith(ctx, it, outcomeUnknown(t.d.Box))
	}
	it, err = t.k.Store.Item(ctx, t.d.Box, t.d.Stream)
	if errors.Is(err, storage.NotFound) {
		return nil // the request has just ended
	}
	if err != nil || it.State != storage.Waiting {
		return err
	}
	return t.k.endItem(ctx, it, advised(storage.Failure{Phase: phaseUnavailable}, "the box does not take the request", sendAgain))
}

// haveItem does what is due for a request that has an item. A taken item shows that a box has
// the request, unless the generation of the item is over.
func (t *tracker) haveItem(ctx context.Context, it storage.Item) error {
	t.stored = true
	switch it.State {
	case storage.Taken, storage.Leftover: // a leftover item belongs to no request
	case storage.Suspended:
		t.bound, t.accepted = 0, true
		if time.Now().After(it.NotAfter) {
			return t.k.endItem(ctx, it, unanswered(it))
		}
		return nil // the call waits for its client, and its box may sleep
	case storage.Waiting:
		t.tries++
		if time.Now().After(it.NotAfter) {
			return t.k.endItem(ctx, it, expired)
		}
		if !t.posted.IsZero() && !t.trying {
			// The box has put the request into the inbox, and Check must wake the box again. A
			// Brief or WebSocket caller checks only until the request is accepted, so for it
			// the request is not accepted yet.
			t.bound, t.returned = 0, true
			t.accepted = t.accepted || !t.d.Brief && t.d.Client.Transport != storage.WebSocket
		}
		return t.look(ctx)
	}
	t.returned = false
	t.bound, t.accepted = it.Gen, true
	b, err := t.k.Store.Box(ctx, t.d.Box)
	if err != nil {
		return err
	}
	if !b.Over(it.Gen) {
		lost, err := t.k.missed(ctx, b)
		if err != nil || !lost {
			return err
		}
		return t.step(ctx) // the record now says that the generation of the item is over
	}
	released, err := t.k.overItem(ctx, b, it)
	if err != nil || !released {
		return err
	}
	t.bound = 0
	return t.look(ctx)
}

// withoutItem handles a request that has no item now, although it had one or its generation is over.
// It sends the request again if the generation said bye and the request never had an item. In all
// other cases it ends the request with an error, unless the log has the end.
func (t *tracker) withoutItem(ctx context.Context, b storage.Box) error {
	tail, err := t.k.Store.Tail(ctx, t.d.Session, t.d.Stream)
	if err != nil {
		return err
	}
	if tail.Final {
		if tail.Gen != 0 {
			return nil
		}
		// An instance wrote the end, and may have died before it pushed the end to the client's connection.
		return t.k.out.Ended(ctx, t.d.Address, tail, time.Now().Add(t.k.EventAge))
	}
	if tail.Last > 0 && !t.stored {
		// The request has events but no end, so it got an item after step looked for one.
		// The call may have been suspended since, and its box may be asleep.
		it, err := t.k.Store.Item(ctx, t.d.Box, t.d.Stream)
		if err == nil {
			return t.haveItem(ctx, it)
		}
		if !errors.Is(err, storage.NotFound) {
			return err
		}
		t.stored = true
	}
	if t.stored || !b.Clean(t.bound) || t.d.Raw == nil {
		return t.k.end(ctx, t.d.Address, failureOf(b, t.bound))
	}
	t.bound = 0
	return t.send(ctx, b)
}
