package remote

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// standaloneStream listens to the standalone stream of a session (MCP 2025-11-25, "Listening
// for Messages from the Server") while a request of the session is at the server. Most servers
// allow one such stream for a session, so all requests of the session in a process subscribe
// to one standaloneStream.
//
// standaloneStream itself answers pings, and gives the client notifications about the session.
// Questions and log messages go to the request that has subscribed first.
type standaloneStream struct {
	x       exchange // the exchange of the request that joined first
	key     standaloneKey
	stop    context.CancelFunc
	settle  func()        // closes settled
	settled chan struct{} // closed when requests need not wait for the stream any more
	asked   chan struct{} // capacity 1; filled when the client was asked while no request was at the server
	ended   chan struct{} // closed when the goroutine of listen has ended; until then only that goroutine uses the next three fields

	known streamState
	heard string // id of the last event that was passed on
	apart int    // how many messages went to the client's standalone stream

	subscribers []*subscriber // guarded by Servers.mu; in the order in which they joined
	others      bool          // guarded by Servers.mu; what known.Others becomes when the stream ends
}

// standaloneKey names a standalone stream: by the client's session here and the session at the server.
type standaloneKey struct {
	id      storage.ID
	session string
}

// subscriber is a request that gets the messages of a standalone stream.
type subscriber struct {
	stream *standaloneStream
	events chan wire.SSE // gets the messages; nil if the request takes none
	gone   chan struct{} // closed when the request has ended
}

// serverTraits is what a process has learned about a server from its standalone streams.
type serverTraits struct {
	deaf  bool // the server has no standalone streams
	mixes bool // see streamState.Mixes
	slow  bool // the server sends no headers before its first message
}

const (
	// openWithin is how long a request waits for the standalone stream, so that the server
	// has it before the request. openSoon is the same for a slow server (serverTraits).
	openWithin = time.Second
	openSoon   = 20 * time.Millisecond
	// The pause before the stream is opened again grows from againFirst to againLast.
	againFirst = 250 * time.Millisecond
	againLast  = 10 * time.Second
	// mostApart is how many messages of one stream go to the client's standalone stream.
	mostApart = 500
	// mostHeld and mostHeldBytes bound the events of a resumed stream that are held back.
	mostHeld      = 1000
	mostHeldBytes = 4 << 20
	// mostAsked is how many questions a client gets while one request goes on.
	mostAsked = 100
)

// join makes a request a subscriber of the session's standalone stream, and starts the stream
// for the first one. The argument takes says that the request takes questions and log
// messages. join waits a moment for the stream to be open.
func join(ctx context.Context, x *exchange, takes bool) *subscriber {
	c := x.s.Servers
	s := &subscriber{gone: make(chan struct{})}
	if takes {
		s.events = make(chan wire.SSE)
	}
	c.mu.Lock()
	key := standaloneKey{storage.ID(x.r.Session.ID()), x.link.Session}
	s.stream = c.standalone[key]
	if s.stream == nil {
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		e := &standaloneStream{
			x: *x, key: key, stop: stop, settled: make(chan struct{}), asked: make(chan struct{}, 1), ended: make(chan struct{}),
			known: x.link.streamState, heard: x.link.Heard, others: x.link.Others,
		}
		if c.traits[x.s.URL].mixes {
			e.known.Mixes, e.known.Sound = true, false
		}
		e.settle = sync.OnceFunc(func() { close(e.settled) })
		s.stream, c.standalone[key] = e, e
		go e.listen(own)
	}
	s.stream.subscribers = append(s.stream.subscribers, s)
	within := openWithin
	if c.traits[x.s.URL].slow {
		within = openSoon
	}
	c.mu.Unlock()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-s.stream.settled:
	case <-timer.C:
		x.s.learn(func(h *serverTraits) { h.slow = true })
	case <-ctx.Done():
	}
	return s
}

// traits returns what this process knows of the server.
func (s *server) traits() serverTraits {
	h, _ := recall(s.Servers, s.Servers.traits, s.URL)
	return h
}

