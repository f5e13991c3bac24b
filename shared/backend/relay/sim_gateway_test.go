package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// simGateway is the WebSocket API between runners and the relay function. Each frame of a
// runner is an invocation of its own, and its answer goes back on the same connection.
// Posts go to the runner. Every step takes its own time, so messages overtake each other.
type simGateway struct {
	w     *world
	mu    sync.Mutex
	conns map[string]*simConn
}

// Limits of API Gateway.
const (
	gatewayMessage  = 131_072
	gatewayIdle     = 10 * time.Minute
	gatewayLife     = 2 * time.Hour
	gatewayFunction = 29 * time.Second
)

var errCut = errors.New("the connection is cut")

// simConn is one connection with both its ends. Either end may take it for open when it is
// not.
type simConn struct {
	g     *simGateway
	p     *simProc
	name  string
	a     *actor // the runner's sending end
	frame int
	in    chan []byte
	gone  chan struct{} // closed when the runner's end is closed

	mu      sync.Mutex
	here    bool      // open at the gateway
	there   bool      // open at the runner
	deaf    bool      // nothing passes any more
	left    time.Time // when the gateway closed it
	idle    *time.Timer
	endings []*time.Timer
}

func (g *simGateway) connect(p *simProc, a *actor) (*simConn, error) {
	if err := nap(p.ctx, a.takes(20*time.Millisecond)); err != nil {
		return nil, err
	}
	if p.dead.Load() || a.chance(g.w.dialFails) {
		return nil, errors.New("simulated: no connection")
	}
	name := fmt.Sprintf("%s/c%d", p.name, p.dials.Add(1))
	c := &simConn{
		g: g, p: p, name: name, a: g.w.actor(name), in: make(chan []byte, 4096), gone: make(chan struct{}), here: true, there: true,
	}
	g.mu.Lock()
	g.conns[name] = c
	g.mu.Unlock()
	c.limits()
	c.a.tell("connected")
	return c, nil
}

// limits sets the time at which the connection ends by itself.
func (c *simConn) limits() {
	w := c.g.w
	life := gatewayLife
	if w.limited {
		life = simLife
	}
	c.idle = time.AfterFunc(gatewayIdle, func() { c.tooLong("has been idle for 10 minutes") })
	c.endings = append(c.endings, time.AfterFunc(life, func() { c.tooLong("is open for too long") }))
	if w.cut > 0 {
		c.endings = append(c.endings, time.AfterFunc(draw(c.a.rng, 2*w.cut), func() { c.fault("is cut", c.close) }))
	}
	if w.deaf > 0 {
		c.endings = append(c.endings, time.AfterFunc(draw(c.a.rng, 4*w.deaf), func() {
			c.fault("goes deaf", func() { c.mu.Lock(); c.deaf = true; c.mu.Unlock() })
		}))
	}
}

// In a world with limits a connection lives for simLife. Runners renew theirs after simRenew.
const (
	simLife  = 7 * time.Minute
	simRenew = 6 * time.Minute
)

func (c *simConn) fault(what string, do func()) {
	if !c.g.w.calm.Load() {
		c.g.w.tell(c.name, "%s", what)
		do()
	}
}

// tooLong closes a connection at a limit. If nothing goes wrong, a runner never lets a
// connection reach a limit.
func (c *simConn) tooLong(why string) {
	c.g.w.breaksIf(c.g.w.none(), "connection %s %s", c.name, why)
	c.close()
}

func (c *simConn) close() {
	c.leave()
	c.hangUp()
}

func (c *simConn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.here {
		c.here, c.left = false, time.Now()
		c.idle.Stop()
		for _, t := range c.endings {
			t.Stop()
		}
		c.g.w.tell(c.name, "closed at the gateway")
	}
}

func (c *simConn) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.there {
		c.there = false
		close(c.gone)
	}
}

func (c *simConn) Close(reason string) error {
	c.g.w.tell(c.name, "closed by the runner: %s", reason)
	c.hangUp()
	c.g.w.wg.Go(func() {
		_ = nap(c.g.w.ctx, 5*time.Millisecond)
		c.leave()
	})
	return nil
}

func (c *simConn) Receive() ([]byte, error) {
	select {
	case <-c.gone:
		return nil, errCut
	default:
	}
	select {
	case data := <-c.in:
		c.standStill()
		c.p.refused(data)
		return c.g.w.clock.stamped(data, -c.g.w.clock.of(c.p.name)()), nil
	case <-c.gone:
		return nil, errCut
	}
}

// passes reports whether the connection carries messages now. Each call of it counts as
// use of the connection.
func (c *simConn) passes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.here && !c.deaf {
		c.idle.Reset(gatewayIdle)
	}
	return c.here && c.there && !c.deaf
}

