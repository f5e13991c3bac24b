package relay_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// The simulation runs all of the relay, both ends and the session core above it, in
// worlds with virtual time. A world has a store, a gateway, a fleet, boxes and clients.
// Frames come late, twice, in any order or never, and everything that can die dies. The
// seed determines what happens in a world. Every actor draws from a generator of its
// own, and so does the runner for its pauses. So the order in which goroutines run
// changes nothing.
//
//	go test ./shared/backend/relay -run Simulation -sim.seeds 5000            more worlds
//	go test ./shared/backend/relay -run Simulation -sim.seed 77 -sim.trace -v   one, with its story
//
// The worlds are in these files: sim_random_test.go (actors and faults),
// sim_store_test.go, sim_gateway_test.go, sim_fleet_test.go, sim_box_test.go (what
// a box executes), sim_client_test.go, sim_listen_test.go (GET), sim_socket_test.go, and
// sim_check_test.go (the promises). Other worlds are those of sim_pushonce_test.go
// (clients that read slowly), sim_pause_test.go (processes that stand still) and
// sim_clock_test.go (clocks that are wrong).
var (
	simSeeds = flag.Int("sim.seeds", 40, "simulate this many worlds; the default is fewer with -short or -race, and 1 with -sim.seed")
	simSeed  = flag.Uint64("sim.seed", 1, "the first world's seed")
	simTrace = flag.Bool("sim.trace", false, "tell the story of each world")
)

// found are seeds whose worlds showed a defect, or would show one if some rule were missing.
// 124: a repeated put brings back the item of a call that has ended. 281: progress after a lost taken frame without a trace. 990: an
// item claimed by a pull that came after a clean sleep. 1961: a runner fenced by any
// conflict. 4956: a request freed without a look at the log. 603370: a cancellation that
// was posted, and whose sender was then told to send it again.
var found = [...]uint64{124, 281, 990, 1961, 4956, 603370}

// worlds returns the seeds that the flags ask for, by default a share of the usual
// number. The seeds in found are among them, unless the flags name the first seed or the
// race detector looks.
func worlds(share int, found []uint64) []uint64 {
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	n := *simSeeds
	switch {
	case given["sim.seed"] && !given["sim.seeds"]:
		n = 1
	case !given["sim.seeds"]:
		n = fewer(n / share)
	}
	var seeds []uint64
	for seed := *simSeed; seed < *simSeed+uint64(max(n, 1)); seed++ {
		seeds = append(seeds, seed)
	}
	if !given["sim.seed"] && !raceDetector {
		seeds = append(seeds, found...)
	}
	slices.Sort(seeds)
	return slices.Compact(seeds)
}

// fewer returns how many of n trials a run has time for. With the race detector each trial
// takes ten times as long, so a few must do; make worlds runs them all without it.
func fewer(n int) int {
	switch {
	case raceDetector:
		n /= 20
	case testing.Short():
		n /= 10
	}
	return max(n, 1)
}

func TestSimulation(t *testing.T) {
	simulate(t, worlds(1, found[:]), func(*world) {})
}

// simulate runs a world for each seed, in a test of its own. prepare changes a new world
// before it runs.
func simulate(t *testing.T, seeds []uint64, prepare func(w *world)) {
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, seed)
				prepare(w)
				w.run()
			})
		})
	}
}

// only replaces the faults of a world, except for trouble and limited.
func (w *world) only(f faults) {
	f.trouble, f.limited = w.trouble, w.limited
	w.faults = f
}

