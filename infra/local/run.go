package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/bill"
	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/fleet"
	boxes "github.com/dormouse-mcp/dormouse/shared/fleet/process"
)

// StoreFile is the name of the store in the data folder.
const StoreFile = "store.db"

// Values of Access in [Config].
const (
	AccessKeys = "keys" // callers with an API key
	AccessIDP  = "idp"  // callers with an API key, or a token of the identity provider in the servers file
	AccessOpen = "open" // any caller that reaches an endpoint
)

// Values of Functions in [Config]: where the handlers run.
const (
	FunctionsInside  = "inside"  // in this process
	FunctionsProcess = "process" // as programs of their own, invoked as on AWS
)

// Values of Limits in [Config].
const (
	LimitsHome = "home" // limits for one machine
	LimitsAWS  = "aws"  // limits of AWS's gateways
)

// Config says what [Run] hosts and how. Listen, Servers, Data, Runner, Environ, Out and
// Log are required.
type Config struct {
	Listen    string   // HOST:PORT of the HTTP endpoint; port 0 takes a free one
	Sockets   string   // HOST:PORT of the WebSocket endpoint; "" is the port after Listen's
	PublicURL string   // URL of the HTTP endpoint for clients behind a proxy; "" for none
	Origins   []string // origins of web pages that may call besides the endpoint's own
	Store     string   // "sqlite:PATH" or "dynamodb:TABLE…", see [OpenStore]; "" is [StoreFile] in Data
	Servers   string   // path of the servers file
	EnvFiles  []string // files of variables for the servers file; earlier ones win, and .env beside it comes last
	Strict    bool     // Run fails if a server cannot be hosted
	Access    string   // AccessKeys, AccessIDP or AccessOpen; "" is open on loopback and keys elsewhere
	Data      string   // folder of the store, the ticket secret and the sockets
	Runner    []string // the program of a box, absolute, and its arguments

	Idle       time.Duration // an idle box says bye after this, unless its server sets its own
	Limits     string        // LimitsHome or LimitsAWS; with FunctionsProcess always LimitsAWS
	SocketIdle time.Duration // replaces the idle limit of WebSocket connections
	SocketLife time.Duration // replaces their life limit
	Shuffle    *sockets.Shuffle
	Cold       bool // build new handlers for each message; for tests

	Functions  string        // FunctionsInside or FunctionsProcess
	Programs   string        // folder of the programs http, socket, relay and sweep, for FunctionsProcess
	Own        string        // folder with the user's own http and socket programs, used instead where present; "" for none
	SleepAfter time.Duration // an idle function process is stopped after this

	Environ []string  // as os.Environ: values of ${VAR} in the servers file, and settings of the functions
	JSON    bool      // print events as JSON lines
	Out     io.Writer // events, and the lines to paste
	Log     io.Writer // log lines of functions and boxes; safe for concurrent use
}

// Run hosts the servers of a servers file on this machine until ctx ends. It returns
// when every process that it started has ended. A data folder serves one Run at a
// time.
func Run(ctx context.Context, cfg Config) error {
	m := newMachine(cfg)
	defer m.stop(context.WithoutCancel(ctx))
	if err := m.start(ctx); err != nil {
		return err
	}
	m.public.announce(m.served(), cfg.JSON, cfg.Out, cfg.Log)
	<-ctx.Done()
	return nil
}

// machine hosts servers. newMachine sets its first five fields, and the steps of Run set
// the others in order.
type machine struct {
	cfg      Config
	environ  environ
	public   *listeners
	log      *slog.Logger
	recorder *journal.Recorder

	servers   *catalog.Catalog
	folder    *datafolder.Folder
	store     string // see OpenStore
	boxes     *boxes.Pool
	ledger    *bill.Ledger
	functions functions
	relay     *sockets.API                  // for runners
	socket    *sockets.API                  // for clients
	closers   []func(context.Context) error // in the order of opening
}

func newMachine(cfg Config) *machine {
	print := journal.HumanPrinter(cfg.Out)
	if cfg.JSON {
		print = journal.JSONPrinter(cfg.Out)
	}
	return &machine{
		cfg: cfg, environ: cfg.Environ, log: slog.New(slog.NewJSONHandler(cfg.Log, nil)), recorder: journal.NewRecorder(print),
		public: &listeners{Listen: cfg.Listen, Sockets: cfg.Sockets, PublicURL: cfg.PublicURL, Access: cfg.Access},
	}
}

func (m *machine) start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		m.readServers, m.openFolder, m.startFleet, m.openLedger, m.startFunctions, m.startRelay,
		m.startControl, m.startSweep, m.startEndpoints,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// functions executes the work of the functions on AWS: in this process ([inside]), or
