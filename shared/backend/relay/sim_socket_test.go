package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// foundOfSockets are seeds above the first 100 whose worlds showed a defect, or would
// show one if some rule were missing. 900788 and 901986: a batch was repeated while it
// was still being posted. 901672: a function ended a suspended call whose item it had
// read before. 900250: a question was answered before the last one of its round was
// stored. 1962: a stream is posted directly again before its end is delivered. 1557: a
// batch is in doubt whose session is gone. 200062 and 201299: the first attempt to record
// an undelivered end failed. 303486: an item was stored late, after a post.
var foundOfSockets = [...]uint64{900788, 901986, 901672, 900250, 1962, 1557, 200062, 201299, 303486}

// TestSimulationOfSockets adds WebSocket clients to the worlds. Their connections
// break, and the clients may or may not notice. The clients come back with or without
// the cursors they have.
func TestSimulationOfSockets(t *testing.T) {
	simulate(t, worlds(2, foundOfSockets[:]), (*world).addSockets)
}

func (w *world) addSockets() {
	g := &simPeers{w: w, peers: map[string]*simPeer{}}
	w.config.Clients = g
	rng := w.random("sockets")
	w.clients = w.clients[:1+rng.IntN(len(w.clients))]
	for n := range 1 + rng.IntN(3) {
		w.sockets = append(w.sockets, newSimSocket(w, g, fmt.Sprintf("w%d", n+1), w.clients[rng.IntN(len(w.clients))].caller.Server.Name))
	}
}

// simPeers is the WebSocket API between clients and the socket function.
type simPeers struct {
	w     *world
	mu    sync.Mutex
	peers map[string]*simPeer
}

// simPeer is one connection of a client. If it is blind, it is open at the gateway, but
// its client no longer reads it.
type simPeer struct {
	owner       *simSocket
	here, blind bool
	buffer      simBuffer
}

// Post implements storage.Poster. If it takes a message, the message arrives, unless the
// client no longer reads.
func (g *simPeers) Post(ctx context.Context, conn string, data []byte) error {
	a := actorOf(ctx)
	if err := a.step(ctx); err != nil {
		return unavailable("the function is over")
	}
	if err := nap(ctx, a.takes(2*time.Millisecond)); err != nil {
		return unavailable("the function is over")
	}
	g.w.breaksIf(len(data) > storage.MaxPost, "%d bytes are posted to a client", len(data))
	if a.chance(g.w.postUnknown) {
		return unavailable("a post to a client was not sent")
	}
	if err := g.room(ctx, conn, len(data)); err != nil {
		return err
	}
	g.mu.Lock()
	p := g.peers[conn]
	switch {
	case p == nil:
		g.w.breaks("post to client connection %q, which never was", conn)
	case p.here && !p.blind:
		p.owner.hears(data)
		g.w.tell(a.name, "to %s: %.120s", conn, data)
	case p.here:
		g.w.tell(a.name, "LOST to %s: %.120s", conn, data)
	}
	here := p != nil && p.here
	g.mu.Unlock()
	if !here {
		g.w.tell(a.name, "410 from %s for %.120s", conn, data)
		return storage.Errorf(storage.Closed, "simulated: connection %s is gone", conn)
	}
	if a.chance(g.w.postUnknown) {
		return unavailable("the answer to a post to a client was lost")
	}
	return nil
}

func (g *simPeers) Close(ctx context.Context, conn string) error {
	a := actorOf(ctx)
	if a.step(ctx) != nil || nap(ctx, a.takes(2*time.Millisecond)) != nil || a.chance(g.w.postUnknown) {
		return unavailable("a connection was not closed")
	}
	g.change(conn, func(p *simPeer) { p.here = false })
	return nil
}

func (g *simPeers) change(conn string, f func(*simPeer)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.peers[conn]; p != nil {
		f(p)
	}
}

// simSocket is a client over WebSocket with one session. It asks for event ids.
type simSocket struct {
	w      *world
	g      *simPeers
	name   string
	caller sessions.Caller
	a      *actor
	under  sync.WaitGroup

	mu      sync.Mutex
	id      storage.ID
	conn    string
	conns   int
	blinded bool // has lost a connection without noticing
	named   bool // has come back with event ids
	cursors map[storage.StreamID]storage.Index
	got     []string
	calls   []*simSent
}

// simSent is a request that was sent over a socket.
type simSent struct {
	refused  error // the function's refusal, if the function lived to send it
	label    string
	id       json.RawMessage
	stream   storage.StreamID
	accepted bool
}

