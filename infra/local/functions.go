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

// Functions does the work that Lambda functions do on AWS. Run uses [inprocess]; tests can use
// another implementation.
type Functions interface {
	Web() http.Handler     // serves HTTP clients
	Sockets() http.Handler // serves WebSocket clients
	Console() http.Handler // serves the page of the console; nil if the machine is to serve it
	// Serve makes new messages go to these servers. Messages that are being handled keep the
	// previous ones. After an error nothing has changed.
	Serve(*serversfile.File) error
	// Sweep starts to clean up after lost boxes and requests, in the background: for the box in
	// stopped, or for all boxes if stopped is nil. The channel is closed at the end.
	Sweep(stopped *fleet.Status) <-chan struct{}
	// Boxes lists the boxes that these functions run beside those in [Site].Boxes. EndBoxes ends
	// them, and still accepts their last messages.
	Boxes() []fleet.Status
	EndBoxes(context.Context)
	// WaitingAlarms returns how many alarms of native servers are set.
	WaitingAlarms() int
	// Records returns the store without a meter, so that nobody is billed for what Run reads for
	// itself.
	Records() storage.Store
	// Operators returns what [api.New] needs for the API for operators.
	Operators() api.Options
	Close(context.Context) error
}

// Opener opens a [Functions] that runs in other processes than the one of Run. If it returns an
// error, it has closed everything again.
type Opener func(context.Context, *Site) (Functions, error)

// Site is what Run passes to an [Opener].
type Site struct {
	Config
	Folder    *datafolder.Folder
	Store     string            // name of the store; see [OpenStore]
	Snapshots string            // folder where boxes keep workspaces
	Servers   *serversfile.File // the servers that are served at the start
	Boxes     *boxes.Pool       // runs boxes as programs
	BoxEnv    map[string]string // variables of runners that other processes start
	RelayURL  string            // URL to which runners connect

	// Access and PublicURL are those of [Config], with defaults filled in. Hosts and SocketHosts
	// are the values of the Host header that the two endpoints accept.
	Access, PublicURL  string
	Hosts, SocketHosts []string
	OnLoopback         bool // the endpoints are reachable from this machine only
	Private            bool // only this machine's user reaches the endpoints, and needs no key

	Logger   *slog.Logger
	Recorder *journal.Recorder
	Lines    *journal.Lines
	Observe  func(*observe.Event) // takes an event that a function in another process has logged
	Stopping func() bool          // reports whether Run is stopping
	Damaged  func(error)          // called if the store turns out to be damaged

	// OpenSockets opens the WebSocket APIs for runners and for clients.
	OpenSockets func(runners, clients sockets.Routes, limits sockets.Limits) (relay, socket *sockets.API)
	// Listen serves HTTP in the background until Run has stopped.
	Listen func(net.Listener, http.Handler)
	// Describe adds to the API for operators what only this machine knows.
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
			m.openSockets(runners, clients, limits)
			return m.relay, m.socket
		},
		Listen:   func(l net.Listener, h http.Handler) { m.serve(l, h, nil) },
		Describe: m.describe,
	})
	if err != nil {
		m.functions = nil
		return err
	}
	m.closers = append(m.closers, m.functions.Close)
	return nil
}
