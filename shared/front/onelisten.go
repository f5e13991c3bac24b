package front

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/group"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// The id of an event in a group begins with the member whose event it is. The standalone
// stream of a group has the events of all members that the session uses. Its ids name the
// place in the stream of each member:
//
//	everything~7/0jv…             an event of a request stream
//	everything~12;memory~3.k2f…   a place in the standalone stream
const (
	placeMark = "~"
	placeNext = ";"
)

// oneStreams serves the streams of a group to clients with a session.
type oneStreams struct{ *one }

// get opens the standalone stream of the group, or goes on with a stream.
func (o oneStreams) get() error {
	x := o.x
	if isModern(x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return notAllowed(methodsModern, "this protocol version has no stream to open; use POST")
	}
	if x.r.Header.Get(wire.HeaderSessionID) == "" && x.r.Header.Get(wire.HeaderProtocolVersion) == "" {
		return oneSSE(o).get()
	}
	s := streamable{x}
	if err := x.streams(); err != nil {
		return err
	}
	if err := s.checkVersion(); err != nil {
		return err
	}
	if err := s.sessionID(); err != nil {
		return err
	}
	o.session = x.session
	last := x.r.Header.Get(wire.HeaderLastEventID)
	if member, id, ok := strings.Cut(last, placeMark); ok && strings.Contains(id, "/") && !strings.Contains(id, placeNext) {
		if err := o.enter(member, nil, false); err != nil {
			return err
		}
		x.session = host.MemberID(o.session, member)
		return s.follows(id)
	}
	return o.listen(last)
}

// ear is the standalone stream of one member. The ear whose member is "" hears no server: it
// is that of the group's own session, which has marks for the members that are joined.
type ear struct {
	member string
	call   *host.Call
	place  string
	retry  time.Duration
}

// sound is what an ear has heard.
type sound struct {
	ear    *ear
	events []session.Event
	place  string
	gap    bool
	err    error
}

// listened is a standalone stream of a group, with the streams of its members in it.
type listened struct {
	oneStreams
	ctx     context.Context
	end     time.Time
	out     *stream
	ears    []*ear
	open    int  // streams of members that are heard
	idle    bool // no member's stream was heard, and one may be joined
	heard   chan sound
	hearing sync.WaitGroup
}

// listen serves the standalone streams of the members as one.
func (o oneStreams) listen(last string) error {
	x := o.x
	places, err := placesOf(last)
	if err != nil {
		return err
	}
	g, err := o.groupSession()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(x.ctx())
	l := &listened{oneStreams: o, ctx: ctx, end: x.begun, heard: make(chan sound)}
	defer l.hearing.Wait()
	defer cancel()
	if l.ears, err = o.ears(g, places); err != nil {
		return err
	}
	for _, e := range l.ears {
		l.end = later(l.end, x.until(e.call.Hold()))
	}
	var early []sound
	for _, e := range l.ears {
		s, err := e.begin(ctx)
		if err != nil {
			return err
		}
		early = append(early, s)
	}
	l.out = x.commit()
	l.out.seen = &seen{View: group.View{Plain: o.group.Plain}, place: func(string) string { return placeText(l.ears) }}
	l.out.prime(session.EventID{})
	for _, s := range early {
		o.pass(l.out, s)
	}
	if l.out.flush() != nil {
		return nil
	}
	late, _ := o.unlisted(g) // after an error the client is told of no change
	for _, e := range l.ears {
		if e.member != "" {
			l.hear(e)
		}
	}
	if l.idle = l.open == 0; l.open < len(o.members) {
		marks := &ear{call: x.opts.Host.Joins(o.session)}
		l.hearing.Go(func() { marks.hear(ctx, l.end, l.heard) })
	}
	look := time.NewTicker(x.opts.KeepAlive)
	defer look.Stop()
	for l.open > 0 || l.idle {
		timer := time.NewTimer(x.opts.KeepAlive)
		var err error
		select {
		case <-look.C:
			late = o.tellListed(l.out, g, late)
		case s := <-l.heard:
			err = l.take(s)
		case <-timer.C:
			l.out.comment("keep-alive")
		case <-x.ctx().Done():
			return nil
		}
		timer.Stop()
		if err != nil {
			x.err = err
			if x.ctx().Err() == nil && passing(err) {
				l.out.leave(session.EventID{}, max(l.retry(), 10*x.opts.Host.Limits().Pace))
				_ = l.out.flush() // nothing follows, so it does not matter if the client has gone
			}
			return nil
		}
		if len(l.out.buf) > 0 && l.out.flush() != nil {
			return nil // a client that has gone loses nothing: it comes back with the last id it has
		}
	}
	o.tellListed(l.out, g, late)
	l.out.pace(l.retry())
	_ = l.out.flush() // as above
	return nil
}

// retry is the longest of the members' retry times: the client polls them together.
func (l *listened) retry() time.Duration {
	retry := l.x.opts.Host.Limits().Pace
	for _, e := range l.ears {
		retry = max(retry, e.retry)
	}
	return retry
}

