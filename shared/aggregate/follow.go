package aggregate

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Follow implements [host.Endpoint]. The session of the group has a stream with the answers
// that the group itself gives, and so has the session with each member. The client gets all of
// them as one stream.
func (g *Group) Follow(ctx context.Context, last, named string, until time.Time) (session.ID, host.Stream, error) {
	from, places, err := resumed(last)
	if err != nil {
		return "", nil, err
	}
	var id session.ID
	if from != "" {
		named = from
	}
	if named != "" {
		id, err = host.ReadSessionID(named)
	} else {
		var s session.Session
		s, err = g.Host.Open(ctx, g.As)
		id = s.ID
	}
	if err != nil {
		return "", nil, err
	}
	of, _, err := g.Host.Load(ctx, g.As, id)
	if err != nil {
		return id, nil, err
	}
	f := &following{g: g, id: id, places: places, end: until, joining: map[string]int{}, heard: make(chan followed)}
	f.ctx, f.stop = context.WithCancel(ctx)
	err = f.open(g.As, "", id)
	for _, c := range g.joined(of) {
		if err == nil {
			err = unlessGone(f.member(c))
		}
	}
	if err != nil {
		f.stop()
		f.reading.Wait()
		return id, nil, err
	}
	return id, f, nil
}

func unlessGone(err error) error {
	if errors.Is(err, session.NotFound) {
		return nil
	}
	return err
}

// resumed returns the session of a client that comes back, "" if last names none, and how far
// the client has read each stream, by member. Errors: as of [session.ParseEventID].
func resumed(last string) (id string, places map[string]session.Index, err error) {
	places = map[string]session.Index{}
	id, rest, ok := strings.Cut(last, placeNext)
	if !ok {
		if last != "" {
			_, err = session.ParseEventID(last) // one of a server is no place here
		}
		return "", places, err
	}
	for place := range strings.SplitSeq(rest, placeNext) {
		member, at, _ := strings.Cut(place, placeMark)
		n, err := strconv.ParseInt(at, 10, 64)
		if err != nil || n < 0 {
			return "", nil, &session.EventIDError{Part: "index", ID: wire.Clip(last)}
		}
		places[member] = session.Index(n)
	}
	return id, places, nil
}

// part is the stream of one session: that of the group, whose member is "", or of a member.
type part struct {
	member string
	call   *host.Call
	place  session.Index // of the last event that Next has returned
}

// followed is what was read from a part. done reports that nothing more will come.
type followed struct {
	of     *part
	events []session.Event
	gap    bool
	err    error
	done   bool
}

// following is the stream of a client of HTTP+SSE.
type following struct {
	g      *Group
	id     session.ID
	end    time.Time
	places map[string]session.Index // that the client has named
	parts  []*part
	// joining has the members whose session is not open yet, and how often it was looked for.
	joining map[string]int
	done    bool

	ctx     context.Context // of what reads
	stop    context.CancelFunc
	reading sync.WaitGroup
	heard   chan followed
}

// A stream looks this often, and this many times, for a session that a mark has announced. If
// the function that wrote the mark has died, the next POST writes another one.
const (
	joinEvery = 100 * time.Millisecond
	mostJoins = 50
)

// open adds the stream of a session, and begins to read it.
func (f *following) open(c host.Caller, member string, id session.ID) error {
	var from *session.Index
	if at, ok := f.places[member]; ok {
		from = &at
	}
	call, err := f.g.Host.Follow(f.ctx, c, id, from, f.end)
	if err != nil {
		return err
	}
	p := &part{member: member, call: call, place: call.Cursor().Index}
	f.parts = append(f.parts, p)
	f.reading.Go(func() { f.read(p) })
	return nil
}

func (f *following) member(c host.Caller) error {
	if slices.ContainsFunc(f.parts, func(p *part) bool { return p.member == c.Server.Name }) {
		return nil
	}
	return f.open(c, c.Server.Name, host.MemberID(f.id, c.Server.Name))
}

// read passes on what a stream has until the client has gone or the time is over.
func (f *following) read(p *part) {
	for {
		until := time.Now().Add(f.g.Look)
		if f.end.Before(until) {
			until = f.end
		}
		events, err := p.call.Next(f.ctx, until)
		e := followed{p, events, len(events) > 0 && p.call.Gap(), err, err != nil || p.call.Done() || !time.Now().Before(f.end)}
		if len(events) == 0 && !e.done {
			continue
		}
		select {
		case f.heard <- e:
		case <-f.ctx.Done():
			return
		}
		if e.done {
			return
		}
	}
}

// Next returns what the sessions of the group send.
func (f *following) Next(ctx context.Context, until time.Time) ([]host.Event, error) {
	for !f.done {
		wake := until
		if soon := time.Now().Add(joinEvery); len(f.joining) > 0 && soon.Before(until) {
			wake = soon
		}
		timer := time.NewTimer(time.Until(wake))
		var events []host.Event
		select {
		case e := <-f.heard:
			timer.Stop()
			if e.err != nil {
				return nil, e.err
			}
			events = f.pass(e)
			f.done = e.done && e.of.member == ""
			if e.done && !f.done && time.Now().Before(f.end) { // the session with this member has ended; it may be opened anew
				f.places[e.of.member] = e.of.place
				f.parts = slices.DeleteFunc(f.parts, func(p *part) bool { return p == e.of })
			}
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-timer.C:
		}
		if err := f.join(); err != nil {
			return events, err
		}
		if len(events) > 0 || !time.Now().Before(until) {
			return events, nil
		}
	}
	return nil, nil
}

// join opens the streams of members that have just been joined. The session with a member
// may be created a moment after its mark.
func (f *following) join() error {
	for name := range f.joining {
		if c, ok := f.g.member(name); ok {
			err := f.member(c)
			if errors.Is(err, session.NotFound) && f.joining[name] < mostJoins {
				f.joining[name]++
				continue
			}
			if err = unlessGone(err); err != nil {
				return err
			}
		}
		delete(f.joining, name)
	}
	return nil
}

// pass returns events as the client gets them.
func (f *following) pass(e followed) (events []host.Event) {
	gap := e.gap
	for _, ev := range e.events {
		e.of.place = ev.Index
		raw := ev.Raw
		if len(raw) == 0 {
			continue
		}
		if e.of.member != "" {
			raw = f.g.view(e.of.member).Message(raw)
		} else if name := joinedOf(raw); name != "" {
			f.joining[name] = 0
			continue
		}
		events = append(events, host.Event{Event: session.Event{Raw: raw}, ID: f.Cursor(), Gap: gap})
		gap = false
	}
	return events
}

// Cursor returns the id of the place that the client has reached.
func (f *following) Cursor() string {
	text := string(f.id)
	for _, p := range f.parts {
		text += placeNext + p.member + placeMark + strconv.FormatInt(int64(p.place), 10)
	}
	return text
}

// Stop ends the reads, and records in the sessions which events were sent.
func (f *following) Stop(ctx context.Context, sent string) {
	f.stop()
	f.reading.Wait()
	_, places, err := resumed(sent)
	if err != nil {
		return
	}
	for _, p := range f.parts {
		if at, ok := places[p.member]; ok {
			_ = p.call.Report(ctx, at) // if this fails, the next stream repeats the events of this one
		}
	}
}

// Of returns the session of the group.
func (f *following) Of() (host.Caller, session.ID) { return f.g.As, f.id }

// Done reports whether the session of the group has ended, or another stream has taken the
// place of this one.
func (f *following) Done() bool { return f.done }
