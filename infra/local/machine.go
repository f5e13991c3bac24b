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
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/bill"
	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/infra/local/history"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/infra/local/telemetry"
	boxes "github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/operate/console"
)

// machine is the state of one [Run]. The steps of the method start set the fields of the second
// block, in order.
type machine struct {
	cfg     Config
	environ environ
	public  *listeners
	gate    *gate // keeps the programs in boxes away from the client endpoints
	log     *slog.Logger
	reports
	stopping atomic.Bool // set when the machine stops; the end of a box is then expected
	fail     func(error) // ends the Run with an error

	servers    atomic.Pointer[serversfile.File] // the servers that clients can call now
	file       *serversFile
	commands   *commands
	reload     func() (serversfile.Changes, error) // reads the servers file now
	folder     *datafolder.Folder
	upkeep     upkeep
	store      string        // name of the store; see [OpenStore]
	memory     *guard.Memory // limits the memory of the processes of boxes
	neighbours sync.Map      // storage.BoxID to *neighbour: the boxes that are processes
	boxes      *boxes.Pool
	inside     *relayserver.Inside // the boxes in this program
	ledger     *bill.Ledger
	functions  Functions
	console    *console.Console
	// relay and socket are the WebSocket APIs for runners and for clients.
	relay   *sockets.API
	socket  *sockets.API
	closers []func(context.Context) error // called when the machine stops, the last one first
}

// reports are the parts that tell people and programs what happens on a machine.
type reports struct {
	recorder *journal.Recorder
	lines    *journal.Lines
	history  *history.History
	bodies   *keptBodies
	sent     *telemetry.Telemetry // nil if cfg.Telemetry is nil
	failed   *failures
	changes  *changes
	hider    *redactor // hides secrets in logs and errors
	logFile  io.Closer // nil if the caller's Config.Log is used
}

// served returns the names of the servers that clients can call.
func (m *machine) served() []string {
	servers := m.servers.Load()
	return slices.DeleteFunc(servers.Names(), func(name string) bool {
		s, _ := servers.Server(name)
		return s.Disabled
	})
}

// schedulesFolder is the folder in the data folder that keeps the alarms of native servers.
const schedulesFolder = "schedules"

// snapshots returns the folder in which boxes save their workspaces.
func (m *machine) snapshots() string { return m.folder.File("snapshots") }

// serveUnix serves a handler on a unix socket of the data folder until the machine stops. Unless u is
// nil, u counts the requests and connections.
func (m *machine) serveUnix(name string, h http.Handler, u *use) error {
	s := unixSocket{name, h, u}
	m.upkeep.unix = append(m.upkeep.unix, s)
	return m.listenUnix(s)
}

func (m *machine) listenUnix(s unixSocket) error {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "unix", m.folder.Socket(s.name))
	if err != nil {
		return fmt.Errorf("open the %s socket: %w", s.name, err)
	}
	m.serve(l, s.h, s.use)
	return nil
}

// serve runs an HTTP server until the machine stops. Unless u is nil, u counts the server's
// requests and connections.
func (m *machine) serve(l net.Listener, h http.Handler, u *use) {
	open := &openConnections{since: map[net.Conn]time.Time{}}
	s := &http.Server{Handler: h, ReadHeaderTimeout: headWithin, ReadTimeout: bodyWithin, IdleTimeout: idleConnections, ConnState: open.note, ConnContext: m.gate.note, ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelWarn)}
	if u != nil {
		u.count(s, open)
	}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			m.log.Error("a server has stopped", "address", l.Addr().String(), "error", err)
		}
	}()
	m.closers = append(m.closers, func(context.Context) error { return s.Close() })
}

// observe passes an event of a function to the journal and the bill, and logs it without secrets.
func (m *machine) observe(ctx context.Context, e *observe.Event) {
	m.note(e)
	observe.Log(m.log)(ctx, e)
}

// note passes an event of a function to the journal and the bill.
func (m *machine) note(e *observe.Event) {
	m.lines.Observe(e)
	m.ledger.Observe(e)
	m.hear(e)
}