func newSimSocket(w *world, g *simPeers, name, server string) *simSocket {
	return &simSocket{w: w, g: g, name: name, a: w.actor(name), caller: sessions.Caller{
		Server:   sessions.Server{Name: server, Digest: "digest of " + server, Record: true},
		Identity: storage.Identity{Tenant: "tenant", Principal: "principal of " + name}, Transport: storage.WebSocket, EventIDs: true,
	}}
}

func (s *simSocket) host() *sessions.Manager { return s.w.host().With(sessions.Parts{Clients: s.g}) }

func (s *simSocket) hears(data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, ok := wire.String(wire.Lookup(data, "params", "eventId")); ok {
		if id, err := storage.ParseEventID(text); err != nil {
			s.w.breaks("%s is told %v", s.name, err)
		} else {
			s.cursors[id.Stream] = max(s.cursors[id.Stream], id.Index)
		}
		return
	}
	s.got = append(s.got, string(data))
	if m, err := wire.Parse(data); err == nil && m.Kind == wire.Request {
		s.answer(m)
	}
}

func (s *simSocket) answer(m wire.Message) {
	s.w.answer(m, func(name string, answer []byte) {
		for n := 1; s.w.ctx.Err() == nil; n++ {
			_, _, err := s.message(fmt.Sprintf("%s.%s#%d", s.name, name, n), answer)
			if err == nil || errors.Is(err, storage.NotFound) || nap(s.w.ctx, 3*time.Second) != nil {
				return
			}
		}
	})
}

// message is the socket function for one message over the current connection. After an
// error the client does not know that the message was accepted.
func (s *simSocket) message(what string, raw []byte) (call *sessions.Call, reply []byte, err error) {
	s.mu.Lock()
	caller, id := s.caller, s.id
	caller.Conn = s.conn
	s.mu.Unlock()
	s.w.afoot.Add(1)
	defer s.w.afoot.Add(-1)
	m := simMessage(raw)
	err = s.w.attempt(what, gatewayFunction, func(ctx context.Context) (err error) {
		if m.Method == wire.MethodInitialize {
			_, call, err = s.host().Initialize(ctx, caller, id, m)
		} else {
			call, err = s.host().Accept(ctx, caller, id, []wire.Message{m}, false)
		}
		if err == nil && call != nil {
			var events []storage.Event
			if events, err = call.Next(ctx, time.Now()); err == nil && !call.Stored() {
				reply = events[0].Raw
			}
		}
		return err
	})
	return call, reply, err
}

// send sends a request, and records whether the function says that it was accepted.
func (s *simSocket) send(label string, raw []byte) *simSent {
	r := &simSent{label: label, id: simMessage(raw).ID}
	s.mu.Lock()
	s.calls = append(s.calls, r)
	conn := s.conn
	s.mu.Unlock()
	call, reply, err := s.message(label, raw)
	s.mu.Lock()
	r.refused = err
	s.mu.Unlock()
	s.w.breaksIf(s.w.none() && err != nil, "%s was not accepted though nothing went wrong: %v", label, err)
	if err != nil || call == nil {
		return r
	}
	heard := false
	s.g.change(conn, func(p *simPeer) { heard = p.here && !p.blind })
	s.mu.Lock()
	defer s.mu.Unlock()
	if reply != nil && heard {
		s.got = append(s.got, string(reply))
	}
	if r.accepted = heard && call.Stored(); r.accepted {
		r.stream = call.Cursor().Stream
		s.w.ledger.learns(r.stream, fmt.Appendf(nil, `"label":%q`, label))
		s.cursors[r.stream] = max(s.cursors[r.stream], 0)
	}
	return r
}

// connect opens a new connection, for a new session or for the existing one. It tries
// until it has one.
func (s *simSocket) connect(resume storage.ID, withCursors bool) {
	for n := 1; s.w.ctx.Err() == nil; n++ {
		s.conns++
		conn := fmt.Sprintf("%s/c%d", s.name, s.conns)
		var cursors []storage.EventID
		if withCursors {
			cursors = s.has()
		}
		caller := s.caller
		caller.Conn = conn
		s.g.mu.Lock()
		s.g.peers[conn] = &simPeer{owner: s}
		s.g.mu.Unlock()
		var got storage.Session
		err := s.w.attempt(conn+"/connect", storage.ConnectTimeout, func(ctx context.Context) (err error) {
			got, _, err = s.host().Connect(ctx, caller, nil, resume, map[string][]storage.EventID{"": cursors})
			return err
		})
		if err == nil {
			s.joined(conn, got)
			return
		}
		if resume != "" && errors.Is(err, storage.NotFound) {
			s.w.breaks("the session of %s is lost: %v", s.name, err)
			return
		}
		_ = nap(s.w.ctx, draw(s.a.rng, 5*time.Second))
	}
}

