package runner

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// What was delivered to the box and what waits to be: each message
// is executed at most once, by the generation it was sent to, and only while the
// host knows that this box is awake.

const (
	pullAgain = 2 * time.Second
	takeAlong = 100 * time.Millisecond // taken marks due so soon go into one frame
	maxTaken  = 80_000                 // bytes of tickets in one taken frame
	maxWaits  = 1000                   // delivers that wait for a welcome; more are sent again by who sent them
)

// inflight is the runner's memory of what was delivered.
type inflight struct {
	deliveries map[session.StreamID]*delivery // in flight, and for idMemory after
	owed       map[session.StreamID]*delivery // those whose end the host does not have yet
	running    int                            // of those: the final event has not been said
	delivered  int                            // counts executions, to see whether there were any
	worked     bool                           // one of them did more than look, see Frame.Looks
	waits      []frame.Frame                  // delivers that came before a welcome
	nudged     bool                           // a nudge did
	pull       pull
	late       map[session.StreamID]*asked // delivers that came late and wait for the host's word
}

// pull asks for the inbox until everything it holds has come.
type pull struct {
	n       int64
	open    bool
	missing map[session.StreamID]int // rounds by ids told by pulled and not seen; nil before pulled
	again   alarm
}

// delivery is one message that was executed.
type delivery struct {
	id       session.StreamID
	round    int // how often it was suspended: a later round is another delivery
	session  session.ID
	ticket   string
	due      time.Time // when taken is sent, if its end has not been stored
	taken    alarm
	traced   bool // the host certainly has that trace
	reported bool // the host has, or was sent, a durable trace of it: it came from the inbox, or by taken
	ended    bool // the final event was said, or it was suspended, or the host has closed the stream
	stored   bool // the host has the end, or that it was suspended
	over     time.Time

	sent    session.Index // index of the last event that is in a batch
	pending [][]byte      // events that are in none yet
	asks    *Suspension   // behind them, until it is in a batch
}

func newInflight() inflight {
	return inflight{deliveries: map[session.StreamID]*delivery{}, owed: map[session.StreamID]*delivery{}, late: map[session.StreamID]*asked{}}
}

// deliver executes a message if its generation is this one, no bye was said, and
// it was not executed before. A message from the inbox has been claimed for this
// generation, so nobody else may end it: it is executed however old it is.
func (l *life) deliver(f frame.Frame) {
	if d, ok := l.deliveries[f.ID]; ok && (f.Round <= d.round || !d.ended) {
		if f.Round == d.round {
			l.seen(f)
			l.deliveredAgain(d, f)
		}
		return
	}
	switch {
	case l.closing:
		return // its sender finds this generation over, or sends it again to the next
	case l.stage != up:
		l.wait(f)
		return
	case f.Gen != l.gen:
		l.Log.Warn("deliver of another generation dropped", "stream", f.ID, "deliver_generation", f.Gen, "generation", l.gen)
		return
	case !f.Inbox && f.Sent == 0 && time.Now().UnixMilli() > f.NotAfter:
		l.Log.Warn("deliver came too late", "stream", f.ID)
		return
	case late(f):
		l.askFirst(f)
	default:
		l.run(f, l.forgetAsked(f.ID))
	}
	l.seen(f)
}

// deliveredAgain: its sender has no sign of life. If it has ended, the batch with
// its end is sent again until the host has it, and then the log is the sign.
func (l *life) deliveredAgain(d *delivery, f frame.Frame) {
	switch {
	case f.Inbox:
		d.reported, d.traced = true, true
	case !d.ended:
		l.sendTaken([]*delivery{d})
	}
}

// run has the box execute a message. reported says that the host was asked for it, and
// so has a trace, or may have one.
func (l *life) run(f frame.Frame, reported bool) {
	d := &delivery{id: f.ID, round: f.Round, session: f.Session, ticket: f.Ticket, sent: f.Base}
	l.deliveries[f.ID] = d
	parts, ok := frame.Split(f.Payload, f.Lens)
	if !ok || len(parts) != 2 {
		l.Log.Error("deliver has a payload that does not fit its lengths", "stream", f.ID, "bytes", len(f.Payload))
		l.forgetLater(d)
		return
	}
	requests := f.AckWithin > 0
	if requests {
		l.running++
		l.owed[d.id] = d
		d.reported, d.traced = f.Inbox || reported, f.Inbox
		within := time.Duration(f.AckWithin) * time.Millisecond
		d.due = time.Now().Add(within)
		l.set(&d.taken, within, l.takenDue)
	} else {
		l.forgetLater(d)
	}
	l.outbox(f.Session).ticket = f.Ticket
	l.delivered++
	l.worked = l.worked || !f.Looks
	if f.Trace != "" {
		l.Log.Info("deliver", "trace", frame.Clip(f.Trace), "session_id", f.Session, "stream", f.ID, "round", f.Round)
	}
	message := Delivery{
		ID: f.ID, Round: f.Round, Session: f.Session, Principal: f.Principal, Server: f.Server, Ticket: f.Ticket, Level: f.Level,
		Subscribed: f.Subscribed, Init: json.RawMessage(parts[0]), Raw: parts[1], HasRequests: requests, Again: f.Again, Trace: f.Trace,
	}
	l.call(func() { l.Executor.Deliver(message) })
}

