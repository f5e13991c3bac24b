package box

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Delivery is one client message, or a batch of them, to execute.
type Delivery struct {
	ID      string // deliver id: the name of the request stream it opens
	Session string
	Ticket  string // opaque: comes back with the events
	// Principal tells principals apart: letters, digits, - and _, up to 64, the same
	// for all sessions of one. "" if it is not known.
	Principal string
	Round     int // how often it was suspended: Raw then has the answers

	// Init, Level and Subscriptions are what a process must be told that is started
	// for this session now or later: the params of the client's own initialize (nil:
	// of one that was delivered, or else those of a client without capabilities), the
	// last log level set ("": none), and the URIs it has subscribed to.
	Init          json.RawMessage
	Level         string
	Subscriptions []string

	// Again says that the session has had a process before, so that one started now
	// is not its first.
	Again bool

	// Raw is one JSON-RPC message or a non-empty array of them, requests and
	// notifications. The box takes it over.
	Raw []byte
}

// Output is one message of a server, or an error the box ends a request with.
type Output struct {
	Session string
	Stream  string // deliver id of the request stream, "" for the common stream
	Ticket  string // that of the delivery; on the common stream the session's newest
	Raw     []byte // one line of JSON without its end; the receiver owns it
	Final   bool   // the last event of the request stream
	// Asks, if it is not nil, comes with the last event of a delivery that needs
	// something of its client: the box forgets it, and it comes back in the next round.
	Asks *Suspension
}

// ProcessState is how far a process is in its life.
type ProcessState string

// The states. A process is reported as staging as often as there is something to
// tell, then as started, ready, and stopped or exited, in this order; one that
// cannot be started is not reported as started or ready.
const (
	Staging ProcessState = "staging" // something is put in place for it; Detail says what
	Started ProcessState = "started" // it runs and is to answer initialize
	Ready   ProcessState = "ready"   // the handshake is over
	Stopped ProcessState = "stopped" // it was idle, or its session or the box has ended
	Exited  ProcessState = "exited"  // it failed
)

// ProcessStatus says what became of a process. No value in it holds a secret of the
// server's environment.
type ProcessStatus struct {
	Process string // its name: that of its session, or of those that share it
	Session string // that has it, or of several the one that was heard last
	Ticket  string // the newest of the session
	State   ProcessState
	Phase   Phase  // in which it failed, "" if it did not
	Detail  string // a sentence on why, or on what is done while it is staging; else ""
	PID     int    // 0 if it never ran
	Since   time.Time

	ExitCode *int   // nil while it runs, and when Signal is set
	Signal   string // such as SIGKILL
	Stderr   string // the end of it, up to 4,000 characters; only when it has ended
	Stdout   string // of what was no message there, the same
	// NoiseLines counts the lines of its stdout that were no messages.
	NoiseLines int64
}

// Inflight is a delivery that owes the last event of its request stream.
type Inflight struct {
	ID, Session, Ticket string
	Since               time.Time // when it came
}

// Counts is what a box has left out, since it was made.
type Counts struct {
	Noise    int64 // lines of servers that were no messages
	Oversize int64 // lines of servers over the limit
	Late     int64 // messages of servers for something that is over
	Unknown  int64 // messages of clients for something that is not there
}

// Sink takes what comes out of a box. Its methods are called by goroutines of the
// box, for one session in order and one after the other, and may call the box. A
// method that blocks holds up its session, and in the end the processes of it,
// which are not read any more; it holds up nobody else.
type Sink interface {
	Output(Output)
	// Handshake hands over the result a fresh process gave to initialize, and the
	// protocol version it was asked for. The box keeps using result.
	Handshake(session, ticket, requestedVersion string, result json.RawMessage)
	Process(ProcessStatus)
}

// Box hosts one server for one tenant, with a process for each session or for
// several, as [Server].Scope says. It is safe for concurrent use, and its methods do not block on processes or the [Sink],
// apart from Close.
type Box struct {
	server Server
	sink   Sink
	log    *slog.Logger
	hide   *redact.Redactor
	grace  proc.Grace
	draw   func() int64 // see conversation
	spawn  func(proc.Command, proc.Grace) (child, error)
	lacks  sync.Once    // what sandboxes do without has been logged
	marks  atomic.Int64 // given to processes
	saves  saves

	// mu guards everything below, with all sessions and processes. It is held for
	// work on tables and for copying messages, never during a system call that may
	// wait, a call of the sink or the parsing of a message.
	mu       sync.Mutex
	sessions map[string]*session
	groups   map[string]*group
	era      bridge.Era // of the server, "" if it is not known
	closed   bool
	used     time.Time // when a client, or a call of one, last did something
	counts   Counts
	starts   backOff       // after starts that failed
	active   int           // processes and calls of the sink under way
	over     chan struct{} // not nil when Close waits: closed when active is zero
}

