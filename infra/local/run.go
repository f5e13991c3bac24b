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

// Who is let in; see [Config].
const (
	AccessKeys = "keys" // who has an API key
	AccessIDP  = "idp"  // also who has a token of the identity provider that the servers file names
	AccessOpen = "open" // everybody who reaches an endpoint
)

// Where the functions' handlers run; see [Config].
const (
	FunctionsInside  = "inside"  // in this process
	FunctionsProcess = "process" // as programs of their own, invoked as on AWS
)

// Which limits hold; see [Config].
const (
	LimitsHome = "home" // those of one machine
	LimitsAWS  = "aws"  // those of AWS's gateways
)

// Config says what [Run] hosts and how. Listen, Servers, Data, Runner, Environ, Out and
// Log are needed.
type Config struct {
	Listen    string   // HOST:PORT of the HTTP endpoint; port 0 takes a free one
	Sockets   string   // the same for WebSocket clients; "" is the port behind Listen's
	PublicURL string   // what clients call the HTTP endpoint behind a proxy; "" for none
	Origins   []string // origins of web pages that may call besides those of the endpoint itself
	Store     string   // "sqlite:PATH" or "dynamodb:TABLE…", see [OpenStore]; "" is [StoreFile] in Data
	Servers   string   // path of the servers file
	EnvFiles  []string // files of variables for it, the first one first; .env beside it comes behind them
	Strict    bool     // a server that cannot be hosted is an error
	Access    string   // AccessKeys, AccessIDP or AccessOpen; "" is open on loopback and else keys
	Data      string   // folder of the store, the ticket secret and the sockets
	Runner    []string // the program of a box, absolute, and its arguments

	Idle       time.Duration // an idle box says bye after this, unless its server sets its own
	Limits     string        // LimitsHome or LimitsAWS; with FunctionsProcess always LimitsAWS
	SocketIdle time.Duration // in the place of that limit of WebSocket connections
	SocketLife time.Duration // likewise
	Shuffle    *sockets.Shuffle
	Cold       bool // the handlers in this process are made anew for each message; for tests

	Functions  string        // FunctionsInside or FunctionsProcess
	Programs   string        // folder of the programs http, socket, relay and sweep, for FunctionsProcess
	Own        string        // folder of http and socket programs that are taken in their place, as far as they are there; "" for none
	SleepAfter time.Duration // an idle function process is stopped after this

	Environ []string  // as os.Environ: what ${VAR} in the servers file means, and settings of the functions
	JSON    bool      // print events as JSON lines
	Out     io.Writer // events, and the lines to paste
	Log     io.Writer // log lines of functions and boxes; safe for concurrent use
}

// Run hosts the servers of a servers file on this machine until ctx ends. When it
// returns, no process that it started is left. One data folder is used by one Run
// at a time.
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

// machine hosts servers. Its fields are set by the steps of Run, in their order; newMachine
// sets the first five.
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

// functions execute what the functions do on AWS: in this process ([inside]), or as
// processes of their own ([emulated]).
type functions interface {
	web() http.Handler     // serves HTTP clients
	sockets() http.Handler // serves WebSocket clients
	// sweep begins to look after boxes and what was left behind: after one task that has
	// stopped, or with nil after all. The channel is closed when that has come to its end.
	sweep(stopped *fleet.Status) <-chan struct{}
	processes() []ProcessStatus
}

// served are the names of the servers that clients can call.
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

// openLedger takes up what earlier runs have counted, and writes it down from time to time.
func (m *machine) openLedger(ctx context.Context) (err error) {
	if m.ledger, err = bill.Open(m.folder.Path, m.boxSize, m.boxes.Tasks, m.log); err == nil {
		go m.ledger.Keep(ctx)
	}
	return err
}

// schedulesFolder keeps the alarms of native servers, in the data folder.
const schedulesFolder = "schedules"

// snapshots is where workspaces are kept.
func (m *machine) snapshots() string { return m.environ.snapshots(m.folder.File("snapshots")) }

func (m *machine) startFunctions(ctx context.Context) error {
	if m.cfg.Functions == FunctionsProcess {
		m.cfg.Limits = LimitsAWS
		return m.startEmulated(ctx)
	}
	return m.startInside(ctx)
}

// startRelay lets runners connect, once everything that they reach is there.
func (m *machine) startRelay(context.Context) error { return m.serveUnix("relay", m.relay) }

func (m *machine) startControl(context.Context) error {
	return m.serveUnix("control", &control{
		key: m.folder.Key(), servers: m.servers, functions: m.functions, boxes: m.boxes, ledger: m.ledger,
		usage: func() Usage { return Usage{Relay: m.relay.Usage(), Socket: m.socket.Usage()} },
	})
}

// startEndpoints opens what clients connect to: last, when all behind it is there.
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

// stopTime bounds the whole end; boxes get the most of it, to say bye.
const stopTime = 20 * time.Second

// stop ends everything. New messages are refused first; then the boxes end, while
// the functions still take what they have to say; then the functions.
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
	if m.socket != nil { // else nothing can have been used
		m.ledger.Close()
	}
	m.folder.Close()
}

// output passes a line of a function or a runner on. They write slog JSON.
func (m *machine) output(_, line string) { _, _ = fmt.Fprintln(m.cfg.Log, line) }

// functionOutput is output for functions, which say what they have used.
func (m *machine) functionOutput(name, line string) {
	m.ledger.Line(line)
	m.output(name, line)
}
