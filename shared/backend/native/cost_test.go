package native_test

import (
	gocmp "cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// price is one line of the table in costs.md: an operation and its cost. The cost is
// round trips to the store, and the invocations or alarms that the operation starts.
type price struct {
	name                 string
	reads, writes, waits int
	begins               string
	server               native.Server // nil for shop
	before, do           func(w *world, c legacy, s *spent)
}

// spent holds values that one part of an operation leaves for the next.
type spent struct {
	first answer
	asked string
	alarm native.Alarm
	conn  socket
}

func shop(ctx context.Context, s native.Session) (*mcp.Server, error) {
	server, err := demo(ctx, s)
	if err != nil {
		return nil, err
	}
	tool(server, "count", func(ctx context.Context, _ *mcp.CallToolRequest, _ words) (*mcp.CallToolResult, error) {
		_, err := native.Update(ctx, s.State(native.OfSession), "n", func(n int) (int, error) { return n + 1, nil })
		return text("counted"), err
	})
	tool(server, "init", func(ctx context.Context, _ *mcp.CallToolRequest, _ words) (*mcp.CallToolResult, error) {
		return text("ready"), s.State(native.OfSession).Once(ctx, "init", func(context.Context) error { return nil })
	})
	tool(server, "wake", func(ctx context.Context, _ *mcp.CallToolRequest, _ words) (*mcp.CallToolResult, error) {
		return text("set"), s.WakeAt(ctx, "later", time.Now().Add(time.Hour), nil)
	})
	s.OnAlarm(func(context.Context, native.Alarm) error { return nil })
	return server, nil
}

func calling(tool, arguments string) func(*world, legacy, *spent) {
	return func(_ *world, c legacy, s *spent) { s.first = c.tool(tool, arguments) }
}

func posting(body string) func(*world, legacy, *spent) {
	return func(_ *world, c legacy, _ *spent) { c.post(body) }
}

const keyedCall = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{},"idempotencyKey":"k"}}`

const subscribe = `{"jsonrpc":"2.0","id":7,"method":"resources/subscribe","params":{"uri":"note://1"}}`

// asking makes a call that asks its client.
func asking(w *world, c legacy, s *spent) {
	s.first = c.tool("ask", `{"text":"form"}`)
	s.asked = asked(w.t, s.first.messages(w.t))["elicitation/create"]
}

// awaiting calls a tool that sets an alarm, and waits until the alarm is due.
func awaiting(tool string) func(*world, legacy, *spent) {
	return func(w *world, c legacy, s *spent) {
		c.tool(tool, `{}`)
		s.alarm = w.due()[0]
		time.Sleep(time.Until(s.alarm.At))
	}
}

func ringing(w *world, _ legacy, s *spent) { w.handle(s.alarm) }

func nativePrices() []price {
	return []price{
		{name: "tools/list, prompts/list and so on", do: posting(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)},
		{name: "tools/call, answered within a second", do: calling("echo", `{}`)},
		{name: "the same, of a client of 2026-07-28", do: func(w *world, _ legacy, _ *spent) { w.modernTool("echo", `{}`, "") }},
		{name: "the same, after 5 s", do: calling("steps", `{"n":1,"millis":5000}`)},
		{name: "tools/call with a key, answered within a second", do: posting(keyedCall)},
		{name: "a repeat with the key, after the answer", before: posting(keyedCall), do: posting(keyedCall)},
		{name: "tools/call over a WebSocket, by an invocation of its own", before: func(w *world, _ legacy, s *spent) { s.conn = w.socket(`{}`) }, do: func(w *world, _ legacy, s *spent) {
			s.conn.send(w.t, toolCall("1", "echo", `{}`, ""))
			w.executed()
		}},
		{name: "a call that asks, its response held for 25 s", do: asking},
		{name: "a human who thinks, for hours", before: asking, do: func(*world, legacy, *spent) { time.Sleep(5 * time.Hour) }},
		{name: "the answer, and the next round to its end", before: asking, do: func(w *world, c legacy, s *spent) {
			c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"action":"decline"}}`, s.asked))
			w.executed()
		}},
		{name: "a call that pauses, its response held for 25 s", do: calling("job", `{}`)},
		{name: "its alarm, and the round to the next pause", before: awaiting("job"), do: ringing},
		{name: "tools/call that changes a value (native.Update)", do: calling("count", `{}`)},
		{name: "tools/call that initializes (State.Once)", do: calling("init", `{}`)},
		{name: "the same when that has been done", before: calling("init", `{}`), do: calling("init", `{}`)},
		{name: "tools/call that sets an alarm (Session.WakeAt)", do: calling("wake", `{}`)},
		{name: "that alarm, and its handler", before: awaiting("wake"), do: ringing},
		{name: "resources/subscribe", server: news, do: posting(subscribe)},
		{name: "tools/call that tells one subscriber (Session.ResourceUpdated)", server: news, before: posting(subscribe), do: calling("touch", `{}`)},
	}
}

// executed executes the invocations that were requested, once.
func (w *world) executed() {
	w.mu.Lock()
	todo := w.invoked
	w.mu.Unlock()
	for _, a := range todo {
		w.handle(a)
	}
}

func (p price) counts(t *testing.T) price {
	w := memory(t)
	w.hosted.Make = shop
	if p.server != nil {
		w.hosted.Make = p.server
	}
	counting := storagetest.NewCounting(w.open())
	w.open = func() storage.Store { return counting }
	c := w.legacy(everything)
	w.modernTool("echo", `{}`, "") // the client of 2026-07-28 has its session already
	s := &spent{}
	if p.before != nil {
		p.before(w, c, s)
	}
	w.due()
	w.invoked = nil
	counting.Reset()
	p.do(w, c, s)
	got := counting.Counts()
	var begins []string
	if n := len(w.invoked); n > 0 {
		begins = append(begins, fmt.Sprint(n, " invocation"))
	}
	if n := len(w.due()); n > 0 {
		begins = append(begins, fmt.Sprint(n, " alarm"))
	}
	return price{name: p.name, reads: got.Reads, writes: got.Writes, waits: got.Waits, begins: strings.Join(begins, ", ")}
}

func (p price) row() string {
	return fmt.Sprintf("| %s | %d | %d | %d | %s |\n", p.name, p.reads, p.writes, p.waits, gocmp.Or(p.begins, "–"))
}

var update = flag.Bool("update", false, "write the table of costs into costs.md")

// TestCostOfNativeServers: operations cost what costs.md says.
func TestCostOfNativeServers(t *testing.T) {
	const page, begin, end = "costs.md", "<!-- native costs: written by make docs -->\n", "<!-- /native costs -->\n"
	raw, err := os.ReadFile(page)
	commontest.OK(t, err)
	before, rest, opened := strings.Cut(string(raw), begin)
	table, after, closed := strings.Cut(rest, end)
	if !opened || !closed {
		t.Fatalf("costs.md has no place for the table: %q and %q", begin, end)
	}
	now := "| operation of a native server, at most | reads | writes | waits | begins |\n|---|---|---|---|---|\n"
	for _, p := range nativePrices() {
		synctest.Test(t, func(t *testing.T) { now += p.counts(t).row() })
	}
	if *update {
		commontest.OK(t, os.WriteFile(page, []byte(before+begin+now+end+after), 0o600))
		return
	}
	commontest.Equal(t, table, now)
}
