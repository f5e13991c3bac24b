package relay_test

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// faults are the things that may go wrong in a world. Each is the chance of one event, or
// the mean time between two. 0 means never.
type faults struct {
	trouble time.Duration // how long there are any

	notStored, answerLost, slow float64 // a call of the store
	twice, storedLate           float64 // a write: its caller repeats it, or it takes effect after it has failed
	die                         float64 // a function, somewhere
	frameLost, frameTwice       float64 // runner to host
	frameLate                   float64
	postLost, postTwice         float64 // host to runner
	postUnknown                 float64 // the answer of a post is lost
	dialFails                   float64
	cut, deaf                   time.Duration // a connection; deaf: neither end is told
	kill, terminate             time.Duration // a runner
	killAtWork                  float64       // a runner that has just got a delivery dies
	runFails, runUnknown        float64       // starting a task
	runTwice, bootDies          float64
	bootSlow                    float64
	stoppedLost, stoppedTwice   float64 // the fleet's report of a task that stopped is lost, or comes twice
	falseLoss                   float64 // the fleet reports that a living task has stopped
	pauses                      float64 // a function pauses at a step; if not 0, runners stand still at times too
	limited                     bool    // the gateway closes connections early, as if by its own limits
}

// none reports whether nothing goes wrong except the order and the speed of messages.
func (f faults) none() bool { return f == faults{trouble: f.trouble, limited: f.limited} }

// drawFaults draws the faults of a world. A quarter of the worlds has none. In another
// quarter the store is slow, and one of two things happens: boxes die when they have just
// got a delivery and posts are lost, or living boxes are reported as lost and go on beside
// their successors. The others have some kinds of faults, rare or frequent.
func drawFaults(rng *rand.Rand) faults {
	f := faults{trouble: 20*time.Minute + draw(rng, 40*time.Minute), limited: rng.IntN(2) == 0}
	switch rng.IntN(4) {
	case 0:
		return f
	case 1:
		f.slow, f.twice, f.killAtWork, f.postLost = 0.2*rng.Float64(), 0.2*rng.Float64(), 0.3*rng.Float64(), 0.2*rng.Float64()
		if rng.IntN(2) == 0 {
			f.killAtWork, f.falseLoss, f.frameTwice, f.frameLate = 0, 0.5*rng.Float64(), 0.2*rng.Float64(), 0.2*rng.Float64()
		}
		return f
	}
	often := []float64{0.3, 1, 3}[rng.IntN(3)]
	for _, p := range []*float64{
		&f.notStored, &f.answerLost, &f.slow, &f.twice, &f.storedLate, &f.die, &f.frameLost, &f.frameTwice, &f.frameLate, &f.postLost,
		&f.postTwice, &f.postUnknown, &f.dialFails, &f.runFails, &f.runUnknown, &f.runTwice, &f.bootDies, &f.bootSlow,
		&f.stoppedLost, &f.stoppedTwice, &f.falseLoss, &f.killAtWork,
	} {
		if rng.IntN(3) == 0 {
			*p = often * rng.Float64() * 0.05
		}
	}
	// These faults happen seldom, so they need a greater chance to be seen at all.
	f.falseLoss, f.killAtWork, f.frameTwice = 6*f.falseLoss, 3*f.killAtWork, 2*f.frameTwice
	f.die, f.runFails, f.runUnknown, f.runTwice = 4*f.die, 6*f.runFails, 6*f.runUnknown, 6*f.runTwice
	f.bootDies, f.bootSlow, f.stoppedLost, f.stoppedTwice = 6*f.bootDies, 6*f.bootSlow, 6*f.stoppedLost, 6*f.stoppedTwice
	for _, d := range []*time.Duration{&f.cut, &f.deaf, &f.kill, &f.terminate} {
		if rng.IntN(3) == 0 {
			*d = time.Duration(float64(10*time.Second+draw(rng, 10*time.Minute)) / often)
		}
	}
	return f
}

// draw returns a duration below d, fine enough that two things never happen at the same
// moment.
func draw(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

// random returns the generator of one actor.
func (w *world) random(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// nap lets virtual time pass.
func nap(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// actor does one step after the other: a function, a client, or an end of a connection.
// Only one goroutine may use it.
type actor struct {
	w      *world
	name   string
	rng    *rand.Rand
	left   int // steps until the actor dies, below 0 for never
	dead   bool
	skew   func() time.Duration // of the clock of its host
	cancel context.CancelFunc
}

func (w *world) actor(name string) *actor {
	return &actor{w: w, name: name, rng: w.random(name), left: -1}
}

func (a *actor) tell(format string, args ...any) { a.w.tell(a.name, format, args...) }

// chance reports whether a fault happens now.
func (a *actor) chance(p float64) bool { return a.rng.Float64() < p && !a.w.calm.Load() }

// takes draws how long a step takes. In most cases it is about d, in some up to a tenth of
// a second longer, and in a few up to three seconds longer.
func (a *actor) takes(d time.Duration) time.Duration {
	t := d/2 + draw(a.rng, d)
	switch x := a.rng.Float64(); {
	case x < 0.02:
		t += draw(a.rng, 3*time.Second)
	case x < 0.1:
		t += draw(a.rng, 100*time.Millisecond)
	}
	return t
}

type actorKey struct{}

// function runs f as one invocation of a function. The invocation may be one that dies.
// Then its context ends at one of its steps, and its later calls have no effect.
func (w *world) function(name string, limit time.Duration, f func(ctx context.Context, a *actor)) {
	a := w.actor(name)
	if a.chance(w.die) {
		a.left = a.rng.IntN(24)
	}
	if w.clock != nil {
		hosts := 1
		if w.clock.drift {
			hosts = 3
		}
		a.skew = w.clock.of("host " + string('0'+rune(a.rng.IntN(hosts))))
	}
	ctx, cancel := context.WithTimeout(context.WithValue(w.program(), actorKey{}, a), limit)
	defer cancel()
	a.cancel = cancel
	f(ctx, a)
}

// errDied is what a caller has instead of an answer. It does not ask to send anything again.
var errDied = errors.New("simulated: the function died")

// attempt is function for one that returns an error, unless it dies.
func (w *world) attempt(name string, limit time.Duration, f func(ctx context.Context) error) error {
	err := errDied
	w.function(name, limit, func(ctx context.Context, a *actor) {
		got := f(ctx)
		if a.tell("%v", got); ctx.Err() == nil && a.step(ctx) == nil {
			err = got
		}
	})
	return err
}

func actorOf(ctx context.Context) *actor { return ctx.Value(actorKey{}).(*actor) }

// step is called before and after each effect that a function has on the world. After an
// error the function does nothing more.
func (a *actor) step(ctx context.Context) error {
	if a.w.pauses > 0 && a.chance(a.w.pauses) {
		d := draw(a.rng, time.Minute)
		a.tell("stands still for %s", d)
		_ = nap(a.w.ctx, d)
	}
	if a.left == 0 && !a.dead {
		a.tell("dies")
		a.dead = true
		a.cancel()
	}
	a.left--
	return ctx.Err()
}

// unavailable returns the error with which a fault appears to the code under test.
func unavailable(what string) error {
	return storage.Errorf(storage.Unavailable, "simulated: %s", what)
}
