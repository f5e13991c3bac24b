package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// counted is a host, a relay function and a runner whose costs are counted: round trips to
// the store, and messages of the relay. All three are real, on a network without faults.
// Reads that wait are counted apart. docs/costs.md has the figures.
type counted struct {
	healthy
	unasked
	store *storagetest.Counting
	host  *sessions.Manager
	relay *relayserver.Handler

	mu     sync.Mutex
	up     frames // of the runner
	down   frames // answers and posts
	conn   *countedConn
	runner *runner.Runner
	life   sync.WaitGroup
	work   sync.WaitGroup
	busy   int
	idle   time.Time
	posted int    // messages to the client
	ticket string // of the newest request

	runnerLog *slog.Logger // of the runner, nil for none
}

type frames = map[frame.Type]int

type costs struct {
	Reads, Writes int
	Up, Down      frames
}

func countedOn(t *testing.T, store storage.Store, change ...func(*relayserver.Config)) *counted {
	c := &counted{store: storagetest.NewCounting(store), idle: time.Now()}
	config := hostOver(t, c.store, c, c)
	config.Clients = clientsOf{c}
	for _, f := range change {
		f(&config)
	}
	c.host = sessions.New(c.store, relayserver.NewBackend(config), sessions.Limits{})
	c.relay = relayserver.NewHandler(config)
	c.reset()
	return c
}

func (c *counted) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store.Reset()
	c.up, c.down = frames{}, frames{}
}

func (c *counted) costs() costs {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.store.Counts()
	return costs{Reads: n.Reads, Writes: n.Writes, Up: maps.Clone(c.up), Down: maps.Clone(c.down)}
}

func (c *counted) count(down bool, data []byte) {
	f, err := frametest.Decode(data)
	if err != nil {
		panic(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if down {
		c.down[f.Type]++
	} else {
		c.up[f.Type]++
	}
}

type countedConn struct {
	*inbound
	c *counted
}

func (k *countedConn) Send(data []byte) error {
	k.c.count(false, data)
	k.c.work.Go(func() {
		reply, err := k.c.relay.Frame(context.Background(), "the-connection", data)
		if err != nil {
			panic(err)
		}
		if reply != nil {
			k.c.count(true, reply)
			k.in <- reply
		}
	})
	return nil
}

// Post implements relay.Poster.
func (c *counted) Post(_ context.Context, _ string, data []byte) error {
	c.count(true, data)
	c.conn.in <- data
	return nil
}

// Run implements fleet.Fleet.
func (c *counted) Run(ctx context.Context, t fleet.Task) (string, error) {
	c.conn = &countedConn{newInbound(), c}
	config, err := runnerOf(t, c, func(context.Context, string, http.Header) (runner.Conn, error) { return c.conn, nil })
	if err != nil {
		return "", err
	}
	config.Log = c.runnerLog
	c.runner = runner.New(config)
	own := context.WithoutCancel(ctx)
	c.life.Go(func() { _ = c.runner.Run(own) })
	return "task", nil
}

// Deliver implements relay.Executor. With {"sleep": ms, "progress": n} in the params it
// waits and sends progress before it answers.
func (c *counted) Deliver(d runner.Delivery) {
	m, err := wire.Parse(d.Raw)
	if err != nil || m.Kind != wire.Request {
		return
	}
	c.mu.Lock()
	c.busy++
	c.ticket = d.Ticket
	c.mu.Unlock()
	c.work.Go(func() {
		result := "{}"
		if m.Method == wire.MethodInitialize {
			result = handshake
			c.runner.Status(runner.StatusReport{
				Session: d.Session, Ticket: d.Ticket, Detail: wire.V20251125, Handshake: json.RawMessage(handshake),
			})
		}
		var do struct{ Sleep, Progress int }
		_ = json.Unmarshal(m.Params, &do)
		for range do.Progress {
			c.runner.Event(runner.Event{Session: d.Session, Stream: d.ID, Ticket: d.Ticket, Raw: []byte(`{"progress":1}`)})
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Duration(do.Sleep) * time.Millisecond)
		c.mu.Lock()
		c.busy--
		c.idle = time.Now()
		c.mu.Unlock()
		c.runner.Event(runner.Event{
			Session: d.Session, Stream: d.ID, Ticket: d.Ticket, Final: true, Raw: wire.ResultResponse(m.ID, json.RawMessage(result)),
		})
	})
}

// lists reports what a fresh process of a session lists.
func (c *counted) lists(id storage.ID) {
	c.mu.Lock()
	ticket := c.ticket
	c.mu.Unlock()
	c.runner.Status(runner.StatusReport{Session: id, Ticket: ticket, Lists: "kind", Handshake: json.RawMessage(`{"tools/list":"hash"}`)})
	time.Sleep(time.Second)
}

func (c *counted) IdleSince() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idle, c.busy == 0
}

// end waits for the end of everything in this world.
func (c *counted) end() {
	time.Sleep(10 * time.Minute)
	c.life.Wait()
	c.work.Wait()
}

func (c *counted) send(t *testing.T, id storage.ID, raw string) {
	t.Helper()
	finish(t, c.accept(t, id, raw))
}

func callWith(params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":%s}`, params)
}
