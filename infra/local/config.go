package local

import (
	"io"
	"net"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/certs"
	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// StoreFile is the name of the store in the data folder.
const StoreFile = "store.db"

// HistoryFile is the name of the file in the data folder with the history of calls.
const HistoryFile = "history.db"

// keptCalls is how many calls the history has at most.
const keptCalls = 100_000

// Values of Access in [Config].
const (
	AccessKeys  = "keys"  // callers with an API key
	AccessOAuth = "oauth" // callers with an API key, or who sign in here: at the issuer in the servers file, or by any name
	AccessIDP   = "idp"   // callers with an API key, or a token of the identity provider in the servers file
	AccessOpen  = "open"  // any caller that reaches an endpoint
)

// The values of [Config].Durability: what an answer survives when its client gets it.
const (
	DurabilityDisk    = "disk"    // a power cut
	DurabilityProcess = "process" // the death of every process; its fsync follows at once
)

// Config says what [Run] hosts and how. Listen, Servers, Data, Runner, Environ, Out and
// Log are required.
type Config struct {
	Listen  string // HOST:PORT of the HTTP endpoint; port 0 takes a free one
	Sockets string // HOST:PORT of the WebSocket endpoint; "" is the port after Listen's
	// Opened are the endpoints that the caller has opened: none, the one for HTTP, or
	// both. They replace Listen and Sockets.
	Opened     []net.Listener
	PublicURL  string         // URL of the HTTP endpoint for clients behind a proxy; "" means that of the domain in TLS, if there is one
	Proxies    Proxies        // the reverse proxies in front, whose X-Forwarded-For counts
	TLS        certs.Settings // the certificate of both endpoints
	Origins    []string       // further origins of web pages that may call, beside the endpoint's own
	Store      string         // "sqlite:PATH" or "dynamodb:TABLE…", see [OpenStore]; "" is [StoreFile] in Data
	Durability string         // DurabilityDisk or DurabilityProcess, for a file; "" is process while only this user can call, and disk otherwise
	Servers    string         // path of the servers file
	EnvFiles   []string       // files of variables for the servers file; earlier ones win, and .env beside it comes last
	// A signal on Reload makes Run read the servers file at once; Reload may be nil. Run
	// also does so when the file has changed.
	Reload <-chan os.Signal
	Access string // AccessKeys, AccessOAuth, AccessIDP or AccessOpen; "" is open on loopback and keys elsewhere
	// Guests confines servers that have no profile, as far as the system can, even if only the
	// user of this machine can call.
	Guests bool
	Data   string   // folder of the store, the ticket secret and the sockets
	Runner []string // the program of a box that is a process, absolute, and its arguments
	// Apart has every box be a process; otherwise only those of servers with limits, or
	// where not only the user of this machine can call.
	Apart bool

	Idle time.Duration // how long a box may be idle until it says bye, unless its server sets its own time
	// InitTimeout and Hold replace those of sessions.Limits; for tests.
	InitTimeout, Hold time.Duration
	Cold              bool // build new handlers for each message; for tests

	// Edits change the servers file for the console. Without them the console shows it only.
	Edits api.Edits

	Native    native.Servers // servers in Go that are part of this program
	Functions Opener         // opens the functions somewhere else than in this process; nil for here

	// Prepare has Run start each server once that has something to install and has never
	// started, when its entry is taken.
	Prepare bool

	// Watch says which servers start anew when a file of their sources is saved; nil for none.
	Watch func(server string) bool

	// ExitWhenIdle ends Run when there was no request for so long, no connection is open,
	// no box is awake, and no alarm or call waits. If it is 0, Run does not end by
	// itself.
	ExitWhenIdle time.Duration
	// Drain ends Run once it is closed and no call is in flight, or after half a minute. It
	// may be nil.
	Drain    <-chan struct{}
	Stopping func() // is called when the stop begins; nil for none

	Environ []string         // as os.Environ: values of ${VAR} in the servers file, and settings of the functions
	Ready   func(url string) // is called when clients can call, with the URL of the HTTP endpoint; nil for none

	memory func() (free, total int64, known bool) // of the machine, for tests; nil asks it

	// Telemetry says where spans and metrics go; nil for nowhere.
	Telemetry *telemetry.Options

	// JSON gets events as JSON lines; nil for none. Display gets them for people; nil for
	// none. Verbose adds the frames of boxes to the events.
	JSON    io.Writer
	Display *display.Terminal
	// Events gets them inside of this program, from several goroutines; nil for nobody.
	Events  func(journal.Event)
	Verbose bool
	// Command is what the user types for dormouse, for the commands that Display proposes; ""
	// is dormouse.
	Command string
	// Log gets the log lines of functions and boxes, and must be safe for concurrent use.
	// nil keeps them in [LogFile] in Data.
	Log io.Writer
}
