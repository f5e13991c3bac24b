// Package runner is the end of the relay that runs in the box. Package relay explains
// the protocol, package relayhost is the other end.
//
// A [Runner] connects to the relay function, gives each message to its [Executor] once,
// sends the events of the box until the host has them, and falls asleep when the box is
// idle.
package runner

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// ErrFenced is what [Runner.Run] returns when somebody newer runs the box: the
// caller stops its processes and exits. It is the code session.Fenced.
const ErrFenced = session.Fenced

// Executor is the box as the runner's end of the relay sees it. All methods are
// called by one goroutine, one after the other in the order of what came in;
// while one of them blocks, nothing else is executed. None may keep the caller
// waiting for [Runner.Run] to return.
type Executor interface {
	// Deliver executes a message. It is called at most once for a delivery id and
	// round. If it has requests, the box owes one event with Final for it, or with
	// Asks, after which it knows nothing of it any more.
	Deliver(d Delivery)
	// Answer hands over the client's response to a question. It may come twice,
	// and for a question that is not open any more.
	Answer(s session.ID, question string, raw []byte)
	// CloseStream says that the host has ended a request stream by itself: its
	// calls are to be cancelled, and what they still say is sent nowhere. The
	// stream may have ended here as well.
	CloseStream(s session.ID, stream session.StreamID)
	// StopSession says that the client has ended a session: its process is to be
	// stopped.
	StopSession(s session.ID)
	// Questions are the client-visible ids of the open questions of each session.
	Questions() map[session.ID][]string
	// IdleSince is since when nothing has happened in the box. ok is true only if
	// no request is in flight, no start is under way and no question is open.
	IdleSince() (since time.Time, ok bool)
}

// Delivery is one client message (or batch) to execute. Init and Raw belong to
// the Executor.
type Delivery struct {
	ID          session.StreamID // deliver id, and the stream its events go to
	Round       int              // how often it was suspended; Raw then has the answers
	Session     session.ID
	Principal   string // a hash that all sessions of one principal have, and no others
	Server      string
	Ticket      string   // goes back with the events
	Level       string   // last logging/setLevel of the session, "" for none
	Subscribed  []string // resource URIs, in the order of subscription
	Init        json.RawMessage
	Raw         []byte // as the client wrote it
	HasRequests bool   // an end is owed
	Again       bool   // the session has had a process before
	Trace       string // the client's request in all logs, "" if it has no name
}

// Event is one message a process has said. Raw is one line of JSON without the
// newline and belongs to the Runner.
type Event struct {
	Session session.ID
	Stream  session.StreamID // session.Common, or the id of the delivery it belongs to
	Ticket  string           // of the delivery; on the common stream the session's newest, or "" for that
	Raw     []byte
	Final   bool        // the last event of its request stream
	Asks    *Suspension // not nil: the last event of this round of the stream
}

// Suspension is what is to become of a delivery that needs something of its client:
// it waits, without this box, for answers to its questions, which were asked by
// events of its stream, the last of which it comes with. Their ids are those of
// [session.QuestionID] in the round after the delivery's.
type Suspension struct {
	Questions []session.Question
	Raw       []byte        // the request to send again, without answers; or a batch
	Within    time.Duration // for the answers
}

// StatusReport tells the host of a process. With a Handshake it is the result a
// fresh process gave to initialize (then Detail is the protocol version that was
// asked for, and Ticket one of the session's), which the host keeps; without, it
// is a line for its log, each text in it cut to 500 bytes.
type StatusReport struct {
	Session   session.ID
	Ticket    string
	Process   string
	Phase     string
	Detail    string
	Handshake json.RawMessage
	// Era goes with a Handshake if it is news what the server speaks: [EraModern],
	// [EraLegacy] or [EraDual]. A later runner of the box is told by [EnvEra].
	Era string
}

// Conn is a connection to the relay that carries text messages of up to
// [frame.MaxFrame] bytes. Send and Receive are each called by one goroutine, Close by
// any, and makes both of them return. Receive returns a slice that nobody else has.
// Any error of Send or Receive means that the connection is of no use any more, and a
// Send of more than 30 s is one; a [ClosedError] in it says with which code the peer
// has closed it, and so whether to come back.
type Conn interface {
	Send(message []byte) error
	Receive() ([]byte, error)
	Close(reason string) error
}

