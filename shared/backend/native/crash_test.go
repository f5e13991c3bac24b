package native_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
)

// mortal returns the store of a process that dies at its nth write. From then on its calls
// have no effect. If after is set, the nth write itself still takes effect.
func mortal(store storage.Store, n int, after bool) storage.Store {
	var mu sync.Mutex
	died := storage.Errorf(storage.Unavailable, "the process is dead")
	return intercept.New(store, func(ctx context.Context, c *intercept.Call, do func(context.Context) error) error {
		mu.Lock()
		write := c.Kind == intercept.Write
		if write {
			n--
		}
		alive, last := n > 0, write && n == 0
		mu.Unlock()
		switch {
		case alive:
			return do(ctx)
		case last && after:
			_ = do(ctx)
		}
		return died
	})
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
		c.sweep()
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
					inTime(t, func(t *testing.T, w *world) { w.dies(t, call, n, after) })
				})
			}
		}
	}
}

func (w *world) dies(t *testing.T, call string, n int, after bool) {
	c := w.legacy(everything)
	store := w.open()
	w.open = func() storage.Store { return mortal(store, n, after) }
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	first := c.do(c.request("POST", call).WithContext(ctx))
	w.open = func() storage.Store { return store }
	if !strings.HasPrefix(first.header.Get("Content-Type"), wire.MediaSSE) {
		return // the call was answered, or refused, so that the client knows that it was not accepted
	}
	end := c.lives(t, first)
	if wire.Lookup([]byte(end), "result") == nil && !strings.Contains(end, `"code":-32010`) {
		t.Errorf("it came to %s", end)
	}
	w.settled()
}

// settled asserts that after the sweep there is no open work.
func (w *world) settled() {
	w.t.Helper()
	time.Sleep(time.Hour)
	w.sweep()
	w.empty()
}

// A program that has its store for itself does not wait for those before it.
func TestCallOfAnEarlierProgramEndsAtOnce(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		c := w.legacy(everything)
		go c.post(toolCall("1", "steps", `{"n":3,"millis":15000}`, ""))
		time.Sleep(3 * time.Second)
		synctest.Wait() // the call has its backend, with the earlier since
		w.since = time.Now()
		w.sweep()
		w.empty()
		time.Sleep(time.Minute) // the call ends meanwhile
	})
}

// TestRoundEndsWhereverItsFunctionDies does the same for the invocation that executes a
// later round.
func TestRoundEndsWhereverItsFunctionDies(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprint(n, after), timed(func(t *testing.T, w *world) {
				c := w.legacy(everything)
				store := w.open()
				first := c.tool("ask", `{"text":"form"}`)
				c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":%s}`, asked(t, first.messages(t))["elicitation/create"], results()["elicitation/create"]))
				w.open = func() storage.Store { return mortal(store, n, after) }
				b, _ := w.backend()
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
				defer cancel()
				_ = b.Handle(ctx, w.invoked[0]) // it is dead
				w.open = func() storage.Store { return store }
				c.lives(t, answer{first.status, first.header, strings.SplitAfter(first.body, "\n\n")[0]})
				w.settled()
			}))
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
				t.Run(fmt.Sprint(name, n, after), timed(func(t *testing.T, w *world) {
					c := w.legacy(everything)
					store := w.open()
					first := c.post(call)
					w.open = func() storage.Store { return mortal(store, n, after) }
					c.post(cancelled)
					w.open = func() storage.Store { return store }
					if n == 1 && !after {
						c.post(cancelled)
					}
					time.Sleep(time.Minute)
					w.sweep()
					commontest.Contains(t, "", `"error"`, c.poll(first.lastID(t)).body)
					w.empty()
				}))
			}
		}
	}
}

// A function that takes long to send much to a slow connection must not count as dead, nor
// one whose server says nothing for longer than the lease.
func TestSlowFunctionThatLivesKeepsItsCall(t *testing.T) {
	for name, c := range map[string]struct{ steps, millis int }{"sends much": {400, 5}, "is silent": {2, 90_000}} {
		t.Run(name, timed(func(t *testing.T, w *world) {
			w.posting = 200 * time.Millisecond
			s := w.socket(`{}`)
			s.send(t, toolCall("1", "steps", fmt.Sprintf(`{"n":%d,"millis":%d}`, c.steps, c.millis), `,"_meta":{"progressToken":"p"}`))
			ctx, cancel := context.WithCancel(t.Context())
			var swept sync.WaitGroup
			swept.Go(func() {
				for ctx.Err() == nil {
					w.sweep()
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
		}))
	}
}

// far is a server that runs elsewhere and resumes the stream of a call. After the first
// step it asks the client a question that is not on that stream. The first function that
// executes the call stops after some steps.
type far struct {
	answered []string // names of questions with their answers
}

const farSteps, farStops = 6, 3

func (f *far) Send(ctx context.Context, r native.Request) native.Answer {
	if r.Method != wire.MethodToolsCall {
		return native.Answer{Result: json.RawMessage(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"logging":{}}}`)}
	}
	from := 0
	state, later := wire.String(wire.Lookup(r.Params, "requestState"))
	if _, err := fmt.Sscan(state, &from); later && err != nil {
		return native.Answer{Fault: &wire.Error{Code: wire.CodeInternal, Message: err.Error()}}
	}
	for i := from + 1; i <= farSteps; i++ {
		r.Say(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"step %d"}}`, i))
		r.Note(fmt.Sprint(i))
		if later {
			continue
		}
		switch i {
		case 1:
			r.Ask(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"method":"roots/list"}`, storage.ForwardID("x-1")))
			time.Sleep(15 * time.Second) // so that the item is renewed
		case farStops:
			<-ctx.Done()
			return native.Answer{Fault: &wire.Error{Code: wire.CodeInternal, Message: "stopped"}}
		}
	}
	return native.Answer{Result: json.RawMessage(`{"content":[]}`)}
}

func (f *far) Tell(context.Context, native.Request) {}

func (f *far) Forward(_ context.Context, _ native.Request, name string, response []byte) error {
	f.answered = append(f.answered, name+" "+string(wire.Lookup(response, "result")))
	return nil
}

// A server repeats the events of a call's stream to the function that goes on with the
// call. That function leaves out the repeated events, and nothing else. The log of the
// call also has questions that were not on the stream.
func TestFunctionThatGoesOnLeavesOutWhatIsRepeated(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		elsewhere := &far{}
		w.hosted = native.Hosted{Remote: elsewhere}
		c := w.legacy(everything)
		store := w.open()
		w.open = func() storage.Store { return mortal(store, 5, false) } // the second renewal of the item
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		defer cancel()
		first := c.do(c.request("POST", toolCall("1", "any", "{}", "")).WithContext(ctx))
		w.open = func() storage.Store { return store }
		commontest.Contains(t, "it came to", `"result"`, c.lives(t, first))
		all := strings.Join(slices.Concat(first.messages(t), c.poll(first.lastID(t)).messages(t)), "\n")
		for i := range farSteps {
			if n := strings.Count(all, fmt.Sprintf(`"step %d"`, i+1)); n != 1 {
				t.Errorf("step %d is there %d times:\n%s", i+1, n, all)
			}
		}
		if n := strings.Count(all, "roots/list"); n != 1 || len(elsewhere.answered) != 1 {
			t.Errorf("the client was asked %d times; the server got %q", n, elsewhere.answered)
		}
		w.settled()
	})
}
