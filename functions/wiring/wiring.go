// Package wiring builds what the handlers of all functions share: the settings of the relay,
// authentication, encryption and metering. The functions on Lambda and `dormouse run` build the
// same handlers from it. Package wiring neither reads the environment nor opens anything. Package
// boot does that for a function, and package local for one machine.
package wiring

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/backend/bucket"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/places"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/operate/bodies"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// Settings are values that an operator may set. Servers and Secret are required.
type Settings struct {
	Servers      *serversfile.File
	Secret       []byte // key for encryption, at least 32 bytes
	OtherSecret  []byte // also decrypts, while the operator replaces Secret; nil for none
	Limits       sessions.Limits
	Hosts        []string                 // values of the Host header that are served; see transport.Options.AllowedHosts
	Origins      []string                 // origins of web pages that may call; see transport.Options.AllowedOrigins
	Open         bool                     // callers need neither an API key nor a token
	Access       *resourceserver.Settings // settings for access tokens, which are accepted as well as API keys; nil for API keys only
	PublicURL    string                   // URL at which clients and browsers reach the HTTP endpoint; "" if unknown
	AuthServer   bool                     // the endpoint's own authorization server issues the tokens
	RelayURL     string                   // URL to which runners connect; see runner.DialWebSocket
	Idle         time.Duration            // how long a box stays awake without work, for servers that set no time
	WaitingCalls int                      // how many calls may wait for a box that is not awake; 0 for any number
	ShowErrors   bool                     // log lines of failed calls repeat what the server answered
	Pushed       bool                     // operators may push a servers file to the store, which then replaces Servers
	Lock         *held.Lock               // the lock file beside the servers file; nil for none
	Metrics      string                   // CloudWatch namespace for metrics in log lines; "" for none

	// ConnectSecrets has the client secrets of this endpoint at third parties, by their names in
	// x-dormouse.connect. ConnectSecrets replaces those in the servers file.
	ConnectSecrets map[string]string
	NoConnect      bool // no third party is called, so their client secrets may be missing
}

// Others returns the secrets that also decrypt, for functions that take several.
func (s Settings) Others() [][]byte {
	if s.OtherSecret == nil {
		return nil
	}
	return [][]byte{s.OtherSecret}
}

// Parts are the services that the handlers use. Store, Fleet, Runners, Clients, Meter and Log are
// required.
type Parts struct {
	Store  storage.Store
	Spent  func() meter.Stored // what the store has charged so far; nil makes the meter estimate it
	Fleet  fleet.Fleet
	Inside *relayserver.Inside // the boxes in this program; nil if it has none
	// IsInside reports whether the next box of a server will run in this program.
	IsInside func(server string) bool
	Place    func(places.Needs) string // chooses where a box starts; nil if Fleet has one place only
	ListLag  time.Duration             // longest time after which Fleet lists a new task
	Runners  storage.Poster            // sends to the connections of runners
	Clients  storage.Clients           // the connections of WebSocket clients
	Meter    *meter.Meter
	Log      *slog.Logger
	// Observer gets the events of requests and of boxes' messages. If it is nil, they go to Log.
	Observer observe.Observer
	// Bodies gets encrypted lines with the arguments and results of calls. If it is nil, these are
	// not kept.
	Bodies *slog.Logger

	// Snapshots tells runners where to save workspaces; "" for nowhere. Forget removes saved
	// workspaces. Bucket is not nil if workspaces are saved in S3.
	Snapshots string
	Forget    Forget
	Bucket    *bucket.Bucket
}

