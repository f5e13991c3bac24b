package local

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/authorization"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/functions/wiring/kept"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/infra/local/scheduler"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/aggregate"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// inprocess implements [Functions] in this process. No message depends on what inprocess keeps in
// memory: all that must last is in the store.
type inprocess struct {
	m        *machine
	store    storage.Store
	kept     aggregate.Kept // which server of a group has which tool; used if no other program writes to the store
	settings atomic.Pointer[wiring.Settings]
	made     atomic.Pointer[handlers]
	alarm    *scheduler.API
	release  func(context.Context) error // gives the lease of the store back; nil if the store has none

	// ctx is the context of work that no client waits for: alarms and cleanups.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	preparing preparing

	callers callers
	bodies  bodies
	visits  *visits
}

// handlers are the handlers that the Lambda functions http, socket, relay and sweep run on AWS.
type handlers struct {
	http    endpoints.HTTP
	pages   *authorization.Pages
	socket  *transport.Socket
	sealer  *relayserver.Sealer // checks the tokens with which runners authenticate
	relay   *relayserver.Handler
	sweeper *relayserver.Sweeper
	stopped func(fleet.Status) // charges a tenant for the time of a box that has stopped
	natives *native.Backend    // its Sweep does the due work for calls of native servers
	of      []*wiring.Function
}

// flush stores what tenants have used so far.
func (h *handlers) flush(ctx context.Context) (err error) {
	for _, f := range h.of {
		err = errors.Join(err, f.Flush(ctx))
	}
	return err
}

// startInside builds the handlers, as the main packages of the Lambda functions do.
func (m *machine) startInside(ctx context.Context) error {
	in := &inprocess{m: m, bodies: newBodies(), visits: newVisits()}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	m.functions = in
	m.closers = append(m.closers, in.Close)
	err := in.configure()
	if err != nil {
		return err
	}
	if in.store, err = OpenStore(m.store, m.environ.get, in.settings.Load().Limits, sqlitestore.Options{
		Behind: m.behind(), Alone: true, Damaged: func(err error) { storeDamaged(m, err) },
	}); err != nil {
		return err
	}
	if err := in.lease(ctx); err != nil {
		return err
	}
	if in.alarm, err = scheduler.New(scheduler.Config{
		Folder: m.folder.File(schedulesFolder), Send: in.send, Logger: m.log,
	}); err != nil {
		return err
	}
	m.openSockets(&runnerRoutes{in}, &clientRoutes{in}, sockets.Home())
	if err := in.Serve(m.servers.Load()); err != nil {
		return err
	}
	in.alarm.Start()
	return nil
}

// behind reports whether a write to the store may return before its fsync.
func (m *machine) behind() bool {
	return m.cfg.Durability == DurabilityProcess || m.cfg.Durability == "" && m.public.private()
}

// configure sets the settings that do not come from the servers file.
func (in *inprocess) configure() error {
	m := in.m
	settings := &wiring.Settings{Open: m.public.access() == AccessOpen, RelayURL: m.relayURL(), PublicURL: m.public.publicURL(), Origins: m.cfg.Origins}
	settings.Idle, settings.Secret, settings.ShowErrors = m.cfg.Idle, m.folder.Secret, m.public.private()
	settings.Lock = held.LockOf(m.cfg.Servers, true)
	settings.AuthServer = m.public.access() == AccessOAuth
	settings.Limits.InitTimeout, settings.Limits.Hold = m.cfg.InitTimeout, cmp.Or(m.cfg.Hold, sockets.Home().Life)
	if strings.HasPrefix(m.store, sqlite) { // no other program uses this store, so leases from before this start are free
		settings.Limits.Since = time.Now()
	}
	in.settings.Store(settings)
	return nil
}

// Serve implements [Functions]: it builds the handlers anew. It refuses a file without an identity
// provider if the one before names one, because anybody could then sign in with any name.
func (in *inprocess) Serve(servers *serversfile.File) error {
	s := *in.settings.Load()
	s.Servers = servers
	before := s.Access
	var err error
	if s.Access, err = in.m.tokens(servers); err != nil {
		return err
	}
	if before != nil && before.Issuer != before.PublicURL && s.Access.Issuer == s.Access.PublicURL {
		return errors.New("x-dormouse.access names no issuer any more, and with --access oauth anybody on this machine could sign in with any name; start dormouse run again if you want that")
	}
	h, err := in.make(s)
	if err == nil {
		in.settings.Store(&s)
		if before := in.made.Swap(h); before != nil {
			if err := before.flush(in.ctx); err != nil {
				in.m.log.Warn("what tenants have used in the last minute is not in their accounts", "error", err)
			}
		}
	}
	return err
}

