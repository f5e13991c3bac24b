package runner

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// ErrFenced is the error of [Runner.Run] when a newer runner runs the box. The caller
// stops its processes and exits. Its code is storage.Fenced.
const ErrFenced = storage.Fenced

// What a box is given, and what it says.
type (
	Executor     = frame.Executor
	Delivery     = frame.Delivery
	Event        = frame.Event
	Suspension   = frame.Suspension
	StatusReport = frame.StatusReport
)

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
	// Yield ends the process that has been idle longest, if that is [frame.YieldAfter], because
	// the host needs its memory. It is called like a method of the Executor. nil: none ends.
	Yield func()
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
