package front

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// oneSSE serves a group over HTTP+SSE. The session of the group has a stream with the
// answers that Dormouse itself gives, and so has the session with each member. The client
// gets all of them as one stream.
//
// A POST that is the first for a member opens the session with it. Before, it writes a mark
// into the stream of the group: the function that holds the client's stream then reads the
// member's stream, too. A mark is not sent to clients.
//
// The id of an event names the session, and the place in each stream:
//
//	0jvq…;~5;everything~3
type oneSSE struct{ *one }

// legacy is the stream of one session: that of the group, whose member is "", or of a member.
type legacy struct {
	member string
	call   *host.Call
	place  session.Index // of the last event that was added to the client's stream
	sent   session.Index // of the last event that was sent
}

// event is what was read from a legacy stream. done reports that nothing more will come.
type event struct {
	of     *legacy
	events []session.Event
	gap    bool
	err    error
	done   bool
}

// over sets the transport of all callers to HTTP+SSE.
func (o oneSSE) over() {
	o.caller.Transport = session.SSE
	o.x.caller = o.caller
	for i := range o.members {
		o.members[i].Transport = session.SSE
	}
}

// get serves GET /sse, and GET /mcp without a session.
func (o oneSSE) get() error {
	x := o.x
	if err := x.streams(); err != nil {
		return err
	}
	o.over()
	id, places, err := o.resumed()
	if err != nil {
		return err
	}
	if id != "" {
		if err := x.named(id); err != nil {
			return err
		}
	} else {
		opened, err := x.opts.Host.Open(x.ctx(), o.caller)
		if err != nil {
			return err
		}
		x.session = opened.ID
	}
	o.session = x.session
	g, err := o.loaded()
	if err != nil {
		return err
	}
	end := x.until(x.opts.Limit)
	ctx, cancel := context.WithCancel(x.ctx())
	f := &followed{oneSSE: o, ctx: ctx, end: end, places: places, joining: map[string]int{}, heard: make(chan event)}
	defer f.close(cancel)
	if err := f.open(o.caller, "", o.session); err != nil {
		return err
	}
	for _, c := range o.members {
		if slices.Contains(g.Members, c.Server.Name) {
			if err := f.member(c); err != nil && !errors.Is(err, session.NotFound) {
				return err
			}
		}
	}
	out := x.commit()
	out.endpoint(f.id(), httpSSE{x}.endpoint())
	f.send(out)
	return nil
}

// resumed returns the session of a client that comes back, and how far the client has
// read each stream, by member. Errors: as of [session.ParseEventID].
func (o oneSSE) resumed() (id string, places map[string]session.Index, err error) {
	places = map[string]session.Index{}
	last := o.x.r.Header.Get(wire.HeaderLastEventID)
	id, rest, ok := strings.Cut(last, placeNext)
	if !ok {
		if last != "" {
			_, err = session.ParseEventID(last) // one of a server is no place here
		}
		return o.x.r.URL.Query().Get(querySession), places, err
	}
	for place := range strings.SplitSeq(rest, placeNext) {
		member, at, _ := strings.Cut(place, placeMark)
		n, err := strconv.ParseInt(at, 10, 64)
		if err != nil || n < 0 {
			return "", nil, &session.EventIDError{Part: "index", ID: clip(last)}
		}
		places[member] = session.Index(n)
	}
	return id, places, nil
}

// followed is a client's stream with the streams in it.
type followed struct {
	oneSSE
	ctx     context.Context
	end     time.Time
	places  map[string]session.Index // that the client has named
	all     []*legacy
	joining map[string]int // members whose session is not open yet, and how often it was looked for
	heard   chan event
	reading sync.WaitGroup
}

// open adds the stream of a session.
func (f *followed) open(c host.Caller, member string, id session.ID) error {
	var from *session.Index
	if at, ok := f.places[member]; ok {
		from = &at
	}
	call, err := f.x.opts.Host.Follow(f.ctx, c, id, from, f.end)
	if err != nil {
		return err
	}
	l := &legacy{member: member, call: call, place: call.Cursor().Index, sent: call.Cursor().Index}
	f.all = append(f.all, l)
	f.reading.Go(func() { f.read(l) })
	return nil
}

func (f *followed) member(c host.Caller) error {
	if slices.ContainsFunc(f.all, func(l *legacy) bool { return l.member == c.Server.Name }) {
		return nil
	}
	return f.open(c, c.Server.Name, host.MemberID(f.session, c.Server.Name))
}

// join opens the streams of members that have just been joined. The session with a member
// may be created a moment after its mark.
func (f *followed) join() error {
	for name := range f.joining {
		c, ok := f.one.member(name)
		if ok {
			err := f.member(c)
			if errors.Is(err, session.NotFound) && f.joining[name] < mostJoins {
				f.joining[name]++
				continue
			}
			if err != nil && !errors.Is(err, session.NotFound) {
				return err
			}
		}
		delete(f.joining, name)
	}
	return nil
}

