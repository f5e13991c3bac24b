// Package runner is the end of the relay that runs in the box. Package relay explains
// the protocol, package relayhost is the other end.
//
// A [Runner] connects to the relay function and gives each message to its [Executor]
// once. It sends the events of the box until the host has them. It falls asleep when
// the box is idle.
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

// ErrFenced is the error of [Runner.Run] when a newer runner runs the box. The caller
// stops its processes and exits. It is the code session.Fenced.
const ErrFenced = session.Fenced

// Executor is the box as the runner sees it. One goroutine calls all methods, one after
// the other, in the order in which the frames came. While a method blocks, no other is
// called. No method may wait for [Runner.Run] to return.
type Executor interface {
	// Deliver executes a message. It is called at most once for a delivery id and
	// round. If the delivery has requests, the box owes it one Event with Final or with
	// Asks. After one with Asks the box knows nothing of the delivery any more.
	Deliver(d Delivery)
	// Answer hands over the client's response to a question. It may be called twice for
	// one response, and for a question that is not open any more.
	Answer(s session.ID, question string, raw []byte)
	// CloseStream tells that the host has ended a request stream by itself. The box
	// cancels its calls; events that they still send are dropped. The stream may have
	// ended in the box as well.
	CloseStream(s session.ID, stream session.StreamID)
	// StopSession tells that the client has ended a session. The box stops its process.
	StopSession(s session.ID)
	// Questions returns the client-visible ids of the open questions, by session.
	Questions() map[session.ID][]string
	// IdleSince returns the time since when nothing has happened in the box. ok is true
	// only if no request is in flight, no start is under way and no question is open.
	IdleSince() (since time.Time, ok bool)
}

// Delivery is one client message (or batch) to execute. Init and Raw belong to
// the Executor.
type Delivery struct {
	ID          session.StreamID // deliver id, and the stream its events go to
	Round       int              // how often it was suspended; above 0, Raw has the answers
	Session     session.ID
	Principal   string // a hash; the same for all sessions of one principal in the box, and for no others
	Server      string
	Ticket      string   // the Ticket of its events
	Level       string   // last logging/setLevel of the session, "" for none
	Subscribed  []string // resource URIs, in the order of subscription
	Init        json.RawMessage
	Raw         []byte // as the client wrote it
	HasRequests bool   // the box owes an end
	Again       bool   // the session has had a process before
	Trace       string // the client's request in all logs, "" if it has no name
}

// Event is one message of a process. Raw is one line of JSON without the newline, and
// belongs to the Runner.
type Event struct {
	Session session.ID
	Stream  session.StreamID // session.Common, or the id of the delivery it belongs to
	Ticket  string           // the delivery's; on the common stream the session's newest, which "" also means
	Raw     []byte
	Final   bool        // the last event of its request stream
	Asks    *Suspension // not nil: the last event of this round of the stream
}

// Suspension asks the host to suspend a delivery that needs something of its client.
// The delivery waits, without this box, for answers to its questions. Events of its
// stream have asked the questions; the Suspension comes with the last of them. The ids
// of the questions are those of [session.QuestionID] in the round after the delivery's.
type Suspension struct {
	Questions []session.Question
	Raw       []byte        // the request, or a batch, to send again; without answers
	Within    time.Duration // how long the client may take to answer
}

// StatusReport tells the host about a process. With a Handshake it is the result of a
// fresh process's initialize, which the host keeps. Detail is then the protocol version
// that was asked for, and Ticket is one of the session's. Without a Handshake it is a
// line for the host's log, and the host cuts each text in it to 500 bytes.
type StatusReport struct {
	Session   session.ID
	Ticket    string
	Process   string
	Phase     string
	Detail    string
	Handshake json.RawMessage
	// Era goes with a Handshake if it is news which era the server speaks:
	// [frame.EraModern], [frame.EraLegacy] or [frame.EraDual]. A later runner of the
	// box finds it in [frame.EnvEra].
	Era string
}

