package aggregate

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Listen implements [host.Endpoint]. The standalone streams of the members that the session
// uses are one stream. If it does not use all of them yet, the stream also hears of those that
// it begins to use.
func (g *Group) Listen(ctx context.Context, id session.ID, last string, until func(hold time.Duration) time.Time) (host.Resumable, error) {
	if member, own, ok := requestEvent(last); ok {
		c, ok := g.member(member)
		if !ok {
			return nil, forbidden(member)
		}
		s, err := g.Host.At(c).Listen(ctx, host.MemberID(id, member), own, until)
		if err != nil {
			return nil, err
		}
		return &renamed{s, g.view(member)}, nil
	}
	places, err := placesOf(last)
	if err != nil {
		return nil, err
	}
	of, err := g.Host.Session(ctx, g.As, id)
	if err != nil {
		return nil, err
	}
	l := &listening{g: g, of: of, until: until, heard: make(chan sound)}
	for _, c := range g.joined(of) {
		e, err := l.ear(ctx, c, places[c.Server.Name])
		if err != nil {
			return nil, err
		}
		if e != nil {
			l.ears = append(l.ears, e)
		}
	}
	if len(l.ears) == 0 { // the group's own session has such a stream too, without events
		s, err := g.Host.At(g.As).Listen(ctx, id, places[""], until)
		if err != nil {
			return nil, err
		}
		l.ears = []*ear{{stream: s}}
	}
	l.ctx, l.stop = context.WithCancel(ctx)
	return l, nil
}

// Again implements [host.Endpoint].
func (g *Group) Again(last string) string {
	if member, own, ok := requestEvent(last); ok {
		return member + placeMark + g.Host.At(g.As).Again(own)
	}
	places, err := placesOf(last)
	if err != nil {
		return ""
	}
	var all []*ear
	for place := range strings.SplitSeq(last, placeNext) {
		member, _, _ := strings.Cut(place, placeMark)
		if own, ok := places[member]; ok {
			all = append(all, &ear{member: member, place: g.Host.At(g.As).Again(own)})
		}
	}
	return placeText(all)
}

// ear is the standalone stream of one member. The ear whose member is "" hears no server: it
// is that of the group's own session.
type ear struct {
	member string
	stream host.Resumable
	place  string
	retry  time.Duration
}

// sound is what an ear has heard, or a mark of a member that the session has joined. The last
// one of an ear has no events.
type sound struct {
	ear    *ear // nil: of the marks
	events []host.Event
	place  string
	err    error
}

// listening is the standalone stream of a group.
type listening struct {
	g     *Group
	of    session.Session
	until func(hold time.Duration) time.Time
	ears  []*ear

	ctx     context.Context // of what reads
	stop    context.CancelFunc
	reading sync.WaitGroup
	heard   chan sound

	begun   bool   // each ear has taken its stream
	start   string // the place before the first event
	end     time.Time
	look    time.Time // when to look for members that are listed by now; zero: reading has not begun
	late    int       // members that are not listed yet
	open    int       // streams of members that are read
	waiting bool      // no member's stream was read, and one may be joined
	done    bool
}

// Next returns what the members send.
func (l *listening) Next(ctx context.Context, until time.Time) ([]host.Event, error) {
	switch {
	case !l.begun:
		return l.begin(ctx)
	case l.look.IsZero():
		l.read(ctx)
	}
	for l.open > 0 || l.waiting {
		wake := l.look
		if until.Before(l.end) && until.Before(wake) {
			wake = until // at the end it waits until all streams have ended
		}
		timer := time.NewTimer(time.Until(wake))
		select {
		case s := <-l.heard:
			timer.Stop()
			if events, err := l.take(ctx, s); len(events) > 0 || err != nil {
				return events, err
			}
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-timer.C:
			if !time.Now().Before(l.look) {
				l.look = l.look.Add(l.g.Look)
				if events := l.listed(ctx); len(events) > 0 {
					return events, nil
				}
			}
			if until.Before(l.end) && !time.Now().Before(until) {
				return nil, nil
			}
		}
	}
	if l.done {
		return nil, nil
	}
	l.done = true
	return l.listed(ctx), nil
}