// read passes on what a stream has until the client has gone or the time is over.
func (f *followed) read(l *legacy) {
	for {
		events, err := l.call.Next(f.ctx, earlier(f.end, time.Now().Add(f.x.opts.KeepAlive)))
		e := event{l, events, len(events) > 0 && l.call.Gap(), err, err != nil || l.call.Done() || !time.Now().Before(f.end)}
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

// close stops all reads, and records in the sessions which events were sent.
func (f *followed) close(cancel context.CancelFunc) {
	cancel()
	f.reading.Wait()
	ctx, done := f.x.detached()
	defer done()
	for _, l := range f.all {
		_ = l.call.Report(ctx, l.sent) // if this fails, the next stream repeats the events of this one
	}
}

// id returns the id of the place that the client has reached.
func (f *followed) id() string {
	text := string(f.session)
	for _, l := range f.all {
		text += placeNext + l.member + placeMark + strconv.FormatInt(int64(l.place), 10)
	}
	return text
}

// A stream looks this often, and this many times, for a session that a mark has announced. If
// the function that wrote the mark has died, the next POST writes another one.
const (
	joinEvery = 100 * time.Millisecond
	mostJoins = 50
)

// send sends events until the time is over, the client has gone, or one of the sessions
// has ended. It also ends when another stream has taken the place of this one.
func (f *followed) send(out *stream) {
	for {
		if out.flush() != nil {
			return
		}
		for _, l := range f.all {
			l.sent = l.place
		}
		wait := f.x.opts.KeepAlive
		if len(f.joining) > 0 {
			wait = joinEvery
		}
		timer := time.NewTimer(wait)
		select {
		case e := <-f.heard:
			f.pass(out, e)
			if e.err != nil && f.x.ctx().Err() == nil {
				f.x.err = e.err
			}
			if e.done && (e.err != nil || e.of.member == "" || !time.Now().Before(f.end)) {
				_ = out.flush() // nothing follows, so it does not matter if the client has gone
				return
			}
			if e.done { // the session with this member has ended; it may be opened anew
				f.places[e.of.member] = e.of.place
				f.all = slices.DeleteFunc(f.all, func(l *legacy) bool { return l == e.of })
			}
		case <-timer.C:
			if len(f.joining) == 0 {
				out.comment("keep-alive")
			}
		case <-f.x.ctx().Done():
			return
		}
		timer.Stop()
		if err := f.join(); err != nil {
			f.x.err = err
			_ = out.flush() // as above
			return
		}
	}
}

// pass adds events to the client's stream.
func (f *followed) pass(out *stream, e event) {
	if e.gap {
		out.gap()
	}
	out.seen = nil
	if e.of.member != "" {
		out.seen = f.one.view(e.of.member)
	}
	for _, ev := range e.events {
		e.of.place = ev.Index
		if len(ev.Raw) == 0 {
			continue
		}
		if name := joinedOf(ev.Raw); name != "" && e.of.member == "" {
			f.joining[name] = 0
			continue
		}
		out.message(f.id(), ev.Raw)
	}
}

// post serves POST /message. The response says only whether the messages were accepted.
func (o oneSSE) post() error {
	x := o.x
	o.over()
	s := httpSSE{x}
	msgs, batch, err := s.read()
	if err != nil {
		return err
	}
	o.session = x.session
	if anyModern(msgs, x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return s.refuseModern(msgs)
	}
	said := &asideResponse{header: http.Header{}}
	w := x.w
	x.w, o.take = said, o.accepts
	err = o.serveAside(msgs, batch)
	x.w, x.status, x.seen = w, 0, nil
	answers, refused := said.answers(), (*problem)(nil)
	switch {
	case errors.As(err, &refused) && (refused.rpc.Code == codeForbidden || refused.status == http.StatusOK) && x.id != nil:
		x.err, answers = err, refusedAll(msgs, refused.rpc)
	case session.CodeOf(err) == session.Busy && x.id != nil:
		x.err, answers = err, busyAll(msgs, err, false)
	case err != nil:
		return err
	}
	if len(answers) > 0 {
		if _, err := o.loaded(); err != nil {
			return err
		}
		if err := x.opts.Host.Say(x.ctx(), o.session, answers...); err != nil {
			return err
		}
	}
	s.accepted()
	return nil
}

// accepts serves messages for one member, whose stream gets the answers.
func (o oneSSE) accepts(msgs []wire.Message, batch bool) error {
	x := o.x
	if err := x.permit(msgs); err != nil {
		return err
	}
	x.session = host.MemberID(o.session, x.caller.Server.Name)
	s := httpSSE{x}
	call, err := s.accept(msgs, batch)
	if errors.Is(err, session.NotFound) {
		if _, err := o.loaded(); err != nil {
			return err
		}
		if err = x.opts.Host.Say(x.ctx(), o.session, joinedMark(x.caller.Server.Name)); err == nil {
			err = o.join(x.caller)
		}
		if err == nil {
			call, err = s.accept(msgs, batch)
		}
	}
	if err != nil || call == nil {
		return err
	}
	x.called.begins(call)
	return s.awaitAccepted(call)
}

// asideResponse is the response that a message would have had, as one answer in JSON.
type asideResponse struct {
	header http.Header
	body   bytes.Buffer
}

// Header returns the headers, which nobody sees.
func (w *asideResponse) Header() http.Header { return w.header }

// WriteHeader does nothing.
func (w *asideResponse) WriteHeader(int) {}

// Write keeps the answer.
func (w *asideResponse) Write(p []byte) (int, error) { return w.body.Write(p) }

func (w *asideResponse) answers() [][]byte {
	if w.body.Len() == 0 {
		return nil
	}
	return [][]byte{w.body.Bytes()}
}
