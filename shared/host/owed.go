package host

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// What is owed to a client whose connection has gone. The session's record says
// for each stream concerned how far it was pushed (Pushed), over which connections
// it may go on (Conns), and who pushes (Pusher). The rules:
//
//   - An entry is added once, by whoever finds the connection gone, and says what
//     was posted to that connection. From then on the stream goes on through the
//     record only. It stays when all has been pushed, so that a late appender
//     knows.
//   - Only the holder of the lease posts and moves cursors. It posts first and
//     moves the cursor then; if it dies in between, that page is pushed again.
//   - Who appends returns when its events have been pushed or there is no
//     connection. So an acked batch is with the client or stands owed.
//   - A client that comes back and says what it has, sets the cursors and breaks
//     the lease: whoever held it was posting to a connection that is no more.
//
// A connection that is only slow is served in the same way. Whoever has written a
// batch posts it straight for a second; the rest of it goes by the record, and the
// stream is Live again once all is pushed. Whoever finds a batch in the log, because
// its runner had no answer, does not post it: it notes the doubt and does not answer.
// By the next time, seconds later, the writer has answered the runner, has made an
// entry, or is dead. Only then the batch is pushed once more.
const (
	straight     = time.Second     // a batch is posted without a note
	onePost      = 2 * time.Second // and its last post may take so much longer
	inDoubt      = 4 * time.Second // more than both together, and less than a runner waits before it repeats a batch
	maxSkew      = time.Minute     // between the clocks of two functions
	pushLease    = 30 * time.Second
	pushPage     = 100
	toNote       = 5 * time.Second // of a function's time, for how far it came
	keptFinished = 32              // entries of streams of which nothing is owed any more
	keptOwed     = 1024            // of the others, or the record would outgrow a row of the store
	comingUp     = 5 * time.Second // a connection may answer 410 for so long after $connect
	pushRetry    = 50 * time.Millisecond
	streamLife   = 7 * 24 * time.Hour // an entry of a request stream older than this has no log
)

// cursorOf finds the entry of a stream, nil if there is none.
func cursorOf(s *session.Session, stream session.StreamID) *session.Cursor {
	for i := range s.Pushed {
		if s.Pushed[i].Stream == stream {
			return &s.Pushed[i]
		}
	}
	return nil
}

// owe adds an entry, unless the stream has one, and drops what is of no use any
// more. It says whether anything changed. What a Live stream has got in the meantime
// was posted straight.
func owe(s *session.Session, c session.Cursor) bool {
	if old := cursorOf(s, c.Stream); old != nil {
		if !old.Live {
			return false
		}
		c.Index = max(c.Index, old.Index)
		s.Pushed = slices.Clone(s.Pushed)
		*cursorOf(s, c.Stream) = c
		return true
	}
	s.Pushed = append(slices.Clone(s.Pushed), c)
	finished := 0
	for _, c := range s.Pushed {
		if c.Settled() {
			finished++
		}
	}
	old := time.Now().Add(-streamLife)
	s.Pushed = slices.DeleteFunc(s.Pushed, func(c session.Cursor) bool {
		begun := c.Stream.Time()
		drop := c.Settled() && finished > keptFinished || !begun.IsZero() && begun.Before(old)
		if drop && c.Settled() {
			finished--
		}
		return drop
	})
	dropOwed(s)
	return true
}

// repeat decides whether batches of a session that were in the log already are to be
// pushed. mine is false while whoever wrote them may still be posting them.
func (o Outlet) repeat(ctx context.Context, ps []Posting) (mine bool, err error) {
	s, _, err := o.Store.Load(ctx, ps[0].To.Session, "")
	if errors.Is(err, session.NotFound) {
		return true, nil // nobody is pushed to any more
	}
	if err == nil {
		_, err = update(ctx, o.Store, s, func(s *session.Session) (changed bool) {
			mine = true
			for _, p := range ps {
				sure, noted := doubt(s, p.Batch)
				mine, changed = mine && sure, changed || noted
			}
			return changed
		})
	}
	return mine, err
}

// doubt says whether it is known by now that nobody posts a batch without a lease, or
// notes that somebody wants to know.
func doubt(s *session.Session, b session.Batch) (sure, noted bool) {
	c := cursorOf(s, b.Stream)
	now := time.Now()
	switch {
	case c != nil && (c.Final || c.Index >= b.Last()):
		return true, false // it was pushed
	case c != nil && !c.Live:
		return !heldAt(s.Pusher, now), false
	case c != nil && c.Index >= b.First-1 && !c.Since.IsZero():
		age := now.Sub(c.Since)
		return age >= inDoubt || age < -maxSkew, false
	}
	owe(s, session.Cursor{Stream: b.Stream, Index: b.First - 1, Live: true, Since: now})
	return false, true
}