// hear begins to hear the stream of a member.
func (l *listened) hear(e *ear) {
	l.idle = false
	l.open++
	l.hearing.Go(func() { e.hear(l.ctx, l.end, l.heard) })
}

// take adds what was heard to the client's stream.
func (l *listened) take(s sound) error {
	if s.err != nil {
		return s.err
	}
	if s.ear.member != "" {
		if len(s.events) == 0 {
			l.open--
		}
		l.pass(l.out, s)
		return nil
	}
	if len(s.events) == 0 {
		l.idle = false
	}
	for _, e := range s.events {
		if err := l.joined(joinedOf(e.Raw)); err != nil {
			return err
		}
	}
	return nil
}

// joined begins to hear a member that the session has begun to use.
func (l *listened) joined(member string) error {
	c, ok := l.member(member)
	if !ok || slices.ContainsFunc(l.ears, func(e *ear) bool { return e.member == member }) {
		return nil
	}
	e, err := l.ear(c, "")
	if err != nil || e == nil {
		return err
	}
	s, err := e.begin(l.ctx)
	if err != nil {
		return err
	}
	l.ears = append(slices.DeleteFunc(l.ears, func(e *ear) bool { return e.member == "" }), e)
	l.out.prime(session.EventID{})
	l.pass(l.out, s)
	l.hear(e)
	return nil
}

// unlisted returns how many members have tools that no client has ever had. A list of the
// group may be without them, because it does not wait long for the start of a server.
func (o oneStreams) unlisted(g session.Session) (n int, err error) {
	known, err := o.x.opts.Host.Lists(o.x.ctx(), g, o.members, wire.MethodToolsList)
	for _, k := range known {
		if k.Result == nil {
			n++
		}
	}
	return n, err
}

// tellListed tells the client that the lists of the group have changed if fewer members are
// unlisted than before, and returns how many are.
func (o oneStreams) tellListed(out *stream, g session.Session, before int) int {
	if before == 0 {
		return 0
	}
	now, err := o.unlisted(g)
	if err != nil {
		return before
	}
	if now < before {
		for _, method := range []string{wire.NotifyToolsChanged, wire.NotifyPromptsChanged, wire.NotifyResourcesChanged} {
			out.message(out.seen.place(""), wire.NewNotification(method, nil))
		}
	}
	return now
}

// ears opens the standalone streams of the members that the session uses. Before the
// session uses a member, the stream is that of the group itself, which has no events.
func (o oneStreams) ears(g session.Session, places map[string]string) ([]*ear, error) {
	var ears []*ear
	for _, c := range o.members {
		name := c.Server.Name
		if !slices.Contains(g.Members, name) {
			continue
		}
		e, err := o.ear(c, places[name])
		if err != nil {
			return nil, err
		}
		if e != nil {
			ears = append(ears, e)
		}
	}
	if len(ears) > 0 {
		return ears, nil
	}
	call, err := o.x.opts.Host.Listen(o.x.ctx(), o.caller, o.session, places[""])
	return []*ear{{call: call}}, err
}

// ear opens the standalone stream of a member. It returns nil if the session with the member
// has ended.
func (o oneStreams) ear(c host.Caller, place string) (*ear, error) {
	call, err := o.x.opts.Host.Listen(o.x.ctx(), c, host.MemberID(o.session, c.Server.Name), place)
	switch code := session.CodeOf(err); {
	case err == nil:
		return &ear{member: c.Server.Name, call: call}, nil
	case code == session.NotFound, code == session.Closed:
		return nil, nil
	default:
		return nil, err
	}
}

// begin takes the stream, and returns what it has already.
func (e *ear) begin(ctx context.Context) (sound, error) {
	events, err := e.call.Next(ctx, time.Now())
	if err != nil {
		return sound{}, err
	}
	e.place, e.retry = before(e.call, events).String(), e.call.Retry()
	return sound{e, events, e.call.Cursor().String(), len(events) > 0 && e.call.Gap(), nil}, nil
}

// hear passes on events until the stream has ended or the time end has come. The last
// sound has no events.
func (e *ear) hear(ctx context.Context, end time.Time, to chan<- sound) {
	for {
		events, err := e.call.Next(ctx, end)
		s := sound{e, events, e.call.Cursor().String(), len(events) > 0 && e.call.Gap(), err}
		select {
		case to <- s:
		case <-ctx.Done():
			return
		}
		if _, closed := e.call.Close(); err != nil || len(events) == 0 {
			return
		} else if closed || e.call.Done() {
			select {
			case to <- sound{ear: e, place: s.place}:
			case <-ctx.Done():
			}
			return
		}
	}
}

// pass adds what a member has sent to the stream.
func (o oneStreams) pass(out *stream, s sound) {
	if s.gap {
		out.gap()
	}
	out.seen.Member = s.ear.member
	for i, e := range s.events {
		if len(e.Raw) == 0 {
			continue
		}
		s.ear.place = session.EventID{Index: e.Index}.String()
		if i == len(s.events)-1 {
			s.ear.place = s.place
		}
		out.message(out.seen.place(""), e.Raw)
	}
	s.ear.place = s.place
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
			return nil, &session.EventIDError{Part: "server", ID: clip(text)}
		}
		if _, err := session.ParseEventID(id); err != nil {
			return nil, err
		}
		places[member] = id
	}
	return places, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// hear serves subscriptions/listen: it listens at each member that may report what the client
