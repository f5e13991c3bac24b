package relay_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestSimulationInside(t *testing.T) { simulate(t, worlds(2, nil), inOneProgram) }

// inOneProgram has everything of a world in one program: the boxes are inside of it, and its
// functions call them. Boxes end alone, as by a panic. The program is killed, with all that is
// in it, and starts again.
func inOneProgram(w *world) {
	f := w.faults
	w.only(faults{
		notStored: f.notStored, answerLost: f.answerLost, slow: f.slow, twice: f.twice, storedLate: f.storedLate, die: f.die,
		kill: f.kill, terminate: f.terminate, killAtWork: f.killAtWork, runFails: f.runFails, bootDies: f.bootDies, bootSlow: f.bootSlow,
		stoppedTwice: f.stoppedTwice,
	})
	w.limited = false
	runInside(w)
}

// simInside is the program of a world.
type simInside struct {
	w   *world
	rng *actor
	*relayserver.Inside

	mu   sync.Mutex
	ctx  context.Context // of the program as it runs now
	kill context.CancelFunc
}

func runInside(w *world) {
	in := &simInside{w: w, rng: w.actor("program")}
	in.ctx, in.kill = context.WithCancel(w.ctx)
	in.Inside = relayserver.NewInside(func(name string) context.Context {
		return context.WithValue(w.program(), actorKey{}, w.actor(name))
	})
	w.inside, w.config.Inside, w.config.IsInside = in, in.Inside, func(string) bool { return true }
	in.Serve(relayserver.NewHandler(w.config))
}

// program returns the context of everything in the program that serves clients.
func (w *world) program() context.Context {
	if w.inside == nil {
		return w.ctx
	}
	w.inside.mu.Lock()
	defer w.inside.mu.Unlock()
	return w.inside.ctx
}

// crashAtRandom kills the program. Its next start sweeps first.
func (in *simInside) crashAtRandom() {
	if in == nil || in.w.none() || in.rng.rng.IntN(2) == 0 {
		return
	}
	for nap(in.w.ctx, draw(in.rng.rng, 20*time.Minute)) == nil && !in.w.calm.Load() {
		in.w.tell("program", "KILLED")
		in.mu.Lock()
		in.kill()
		in.ctx, in.kill = context.WithCancel(in.w.ctx)
		in.mu.Unlock()
		for _, p := range in.w.fleet.unstopped() {
			p.silent.Store(true)
			p.kill()
		}
		in.w.function("start at "+time.Now().String(), time.Minute, func(ctx context.Context, a *actor) {
			if err := relayserver.NewSweeper(in.w.config).Sweep(ctx); err != nil {
				a.tell("sweep: %v", err)
			}
		})
	}
}

// liveInside runs a box in the program.
func (p *simProc) liveInside() {
	w, id := p.w, storage.BoxID(p.task.Box)
	link, err := w.inside.Join(frame.Joining{
		Box: id, Token: p.task.ClientToken, Executor: p.box, Idle: w.idle, Flush: 30 * time.Second, Guard: &p.guard,
	})
	if err == nil {
		p.box.runner = link
		p.mu.Lock()
		p.status.State, p.status.Started = fleet.Running, time.Now()
		p.mu.Unlock()
		err = link.Run(p.ctx)
	}
	w.tell(p.name, "Run returned %v", err)
	exit := 0
	if err != nil {
		exit = 1
	}
	w.inside.Left(p.task.Env)
	p.stop(exit, "")
	p.cancel(nil)
}

// simGuard is the guard of a box.
type simGuard struct {
	p        *simProc
	once     sync.Once
	panicked chan struct{}
}

func (g *simGuard) Go(do func())              { g.p.w.wg.Go(do) }
func (g *simGuard) Catch()                    {}
func (g *simGuard) Panicked() <-chan struct{} { return g.panicked }
