package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// simBox executes the runner's deliveries. Each request takes a while, sends some
// events, may ask the client something, and then answers. simBox records everything in
// the world's ledger.
type simBox struct {
	w      *world
	p      *simProc
	a      *actor // decides whether the box dies
	runner frame.Link

	mu       sync.Mutex
	sessions map[storage.ID]*simSession
	calls    map[storage.StreamID]*simCall // in flight
	last     time.Time                     // when something happened last
	gone     bool                          // killed: does nothing more
}

// simSession is the process of one session.
type simSession struct {
	id        storage.ID
	label     string
	ticket    string        // the newest
	turn      chan struct{} // held while an event of this session is passed to the runner
	questions map[string]chan []byte
}

// simCall is one delivery with requests.
type simCall struct {
	id      storage.StreamID
	s       *simSession
	ticket  string
	ctx     context.Context // ends when events of the session have no use any more
	cancel  context.CancelFunc
	round   int
	open    []json.RawMessage // requests without a response
	asking  []simAsking       // those of them that need input
	stopped bool              // it sends no more events
}

var _ frame.Executor = (*simBox)(nil)

func (x *simBox) Deliver(d frame.Deliver) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.gone {
		return
	}
	x.last = time.Now()
	s := x.session(d)
	msgs, _, err := wire.ParseBody(d.Raw)
	if err != nil {
		x.w.breaks("box %s was given %q: %v", x.p.name, d.Raw, err)
		return
	}
	if home := storage.BoxFor(x.w.clients[0].caller.Tenant, x.server()).Numbered(d.Session.Box()); home != storage.BoxID(x.p.task.Box) {
		x.w.breaks("box %s of %s got a message of a session of %s", x.p.name, x.p.task.Box, home)
	}
	x.w.ledger.executes(x.w, x.p.name, s.label, d, msgs)
	if x.a.chance(x.w.killAtWork) {
		soon := []time.Duration{20 * time.Millisecond, 2 * time.Second}[x.a.rng.IntN(2)]
		time.AfterFunc(draw(x.a.rng, soon), func() {
			if !x.w.calm.Load() {
				x.p.kill()
			}
		})
	}
	s.ticket = d.Ticket
	c := &simCall{id: d.ID, s: s, ticket: d.Ticket, round: d.Round}
	for _, m := range msgs {
		if m.Kind == wire.Request {
			c.open = append(c.open, m.ID)
		}
	}
	x.w.breaksIf((d.AckWithin > 0) != (len(c.open) > 0), "box %s was told of %s that it has requests: %v", x.p.name, labelOf(d.Raw), (d.AckWithin > 0))
	if len(c.open) == 0 {
		return
	}
	c.ctx, c.cancel = context.WithCancel(x.p.ctx)
	x.calls[d.ID] = c
	for _, m := range msgs {
		if m.Kind == wire.Request {
			x.w.wg.Go(func() { x.execute(c, m) })
		}
	}
}

func (x *simBox) server() string { _, server := storage.BoxID(x.p.task.Box).Parts(); return server }

func (x *simBox) session(d frame.Deliver) *simSession {
	s, ok := x.sessions[d.Session]
	if ok {
		return s
	}
	label, _ := wire.String(wire.Lookup(d.Init, "clientInfo", "name"))
	s = &simSession{
		id: d.Session, label: label, ticket: d.Ticket, turn: make(chan struct{}, 1), questions: map[string]chan []byte{},
	}
	x.sessions[d.Session] = s
	x.w.ledger.owns(x.w, d.Session, label)
	if len(x.sessions) > 1 && x.w.most > 1 || x.w.most > 2 {
		x.w.wg.Go(func() {
			x.runner.Status(frame.Status{Session: d.Session, Process: x.p.name, Phase: frame.PhaseFull})
		})
	}
	x.w.wg.Go(func() {
		version, _ := wire.String(wire.Lookup(d.Init, "protocolVersion"))
		x.runner.Status(frame.Status{
			Session: d.Session, Ticket: d.Ticket, Process: x.p.name, Phase: "ready", Detail: version, Payload: simHandshake(x.p.name),
		})
	})
	return s
}

func simHandshake(by string) json.RawMessage {
	return fmt.Appendf(nil, `{"protocolVersion":"2025-11-25","capabilities":{"logging":{}},"serverInfo":{"name":"simulated","version":"1"},"by":%q}`, by)
}