// learn changes what this process knows of the server.
func (s *server) learn(change func(h *serverTraits)) {
	h := s.traits()
	change(&h)
	remember(s.Servers, s.Servers.traits, s.URL, h)
}

// leave ends the subscription. The last subscriber to leave ends the stream, and saves the
// state of the stream in the link of x.
func (s *subscriber) leave(ctx context.Context, x *exchange) {
	if s == nil {
		return
	}
	e, c := s.stream, x.s.Servers
	close(s.gone)
	c.mu.Lock()
	e.subscribers = slices.DeleteFunc(e.subscribers, func(o *subscriber) bool { return o == s })
	last, others := len(e.subscribers) == 0, e.others
	if last {
		delete(c.standalone, e.key)
	}
	c.mu.Unlock()
	if !last {
		return
	}
	e.stop()
	<-e.ended
	e.known.Heard, e.known.Others = e.heard, others && e.heard != ""
	if e.known.Mixes {
		e.known.Heard, e.known.Others = "", false
	}
	if e.known == x.link.streamState || e.key.session != x.link.Session {
		return
	}
	x.link.streamState = e.known
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepWithin)
	defer cancel()
	_ = x.keep(ctx) // without this write, the client may get messages again
}

// noteOthers sets whether a request has had an event since the last event of the stream.
func (e *standaloneStream) noteOthers(some bool) {
	e.x.s.mu.Lock()
	defer e.x.s.mu.Unlock()
	e.others = some
}

// keepWithin bounds each write of a standalone stream to the store.
const keepWithin = 2 * time.Second

// listen opens the stream, and opens it again when it ends.
func (e *standaloneStream) listen(ctx context.Context) {
	defer close(e.ended)
	defer e.settle()
	pause, fails := time.Duration(0), 0
	for conflicted := 0; storage.Rest(ctx, pause) == nil; {
		last := e.heard
		if e.known.Mixes {
			last = ""
		}
		talk, err := e.open(ctx, last)
		var refused *refusal
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && !talk.mute:
			if last == "" || e.known.Sound {
				e.settle()
			}
			if again := e.follow(ctx, talk, last != ""); !again {
				return
			}
			if pause, fails, conflicted = max(talk.retry, againFirst), 0, 0; e.known.Mixes && last != "" {
				pause = 0
			}
			continue
		case err == nil, errors.As(err, &refused) && refused.never():
			e.known.Deaf = true
			e.x.s.learn(func(h *serverTraits) { h.deaf = true })
			return
		case conflicts(err):
			// The server has not noticed yet that an earlier stream is closed, or another
			// process listens to the stream of this session.
			if conflicted++; conflicted < noticeTries {
				pause = noticeWait
				continue
			}
		case refused != nil && !refused.passes(), unsent(err):
			return // the subscribed request meets the same error, and reports it
		default:
			if fails++; fails > resumeTries {
				return
			}
		}
		e.settle()
		pause = min(max(2*pause, againFirst), againLast)
	}
}

// never is true if r means that the server has no standalone streams at all.
func (r *refusal) never() bool {
	switch r.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	}
	return r.status < 500 && !r.first
}

// passes reports whether the server may accept the same request a little later.
func (r *refusal) passes() bool {
	return r.status == http.StatusRequestTimeout || r.status == http.StatusTooManyRequests || r.status >= 500
}

// open opens the stream after the event lastID. If lastID is "", the stream has only new events.
func (e *standaloneStream) open(ctx context.Context, lastID string) (*conversation, error) {
	h := e.x.sessionHeader()
	if lastID != "" {
		h.Set(wire.HeaderLastEventID, lastID)
	}
	from := e.x // a copy, because its method stream may change its link
	return from.stream(ctx, http.MethodGet, from.url, nil, h)
}

