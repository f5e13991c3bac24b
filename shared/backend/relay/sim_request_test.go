package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// response is the HTTP response of one function to one client. The client may be gone long
// before the function notices. Bytes that are written then are lost.
type response struct {
	mu    sync.Mutex
	open  bool
	begun chan struct{} // closed with the first byte
	once  sync.Once
}

func (p *response) write(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		f()
		p.once.Do(func() { close(p.begun) })
	}
}

// respond runs a function for a client that may leave before the function is done. If
// nothing goes wrong, the client stays at least until it has the first byte.
func (c *simClient) respond(name string, f func(ctx context.Context, a *actor, p *response)) {
	p := &response{open: true, begun: make(chan struct{})}
	over := make(chan struct{})
	patience := time.Hour
	if rng := c.w.random("client of " + name); rng.IntN(5) == 0 {
		patience = draw(rng, 20*time.Second)
	}
	c.w.wg.Go(func() {
		defer close(over)
		c.w.function(name, simFunction, func(ctx context.Context, a *actor) { f(ctx, a, p) })
	})
	if c.w.none() {
		select {
		case <-over:
		case <-p.begun:
		}
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
		c.w.tell(name, "the client is cut off")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = false
}

// simWindow is how long a function waits for a JSON answer before it commits to
// a stream.
const simWindow = time.Second

// post sends the request. The function tells the client that the request was accepted when
// Next returns for the first time, and not before.
func (r *simRequest) post(accept func(context.Context) (*sessions.Call, error)) {
	w := r.c.w
	r.begun = time.Now()
	w.afoot.Add(1)
	r.c.respond(r.label, func(ctx context.Context, a *actor, p *response) {
		defer w.afoot.Add(-1)
		a.tell("POST")
		call, err := accept(ctx)
		if err != nil {
			r.failed(a, err)
			return
		}
		r.learn(call)
		cursor := call.Cursor().String()
		events, err := call.Next(ctx, time.Now().Add(simWindow))
		if err == nil {
			err = a.step(ctx)
		}
		if err != nil {
			r.failed(a, err)
			return
		}
		r.mu.Lock()
		r.accepted = true
		r.mu.Unlock()
		a.tell("accepted, %d events", len(events))
		p.write(func() { r.primed(cursor, call.Stored()) })
		r.take(call, p, events)
		r.hold(ctx, a, call, p)
	})
}

func (r *simRequest) learn(call *sessions.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if call.Stored() {
		r.stream = call.Cursor().Stream
		r.c.w.ledger.learns(r.stream, fmt.Appendf(nil, `"label":%q`, r.label))
	}
}

func (r *simRequest) failed(a *actor, err error) {
	a.tell("not accepted: %v", err)
	r.mu.Lock()
	r.broken = err
	r.mu.Unlock()
	r.lost(err)
}

// lost reports a session that was lost, which no fault may cause.
func (r *simRequest) lost(err error) {
	if errors.Is(err, storage.NotFound) && !r.c.w.ledger.ended.has(r.c.name) && !isInit(r.label) {
		r.c.w.breaks("%s: the session of %s is lost: %v", r.label, r.c.name, err)
	}
}

func isInit(label string) bool { return strings.Contains(label, ".init") }

// hold follows a response until the function ends it.
func (r *simRequest) hold(ctx context.Context, a *actor, call *sessions.Call, p *response) {
	if call.Done() {
		return
	}
	until := time.Now().Add(call.Hold())
	for !call.Done() && time.Now().Before(until) {
		events, err := call.Next(ctx, until)
		if err != nil || a.step(ctx) != nil {
			a.tell("held no longer: %v", err)
			return
		}
		r.take(call, p, events)
	}
}

// primed records the id with which the client can come back.
func (r *simRequest) primed(cursor string, stored bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stored {
		r.last = cursor
	}
}

// take is the client's end of a response. It checks that each event comes once, and in
// order.
func (r *simRequest) take(call *sessions.Call, p *response, events []storage.Event) {
	p.write(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, e := range events {
			if want := storage.Index(len(r.seen) + 1); call.Stored() && e.Index != want {
				r.c.w.breaks("the client of %s sees event %d when event %d is the next", r.label, e.Index, want)
			}
			r.c.w.breaksIf(r.done, "the client of %s sees an event after the end: %s", r.label, e.Raw)
			r.c.w.tell(r.c.name, "sees event %d of %s: %.100s", e.Index, r.label, e.Raw)
			r.seen = append(r.seen, e)
			r.last, r.done = call.ID(e).String(), e.Final
			if m, err := wire.Parse(e.Raw); err == nil && m.Kind == wire.Request {
				r.c.w.answer(m, func(name string, answer []byte) { _ = r.c.tell(name, answer) })
			}
		}
	})
}

// resume polls until the end was seen.
func (r *simRequest) resume() {
	w := r.c.w
	for n := 1; w.ctx.Err() == nil; n++ {
		r.mu.Lock()
		last, done := r.last, r.done
		r.mu.Unlock()
		if done || last == "" || w.ledger.ended.has(r.c.name) {
			return
		}
		name := fmt.Sprintf("%s/poll%d", r.label, n)
		retry := 10 * time.Second
		over := false
		r.c.respond(name, func(ctx context.Context, a *actor, p *response) {
			call, err := w.host().Listen(ctx, r.c.caller, r.c.id, last)
			if err != nil || a.step(ctx) != nil {
				a.tell("%v", err)
				r.lost(err)
				p.write(func() { over = errors.Is(err, storage.NotFound) })
				return
			}
			cursor := call.Cursor().String()
			p.write(func() { r.primed(cursor, true); retry = call.Retry() })
			r.hold(ctx, a, call, p)
			r.mu.Lock()
			ended := r.done
			r.mu.Unlock()
			if call.Done() && !ended && a.step(ctx) == nil {
				p.write(func() {
					w.breaks("the client of %s is told that nothing more comes, and saw no end", r.label)
					over = true
				})
			}
		})
		if over {
			return // the session was never initialized, or was ended
		}
		_ = nap(w.ctx, retry+draw(w.random(name), 100*time.Millisecond))
	}
}

// answer answers a question after some time, through say.
func (w *world) answer(m wire.Message, say func(name string, answer []byte)) {
	question, _ := wire.String(m.ID)
	name := "answer " + simQuestion(m)
	w.wg.Go(func() {
		if nap(w.ctx, draw(w.random(name), 20*time.Second)) == nil {
			say(name, wire.ResultResponse(m.ID, fmt.Appendf(nil, `{"answer":%q}`, question)))
		}
	})
}