func (s *simSocket) joined(conn string, rec storage.Session) {
	if rec.Owes() {
		s.w.afoot.Add(1)
		s.w.wg.Go(func() {
			defer s.w.afoot.Add(-1)
			for n := 1; s.w.ctx.Err() == nil; n++ {
				err := unavailable("the function died")
				s.w.function(fmt.Sprintf("%s/push%d", conn, n), 15*time.Minute, func(ctx context.Context, a *actor) {
					err = s.host().Push(ctx, rec.ID)
					a.tell("push: %v", err)
				})
				if err == nil || nap(s.w.ctx, time.Second) != nil {
					return
				}
			}
		})
	}
	_ = nap(s.w.ctx, draw(s.a.rng, 100*time.Millisecond))
	s.g.change(conn, func(p *simPeer) { p.here = true })
	s.w.ledger.owns(s.w, rec.ID, s.name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
	if s.id != rec.ID {
		s.id, s.cursors, s.got, s.calls = rec.ID, map[storage.StreamID]storage.Index{storage.Standalone: 0}, nil, nil
	}
}

// has returns the cursors that the client names when it comes back: those of the streams
// for which it still waits.
func (s *simSocket) has() []storage.EventID {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.calls {
		if r.accepted && s.answered(r) {
			delete(s.cursors, r.stream)
		}
	}
	s.named = true
	var ids []storage.EventID
	for stream, index := range s.cursors {
		ids = append(ids, storage.EventID{Stream: stream, Index: index})
	}
	slices.SortFunc(ids, func(a, b storage.EventID) int { return strings.Compare(string(a.Stream), string(b.Stream)) })
	return ids[:min(len(ids), 32)]
}

// answered reports whether the client got the response to r. It must be called with the lock.
func (s *simSocket) answered(r *simSent) bool {
	return slices.ContainsFunc(s.got, func(raw string) bool {
		m, err := wire.Parse([]byte(raw))
		return err == nil && m.Kind == wire.Response && wire.SameID(m.ID, r.id)
	})
}

func (s *simSocket) run() {
	_ = nap(s.w.ctx, draw(s.a.rng, time.Minute))
	for n := 1; s.w.ctx.Err() == nil && !s.open(n); n++ {
		_ = nap(s.w.ctx, draw(s.a.rng, 5*time.Second))
	}
	for n := range 4 + s.a.rng.IntN(8) {
		_ = nap(s.w.ctx, draw(s.a.rng, []time.Duration{time.Second, 20 * time.Second, 2 * time.Minute}[s.a.rng.IntN(3)]))
		if s.a.rng.IntN(3) == 0 {
			s.breaks()
			continue
		}
		label := fmt.Sprintf("%s.r%d", s.name, n+1)
		raw := wire.NewRequest(fmt.Appendf(nil, "%d", n+1), "tools/call", fmt.Appendf(nil, `{"label":%q}`, label))
		s.under.Go(func() { s.send(label, raw) })
	}
	s.under.Wait()
}

// open opens a session. It returns false if that failed.
func (s *simSocket) open(n int) bool {
	s.mu.Lock()
	s.id = ""
	s.mu.Unlock()
	s.g.change(s.conn, func(p *simPeer) { p.here = false })
	s.connect("", false)
	label := fmt.Sprintf("%s.init%d", s.name, n)
	params := fmt.Appendf(nil, `{"protocolVersion":"2025-11-25","capabilities":%s,"clientInfo":{"name":%q,"version":"1"},"label":%q}`, s.w.capabilities(), s.name, label)
	r := s.send(label, wire.NewRequest(fmt.Appendf(nil, "%q", label), wire.MethodInitialize, params))
	for range 60 {
		s.mu.Lock()
		answered := s.answered(r)
		failed := answered && isError([]byte(s.got[len(s.got)-1]))
		s.mu.Unlock()
		if failed {
			return false
		}
		if answered {
			return s.initialized(label)
		}
		_ = nap(s.w.ctx, 5*time.Second)
	}
	return false
}

func (s *simSocket) initialized(label string) bool {
	for n := range 10 {
		_, _, err := s.message(fmt.Sprintf("%s.initialized%d", label, n), wire.NewNotification(wire.NotifyInitialized, nil))
		if err == nil {
			return true
		}
		if errors.Is(err, storage.NotFound) || nap(s.w.ctx, time.Second) != nil {
			return false
		}
	}
	return false
}

// breaks makes the client lose its connection and connect again.
func (s *simSocket) breaks() {
	s.mu.Lock()
	conn, id := s.conn, s.id
	s.mu.Unlock()
	blind := s.a.rng.IntN(2) == 0
	s.w.tell(s.name, "%s breaks, blind: %v", conn, blind)
	if blind {
		s.blinded = true
		s.g.change(conn, func(p *simPeer) { p.blind = true })
		after := draw(s.a.rng, 4*time.Minute)
		s.w.wg.Go(func() {
			_ = nap(s.w.ctx, after)
			s.g.change(conn, func(p *simPeer) { p.here = false })
		})
	} else {
		s.g.change(conn, func(p *simPeer) { p.here = false })
		if s.a.rng.IntN(2) == 0 {
			s.w.wg.Go(func() {
				s.w.function(conn+"/disconnect", gatewayFunction, func(ctx context.Context, a *actor) {
					a.tell("disconnect: %v", s.host().Disconnect(ctx, conn))
				})
			})
		}
	}
	_ = nap(s.w.ctx, draw(s.a.rng, []time.Duration{time.Second, time.Minute}[s.a.rng.IntN(2)]))
	s.connect(id, blind || s.a.rng.IntN(3) == 0)
}

// finish connects once more after all faults have ended.
func (s *simSocket) finish() {
	s.mu.Lock()
	id := s.id
	s.mu.Unlock()
	s.connect(id, s.blinded)
}

// check checks that the client got every event of the session, in order, and nothing
// else. A lost connection may have cost only messages of a request that the client does
// not know to be accepted.
func (s *simSocket) check(log map[simStreamKey]*simStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	place := map[string]simStreamKey{}
	index := map[string]storage.Index{}
	for key, stream := range log {
		for _, e := range stream.events {
			if key.session == s.id {
				fitted := string(sessions.Fit(e.Raw))
				place[fitted], index[fitted] = key, e.Index
			}
		}
	}
	seen := map[storage.StreamID][]storage.Index{}
	for _, raw := range s.got {
		key, ok := place[raw]
		if !ok {
			if !slices.ContainsFunc(s.calls, func(r *simSent) bool { return isInit(r.label) && strings.Contains(raw, r.label) }) {
				s.w.breaks("%s got what is not in its session: %.200s", s.name, raw)
			}
			continue
		}
		if slices.Contains(seen[key.stream], index[raw]) {
			s.w.breaksIf(s.w.none() && !s.named, "%s got an event twice though nothing went wrong: %.200s", s.name, raw)
			continue
		}
		seen[key.stream] = append(seen[key.stream], index[raw])
	}
	told := map[storage.StreamID]bool{storage.Standalone: true}
	for _, r := range s.calls {
		if r.accepted {
			told[r.stream] = true
			s.w.breaksIf(log[simStreamKey{s.id, r.stream}] == nil, "%s was accepted and has no events", r.label)
		}
	}
	for key, stream := range log {
		if key.session == s.id {
			s.checkSeen(stream, seen[key.stream], told[key.stream] || s.w.none() && !s.blinded)
		}
	}
}

// checkSeen checks that the client saw all events, in order. There is one exception. If a
// box is lost, it may be unknown whether the last batch of its generation was posted; the
// log then has that batch. The end of a request is posted in any case, maybe before the
// rest. It may be missing only if the end itself was in such a batch that no function has
// handled: a request that ended at once has no item that would show it.
func (s *simSocket) checkSeen(stream *simStream, seen []storage.Index, whole bool) {
	var must []storage.Index
	for i, b := range stream.batches {
		last := i == len(stream.batches)-1
		if s.w.none() || !last && stream.batches[i+1].Gen == b.Gen {
			for n := range b.Events {
				must = append(must, b.First+storage.Index(n))
			}
		}
		if end := b.First + storage.Index(len(b.Events)) - 1; whole && last && b.Final && !slices.Contains(seen, end) && (b.Gen == 0 || !s.w.ledger.open.has(stream.id)) {
			s.w.breaks("%s did not see the end of %s: %v", s.name, s.w.title(stream), seen)
		}
	}
	seen = slices.DeleteFunc(seen, func(i storage.Index) bool { return !slices.Contains(must, i) })
	s.w.breaksIf(!slices.IsSorted(seen), "%s saw %s in the order %v", s.name, s.w.title(stream), seen)
	s.w.breaksIf(whole && len(seen) != len(must), "%s saw of %s %v, and had to see %v", s.name, s.w.title(stream), seen, must)
}
