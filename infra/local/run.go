package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/gather"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	boxes "github.com/dormouse-mcp/dormouse/shared/fleet/process"
)

// StoreFile is the name of the store in the data folder.
const StoreFile = "store.db"

// Who is let in; see [Config].
const (
	AccessKeys = "keys" // who has an API key
	AccessOpen = "open" // everybody who reaches an endpoint
)

// Config says what [Run] hosts and how. Sockets, Store, Access, Concurrent, JSON,
// Limits and Shuffle may be left out.
type Config struct {
	Listen     string          // HOST:PORT of the HTTP endpoint; port 0 takes a free one
	Sockets    string          // the same for WebSocket clients; "" is the port behind Listen's
	Store      string          // "sqlite:PATH", or what else DORMOUSE_STORE of a function may be; "" is [StoreFile] in Data
	Servers    string          // path of the servers file
	Access     string          // AccessKeys or AccessOpen; "" is open on loopback and else keys
	Data       string          // folder of the store, the ticket secret and the sockets
	SleepAfter time.Duration   // an idle function process is stopped after this
	Idle       time.Duration   // an idle box says bye after this, unless its server sets its own
	Concurrent bool            // a function process takes 16 invocations at once
	JSON       bool            // print events as JSON lines
	Limits     WebSocketLimits // of both WebSocket APIs
	Shuffle    *Shuffle        // of both, may be nil
	Programs   string          // folder of the built programs (http, socket, relay, sweep, runner)
	Own        string          // folder of http and socket programs that are taken in their place, as far as they are there; "" for none
	Environ    []string        // as os.Environ: what ${VAR} in the servers file means, and settings of the functions
	Out        io.Writer       // events, and the lines to paste
	Log        io.Writer       // log lines of functions and boxes
}

// Lines of the log wait so long for others, and no more than so many bytes of them.
const (
	gatherTime = 10 * time.Millisecond
	gatherMost = 256 << 10
)

// Run hosts the servers of a servers file on this machine until ctx ends. When it
// returns, no process that it started is left. One data folder is used by one Run
// at a time.
func Run(ctx context.Context, cfg Config) error {
	lines := &gather.Writer{To: cfg.Log, Every: gatherTime, Most: gatherMost}
	defer lines.Flush()
	cfg.Log = lines
	m := &machine{cfg: cfg, began: time.Now(), log: slog.New(slog.NewJSONHandler(cfg.Log, nil))}
	defer m.stop(context.WithoutCancel(ctx))
	for _, step := range []func(context.Context) error{
		m.readServers, m.openData, m.openLedger, m.startFleet, m.startFunctions, m.startLambda, m.startGateways,
		m.startControl, m.startSweep, m.startEndpoints,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	m.announce()
	<-ctx.Done()
	return nil
}

// machine is one machine in the place of AWS. Its fields are set by the steps of
// Run, in their order.
type machine struct {
	cfg      Config
	log      *slog.Logger
	recorder *Recorder
	servers  *catalog.Catalog
	began    time.Time
	data     string // absolute
	store    string // as DORMOUSE_STORE
	sockets  string // folder of the unix sockets
	secret   string // hex
	lock     *os.File

	boxes   *boxes.Pool
	tasks   taskMeter
	ledger  *ledger
	pool    *Pool
	lambda  *LambdaAPI
	rest    *RESTAPI
	relay   *WebSocketAPI                 // for runners
	socket  *WebSocketAPI                 // for clients
	public  []net.Listener                // HTTP, then WebSocket
	closers []func(context.Context) error // in the order of opening
}

func (m *machine) readServers(context.Context) error {
	environ := map[string]string{}
	for _, kv := range m.cfg.Environ {
		name, value, _ := strings.Cut(kv, "=")
		environ[name] = value
	}
	servers, warnings, err := catalog.LoadHere(m.cfg.Servers, func(name string) (string, bool) {
		value, ok := environ[name]
		return value, ok
	})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		_, _ = fmt.Fprintf(m.cfg.Log, "warning: %v\n", w)
	}
	for _, r := range servers.Rejected() {
		_, _ = fmt.Fprintf(m.cfg.Log, "warning: %v\n", r)
	}
	m.servers = servers
	return nil
}

func (m *machine) serveUnix(name string, h http.Handler) error {
	l, err := listenUnix(m.socketFile(name))
	if err != nil {
		return fmt.Errorf("open the %s socket: %w", name, err)
	}
	m.serve(l, h)
	return nil
}

// serve runs an HTTP server until stop.
func (m *machine) serve(l net.Listener, h http.Handler) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelWarn)}
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
	for _, l := range m.public {
		_ = l.Close()
	}
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
	m.saveBill(ctx, true)
	if m.sockets != "" {
		_ = os.RemoveAll(m.sockets)
	}
	if m.lock != nil {
		_ = m.lock.Close()
	}
}

// output passes a line of a function or a runner on. They write slog JSON.
func (m *machine) output(_, line string) { _, _ = fmt.Fprintln(m.cfg.Log, line) }

// functionOutput is output for functions, which say what they have used.
func (m *machine) functionOutput(name, line string) {
	m.ledger.line(line)
	m.output(name, line)
}