// world is one simulated installation.
type world struct {
	t     *testing.T
	seed  uint64
	begun time.Time
	faults
	calm   atomic.Bool  // faults have stopped
	afoot  atomic.Int64 // the work under way: requests in functions, frames, late writes
	closed atomic.Bool  // everything is over; listeners read to the end

	ctx    context.Context // context of everything outside functions
	cancel context.CancelFunc
	wg     sync.WaitGroup

	memory  *storagetest.Memory
	config  relayserver.Config
	idle    time.Duration // until a box sleeps
	repeats bool          // clients give their calls keys, and the processes ask nothing
	slowly  bool          // clients of sockets read large amounts slowly
	clock   *simClock     // the clock of hosts and runners, nil for the true one
	most    int           // boxes that a server may have
	chatty  int           // one in this many messages of a box belongs to no request
	sleepy  chan struct{} // closed, and replaced by a new channel, when a runner says bye
	inside  *simInside    // the program that has the boxes inside; nil: there is none
	gateway *simGateway
	fleet   *simFleet
	ledger  *ledger
	clients []*simClient
	sockets []*simSocket

	mu     sync.Mutex
	story  []string
	broken []string
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, seed: seed, begun: time.Now(), memory: storagetest.NewMemory(), ledger: &ledger{
		owners: map[storage.ID]string{}, labels: map[storage.StreamID]string{}, byID: map[simRound]string{}, runs: map[string]execution{},
		spoken: map[storage.ID]map[speaker][]utterance{},
	}}
	w.ctx, w.cancel = context.WithCancel(t.Context())
	rng := w.random("world")
	w.faults = drawFaults(rng)
	w.idle = time.Second + draw(rng, []time.Duration{3 * time.Second, 30 * time.Second}[rng.IntN(2)])
	w.chatty = 1 + rng.IntN(6)
	w.most = []int{1, 2, 4}[w.random("boxes").IntN(3)]
	w.sleepy = make(chan struct{})
	w.gateway = &simGateway{w: w, conns: map[string]*simConn{}}
	w.fleet = &simFleet{w: w}
	sealer, err := relayserver.NewSealer(fmt.Appendf(nil, "the secret of simulated world %d ....", seed))
	commontest.OK(t, err)
	w.config = relayserver.Config{
		Store: newSimStore(w), Poster: w.gateway, Fleet: w.fleet, Sealer: sealer,
		Launch:       func(storage.Box) (map[string]string, error) { return map[string]string{}, nil },
		StartTimeout: time.Minute, Log: w.logger("host"),
	}
	boxes, sessions := 1+rng.IntN(2), 1+rng.IntN(4)
	for i := range sessions {
		server := fmt.Sprintf("server%d", 1+i%boxes)
		w.clients = append(w.clients, newSimClient(w, fmt.Sprintf("s%d", i+1), server))
	}
	return w
}

// run runs the world with its faults, and then without them until it is quiet.
func (w *world) run() {
	w.tell("world", "faults %+v, idle %s, %d clients", w.faults, w.idle, len(w.clients))
	var busy sync.WaitGroup
	for _, c := range w.clients {
		busy.Go(c.run)
	}
	for _, s := range w.sockets {
		busy.Go(s.run)
	}
	w.wg.Go(w.sweepEveryMinute)
	w.wg.Go(w.fleet.killAtRandom)
	w.wg.Go(w.inside.crashAtRandom)
	limit := time.AfterFunc(w.trouble+6*time.Hour, func() {
		w.breaks("clients still wait, six hours after the last fault")
		w.cancel()
	})
	calm := time.AfterFunc(w.trouble, func() {
		w.tell("world", "no more faults")
		w.calm.Store(true)
	})
	busy.Wait()
	calm.Stop()
	limit.Stop()
	w.calm.Store(true)
	w.tell("world", "all clients have done what they wanted")
	quiet := w.ctx.Err() == nil && w.becomesQuiet()
	w.closed.Store(true)
	for _, c := range w.clients {
		c.listening.Wait()
	}
	for _, s := range w.sockets {
		s.finish()
	}
	quiet = quiet && w.becomesQuiet()
	if quiet {
		w.check()
	}
	w.cancel()
	for _, p := range w.fleet.running() {
		p.kill()
	}
	w.wg.Wait()
	w.report()
}

// simQuiet is how long it may take until everything has ended and every box sleeps. It is
// a little longer than a request waits for a box, or for an answer.
const simQuiet = 45 * time.Minute