// heldAt says that a lease is somebody's. One that ends later than any could was given
// by a clock that was wrong.
func heldAt(l session.Lease, now time.Time) bool {
	return l.Until.After(now) && l.Until.Before(now.Add(pushLease+maxSkew))
}

// dropOwed drops the entries of the oldest request streams when there are too many. What
// they owe is not pushed any more; it stands in the log, for a client that asks for it by
// an event id. Their late appenders add an entry anew, of what then comes.
func dropOwed(s *session.Session) {
	var owed []session.Cursor
	for _, c := range s.Pushed {
		if !c.Settled() && c.Stream != session.Common && !c.Stream.Time().IsZero() {
			owed = append(owed, c)
		}
	}
	if len(owed) <= keptOwed {
		return
	}
	slices.SortStableFunc(owed, func(a, b session.Cursor) int { return a.Stream.Time().Compare(b.Stream.Time()) })
	drop := map[session.StreamID]bool{}
	for _, c := range owed[:len(owed)-keptOwed] {
		drop[c.Stream] = true
	}
	s.Pushed = slices.DeleteFunc(s.Pushed, func(c session.Cursor) bool { return drop[c.Stream] })
}

// owe notes that a stream is owed from a cursor on, unless that is known, and
// sees to it that its events up to last are pushed, if there is a connection.
func (o Outlet) owe(ctx context.Context, id session.ID, from session.Cursor, last session.Index) error {
	p := pusher{Outlet: o, nonce: session.NewNonce()}
	done := func(s *session.Session) bool {
		c := cursorOf(s, from.Stream)
		return c == nil || c.Final || c.Index >= last
	}
	note := func(s *session.Session) bool {
		c := cursorOf(s, from.Stream)
		return (c == nil || !c.Live || c.Index < last) && owe(s, from)
	}
	return p.run(ctx, id, note, done)
}

// push pushes all that a session is owed.
func (o Outlet) push(ctx context.Context, id session.ID) error {
	p := pusher{Outlet: o, nonce: session.NewNonce()}
	done := func(s *session.Session) bool { return p.held || !s.Owes() }
	return p.run(ctx, id, func(*session.Session) bool { return false }, done)
}

// pusher is one try to push what a session is owed.
type pusher struct {
	Outlet
	nonce   string
	held    bool            // the lease was held once, and all was pushed
	s       session.Session // with the lease held: as read or written last, and what has been pushed since
	dropped []string
	again   bool // somebody else has changed the record: there may be more to push
	conns   map[string]session.Connection
}

// run takes turns with others until done. note changes the record before that is
// asked, and says whether it did.
func (p *pusher) run(ctx context.Context, id session.ID, note func(*session.Session) bool, done func(*session.Session) bool) error {
	for pause := pushRetry; ; {
		s, _, err := p.Store.Load(ctx, id, "")
		if err != nil {
			return unlessGone(err) // nobody will come back for it
		}
		changed := note(&s)
		over := p.Clients == nil || len(s.Conns) == 0 || done(&s)
		busy := heldAt(s.Pusher, time.Now())
		end, ends := ctx.Deadline()
		late := ends && time.Until(end) < 2*toNote
		if !over && !busy && !late {
			s.Pusher, changed = session.Lease{Nonce: p.nonce, Until: time.Now().Add(pushLease)}, true
		}
		if changed {
			err := p.Store.Save(ctx, s)
			if errors.Is(err, session.Conflict) {
				continue
			}
			if err != nil {
				return unlessGone(err)
			}
			s.Rev++
		}
		switch {
		case over:
			p.s = s
			return nil
		case late:
			return errSlow
		case busy:
			if err := sleepUntil(ctx, time.Now().Add(pause)); err != nil {
				return err
			}
			pause = min(2*pause, time.Second)
		default:
			p.s, p.dropped = s, nil
			err := p.work(ctx)
			p.held = err == nil
			if err == nil && len(p.s.Conns) > 0 {
				return nil // all that the log still has was pushed
			}
			if err != nil && !errors.Is(err, errLeaseLost) {
				return unlessGone(err)
			}
		}
	}
}

// errSlow: there is more to push than this function has time for. It may be all that
// is left of its time to note how far it came.
var errSlow = session.Errorf(session.Unavailable, "the client takes its events slowly; whoever comes next goes on")

// errLeaseLost: somebody has taken or broken the lease.
var errLeaseLost = errors.New("the lease of who pushes is another's")

// work pushes with the lease held, and gives it back. One that cannot be given
// back runs out.
func (p *pusher) work(ctx context.Context) error {
	for {
		p.again = false
		err := p.pushAll(ctx)
		if errors.Is(err, errLeaseLost) {
			return err
		}
		if err == nil && p.again {
			continue
		}
		held := p.s.Pusher
		p.s.Pusher = session.Lease{}
		saved := p.Store.Save(ctx, p.s)
		if saved == nil {
			p.s.Rev++
			return err
		}
		p.s.Pusher = held
		if !errors.Is(saved, session.Conflict) {
			return errors.Join(err, saved)
		}
		if merged := p.merge(ctx); merged != nil {
			return errors.Join(err, merged)
		}
		if err != nil {
			return errors.Join(err, p.save(ctx)) // what was pushed; the lease runs out
		}
	}
}

