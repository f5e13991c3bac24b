package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// simClient is a client with one session, together with the HTTP function that serves it.
// It opens the session, sends requests at inconvenient times, loses connections, comes
// back with the id of the last event it saw, and answers questions.
type simClient struct {
	w         *world
	name      string
	caller    sessions.Caller
	a         *actor
	id        storage.ID
	asked     int
	door      string // tells sessions of one client apart
	acts      func() // in place of what a client does; nil: nothing else
	listening sync.WaitGroup

	mu       sync.Mutex
	requests []*simRequest
	hears    bool          // listens on the standalone stream
	heard    storage.Index // index of the last event that it has seen there
}

// simRequest is one POST with requests, as its client sees it.
type simRequest struct {
	c     *simClient
	label string
	ids   []json.RawMessage
	begun time.Time

	mu       sync.Mutex
	session  storage.ID // of an initialize
	accepted bool
	late     bool             // was open when the session was ended
	stream   storage.StreamID // the world knows it; the client knows it only from an event id in last
	last     string           // id to come back with
	seen     []storage.Event
	done     bool
	broken   error
}

func newSimClient(w *world, name, server string) *simClient {
	return &simClient{w: w, name: name, a: w.actor(name), caller: sessions.Caller{
		Server:   sessions.Server{Name: server, Digest: "digest of " + server, Record: true, Spreads: true},
		Identity: storage.Identity{Tenant: "tenant", Principal: "principal of " + name}, Transport: storage.HTTP,
	}}
}

// host returns a new Host for each message, as on a cold instance.
func (w *world) host() *sessions.Manager {
	most := func(context.Context, string) int { return w.most }
	return sessions.New(w.config.Store, relayserver.NewBackend(w.config), sessions.Limits{}).With(sessions.Parts{Boxes: most})
}

// simFunction is how long the HTTP function may run.
const simFunction = 15 * time.Minute

func (c *simClient) run() {
	if c.acts != nil {
		c.acts()
		return
	}
	_ = nap(c.w.ctx, draw(c.a.rng, time.Minute))
	if !c.open() {
		return
	}
	if c.a.rng.IntN(3) > 0 {
		c.hears = true
		c.listening.Go(c.listen)
	}
	var under sync.WaitGroup
	for range 4 + c.a.rng.IntN(8) {
		_ = nap(c.w.ctx, c.think())
		c.act(&under)
		if c.a.rng.IntN(4) > 0 {
			under.Wait()
		}
	}
	if c.a.rng.IntN(4) == 0 {
		c.end()
	}
	under.Wait()
}

// think returns how long the client waits before its next step. Often the step then comes
// just when a box falls asleep, or while its runner lingers.
func (c *simClient) think() time.Duration {
	switch c.a.rng.IntN(8) {
	case 0:
		return draw(c.a.rng, time.Second)
	case 1, 2, 3:
		c.w.nextBye(3 * c.w.idle)
		return draw(c.a.rng, 20*time.Millisecond)
	case 4, 5:
		c.w.nextBye(3 * c.w.idle)
		return draw(c.a.rng, 8*time.Second)
	default:
		return draw(c.a.rng, 3*time.Minute)
	}
}

// open opens the session. It tries until the session is ready.
func (c *simClient) open() bool {
	for n := 1; c.w.ctx.Err() == nil; n++ {
		if n > 1 {
			c.w.breaksIf(c.w.none(), "%s could not open a session though nothing went wrong", c.name)
			_ = nap(c.w.ctx, draw(c.a.rng, 10*time.Second))
		}
		if c.initialize(n) && c.initialized() {
			return true
		}
	}
	return false
}

func (c *simClient) initialize(n int) bool {
	r := c.request(fmt.Sprintf("%s.init%s%d", c.name, c.door, n), 1)
	params := fmt.Appendf(nil, `{"protocolVersion":"2025-11-25","capabilities":%s,"clientInfo":{"name":%q,"version":"1"},"label":%q}`, c.w.capabilities(), c.name, r.label)
	m := simMessage(wire.NewRequest(r.ids[0], wire.MethodInitialize, params))
	r.post(func(ctx context.Context) (*sessions.Call, error) {
		s, call, err := c.w.host().Initialize(ctx, c.caller, "", m)
		if err == nil {
			c.w.ledger.owns(c.w, s.ID, c.name)
			r.learn(call)
			r.mu.Lock()
			r.session = s.ID
			r.mu.Unlock()
		}
		return call, err
	})
	r.mu.Lock()
	known := r.last != "" || r.done
	c.id = r.session
	r.mu.Unlock()
	if !known {
		return false
	}
	r.resume()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done && !isError(r.seen[len(r.seen)-1].Raw)
}