// use returns the handlers for one message: those of the current servers file. With [Config].Cold
// it builds new ones, because on Lambda a new process may handle any message.
func (in *inprocess) use() *handlers {
	if !in.m.cfg.Cold {
		return in.made.Load()
	}
	h, err := in.make(*in.settings.Load())
	if err != nil { // the same call succeeded before
		panic("local: " + err.Error())
	}
	return h
}

// make builds the handlers from settings. Each of the four Lambda functions has its own meter.
func (in *inprocess) make(settings wiring.Settings) (*handlers, error) {
	m := in.m
	function := func(hosts []string) (*wiring.Function, error) {
		s := settings
		s.Hosts = hosts
		p := wiring.Parts{
			Store: in.kept.Watch(in.store), Fleet: m.boxes, Inside: m.inside, IsInside: m.isInside, Runners: m.relay, Clients: sockets.Clients{API: m.socket},
			Meter: meter.New(meter.Options{}), Log: m.log, Observer: m.observe, Bodies: m.bodies.lines(),
		}
		p.Forget, p.Snapshots = kept.Folder(m.snapshots()), "folder:"+m.snapshots()
		return wiring.New(s, p)
	}
	var of [4]*wiring.Function
	for i, address := range []string{m.cfg.Listen, m.public.socketsAddress(), "", ""} {
		var err error
		if of[i], err = function(m.public.servedHosts(address)); err != nil {
			return nil, err
		}
	}
	relay := of[2].RelayWithBucket()
	relay.MakeRoom = in.makeRoom
	h, alarms := &handlers{of: of[:], sealer: of[2].Relay.Sealer, relay: relayserver.NewHandler(relay)}, in.alarms()
	var err error
	if h.http, err = endpoints.NewHTTP(of[0], m.cfg.Native, alarms, in.forOneMachine, m.describe); err != nil {
		return nil, err
	}
	if h.pages, err = authorization.New(of[0], nil); err != nil {
		return nil, err
	}
	if h.socket, err = endpoints.NewSocket(of[1], m.cfg.Native, alarms, pushLater, in.forOneMachine); err != nil {
		return nil, err
	}
	h.natives = endpoints.Janitor(of[3], alarms)
	c := of[3].RelayWithBucket()
	c.Elsewhere = h.natives.Owns
	m.inside.Serve(h.relay)
	h.sweeper, h.stopped = relayserver.NewSweeper(c), of[3].Stopped
	return h, nil
}

// forOneMachine sets the options of an endpoint that has no API Gateway in front.
func (in *inprocess) forOneMachine(o *transport.Options) {
	o.Admit, o.AnswerFirst, o.Limit = in.callers.admit, true, sockets.Home().Life
	o.Outlive = func(work func(context.Context)) { in.work.Go(func() { work(in.ctx) }) }
	if strings.HasPrefix(in.m.store, sqlite) {
		o.Kept = &in.kept
	}
	servers := o.Servers
	o.Servers = func(name string) (sessions.Server, bool) {
		s, ok := servers(name)
		s.Preparing = ok && in.preparing.has(name)
		return s, ok
	}
}

// alarms returns what an endpoint needs for the alarms of native servers.
func (in *inprocess) alarms() endpoints.Alarms {
	return endpoints.Alarms{
		Schedule: schedules{in.alarm}, Here: true, Command: in.m.commands.header,
		Invoke: func(_ context.Context, payload []byte) error {
			_, err := in.send(payload)
			return err
		},
	}
}

// schedules is a [native.Scheduler] in this process.
type schedules struct{ api *scheduler.API }

