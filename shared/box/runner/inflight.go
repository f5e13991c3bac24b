package runner

import (
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	pullAgain = 2 * time.Second        // a [frame.Pull] is repeated after this time, unless all its messages have come
	takeAlong = 100 * time.Millisecond // a [frame.Taken] also names the deliveries that are due within this time
	maxTaken  = 80_000                 // bytes of tickets in one [frame.Taken]
	maxWaits  = 1000                   // messages that wait for a [frame.Welcome]; the host repeats those beyond the limit
)

// inflight handles the messages for the box. It executes each message at most once, only if it was
// sent to the present generation (see [Config].Gen), and only while the host counts the box as
// awake. It asks the host about late messages, gets messages that the host has stored for the box
// (the inbox), and tells the host which requests take long.
type inflight struct {
	cfg        *Config
	loop       *loop
	executing  *executing
	links      *links
	transfers  *transfers
	deliveries *deliveries
	outboxes   *outboxes
	farewell   *farewell

	// In each of these states the runner executes no new message: the next runner executes it.
	closing  bool // Run's own ctx is done
	refusing bool // the host has asked the runner to retire; see sleep.retire
	draining bool // the runner's time is almost over

	delivered int             // how many messages were executed so far
	waits     []frame.Deliver // messages that must wait for the next [frame.Welcome]
	nudged    bool            // a [frame.Nudge] came, which must wait for the next [frame.Welcome]
	pull      pull
	late      map[storage.StreamID]*asked // messages that came late, about which the runner has asked the host
}

// pull is the state of a [frame.Pull], a request for the messages that the host has stored for the
// box, until all of them have come.
type pull struct {
	n       int64
	open    bool
	missing map[storage.StreamID]int // the Round of each message that [frame.Pulled] named and that has not come yet; nil before Pulled
	again   alarm
}

// refuses reports whether the runner executes no new message.
func (in *inflight) refuses() bool { return in.closing || in.refusing || in.draining }

// deliver executes a message if it was sent to this generation, the runner has sent no [frame.Bye]
// since the last [frame.Welcome], and the message was not executed before. A late message is
// executed only if the host allows it; see askFirst. deliver executes a message from the inbox
// however old it is, because the host has claimed that message for this generation.
func (in *inflight) deliver(f frame.Deliver) {
	if d, ok := in.deliveries.byID[f.ID]; ok && (f.Round <= d.round || !d.ended) {
		if f.Round == d.round {
			in.seen(f)
			in.deliveredAgain(d, f)
		}
		return
	}
	switch {
	case in.draining:
		in.giveBack(f)
		return
	case in.refuses():
		return
	case in.links.stage != up:
		in.wait(f)
		return
	case f.Gen != in.links.gen:
		in.cfg.Log.Warn("deliver of another generation dropped", "stream", f.ID, "deliver_generation", f.Gen, "generation", in.links.gen)
		return
	case !f.Inbox && f.Sent == 0 && time.Now().UnixMilli() > f.NotAfter:
		in.cfg.Log.Warn("deliver came too late", "stream", f.ID)
		return
	case late(f):
		in.askFirst(f)
	default:
		in.run(f, in.forgetAsked(f.ID))
	}
	in.seen(f)
}

// deliveredAgain handles a message that was executed before. If the request of the message has not
// ended, [frame.Taken] tells the host so. If it has ended, the outbox repeats the response until
// the host has it.
func (in *inflight) deliveredAgain(d *delivery, f frame.Deliver) {
	switch {
	case f.Inbox:
		d.reported, d.traced = true, true
	case !d.ended:
		in.sendTaken([]*delivery{d})
	}
}

// giveBack tells the host that this runner will not execute a request. giveBack ignores messages
// from the inbox: after the [frame.Bye] the host releases them for the next runner.
func (in *inflight) giveBack(f frame.Deliver) {
	if !in.links.linked() || f.AckWithin == 0 || f.Inbox || f.Gen != in.links.gen || in.late[f.ID] != nil {
		return
	}
	in.transfers.sendSmall(frame.Return{Sender: in.links.ofBox(), Ticket: f.Ticket, NotAfter: f.NotAfter, Payload: f.Raw})
}

