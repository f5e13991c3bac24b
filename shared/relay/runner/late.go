package runner

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// late reports whether the runner must ask the host before it executes a deliver. A
// deliver that owes no end is never late, because its client waits for nothing.
func late(f frame.Deliver) bool {
	if f.Sent == 0 || f.AckWithin == 0 {
		return false
	}
	age := time.Since(time.UnixMilli(f.Sent))
	return age > frame.LateAfter || age < -frame.LateAfter
}

// asked is a late deliver that waits for the host's answer.
type asked struct {
	f     frame.Deliver
	again alarm
}

// askFirst asks the host about a late deliver, again and again until it answers.
func (in *inflight) askFirst(f frame.Deliver) {
	if a := in.late[f.ID]; a != nil {
		if a.f.Round >= f.Round {
			return
		}
		a.again.stop()
	}
	in.Log.Warn("deliver came late, the host is asked for it", "stream", f.ID, "trace", frame.Clip(f.Trace))
	a := &asked{f: f}
	in.late[f.ID] = a
	in.sendAsk(a)
}

func (in *inflight) sendAsk(a *asked) {
	if in.links.linked() {
		f := a.f
		in.links.live.sendFirst(frame.Encode(frame.Ask{Sender: in.ofBox(), ID: f.ID, Round: f.Round, Ticket: f.Ticket, NotAfter: f.NotAfter, Inbox: f.Inbox}))
	}
	in.set(&a.again, ackAfter, func() { in.sendAsk(a) })
}

// may handles the host's answer to ask.
func (in *inflight) may(f frame.May) {
	a := in.late[f.ID]
	if a == nil || a.f.Round != f.Round {
		return
	}
	in.forgetAsked(f.ID)
	switch {
	case f.Refused != "":
		in.Log.Warn("late deliver is not executed: its request has ended", "stream", f.ID)
	case in.closing || in.stage != up || a.f.Gen != in.gen:
	default:
		in.run(a.f, true)
	}
}

// forgetAsked forgets a late deliver. It reports whether the host was being asked about
// it.
func (in *inflight) forgetAsked(id session.StreamID) bool {
	a := in.late[id]
	if a != nil {
		a.again.stop()
		delete(in.late, id)
	}
	return a != nil
}

// resumeAsked asks again over a new connection. In a new generation it forgets the
// delivers of the old one, because no runner may execute them.
func (in *inflight) resumeAsked(moved bool) {
	for id, a := range in.late {
		switch {
		case a.f.Gen != in.gen:
			in.forgetAsked(id)
		case moved:
			in.sendAsk(a)
		}
	}
}
