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

// TestSimulationOfRepeats has clients that give their calls keys and repeat them blindly: at
// any step of the call, from two sessions in two boxes and from a client of 2026-07-28, one
// after the other and at the same time. A quarter of the worlds has no faults, and a quarter is
// one program. No call is executed twice, each is answered, and all its answers are the same.
//
//	go test ./shared/backend/relay -run SimulationOfRepeats -sim.seed 1 -sim.seeds 10000 -v
func TestSimulationOfRepeats(t *testing.T) {
	simulate(t, worlds(1, nil), func(w *world) {
		w.most = 2
		if w.seed%5 == 0 {
			w.pauses = 0.01
		}
		w.repeats = true
		if w.seed%4 == 1 {
			inOneProgram(w)
		}
		w.clients = nil
		for i := range 1 + w.random("repeaters").IntN(2) {
			w.addRepeater(fmt.Sprintf("s%d", i+1))
		}
	})
}

// simRepeater is a client with two sessions and a client without one, all of one principal.
type simRepeater struct {
	w     *world
	name  string
	doors []*simClient // the last is of the modern era
}

func (w *world) addRepeater(name string) {
	r := &simRepeater{w: w, name: name}
	for n := range 3 {
		c := newSimClient(w, name, "server1")
		c.a, c.door = w.actor(fmt.Sprintf("%s at door %d", name, n)), fmt.Sprintf("-%d-", n)
		if n == 2 {
			c.caller.Transport = storage.Modern
			c.id = sessions.PinnedID(c.caller)
			w.ledger.owns(w, c.id, name)
		}
		r.doors = append(r.doors, c)
	}
	w.clients = append(w.clients, r.doors...)
	r.doors[0].acts = r.run
	for _, c := range r.doors[1:] {
		c.acts = func() {}
	}
}

func (r *simRepeater) run() {
	a := r.w.actor(r.name + " repeats")
	for _, c := range r.doors[:2] {
		if !c.open() {
			return
		}
	}
	for n := range 3 + a.rng.IntN(4) {
		k := &simKeyed{simRepeater: r, a: a, label: fmt.Sprintf("%s%sk%d", r.name, keyMark, n)}
		k.run()
		_ = nap(r.w.ctx, draw(a.rng, time.Minute))
	}
}

// keyMark is in the labels of calls with a key.
const keyMark = ".key."

func isKeyed(label string) bool { return strings.Contains(label, keyMark) }

// simKeyed is one call with a key.
type simKeyed struct {
	*simRepeater
	a     *actor
	label string

	mu      sync.Mutex
	tries   int
	answers []string // results and errors of the log, without ids
	errors  []error
}

// run repeats the call until it has an answer, and then twice more.
func (k *simKeyed) run() {
	var under sync.WaitGroup
	for n := 1; k.w.ctx.Err() == nil; n++ {
		for range 1 + k.a.rng.IntN(2) {
			k.tries++
			under.Go(func(n int) func() { return func() { k.try(n) } }(k.tries))
		}
		// The next repeat comes within a step of the call, or after its end.
		_ = nap(k.w.ctx, draw(k.a.rng, []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second, time.Minute}[k.a.rng.IntN(4)]))
		if n >= 3 {
			under.Wait()
			if k.answered() > 1 {
				break
			}
			_ = nap(k.w.ctx, draw(k.a.rng, 10*time.Second))
		}
	}
	under.Wait()
	k.check()
}

func (k *simKeyed) answered() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.answers)
}

func (k *simKeyed) try(n int) {
	w, name := k.w, fmt.Sprintf("%s/%d", k.label, n)
	rng := w.random(name)
	c := k.doors[rng.IntN(len(k.doors))]
	arguments := fmt.Sprintf(`{"level":"info","label":%q}`, k.label)
	if rng.IntN(2) == 0 {
		arguments = fmt.Sprintf(`{ "label":%q, "level":"inf\u006f"}`, k.label)
	}
	params := json.RawMessage(fmt.Sprintf(`{"label":%q,"name":"tool","arguments":%s,"idempotencyKey":"key"}`, k.label, arguments))
	params, _ = wire.Replace(params, []byte(fmt.Sprintf("%q", k.label)), "idempotencyKey")
	id := json.RawMessage(fmt.Sprintf(`"%s"`, name))
	w.afoot.Add(1)
	w.function(name, simFunction, func(ctx context.Context, a *actor) {
		defer w.afoot.Add(-1)
		var call *sessions.Call
		var err error
		if c.caller.Transport == storage.Modern {
			client := sessions.Client{Init: fmt.Appendf(nil, `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":%q,"version":"1"}}`, k.name)}
			if call, _, err = w.host().Send(ctx, c.caller, client, wire.MethodToolsCall, params); err == nil {
				id = fmt.Appendf(nil, "%q", call.Stream())
			}
		} else {
			call, err = w.host().Accept(ctx, c.caller, c.id, []wire.Message{simMessage(wire.NewRequest(id, wire.MethodToolsCall, params))}, false)
		}
		a.tell("%s at %s: %v", k.label, c.caller.Transport, err)
		if err == nil && !call.Repeat() {
			w.ledger.learns(call.Stream(), fmt.Appendf(nil, `"label":%q`, k.label))
		}
		for err == nil && a.step(ctx) == nil {
			var events []storage.Event
			if events, err = call.Next(ctx, time.Now().Add(draw(a.rng, 5*time.Minute))); len(events) > 0 {
				if last := events[len(events)-1]; last.Final && a.step(ctx) == nil {
					k.got(last.Raw, id)
					return
				}
			}
		}
		if a.step(ctx) == nil {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.errors = append(k.errors, err)
		}
	})
}

// got records an answer, as the client gets it.
func (k *simKeyed) got(raw []byte, id json.RawMessage) {
	if got := wire.Lookup(raw, "id"); !wire.SameID(got, id) {
		k.w.breaks("%s was sent with the id %s and answered with %s", k.label, id, raw)
	}
	if string(wire.Lookup(raw, "error", "data", sessions.DataUnsent)) == "true" {
		return // a repeat executes it
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	answer := wire.Lookup(raw, "result")
	if answer == nil {
		answer = wire.Lookup(raw, "error")
	}
	k.answers = append(k.answers, string(answer))
}

// check checks what became of the call. That it was not executed twice, the ledger checks.
func (k *simKeyed) check() {
	if k.w.ctx.Err() != nil {
		return
	}
	slices.Sort(k.answers)
	if all := slices.Compact(slices.Clone(k.answers)); len(all) != 1 {
		k.w.breaks("%s has %d answers: %.300q", k.label, len(all), all)
		return
	}
	_, ran := k.w.ledger.executed(k.label)
	result := byOf([]byte(`{"result":`+k.answers[0]+`}`)) != ""
	k.w.breaksIf(result && !ran, "%s was answered and not executed", k.label)
	if !k.w.none() {
		return
	}
	k.w.breaksIf(!result, "%s has the answer %s though nothing went wrong", k.label, k.answers[0])
	for _, err := range k.errors {
		var rpc *wire.Error
		if running := sessions.StillRunning(); !errors.As(err, &rpc) || rpc.Message != running.Message {
			k.w.breaks("%s failed though nothing went wrong: %v", k.label, err)
		}
	}
}
