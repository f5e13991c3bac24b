package local

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	boxes "github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// Functions does the work that functions do on AWS. A machine has its own ([inprocess]);
// tests can have another one.
type Functions interface {
	Web() http.Handler     // serves HTTP clients
	Sockets() http.Handler // serves WebSocket clients
	Console() http.Handler // serves the page of the console; nil leaves it to the machine
	// Serve makes new messages find these servers. Messages that are being handled go on
	// with the previous servers. An error changes nothing.
	Serve(*serversfile.File) error
	// Sweep starts a sweep in the background: for one task that has stopped, or, with nil,
	// of all boxes. It closes the channel when the sweep has ended.
	Sweep(stopped *fleet.Status) <-chan struct{}
	// Boxes lists the boxes that run beside those of the machine. EndBoxes ends them, while
	// their last messages are still taken.
	Boxes() []fleet.Status
	EndBoxes(context.Context)
	// WaitingAlarms returns how many alarms of native servers wait.
	WaitingAlarms() int
	// Records returns the store without a meter: nobody is billed for what this program
	// reads for itself.
	Records() storage.Store
	// Operators returns what the API for operators works with.
	Operators() api.Options
	Close(context.Context) error
}

// Opener opens functions that are not in the process of the machine. After an error
// nothing is open.
type Opener func(context.Context, *Site) (Functions, error)

// Site is what a machine gives to an [Opener].
type Site struct {
	Config
	Folder    *datafolder.Folder
	Store     string            // see OpenStore
	Snapshots string            // folder where boxes keep workspaces
	Servers   *serversfile.File // the servers that are served at the start
	Boxes     *boxes.Pool       // runs boxes as programs
	BoxEnv    map[string]string // variables of runners
	RelayURL  string            // for runners

	// Access and PublicURL are those of [Config] with their defaults. Hosts and SocketHosts
	// are the values of Host that the endpoints serve.
	Access, PublicURL  string
	Hosts, SocketHosts []string
	OnLoopback         bool // only this machine reaches the endpoints
	Private            bool // only this machine's user reaches them, and needs no key

	Logger   *slog.Logger
	Recorder *journal.Recorder
	Lines    *journal.Lines
	Observe  func(*observe.Event) // takes an event of a function whose line is in the log
	Stopping func() bool          // reports whether the machine stops
	Damaged  func(error)          // is called if the store turns out to be damaged

	// OpenSockets creates the two WebSocket APIs.
	OpenSockets func(runners, clients sockets.Routes, limits sockets.Limits) (relay, socket *sockets.API)
	// Listen serves HTTP until the machine has stopped.
	Listen func(net.Listener, http.Handler)
	// Describe sets the parts of the API for operators that come from the machine.
	Describe func(*api.Options)
}

func (m *machine) openFunctions(ctx context.Context) (err error) {
	m.functions, err = m.cfg.Functions(ctx, &Site{
		Config: m.cfg, Folder: m.folder, Store: m.store, Snapshots: m.snapshots(), Servers: m.servers.Load(), Boxes: m.boxes,
		BoxEnv: m.environ.boxes(m.folder.File(LogFolder), m.public.private()), RelayURL: m.relayURL(),
		Access: m.public.access(), PublicURL: m.public.publicURL(),
		Hosts: m.public.servedHosts(m.cfg.Listen), SocketHosts: m.public.servedHosts(m.public.socketsAddress()),
		OnLoopback: m.public.onLoopback(), Private: m.public.private(),
		Logger: m.log, Recorder: m.recorder, Lines: m.lines, Observe: m.note, Stopping: m.stopping.Load,
		Damaged: func(err error) { storeDamaged(m, err) },
		OpenSockets: func(runners, clients sockets.Routes, limits sockets.Limits) (relay, socket *sockets.API) {
			m.openSockets(runners, clients, limits, "")
			return m.relay, m.socket
		},
		Listen:   func(l net.Listener, h http.Handler) { m.serve(l, h, nil) },
		Describe: m.here,
	})
	if err != nil {
		m.functions = nil
		return err
	}
	m.closers = append(m.closers, m.functions.Close)
	return nil
}
