package native_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// mortal is the store of a process that dies at its nth write. From then on its calls
// have no effect. If after is set, the nth write itself still takes effect.
type mortal struct {
	storage.Store
	mu    sync.Mutex
	n     int
	after bool
	dead  bool
}

func (m *mortal) gone() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return storage.Errorf(storage.Unavailable, "the process is dead")
	}
	return nil
}

func (m *mortal) write(do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n--; m.n == 0 {
		if m.dead = true; m.after {
			_ = do()
		}
	}
	if m.dead {
		return storage.Errorf(storage.Unavailable, "the process is dead")
	}
	return do()
}

func (m *mortal) Append(ctx context.Context, b storage.Batch) error {
	return m.write(func() error { return m.Store.Append(ctx, b) })
}

func (m *mortal) PutItem(ctx context.Context, it storage.Item) (put bool, err error) {
	err = m.write(func() error { put, err = m.Store.PutItem(ctx, it); return err })
	return put, err
}

func (m *mortal) SwapItem(ctx context.Context, was, it storage.Item) (swapped bool, err error) {
	err = m.write(func() error { swapped, err = m.Store.SwapItem(ctx, was, it); return err })
	return swapped && err == nil, err
}

func (m *mortal) DeleteItem(ctx context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) error {
	return m.write(func() error { return m.Store.DeleteItem(ctx, box, id, gen) })
}

func (m *mortal) PutAnswer(ctx context.Context, a storage.Answer) (first bool, err error) {
	err = m.write(func() error { first, err = m.Store.PutAnswer(ctx, a); return err })
	return first, err
}

func (m *mortal) Load(ctx context.Context, id storage.ID, box storage.BoxID) (storage.Session, storage.Box, error) {
	if err := m.gone(); err != nil {
		return storage.Session{}, storage.Box{}, err
	}
	return m.Store.Load(ctx, id, box)
}

func (m *mortal) Item(ctx context.Context, box storage.BoxID, id storage.StreamID) (storage.Item, error) {
	if err := m.gone(); err != nil {
		return storage.Item{}, err
	}
	return m.Store.Item(ctx, box, id)
}

func (m *mortal) Tail(ctx context.Context, id storage.ID, stream storage.StreamID) (storage.Tail, error) {
	if err := m.gone(); err != nil {
		return storage.Tail{}, err
	}
	return m.Store.Tail(ctx, id, stream)
}

func (m *mortal) Wait(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, until time.Time) (storage.Page, error) {
	if err := m.gone(); err != nil {
		return storage.Page{}, err
	}
	return m.Store.Wait(ctx, id, stream, after, until)
}

// lives plays the client, the alarms and the sweep for a session until its call has ended.
// It returns the outcome of the call. first is the answer that the client got before.
func (c legacy) lives(t *testing.T, first answer) string {
	t.Helper()
	last, answered := first, map[string]bool{}
	for range 200 { // minutes
		for _, raw := range last.messages(t) {
			m, err := wire.Parse([]byte(raw))
			if err != nil {
				t.Fatalf("%v: %q", err, raw)
			}
			if m.Kind == wire.Response {
				return raw
			}
			if id, ok := wire.String(m.ID); ok && !answered[id] {
				a := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":%s}`, id, results()[m.Method]))
				answered[id] = a.status == 202
			}
		}
		c.work()
		b, _ := c.backend()
		commontest.Check(t, b.Sweep(t.Context()))
		c.work()
		for _, a := range c.due() {
			time.Sleep(time.Until(a.At))
			c.handle(a)
		}
		time.Sleep(time.Minute)
		last = c.poll(last.lastID(t))
	}
	t.Fatal("the call does not end")
	return ""
}

// TestEveryCallEndsWhereverItsFunctionDies kills the process that executes a call at each
// of its writes, before it or after it. Later processes are healthy. If the client was
// told that the call is accepted, the call ends, once. No round is executed twice.
func TestEveryCallEndsWhereverItsFunctionDies(t *testing.T) {
	for name, call := range map[string]string{
		"long":   toolCall("1", "steps", `{"n":3,"millis":15000}`, `,"_meta":{"progressToken":"p"}`),
		"asks":   toolCall("1", "ask", `{"text":"form"}`, ""),
		"pauses": toolCall("1", "job", `{}`, `,"_meta":{"progressToken":"p"}`),
	} {
		for n := 1; n <= 7; n++ {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprint(name, n, after), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { dies(t, call, n, after) })
				})
			}
		}
	}
}

func dies(t *testing.T, call string, n int, after bool) {
	w := memory(t)
	c := w.legacy(everything)
	store := w.open()
	w.open = func() storage.Store { return &mortal{Store: store, n: n, after: after} }
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	first := c.do(c.request("POST", call).WithContext(ctx))
	w.open = func() storage.Store { return store }
	if !strings.HasPrefix(first.header.Get("Content-Type"), wire.MediaSSE) {
		return // the call was answered, or refused, so that the client knows that it was not accepted
	}
	end := c.lives(t, first)
	if wire.Lookup([]byte(end), "result") == nil && !strings.Contains(end, `"phase":"runtime"`) {
		t.Errorf("it came to %s", end)
	}
	w.settled()
}

