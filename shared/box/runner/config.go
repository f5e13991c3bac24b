package runner

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// ErrFenced is the error of [Runner.Run] when a newer runner runs the box. The caller
// stops its processes and exits. Its code is storage.Fenced.
const ErrFenced = storage.Fenced

// Executor is the box as the runner sees it. One goroutine calls all methods, one after
// the other, in the order in which the frames came. While a method blocks, no other is
// called. No method may wait for [Runner.Run] to return.
type Executor interface {
	// Deliver executes a message. It is called at most once for a delivery id and round.
	// If the delivery has requests, the box must send one Event with Final or with Asks
	// for it. After an Event with Asks the box forgets the delivery.
	Deliver(d Delivery)
	// Answer passes on the client's response to a question. It may be called twice for one
	// response, and for a question that is not open any more.
	Answer(s storage.ID, question string, raw []byte)
	// CloseStream says that the host has ended a request stream by itself. The box cancels
	// its calls; events that they still send are dropped. The stream may have ended in the
	// box as well.
	CloseStream(s storage.ID, stream storage.StreamID)
	// StopSession says that the client has ended a session. The box stops its process.
	StopSession(s storage.ID)
	// Halt stops the process of a session, or with "" all processes, for an operator whom
	// by names. Calls in flight get a time to end. The sessions stay.
	Halt(s storage.ID, by string, within time.Duration)
	// Questions returns the client-visible ids of the open questions, by session.
	Questions() map[storage.ID][]string
	// IdleSince returns the time of the last activity in the box. ok is true only if no
	// request is in flight, no start is under way and no question is open.
	IdleSince() (since time.Time, ok bool)
}

// Delivery is one client message (or batch) to execute. Init and Raw belong to
// the Executor.
type Delivery struct {
	ID          storage.StreamID // deliver id, and the stream for its events
	Round       int              // how often it was suspended; above 0, Raw has the answers
	Session     storage.ID
	Principal   string   // a hash; the same for all sessions of one principal in the box, and different for other principals
	Ticket      string   // the Ticket of its events
	Level       string   // last logging/setLevel of the session, "" for none
	Subscribed  []string // resource URIs, in the order of subscription
	Init        json.RawMessage
	Raw         []byte                    // as the client wrote it
	HasRequests bool                      // the box owes an end
	Again       bool                      // the session has had a process before
	Moved       bool                      // the server may list otherwise than when the session last had a request
	Secrets     map[string]storage.Secret // keys and tokens of the principal at third parties, by provider
}

// Event is one message of a process. Raw is one line of JSON without the newline, and
// belongs to the Runner.
type Event struct {
	Session storage.ID
	Stream  storage.StreamID // storage.Standalone, or the id of the delivery it belongs to
	Ticket  string           // the delivery's; for the standalone stream "" or the session's newest
	Raw     []byte
	Final   bool        // the last event of its request stream
	Asks    *Suspension // not nil: the last event of this round of the stream
}

// Suspension asks the host to suspend a delivery that needs something of its client. The
// delivery waits, without this box, for answers to its questions. Events of its stream
// have asked the questions; the Suspension comes with the last of them. The ids of the
// questions are those of [storage.QuestionID], for the round after the delivery's.
type Suspension struct {
	Questions []storage.Question
	Raw       []byte        // the request, or a batch, to send again; without answers
	Within    time.Duration // how long the client may take to answer
}

// StatusReport tells the host about a process. With a Handshake it is the result of a
// fresh process's initialize, which the host keeps. Detail is then the requested protocol
// version, and Ticket is one of the session's. Without a Handshake it is a line for the
// host's log, and the host cuts each text in it to 500 bytes.
type StatusReport struct {
	Session   storage.ID
	Ticket    string
	Process   string
	Phase     string
	Detail    string
	Handshake json.RawMessage
	// Era goes with a Handshake if the host does not know yet which era the server speaks:
	// [frame.EraModern], [frame.EraLegacy] or [frame.EraDual]. A later runner of the box
	// finds it in [frame.EnvEra].
	Era string
	// Lists says that Handshake is a fingerprint of the lists of a fresh process instead. See
	// [frame.Status].
	Lists string
	Own   bool // goes with Lists
}

// Conn is a connection to the relay that carries text messages of up to [frame.MaxFrame]
// bytes. One goroutine calls Send, and one calls Receive. Any goroutine may call Close,
// which makes both return. The caller owns the slice that Receive returns. After any error
// of Send or Receive the connection cannot be used again. A Send that takes longer than 30
// s fails. A [ClosedError] in an error has the code with which the peer closed the
// connection, and so says whether to come back.
type Conn interface {
	Send(message []byte) error
	Receive() ([]byte, error)
	Close(reason string) error
}

// Dialer opens a connection to the relay, with a header. ctx limits the opening only. A
// [RefusedError] in the error means that the host answered and refused the connection.
type Dialer func(ctx context.Context, url string, header http.Header) (Conn, error)

// Config is what a Runner works with. A duration of zero means the default, which its
// comment names last.
type Config struct {
	URL      string             // of the relay, in a form that Dial takes
	Box      storage.BoxID      // the box it runs
	Gen      storage.Generation // of the wake lease for which the runner was started
	Token    string             // one-time token of that lease
	Pass     string             // the first pass, from frame.EnvPass
	Task     string             // the fleet's name for this runner
	Executor Executor
	Dial     Dialer // DialWebSocket

	// Begin makes the Executor of an invited runner, whose launch comes with the first
	// welcome; Config has no Executor then. launch has environment variables, and may hold
	// secrets. Begin is called once, on the Executor's goroutine. Its error ends Run.
	Begin func(launch map[string]string) (Started, error)
	// Deadline is when the place of the box ends the task; zero means never. Longest is
	// how long a message may take. The runner drains drainSlack plus Longest before
	// Deadline: it executes no new message, and says bye when it has finished the others.
	// From half of the time until Deadline on, the box sleeps as soon as it has nothing
	// to do.
	Deadline time.Time
	Longest  time.Duration

	// Digest names the definition of the server that the box was started with. If the
	// host has another one, Run calls Retire, once, as soon as nothing is in flight. The
	// caller then ends Run's ctx; Retire must not block. nil: the runner does not retire.
	Digest string
	Retire func()
	// Baked says that the image has the install of the server. The host notes it with
	// Digest.
	Baked bool

	Idle       time.Duration // the box sleeps after it was idle for this long; 120 s
	Linger     time.Duration // how long the runner stays after bye, for messages that were on their way; 5 s
	PingEvery  time.Duration // how often the runner sends hello again, below the gateway's idle limit; 5 min
	RenewAfter time.Duration // when the runner replaces a connection, below the gateway's limit; 110 min
	Flush      time.Duration // how long requests in flight have to end after Run's ctx is done; 5 s

	// Rand draws the pauses before a reconnect, and the moment of a renewal after a drain.
	// Only Run uses it. nil means one with a random seed; a simulation passes one with a
	// seed of its own.
	Rand *rand.Rand
	Log  *slog.Logger // nil for none

	// Guard keeps the runner from harming others in a program that has several; nil for none.
	// After a panic Run ends without a bye.
	Guard *guard.Guard
}

// Started is the box of an invited runner. The fields are as in [Config].
type Started struct {
	Executor Executor
	Digest   string
	Idle     time.Duration
	Longest  time.Duration
}
