package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// simFleet runs boxes: the real Runner over simulated connections, with a simulated box. A
// start may fail, have no clear outcome or happen twice. Boxes die.
type simFleet struct {
	w     *world
	mu    sync.Mutex
	procs []*simProc
}

// simProc is one task: a runner and its box.
type simProc struct {
	w      *world
	name   string
	task   fleet.Task
	box    *simBox
	ctx    context.Context
	cancel context.CancelCauseFunc
	dead   atomic.Bool // killed: nothing it does has an effect
	dials  atomic.Int64
	link   atomic.Int64 // of its newest hello
	guard  simGuard     // of a box inside
	silent atomic.Bool  // nobody is told that it has stopped

	mu     sync.Mutex
	status fleet.Status
	slept  bool // its Run returned nil before anything killed it
}

var (
	errKilled     = errors.New("simulated: killed")
	errTerminated = errors.New("simulated: terminated")
)

func (f *simFleet) Run(ctx context.Context, t fleet.Task) (string, error) {
	a := actorOf(ctx)
	if err := a.step(ctx); err != nil {
		return "", err
	}
	if err := nap(ctx, a.takes(100*time.Millisecond)); err != nil {
		return "", err
	}
	if a.chance(f.w.runFails) {
		a.tell("starting a task fails")
		return "", []error{fleet.ErrUnavailable, fleet.ErrCapacity}[a.rng.IntN(2)]
	}
	p := f.started(t.ClientToken)
	if p == nil {
		p = f.start(t)
		if a.chance(f.w.runTwice) {
			f.start(t)
		}
	}
	if a.chance(f.w.runUnknown) {
		a.tell("the answer to the start of a task is lost")
		return "", fleet.ErrUnavailable
	}
	return p.status.ID, a.step(ctx)
}

func (f *simFleet) started(token string) *simProc {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.procs {
		if p.task.ClientToken == token {
			return p
		}
	}
	return nil
}

func (f *simFleet) start(t fleet.Task) *simProc {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := fmt.Sprintf("p%d", len(f.procs)+1)
	p := &simProc{w: f.w, name: name, task: t, status: fleet.Status{
		ID: "task-" + name, ClientToken: t.ClientToken, Box: t.Box, Server: t.Server, State: fleet.Pending,
	}}
	p.guard = simGuard{p: p, panicked: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancelCause(f.w.ctx)
	f.procs = append(f.procs, p)
	f.w.tell(name, "started for box %s, generation %s", t.Box, t.Env[frame.EnvGeneration])
	f.w.wg.Go(p.live)
	return p
}

// live runs a task from start to end. It does the work of infra/runner.
func (p *simProc) live() {
	w := p.w
	a := w.actor(p.name)
	boot := 300*time.Millisecond + draw(a.rng, 5*time.Second)
	if p.task.Place == fleet.Inside {
		boot = draw(a.rng, 20*time.Millisecond)
		defer w.inside.Left(p.task.Env)
	}
	if a.chance(w.bootSlow) {
		boot += draw(a.rng, 3*time.Minute)
	}
	if nap(p.ctx, boot) != nil || a.chance(w.bootDies) {
		p.stop(1, "")
		return
	}
	gen, err := strconv.ParseInt(p.task.Env[frame.EnvGeneration], 10, 64)
	w.breaksIf(err != nil, "a task was started for generation %q", p.task.Env[frame.EnvGeneration])
	p.box = &simBox{
		w: w, p: p, a: w.actor(p.name + "/box"), sessions: map[storage.ID]*simSession{}, calls: map[storage.StreamID]*simCall{}, last: time.Now(),
	}
	if p.task.Place == fleet.Inside {
		p.liveInside()
		return
	}
	dialing := w.actor(p.name + "/dial")
	c := runner.Config{
		URL: "ws://simulated", Box: storage.BoxID(p.task.Env[frame.EnvBox]), Gen: storage.Generation(gen),
		Token: p.task.Env[frame.EnvToken], Task: p.status.ID, Executor: p.box, Idle: w.idle, Log: w.logger(p.name),
		Rand: w.random(p.name + "/runner"),
		Dial: func(context.Context, string, http.Header) (runner.Conn, error) {
			c, err := w.gateway.connect(p, dialing)
			if err != nil {
				return nil, err
			}
			return c, nil
		},
	}
	if w.limited {
		c.RenewAfter = simRenew
	}
	link := runner.New(c)
	p.box.runner = link
	p.mu.Lock()
	p.status.State, p.status.Started = fleet.Running, time.Now()
	p.mu.Unlock()
	err = p.box.runner.Run(p.ctx)
	w.tell(p.name, "Run returned %v", err)
	exit := 1
	switch {
	case err == nil:
		exit = 0
	case errors.Is(err, runner.ErrFenced):
		exit = 3
		if b, err := w.memory.Box(w.ctx, c.Box); err == nil && b.State == storage.Awake && b.Runner == link.ID() {
			w.breaks("runner %s was fenced though nobody has taken its place", p.name)
		}
	case w.none() && w.ctx.Err() == nil:
		w.breaks("runner %s ended though nothing went wrong: %v", p.name, err)
	}
	p.stop(exit, "")
	p.cancel(nil)
}

// says notes the link of a hello. It keeps the highest, because a runner with two
// connections may send an older hello again after a newer one.
func (p *simProc) says(link int64) {
	for newest := p.link.Load(); link > newest && !p.link.CompareAndSwap(newest, link); {
		newest = p.link.Load()
	}
}

// fencedWithin is how long a runner may go on after the answer that fences it.
const fencedWithin = time.Second

// refused checks that the runner ends soon after it gets a fence for its newest hello. A
// fence for an older hello ends nothing: the runner then asks again. refused skips acks,
// because the fence in an ack for a batch that came twice ends nothing. In worlds with
// pauses it checks nothing, because a newer hello can be on its way for long.
func (p *simProc) refused(data []byte) {
	if p.w.pauses > 0 || !bytes.Contains(data, []byte("fenced")) {
		return
	}
	f, err := frametest.Decode(data)
	if err != nil || f.Type != frame.TypeFenced || f.Link != p.link.Load() {
		return
	}
	time.AfterFunc(fencedWithin, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.status.State != fleet.Stopped && f.Link == p.link.Load() {
			p.w.breaks("runner %s goes on %s after it was fenced", p.name, fencedWithin)
			return
		}
	})
}