// forgetLater: nothing is owed for a delivery any more.
func (l *life) forgetLater(d *delivery) {
	if l.owed[d.id] == d { // and not the next round of it
		delete(l.owed, d.id)
	}
	d.ended, d.stored, d.over = true, true, time.Now()
	d.taken.stop()
}

func (l *life) forgetDeliveries(old time.Time) {
	maps.DeleteFunc(l.deliveries, func(_ session.StreamID, d *delivery) bool {
		return d.stored && d.over.Before(old)
	})
}

// wait keeps a deliver that must not be executed before a welcome. After a bye it
// is what makes the runner say hello again.
func (l *life) wait(f frame.Frame) {
	if len(l.waits) < maxWaits {
		l.waits = append(l.waits, f)
	}
	l.wakeAgain()
}

// takenDue tells the host of the requests it has had no end of for too long, so
// that a durable trace says who owes it.
func (l *life) takenDue() {
	if !l.linked() {
		return // resumeInflight
	}
	soon := time.Now().Add(takeAlong)
	var due []*delivery
	for _, id := range slices.Sorted(maps.Keys(l.owed)) {
		if d := l.owed[id]; !d.reported && d.due.Before(soon) {
			due = append(due, d)
		}
	}
	l.sendTaken(due)
}

func (l *life) sendTaken(due []*delivery) {
	if !l.linked() {
		return
	}
	f := frame.Frame{Type: frame.Taken, Box: l.Box, Gen: l.gen}
	size := 0
	for _, d := range due {
		d.reported = true
		if size += len(d.ticket); size > maxTaken && len(f.Tickets) > 0 {
			l.sendSmall(f)
			f.Tickets, size = nil, len(d.ticket)
		}
		f.Tickets = append(f.Tickets, d.ticket)
	}
	if len(f.Tickets) > 0 {
		l.sendSmall(f)
	}
}

// sendSmall sends a frame that the host does not answer, and which is asked for
// again in some way if it is lost.
func (l *life) sendSmall(f frame.Frame) {
	data := frame.Encode(f)
	if len(data) > frame.MaxFrame {
		l.transferKept(data)
		return
	}
	l.live.sendFirst(data)
}

// nudge: the inbox has something.
func (l *life) nudge() {
	switch {
	case l.closing:
	case l.stage == up:
		l.startPull()
	default:
		l.nudged = true
		l.wakeAgain()
	}
}

// startPull asks for what is in the inbox now.
func (l *life) startPull() {
	l.nudged = false
	if l.closing {
		return
	}
	l.pull.n++
	l.pull.open, l.pull.missing = true, nil
	l.sendPull()
}

func (l *life) sendPull() {
	if !l.pull.open || l.closing {
		return
	}
	if l.linked() {
		l.live.sendFirst(frame.Encode(frame.Frame{Type: frame.Pull, Box: l.Box, Gen: l.gen, Runner: l.runner, N: l.pull.n}))
	}
	l.set(&l.pull.again, pullAgain, l.sendPull)
}

func (l *life) pulled(f frame.Frame) {
	if !l.pull.open || f.N != l.pull.n {
		return
	}
	l.pull.missing = map[session.StreamID]int{}
	for _, id := range f.IDs {
		if a := l.late[id]; a != nil && a.f.Round >= f.Rounds[id] {
			continue // it came, late
		}
		if d := l.deliveries[id]; d == nil || d.round < f.Rounds[id] {
			l.pull.missing[id] = f.Rounds[id]
		}
	}
	l.closePull()
}

// seen: a deliver came.
func (l *life) seen(f frame.Frame) {
	if round, ok := l.pull.missing[f.ID]; ok && round <= f.Round {
		delete(l.pull.missing, f.ID)
	}
	l.closePull()
}

func (l *life) closePull() {
	if l.pull.open && l.pull.missing != nil && len(l.pull.missing) == 0 {
		l.pull.open = false
		l.pull.again.stop()
	}
}

// resumeInflight: what came after a bye and was sent to this generation is
// executed now; what was sent to an older one is not, and its sender knows.
func (l *life) resumeInflight(moved, fresh bool) {
	waits := l.waits
	l.waits = nil
	for _, f := range waits {
		if f.Gen == l.gen {
			l.deliver(f)
		}
	}
	switch {
	case fresh || l.nudged:
		l.startPull()
	case moved:
		l.sendPull()
	}
	l.resumeAsked(moved)
	l.takenDue()
}
