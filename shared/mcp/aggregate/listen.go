package aggregate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Listen implements [sessions.Endpoint]. It joins the standalone streams of the members that the session
// uses, and of members that it begins to use later.
func (g *Group) Listen(ctx context.Context, id storage.ID, lastID string, until func(hold time.Duration) time.Time) (sessions.Resumable, error) {
	if member, own, ok := requestEvent(lastID); ok {
		c, ok := g.member(member)
		if !ok {
			return nil, forbidden(member)
		}
		s, err := g.Host.At(c).Listen(ctx, sessions.MemberID(id, member), own, until)
		if errors.Is(err, storage.NotFound) { // the member's session has ended, so its stream is empty, as one of the group's session
			s, err = g.Host.At(g.As).Listen(ctx, id, own, until)
		}
		if err != nil {
			return nil, err
		}
		return &renamed{s, g.view(member)}, nil
	}
	places, err := placesOf(lastID)
	if err != nil {
		return nil, err
	}
	of, err := g.Host.Session(ctx, g.As, id)
	if err != nil {
		return nil, err
	}
	l := &listening{merged: g.merge(ctx, id), of: of, places: places, until: until}
	if err := l.openAll(ctx); err != nil {
		l.stop()
		return nil, err
	}
	return l, nil
}

// openAll opens the standalone streams of the members that the session uses. If it uses none, openAll
// opens the standalone stream of the session with the group, which has no events.
func (l *listening) openAll(ctx context.Context) error {
	for _, c := range l.g.joined(l.of) {
		p, err := l.part(ctx, c)
		if err != nil {
			return err
		}
		if p != nil {
			l.parts = append(l.parts, p)
		}
	}
	if len(l.parts) > 0 {
		return nil
	}
	own, err := l.g.Host.At(l.g.As).Listen(ctx, l.id, l.places[""], l.until)
	l.parts = []*part{{stream: own}}
	return err
}

// Again implements [sessions.Endpoint].
func (g *Group) Again(lastID string) string {
	if member, own, ok := requestEvent(lastID); ok {
		return member + placeMark + g.Host.At(g.As).Again(own)
	}
	places, err := placesOf(lastID)
	if err != nil {
		return ""
	}
	var all []*part
	for place := range strings.SplitSeq(lastID, placeNext) {
		member, _, _ := strings.Cut(place, placeMark)
		if own, ok := places[member]; ok {
			all = append(all, &part{member: member, place: g.Host.At(g.As).Again(own)})
		}
	}
	return placeText(all)
}

// listening is the standalone stream of a group.
type listening struct {
	*merged
	of     storage.Session
	places map[string]string // by member, the event id with which the client has come back
	until  func(hold time.Duration) time.Time

	begun   bool
	start   string    // event id that stands for the position before the first event
	next    time.Time // when to look again for the end of the session and for new lists; zero before readAll
	late    int       // how many members had no list of tools in a record at the last look
	open    int       // how many streams of members are read
	marks   *part     // the stream with the messages of method markJoined, nil if the session uses all members
	waiting bool      // no member's stream is read yet, and a message in marks may still announce one
	done    bool
}

func (l *listening) Next(ctx context.Context, until time.Time) ([]sessions.Event, error) {
	switch {
	case !l.begun:
		return l.begin(ctx)
	case l.next.IsZero():
		l.readAll(ctx)
	}
	for l.open > 0 || l.waiting {
		wake := l.next
		if until.Before(l.end) && until.Before(wake) { // at l.end all streams end by themselves
			wake = until
		}
		h, some, err := l.wait(ctx, wake)
		var events []sessions.Event
		switch {
		case err != nil:
			return nil, err
		case some:
			events, err = l.take(ctx, h)
		case !time.Now().Before(l.next):
			l.next = l.next.Add(l.g.Look)
			if _, _, err := l.g.Host.Load(ctx, l.g.As, l.id); errors.Is(err, storage.NotFound) {
				l.done = true
				return nil, nil
			}
			events = l.listed(ctx)
		}
		if len(events) > 0 || err != nil || !some && until.Before(l.end) && !time.Now().Before(until) {
			return events, err
		}
	}
	if l.done {
		return nil, nil
	}
	l.done = true
	return l.listed(ctx), nil
}

// begin calls the function begin for each member's stream, and returns the events of all.
func (l *listening) begin(ctx context.Context) (events []sessions.Event, err error) {
	l.end = l.until(l.Hold())
	early := make([]heard, len(l.parts))
	for i, p := range l.parts {
		if early[i], err = begin(ctx, p); err != nil {
			return nil, err
		}
	}
	l.begun, l.start = true, l.Cursor()
	for _, h := range early {
		events = append(events, l.pass(h, l.Cursor)...)
	}
	return events, nil
}

// begin makes the first read of a member's stream, which takes the lease of a standalone stream
// ([sessions.Manager.Listen]). It does not wait for events.
func begin(ctx context.Context, p *part) (heard, error) {
	s := p.stream.(sessions.Resumable)
	events, err := s.Next(ctx, time.Now())
	if err != nil {
		return heard{}, err
	}
	p.place, p.retry = s.Start(), s.Retry()
	return heard{of: p, events: events, cursor: s.Cursor()}, nil
}

// readAll starts to read the streams of the members.
func (l *listening) readAll(ctx context.Context) {
	l.next = time.Now().Add(l.g.Look)
	l.late, _ = l.g.unlisted(ctx, l.of) // after an error late is 0, so that listed does nothing
	for _, p := range l.parts {
		if p.member != "" {
			l.open++
			l.read(p)
		}
	}
	if l.waiting = l.open == 0; l.open < len(l.g.Members) {
		l.marks = &part{stream: l.g.Host.Joins(l.id).ForClient(l.g.As, l.id)}
		l.read(l.marks)
	}
}