// Dialer opens a connection to the relay, with a header. ctx bounds the opening only. A
// [RefusedError] in the error says that there is a host, which does not want it.
type Dialer func(ctx context.Context, url string, header http.Header) (Conn, error)

// Config is what a Runner works with. Durations of zero mean the default.
type Config struct {
	URL      string             // of the relay, ws:// or wss://
	Box      session.BoxID      // the box it runs
	Gen      session.Generation // of the wake lease it was started for
	Token    string             // one-time token of that lease
	Pass     string             // what the relay admits connections with, of EnvPass
	Task     string             // the fleet's name for this runner
	Executor Executor
	Dial     Dialer // DialWebSocket

	Idle         time.Duration // the box sleeps after this long without work; 120 s
	Linger       time.Duration // stays after falling asleep for what was under way; 5 s
	PingEvery    time.Duration // says hello again, below the gateway's idle limit; 5 min
	RenewAfter   time.Duration // replaces a connection, below the gateway's limit; 110 min
	ReconnectFor time.Duration // tries to reach the host before it gives up; 2 min
	Flush        time.Duration // after Run's ctx is done: for what is in flight to end; 5 s

	// Rand draws the pauses before a reconnect and the moment at which a drain is
	// followed, for nobody but Run. nil is one that is seeded at random; a
	// simulation gives one it has seeded.
	Rand *rand.Rand
	Log  *slog.Logger // nil for none
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Idle, 2*time.Minute)
	def(&c.Linger, 5*time.Second)
	def(&c.PingEvery, 5*time.Minute)
	def(&c.RenewAfter, 110*time.Minute)
	def(&c.ReconnectFor, 2*time.Minute)
	def(&c.Flush, 5*time.Second)
	if c.Dial == nil {
		c.Dial = DialWebSocket
	}
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Runner is the box's end of the relay, for one life of a box: from the first
// hello to the sleep, the fence or the loss of the host. Event and Status may be
// called by any goroutine.
type Runner struct {
	cfg  Config
	in   chan func(*life) // everything that happens, for the one goroutine that has the state
	done chan struct{}    // closed when Run returns
}

// New makes a Runner. Nothing happens before [Runner.Run].
func New(c Config) *Runner {
	return &Runner{cfg: c.withDefaults(), in: make(chan func(*life)), done: make(chan struct{})}
}

// Run connects and lives until one of these ends it; it may be called once.
//
//   - nil: the box has fallen asleep, or ctx was done and it could say bye.
//   - [ErrFenced]: somebody newer runs this box. Nothing more is sent.
//   - session.Unavailable: the host could not be reached for ReconnectFor.
//   - session.Invalid: there is a host, and it does not take this runner: it said
//     so with a [CloseCode], or refused connections time and again.
//   - the cause of ctx: ctx is done and the box was not idle within Flush. From
//     the moment ctx is done no new message is executed; the caller stops its
//     processes meanwhile, so that open requests get their ends.
//
// Before it returns, all its connections are closed and all its goroutines have
// ended. What is still to be sent then is lost.
func (r *Runner) Run(ctx context.Context) error {
	l := newLife(ctx, r)
	defer l.stop()
	l.start()
	cancelled := ctx.Done()
	for !l.over {
		select {
		case do := <-r.in:
			do(l)
		case <-cancelled:
			cancelled = nil
			l.sleep.closeDown(context.Cause(ctx))
		}
		if l.closing {
			l.sleep.tryClose()
		}
	}
	return l.err
}

// Event takes an event of a process and returns when the outbox of its session
// has room for more: while more than 32 MiB of that session wait to be taken by
// the host, it blocks, which is the back-pressure on the process. It never blocks
// longer than until the connection has been lost for a minute, or Run has
// returned; what comes after that is dropped. Events of one session must come
// from one goroutine at a time if their order matters. Before Run, it blocks.
func (r *Runner) Event(e Event) {
	room := make(chan struct{})
	if !r.post(func(l *life) { l.outboxes.event(e, room) }) {
		return
	}
	select {
	case <-room:
	case <-r.done:
	}
}

// Status takes a report. It is sent once, and lost if there is no connection at
// that moment; only one with a Handshake is kept until it could be sent.
func (r *Runner) Status(s StatusReport) {
	r.post(func(l *life) { l.outboxes.status(s) })
}

// post hands something to the loop; false if that has ended.
func (r *Runner) post(do func(*life)) bool {
	select {
	case r.in <- do:
		return true
	case <-r.done:
		return false
	}
}
