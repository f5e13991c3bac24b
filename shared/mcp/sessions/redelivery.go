package sessions

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// redelivery is one attempt to push stored events that the client of a WebSocket session has not
// got. Only the instance that holds the session's Pusher lease pushes.
type redelivery struct {
	Publisher
	nonce   string             // names this redelivery as the holder of the lease
	held    bool               // this redelivery has held the lease, and has pushed all events
	s       storage.Session    // the session's record, with cursors newer than those in the store; valid while this redelivery holds the lease
	dropped []string           // connections that were found closed
	again   bool               // another instance has changed the record meanwhile, so there may be more events to push
	conn    storage.Connection // the record of the connection that newest has returned last
}

func (o Publisher) redelivery() *redelivery {
	return &redelivery{Publisher: o, nonce: storage.NewNonce()}
}

// run takes the lease and pushes. If another instance has the lease, run waits for it. run returns when
// done returns true or the session has no connection. Before each call of done, run calls note, which
// may change the record and reports whether it did.
func (p *redelivery) run(ctx context.Context, id storage.ID, note func(*storage.Session) bool, done func(*storage.Session) bool) error {
	for pause := pushRetry; ; {
		s, _, err := p.Store.Load(ctx, id, "")
		if err != nil {
			return storage.IgnoreNotFound(err) // the session is gone: no client will come back
		}
		changed := note(&s)
		over := p.Clients == nil || len(s.Conns) == 0 || done(&s)
		busy := heldAt(s.Pusher, time.Now())
		end, ends := ctx.Deadline()
		late := ends && time.Until(end) < 2*toNote
		if !over && !busy && !late {
			s.Pusher, changed = storage.Lease{Nonce: p.nonce, Until: time.Now().Add(pushLease)}, true
		}
		if changed {
			err := p.Store.Save(ctx, s)
			if errors.Is(err, storage.Conflict) {
				continue
			}
			if err != nil {
				return storage.IgnoreNotFound(err)
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
			if err := storage.Rest(ctx, pause); err != nil {
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
				return storage.IgnoreNotFound(err)
			}
		}
	}
}

// errSlow says that there is more to push than this instance has time for. The instance needs the
// rest of its time to record how far it has pushed.
var errSlow = storage.Errorf(storage.Unavailable, "the client reads its events slowly; the next function continues")

// errLeaseLost says that the lease has ended: another instance has taken it, or the client has connected
// anew.
var errLeaseLost = errors.New("another function holds the lease for pushing")

// work pushes all events, then frees the lease by writing the record without it.
func (p *redelivery) work(ctx context.Context) error {
	for {
		p.again = false
		err := p.pushAll(ctx)
		if errors.Is(err, errLeaseLost) {
			return err
		}
		if err == nil && p.again {
			continue
		}
		saved := p.put(ctx, storage.Lease{})
		if saved == nil {
			return err
		}
		if !errors.Is(saved, storage.Conflict) {
			return errors.Join(err, saved)
		}
		if merged := p.merge(ctx); merged != nil {
			return errors.Join(err, merged)
		}
		if err != nil {
			return errors.Join(err, p.save(ctx)) // save does not free the lease, which expires by itself
		}
	}
}

// pushAll pushes the events after each cursor, as long as there is a connection.
func (p *redelivery) pushAll(ctx context.Context) error {
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

// pushPage posts the events of a page, and moves the cursor in memory past each of them.
func (p *redelivery) pushPage(ctx context.Context, c *storage.Cursor, page storage.Page) error {
	ctx, cancel := context.WithDeadline(ctx, p.s.Pusher.Until)
	defer cancel()
	end, _ := ctx.Deadline()
	stop := end.Add(-toNote)
	if page.Gap {
		lost := wire.NewNotification(wire.NotifyMessage,
			[]byte(`{"level":"warning","logger":"dormouse","data":"events were lost here: they are older or more than what is kept"}`))
		if _, err := p.push1(ctx, storage.Event{Raw: lost}, storage.EventID{}); err != nil { // I4 in the package comment
			return err
		}
	}
	for _, e := range page.Events {
		if time.Now().After(stop) {
			return errSlow
		}
		pushed, err := p.push1(ctx, e, storage.EventID{Stream: c.Stream, Index: e.Index})
		if err != nil || !pushed {
			return err
		}
		c.Index, c.Final = e.Index, e.Final
	}
	return nil
}

// push1 posts an event to the newest connection that takes it. pushed is false if the session has
// no connection left.
func (p *redelivery) push1(ctx context.Context, e storage.Event, id storage.EventID) (pushed bool, err error) {
	for {
		conn, err := p.newest(ctx)
		if err != nil || conn.ID == "" {
			return false, err
		}
		err = p.event(ctx, conn.ID, conn.EventIDs && id.Index > 0, p.s.ID, p.s.Through(conn.Group), id, e.Raw)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, storage.Closed) {
			return false, err
		}
		if time.Since(conn.Expires.Add(-connectionLife)) > comingUp {
			p.drop(conn.ID)
		} else if err := storage.Rest(ctx, pushRetry); err != nil { // the connection may not be ready yet
			return false, err
		}
	}
}

// newest returns the session's newest connection that has a record, or the zero Connection.
func (p *redelivery) newest(ctx context.Context) (storage.Connection, error) {
	for len(p.s.Conns) > 0 {
		id := p.s.Conns[len(p.s.Conns)-1]
		if p.conn.ID == id {
			return p.conn, nil
		}
		conn, err := p.Store.Connection(ctx, id)
		switch {
		case err == nil:
			p.conn = conn
		case errors.Is(err, storage.NotFound):
			p.drop(id)
		default:
			return storage.Connection{}, err
		}
	}
	return storage.Connection{}, nil
}

func (p *redelivery) drop(conn string) {
	p.dropped = append(p.dropped, conn)
	p.s.Conns = without(p.s.Conns, conn)
}

// save writes the cursors and keeps the lease.
func (p *redelivery) save(ctx context.Context) error {
	for {
		err := p.put(ctx, p.s.Pusher)
		if !errors.Is(err, storage.Conflict) {
			return err
		}
		if err := p.merge(ctx); err != nil {
			return err
		}
	}
}

// put writes the record with this lease.
func (p *redelivery) put(ctx context.Context, lease storage.Lease) error {
	s := p.s
	s.Pusher = lease
	err := p.Store.Save(ctx, s)
	if err == nil {
		s.Rev++
		p.s = s
	}
	return err
}

// merge reads the record, which another instance has changed, and puts the cursors of this
// redelivery into it.
func (p *redelivery) merge(ctx context.Context) error {
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
