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

// ear is the standalone stream of one member.
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

// listen serves the standalone streams of the members as one.
func (o oneStreams) listen(last string) error {
	x := o.x
	g, err := o.groupSession()
	if err != nil {
		return err
	}
	places := placesOf(last)
	ears, err := o.ears(g, places)
	if err != nil {
		return err
	}
	end := x.begun
	for _, e := range ears {
		end = later(end, x.until(e.call.Hold()))
	}
	var early []sound
	for _, e := range ears {
		events, err := e.call.Next(x.ctx(), x.begun)
		if err != nil {
			return err
		}
		e.place, e.retry = before(e.call, events).String(), e.call.Retry()
		early = append(early, sound{e, events, e.call.Cursor().String(), len(events) > 0 && e.call.Gap(), nil})
	}
	out := x.commit()
	out.retry = x.opts.Host.Limits().Pace
	out.seen = &seen{View: group.View{Plain: o.group.Plain}, place: func(string) string { return placeText(ears) }}
	prime := func() { // the client polls all members together, so it gets the longest of their retry times
		for _, e := range ears {
			out.retry = max(out.retry, e.retry)
		}
		out.prime(session.EventID{}, out.retry)
	}
	prime()
	for _, s := range early {
		o.pass(out, s)
	}
	if out.flush() != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(x.ctx())
	late, _ := o.unlisted(g) // after an error the client is told of no change
	heard := make(chan sound)
	var hearing sync.WaitGroup
	defer hearing.Wait()
	defer cancel()
	for _, e := range ears {
		hearing.Go(func() { e.hear(ctx, end, heard) })
	}
	look := time.NewTicker(x.opts.KeepAlive)
	defer look.Stop()
	for open := len(ears); open > 0; {
		timer := time.NewTimer(x.opts.KeepAlive)
		select {
		case <-look.C:
			late = o.tellListed(out, g, late)
		case s := <-heard:
			if s.err != nil {
				x.err = s.err
				if x.ctx().Err() == nil && passing(s.err) {
					out.retry = 10 * x.opts.Host.Limits().Pace
					prime()
					_ = out.flush() // nothing follows, so it does not matter if the client has gone
				}
				return nil
			}
			if len(s.events) == 0 {
				open--
			}
			o.pass(out, s)
		case <-timer.C:
			out.comment("keep-alive")
		case <-x.ctx().Done():
			return nil
		}
		timer.Stop()
		if len(out.buf) > 0 && out.flush() != nil {
			return nil // a client that has gone loses nothing: it comes back with the last id it has
		}
	}
	o.tellListed(out, g, late)
	out.pace(out.retry)
	_ = out.flush() // as above
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
	h, ctx := o.x.opts.Host, o.x.ctx()
	var ears []*ear
	for _, c := range o.members {
		name := c.Server.Name
		if !slices.Contains(g.Members, name) {
			continue
		}
		call, err := h.Listen(ctx, c, host.MemberID(o.session, name), places[name])
		switch code := session.CodeOf(err); {
		case err == nil:
			ears = append(ears, &ear{member: name, call: call})
		case code != session.NotFound && code != session.Closed:
			return nil, err
		}
	}
	if len(ears) > 0 {
		return ears, nil
	}
	call, err := h.Listen(ctx, o.caller, o.session, places[""])
	return []*ear{{call: call}}, err
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

// placesOf reads what placeText wrote. A place that is not of its form is ignored.
func placesOf(text string) map[string]string {
	places := map[string]string{}
	for place := range strings.SplitSeq(text, placeNext) {
		if member, id, ok := strings.Cut(place, placeMark); ok {
			if _, err := session.ParseEventID(id); err == nil {
				places[member] = id
			}
		}
	}
	return places
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// hear serves subscriptions/listen: it listens at each member that may report what the client
// wants to hear of. A member that has never started is not listened to.
func (o oneModern) hear(m modern) error {
	x := o.x
	known, err := x.opts.Host.Greetings(x.ctx(), o.members, wire.V20251125)
	if err != nil {
		return err
	}
	greeting, err := oneLists(o).greeting(wire.V20251125)
	if err != nil {
		return err
	}
	out := newReply(x, m.req)
	l, err := bridge.NewListener(m.req, greeting)
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
		params, wanted := group.Subscription(c.Server.Name, m.req.Params, known[i].Result)
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
			if err := (modern{&inner, req}).listen(); err != nil {
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