// wants to hear of. A member that has never started may report anything once it has.
func (o oneModern) hear(m modern) error {
	x := o.x
	known, err := x.opts.Host.Greetings(x.ctx(), o.members, wire.V20251125)
	if err != nil {
		return err
	}
	greeting, _, err := oneLists(o).greeting(wire.V20251125)
	if err != nil {
		return err
	}
	out := newReply(x, m.req)
	l, err := bridge.NewListener(m.req, greeting)
	if err != nil {
		return out.fail(err)
	}
	wanted, err := oneLists(o).subscribed(m.req.Params)
	if err != nil {
		return out.fail(err)
	}
	ctx, cancel := context.WithCancel(x.ctx())
	said, all := make(chan []byte), make(chan struct{})
	var listeners sync.WaitGroup
	defer listeners.Wait()
	defer cancel()
	open := 0
	for i, c := range o.members {
		greeting := known[i].Result
		if greeting == nil {
			greeting = group.Unknown()
		}
		params, wanted := group.Subscription(c.Server.Name, wanted, greeting)
		if !wanted {
			continue
		}
		inner := *x
		inner.one, inner.caller = nil, c
		inner.caller.Transport = session.Modern
		inner.session = host.PinnedID(inner.caller)
		inner.seen = &seen{View: group.View{Member: c.Server.Name, Plain: o.group.Plain}, place: func(id string) string { return id }}
		inner.r = x.r.Clone(ctx)
		inner.w = &overheard{ctx: ctx, header: http.Header{}, to: said, all: all}
		req := m.req
		req.Params = params
		open++
		listeners.Go(func() {
			if err := (modern{&inner, req}).listenTo(newReply(&inner, req), greeting); err != nil {
				select {
				case said <- wire.ErrorResponse(req.ID, problemOf(err).rpc):
				case <-ctx.Done():
				}
			}
		})
	}
	acks := group.Acks{}
	for waiting := open; waiting > 0; {
		raw, err := out.overhear(said)
		if err != nil {
			return out.fail(err)
		}
		switch method, _ := wire.String(wire.Lookup(raw, "method")); method {
		case wire.NotifyAcknowledged:
			acks.Add(raw)
			waiting--
		case "": // a member that refuses is not listened to
			waiting--
			open--
		}
	}
	if err := out.notify(acks.Message(m.req.ID)); err != nil {
		return out.fail(err)
	}
	close(all)
	for {
		raw, err := out.overhear(said)
		switch {
		case errors.Is(err, errLate):
			out.finish(l.End(), 0)
			return nil
		case err != nil:
			return out.fail(err)
		case wire.Lookup(raw, "method") != nil:
			if err := out.notify(raw); err != nil {
				return out.fail(err)
			}
		default:
			if open--; open <= 0 {
				out.finish(l.End(), 0)
				return nil
			}
		}
	}
}

// overhear returns the next message of a listener at a member. In a silence it sends comments.
func (r *reply) overhear(said <-chan []byte) ([]byte, error) {
	hear, done := make(chan heard), make(chan struct{})
	defer close(done)
	got := make(chan []byte, 1)
	go func() {
		select {
		case raw := <-said:
			got <- raw
			select {
			case hear <- heard{}:
			case <-done:
			}
		case <-done:
		}
	}()
	if _, err := r.wait(hear); err != nil {
		return nil, err
	}
	return <-got, nil
}

// overheard is the response of a listener at one member. Its messages go to the response of
// the group.
type overheard struct {
	ctx    context.Context
	header http.Header
	to     chan<- []byte
	all    <-chan struct{} // closed: the client has the acknowledgement of all members
	acked  bool            // the first message, which acknowledges or refuses, has been passed on
}

// Header returns the headers, which nobody sees.
func (w *overheard) Header() http.Header { return w.header }

// WriteHeader does nothing.
func (w *overheard) WriteHeader(int) {}

// FlushError does nothing: each Write is complete.
func (w *overheard) FlushError() error { return w.ctx.Err() }

// Write passes on the messages in p: whole server-sent events, or one message.
func (w *overheard) Write(p []byte) (int, error) {
	if w.header.Get("Content-Type") != wire.MediaSSE {
		return len(p), w.pass(bytes.Clone(p))
	}
	for r := wire.NewSSEReader(bytes.NewReader(p), len(p)+1); ; {
		e, err := r.Next()
		if err != nil {
			return len(p), nil // the end of p
		}
		if len(e.Data) > 0 {
			if err := w.pass(bytes.Clone(e.Data)); err != nil {
				return 0, err
			}
		}
	}
}

// pass passes on a message. A client gets no change before the acknowledgement, so all but the
// first message wait for the slowest member.
func (w *overheard) pass(raw json.RawMessage) error {
	if w.acked {
		select {
		case <-w.all:
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
	}
	select {
	case w.to <- raw:
		w.acked = true
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}