func (l *listening) take(ctx context.Context, h heard) (events []sessions.Event, err error) {
	if h.of != l.marks {
		if h.done {
			l.open--
		}
		return l.pass(h, l.Cursor), nil
	}
	if h.done {
		l.waiting = false
	}
	for _, e := range h.events {
		c, ok := l.g.member(joinedOf(e.Raw))
		if !ok || slices.ContainsFunc(l.parts, func(p *part) bool { return p.member == c.Server.Name }) {
			continue
		}
		p, err := l.part(ctx, c)
		if err != nil {
			return events, err
		}
		if p == nil {
			continue
		}
		early, err := begin(l.ctx, p)
		if err != nil {
			return events, err
		}
		l.parts = append(slices.DeleteFunc(l.parts, func(p *part) bool { return p.member == "" }), p)
		events = append(append(events, sessions.Event{ID: l.Cursor()}), l.pass(early, l.Cursor)...)
		l.waiting = false
		l.open++
		l.read(p)
	}
	return events, nil
}

// part opens the standalone stream of a member. It returns nil if the session with the member
// has ended or has no such stream.
func (l *listening) part(ctx context.Context, c sessions.Caller) (*part, error) {
	s, err := l.g.Host.At(c).Listen(ctx, sessions.MemberID(l.id, c.Server.Name), l.places[c.Server.Name], l.until)
	switch code := storage.CodeOf(err); {
	case err == nil:
		return &part{member: c.Server.Name, stream: s}, nil
	case code == storage.NotFound, code == storage.Closed:
		return nil, nil
	default:
		return nil, err
	}
}

// listed returns list_changed notifications if unlisted returns less than l.late, and sets l.late anew.
func (l *listening) listed(ctx context.Context) (events []sessions.Event) {
	if l.late == 0 {
		return nil
	}
	now, err := l.g.unlisted(ctx, l.of)
	if err != nil {
		return nil
	}
	if now < l.late {
		for _, method := range []string{wire.NotifyToolsChanged, wire.NotifyPromptsChanged, wire.NotifyResourcesChanged} {
			events = append(events, sessions.Event{Event: storage.Event{Raw: wire.NewNotification(method, nil)}, ID: l.Cursor()})
		}
	}
	l.late = now
	return events
}

// unlisted returns for how many members no record has a list of tools.
func (g *Group) unlisted(ctx context.Context, of storage.Session) (n int, err error) {
	known, err := g.Host.Lists(ctx, of, g.Members, wire.MethodToolsList)
	for _, k := range known {
		if k.Result == nil {
			n++
		}
	}
	return n, err
}

func (l *listening) Start() string {
	if l.begun {
		return l.start
	}
	for _, p := range l.parts { // begin has failed at one of the parts, so no event of any part was sent
		p.place = p.stream.(sessions.Resumable).Start()
	}
	return l.Cursor()
}

// Cursor implements [sessions.Stream]. As [following.Cursor], it keeps the places of ended sessions.
func (l *listening) Cursor() string {
	parts := slices.Clone(l.parts)
	for _, c := range l.g.Members {
		at, ok := l.places[c.Server.Name]
		if ok && !slices.ContainsFunc(parts, func(p *part) bool { return p.member == c.Server.Name }) {
			parts = append(parts, &part{member: c.Server.Name, place: at})
		}
	}
	return placeText(parts)
}

// Close implements [sessions.Resumable]. The cursor is "", because the client has got its position
// with the last event.
func (l *listening) Close() (cursor string, retry time.Duration, now bool) {
	return "", l.Retry(), l.done
}

// Client returns "": the log line of this stream names no client.
func (l *listening) Client() string { return "" }

func (l *listening) Stream() storage.StreamID { return storage.Standalone }

// Done reports whether all streams or the session have ended.
func (l *listening) Done() bool { return l.done }

func (l *listening) Stored() bool { return true }

func (l *listening) Held() bool { return false }

func (l *listening) Boxed() bool { return false }

// Hold returns the longest Hold of the members' streams.
func (l *listening) Hold() (hold time.Duration) {
	for _, p := range l.parts {
		hold = max(hold, p.stream.(sessions.Resumable).Hold())
	}
	return hold
}

// Retry returns the longest Retry of the members' streams, because the client polls them together.
func (l *listening) Retry() time.Duration {
	retry := sessions.Pace
	for _, p := range l.parts {
		retry = max(retry, p.retry)
	}
	return retry
}

func (l *listening) Stop(context.Context, string) { l.halt() }

// placeText returns the event id that names a position in the stream of each part.
func placeText(parts []*part) string {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.member + placeMark + p.place
	}
	return strings.Join(texts, placeNext)
}

// placesOf reads what placeText wrote, by member. Errors: those of [storage.ParseEventID].
func placesOf(text string) (map[string]string, error) {
	places := map[string]string{}
	if text == "" {
		return places, nil
	}
	for place := range strings.SplitSeq(text, placeNext) {
		member, id, ok := strings.Cut(place, placeMark)
		if !ok {
			return nil, storage.BadEventID("server", wire.Clip(text))
		}
		at, err := storage.ParseEventID(id)
		if err != nil {
			return nil, err
		}
		at.Stream = storage.Standalone
		places[member] = at.String()
	}
	return places, nil
}
