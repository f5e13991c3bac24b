// Package boot is what the mains of all functions have in common: it reads the
// environment, once, opens what it names, and starts the loop that takes
// invocations. It decides nothing; each main.go wires the parts.
package boot

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/auth"
	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/bucket"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/meter"
	"github.com/dormouse-mcp/dormouse/shared/relay"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Environment of every function. Those with SOCKET at their end are for one
// machine only: unix sockets in the place of AWS's endpoints.
const (
	EnvStore             = "DORMOUSE_STORE"              // sqlite:PATH or dynamodb:TABLE[?endpoint=URL&region=NAME]
	EnvServers           = "DORMOUSE_SERVERS"            // path of the servers file
	EnvSecret            = "DORMOUSE_SECRET"             // hex, 32 bytes or more; seals tickets
	EnvRelayURL          = "DORMOUSE_RELAY_URL"          // where runners connect, see relay.DialWebSocket
	EnvConnections       = "DORMOUSE_RELAY_CONNECTIONS"  // @connections endpoint of the relay's WebSocket API
	EnvClients           = "DORMOUSE_SOCKET_CONNECTIONS" // @connections endpoint of the WebSocket API for clients
	EnvIdle              = "DORMOUSE_IDLE"               // a time; default for servers that set none
	EnvTenantBoxes       = "DORMOUSE_TENANT_BOXES"       // boxes of one tenant at a time, more are refused with Busy; any number without it
	EnvWaitingCalls      = "DORMOUSE_WAITING_CALLS"      // calls that may wait for a box that is not up, more are refused with Busy; any number without it
	EnvBoxes             = "DORMOUSE_BOXES"              // on AWS: on, also without it; anything else starts none
	EnvBoxProcesses      = "DORMOUSE_BOX_PROCESSES"      // on AWS: processes of a box at a time; the runner's own without it
	EnvHosts             = "DORMOUSE_HOSTS"              // values of Host that are served, with commas between; empty: loopback names
	EnvAccess            = "DORMOUSE_ACCESS"             // keys, or open on one machine; see access.go
	EnvSnapshots         = "DORMOUSE_SNAPSHOTS"          // where boxes keep workspaces: folder:PATH, or s3:BUCKET[/PREFIX][?endpoint=URL&region=NAME]; empty: nowhere
	EnvMetrics           = "DORMOUSE_METRICS"            // the CloudWatch namespace of which log lines are metrics, which AWS bills for; off, also without it: they are none
	EnvCheck             = "DORMOUSE_CHECK"              // anything: the function only finds out whether it can start
	EnvLife              = "DORMOUSE_SESSION_LIFE"       // a time (90s, 36h; a bare number is seconds), as the next three; see session.Limits
	EnvInitTimeout       = "DORMOUSE_INIT_TIMEOUT"
	EnvEventAge          = "DORMOUSE_EVENT_AGE"
	EnvHold              = "DORMOUSE_HOLD"
	EnvFleet             = "DORMOUSE_FLEET"              // where boxes run on AWS, see ecs.ParsePlace
	EnvRuntimeSocket     = "DORMOUSE_RUNTIME_SOCKET"     // Lambda Runtime API
	EnvInvokeSocket      = "DORMOUSE_INVOKE_SOCKET"      // Lambda's API to invoke functions
	EnvConnectionsSocket = "DORMOUSE_CONNECTIONS_SOCKET" // @connections
	EnvFleetSocket       = "DORMOUSE_FLEET_SOCKET"       // the process fleet
)

// Function is what a main wires its handler from.
type Function struct {
	Store   session.Store
	Catalog *catalog.Catalog
	Relay   relay.Config
	Limits  session.Limits
	Hosts   []string // see front.Options.AllowedHosts
	Auth    auth.Authenticator
	Tickets *auth.Tickets
	States  *session.Sealer // seals what modern clients carry between rounds
	Log     *slog.Logger
	Meter   *meter.Meter // counts what Store and the connections of Relay cost

	relayURL  string
	snapshots string         // what runners are told of where workspaces are kept
	bucket    *bucket.Bucket // nil for none
	processes string         // of a box at a time, as the runner reads it; "" for its own
	idle      time.Duration
}