func (c *simClient) initialized() bool {
	return c.tell(c.name+".initialized", wire.NewNotification(wire.NotifyInitialized, nil)) == nil
}

// tell sends a message that gets no response. It tries until the message is accepted.
func (c *simClient) tell(what string, raw []byte) error {
	rng := c.w.random("tell " + what)
	for n := 1; ; n++ {
		err := c.w.attempt(fmt.Sprintf("%s#%d", what, n), simFunction, func(ctx context.Context) error {
			_, err := c.w.host().Accept(ctx, c.caller, c.id, []wire.Message{simMessage(raw)}, false)
			return err
		})
		if err == nil || errors.Is(err, storage.NotFound) {
			return err
		}
		if nap(c.w.ctx, 100*time.Millisecond+draw(rng, 5*time.Second)) != nil {
			return c.w.ctx.Err()
		}
	}
}

// act sends one request, two requests at the same time, a batch of requests, or a
// notification.
func (c *simClient) act(under *sync.WaitGroup) {
	n := 1
	switch c.a.rng.IntN(8) {
	case 0:
		n = 2 // at the same time
	case 1:
		c.notify()
		return
	case 2:
		c.asked++
		c.send(under, c.request(fmt.Sprintf("%s.r%d", c.name, c.asked), 2+c.a.rng.IntN(2)))
		return
	}
	for range n {
		c.asked++
		c.send(under, c.request(fmt.Sprintf("%s.r%d", c.name, c.asked), 1))
	}
}

// notify sends a notification once; it may be lost.
func (c *simClient) notify() {
	c.asked++
	label := fmt.Sprintf("%s.n%d", c.name, c.asked)
	m := simMessage(wire.NewNotification("notifications/roots/list_changed", fmt.Appendf(nil, `{"label":%q}`, label)))
	c.w.function(label, simFunction, func(ctx context.Context, a *actor) {
		_, err := c.w.host().Accept(ctx, c.caller, c.id, []wire.Message{m}, false)
		a.tell("notification: %v", err)
	})
}

// request makes the record of a POST with n requests.
func (c *simClient) request(label string, n int) *simRequest {
	r := &simRequest{c: c, label: label, begun: time.Now()}
	for range n {
		// Ids are integers beyond what a double holds, or strings.
		id := fmt.Appendf(nil, "%d", 1<<53+1+c.a.rng.Int64N(1<<60))
		if c.a.rng.IntN(2) == 0 {
			id = fmt.Appendf(nil, `"%x"`, c.a.rng.Int64())
		}
		r.ids = append(r.ids, id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, r)
	return r
}

func (c *simClient) send(under *sync.WaitGroup, r *simRequest) {
	methods := []string{"tools/call", "tools/call", "tools/call", wire.MethodSetLevel, wire.MethodSubscribe}
	var msgs []wire.Message
	for i, id := range r.ids {
		label := r.label
		if i > 0 {
			label = fmt.Sprintf("%s.%d", r.label, i+1)
		}
		size := 0
		if c.a.rng.IntN(40) == 0 {
			size = 100_000 + c.a.rng.IntN(200_000) // goes down in parts
		}
		params := fmt.Appendf(nil, `{"label":%q,"level":"info","uri":"file:///%s","pad":%q}`, label, label, strings.Repeat("ö", size/2))
		msgs = append(msgs, simMessage(wire.NewRequest(id, methods[c.a.rng.IntN(len(methods))], params)))
	}
	c.cancels(r)
	under.Go(func() {
		r.post(func(ctx context.Context) (*sessions.Call, error) {
			return c.w.host().Accept(ctx, c.caller, c.id, msgs, len(msgs) > 1)
		})
		r.resume()
	})
}

// end sends DELETE. Requests that are open then may end in an error.
func (c *simClient) end() {
	c.w.ledger.ended.add(c.name)
	c.mu.Lock()
	for _, r := range c.requests {
		r.mu.Lock()
		r.late = r.late || !r.done
		r.mu.Unlock()
	}
	c.mu.Unlock()
	for n := 1; ; n++ {
		err := c.w.attempt(fmt.Sprintf("%s.delete%d", c.name, n), simFunction, func(ctx context.Context) error {
			return c.w.host().End(ctx, c.caller, c.id)
		})
		if err == nil || errors.Is(err, storage.NotFound) || nap(c.w.ctx, draw(c.a.rng, 5*time.Second)) != nil {
			return
		}
	}
}

func simMessage(raw []byte) wire.Message {
	m, err := wire.Parse(raw)
	if err != nil {
		panic(err)
	}
	return m
}

func isError(raw []byte) bool { return wire.Lookup(raw, "error") != nil }
