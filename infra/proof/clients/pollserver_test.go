package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// pollServer is an endpoint whose calls end when their client has polled often enough.
// Package transport and package sessions are the real ones, made anew for every request. The
// script below (tools) stands for the relay and everything behind it.
type pollServer struct {
	store  *shakyStore
	limits sessions.Limits
	ledger *ledger

	mu      sync.Mutex
	polls   map[storage.StreamID]*pollCall
	listens map[storage.ID]*pollCall // whose standalone stream is being scripted
	ctx     context.Context          // of the goroutines a tool leaves behind
	working sync.WaitGroup
}

func newPollServer(t *testing.T, store storage.Store, limits sessions.Limits) *pollServer {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s := &pollServer{
		store: &shakyStore{Store: store}, limits: limits, ledger: &ledger{pace: limits.Pace}, ctx: ctx,
		polls: map[storage.StreamID]*pollCall{}, listens: map[storage.ID]*pollCall{},
	}
	t.Cleanup(func() {
		cancel()
		s.working.Wait()
	})
	return s
}

// ServeHTTP tells the script about every poll, before and after it serves the poll.
func (s *pollServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := s.ledger.begin(r)
	watched := s.watched(r, seen)
	if watched != nil {
		watched.arrived()
	}
	s.handler().ServeHTTP(&noting{ResponseWriter: w, seen: seen}, r)
	s.ledger.end(seen)
	if watched != nil {
		watched.served()
	}
}

func (s *pollServer) handler() http.Handler {
	return transport.New(transport.Options{
		Servers: func(name string) (sessions.Server, bool) {
			return sessions.Server{Name: name, Digest: name}, name == "polls"
		},
		Host: sessions.New(s.store, s, s.limits),
		Auth: apikey.Open{},
	})
}

func (s *pollServer) watched(r *http.Request, seen *seen) *pollCall {
	if r.Method != http.MethodGet {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen.stream == storage.Standalone {
		return s.listens[seen.session]
	}
	return s.polls[seen.stream]
}

// Deliver plays the server.
func (s *pollServer) Deliver(_ context.Context, d sessions.Delivery, _ storage.Box) (sessions.Tracker, error) {
	if len(d.Requests) == 0 {
		return nil, nil
	}
	msgs, _, err := wire.ParseBody(d.Raw)
	if err != nil {
		return nil, err
	}
	call := &pollCall{server: s, Address: d.Address, token: wire.Lookup(msgs[0].Params, "_meta", "progressToken")}
	switch msgs[0].Method {
	case wire.MethodInitialize:
		call.end(map[string]any{
			"protocolVersion": d.Client.Version,
			"capabilities":    map[string]any{"tools": map[string]any{}, "logging": map[string]any{}},
			"serverInfo":      map[string]any{"name": "polls", "version": "1.0.0"},
		})
	case "tools/list":
		call.end(map[string]any{"tools": pollTools()})
	case "tools/call":
		return call, call.begin(msgs[0].Params)
	default:
		call.end(map[string]any{})
	}
	return call, nil
}

// Track finds every call, and reports that all is in order.
func (s *pollServer) Track(_ context.Context, _ storage.Session, stream storage.StreamID) (sessions.Tracker, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if call := s.polls[stream]; call != nil {
		return call, nil
	}
	return nil, storage.NotFound
}

// Answer is never called: this server asks its clients nothing.
func (s *pollServer) Answer(context.Context, storage.Answer, storage.Box) error {
	return errors.New("the scripted server has asked nothing")
}

// End has nothing to stop.
func (s *pollServer) End(context.Context, storage.Session, storage.Box) error { return nil }

// pollCall is one call of a tool. The hooks are called for each poll that it watches, before and
// after the poll is served; polls are counted from 1.
type pollCall struct {
	storage.Address
	server *pollServer
	token  json.RawMessage

	mu       sync.Mutex
	count    int
	onPoll   func(n int)
	onServed func(n int)
}

func (c *pollCall) arrived() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if c.onPoll != nil {
		c.onPoll(c.count)
	}
}

func (c *pollCall) served() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.onServed != nil {
		c.onServed(c.count)
	}
}

// Check finds every call in order.
func (c *pollCall) Check(context.Context) (sessions.Status, error) {
	return sessions.Status{Accepted: true, Next: time.Now().Add(time.Hour)}, nil
}

// end, progress and push write to the log as the relay function would: at the tail. They
// use the store itself, which does not fail for them.
func (c *pollCall) end(result any) { c.append(c.Stream, true, "id", c.Requests[0], "result", result) }

func (c *pollCall) progress(n int) {
	c.append(c.Stream, false, "method", wire.NotifyProgress, "params", map[string]any{"progressToken": c.token, "progress": n})
}

func (c *pollCall) push(text string) {
	c.append(storage.Standalone, false, "method", wire.NotifyMessage, "params", map[string]any{"level": "info", "data": text})
}

func (c *pollCall) text(format string, args ...any) {
	c.end(map[string]any{"content": []any{map[string]any{"type": "text", "text": fmt.Sprintf(format, args...)}}})
}