// saves is for workspaces that are being saved; abandon ends that.
type saves struct {
	ctx     context.Context //nolint:containedctx // Close ends it
	abandon context.CancelFunc
}

// New makes a box. Nothing runs before the first Deliver. log may be nil.
func New(s Server, k Sink, log *slog.Logger) *Box {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	saving, abandon := context.WithCancel(context.Background())
	return &Box{
		saves: saves{saving, abandon}, server: s.withDefaults(), sink: k, log: log, hide: redact.New(s.Env, s.Secrets),
		grace:    proc.Grace{Stdin: time.Second, Term: 5 * time.Second},
		draw:     numbers(s.Scope),
		spawn:    func(c proc.Command, g proc.Grace) (child, error) { return proc.Start(c, g) },
		sessions: map[string]*session{}, groups: map[string]*group{}, used: time.Now(), era: s.Era,
	}
}

// Deliver executes a message. Each request in it ends in an event of the stream
// d.ID, the last of them with Final; without requests there is no such event. It
// returns at once: failures are events. A delivery whose id is in flight in its
// session is dropped.
//
// Responses do not come this way but through Answer, and are dropped.
func (b *Box) Deliver(d Delivery) {
	msgs, _, err := wire.ParseBody(d.Raw)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.touch()
	s, fresh := b.session(d.Session, d.Principal)
	g := s.group
	level, subscriptions := g.level(), g.subscriptions()
	defer func() {
		g.tidy()
		s.tidy()
	}()
	if s.hasStream(d.ID) {
		b.counts.Unknown++
		b.log.Warn("delivery twice, dropped", "server", b.server.Name, "session_id", s.id, "stream", d.ID)
		return
	}
	s.note(d, msgs)
	if fresh {
		g.settle(level, subscriptions)
	}
	st := &stream{session: s, id: d.ID, ticket: d.Ticket, round: d.Round, came: b.used}
	if err != nil {
		s.event(st, invalid(msgs, err), true)
		return
	}
	st.open = len(requests(msgs))
	if b.closed {
		s.refuseAll(st, requests(msgs), b.unavailable("the box is shut down, try again"))
		return
	}
	b.execute(s, st, msgs, d.Again)
}

// execute gives messages to the process of the session, which is started if one of
// them is for it.
func (b *Box) execute(s *session, st *stream, msgs []wire.Message, again bool) {
	p := s.group.current
	if p == nil && slices.ContainsFunc(msgs, forProcess) {
		free, ok := b.room()
		if !ok {
			s.refuseAll(st, requests(msgs), b.full())
			return
		}
		p = s.group.start(free)
		if again {
			b.log.Info("process started anew in a living session: what the one before had in memory is gone",
				"server", b.server.Name, "session_id", s.id)
		}
	}
	if p != nil {
		p.clock.quiet()
	}
	for _, m := range msgs {
		switch m.Kind {
		case wire.Request:
			s.request(p, st, m)
		case wire.Notification:
			s.notification(p, m)
		case wire.Response:
			b.counts.Unknown++
		}
	}
}

// forProcess reports whether a process must be there to take m.
func forProcess(m wire.Message) bool {
	switch m.Kind {
	case wire.Request:
		return true
	case wire.Notification:
		return m.Method != wire.NotifyInitialized && m.Method != wire.NotifyCancelled
	default:
		return false
	}
}

func requests(msgs []wire.Message) []wire.Message {
	var found []wire.Message
	for _, m := range msgs {
		if m.Kind == wire.Request {
			found = append(found, m)
		}
	}
	return found
}

// invalid answers a delivery that is no message, under its id if it has one.
func invalid(msgs []wire.Message, err error) []byte {
	var id json.RawMessage
	if len(msgs) == 1 {
		id = msgs[0].ID
	}
	var e *wire.Error
	if !errors.As(err, &e) {
		e = &wire.Error{Code: wire.CodeInvalidRequest, Message: "message cannot be read"}
	}
	return wire.ErrorResponse(id, e)
}

// Answer hands over a client's response to a question, which is a request of the
// server that went out under an id of the box. One for a question that is not open
// is dropped.
func (b *Box) Answer(session, question string, raw []byte) {
	m, err := wire.Parse(raw)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.touch()
	if s := b.sessions[session]; s != nil && err == nil {
		for _, p := range s.group.live {
			if p.conv.answer(s, question, m) {
				return
			}
		}
	}
	b.counts.Unknown++
}