// pushAll pushes what every entry is behind its log, as long as there is a
// connection.
func (p *pusher) pushAll(ctx context.Context) error {
	for i := 0; i < len(p.s.Pushed); i++ {
		for more := true; more && i < len(p.s.Pushed) && !p.s.Pushed[i].Settled() && len(p.s.Conns) > 0; {
			c := &p.s.Pushed[i]
			page, err := p.Store.Read(ctx, p.s.ID, c.Stream, c.Index, pushPage)
			if err != nil {
				return err
			}
			if err := p.pushPage(ctx, c, page); err != nil {
				return err
			}
			if more = page.More; more {
				p.s.Pusher.Until = time.Now().Add(pushLease)
				if err := p.save(ctx); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// pushPage posts events, and moves the cursor in memory as far as it comes.
func (p *pusher) pushPage(ctx context.Context, c *session.Cursor, page session.Page) error {
	ctx, cancel := context.WithDeadline(ctx, p.s.Pusher.Until)
	defer cancel()
	end, _ := ctx.Deadline()
	stop := end.Add(-toNote)
	if page.Gap {
		if _, err := p.push1(ctx, session.Event{Raw: gapNotice()}, session.EventID{}); err != nil {
			return err
		}
	}
	for _, e := range page.Events {
		if time.Now().After(stop) {
			return errSlow
		}
		pushed, err := p.push1(ctx, e, session.EventID{Stream: c.Stream, Index: e.Index})
		if err != nil || !pushed {
			return err
		}
		c.Index, c.Final = e.Index, e.Final
	}
	return nil
}

// push1 posts an event to the newest connection that takes it. pushed is false if
// there is none.
func (p *pusher) push1(ctx context.Context, e session.Event, id session.EventID) (pushed bool, err error) {
	for {
		conn, err := p.newest(ctx)
		if err != nil || conn.ID == "" {
			return false, err
		}
		err = p.event(ctx, conn.ID, conn.EventIDs && id.Index > 0, p.s.ID, id, e.Raw)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, session.Closed) {
			return false, err
		}
		if time.Since(conn.Expires.Add(-connectionLife)) > comingUp {
			p.drop(conn.ID)
		} else if err := sleepUntil(ctx, time.Now().Add(pushRetry)); err != nil {
			return false, err // it may not be up yet
		}
	}
}

// gapNotice tells of lost events (I4).
func gapNotice() []byte {
	return wire.NewNotification(wire.NotifyMessage,
		[]byte(`{"level":"warning","logger":"dormouse","data":"events were lost here: they are older or more than what is kept"}`))
}

// newest is the newest connection of the session that has a record; none if there
// is none.
func (p *pusher) newest(ctx context.Context) (session.Connection, error) {
	for len(p.s.Conns) > 0 {
		id := p.s.Conns[len(p.s.Conns)-1]
		if conn, ok := p.conns[id]; ok {
			return conn, nil
		}
		conn, err := p.Store.Connection(ctx, id)
		if err == nil {
			if p.conns == nil {
				p.conns = map[string]session.Connection{}
			}
			p.conns[id] = conn
			return conn, nil
		}
		if !errors.Is(err, session.NotFound) {
			return session.Connection{}, err
		}
		p.drop(id)
	}
	return session.Connection{}, nil
}

func (p *pusher) drop(conn string) {
	p.dropped = append(p.dropped, conn)
	p.s.Conns = without(p.s.Conns, conn)
}

func without(conns []string, conn string) []string {
	return slices.DeleteFunc(slices.Clone(conns), func(c string) bool { return c == conn })
}

// save writes what was pushed, the lease still held.
func (p *pusher) save(ctx context.Context) error {
	for {
		err := p.Store.Save(ctx, p.s)
		if err == nil {
			p.s.Rev++
			return nil
		}
		if !errors.Is(err, session.Conflict) {
			return err
		}
		if err := p.merge(ctx); err != nil {
			return err
		}
	}
}

// merge reads the record as others have left it and brings in what was pushed.
func (p *pusher) merge(ctx context.Context) error {
	mine := p.s
	s, _, err := p.Store.Load(ctx, mine.ID, "")
	if err != nil {
		return err
	}
	if s.Pusher.Nonce != p.nonce {
		return errLeaseLost
	}
	for _, c := range mine.Pushed {
		if theirs := cursorOf(&s, c.Stream); theirs != nil && !c.Live && c.Index > theirs.Index {
			*theirs = c
		}
	}
	for _, conn := range p.dropped {
		s.Conns = without(s.Conns, conn)
	}
	s.Pusher = mine.Pusher
	p.s, p.again = s, true
	return nil
}
