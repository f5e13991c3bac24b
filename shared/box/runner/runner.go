// Package runner is the box's end of the relay, through which Lambda functions (the host) and a box
// exchange messages. Package relay explains the protocol and its words; package relayserver is the
// host's end.
//
// A [Runner] connects to the host and passes each message for the box to its [frame.Executor], once. It
// sends the events of the box until the host has stored them. When the box is idle, it says bye
// and ends. Messages between both ends are the types of package frame: hello is a [frame.Hello],
// and so on.
package runner

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func (c Config) withDefaults() Config {
	c.Idle = cmp.Or(c.Idle, 2*time.Minute)
	c.Linger = cmp.Or(c.Linger, 5*time.Second)
	c.PingEvery = cmp.Or(c.PingEvery, 5*time.Minute)
	c.RenewAfter = cmp.Or(c.RenewAfter, 110*time.Minute)
	c.Flush = cmp.Or(c.Flush, 5*time.Second)
	if c.Dial == nil {
		c.Dial = DialWebSocket
	}
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Runner is the box's end of the relay, from the first [frame.Hello] until the box sleeps, a newer
// runner runs the box, or the host cannot be reached. Any goroutine may call Event, Status and
// Snapshot.
type Runner struct {
	cfg  Config
	id   string
	in   chan func(*life) // functions that the goroutine of Run calls; only that goroutine uses the life
	done chan struct{}    // closed when Run returns
}

// New returns a Runner, which does nothing before [Runner.Run].
func New(c Config) *Runner {
	return &Runner{cfg: c.withDefaults(), id: string(storage.NewID()), in: make(chan func(*life)), done: make(chan struct{})}
}

// ID returns the random id of the runner, a secret between the runner and its host.
func (r *Runner) ID() string { return r.id }

// Run connects to the host and runs until one of these ends it. It may be called once.
//
//   - nil: the box has fallen asleep, or ctx was done and the host has answered [frame.Bye].
//   - [ErrFenced]: a newer runner runs this box. This runner sends nothing more.
//   - storage.Unavailable: the host could not be reached for two minutes.
//   - storage.Invalid: the host does not accept this runner. It said so with a
//     [CloseCode], or refused connections again and again.
//   - the cause of ctx, wrapped: ctx is done and the box was not idle within Flush. From
//     the moment ctx is done, no new message is executed. The caller stops its
//     processes meanwhile, so that open requests get their ends.
//
// Before Run returns, it closes all its connections and waits for all its goroutines.
// Events that are not sent by then are lost.
func (r *Runner) Run(ctx context.Context) error {
	l := newLife(ctx, r.cfg, r.id, r.done, func(do func()) bool { return r.post(func(*life) { do() }) })
	defer l.stop()
	l.start()
	cancelled := ctx.Done()
	for !l.loop.over {
		select {
		case do := <-r.in:
			do(l)
		case <-cancelled:
			cancelled = nil
			l.sleep.closeDown(context.Cause(ctx))
		}
		l.sleep.tryEnd()
	}
	return l.loop.err
}

// Event takes an event of a process, and returns when the outbox of its session has room for more.
// Event blocks while more than 32 MiB of events of that session wait for the host, so that the
// process is slowed down. Before Run, Event blocks; after Run, it drops the event. To keep the order of a session's events, call
// Event from one goroutine at a time.
func (r *Runner) Event(e frame.Event) {
	room := make(chan struct{})
	if !r.post(func(l *life) { l.outboxes.event(e, room) }) {
		return
	}
	select {
	case <-room:
	case <-r.done:
	}
}

// Status sends a report once. A report with a Payload waits for a connection; any other report
// is dropped if there is no connection.
func (r *Runner) Status(s frame.Status) {
	r.post(func(l *life) { l.outboxes.status(s) })
}

// post makes the loop call the function do, or returns false if the loop has ended.
func (r *Runner) post(do func(*life)) bool {
	select {
	case r.in <- do:
		return true
	case <-r.done:
		return false
	}
}

// Snapshot sends the host a request about the snapshots of an owner, and repeats it until the host
// answers or ctx is done; the box does not sleep meanwhile. Snapshot sets the Sender and N of the
// request. A URL in the answer is valid for some minutes.
//
// The error is NotFound if there is no snapshot, and [ErrFenced] if a newer runner runs the box or
// has saved a snapshot. The error is TooLarge if the snapshot is over the limit, Invalid if the
// host keeps no snapshots, and Unavailable if ctx or [Runner.Run] has ended.
func (r *Runner) Snapshot(ctx context.Context, f frame.Snapshot) (frame.Kept, error) {
	a := &query{frame: f, answer: make(chan frame.Kept, 1)}
	posted := r.post(func(l *life) { l.queries.query(a) })
	var kept frame.Kept
	select {
	case kept = <-a.answer:
	case <-r.done:
		posted = false
	case <-ctx.Done():
		r.post(func(l *life) { l.queries.unquery(a) })
		return frame.Kept{}, storage.Errorf(storage.Unavailable, "the host does not answer about a snapshot").Because(context.Cause(ctx))
	}
	switch {
	case !posted:
		return frame.Kept{}, storage.Errorf(storage.Unavailable, "there is no host any more to ask about a snapshot")
	case kept.Refused != "":
		return frame.Kept{}, storage.Errorf(kept.Refused, "the host refuses %q about a snapshot", f.Op)
	}
	return kept, nil
}