// Send implements Conn. The frame becomes one invocation of the relay function, or two,
// or none.
func (c *simConn) Send(message []byte) error {
	w := c.g.w
	select {
	case <-c.gone:
		return errCut
	default:
	}
	w.breaksIf(len(message) > frame.MaxFrame, "a runner sends a frame of %d bytes", len(message))
	if err := nap(context.Background(), 50*time.Microsecond+draw(c.a.rng, 50*time.Microsecond)); err != nil {
		return err
	}
	c.standStill()
	c.frame++
	copies := 1
	if c.a.chance(w.frameTwice) {
		copies = 2
	}
	passes := c.passes()
	f, _ := frametest.Decode(message)
	if f.Type == frame.TypeHello {
		c.p.says(f.Link)
	}
	if f.Type == frame.TypeBye {
		w.bye()
	}
	for n := range copies {
		name := fmt.Sprintf("%s/f%d%s", c.name, c.frame, strings.Repeat("'", n))
		late := c.a.takes(2 * time.Millisecond)
		if (f.Type == frame.TypeHello || f.Type == frame.TypeBye) && c.a.rng.IntN(4) == 0 {
			late += draw(c.a.rng, 3*time.Second) // the most inconvenient delay
		}
		if n > 0 || c.a.chance(w.frameLate) {
			late += draw(c.a.rng, []time.Duration{50 * time.Millisecond, 5 * time.Second, 2 * time.Minute}[c.a.rng.IntN(3)])
		}
		if lost := c.a.chance(w.frameLost); lost || !passes {
			w.tell(name, "LOST %s", describe(w, message))
			continue
		}
		w.tell(name, "sent %s", describe(w, message))
		w.afoot.Add(1)
		w.wg.Go(func() { c.invoke(name, late, message) })
	}
	return nil
}

func (c *simConn) invoke(name string, late time.Duration, message []byte) {
	w := c.g.w
	defer w.afoot.Add(-1)
	if nap(w.ctx, late) != nil {
		return
	}
	w.function(name, gatewayFunction, func(ctx context.Context, a *actor) {
		a.tell("handles %s", describe(w, message))
		w.ledger.handles(message, false)
		reply, err := relayserver.NewHandler(w.config).Frame(ctx, c.name, message)
		if reply != nil {
			w.ledger.handles(message, true)
		}
		switch {
		case err != nil:
			a.tell("failed: %v", err)
			w.breaksIf(w.none() && !w.slowly && !errors.Is(err, storage.Closed), "frame %s was not handled though nothing went wrong: %v", name, err)
			c.toRunner(a, fmt.Appendf(nil, `{"message":"Internal server error","connectionId":%q,"requestId":%q}`, c.name, name))
		case reply != nil && a.step(ctx) == nil:
			c.toRunner(a, reply)
		}
	})
}

func (c *simConn) toRunner(a *actor, data []byte) {
	w := c.g.w
	copies := 1
	if a.chance(w.postTwice) {
		copies = 2
	}
	for range copies {
		late := a.takes(2 * time.Millisecond)
		if a.chance(w.postLost) {
			a.tell("LOST %s to %s", describe(w, data), c.name)
			continue
		}
		a.tell("to %s: %s", c.name, describe(w, data))
		w.wg.Go(func() {
			if nap(w.ctx, late) != nil {
				return
			}
			if !c.passes() {
				w.tell(c.name, "lost, the connection is gone: %s", describe(w, data))
				return
			}
			c.in <- data
		})
	}
}

func (g *simGateway) Post(ctx context.Context, conn string, data []byte) error {
	a := actorOf(ctx)
	if err := a.step(ctx); err != nil {
		return err
	}
	if err := nap(ctx, a.takes(2*time.Millisecond)); err != nil {
		return err
	}
	data = g.w.clock.stamped(data, skewOf(ctx))
	if len(data) > gatewayMessage {
		return storage.Errorf(storage.TooLarge, "simulated: %d bytes", len(data))
	}
	g.mu.Lock()
	c := g.conns[conn]
	g.mu.Unlock()
	if c == nil {
		g.w.breaks("post to connection %q, which never was", conn)
		return storage.Errorf(storage.Closed, "simulated: no such connection")
	}
	c.mu.Lock()
	here, left := c.here, c.left
	c.mu.Unlock()
	switch {
	case here:
		c.toRunner(a, data)
	case time.Since(left) < time.Second && a.rng.IntN(2) == 0:
		a.tell("LOST, %s was just closed: %s", conn, describe(g.w, data))
	default:
		a.tell("410 from %s for %s", conn, describe(g.w, data))
		return storage.Errorf(storage.Closed, "simulated: connection %s is gone", conn)
	}
	if a.chance(g.w.postUnknown) {
		a.tell("the answer of the post is lost")
		return unavailable("the answer to a post was lost")
	}
	return a.step(ctx)
}

// describe returns the line about a frame for the story: its header, with names for ids and
// without tickets.
func describe(w *world, data []byte) string {
	if !*simTrace {
		return ""
	}
	f, err := frametest.Decode(data)
	if err != nil {
		return string(data)
	}
	if parts, ok := frame.Split(f.Payload, f.Lens); ok && len(parts) == 2 {
		w.ledger.learns(f.ID, parts[1])
	}
	text := fmt.Sprintf("%s gen %d link %d n %d seq %d of %s next %d fenced %t", f.Type, f.Gen, f.Link, f.N, f.Seq, w.ledger.owner(f.Session), f.Next, f.Fenced)
	for _, id := range slices.Concat(f.IDs, f.Closed, []storage.StreamID{f.ID}) {
		text += " " + w.name(id)
	}
	for _, it := range f.Items {
		text += fmt.Sprintf(" [%s %d+%d final %t]", w.name(it.Stream), it.First, len(it.Lens), it.Final)
	}
	for _, t := range f.Tickets {
		if t, err := w.config.Sealer.Open(t); err == nil {
			text += " taken " + w.name(t.Stream)
		}
	}
	return text
}
