package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Box hosts one server for one tenant, with a process for each session or for several, as
// [Server].Scope says. It is safe for concurrent use. No method but Close waits for processes or
// for the [Sink].
type Box struct {
	server  Server
	sink    Sink
	log     *slog.Logger
	hide    *redact.Redactor
	grace   proc.Grace
	draw    func() int64 // draws the number of a request; see the function numbers
	spawn   func(proc.Command, proc.Grace) (child, error)
	lacks   sync.Once          // so that the box logs only once which protections its sandboxes lack
	marks   atomic.Int64       // how many processes were marked so far, see [Server].Mark
	saves   context.Context    //nolint:containedctx // context in which workspaces are saved; Close ends it
	abandon context.CancelFunc // cancels saves
	leaves  func()             // undoes [guard.Memory.Join]

	// mu guards everything below, and all sessions, groups and processes. A goroutine that holds
	// mu must not make a system call that may block, call the sink or parse a message.
	mu     sync.Mutex
	era    wire.Era      // which protocol versions the server speaks, "" if that is not known
	used   time.Time     // when a client or one of its calls was last active
	starts backOff       // delays the next start after failed starts
	active int           // number of goroutines that Close waits for; they run processes, call the sink or remove files
	over   chan struct{} // made by Close, and closed when active is zero

	sessions map[string]*session
	groups   map[string]*group // by name; only groups that have a process
	closed   bool
}

// New makes a box without a process. log may be nil.
func New(s Server, k Sink, log *slog.Logger) *Box {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	saving, abandon := context.WithCancel(context.Background())
	b := &Box{
		saves: saving, abandon: abandon, server: s.withDefaults(), sink: k, log: log, hide: s.redacted(),
		grace: proc.Grace{Stdin: 2 * time.Second, Term: 5 * time.Second},
		draw:  numbers(s.Scope),
		spawn: func(c proc.Command, g proc.Grace) (child, error) { return proc.Start(c, g) },
		used:  time.Now(), era: s.Era,
		sessions: map[string]*session{}, groups: map[string]*group{},
	}
	b.leaves = s.Memory.Join(b)
	return b
}

// Deliver executes the messages in d.Raw and returns at once. Each request, failed or not, ends in
// an event of the stream d.ID, and the last of these events has Final set. The box drops d if
// requests of an earlier delivery with the same ID are still in flight in the session.
//
// The box owns d.Raw. It keeps d.Init, d.Level and d.Subscribed for the process that this delivery or
// a later one starts. If d.Init is nil, the box uses the params of a delivered initialize, or else
// those of a client without capabilities. A process that was started with other Secrets than those
// of the last delivery is replaced.
//
// Deliver passes a response to the process that has asked the question, and wakes that process if
// it sleeps (see [Server].Images). Deliver drops a response to a question that is not open.
func (b *Box) Deliver(d frame.Deliver) {
	msgs, _, err := wire.ParseBody(d.Raw)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.touch()
	s, g, fresh := b.session(string(d.Session), d.Principal)
	level, subscriptions := g.level(), g.subscriptions()
	defer func() {
		g.tidy()
		s.tidy()
	}()
	if slices.ContainsFunc(inflight(g.live, s), func(st *stream) bool { return st.id == string(d.ID) }) {
		b.log.Warn("delivery twice, dropped", "server", b.server.Name, "session_id", s.id, "stream", d.ID)
		return
	}
	s.note(d, msgs)
	if fresh {
		for _, m := range msgs {
			if uri, _ := wire.String(wire.Lookup(m.Params, "uri")); m.Method == wire.MethodSubscribe && slices.Contains(d.Subscribed, uri) {
				subscriptions = append(subscriptions, uri) // m itself tells the process
			}
		}
		g.tellSettings(level, subscriptions)
	}
	st := &stream{session: s, id: string(d.ID), ticket: d.Ticket, round: d.Round, came: b.used}
	if err != nil {
		st.event(invalid(msgs, err), true)
		return
	}
	st.open = len(requestsOf(msgs))
	if b.closed {
		st.refuseAll(requestsOf(msgs), b.unavailable("the box is shut down, try again"))
		return
	}
	if len(b.server.Principal) > 0 && (st.open > 0 || len(d.Secrets) > 0) {
		g.supply(d.Secrets)
	}
	b.execute(g, st, msgs, d.Again)
}

