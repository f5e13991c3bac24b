package local

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/bill"
	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/infra/local/history"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Run hosts the servers of a servers file on this machine until ctx ends, or until
// Config.ExitWhenIdle or Config.Drain makes it end. It returns when every process that it started
// has ended. Only one Run at a time can use a data folder.
func Run(ctx context.Context, cfg Config) error {
	m := newMachine(cfg)
	ctx, m.fail = context.WithCancelCause(ctx)
	defer m.fail(nil)
	defer m.stop(context.WithoutCancel(ctx))
	if err := m.start(ctx); err != nil {
		return err
	}
	prepare := m.prepareTaken(m.served()) // before clients can call, because they must not wait for an install
	if cfg.Ready != nil {
		cfg.Ready(m.public.address(0))
	}
	announce(m)
	prepare()
	awaitEnd(ctx, m)
	if cfg.Stopping != nil {
		cfg.Stopping()
	}
	if err := context.Cause(ctx); errors.Is(err, errLeased) {
		return err
	}
	return nil
}

func newMachine(cfg Config) *machine {
	past, failed, news := history.New(keptCalls), &failures{why: map[string]string{}}, newChanges()
	printers := []func(journal.Event){past.Record, failed.Record, news.record}
	if cfg.JSON != nil {
		printers = append(printers, journal.JSONPrinter(cfg.JSON))
	}
	if cfg.Events != nil {
		printers = append(printers, cfg.Events)
	}
	if cfg.Display != nil {
		printers = append(printers, cfg.Display.Event)
	}
	var sent *telemetry.Telemetry
	if cfg.Telemetry != nil {
		sent = telemetry.New(*cfg.Telemetry)
		printers = append(printers, sent.Record)
	}
	m := &machine{
		cfg: cfg, environ: cfg.Environ, log: slog.New(slog.DiscardHandler),
		reports: reports{recorder: journal.NewRecorder(printers...), history: past, sent: sent, failed: failed, changes: news},
		public:  listenersOf(cfg), fail: func(error) {}, gate: newGate(), inside: relayserver.NewInside(nil),
	}
	if cfg.Log != nil {
		m.log = slog.New(slog.NewJSONHandler(cfg.Log, nil))
	}
	m.commands = newCommands(m.environ, cfg.Servers)
	m.hider = &redactor{environ: m.environ, servers: func() *serversfile.File { return m.servers.Load() }}
	options := journal.Options{
		Verbose: cfg.Verbose, Hide: m.hider.hide,
		Tools:  func(tenant, server string) string { return toolsOf(m, tenant, server) },
		Lists:  (&toolNames{read: func(tenant, server string) map[string]bool { return namesOf(m, tenant, server) }, of: map[[2]string]nameList{}}).has,
		Held:   func(server string) (string, []string) { return heldOf(m, server) },
		Places: func(server, process string) []string { return placesOf(m, server, process) },
	}
	if sent != nil {
		options.Trace = sent.Record
	}
	m.lines = journal.NewLines(m.recorder, options)
	return m
}

func (m *machine) start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		m.readServers, m.openFolder, m.startFleet, m.openLedger, m.startFunctions, m.startRelay,
		m.startSweep, m.startReload, m.startEndpoints, m.startControl, func(ctx context.Context) error { startUpkeep(ctx, m); return nil },
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (m *machine) openFolder(ctx context.Context) (err error) {
	if m.folder, err = datafolder.Open(m.cfg.Data); err != nil {
		return err
	}
	m.openLog()
	if m.folder.Replaced {
		trouble(m, "the file "+datafolder.SecretFile+" of the data folder was gone, and is new: "+datafolder.LostWithSecret, "to have them again, stop, and restore the file from a backup")
	}
	m.bodies = openBodies(m.folder.Path, m.folder.Secret, func(err error) { m.log.Error("bodies of calls are lost for auditors", "error", err) })
	m.closers = append(m.closers, func(context.Context) error { return m.bodies.close() })
	go m.bodies.prune(ctx)
	if m.store, err = StoreName(m.cfg.Store, m.folder.Path); err != nil {
		return err
	}
	m.upkeep.unused = isNew(m.store)
	if _, err := LookAtStore(ctx, m.store); err != nil {
		return err
	}
	openHistory(m)
	if m.servers.Load() == nil {
		return nil // tests of single parts read no servers file
	}
	if err := m.failed.remember(ctx, m.served(), m.history.Starts); err != nil {
		m.log.Warn("why servers have failed in an earlier run is not known", "error", err)
	}
	return nil
}

