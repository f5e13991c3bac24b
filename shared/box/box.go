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
	Ticket  string // opaque: the box returns it with the events
	// Principal names the session's principal, the same for all sessions of one
	// principal: up to 64 letters, digits, - and _. "" means it is not known.
	Principal string
	Round     int // how often it was suspended; from 1 on Raw holds the answers

	// Init, Level and Subscriptions are the session's state, for the process that this
	// delivery or a later one starts. Init is the params of the client's own initialize.
	// If it is nil the box takes those of an initialize that was delivered, or else
	// those of a client without capabilities. Level is the last log level set ("" for
	// none). Subscriptions are the URIs that the client has subscribed to.
	Init          json.RawMessage
	Level         string
	Subscriptions []string

	// Again says that the session has had a process before. The box logs that the new
	// one starts without the memory of the old one.
	Again bool

	// Raw is one JSON-RPC message or a non-empty array of them, requests and
	// notifications. The box owns it from then on.
	Raw []byte
}

// Output is one message of a server, or an error the box ends a request with.
type Output struct {
	Session string
	Stream  string // deliver id of the request stream, "" for the common stream
	Ticket  string // the delivery's; on the common stream the session's newest
	Raw     []byte // one line of JSON without its end; the receiver owns it
	Final   bool   // the last event of the request stream
	// Asks, if not nil, comes with the last event of a delivery that needs something of
	// its client. The box then forgets the delivery, and the caller delivers Asks.Raw
	// again in the next round.
	Asks *Suspension
}

// ProcessState is the step of its life that a process has reached.
type ProcessState string

// The states. The sink gets Staging once for each step of the preparation, then Started,
// Ready, and Stopped or Exited, in this order. A process that cannot be started skips
// Started and Ready.
const (
	Staging ProcessState = "staging" // the provisioner prepares it; Detail says how far it is
	Started ProcessState = "started" // it runs and has yet to answer initialize
	Ready   ProcessState = "ready"   // the handshake is over
	Stopped ProcessState = "stopped" // it was idle, or its session or the box has ended
	Exited  ProcessState = "exited"  // it failed
)

// ProcessStatus reports the state of a process. No value in it holds a secret of the
// server's environment.
type ProcessStatus struct {
	Process string // the name of its session, or of the sessions that share it, by [Scope.Name]
	Session string // the session that has it; of several, the one heard last
	Ticket  string // the session's newest
	State   ProcessState
	Phase   Phase  // the step at which it failed, "" if it did not
	Detail  string // why it failed, or what is prepared while it is staging; else ""
	PID     int    // 0 if it never ran
	Since   time.Time

	ExitCode *int   // nil while it runs, and when Signal is set
	Signal   string // such as SIGKILL
	Stderr   string // its end, up to 4,000 characters; only after the process has ended
	Stdout   string // the same, of the lines that were no messages
	// NoiseLines counts the lines of stdout that were no messages.
	NoiseLines int64
}

// Inflight is a delivery whose request stream has yet to get its last event.
type Inflight struct {
	ID, Session, Ticket string
	Since               time.Time // when the box got it
}

// Counts counts what a box has dropped since New.
type Counts struct {
	Noise    int64 // lines of servers that were no messages
	Oversize int64 // lines of servers over the limit of 16 MiB
	Late     int64 // messages of servers about a request or question that is over
	Unknown  int64 // messages of clients about something that does not exist
}

// Sink receives the output of a box. Goroutines of the box call its methods, for each
// session in order and one at a time. A method may call the box. A method that blocks
// holds up its own session, and once 4 MiB wait, the processes of that session, which
// are no longer read. Other sessions go on.
type Sink interface {
	Output(Output)
	// Handshake receives the result of a fresh process for initialize, and the protocol
	// version that the box asked for. The box keeps using result, so the method must not
	// change it.
	Handshake(session, ticket, requestedVersion string, result json.RawMessage)
	Process(ProcessStatus)
}

// Box hosts one server for one tenant, with a process for each session or for several,
// as [Server].Scope says. It is safe for concurrent use. Its methods do not block on
// processes or the [Sink], apart from Close.
type Box struct {
	server Server
	sink   Sink
	log    *slog.Logger
	hide   *redact.Redactor
	grace  proc.Grace
	draw   func() int64 // see conversation
	spawn  func(proc.Command, proc.Grace) (child, error)
	lacks  sync.Once    // the guards that sandboxes lack are logged once
	marks  atomic.Int64 // how many processes got one
	saves  saves

	// mu guards everything below, with all sessions and processes. Its holder works on
	// tables and copies messages. It must not make a system call that may wait, call the
	// sink or parse a message.
	mu       sync.Mutex
	sessions map[string]*session
	groups   map[string]*group
	era      bridge.Era // of the server, "" if it is not known
	closed   bool
	used     time.Time // when a client or one of its calls was last active
	counts   Counts
	starts   backOff       // after starts that failed
	active   int           // processes and calls of the sink under way
	over     chan struct{} // not nil when Close waits: closed when active is zero
}

// saves is the context in which workspaces are saved; abandon ends it.
type saves struct {
	ctx     context.Context //nolint:containedctx // Close ends it
	abandon context.CancelFunc
}

// New makes a box. The first Deliver starts the first process. log may be nil.
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

// Deliver executes a message and returns at once: failures are events too. Each request
// ends in an event of the stream d.ID, and the last of these has Final. A delivery
// without requests has no such event. The box drops a delivery whose id is in flight in
// its session.
//
// Deliver drops responses; pass them to Answer.
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

// execute gives messages to the process of the session. It starts the process if one of
// the messages needs it.
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

// invalid answers a delivery that cannot be parsed, under its id if it has one.
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

// Answer passes a client's response to the server. question is the id under which the
// box sent the server's request to the client. The box drops an answer to a question
// that is not open.
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

// CloseStream closes a stream for good. The box cancels its requests and drops what the
// server still says for them. An event that is already on its way to the sink may still
// arrive.
func (b *Box) CloseStream(session, stream string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sessions[session]; s != nil {
		s.closeStream(stream)
	}
}

// StopSession ends a session. The box stops a process of this session only: requests in
// flight end with an error unless the process answers them on its way out. A shared
// process goes on, and the requests of the session are cancelled.
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

// Questions lists the open questions of each session by id, in the order in which the
// server asked them.
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

// IdleSince returns when a client or one of its requests was last active. ok is true
// only if no request is in flight, no process is starting, and the sink has taken
// everything. With a Keeper every workspace must be saved too.
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

// Processes lists the running processes by name, with those that are being stopped.
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

// Counts returns what the box has dropped so far.
func (b *Box) Counts() Counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counts
}

// Close stops all processes. It returns when they and everything in their groups are
// gone, the sink has taken their last events, and the workspaces are saved. Apart from
// the sink and the saves it takes no longer than the slowest process, which gets about
// six seconds.
//
// Requests in flight end a second after the call at the latest, and later requests at
// once; both with phase box_unavailable. When ctx ends first, Close kills the processes,
// gives up saving, and returns an error that wraps the cause of ctx.
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

// session finds or makes a session and joins it to its group. fresh reports whether it
// was not a member before.
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

// remove deletes the files that were made for the processes of a session.
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