// execute gives the messages to the current process of g. If g has none and one of the messages
// needs a process, execute starts one.
func (b *Box) execute(g *group, st *stream, msgs []wire.Message, again bool) {
	msgs = slices.DeleteFunc(msgs, func(m wire.Message) bool { return m.Kind == wire.Response && answered(g.live, st.session, m) })
	p := g.current
	if p == nil && slices.ContainsFunc(msgs, b.forProcess) {
		free, ok := b.makeRoom()
		if !ok {
			st.refuseAll(requestsOf(msgs), b.full())
			return
		}
		p = g.start(free)
		if again {
			g.anew(st, msgs)
			if b.server.Images == nil { // with Images, only the handshake shows whether the memory was lost
				g.logAnew()
			}
		}
	}
	if p != nil {
		p.clock.quiet()
		if p.greeted {
			p.announce(st.session)
		}
	}
	for _, m := range msgs {
		switch m.Kind {
		case wire.Request:
			g.request(p, st, m)
		case wire.Notification:
			g.notification(p, st.session, m)
		case wire.Response:
			waits := p != nil && !p.greeted && !p.nap.asleep() && b.server.Images != nil
			if waits {
				p.held.add(heldLine{line: m.Raw, of: st.session, answer: m})
			}
		}
	}
	if p != nil {
		p.clock.over()
	}
}

// forProcess reports whether m needs a running process.
func (b *Box) forProcess(m wire.Message) bool {
	switch m.Kind {
	case wire.Request:
		return true
	case wire.Response:
		return b.server.Images != nil // the process that asked may be asleep, and this response wakes it
	default: // a notification reaches a process that runs, and no other
		return false
	}
}

func requestsOf(msgs []wire.Message) []wire.Message {
	var found []wire.Message
	for _, m := range msgs {
		if m.Kind == wire.Request {
			found = append(found, m)
		}
	}
	return found
}

// invalid returns the error response to a delivery that cannot be parsed, with the id of the
// request if that could be read.
func invalid(msgs []wire.Message, err error) []byte {
	var id json.RawMessage
	if len(msgs) == 1 {
		id = msgs[0].ID
	}
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		e = &wire.Error{Code: wire.CodeInvalidRequest, Message: "message cannot be read"}
	}
	return wire.ErrorResponse(id, e)
}

// Answer passes raw, a client's response, to the process that asked. The argument question is the
// id of the question as the client knows it.
func (b *Box) Answer(session storage.ID, question string, raw []byte) {
	m, err := wire.Parse(raw)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.touch()
	m.ID = wire.AppendString(nil, question)
	if s := b.sessions[string(session)]; s != nil && err == nil {
		answered(b.processes(s), s, m)
	}
}

// answered passes m, a client's response to a question, to the process that asked. It returns false
// if no process has asked this question.
func answered(processes []*process, s *session, m wire.Message) bool {
	question, _ := wire.String(m.ID)
	return slices.ContainsFunc(processes, func(p *process) bool { return p.conv.answer(s, question, m) })
}

// CloseStream cancels the requests of a stream and drops everything that the server still sends
// for them. An event that was already handed to the sink may still arrive.
func (b *Box) CloseStream(session storage.ID, stream storage.StreamID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[string(session)]
	if s == nil {
		return
	}
	for _, p := range b.processes(s) {
		for _, r := range p.conv.inOrder() {
			if r.stream.session == s && r.stream.id == string(stream) {
				p.conv.tellCancelled(r, "the stream of the request was closed")
				p.conv.drop(r)
			}
		}
	}
	s.dropStream(string(stream))
}