// begin takes the streams of the members, and returns what they have already.
func (l *listening) begin(ctx context.Context) ([]host.Event, error) {
	l.end = l.until(l.Hold())
	var early []sound
	for _, e := range l.ears {
		s, err := e.begin(ctx)
		if err != nil {
			return nil, err
		}
		early = append(early, s)
	}
	l.begun, l.start = true, placeText(l.ears)
	var events []host.Event
	for _, s := range early {
		events = append(events, l.pass(s)...)
	}
	return events, nil
}

// read begins to read all streams.
func (l *listening) read(ctx context.Context) {
	l.look = time.Now().Add(l.g.Look)
	l.late, _ = l.g.unlisted(ctx, l.of) // after an error the client is told of no change
	for _, e := range l.ears {
		if e.member != "" {
			l.hear(e)
		}
	}
	if l.waiting = l.open == 0; l.open < len(l.g.Members) {
		marks := l.g.Host.Joins(l.of.ID).ForClient(l.g.As, l.of.ID)
		l.reading.Go(func() { l.follow(nil, marks) })
	}
}

// hear begins to read the stream of a member.
func (l *listening) hear(e *ear) {
	l.waiting = false
	l.open++
	l.reading.Go(func() { l.follow(e, e.stream) })
}

// follow passes on events until the stream has ended or the response must.
func (l *listening) follow(e *ear, stream host.Resumable) {
	for last := false; !last; {
		events, err := stream.Next(l.ctx, l.end)
		s := sound{e, events, stream.Cursor(), err}
		last = err != nil || len(events) == 0
		if !l.pour(s) {
			return
		}
		if _, _, closed := stream.Close(); !last && (closed || stream.Done()) {
			l.pour(sound{ear: e, place: s.place})
			return
		}
	}
}