// follow reads the stream to its end. If again is true, the stream must be opened anew.
//
// A server that mixes (see streamState.Mixes) repeats questions that were answered long ago, and
// sends nothing new on the resumed stream. Unless streamState.Sound is set, follow therefore holds
// back the events of a resumed stream until the server falls silent. Requests wait until then.
func (e *standaloneStream) follow(ctx context.Context, talk *conversation, resumed bool) (again bool) {
	defer talk.close()
	begun := time.Now()
	prompt := sync.OnceFunc(func() { // runs at the first event, or at the end of the stream
		if time.Since(begun) > gather { // the server sent the headers well before its first message
			e.x.s.learn(func(h *serverTraits) { h.slow = false })
		}
	})
	defer prompt()
	var held []wire.SSE
	size := 0
	for holds := resumed && !e.known.Sound; ; {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if holds {
			wait, cancel = context.WithTimeout(ctx, gather)
		}
		event, err := talk.next(wait)
		cancel()
		if err == nil {
			prompt()
		}
		if err == nil && foreign(event) {
			if resumed {
				e.known.Mixes, e.known.Sound, e.heard = true, false, ""
				e.x.s.learn(func(h *serverTraits) { h.mixes = true })
				return true
			}
			continue
		}
		if err == nil {
			held, size = append(held, event), size+len(event.Data)
		}
		if err == nil && holds && len(held) < mostHeld && size < mostHeldBytes {
			continue
		}
		if holds && errors.Is(err, context.DeadlineExceeded) {
			e.known.Sound = e.known.Others
			e.settle()
		}
		holds = false
		for _, event := range held {
			if !e.pass(ctx, event) || e.apart > mostApart {
				return false
			}
			if event.ID != "" {
				e.heard = event.ID
				e.noteOthers(false)
			}
		}
		held = held[:0]
		if ctx.Err() != nil {
			return false
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return true
		}
	}
}

// foreign reports whether an event belongs to the stream of a request.
func foreign(event wire.SSE) bool {
	m, err := wire.Parse(event.Data)
	return err == nil && (m.Kind == wire.Response || m.Method == wire.NotifyProgress)
}

// pass gives an event to the request or the client that it is for. It returns false if ctx has
// ended first.
func (e *standaloneStream) pass(ctx context.Context, event wire.SSE) bool {
	m, err := wire.Parse(event.Data)
	switch {
	case err != nil: // the event has no message, only an id
	case m.Kind == wire.Request && m.Method == wire.MethodPing:
		_ = e.x.tell(ctx, nil, wire.ResultResponse(m.ID, nil)) // if this is lost, the server pings again
	case m.Kind == wire.Notification && (aboutSession(m.Method) || wire.OfExtension(m.Method)):
		e.aside(ctx, event.Data)
	default:
		for _, s := range e.takers() {
			select {
			case s.events <- event:
				return true
			case <-s.gone:
			case <-ctx.Done():
				return false
			}
		}
		e.outside(ctx, m)
	}
	return ctx.Err() == nil
}

// takers returns the subscribers that take questions and log messages; see join.
func (e *standaloneStream) takers() []*subscriber {
	e.x.s.mu.Lock()
	defer e.x.s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(e.subscribers), func(s *subscriber) bool { return s.events == nil })
}

// outside handles a message that no request takes. Only a legacy client can be asked while no
// request is at the server.
func (e *standaloneStream) outside(ctx context.Context, m wire.Message) {
	switch {
	case !e.x.r.Legacy && m.Kind == wire.Request:
		e.x.refuse(ctx, nil, m)
	case !e.x.r.Legacy:
	case m.Kind == wire.Request, m.Method == wire.NotifyCancelled:
		if raw := renamed(ctx, &e.x, nil, sessionName(e.key.session), m); raw != nil {
			e.aside(ctx, raw)
			select {
			case e.asked <- struct{}{}:
			default:
			}
		}
	case m.Method == wire.NotifyMessage:
		e.aside(ctx, m.Raw)
	}
}

// aside puts a message on the client's standalone stream.
func (e *standaloneStream) aside(ctx context.Context, raw []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepWithin)
	defer cancel()
	e.apart++
	_ = e.x.r.Apart(ctx, raw) // an error loses one message, as a broken stream would
}