// Open reads the environment and opens the store. Its errors name the variable.
func Open() (*Function, error) {
	log := newLog()
	f := &Function{Log: log, Meter: newMeter(), relayURL: os.Getenv(EnvRelayURL), processes: os.Getenv(EnvBoxProcesses)}
	var err error
	if f.idle, err = duration(os.Getenv(EnvIdle)); err != nil {
		return nil, fmt.Errorf("%s: %w", EnvIdle, err)
	}
	if f.Limits, err = limits(); err != nil {
		return nil, err
	}
	store, err := openStore(os.Getenv(EnvStore), f.Limits)
	if err != nil {
		return nil, err
	}
	servers, _, err := readServers(os.Getenv(EnvServers), os.LookupEnv)
	if err != nil {
		return nil, err
	}
	for _, r := range servers.Rejected() {
		log.Error("server is off", "error", r.String())
	}
	secret, err := hex.DecodeString(os.Getenv(EnvSecret))
	if err != nil {
		return nil, fmt.Errorf("%s is not hexadecimal: %w", EnvSecret, err)
	}
	sealer, err := relay.NewSealer(secret)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EnvSecret, err)
	}
	if f.States, err = bridge.NewSealer(secret); err != nil {
		return nil, fmt.Errorf("%s: %w", EnvSecret, err)
	}
	store = counted(f.Meter, store)
	f.Store, f.Catalog, f.Tickets = store, servers, auth.NewTickets(store)
	if f.Auth, err = access(store); err != nil {
		return nil, err
	}
	if hosts := os.Getenv(EnvHosts); hosts != "" {
		f.Hosts = strings.Split(hosts, ",")
	}
	boxes, err := f.fleet()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EnvFleet, err)
	}
	boxesOfTenant, err := quota(EnvTenantBoxes)
	if err != nil {
		return nil, err
	}
	waiting, err := quota(EnvWaitingCalls)
	if err != nil {
		return nil, err
	}
	f.Relay = relay.Config{
		Store: store, Sealer: sealer, Log: log, Launch: f.launch, EventAge: f.Limits.EventAge,
		Poster: f.Meter.Runners(connections(EnvConnections)), Clients: f.Meter.Clients(connections(EnvClients)), Meter: f.Meter,
		Fleet: boxes, ListLag: listLag, TenantBoxes: boxesOfTenant, WaitingCalls: waiting,
	}
	if err := f.keep(os.Getenv(EnvSnapshots)); err != nil {
		return nil, fmt.Errorf("%s: %w", EnvSnapshots, err)
	}
	return f, nil
}

// quota reads how many of something there may be at a time, 0 for any number.
func quota(name string) (int, error) {
	text := os.Getenv(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s: want a whole number, 0 for no limit, not %q", name, text)
	}
	return n, nil
}

// launch is what a runner is told besides what the relay tells it.
func (f *Function) launch(b session.Box) (map[string]string, error) {
	s, ok := f.Catalog.Server(b.Server)
	if !ok || s.Disabled {
		return nil, session.Errorf(session.NotFound, "server %q is not in the servers file", b.Server)
	}
	if s.Idle == 0 {
		s.Idle = f.idle
	}
	env := map[string]string{"DORMOUSE_SERVER": s.Marshal(), "DORMOUSE_RELAY_URL": f.relayURL}
	if f.processes != "" {
		env[EnvBoxProcesses] = f.processes
	}
	if space := metricsSpace(); space != "" {
		env[EnvMetrics] = space
	}
	if f.snapshots != "" {
		env[EnvSnapshots] = f.snapshots
		if f.Limits.Life > 0 {
			env["DORMOUSE_SNAPSHOT_AGE"] = (2 * f.Limits.Life).String()
		}
	}
	return env, nil
}

// Server is what the core knows of a configured server.
func (f *Function) Server(name string) (session.Server, bool) {
	s, ok := f.Catalog.Server(name)
	return session.Server{
		Name: s.Name, Digest: s.Digest, Record: s.Record, OwnLists: s.OwnLists, SameLists: s.SameLists,
		Tasks: session.TaskMode(s.Tasks), InPlace: s.Native != "",
	}, ok && !s.Disabled
}

// Fail reports why a function cannot start and ends the process.
func Fail(err error) {
	slog.New(slog.NewJSONHandler(os.Stderr, nil)).Error("function cannot start", "error", err)
	os.Exit(1)
}