func (l *listening) pour(s sound) bool {
	select {
	case l.heard <- s:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// take returns the events of a sound for the client.
func (l *listening) take(ctx context.Context, s sound) ([]host.Event, error) {
	switch {
	case s.err != nil:
		return nil, s.err
	case s.ear != nil:
		if len(s.events) == 0 {
			l.open--
		}
		return l.pass(s), nil
	case len(s.events) == 0:
		l.waiting = false
	}
	var all []host.Event
	for _, e := range s.events {
		events, err := l.joined(ctx, joinedOf(e.Raw))
		if err != nil {
			return all, err
		}
		all = append(all, events...)
	}
	return all, nil
}

// joined begins to read the stream of a member that the session has begun to use.
func (l *listening) joined(ctx context.Context, member string) ([]host.Event, error) {
	c, ok := l.g.member(member)
	if !ok || slices.ContainsFunc(l.ears, func(e *ear) bool { return e.member == member }) {
		return nil, nil
	}
	e, err := l.ear(ctx, c, "")
	if err != nil || e == nil {
		return nil, err
	}
	s, err := e.begin(l.ctx)
	if err != nil {
		return nil, err
	}
	l.ears = append(slices.DeleteFunc(l.ears, func(e *ear) bool { return e.member == "" }), e)
	events := append([]host.Event{{ID: placeText(l.ears)}}, l.pass(s)...)
	l.hear(e)
	return events, nil
}

// ear opens the standalone stream of a member. It returns nil if the session with the member
// has ended.
func (l *listening) ear(ctx context.Context, c host.Caller, place string) (*ear, error) {
	s, err := l.g.Host.At(c).Listen(ctx, host.MemberID(l.of.ID, c.Server.Name), place, l.until)
	switch code := session.CodeOf(err); {
	case err == nil:
		return &ear{member: c.Server.Name, stream: s}, nil
	case code == session.NotFound, code == session.Closed:
		return nil, nil
	default:
		return nil, err
	}
}

// begin takes the stream, and returns what it has already.
func (e *ear) begin(ctx context.Context) (sound, error) {
	events, err := e.stream.Next(ctx, time.Now())
	if err != nil {
		return sound{}, err
	}
	e.place, e.retry = e.stream.Start(), e.stream.Retry()
	return sound{e, events, e.stream.Cursor(), nil}, nil
}

// pass returns what a member has sent as the client gets it. Each event has the place in all
// streams.
func (l *listening) pass(s sound) (events []host.Event) {
	gap := false
	for i, e := range s.events {
		gap = gap || e.Gap
		if len(e.Raw) == 0 {
			continue
		}
		s.ear.place = session.EventID{Index: e.Index}.String()
		if i == len(s.events)-1 {
			s.ear.place = s.place
		}
		events = append(events, host.Event{Event: session.Event{Raw: l.g.view(s.ear.member).Message(e.Raw)}, ID: placeText(l.ears), Gap: gap})
		gap = false
	}
	s.ear.place = s.place
	return events
}

// listed tells the client that the lists of the group have changed if fewer members are
// unlisted than before.
func (l *listening) listed(ctx context.Context) (events []host.Event) {
	if l.late == 0 {
		return nil
	}
	now, err := l.g.unlisted(ctx, l.of)
	if err != nil {
		return nil
	}
	if now < l.late {
		for _, method := range []string{wire.NotifyToolsChanged, wire.NotifyPromptsChanged, wire.NotifyResourcesChanged} {
			events = append(events, host.Event{Event: session.Event{Raw: wire.NewNotification(method, nil)}, ID: placeText(l.ears)})
		}
	}
	l.late = now
	return events
}

// unlisted returns how many members have tools that no client has ever had. A list of the
// group may be without them, because it does not wait long for the start of a server.
func (g *Group) unlisted(ctx context.Context, of session.Session) (n int, err error) {
	known, err := g.Host.Lists(ctx, of, g.Members, wire.MethodToolsList)
	for _, k := range known {
		if k.Result == nil {
			n++
		}
	}
	return n, err
}

// Start returns the place before the first events.
func (l *listening) Start() string {
	if l.begun {
		return l.start
	}
	for _, e := range l.ears { // one of them could not take its stream
		e.place = e.stream.Start()
	}
	return placeText(l.ears)
}

// Cursor returns the place in all streams.
func (l *listening) Cursor() string { return placeText(l.ears) }

// Close reports whether all streams have ended. The client has the id of its place.
func (l *listening) Close() (cursor string, retry time.Duration, now bool) {
	return "", l.Retry(), l.done
}

// Of returns the session of the group.
func (l *listening) Of() (host.Caller, session.ID) { return l.g.As, l.of.ID }

// Client returns "", because the log line of the stream names no client.
func (l *listening) Client() string { return "" }

// Stream returns the standalone stream.
func (l *listening) Stream() session.StreamID { return session.Standalone }

// Done reports whether all streams have ended.
func (l *listening) Done() bool { return l.done }

// Stored returns true.
func (l *listening) Stored() bool { return true }

// Held returns false.
func (l *listening) Held() bool { return false }

// Hold is the longest of the members'.
func (l *listening) Hold() (hold time.Duration) {
	for _, e := range l.ears {
		hold = max(hold, e.stream.Hold())
	}
	return hold
}

// Retry is the longest of the members': the client polls them together.
func (l *listening) Retry() time.Duration {
	retry := l.g.Host.Limits().Pace
	for _, e := range l.ears {
		retry = max(retry, e.retry)
	}
	return retry
}

// Stop ends the reads.
func (l *listening) Stop(context.Context, string) {
	l.stop()
	l.reading.Wait()
}

// placeText returns the id of a place in all streams.
func placeText(ears []*ear) string {
	texts := make([]string, len(ears))
	for i, e := range ears {
		texts[i] = e.member + placeMark + e.place
	}
	return strings.Join(texts, placeNext)
}

// placesOf reads what placeText wrote. Errors: as of [session.ParseEventID].
func placesOf(text string) (map[string]string, error) {
	places := map[string]string{}
	if text == "" {
		return places, nil
	}
	for place := range strings.SplitSeq(text, placeNext) {
		member, id, ok := strings.Cut(place, placeMark)
		if !ok {
			return nil, &session.EventIDError{Part: "server", ID: wire.Clip(text)}
		}
		at, err := session.ParseEventID(id)
		if err != nil {
			return nil, err
		}
		at.Stream = session.Standalone
		places[member] = at.String()
	}
	return places, nil
}