// in processes of their own ([emulated]).
type functions interface {
	web() http.Handler     // serves HTTP clients
	sockets() http.Handler // serves WebSocket clients
	// sweep starts a sweep in the background: for one task that has stopped, or, with nil,
	// of everything. It closes the channel when the sweep has ended.
	sweep(stopped *fleet.Status) <-chan struct{}
	processes() []ProcessStatus
}

// served returns the names of the servers that clients can call.
func (m *machine) served() []string {
	return slices.DeleteFunc(m.servers.Names(), func(name string) bool {
		s, _ := m.servers.Server(name)
		return s.Disabled
	})
}

func (m *machine) openFolder(context.Context) (err error) {
	if m.folder, err = datafolder.Open(m.cfg.Data); err == nil {
		m.store, err = StoreName(m.cfg.Store, m.folder.Path)
	}
	return err
}

// openLedger continues the counts of earlier runs, and saves them from time to time.
func (m *machine) openLedger(ctx context.Context) (err error) {
	if m.ledger, err = bill.Open(m.folder.Path, m.boxSize, m.boxes.Tasks, m.log); err == nil {
		go m.ledger.Keep(ctx)
	}
	return err
}

// schedulesFolder is the folder in the data folder with the alarms of native servers.
const schedulesFolder = "schedules"

// snapshots returns the place where boxes keep workspaces.
func (m *machine) snapshots() string { return m.environ.snapshots(m.folder.File("snapshots")) }

func (m *machine) startFunctions(ctx context.Context) error {
	if m.cfg.Functions == FunctionsProcess {
		m.cfg.Limits = LimitsAWS
		return m.startEmulated(ctx)
	}
	return m.startInside(ctx)
}

// startRelay lets runners connect. It comes after everything that their messages
// reach.
func (m *machine) startRelay(context.Context) error { return m.serveUnix("relay", m.relay) }

func (m *machine) startControl(context.Context) error {
	return m.serveUnix("control", &control{
		key: m.folder.Key(), servers: m.servers, functions: m.functions, boxes: m.boxes, ledger: m.ledger,
		usage: func() Usage { return Usage{Relay: m.relay.Usage(), Socket: m.socket.Usage()} },
	})
}

// startEndpoints opens the endpoints for clients. It comes last, when everything
// behind them works.
func (m *machine) startEndpoints(ctx context.Context) error {
	if err := m.public.start(ctx); err != nil {
		return err
	}
	m.serve(m.public.open[0], m.functions.web())
	m.serve(m.public.open[1], m.functions.sockets())
	return nil
}

func (m *machine) serveUnix(name string, h http.Handler) error {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "unix", m.folder.Socket(name))
	if err != nil {
		return fmt.Errorf("open the %s socket: %w", name, err)
	}
	m.serve(l, h)
	return nil
}

// serve runs an HTTP server until stop.
func (m *machine) serve(l net.Listener, h http.Handler) {
	open := &openConnections{since: map[net.Conn]time.Time{}}
	s := &http.Server{Handler: h, ReadHeaderTimeout: headWithin, IdleTimeout: idleConnections, ConnState: open.note, ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelWarn)}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			m.log.Error("a server has stopped", "address", l.Addr().String(), "error", err)
		}
	}()
	m.closers = append(m.closers, func(context.Context) error { return s.Close() })
}

// stopTime is the longest time for the whole stop. Boxes get most of it, to say bye.
const stopTime = 20 * time.Second

// stop ends everything. It refuses new messages first. Then it ends the boxes, while
// the functions still take their last messages, and then the functions.
func (m *machine) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	m.public.close()
	if m.boxes != nil {
		if err := m.boxes.Close(ctx); err != nil {
			m.log.Warn("boxes did not end in time", "error", err)
		}
	}
	for i := len(m.closers) - 1; i >= 0; i-- {
		if err := m.closers[i](ctx); err != nil && !errors.Is(err, net.ErrClosed) {
			m.log.Warn("not everything ended in time", "error", err)
		}
	}
	if m.socket != nil { // otherwise there was no use to count
		m.ledger.Close()
	}
	m.folder.Close()
}

// output copies a line of a function or a runner to the log. They write slog JSON.
func (m *machine) output(_, line string) { _, _ = fmt.Fprintln(m.cfg.Log, line) }

// functionOutput is output for functions, whose lines say what they have used.
func (m *machine) functionOutput(name, line string) {
	m.ledger.Line(line)
	m.output(name, line)
}
