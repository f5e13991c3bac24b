package native

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Config is what a Backend works with. Store, Servers and Next are required; each of the
// others says what its zero value means.
type Config struct {
	Store storage.Store
	// Servers returns a configured server by its name in the servers file. ok is false
	// for a server that is not native.
	Servers func(name string) (h Hosted, ok bool)
	// Next is the Backend of all servers that are not native.
	Next sessions.Backend
	// Clients reaches the connections of WebSocket clients. If Clients is nil, the Backend
	// pushes nothing.
	Clients storage.Clients
	// Schedule keeps alarms. If Schedule is nil, authors have no alarms, and a paused call
	// goes on when the sweep or a waiting instance checks it.
	Schedule Scheduler
	// Invoke starts an invocation of a Lambda function that calls [Backend.Handle] with this
	// event. Invoke does not wait for the invocation. If Invoke is nil, the instance that has
	// a message or an answer executes the call itself.
	Invoke func(ctx context.Context, event []byte) error
	// Held keeps the tools of servers as they were accepted; see [sessions.Server].Pin. nil: a Held
	// that does not log.
	Held  *sessions.Held
	Since time.Time // see sessions.Limits: whatever executed a request before has ended
	// EventAge is how long events are kept (see sessions.Limits); storage.EventAge by
	// default.
	EventAge time.Duration
	// ShowErrors says whether the error of a call that panics repeats the panic. Set it where the
	// only caller is the operator.
	ShowErrors bool
	Log        *slog.Logger
}

// Backend executes messages for native servers in its own process. It implements
// sessions.Backend. It keeps only the requests that it is executing, and for some seconds the lists
// of [Backend.Tools]. It is safe for concurrent use.
type Backend struct {
	Config
	out     sessions.Publisher
	schemas *mcp.SchemaCache

	mu      sync.Mutex
	running map[storage.StreamID]*run
	lists   map[[2]string]listed // by tenant and server
}

// NewBackend returns a Backend. A process should keep one for its life, because a
// Backend works out each schema only once.
func NewBackend(c Config) *Backend {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.EventAge == 0 {
		c.EventAge = storage.EventAge
	}
	return &Backend{
		Config: c, out: sessions.Publisher{Store: c.Store, Clients: c.Clients, Held: c.Held}, schemas: mcp.NewSchemaCache(),
		running: map[storage.StreamID]*run{}, lists: map[[2]string]listed{},
	}
}

// validity is how long a message may wait to be executed.
const validity = 10 * time.Minute

// Owns reports whether a box belongs to a native server. Such a box holds no process: its id is
// only the key under which the store has the server's items.
func (k *Backend) Owns(box storage.BoxID) bool {
	_, server := box.Parts()
	_, ok := k.Servers(server)
	return ok
}

// Deliver implements sessions.Backend. It executes the message here, or stores it and starts
// an invocation that executes it. It returns Invalid if it cannot read the message.
func (k *Backend) Deliver(ctx context.Context, d sessions.Delivery, box storage.Box) (sessions.Tracker, error) {
	server, ok := k.Servers(d.Server)
	if !ok {
		return k.Next.Deliver(ctx, d, box)
	}
	msgs, _, err := wire.ParseBody(d.Raw)
	if err != nil {
		return nil, storage.Errorf(storage.Invalid, "the message is malformed: it is not a JSON-RPC message").Because(err)
	}
	k.tells(ctx, d, server, msgs)
	if err := k.cancelled(ctx, d, msgs); err != nil || len(d.Requests) == 0 {
		return nil, err
	}
	if k.Invoke != nil && elsewhere(d, msgs[0]) && slices.ContainsFunc(msgs, long) {
		return k.enqueue(ctx, d)
	}
	r := k.newRun(ctx, d.Address, d.Client, server)
	r.in.secrets = d.Secrets
	r.take(msgs, false)
	r.enter(ctx)
	go r.execute()
	return r, nil
}

// elsewhere is true if the answer does not go into the HTTP response to the message: because the
// message came over a WebSocket or for a stream of HTTP+SSE, or because the call may become a task.
func elsewhere(d sessions.Delivery, first wire.Message) bool {
	return d.Pushed() || d.Brief || d.Client.Transport == storage.Modern && !bridge.SaysModern(first.Params)
}

// long reports whether an author's code answers a request, which may take long.
func long(m wire.Message) bool {
	switch m.Method {
	case wire.MethodToolsCall, wire.MethodPromptsGet, wire.MethodResourcesRead, wire.MethodComplete:
		return true
	default:
		return false
	}
}

// enqueue stores a message as an item, and starts an invocation that executes it.
func (k *Backend) enqueue(ctx context.Context, d sessions.Delivery) (sessions.Tracker, error) {
	now := time.Now()
	it := storage.Item{
		Box: d.Box, ID: d.Stream, State: storage.Waiting, Address: d.Address, Raw: d.Raw, NotAfter: now.Add(validity), Created: now,
	}
	if _, err := k.Store.PutItem(ctx, it); err != nil {
		return nil, err
	}
	k.invokeLater(ctx, it)
	return &watch{k: k, s: d.Client, box: d.Box, stream: d.Stream}, nil
}