// CloseStream says that a stream is closed for good: its requests are cancelled,
// and what the server still says for them goes nowhere. An event that is on its way
// to the sink already may still arrive.
func (b *Box) CloseStream(session, stream string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sessions[session]; s != nil {
		s.closeStream(stream)
	}
}

// StopSession says that a session has ended. Its own process is stopped: what was in
// flight ends with an error if the process does not answer on its way out. One that
// it shares goes on, and what was in flight is cancelled.
func (b *Box) StopSession(session string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ended := b.sessions[session], b.unavailable("the session was ended")
	switch {
	case b.server.Scope.wide():
		if s != nil {
			s.depart(ended)
		}
	case s == nil || len(s.group.live) == 0:
		b.remove(session)
	default:
		s.over = true
		s.group.stop(ended)
	}
}

// Questions lists for each session the questions that have no answer yet, in the
// order in which they were asked.
func (b *Box) Questions() map[string][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := map[string][]string{}
	for id, s := range b.sessions {
		for _, p := range s.group.live {
			if q := p.conv.openQuestions(s); q != nil {
				open[id] = append(open[id], q...)
			}
		}
	}
	return open
}

// Open lists the deliveries with requests in flight, oldest first.
func (b *Box) Open() []Inflight {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Inflight
	for _, s := range b.sessions {
		all = append(all, s.inflight()...)
	}
	slices.SortFunc(all, func(x, y Inflight) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.ID, y.ID))
	})
	return all
}

// IdleSince is when a client, or a request of one, last did something. ok is true
// only if no request is in flight, no process is being started, no question is open
// and the sink has taken everything; and with a Keeper, if no process is left whose
// workspace is not saved yet.
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

// Processes lists what runs, also what is being stopped, by name.
func (b *Box) Processes() []ProcessStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []ProcessStatus
	for _, id := range slices.Sorted(maps.Keys(b.groups)) {
		for _, p := range b.groups[id].live {
			if p.child != nil {
				all = append(all, p.status(p.running(), nil))
			}
		}
	}
	return all
}

// Counts returns what was left out so far.
func (b *Box) Counts() Counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counts
}

// Close stops all processes and returns when they are gone, with everything in
// their groups, the sink has taken their last events, and the workspaces are saved.
// But for that it takes no longer than the slowest of them: six seconds and a
// moment. Requests that are in flight end a
// second after the call at the latest, and those that come later at once; both with
// phase box_unavailable. When ctx ends first, the processes are killed, what is
// not saved is given up, and its cause is returned.
func (b *Box) Close(ctx context.Context) error {
	over := b.shut()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
	}
	b.saves.abandon()
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

func (b *Box) shut() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, g := range b.groups {
		g.stop(b.unavailable("the box is shut down, try again"))
	}
	if b.over == nil {
		b.over = make(chan struct{})
		b.enter()
		b.leave()
	}
	return b.over
}

// # For sessions and processes; mu is held

// session finds or makes a session, as a member of its group. It is fresh if it was
// none.
func (b *Box) session(id, principal string) (s *session, fresh bool) {
	if s = b.sessions[id]; s == nil {
		s = &session{box: b, id: id, principal: principal}
		s.room.L = &b.mu
		b.sessions[id] = s
	}
	name := b.server.Scope.Name(id, s.principal)
	g := b.groups[name]
	if g == nil {
		g = &group{box: b, id: name}
		b.groups[name] = g
	}
	fresh = !slices.Contains(g.members, s)
	g.join(s)
	return s, fresh
}

func (b *Box) touch() { b.used = time.Now() }

func (b *Box) enter() { b.active++ }

func (b *Box) leave() {
	b.active--
	if b.active == 0 && b.over != nil {
		select {
		case <-b.over: // a message came after Close
		default:
			close(b.over)
		}
	}
}

// remove takes away what was made for the processes of a session.
func (b *Box) remove(session string) {
	if b.server.Provisioner == nil {
		return
	}
	b.enter()
	go func() {
		err := b.server.Provisioner.Remove(session)
		if b.server.Keeper != nil {
			ctx, done := context.WithTimeout(b.saves.ctx, saveTime)
			defer done()
			if b.server.Kept == ScopePrincipal {
				b.server.Keeper.Leave(session)
			} else {
				err = errors.Join(err, b.server.Keeper.Forget(ctx, session))
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if err != nil {
			b.log.Warn("what was made for a process was not removed", "server", b.server.Name, "session_id", session, "error", err)
		}
		b.leave()
	}()
}

func (b *Box) unavailable(why string) *fault { return b.server.fault(PhaseBoxUnavailable, "%s", why) }