// Schedule implements [native.Scheduler].
func (s schedules) Schedule(_ context.Context, a native.Alarm) error {
	input, err := native.AlarmEvent(a)
	if err == nil {
		_, err = s.api.Create(a.ID(), a.At, string(input))
	}
	if err != nil {
		return storage.Errorf(storage.Unavailable, "the alarm could not be set; try again").Because(err)
	}
	return nil
}

// Cancel implements [native.Scheduler].
func (s schedules) Cancel(_ context.Context, a native.Alarm) error {
	s.api.Delete(a.ID())
	return nil
}

// handleTries limits how often the handling of an alarm, or a push of stored events to a client, is
// tried.
const handleTries = 3

// send handles the event of an alarm in the background. The channel done is closed once the alarm
// is handled, or has failed handleTries times.
func (in *inprocess) send(payload []byte) (done <-chan struct{}, err error) {
	alarm, ok := native.ReadAlarm(payload)
	if !ok {
		return nil, storage.Errorf(storage.Invalid, "the event is no alarm")
	}
	if in.ctx.Err() != nil {
		return nil, storage.Errorf(storage.Unavailable, "dormouse run is ending")
	}
	end := make(chan struct{})
	in.work.Go(func() {
		defer close(end)
		in.retry(func() error { return in.use().http.Alarm(in.ctx, alarm) })
	})
	return end, nil
}

// retry calls the function do until it returns nil, at most handleTries times.
func (in *inprocess) retry(do func() error) {
	for try := range handleTries {
		if do() == nil || storage.Rest(in.ctx, time.Duration(try+1)*time.Second) != nil {
			return
		}
	}
}

// Web implements [Functions].
func (in *inprocess) Web() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in.work.Add(1)
		defer in.work.Done()
		r, release := in.bodies.guard(w, r)
		defer release()
		in.use().web(r.URL.Path, in).ServeHTTP(w, r.WithContext(storage.WithTrace(r.Context(), awsapi.NewID())))
	})
}

func (h *handlers) web(path string, in *inprocess) http.Handler {
	if h.pages.Serves(path) {
		return in.visits.limit(in.bodies.ofStrangers(h.pages), in.refused)
	}
	return h.http.Handler
}

// refused reports a request that was refused before it reached package transport.
func (in *inprocess) refused(r *http.Request, status int, refusal string, err error) {
	address := storage.AddressOf(r.Context())
	if address == "" {
		address, _, _ = net.SplitHostPort(r.RemoteAddr)
	}
	in.m.observe(r.Context(), &observe.Event{
		Kind: observe.Request, Level: slog.LevelWarn, HTTPMethod: r.Method, Path: r.URL.Path, Status: status, Error: err.Error(), Account: storage.Account{Code: storage.CodeOf(err)},
		Caller: &observe.Caller{Address: cmp.Or(address, hereAddress)}, Refused: true, Refusal: refusal, Why: err.Error(),
	})
}

// hereAddress stands for the address of a client that calls over a unix socket.
const hereAddress = "this machine"

// Sockets implements [Functions].
func (in *inprocess) Sockets() http.Handler { return in.callers.connected(in.m.socket) }

// Console implements [Functions].
func (in *inprocess) Console() http.Handler { return nil }

// Sweep implements [Functions].
func (in *inprocess) Sweep(stopped *fleet.Status) <-chan struct{} {
	done := make(chan struct{})
	if in.made.Load() == nil || in.ctx.Err() != nil {
		close(done)
		return done
	}
	in.work.Go(func() {
		defer close(done)
		h := in.use()
		var err error
		if stopped != nil {
			h.stopped(*stopped)
			err = h.sweeper.Stopped(in.ctx, *stopped)
		} else {
			err = errors.Join(h.sweeper.Sweep(in.ctx), h.natives.Sweep(in.ctx), h.flush(in.ctx))
		}
		if err != nil {
			in.m.log.Warn("a sweep has failed; the next one will try again", "error", err)
		}
	})
	return done
}

// Boxes implements [Functions].
func (in *inprocess) Boxes() []fleet.Status { return nil }

// EndBoxes implements [Functions].
func (in *inprocess) EndBoxes(context.Context) {}

// WaitingAlarms implements [Functions].
func (in *inprocess) WaitingAlarms() int { return in.alarm.Len() }

// Records implements [Functions].
func (in *inprocess) Records() storage.Store { return in.store }