// Track implements sessions.Backend.
func (k *Backend) Track(ctx context.Context, s storage.Session, stream storage.StreamID) (sessions.Tracker, error) {
	if _, ok := k.Servers(s.Server); !ok {
		return k.Next.Track(ctx, s, stream)
	}
	box := s.Box()
	it, err := k.Store.Item(ctx, box, stream)
	if err != nil {
		return nil, err
	}
	if it.Address.Session != s.ID {
		return nil, storage.Errorf(storage.NotFound, "this session has no such stream; use an event id that this session has received")
	}
	return &watch{k: k, s: s, box: box, stream: stream}, nil
}

// watch is the Tracker of a request that another instance executes, or that is suspended.
type watch struct {
	k      *Backend
	s      storage.Session
	box    storage.BoxID
	stream storage.StreamID
}

// lookAfter is the time between two Checks of a request.
const lookAfter = 10 * time.Second

// Check implements sessions.Tracker.
func (w *watch) Check(ctx context.Context) (sessions.Status, error) {
	duty := sessions.Status{Accepted: true, Next: time.Now().Add(lookAfter)}
	it, err := w.k.Store.Item(ctx, w.box, w.stream)
	if errors.Is(err, storage.NotFound) {
		return duty, nil // the request has ended, or an instance is ending it
	}
	if err == nil {
		err = w.k.resolve(ctx, it)
	}
	return duty, err
}

// Answer implements sessions.Backend.
func (k *Backend) Answer(ctx context.Context, a storage.Answer, box storage.Box) error {
	if !k.Owns(box.ID) {
		return k.Next.Answer(ctx, a, box)
	}
	if name, ok := storage.Forwards(a.Question); ok {
		return k.forward(ctx, a, name)
	}
	stream, _, ok := storage.Suspends(a.Question)
	if !ok {
		return nil
	}
	it, err := k.Store.Item(ctx, box.ID, stream)
	switch {
	case errors.Is(err, storage.NotFound):
		return nil // the call has ended
	case err != nil:
		return err
	case it.Address.Session != a.Session || !it.Asks(a.Question):
		return nil
	}
	return k.answered(ctx, it)
}

// End implements sessions.Backend.
func (k *Backend) End(ctx context.Context, s storage.Session, box storage.Box) error {
	if _, ok := k.Servers(s.Server); !ok {
		return k.Next.End(ctx, s, box)
	}
	stopped := k.interrupt(s.ID, func(*run) error { return context.Canceled })
	_, err := k.endAll(ctx, box.ID, s.ID, func(storage.Item) bool { return true }, sessionEnded)
	for _, r := range stopped { // endAll does not find a run that has no item yet
		err = errors.Join(err, k.out.Fail(ctx, r.address, sessionEnded(storage.Item{State: storage.Taken}), time.Now().Add(k.EventAge)))
	}
	return err
}

// cancelled ends the requests that the client's messages cancel.
func (k *Backend) cancelled(ctx context.Context, d sessions.Delivery, msgs []wire.Message) error {
	msgs = slices.DeleteFunc(slices.Clone(msgs), func(m wire.Message) bool {
		return m.Method != wire.NotifyCancelled || wire.Lookup(m.Params, "requestId") == nil
	})
	if len(msgs) == 0 {
		return nil
	}
	// A cancel does not stop a request that shares a batch with others. The cancel of a modern
	// client names the stream of the request, in place of the request's id.
	meant := func(a storage.Address) error {
		for _, m := range msgs {
			id := wire.Lookup(m.Params, "requestId")
			if name, _ := wire.String(id); name == string(a.Stream) || len(a.Requests) == 1 && wire.SameID(id, a.Requests[0]) {
				return Cancelled(m.Raw)
			}
		}
		return nil
	}
	why := &wire.Error{Code: wire.CodeCancelled, Message: "request cancelled by the client"}
	for again := d.Client.Transport != storage.Modern; ; again = false {
		found, err := k.endAll(ctx, d.Box, d.Session, func(it storage.Item) bool { return meant(it.Address) != nil }, func(storage.Item) *wire.Error { return why })
		for _, r := range k.interrupt(d.Session, func(r *run) error { return meant(r.address) }) {
			found++ // endAll does not find a run that has no item yet
			err = errors.Join(err, k.out.Fail(ctx, r.address, why, time.Now().Add(k.EventAge)))
		}
		// A run that another instance began within the last second may have no item yet. Wait
		// until it has one, and try once more.
		if err != nil || found >= len(msgs) || !again || storage.Rest(ctx, traceAfter+traceAfter/4) != nil {
			return err
		}
	}
}

// interrupt stops the session's runs in this instance for which the function why returns a cause, and
// returns them.
func (k *Backend) interrupt(id storage.ID, why func(*run) error) (stopped []*run) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.running {
		if r.address.Session != id {
			continue
		}
		if cause := why(r); cause != nil {
			r.stop(cause)
			stopped = append(stopped, r)
		}
	}
	return stopped
}