// stop records the end of a task, and makes the fleet report it.
func (p *simProc) stop(exit int, signal string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.State == fleet.Stopped {
		return
	}
	p.status.State, p.status.Stopped, p.status.ExitCode, p.status.Signal = fleet.Stopped, time.Now(), exit, signal
	p.slept = exit == 0 && p.ctx.Err() == nil
	w, status := p.w, p.status
	a := w.actor(p.name + "/stopped")
	times := 1
	if a.chance(w.stoppedTwice) {
		times = 2
	}
	if a.chance(w.stoppedLost) || p.silent.Load() {
		times = 0
	}
	for n := range times {
		after := draw(a.rng, 5*time.Second)
		w.wg.Go(func() {
			if nap(w.ctx, after) != nil {
				return
			}
			w.function(fmt.Sprintf("%s/stopped%d", p.name, n+1), time.Minute, func(ctx context.Context, a *actor) {
				a.tell("the fleet says that %s has stopped", p.name)
				if err := relayserver.NewSweeper(w.config).Stopped(ctx, status); err != nil {
					a.tell("sweeper: %v", err)
				}
			})
		})
	}
}

// kill ends a task at once, as SIGKILL does. The gateway notices late or never.
func (p *simProc) kill() {
	if p.dead.Swap(true) {
		return
	}
	p.w.tell(p.name, "KILLED")
	p.guard.once.Do(func() { close(p.guard.panicked) })
	a := p.w.actor(p.name + "/killed")
	p.stop(-1, "SIGKILL")
	if p.box != nil {
		p.box.mu.Lock()
		p.box.gone = true
		p.box.mu.Unlock()
	}
	for n := range p.dials.Load() {
		p.w.gateway.mu.Lock()
		c := p.w.gateway.conns[fmt.Sprintf("%s/c%d", p.name, n+1)]
		p.w.gateway.mu.Unlock()
		c.hangUp()
		if a.rng.IntN(4) > 0 {
			time.AfterFunc(draw(a.rng, 3*time.Second), c.leave)
		}
	}
	p.cancel(errKilled)
}

// terminate ends a task as SIGTERM does: its box ends as many requests as it can.
func (p *simProc) terminate() {
	p.w.tell(p.name, "TERMINATED")
	if p.box != nil {
		for _, id := range p.box.known() {
			p.box.StopSession(id)
		}
	}
	p.cancel(errTerminated)
}

func (f *simFleet) killAtRandom() {
	f.w.wg.Go(func() { f.endAtRandom("terminate", f.w.terminate, (*simProc).terminate) })
	f.endAtRandom("kill", f.w.kill, (*simProc).kill)
}

func (f *simFleet) endAtRandom(what string, every time.Duration, end func(*simProc)) {
	a := f.w.actor("fleet/" + what)
	for every > 0 && nap(f.w.ctx, draw(a.rng, 2*every)) == nil && !f.w.calm.Load() {
		if running := f.running(); len(running) > 0 {
			end(running[a.rng.IntN(len(running))])
		}
	}
}

// running and unstopped return the tasks that run, and those that start or run.
func (f *simFleet) running() []*simProc {
	return f.with(func(s fleet.Status) bool { return s.State == fleet.Running })
}

func (f *simFleet) unstopped() []*simProc {
	return f.with(func(s fleet.Status) bool { return s.State != fleet.Stopped })
}

func (f *simFleet) with(match func(fleet.Status) bool) []*simProc {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.procs), func(p *simProc) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !match(p.status)
	})
}

// Stop implements fleet.Fleet. In worlds whose clocks are right, the test fails if the
// relay stops a task.
func (f *simFleet) Stop(_ context.Context, id, _ string) error {
	f.w.breaksIf(f.w.clock == nil, "the relay stops a task")
	for _, p := range f.running() {
		if p.status.ID == id {
			p.terminate()
		}
	}
	return nil
}

func (f *simFleet) Traits(string) fleet.Traits { return fleet.Traits{Lists: true} }

func (f *simFleet) Tasks(ctx context.Context) ([]fleet.Status, error) {
	a := actorOf(ctx)
	if err := a.step(ctx); err != nil {
		return nil, err
	}
	if err := nap(ctx, a.takes(50*time.Millisecond)); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []fleet.Status
	for _, p := range f.procs {
		p.mu.Lock()
		s := p.status
		p.mu.Unlock()
		if s.State == fleet.Running && a.chance(f.w.falseLoss) {
			a.tell("%s is taken for dead", p.name)
			s.State, s.Stopped, s.ExitCode = fleet.Stopped, time.Now(), 1
		}
		if s.State != fleet.Stopped || time.Since(s.Stopped) < fleet.Remembered {
			out = append(out, s)
		}
	}
	return out, nil
}
