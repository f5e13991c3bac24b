package runner

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// ErrFenced is the error of [Runner.Run] when a newer runner runs the box. The caller must stop
// its processes and exit.
const ErrFenced = storage.Fenced

// Conn is a connection to the relay that carries text messages of up to [frame.MaxFrame] bytes.
// One goroutine calls Send, and one calls Receive. Any goroutine may call Close, which makes Send
// and Receive return. The caller owns the slice that Receive returns. After an error of Send or
// Receive the connection cannot be used again. A Send that takes longer than 30 seconds fails. If
// the peer closed the connection with a code, the error wraps a [ClosedError].
type Conn interface {
	Send(message []byte) error
	Receive() ([]byte, error)
	Close(reason string) error
}

// Dialer opens a connection to the relay, with these header fields in its request. ctx limits only
// the time to open it. If the host answers but refuses the connection, the error wraps a
// [RefusedError].
type Dialer func(ctx context.Context, url string, header http.Header) (Conn, error)

// Config configures a Runner. If a duration is zero, it has the default that its comment ends
// with.
type Config struct {
	URL      string // URL of the relay, in a form that Dial accepts
	Box      storage.BoxID
	Gen      storage.Generation // grows with each start of a runner for the box; a runner with a greater Gen replaces this one
	Token    string             // one-time secret by which the host recognizes the runner that it started
	Pass     string             // secret for the first connection, see frame.PassHeader; from the variable frame.EnvPass
	Task     string             // the host's name for this runner, such as the ARN of its task
	Executor frame.Executor
	Dial     Dialer // nil means DialWebSocket

	// Begin makes the Executor of a runner that was started before its box was known (see
	// [frame.Hello.Invited]); Config.Executor must be nil. The argument launch is the box's
	// environment variables from the first [frame.Welcome], and may hold secrets. Begin is called
	// once, on the goroutine that calls the Executor. If Begin fails, Run returns its error.
	Begin func(launch map[string]string) (Started, error)
	// Deadline is when the machine of the box stops this program; zero means never. Longest is how
	// long a message may take. When Longest plus 20 seconds are left until Deadline, the runner
	// begins to drain: it executes no new message, and sends [frame.Bye] when the open requests
	// have ended. In the second half of the time until Deadline, the box sleeps as soon as it has
	// nothing to do.
	Deadline time.Time
	Longest  time.Duration

	// Digest names the definition of the server that the box was started with. If the host has
	// another definition, Run calls Retire, once, as soon as nothing is in flight. Retire should
	// make the caller end Run's ctx, and must not block. If Retire is nil, the runner ignores a
	// changed definition.
	Digest string
	Retire func()
	// Yield ends the process that has been idle longest, if it has been idle for
	// [frame.YieldAfter], because the host needs memory. Yield is called on the goroutine that
	// calls the Executor. If Yield is nil, no process is ended.
	Yield func()
	// Baked says that the container image already contains the server's installed packages.
	Baked bool

	Idle       time.Duration // the box sleeps after it was idle for this long; 120 s
	Linger     time.Duration // how long the runner stays connected after its [frame.Bye], for messages on their way; 5 s
	PingEvery  time.Duration // how often the runner sends [frame.Hello] again, below the gateway's idle limit; 5 min
	RenewAfter time.Duration // after how long the runner replaces a connection, below the gateway's limit; 110 min
	Flush      time.Duration // how long requests in flight may take to end after Run's ctx is done; 5 s

	// Rand draws the pauses before the runner connects again, and the moments at which it renews a
	// connection. Only Run uses Rand; nil means a random seed.
	Rand *rand.Rand
	Log  *slog.Logger // nil for none
}

// Started is what [Config].Begin returns: the Executor and the settings of the box. Its fields are
// as in [Config].
type Started struct {
	Executor frame.Executor
	Digest   string
	Idle     time.Duration
	Longest  time.Duration
}
