package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// TestOperators changes the definitions of servers while boxes run, so that their runners
// retire. In the worlds with an odd seed nothing else goes wrong: no request ends in an
// error, and none waits for longer than a start. In the others, operators also stop
// processes of sessions and of whole boxes, and runners and functions die.
//
//	go test ./shared/backend/relay -run Operators -sim.seed 1 -sim.seeds 5000 -v
func TestOperators(t *testing.T) {
	simulate(t, worlds(2, nil), func(w *world) {
		w.only(faults{})
		if w.seed%2 == 0 {
			w.only(faults{halts: time.Minute, die: 0.05, kill: 10 * time.Minute, bootDies: 0.05})
			w.addSockets()
		}
		w.operator = newSimOperator(w)
	})
}

// simOperator changes servers and stops processes. A nil operator does nothing.
type simOperator struct {
	w *world

	mu      sync.Mutex
	version int
	changed time.Time
}

func newSimOperator(w *world) *simOperator {
	o := &simOperator{w: w}
	w.config.Definition = o.definition
	return o
}

func (o *simOperator) current() string {
	if o == nil {
		return ""
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return fmt.Sprint("version ", o.version)
}

// definition returns the definition that a function knows. For ten seconds after a
// change, some functions still know the old one.
func (o *simOperator) definition(string) string {
	now := o.current()
	o.mu.Lock()
	defer o.mu.Unlock()
	since := time.Since(o.changed)
	if o.version > 0 && since < 10*time.Second && o.w.random(fmt.Sprint("definition after ", since)).IntN(2) == 0 {
		return fmt.Sprint("version ", o.version-1)
	}
	return now
}

func (o *simOperator) run() {
	if o == nil {
		return
	}
	o.w.wg.Go(o.change)
	o.halt()
}

// change gives the servers another definition. In most cases it also makes the runners
// ask the host for it at once.
func (o *simOperator) change() {
	a := o.w.actor("operator/change")
	for nap(o.w.ctx, draw(a.rng, 3*time.Minute)) == nil && !o.w.calm.Load() {
		o.mu.Lock()
		o.version++
		o.changed = time.Now()
		o.mu.Unlock()
		o.w.tell("operator", "%s of all servers", o.current())
		if a.rng.IntN(4) == 0 {
			continue // the next ping asks
		}
		for i, p := range o.w.fleet.running() {
			o.w.function(fmt.Sprintf("operator/%s/%d", o.current(), i), gatewayFunction, func(ctx context.Context, _ *actor) {
				b, err := o.w.config.Store.Box(ctx, storage.BoxID(p.task.Env[frame.EnvBox]))
				if err == nil && b.Conn != "" {
					_ = o.w.gateway.Post(ctx, b.Conn, frametest.Encode(frametest.Frame{Type: frame.TypeDrain, In: 1000}))
				}
			})
		}
	}
}

func (o *simOperator) halt() {
	a := o.w.actor("operator/halt")
	for n := 1; o.w.halts > 0 && nap(o.w.ctx, draw(a.rng, 2*o.w.halts)) == nil && !o.w.calm.Load(); n++ {
		running := o.w.fleet.running()
		if len(running) == 0 {
			continue
		}
		p := running[a.rng.IntN(len(running))]
		h := relayserver.Halt{By: "an operator", Within: []time.Duration{0, draw(a.rng, 30*time.Second)}[a.rng.IntN(2)]}
		if ids := p.box.known(); len(ids) > 0 && a.rng.IntN(2) == 0 {
			h.Session = ids[a.rng.IntN(len(ids))]
		}
		o.w.function(fmt.Sprintf("operator/halt%d", n), gatewayFunction, func(ctx context.Context, f *actor) {
			up, err := relayserver.NewBackend(o.w.config).Halt(ctx, storage.BoxID(p.task.Env[frame.EnvBox]), h)
			f.tell("halt %+v: %t, %v", h, up, err)
		})
	}
}

// Halt implements Executor. Calls that are in flight now and do not end in time end in an
// error.
func (x *simBox) Halt(s storage.ID, by string, within time.Duration) {
	for _, c := range x.inFlight(s) {
		x.w.wg.Go(func() {
			if nap(c.ctx, within) != nil && c.ctx.Err() != nil {
				return
			}
			x.fail(c, "it was stopped by "+by+"; whether the call was executed is not known")
		})
	}
}

// retiring returns the context of a runner's Run, and the function that ends it when the
// runner retires.
func (p *simProc) retiring() (context.Context, func()) {
	if p.w.operator == nil {
		return p.ctx, nil
	}
	ctx, cancel := context.WithCancelCause(p.ctx)
	return ctx, func() {
		cancel(errRetired)
	}
}

var errRetired = errors.New("simulated: retired")