// Operators implements [Functions].
func (in *inprocess) Operators() api.Options { return in.use().http.Operators }

// Close waits for background work, and closes the store. It interrupts an alarm that is being
// handled; the next start handles that alarm again.
func (in *inprocess) Close(ctx context.Context) error {
	if in.alarm != nil {
		in.alarm.Stop()
	}
	in.cancel()
	_ = awsapi.Wait(ctx, &in.work) // on an error ctx has ended, and the rest is closed without waiting
	var err error
	if in.alarm != nil {
		err = in.alarm.Close(ctx)
	}
	if h := in.made.Load(); h != nil {
		err = errors.Join(err, h.flush(ctx))
	}
	if in.release != nil {
		err = errors.Join(err, in.release(ctx))
	}
	if in.store != nil {
		err = errors.Join(err, in.store.Close())
	}
	return err
}

// runnerRoutes are the routes of the WebSocket API for runners.
type runnerRoutes struct{ in *inprocess }

// Connect implements [sockets.Routes].
func (r *runnerRoutes) Connect(_ context.Context, _ sockets.Conn, req *http.Request) sockets.Reply {
	if err := r.in.use().sealer.Admit(req.Header); err != nil {
		r.in.refused(req, http.StatusUnauthorized, string(storage.Unauthenticated), err)
		return sockets.Reply{Status: http.StatusUnauthorized}
	}
	return sockets.Reply{Status: http.StatusOK}
}

// Message implements [sockets.Routes].
func (r *runnerRoutes) Message(ctx context.Context, c sockets.Conn, data []byte) []byte {
	reply, err := r.in.use().relay.Frame(storage.WithTrace(ctx, awsapi.NewID()), c.ID, data)
	if err != nil {
		return nil // the handler has logged the error, and the runner will send the message again
	}
	return reply
}

// Disconnect implements [sockets.Routes]. It does nothing: a runner whose connection ends may
// connect again.
func (r *runnerRoutes) Disconnect(context.Context, sockets.Conn, int, string) {}

// clientRoutes are the routes of the API for WebSocket clients.
type clientRoutes struct{ in *inprocess }

// owedKey is the context key of a *[]storage.ID: the sessions that wait for a push.
type owedKey struct{}

// pushLater implements transport.SocketOptions.Push. It records the session in the context.
// Connect pushes the session's stored messages once the connection is open.
func pushLater(ctx context.Context, id storage.ID) error {
	if owed, ok := ctx.Value(owedKey{}).(*[]storage.ID); ok {
		*owed = append(*owed, id)
	}
	return nil
}

// Connect implements [sockets.Routes].
func (r *clientRoutes) Connect(ctx context.Context, c sockets.Conn, req *http.Request) sockets.Reply {
	var owed []storage.ID
	ctx = context.WithValue(calledBy(ctx, c), owedKey{}, &owed)
	counted := req.Context().Value(connectionKey{})
	ctx = context.WithValue(ctx, connectionKey{}, counted)
	status, protocol, body := r.in.use().socket.Connect(ctx, c.ID, req)
	return sockets.Reply{Status: status, Protocol: protocol, Body: body, Rooms: rooms(counted, r.in.bodies), Opened: func() {
		for _, id := range owed {
			r.in.work.Go(func() {
				r.in.retry(func() error { return r.in.use().socket.Push(r.in.ctx, id) })
			})
		}
	}}
}

// Message implements [sockets.Routes].
func (r *clientRoutes) Message(ctx context.Context, c sockets.Conn, data []byte) []byte {
	reply, _ := native.Stay(ctx, func(ctx context.Context) ([]byte, error) {
		return r.in.use().socket.Message(calledBy(ctx, c), c.ID, data), nil
	})
	return reply
}

// Disconnect implements [sockets.Routes].
func (r *clientRoutes) Disconnect(ctx context.Context, c sockets.Conn, _ int, _ string) {
	r.in.use().socket.Disconnect(calledBy(ctx, c), c.ID)
}

// calledBy returns ctx with a new trace id and the client's address, as for an invocation on
// Lambda.
func calledBy(ctx context.Context, c sockets.Conn) context.Context {
	return storage.WithAddress(storage.WithTrace(ctx, awsapi.NewID()), c.SourceIP)
}