// becomesQuiet waits until nothing runs and nothing is on its way. It returns false if
// that takes longer than simQuiet.
func (w *world) becomesQuiet() bool {
	for range simQuiet / time.Minute {
		if w.noise() == "" {
			return true
		}
		_ = nap(w.ctx, time.Minute)
	}
	w.breaks("the world did not become quiet within %s without faults: %s", simQuiet, w.noise())
	return false
}

// bye wakes the actors that wait in nextBye: they act right when a runner says bye.
func (w *world) bye() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.sleepy)
	w.sleepy = make(chan struct{})
}

// nextBye waits until a runner says bye, at most for patience.
func (w *world) nextBye(patience time.Duration) {
	w.mu.Lock()
	sleepy := w.sleepy
	w.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-sleepy:
	case <-timer.C:
	case <-w.ctx.Done():
	}
}

func (w *world) boxes() (all []storage.BoxID) {
	for _, c := range w.clients {
		for n := range w.most {
			all = append(all, storage.BoxFor(c.caller.Tenant, c.caller.Server.Name).Numbered(n))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// noise describes everything that is not quiet yet. It returns "" if everything is.
func (w *world) noise() string {
	var noise []string
	for _, id := range w.boxes() {
		b, err := w.memory.Box(w.ctx, id)
		items, err2 := w.memory.Items(w.ctx, id)
		if err != nil || err2 != nil || b.State != storage.Asleep {
			noise = append(noise, fmt.Sprintf("box %s is %s", b.ID, b.State))
		}
		for _, it := range items {
			noise = append(noise, fmt.Sprintf("item %s of %s is %s by generation %d", w.name(it.ID), b.ID, it.State, it.Gen))
		}
	}
	if n := w.afoot.Load(); n > 0 {
		noise = append(noise, fmt.Sprintf("%d things are under way", n))
	}
	for _, p := range w.fleet.unstopped() {
		noise = append(noise, fmt.Sprintf("task %s has not stopped", p.name))
	}
	slices.Sort(noise)
	return strings.Join(slices.Compact(noise), ", ")
}

func (w *world) sweepEveryMinute() {
	for n := 1; nap(w.ctx, time.Minute) == nil; n++ {
		w.function(fmt.Sprintf("sweep%d", n), 5*time.Minute, func(ctx context.Context, a *actor) {
			if err := relayserver.NewSweeper(w.config).Sweep(ctx); err != nil {
				a.tell("sweep: %v", err)
			}
		})
	}
}

// tell adds a line to the story of the world, which -sim.trace prints.
func (w *world) tell(who, format string, args ...any) {
	if !*simTrace {
		return
	}
	line := fmt.Sprintf("%14s  %-22s %s", time.Since(w.begun), who, fmt.Sprintf(format, args...))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story = append(w.story, line)
}

// breaks and breaksIf record that a promise was broken.
func (w *world) breaks(format string, args ...any) {
	w.tell("BROKEN", format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

func (w *world) breaksIf(broken bool, format string, args ...any) {
	if broken {
		w.breaks(format, args...)
	}
}

func (w *world) report() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *simTrace {
		w.t.Log("\n" + strings.Join(w.story, "\n"))
	}
	for _, b := range w.broken {
		w.t.Errorf("seed %d: %s", w.seed, b)
	}
}

// logger writes the log of the code under test into the log of the world.
func (w *world) logger(who string) *slog.Logger {
	if !*simTrace {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(&teller{w, who}, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch v := a.Value.Any().(type) {
			case time.Time:
				return slog.Attr{}
			case storage.StreamID:
				return slog.String(a.Key, w.name(v))
			case storage.ID:
				return slog.String(a.Key, w.ledger.owner(v))
			}
			return a
		},
	}))
}

type teller struct {
	w   *world
	who string
}

func (t *teller) Write(p []byte) (int, error) {
	t.w.tell(t.who, "log: %s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// name returns the label of the request that a stream belongs to. Unlike the stream's id,
// the label is the same in each run.
func (w *world) name(id storage.StreamID) string {
	if id == storage.Standalone {
		return "common"
	}
	return w.ledger.label(id)
}