// Function has what the handlers of one Lambda function, or of dormouse run, are built from.
type Function struct {
	Settings
	Store    storage.Store // Meter counts its use
	Relay    relayserver.Config
	Auth     apikey.Authenticator
	SignIn   SignIn                 // tells clients where to get the tokens that Auth accepts; nil if it accepts none
	Users    *resourceserver.Issued // finds users who have signed in to the console; nil if nobody can
	Tickets  *apikey.Tickets
	States   *storage.Sealer // encrypts the state that clients of MCP 2026-07-28 send back with the answer to a question
	Log      *slog.Logger
	Observer observe.Observer
	Meter    storage.Meter      // counts the cost of Store and of the connections in Relay
	Vault    *credentials.Vault // stores keys and tokens of callers at third parties
	Held     *held.Keeper       // stores which tools of servers the operator has accepted
	Quotas   *quota.Limiter     // enforces the limits in the servers file; nil if there are none

	snapshots string
	bucket    *bucket.Bucket
	servers   sync.Map // caches the results of Server by name, because a request to a group needs all servers
}

// SignIn has the methods of transport.SignIn. This package does not link transport.
type SignIn interface {
	Metadata(server, address string) []byte
	Challenge(address string, tried bool, err error) string
	Tools(who storage.Identity, server string) storage.ToolFilter
	Permit(who storage.Identity, server string, tools []string) error
	MetadataURL(address string) string
}

// New returns a Function. It returns an error if a secret is too short, or if Access, the limits or
// the third parties in the servers file are invalid.
func New(s Settings, p Parts) (*Function, error) {
	others := s.Others()
	sealer, err := relayserver.NewSealer(s.Secret, others...)
	if err != nil {
		return nil, err
	}
	states, err := bridge.NewSealer(s.Secret, others...)
	if err != nil {
		return nil, err
	}
	store := p.Meter.Store(p.Store, p.Spent)
	f := &Function{
		Settings: s, Store: store, Auth: apikey.NewKeys(store), Tickets: apikey.NewTickets(store), States: states,
		Log: p.Log, Observer: p.Observer, Meter: p.Meter, snapshots: p.Snapshots, bucket: p.Bucket,
	}
	if f.Observer == nil {
		f.Observer = observe.Log(p.Log)
	}
	f.Observer = f.bodies(p.Bodies).Before(f.Observer)
	f.Held = held.NewKeeper(store, s.Lock, p.Log, f.Observer)
	if s.Open {
		f.Auth = apikey.Open{}
	}
	if s.Access != nil {
		if err := f.takeTokens(); err != nil {
			return nil, err
		}
	}
	if err := f.limit(); err != nil {
		return nil, err
	}
	if err := f.openVault(); err != nil {
		return nil, err
	}
	f.Relay = relayserver.Config{
		Store: store, Sealer: sealer, Log: p.Log, Observer: f.Observer, Launch: f.launch, EventAge: s.Limits.EventAge,
		Poster: p.Meter.Runners(p.Runners), Clients: p.Meter.Clients(p.Clients), Meter: f.Meter,
		ShowErrors: s.ShowErrors, Fleet: p.Fleet, Inside: p.Inside, IsInside: p.IsInside, Bill: p.Meter, ListLag: p.ListLag, Held: f.Held, Secrets: f.secrets, WaitingCalls: s.WaitingCalls,
	}
	if p.Forget != nil {
		f.Relay.Forget = func(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation) error {
			_, name := box.Parts()
			server, known := s.Servers.Server(name)
			return p.Forget(ctx, box, owner, gen, !known || server.Box.Memory)
		}
	}
	f.Relay.Definition = func(server string) string {
		if s, ok := s.Servers.Server(server); ok && !s.Disabled {
			return s.Definition()
		}
		return ""
	}
	f.Relay.Code = func(server string) string {
		s, _ := f.Server(server)
		return s.Digest
	}
	if p.Place != nil {
		f.Relay.Place = func(b storage.Box) string { return p.Place(f.needs(b)) }
	}
	if f.Quotas != nil {
		f.Relay.BoxesOf = f.Quotas.Boxes
	}
	if p.Snapshots != "" {
		f.Relay.Kept = func(server string) bool {
			s, ok := s.Servers.Server(server)
			return ok && (s.Kept() == serversfile.SnapshotSession || s.Box.Memory)
		}
	}
	return f, nil
}