// openLedger opens the bill, which continues the counts of earlier runs. From then on the bill and
// the history are saved at intervals.
func (m *machine) openLedger(ctx context.Context) (err error) {
	if m.ledger, err = bill.Open(m.folder.Path, m.boxSize, m.boxes.Tasks, m.log); err != nil {
		setAside(m, "the usage", m.folder.File(bill.File), err)
		if m.ledger, err = bill.Open(m.folder.Path, m.boxSize, m.boxes.Tasks, m.log); err != nil {
			return err
		}
	}
	go m.ledger.Keep(ctx)
	go m.history.Keep(ctx, m.log)
	if m.sent != nil {
		go m.sent.Keep(ctx, m.log)
	}
	return nil
}

func (m *machine) startFunctions(ctx context.Context) error {
	if m.cfg.Functions != nil {
		return m.openFunctions(ctx)
	}
	return m.startInside(ctx)
}

// startRelay lets runners connect. Call it when all parts that a runner's message may reach have
// started.
func (m *machine) startRelay(context.Context) error { return m.serveUnix("relay", m.relay, nil) }

// startControl lets commands such as dormouse list call this run. Call it last, because the
// answers contain the address of the endpoint.
func (m *machine) startControl(context.Context) error {
	return m.serveUnix("control", control{m}, &m.public.use)
}

// startEndpoints opens the endpoints for clients. Call it when all parts that a client's request
// may reach have started.
func (m *machine) startEndpoints(ctx context.Context) error {
	certificates, err := secure(m)
	if err != nil {
		return err
	}
	if err := m.public.start(ctx); err != nil {
		return err
	}
	m.console = consoleOf(m)
	page := m.functions.Console()
	if page == nil {
		page = m.console
	}
	proxies := m.cfg.Proxies
	// The gate, which refuses programs in boxes, comes before the proxies: it must see the address
	// of the connection, not the one in X-Forwarded-For.
	m.serve(m.public.open[0], m.gate.of(proxies.behind(&monitored{m, m.functions.Web(), page})), &m.public.use)
	m.serve(m.public.open[1], m.gate.of(proxies.behind(m.functions.Sockets())), &m.public.use)
	certificates.start(ctx)
	return nil
}

// stopTime is the longest time that stop takes. The boxes get most of it, to end their calls and
// save their workspaces.
const stopTime = 20 * time.Second

// stopUnstored replaces stopTime if the store takes no writes. The last messages of the boxes
// would be lost in any case.
const stopUnstored = 3 * time.Second

// lastSend is how long stop waits until the last spans are sent.
const lastSend = 3 * time.Second

// stop ends all parts. The boxes end before m.functions, which handles the boxes' last messages.
// Calls in flight may take [runner.DrainTime] to end.
func (m *machine) stop(ctx context.Context) {
	m.stopping.Store(true)
	within := stopTime
	if m.upkeep.storesNothing() {
		within = stopUnstored
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	m.public.close()
	until := time.Now().Add(runner.DrainTime)
	if m.upkeep.end != nil {
		m.upkeep.end()
	}
	if m.boxes != nil {
		if err := m.boxes.Close(ctx); err != nil {
			m.log.Warn("boxes did not end in time", "error", err)
		}
	}
	if m.functions != nil {
		m.functions.EndBoxes(ctx)
		awaitCalls(ctx, m, until)
	}
	for i := len(m.closers) - 1; i >= 0; i-- {
		if err := m.closers[i](ctx); err != nil && !errors.Is(err, net.ErrClosed) {
			m.log.Warn("not everything ended in time", "error", err)
		}
	}
	if m.socket != nil { // m.socket is set after the ledger was opened
		m.ledger.Close()
	}
	if err := m.history.Close(); err != nil {
		m.log.Warn("the calls of the last minute could not be saved", "error", err)
	}
	if m.sent != nil {
		last, done := context.WithTimeout(ctx, lastSend)
		m.sent.Close(last, m.log)
		done()
	}
	if m.logFile != nil {
		_ = m.logFile.Close() // the file has no buffer that Close could fail to write
	}
	m.folder.Close()
}

// readServers reads the servers file for the first time.
func (m *machine) readServers(context.Context) error {
	m.file = newServersFile(m)
	servers, err := m.file.load()
	if err == nil {
		m.gate.take(servers)
		m.servers.Store(servers)
	}
	return err
}