// run executes a message. The argument reported is true if the runner has asked the host about the
// message before.
func (in *inflight) run(f frame.Deliver, reported bool) {
	d := &delivery{id: f.ID, round: f.Round, session: f.Session, ticket: f.Ticket, sent: f.Base}
	in.deliveries.byID[f.ID] = d
	if f.AckWithin > 0 {
		in.deliveries.owed[d.id] = d
		d.reported, d.traced = f.Inbox || reported, f.Inbox
		within := time.Duration(f.AckWithin) * time.Millisecond
		d.due = time.Now().Add(within)
		in.loop.set(&d.taken, within, in.takenDue)
	} else {
		in.deliveries.forgetLater(d)
	}
	in.outboxes.outbox(f.Session).ticket = f.Ticket
	in.delivered++
	in.farewell.worked = in.farewell.worked || !f.Looks
	in.executing.call(func(e frame.Executor) { e.Deliver(f) })
	if f.Trace != "" {
		runtime.Gosched() // lets the message reach the server before the log gets its line
		in.cfg.Log.Info("deliver", "trace", frame.Clip(f.Trace), "session_id", f.Session, "stream", f.ID, "round", f.Round)
	}
}

// wait keeps a message that must not be executed before the next [frame.Welcome]. If the runner
// has sent [frame.Bye], wait also takes the bye back.
func (in *inflight) wait(f frame.Deliver) {
	if len(in.waits) < maxWaits {
		in.waits = append(in.waits, f)
	}
	in.farewell.takeBack()
}

// takenDue sends [frame.Taken] for the requests that take long, so that the host records that this
// box has to answer them.
func (in *inflight) takenDue() {
	if !in.links.linked() {
		return // resumeInflight calls takenDue again
	}
	soon := time.Now().Add(takeAlong)
	var due []*delivery
	for _, id := range slices.Sorted(maps.Keys(in.deliveries.owed)) {
		if d := in.deliveries.owed[id]; !d.reported && d.due.Before(soon) {
			due = append(due, d)
		}
	}
	in.sendTaken(due)
}

func (in *inflight) sendTaken(due []*delivery) {
	if !in.links.linked() {
		return
	}
	f := frame.Taken{Sender: in.links.ofBox()}
	size := 0
	for _, d := range due {
		d.reported = true
		if size += len(d.ticket); size > maxTaken && len(f.Tickets) > 0 {
			in.transfers.sendSmall(f)
			f.Tickets, size = nil, len(d.ticket)
		}
		f.Tickets = append(f.Tickets, d.ticket)
	}
	if len(f.Tickets) > 0 {
		in.transfers.sendSmall(f)
	}
}

// nudge handles a [frame.Nudge]: the host has stored messages for the box.
func (in *inflight) nudge() {
	switch {
	case in.refuses():
	case in.links.stage == up:
		in.startPull()
	default:
		in.nudged = true
		in.farewell.takeBack()
	}
}

// startPull sends a [frame.Pull] for the messages that the host has stored for the box by now.
func (in *inflight) startPull() {
	in.nudged = false
	if in.refuses() {
		return
	}
	in.pull.n++
	in.pull.open, in.pull.missing = true, nil
	in.sendPull()
}

func (in *inflight) sendPull() {
	if !in.pull.open || in.refuses() {
		return
	}
	if in.links.linked() {
		in.links.live.sendFirst(frame.Encode(frame.Pull{Sender: in.links.sender(), N: in.pull.n}))
	}
	in.loop.set(&in.pull.again, pullAgain, in.sendPull)
}