// StopSession ends a session. If the session has a process of its own, the box stops the process:
// requests in flight end with an error, unless the process still answers them before it ends. If
// the session shares a process, the process goes on, and only the requests of the session are
// cancelled.
func (b *Box) StopSession(session storage.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ended := b.sessions[string(session)], b.interrupted("the session was ended")
	switch {
	case b.server.Scope.wide():
		if s != nil {
			if g := b.groupOf(s); g != nil {
				g.depart(s, ended)
			}
		}
	case s == nil || len(b.processes(s)) == 0:
		b.remove(string(session))
	default:
		s.over = true
		b.groupOf(s).stop(ended)
	}
}

// Questions returns, for each session, the ids of the server's requests that its client has not
// answered, in the order in which the server sent them.
func (b *Box) Questions() map[storage.ID][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := map[storage.ID][]string{}
	for id, s := range b.sessions {
		for _, p := range b.processes(s) {
			if q := p.conv.openQuestions(s); q != nil {
				open[storage.ID(id)] = append(open[storage.ID(id)], q...)
			}
		}
	}
	return open
}

// IdleSince returns the time at which a client or one of its requests was last active. The result
// ok is true only if no request is in flight, no process is starting, and the sink has taken all
// output. If the server has a Keeper, every workspace must be saved as well.
func (b *Box) IdleSince() (since time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sessions {
		if s.telling {
			return time.Time{}, false
		}
	}
	for _, g := range b.groups {
		if g.busy() {
			return time.Time{}, false
		}
	}
	return b.used, true
}

// Close stops all processes. It returns when they and all processes of their process groups have
// ended, the sink has taken their last events, and the workspaces are saved. Apart from the sink
// and the saves, it takes at most about seven seconds longer than timeout.
//
// Requests that are still in flight after timeout end with an error of phase box_unavailable.
// Requests that come after the call of Close get this error at once. If ctx ends first, Close kills
// the processes, gives up saving, and returns an error that wraps the cause of ctx.
func (b *Box) Close(ctx context.Context, timeout time.Duration) error {
	defer b.leaves()
	over := b.shut(timeout)
	select {
	case <-over:
		return nil
	case <-ctx.Done():
	}
	b.abandon()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.groups {
		for _, p := range g.live {
			if p.child != nil {
				p.child.Kill()
			}
		}
	}
	return fmt.Errorf("stop server %q in time: %w", b.server.Name, context.Cause(ctx))
}

func (b *Box) shut(within time.Duration) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	why := b.interrupted("the box was shut down")
	for _, g := range b.groups {
		if within <= 0 {
			g.stop(why)
			continue
		}
		for _, p := range g.live {
			p.drain(why, within)
		}
	}
	if b.over == nil {
		b.over = make(chan struct{})
		b.enter()
		b.leave()
	}
	return b.over
}

// The callers of the following methods hold mu.

// session finds or makes a session and adds it to its group. The result fresh is true if the
// session is a new member.
func (b *Box) session(id, principal string) (s *session, g *group, fresh bool) {
	if s = b.sessions[id]; s == nil {
		s = &session{box: b, id: id, principal: principal}
		s.room.L = &b.mu
		b.sessions[id] = s
	}
	if g = b.groupOf(s); g == nil {
		g = &group{box: b, id: b.server.Scope.Name(id, s.principal)}
		b.groups[g.id] = g
	}
	fresh = !slices.Contains(g.members, s)
	g.join(s)
	return s, g, fresh
}

// groupOf returns the group of a session, or nil if the group has no process.
func (b *Box) groupOf(s *session) *group {
	return b.groups[b.server.Scope.Name(s.id, s.principal)]
}

// processes returns the processes of a session's group, including those that are being stopped.
func (b *Box) processes(s *session) []*process {
	if g := b.groupOf(s); g != nil {
		return g.live
	}
	return nil
}
