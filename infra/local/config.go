package local

import (
	"io"
	"net"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/certs"
	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry/otlp"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// StoreFile is the name of the store in the data folder.
const StoreFile = "store.db"

// HistoryFile is the name of the file in the data folder with the history of calls.
const HistoryFile = "history.db"

// keptCalls is the largest number of calls in the history.
const keptCalls = 100_000

// Values of Access in [Config].
const (
	AccessKeys  = "keys"  // callers with an API key
	AccessOAuth = "oauth" // callers with an API key, or who have signed in: at the issuer in the servers file or, without one there, under a name of their choice
	AccessIDP   = "idp"   // callers with an API key, or a token of the identity provider in the servers file
	AccessOpen  = "open"  // any caller that reaches an endpoint
)

// Values of Durability in [Config]: what an answer survives after its client has received it.
const (
	DurabilityDisk    = "disk"    // a power cut: the answer waits for fsync
	DurabilityProcess = "process" // the death of every process, but no power cut: the answer does not wait for the fsync, which follows at once
)

// Config says what [Run] hosts and how. Listen, Servers, Data, Runner and Environ are required.
type Config struct {
	Listen  string // HOST:PORT of the HTTP endpoint; port 0 takes a free one
	Sockets string // HOST:PORT of the WebSocket endpoint; "" is the port after Listen's
	// Opened are listeners that the caller has opened: none, one for HTTP, or one for HTTP and one
	// for WebSockets. They replace Listen and Sockets.
	Opened     []net.Listener
	PublicURL  string         // URL of the HTTP endpoint for clients behind a proxy; "" is the URL of the domain in TLS, if there is one
	Proxies    Proxies        // the reverse proxies whose X-Forwarded-For is believed
	TLS        certs.Settings // the certificate of both endpoints
	Origins    []string       // origins of web pages that may call, beside the endpoint's own
	Store      string         // "sqlite:PATH" or "dynamodb:TABLE…", see [OpenStore]; "" is [StoreFile] in Data
	Durability string         // DurabilityDisk or DurabilityProcess, for a store that is a file; "" is process if only this user can call, and disk otherwise
	Servers    string         // path of the servers file
	EnvFiles   []string       // files of variables for the servers file; an earlier one wins; the file .env next to the servers file comes last
	// A signal on Reload makes Run read the servers file at once. Run also reads the file when it
	// has changed. Reload may be nil.
	Reload <-chan os.Signal
	Access string // AccessKeys, AccessOAuth, AccessIDP or AccessOpen; "" is open on loopback and keys elsewhere
	// Guests makes Run confine each server that names no sandbox profile, as far as the system
	// supports it. Without Guests, Run does so only if others than the user of this machine can
	// call.
	Guests bool
	Data   string   // folder of the store, the secret for encryption, and the local sockets
	Runner []string // absolute path of the program that runs a box as a process, and its arguments
	// Apart makes Run start a process for each box. Without Apart, the box of a server without a
	// sandbox runs in this program if only the user of this machine can call.
	Apart bool

	Idle time.Duration // how long a box may be idle before it stops, unless its server sets its own time
	// InitTimeout and Hold replace those of [sessions.Limits], for tests.
	InitTimeout, Hold time.Duration
	Cold              bool // build new handlers for each message; for tests

	// Edits change the servers file for the console. If nil, the console only shows the file.
	Edits api.Edits

	Native    native.Servers // servers in Go that are compiled into this program
	Functions Opener         // opens the [Functions] in other processes; nil runs them in this one

	// Prepare makes Run start a new server once, as soon as the servers file names it, if it has
	// something to install and has never started.
	Prepare bool

	// Watch reports whether a server is started anew when one of its source files is saved. If
	// Watch is nil, no server is.
	Watch func(server string) bool

	// ExitWhenIdle makes Run return after this time without a request, if no connection is open,
	// no box is awake, and no alarm or call waits. If it is 0, Run does not return by itself.
	ExitWhenIdle time.Duration
	// Closing Drain makes Run accept no more connections, end the boxes after their calls, and
	// return when no call is in flight and no box runs, after half a minute at most. Drain may be
	// nil.
	Drain    <-chan struct{}
	Stopping func() // called when the stop begins; may be nil

	Environ []string         // in the form of os.Environ: values of ${VAR} in the servers file, and settings of the handlers
	Ready   func(url string) // called with the URL of the HTTP endpoint when clients can call; may be nil

	memory func() (free, total int64, known bool) // memory of the machine in bytes, for tests; nil asks the system

	// Telemetry says where spans and metrics are sent; nil sends none.
	Telemetry *otlp.Settings

	// JSON gets events as JSON lines, and Display gets them as text for people. Both may be nil.
	// Verbose adds the messages between boxes and functions to the events.
	JSON    io.Writer
	Display *display.Terminal
	// Events is called with each event, from several goroutines. It may be nil.
	Events  func(journal.Event)
	Verbose bool
	// Command is how the user calls dormouse, for the commands that Display proposes; "" is
	// dormouse.
	Command string
	// Log gets the log lines of functions and boxes. It must be safe for concurrent use. If nil,
	// Run writes them to [LogFile] in Data.
	Log io.Writer
}
