package host

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Some events are owed to a client, because the connection of their request has gone. The
// session's record then says for each such stream how far it was pushed (Pushed). It also
// says which connections may get the rest (Conns) and which function pushes (Pusher). The
// rules:
//
//   - The function that finds a connection gone adds the stream's entry, once. The entry
//     says what that connection got. From then on the stream's events go through the
//     record only. The entry stays when all was pushed, so that a late appender sees it.
//   - Only the holder of the lease posts and moves cursors. It posts first and then moves
//     the cursor. If it dies in between, its successor pushes that page again.
//   - An appender returns when its events were pushed or the session has no connection. So
//     the events of an acked batch have reached the client or stand as owed.
//   - A client that comes back and names its last events sets the cursors and breaks the
//     lease, because the lease's holder was posting to a connection that is gone.
//
// A slow connection is served in the same way. The writer of a batch posts it straight for
// one second. The rest goes by the record, and the stream is Live again once all is pushed.
//
// A runner that had no answer sends its batch again, and the function that gets it finds it
// in the log. That function does not post it: it notes the doubt and does not answer. The
// runner's next attempt comes seconds later. By then the writer has answered the runner, has
// added an entry, or is dead. Only then is the batch pushed once more.
const (
	straight     = time.Second     // how long a batch is posted without a note
	onePost      = 2 * time.Second // how much longer its last post may take
	inDoubt      = 4 * time.Second // more than both together, but less than a runner waits before it repeats a batch
	maxSkew      = time.Minute     // between the clocks of two functions
	pushLease    = 30 * time.Second
	pushPage     = 100
	toNote       = 5 * time.Second // what a function keeps of its time to note how far it came
	keptFinished = 32              // settled entries that a record keeps
	keptOwed     = 1024            // other entries that a record keeps; more would not fit a row of the store
	comingUp     = 5 * time.Second // how long after $connect a connection may answer 410
	pushRetry    = 50 * time.Millisecond
	streamLife   = 7 * 24 * time.Hour // the log of a request stream is gone when it is older than this
)

// cursorOf returns the entry of a stream, or nil.
func cursorOf(s *session.Session, stream session.StreamID) *session.Cursor {
	for i := range s.Pushed {
		if s.Pushed[i].Stream == stream {
			return &s.Pushed[i]
		}
	}
	return nil
}

// owe adds an entry unless the stream has one, and drops entries that are no longer needed.
// It replaces a Live entry and keeps the higher index, because events of a Live stream were
// posted straight. It reports whether s changed.
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

// repeat decides whether to push batches of a session that were in the log already. mine is
// false while their writer may still be posting them.
func (o Outlet) repeat(ctx context.Context, ps []Posting) (mine bool, err error) {
	s, _, err := o.Store.Load(ctx, ps[0].To.Session, "")
	if errors.Is(err, session.NotFound) {
		return true, nil // no client is left to push to
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

// doubt reports whether it is sure that no function posts the batch without a lease. If that
// is not known, it adds an entry that says since when, and noted is true.
func doubt(s *session.Session, b session.Batch) (sure, noted bool) {
	c := cursorOf(s, b.Stream)
	now := time.Now()
	switch {
	case c != nil && (c.Final || c.Index >= b.Last()):
		return true, false // the batch was pushed
	case c != nil && !c.Live:
		return !heldAt(s.Pusher, now), false
	case c != nil && c.Index >= b.First-1 && !c.Since.IsZero():
		age := now.Sub(c.Since)
		return age >= inDoubt || age < -maxSkew, false
	}
	owe(s, session.Cursor{Stream: b.Stream, Index: b.First - 1, Live: true, Since: now})
	return false, true
}

// heldAt reports whether a lease is held. It ignores a lease that ends later than any lease
// can: a function with a wrong clock gave it.
func heldAt(l session.Lease, now time.Time) bool {
	return l.Until.After(now) && l.Until.Before(now.Add(pushLease+maxSkew))
}

// dropOwed drops the entries of the oldest request streams when there are too many. Their
// owed events are not pushed any more. They stay in the log for a client that asks for them
// by an event id. A late appender to such a stream adds a new entry for its own events.
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

// owe notes that the events of a stream after a cursor are owed, unless that is known. It
// then has its events up to last pushed if the session has a connection.
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

// push pushes all events that a session is owed.
func (o Outlet) push(ctx context.Context, id session.ID) error {
	p := pusher{Outlet: o, nonce: session.NewNonce()}
	done := func(s *session.Session) bool { return p.held || !s.Owes() }
	return p.run(ctx, id, func(*session.Session) bool { return false }, done)
}

// pusher is one attempt to push what a session is owed.
type pusher struct {
	Outlet
	nonce   string
	held    bool            // the pusher has held the lease and pushed everything
	s       session.Session // the record as last read or written, with what was pushed since; only with the lease
	dropped []string
	again   bool // another function has changed the record: there may be more to push
	conns   map[string]session.Connection
}

// run takes turns with other functions until done returns true. Before each call of done it
// calls note, which changes the record and reports whether it did.
func (p *pusher) run(ctx context.Context, id session.ID, note func(*session.Session) bool, done func(*session.Session) bool) error {
	for pause := pushRetry; ; {
		s, _, err := p.Store.Load(ctx, id, "")
		if err != nil {
			return unlessGone(err) // the session is gone: no client will come back
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
				return nil // everything that the log still has was pushed
			}
			if err != nil && !errors.Is(err, errLeaseLost) {
				return unlessGone(err)
			}
		}
	}
}

// errSlow: there is more to push than this function has time for. It needs the rest of its
// time to note how far it came.
var errSlow = session.Errorf(session.Unavailable, "the client takes its events slowly; whoever comes next goes on")

// errLeaseLost: another function or a new connection has taken or broken the lease.
var errLeaseLost = errors.New("the lease of who pushes is another's")

// work pushes while it holds the lease, then gives the lease back. If it cannot give it
// back, the lease runs out.
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
			return errors.Join(err, p.save(ctx)) // note what was pushed; the lease runs out
		}
	}
}

// pushAll pushes the events after every entry's cursor, as long as there is a connection.
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

// pushPage posts the events of a page and moves the cursor in memory past each of them.
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

// push1 posts an event to the newest connection that takes it. pushed is false if the
// session has none.
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
			return false, err // the connection may not be up yet
		}
	}
}

// gapNotice returns the notification that events were lost (I4).
func gapNotice() []byte {
	return wire.NewNotification(wire.NotifyMessage,
		[]byte(`{"level":"warning","logger":"dormouse","data":"events were lost here: they are older or more than what is kept"}`))
}

// newest returns the newest connection of the session that has a record, or the zero
// Connection.
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

// save writes what was pushed and keeps the lease.
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

// merge reads the record that others have changed and adds what this pusher has pushed.
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