// settled asserts that after the sweep there is no open work.
func (w *world) settled() {
	w.t.Helper()
	time.Sleep(time.Hour)
	b, _ := w.backend()
	commontest.Check(w.t, b.Sweep(context.Background()))
	w.empty()
}

// TestRoundEndsWhereverItsFunctionDies does the same for the invocation that executes a
// later round.
func TestRoundEndsWhereverItsFunctionDies(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprint(n, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := memory(t)
					c := w.legacy(everything)
					store := w.open()
					first := c.tool("ask", `{"text":"form"}`)
					c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":%s}`, asked(t, first.messages(t))["elicitation/create"], results()["elicitation/create"]))
					w.open = func() storage.Store { return &mortal{Store: store, n: n, after: after} }
					b, _ := w.backend()
					ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
					defer cancel()
					_ = b.Handle(ctx, w.invoked[0]) // it is dead
					w.open = func() storage.Store { return store }
					c.lives(t, answer{first.status, first.header, strings.SplitAfter(first.body, "\n\n")[0]})
					w.settled()
				})
			})
		}
	}
}

// TestCancelEndsWhereverItsFunctionDies: a function that cancels a suspended call takes
// the call's item first. If it dies then, the call must still end, although its item was
// valid for a day.
func TestCancelEndsWhereverItsFunctionDies(t *testing.T) {
	for name, call := range map[string]string{"asks": toolCall("1", "ask", `{"text":"form"}`, ""), "pauses": toolCall("1", "job", `{}`, "")} {
		for n := 1; n <= 3; n++ {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprint(name, n, after), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := memory(t)
						c := w.legacy(everything)
						store := w.open()
						first := c.post(call)
						w.open = func() storage.Store { return &mortal{Store: store, n: n, after: after} }
						c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
						w.open = func() storage.Store { return store }
						if n == 1 && !after {
							c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
						}
						time.Sleep(time.Minute)
						b, _ := w.backend()
						commontest.Check(t, b.Sweep(t.Context()))
						commontest.Contains(t, "", `"error"`, c.poll(first.lastID(t)).body)
						w.empty()
					})
				})
			}
		}
	}
}

// A function that takes long to send much to a slow connection must not count as dead, nor
// one whose server says nothing for longer than the lease.
func TestSlowFunctionThatLivesKeepsItsCall(t *testing.T) {
	for name, c := range map[string]struct{ steps, millis int }{"sends much": {400, 5}, "is silent": {2, 90_000}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := memory(t)
				w.posting = 200 * time.Millisecond
				s := w.socket()
				s.send(t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`)
				s.send(t, toolCall("1", "steps", fmt.Sprintf(`{"n":%d,"millis":%d}`, c.steps, c.millis), `,"_meta":{"progressToken":"p"}`))
				w.posts()
				ctx, cancel := context.WithCancel(t.Context())
				var swept sync.WaitGroup
				swept.Go(func() {
					for ctx.Err() == nil {
						b, _ := w.backend()
						commontest.Check(t, b.Sweep(t.Context()))
						time.Sleep(time.Second)
					}
				})
				w.work()
				cancel()
				swept.Wait()
				posts := w.posts()
				if got := posts[len(posts)-1]; len(posts) != c.steps+1 || !strings.Contains(got, `"done"`) {
					t.Errorf("%d were sent, want %d; the last is %s", len(posts), c.steps+1, got)
				}
				w.empty()
			})
		})
	}
}

// TestCallsCostWhatTheyMust counts the round trips to the store.
func TestCallsCostWhatTheyMust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memory(t)
		c := w.legacy(everything)
		counting := storagetest.NewCounting(w.open())
		w.open = func() storage.Store { return counting }
		cost := func(do func()) map[string]int {
			counting.Reset()
			do()
			return counting.Counts().Calls
		}
		for _, op := range []struct {
			name string
			do   func()
			want map[string]int
		}{
			{"answered within a second", func() { c.tool("echo", `{}`) }, map[string]int{"Load": 1, "Append": 1}},
			{
				"the same, with progress", func() { c.post(toolCall("1", "steps", `{"n":2,"millis":100}`, `,"_meta":{"progressToken":"p"}`)) },
				map[string]int{"Load": 1, "Append": 1},
			},
			{"a list", func() { c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`) }, map[string]int{"Load": 1, "Append": 1}},
			{"by a modern client", func() { w.modernTool("echo", `{}`, "") }, map[string]int{"Load": 1, "Append": 1, "Create": 1}},
			{"the same again", func() { w.modernTool("echo", `{}`, "") }, map[string]int{"Load": 1, "Append": 1}},
			{"after 5 s", func() { c.tool("steps", `{"n":1,"millis":5000}`) }, map[string]int{"Load": 1, "PutItem": 1, "Item": 2, "Append": 1, "DeleteItem": 1}},
			{"after 25 s", func() { c.tool("steps", `{"n":1,"millis":25000}`) }, map[string]int{"Load": 1, "PutItem": 1, "Item": 10, "SwapItem": 2, "Append": 1, "DeleteItem": 1}},
		} {
			commontest.SameIn(t, op.name, op.want, cost(op.do))
		}
	})
}