// execute executes one request. The request's label determines what it does.
func (x *simBox) execute(c *simCall, m wire.Message) {
	label := labelOf(m.Raw)
	name := "executes " + label
	if c.round > 0 {
		name = fmt.Sprintf("%s in round %d", name, c.round)
	}
	a := x.w.actor(name)
	x.answered(c, m)
	if m.Method == wire.MethodInitialize {
		if nap(c.ctx, draw(a.rng, 3*time.Second)) == nil {
			x.respond(c, m.ID, wire.ResultResponse(m.ID, simHandshake(x.p.name)))
		}
		return
	}
	steps := a.rng.IntN(5)
	if x.w.slowly {
		steps = a.rng.IntN(100)
	}
	total := simWork(a)
	for n := range steps {
		if nap(c.ctx, total/time.Duration(steps+1)) != nil {
			return
		}
		kind := a.rng.IntN(6)
		n += 128 * c.round // no two events are the same
		switch {
		case a.rng.IntN(x.w.chatty) == 0:
			x.say(nil, c.s, storage.Standalone, x.notice("notifications/message", label, n), false)
		case kind == 0 && n%128 < 5 && !x.w.repeats:
			if !x.ask(a, c, label, n) {
				return
			}
		default:
			x.say(c, c.s, c.id, x.notice("notifications/progress", label, n), false)
		}
	}
	if nap(c.ctx, total/time.Duration(steps+1)) != nil {
		return
	}
	if c.round < x.w.rounds(label) {
		x.wants(a, c, m)
		return
	}
	size := 0
	if a.rng.IntN(50) == 0 {
		size = 200_000 + a.rng.IntN(100_000)
	}
	result := fmt.Appendf(nil, `{"label":%q,"by":%q,"pad":%q}`, label, x.p.name, strings.Repeat("ä", size/2))
	x.respond(c, m.ID, wire.ResultResponse(m.ID, result))
	if a.rng.IntN(6) == 0 && nap(x.p.ctx, draw(a.rng, 2*x.w.idle)) == nil {
		x.say(nil, c.s, storage.Standalone, x.notice("notifications/message", label, 128*c.round+steps), false)
	}
}

// simWork returns how long a request takes. Most are fast. Some take just as long as a
// runner waits before it sends taken, and some take minutes.
func simWork(a *actor) time.Duration {
	switch n := a.rng.IntN(20); {
	case n < 9:
		return draw(a.rng, 20*time.Millisecond)
	case n < 13:
		return 900*time.Millisecond + draw(a.rng, 200*time.Millisecond)
	case n < 17:
		return draw(a.rng, 20*time.Second)
	default:
		return draw(a.rng, 4*time.Minute)
	}
}

// notice returns an event that is different from every other.
func (x *simBox) notice(method, label string, n int) []byte {
	pad := ""
	if x.w.slowly {
		pad = fmt.Sprintf(`,"pad":%q`, strings.Repeat("x", 100<<(n%8)))
	}
	return wire.NewNotification(method, fmt.Appendf(nil, `{"label":%q,"by":%q,"n":%d%s}`, label, x.p.name, n, pad))
}

// simAnswer is how long a box waits for an answer. It is longer than the time until the
// next ping, which asks for the answer.
const simAnswer = 6 * time.Minute

// ask asks the client something and waits for the answer, at most for simAnswer.
func (x *simBox) ask(a *actor, c *simCall, label string, n int) bool {
	question := fmt.Sprintf("q-%s-%d-%s", label, n, x.p.name)
	answer := make(chan []byte, 1)
	x.mu.Lock()
	c.s.questions[question] = answer
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		delete(c.s.questions, question)
		x.last = time.Now()
		x.mu.Unlock()
	}()
	id, _ := json.Marshal(question)
	x.say(c, c.s, c.id, wire.NewRequest(id, "sampling/createMessage", fmt.Appendf(nil, `{"label":%q,"by":%q}`, label, x.p.name)), false)
	patience := time.NewTimer(simAnswer)
	defer patience.Stop()
	select {
	case raw := <-answer:
		x.w.breaksIf(!strings.Contains(string(raw), question), "question %s was answered with %s", question, raw)
		return true
	case <-patience.C:
		a.tell("no answer to %s", question)
		// A WebSocket connection may be lost together with the question, and with the
		// notification that its request was accepted. No answer comes then.
		overSocket := slices.ContainsFunc(x.w.sockets, func(s *simSocket) bool { return s.name == c.s.label })
		x.w.breaksIf(x.w.none() && !overSocket && !x.w.ledger.ended.has(c.s.label), "question %s was not answered within %s", question, simAnswer)
		return true
	case <-c.ctx.Done():
		return false
	}
}