func (c *pollCall) append(stream storage.StreamID, final bool, fields ...any) {
	message := map[string]any{"jsonrpc": "2.0"}
	for i := 0; i < len(fields); i += 2 {
		message[fields[i].(string)] = fields[i+1]
	}
	raw, err := json.Marshal(message)
	if err != nil {
		panic(err) // a defect of the script
	}
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	tail, err := s.store.Store.Tail(s.ctx, c.Session, stream)
	if err == nil {
		err = sessions.Publisher{Store: s.store.Store}.Append(s.ctx, c.Address, storage.Batch{
			Session: c.Session, Stream: stream, First: tail.Last + 1, Gen: 1, Seq: tail.Seq + 1,
			Final: final, Events: [][]byte{raw}, Expires: time.Now().Add(24 * time.Hour),
		})
	}
	if err != nil && s.ctx.Err() == nil {
		panic("the script cannot write: " + err.Error())
	}
}

// shakyStore is a store whose reads fail when the test wants them to.
type shakyStore struct {
	storage.Store

	mu     sync.Mutex
	method string // that fails; "" for none
	stream storage.StreamID
}

// down makes one of Load, Wait and Tail fail. Load then fails for every caller, the others
// only for one stream.
func (s *shakyStore) down(method string, stream storage.StreamID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.method, s.stream = method, stream
}

func (s *shakyStore) up() { s.down("", storage.Standalone) }

func (s *shakyStore) check(method string, stream storage.StreamID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.method != method || method != "Load" && s.stream != stream {
		return nil
	}
	return storage.Errorf(storage.Unavailable, "the store does not answer; try again")
}

// Load is the store's, or fails.
func (s *shakyStore) Load(ctx context.Context, id storage.ID, box storage.BoxID) (storage.Session, storage.Box, error) {
	if err := s.check("Load", storage.Standalone); err != nil {
		return storage.Session{}, storage.Box{}, err
	}
	return s.Store.Load(ctx, id, box)
}

// Tail is the store's, or fails.
func (s *shakyStore) Tail(ctx context.Context, id storage.ID, stream storage.StreamID) (storage.Tail, error) {
	if err := s.check("Tail", stream); err != nil {
		return storage.Tail{}, err
	}
	return s.Store.Tail(ctx, id, stream)
}

// Wait is the store's, or fails.
func (s *shakyStore) Wait(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, until time.Time) (storage.Page, error) {
	if err := s.check("Wait", stream); err != nil {
		return storage.Page{}, err
	}
	return s.Store.Wait(ctx, id, stream, after, until)
}

// pollTools are what tools/list answers.
func pollTools() []any {
	var tools []any
	for _, name := range []string{"poll", "notify", "long"} {
		tools = append(tools, map[string]any{"name": name, "inputSchema": map[string]any{"type": "object"}})
	}
	return tools
}

// begin runs a tool:
//
//	poll    {"n": 12}                        ends at the n-th poll; at once if n is 0
//	poll    {"n": 12, "down": "Load"}        and reads fail from the third poll to the fifth
//	notify  {"n": 30}                        n messages on the standalone stream, one for each poll of it,
//	                                         then the message "end", then its own end
//	long    {"ms": 7200000, "step": 300000}  takes so long; progress at each step, and a message on
//	                                         the standalone stream at each third one
func (c *pollCall) begin(params json.RawMessage) error {
	var call struct {
		Name      string
		Arguments struct {
			N, MS, Step int
			Down        string
		}
	}
	if err := json.Unmarshal(params, &call); err != nil {
		return err
	}
	switch args := call.Arguments; call.Name {
	case "poll":
		c.poll(args.N, args.Down)
	case "notify":
		c.notify(args.N)
	case "long":
		c.server.working.Go(func() { c.long(time.Duration(args.MS)*time.Millisecond, time.Duration(args.Step)*time.Millisecond) })
	default:
		return storage.Errorf(storage.Invalid, "there is no tool %q", call.Name)
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.server.polls[c.Stream] = c
	return nil
}

// The store fails from the first to the last of these polls.
const firstTrouble, lastTrouble = 3, 5

func (c *pollCall) poll(n int, down string) {
	if n == 0 {
		c.text("after 0 polls")
		return
	}
	c.onPoll = func(i int) {
		if down != "" && i == firstTrouble {
			c.server.store.down(down, c.Stream)
		}
		if i == n {
			c.text("after %d polls", n)
		}
	}
	c.onServed = func(i int) {
		if down != "" && i == lastTrouble {
			c.server.store.up()
		}
	}
}

func (c *pollCall) notify(n int) {
	listen := &pollCall{server: c.server, Address: c.Address}
	listen.onPoll = func(i int) {
		switch {
		case i < n && i%2 == 0: // while the poll is held, or right after it
			c.server.working.Add(1)
			time.AfterFunc(c.server.limits.Hold/2, func() {
				defer c.server.working.Done()
				c.push(strconv.Itoa(i))
			})
		case i <= n:
			c.push(strconv.Itoa(i))
		case i == n+1:
			c.push("end")
			c.text("said %d", n)
		}
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.server.listens[c.Session] = listen
}

func (c *pollCall) long(takes, step time.Duration) {
	end, ticker := time.NewTimer(takes-step/2), time.NewTicker(step)
	defer end.Stop()
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-c.server.ctx.Done():
			return
		case <-end.C:
			c.push("end")
			c.text("after %d steps", n-1)
			return
		case <-ticker.C:
			c.progress(n)
			if n%3 == 0 {
				c.push(strconv.Itoa(n))
			}
		}
	}
}
