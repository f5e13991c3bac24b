package relay

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// A deliver that comes late. Its runner stood still, or the network did, and whoever
// sent it may have told the client since that nobody answers. So the runner asks before
// it executes the message: the host puts the taken mark, unless somebody has ended the
// request, which puts a mark of its own first. Ordinary delivers are executed at once.

// lateAfter is how old a deliver may be that is executed at once, by the clocks of the
// two ends. Where these differ by more, all are asked for.
const lateAfter = time.Second

// rest lets time pass.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// late says that a deliver has to be asked for. One that owes no end has no client that
// was told anything.
func late(f Frame) bool {
	if f.Sent == 0 || f.AckWithin == 0 {
		return false
	}
	age := time.Since(time.UnixMilli(f.Sent))
	return age > lateAfter || age < -lateAfter
}

// asked is a deliver that waits for the answer.
type asked struct {
	f     Frame
	again alarm
}

// askFirst asks for a late deliver, until there is an answer.
func (l *life) askFirst(f Frame) {
	if a := l.late[f.ID]; a != nil {
		if a.f.Round >= f.Round {
			return
		}
		a.again.stop()
	}
	l.Log.Warn("deliver came late, the host is asked for it", "stream", f.ID, "trace", clip(f.Trace))
	a := &asked{f: f}
	l.late[f.ID] = a
	l.sendAsk(a)
}

func (l *life) sendAsk(a *asked) {
	if l.linked() {
		f := a.f
		l.live.sendFirst(Encode(Frame{
			Type: Ask, Box: l.Box, Gen: l.gen, ID: f.ID, Round: f.Round, Ticket: f.Ticket, NotAfter: f.NotAfter, Inbox: f.Inbox,
		}))
	}
	l.set(&a.again, ackAfter, func() { l.sendAsk(a) })
}

// may takes the answer.
func (l *life) may(f Frame) {
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

// ask decides whether a late deliver may be executed. The mark comes first, then the
// record and the log are read: whoever ends the request takes the mark, or has written
// the end already. All of it may be repeated.
func (h *Handler) ask(ctx context.Context, f Frame) (*Frame, error) {
	t, err := h.open(ctx, f, f.Ticket)
	if err != nil {
		return nil, err
	}
	if t.Gen != f.Gen || t.Stream != f.ID || len(t.Requests) == 0 {
		return nil, session.Errorf(session.Invalid, "a ticket of session %s is not that of the deliver it came with", t.Session)
	}
	no := &Frame{Type: May, ID: f.ID, Round: f.Round, Refused: session.Closed}
	if !f.Inbox && time.Now().UnixMilli() > f.NotAfter {
		return no, nil
	}
	it := session.Item{Box: t.Box, ID: t.Stream, State: session.Taken, Gen: t.Gen, Address: t.Address, Created: time.Now()}
	if f.Round == 0 {
		if _, err := h.Store.PutItem(ctx, it); err != nil {
			return nil, err
		}
	}
	switch it, err = h.Store.Item(ctx, t.Box, t.Stream); {
	case errors.Is(err, session.NotFound):
		return no, nil
	case err != nil:
		return nil, err
	case it.State != session.Taken || it.Gen != t.Gen || it.Round != f.Round:
		return no, nil
	}
	b, err := h.Store.Box(ctx, t.Box)
	if err != nil {
		return nil, err
	}
	tail, err := h.Store.Tail(ctx, t.Session, t.Stream)
	if err != nil {
		return nil, err
	}
	if tail.Final {
		return no, h.endedItem(ctx, it)
	}
	if b.Over(t.Gen) {
		return no, nil // whoever sees to the item ends it
	}
	return &Frame{Type: May, ID: f.ID, Round: f.Round}, nil
}