func (in *inflight) pulled(f frame.Pulled) {
	if !in.pull.open || f.N != in.pull.n {
		return
	}
	in.pull.missing = map[storage.StreamID]int{}
	for _, id := range f.IDs {
		if a := in.late[id]; a != nil && a.f.Round >= f.Rounds[id] {
			continue // the message came late, and the runner is asking the host about it
		}
		if d := in.deliveries.byID[id]; d == nil || d.round < f.Rounds[id] {
			in.pull.missing[id] = f.Rounds[id]
		}
	}
	in.closePull()
}

// seen records that a message came, which may be the last one for which a pull waits.
func (in *inflight) seen(f frame.Deliver) {
	if round, ok := in.pull.missing[f.ID]; ok && round <= f.Round {
		delete(in.pull.missing, f.ID)
	}
	in.closePull()
}

func (in *inflight) closePull() {
	if in.pull.open && in.pull.missing != nil && len(in.pull.missing) == 0 {
		in.pull.open = false
		in.pull.again.stop()
	}
}

// resumeInflight continues after a [frame.Welcome]. Of the messages that had to wait, it executes
// those that were sent to the present generation (see [Config].Gen). It drops the others: the host
// finds that their generation has ended, and repeats them or ends them with an error.
func (in *inflight) resumeInflight(moved, fresh bool) {
	waits := in.waits
	in.waits = nil
	for _, f := range waits {
		if f.Gen == in.links.gen {
			in.deliver(f)
		}
	}
	switch {
	case fresh || in.nudged:
		in.startPull()
	case moved:
		in.sendPull()
	}
	in.resumeAsked(moved)
	in.takenDue()
}

// # Messages that come late

// late reports whether a message is so old that the runner must ask the host whether to execute
// it. A message without requests is never late, because no client waits for a response.
func late(f frame.Deliver) bool {
	if f.Sent == 0 || f.AckWithin == 0 {
		return false
	}
	age := time.Since(time.UnixMilli(f.Sent))
	return age > frame.LateAfter || age < -frame.LateAfter
}

// asked is a late message about which the runner has asked the host.
type asked struct {
	f     frame.Deliver
	again alarm
}

// askFirst asks the host whether a late message may be executed, and repeats the question until
// the host answers.
func (in *inflight) askFirst(f frame.Deliver) {
	if a := in.late[f.ID]; a != nil {
		if a.f.Round >= f.Round {
			return
		}
		a.again.stop()
	}
	in.cfg.Log.Warn("deliver came late, the host is asked for it", "stream", f.ID, "trace", frame.Clip(f.Trace))
	a := &asked{f: f}
	in.late[f.ID] = a
	in.sendAsk(a)
}

func (in *inflight) sendAsk(a *asked) {
	if in.links.linked() {
		f := a.f
		in.links.live.sendFirst(frame.Encode(frame.Ask{Sender: in.links.ofBox(), ID: f.ID, Round: f.Round, Ticket: f.Ticket, NotAfter: f.NotAfter, Inbox: f.Inbox}))
	}
	in.loop.set(&a.again, ackAfter, func() { in.sendAsk(a) })
}

// may handles a [frame.May], the host's answer about a late message.
func (in *inflight) may(f frame.May) {
	a := in.late[f.ID]
	if a == nil || a.f.Round != f.Round {
		return
	}
	in.forgetAsked(f.ID)
	switch {
	case f.Refused != "":
		in.cfg.Log.Warn("late deliver is not executed: its request has ended", "stream", f.ID)
	case in.closing || in.links.stage != up || a.f.Gen != in.links.gen:
	default:
		in.run(a.f, true)
	}
}

// forgetAsked forgets a late message, and reports whether the runner was asking the host about it.
func (in *inflight) forgetAsked(id storage.StreamID) bool {
	a := in.late[id]
	if a != nil {
		a.again.stop()
		delete(in.late, id)
	}
	return a != nil
}

// resumeAsked repeats the questions about late messages over a new connection. It forgets messages
// for an older generation.
func (in *inflight) resumeAsked(moved bool) {
	for id, a := range in.late {
		switch {
		case a.f.Gen != in.links.gen:
			in.forgetAsked(id)
		case moved:
			in.sendAsk(a)
		}
	}
}
