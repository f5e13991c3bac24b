package runner

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// late says that a deliver has to be asked for. One that owes no end has no client that
// was told anything.
func late(f frame.Frame) bool {
	if f.Sent == 0 || f.AckWithin == 0 {
		return false
	}
	age := time.Since(time.UnixMilli(f.Sent))
	return age > frame.LateAfter || age < -frame.LateAfter
}

// asked is a deliver that waits for the answer.
type asked struct {
	f     frame.Frame
	again alarm
}

// askFirst asks for a late deliver, until there is an answer.
func (l *life) askFirst(f frame.Frame) {
	if a := l.late[f.ID]; a != nil {
		if a.f.Round >= f.Round {
			return
		}
		a.again.stop()
	}
	l.Log.Warn("deliver came late, the host is asked for it", "stream", f.ID, "trace", frame.Clip(f.Trace))
	a := &asked{f: f}
	l.late[f.ID] = a
	l.sendAsk(a)
}

func (l *life) sendAsk(a *asked) {
	if l.linked() {
		f := a.f
		l.live.sendFirst(frame.Encode(frame.Frame{
			Type: frame.Ask, Box: l.Box, Gen: l.gen, ID: f.ID, Round: f.Round, Ticket: f.Ticket, NotAfter: f.NotAfter, Inbox: f.Inbox,
		}))
	}
	l.set(&a.again, ackAfter, func() { l.sendAsk(a) })
}

// may takes the answer.
func (l *life) may(f frame.Frame) {
	a := l.late[f.ID]
	if a == nil || a.f.Round != f.Round {
		return
	}
	l.forgetAsked(f.ID)
	switch {
	case f.Refused != "":
		l.Log.Warn("late deliver is not executed: its request has ended", "stream", f.ID)
	case l.closing || l.stage != up || a.f.Gen != l.gen:
	default:
		l.run(a.f, true)
	}
}

// forgetAsked says whether a deliver was asked for.
func (l *life) forgetAsked(id session.StreamID) bool {
	a := l.late[id]
	if a != nil {
		a.again.stop()
		delete(l.late, id)
	}
	return a != nil
}

// resumeAsked asks again over a new connection. In a new generation nobody may execute
// what was sent to the old one.
func (l *life) resumeAsked(moved bool) {
	for id, a := range l.late {
		switch {
		case a.f.Gen != l.gen:
			l.forgetAsked(id)
		case moved:
			l.sendAsk(a)
		}
	}
}