// Conn is a connection to the relay that carries text messages of up to
// [frame.MaxFrame] bytes. One goroutine calls Send, and one calls Receive. Any
// goroutine may call Close, which makes both return. The caller owns the slice that
// Receive returns. Any error of Send or Receive means that the connection is of no use
// any more. A Send that takes longer than 30 s fails. A [ClosedError] in an error has
// the code with which the peer closed the connection, and so says whether to come back.
type Conn interface {
	Send(message []byte) error
	Receive() ([]byte, error)
	Close(reason string) error
}

// Dialer opens a connection to the relay, with a header. ctx bounds the opening only. A
// [RefusedError] in the error means that the host answered and refused the connection.
type Dialer func(ctx context.Context, url string, header http.Header) (Conn, error)

// Config is what a Runner works with. A duration of zero means the default, which its
// comment names last.
type Config struct {
	URL      string             // of the relay, in a form that Dial takes
	Box      session.BoxID      // the box it runs
	Gen      session.Generation // of the wake lease it was started for
	Token    string             // one-time token of that lease
	Pass     string             // the first pass, from frame.EnvPass
	Task     string             // the fleet's name for this runner
	Executor Executor
	Dial     Dialer // DialWebSocket

	Idle         time.Duration // the box sleeps after this long without work; 120 s
	Linger       time.Duration // how long it stays after falling asleep, for messages that were under way; 5 s
	PingEvery    time.Duration // says hello again, below the gateway's idle limit; 5 min
	RenewAfter   time.Duration // replaces a connection, below the gateway's limit; 110 min
	ReconnectFor time.Duration // how long it tries to reach the host before it gives up; 2 min
	Flush        time.Duration // how long requests in flight may take to end after Run's ctx is done; 5 s

	// Rand draws the pauses before a reconnect, and the moment at which a drain is
	// followed. Only Run uses it. nil means one with a random seed; a simulation passes
	// one with a seed of its own.
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

// Runner is the box's end of the relay for one life of a box: from the first hello
// until the box sleeps, is fenced or loses the host. Any goroutine may call Event,
// Status and Snapshot.
type Runner struct {
	cfg  Config
	in   chan func(*life) // closures for the goroutine of Run, which owns the state
	done chan struct{}    // closed when Run returns
}

// New returns a Runner. It does nothing before [Runner.Run].
func New(c Config) *Runner {
	return &Runner{cfg: c.withDefaults(), in: make(chan func(*life)), done: make(chan struct{})}
}

// Run connects and runs until one of these ends it. It may be called once.
//
//   - nil: the box has fallen asleep, or ctx was done and the runner could say bye.
//   - [ErrFenced]: a newer runner runs this box. Nothing more is sent.
//   - session.Unavailable: the host could not be reached for ReconnectFor.
//   - session.Invalid: the host does not take this runner. It said so with a
//     [CloseCode], or refused connections again and again.
//   - the cause of ctx, wrapped: ctx is done and the box was not idle within Flush. From
//     the moment ctx is done, no new message is executed. The caller stops its
//     processes meanwhile, so that open requests get their ends.
//
// Before Run returns, it closes all its connections and waits for all its goroutines.
// Events that are still to be sent then are lost.
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

// Event takes an event of a process and returns when the outbox of its session has room
// for more. It blocks while more than 32 MiB of that session wait for the host; this is
// the back-pressure on the process. It stops blocking when the connection has been lost
// for a minute, or when Run has returned. An event after Run is dropped. If the order
// of a session's events matters, one goroutine at a time must send them. Before Run,
// Event blocks.
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

// Status sends a report once. A report with a Handshake waits for a connection. Any
// other is lost if there is no connection at that moment.
func (r *Runner) Status(s StatusReport) {
	r.post(func(l *life) { l.outboxes.status(s) })
}

// post gives do to the loop. It returns false if the loop has ended.
func (r *Runner) post(do func(*life)) bool {
	select {
	case r.in <- do:
		return true
	case <-r.done:
		return false
	}
}