// bodies returns the Keeper that writes arguments and results of calls to a log, for auditors.
func (f *Function) bodies(to *slog.Logger) *bodies.Keeper {
	return &bodies.Keeper{
		Server: func(name string) (serversfile.Server, bool) {
			if f.Servers == nil {
				return serversfile.Server{}, false
			}
			return f.Servers.Server(name)
		},
		Hider: func(values map[string]string, marked []string) func(string) string {
			return redact.New(values, marked).Text
		},
		Secret: f.Secret, Out: to,
	}
}

// RelayWithBucket returns Relay with the bucket of saved workspaces, if there is one. Only the
// relay and sweep functions have rights in the bucket; the sweep also removes workspaces for the
// other functions.
func (f *Function) RelayWithBucket() relayserver.Config {
	c := f.Relay
	if f.bucket != nil {
		c.Snapshots, c.Forget = f.bucket, f.bucket.Forget
	}
	return c
}

// launch returns the environment variables of a box's runner, except for those that the relay
// adds.
func (f *Function) launch(b storage.Box) (map[string]string, error) {
	s, ok := f.Servers.Server(b.Server)
	if !ok || s.Disabled {
		return nil, storage.Errorf(storage.NotFound, "server %q is not in the servers file", b.Server)
	}
	if s.Idle == 0 {
		s.Idle = cmp.Or(f.Relay.Fleet.Traits(b.Place).Idle, f.Idle)
	}
	env := map[string]string{"DORMOUSE_SERVER": s.Marshal(), "DORMOUSE_RELAY_URL": f.RelayURL}
	if f.Metrics != "" {
		env["DORMOUSE_METRICS"] = f.Metrics
	}
	if f.snapshots != "" {
		env["DORMOUSE_SNAPSHOTS"] = f.snapshots
		if f.Limits.Life > 0 {
			env["DORMOUSE_SNAPSHOT_AGE"] = (2 * f.Limits.Life).String()
		}
	}
	return env, nil
}

// Server returns a server of the servers file in the form of package sessions. ok is false if the
// file lacks it or disables it.
func (f *Function) Server(name string) (sessions.Server, bool) {
	if known, ok := f.servers.Load(name); ok {
		k, ok := known.(served)
		k.Digest = k.record.Digest() // a file of the server's program may have changed since the last call
		return k.Server, ok && k.callable
	}
	s, ok := f.Servers.Server(name)
	record := serversfile.NewRecord(s)
	made := sessions.Server{
		Tools: s.Tools.Filter(), Pin: s.Pin(),
		Name: s.Name, Digest: record.Digest(), Record: s.Record, OwnLists: s.OwnLists, SameLists: s.SameLists, Anonymous: s.Anonymous(), Spreads: s.Spreads(),
		Tasks: sessions.TaskMode(s.Tasks), Remembers: s.Box.Memory, InPlace: s.InPlace(), Providers: s.Principal(),
	}
	if ok {
		f.servers.Store(name, served{made, record, !s.Disabled})
	}
	return made, ok && !s.Disabled
}

// served is a cached result of [Function.Server].
type served struct {
	sessions.Server
	record   *serversfile.Record
	callable bool // the servers file does not disable the server
}

// Event wraps a handler of events, so that the Observer gets each event with its cost. The function
// payer returns the Tenant, Server and Session that pay for the event. If payer is nil, nobody
// pays.
func Event[E any](f *Function, payer func(E) storage.Account, handle func(context.Context, E) error) func(context.Context, E) error {
	return func(ctx context.Context, e E) error {
		begun := time.Now()
		err := handle(ctx, e)
		ended := &observe.Event{Kind: observe.Other}
		if payer != nil {
			ended.Account = payer(e)
		}
		ended.Over, ended.Took, ended.Code = storage.OverEvent, time.Since(begun), storage.CodeOf(err)
		if err != nil {
			ended.Level, ended.Error = slog.LevelError, err.Error()
		}
		f.Observer.Tell(ctx, f.Meter, ended)
		return err
	}
}