// respond sends a response. The last one of a delivery ends its stream.
func (x *simBox) respond(c *simCall, id json.RawMessage, raw []byte) {
	c.s.turn <- struct{}{}
	x.mu.Lock()
	before := len(c.open)
	c.open = slices.DeleteFunc(c.open, func(o json.RawMessage) bool { return wire.SameID(o, id) })
	left := len(c.open)
	final := left == 0 && len(c.asking) == 0
	x.mu.Unlock()
	if left < before {
		x.sayInTurn(c, c.s, c.id, raw, final)
		x.suspendInTurn(c)
	}
	<-c.s.turn
}

// say passes an event to the runner. c is nil for an event that belongs to no request.
func (x *simBox) say(c *simCall, s *simSession, stream storage.StreamID, raw []byte, final bool) {
	s.turn <- struct{}{}
	x.sayInTurn(c, s, stream, raw, final)
	<-s.turn
}

func (x *simBox) sayInTurn(c *simCall, s *simSession, stream storage.StreamID, raw []byte, final bool) {
	e := frame.Event{Session: s.id, Stream: stream, Raw: raw, Final: final}
	x.mu.Lock()
	e.Ticket = s.ticket
	x.mu.Unlock()
	if c != nil {
		e.Ticket = c.ticket
	}
	x.handInTurn(c, e)
	if final {
		x.over(c)
	}
}

func (x *simBox) handInTurn(c *simCall, e frame.Event) {
	x.mu.Lock()
	if x.gone || c != nil && c.stopped {
		x.mu.Unlock()
		return
	}
	x.last = time.Now()
	x.w.ledger.says(e.Session, e.Stream, utterance{by: x.p.name, raw: string(e.Raw), due: len(x.calls) > 0})
	x.mu.Unlock()
	x.runner.Event(e)
}

// over forgets a call that sends no more events.
func (x *simBox) over(c *simCall) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c.stopped = true
	c.cancel()
	if x.calls[c.id] == c { // and not the next round of it
		delete(x.calls, c.id)
	}
	x.last = time.Now()
}

func (x *simBox) Answer(s storage.ID, question string, raw []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.sessions[s]; s != nil && s.questions[question] != nil {
		select {
		case s.questions[question] <- raw:
		default: // it has one
		}
	}
}

func (x *simBox) CloseStream(_ storage.ID, stream storage.StreamID) {
	x.mu.Lock()
	c := x.calls[stream]
	x.mu.Unlock()
	x.w.ledger.closed.add(stream)
	if c != nil {
		x.over(c)
	}
}

// inFlight returns the calls of a session, or with "" all calls, in the same order in each
// run.
func (x *simBox) inFlight(s storage.ID) (open []*simCall) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.calls {
		if s == "" || c.s.id == s {
			open = append(open, c)
		}
	}
	slices.SortFunc(open, func(a, b *simCall) int { return strings.Compare(string(a.id), string(b.id)) })
	return open
}

func (x *simBox) known() []storage.ID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Sorted(maps.Keys(x.sessions))
}

// Halt implements Executor. Nobody stops processes in these worlds.
func (*simBox) Halt(frame.Halt) {}

func (x *simBox) StopSession(s storage.ID) {
	for _, c := range x.inFlight(s) {
		x.w.wg.Go(func() { x.fail(c, "the session was stopped") })
	}
}

func (x *simBox) fail(c *simCall, why string) {
	x.mu.Lock()
	open := slices.Clone(c.open)
	for _, r := range c.asking {
		open = append(open, simMessage(r.raw).ID)
	}
	c.open, c.asking = slices.Clone(open), nil
	x.mu.Unlock()
	for _, id := range open {
		x.respond(c, id, wire.ErrorResponse(id, &wire.Error{
			Code: wire.CodeInternal, Message: why, Data: map[string]any{"by": x.p.name},
		}))
	}
}

func (x *simBox) Questions() map[storage.ID][]string {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[storage.ID][]string{}
	for id, s := range x.sessions {
		for q := range s.questions {
			out[id] = append(out[id], q)
		}
		slices.Sort(out[id])
		if len(out[id]) == 0 {
			delete(out, id)
		}
	}
	return out
}

func (x *simBox) IdleSince() (time.Time, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.sessions {
		if len(s.questions) > 0 {
			return x.last, false
		}
	}
	return x.last, len(x.calls) == 0
}

// labelOf returns the label that a message in a simulated world carries.
func labelOf(raw []byte) string {
	_, rest, _ := strings.Cut(string(raw), `"label":"`)
	label, _, _ := strings.Cut(rest, `"`)
	return label
}
