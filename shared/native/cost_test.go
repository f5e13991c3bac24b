package native_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/native"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
)

// price is an operation, and what it costs, a line of the table in docs/costs.md:
// round trips to the store, by name, and what else is begun, an invocation or an alarm.
type price struct {
	name, calls          string
	reads, writes, waits int
	begins               string
	server               native.Server // nil for shop
	before, do           func(w *world, c legacy, s *spent)
}

// spent is what the parts of an operation leave for one another.
type spent struct {
	first answer
	asked string
	alarm native.Alarm
	conn  socket
}

// shop is a server with what costs something.
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

const subscribe = `{"jsonrpc":"2.0","id":7,"method":"resources/subscribe","params":{"uri":"note://1"}}`

// asking has a call ask, and pausing has one pause.
func asking(w *world, c legacy, s *spent) {
	s.first = c.tool("ask", `{"text":"form"}`)
	s.asked = asked(w.t, s.first.messages(w.t))["elicitation/create"]
}

func pausing(w *world, c legacy, s *spent) {
	c.tool("job", `{}`)
	due := w.due()
	s.alarm = due[0]
	time.Sleep(time.Until(s.alarm.At))
}

func setting(w *world, c legacy, s *spent) {
	c.tool("wake", `{}`)
	s.alarm = w.due()[0]
	time.Sleep(time.Until(s.alarm.At))
}

func ringing(w *world, _ legacy, s *spent) { w.handle(s.alarm) }

func nativePrices() []price {
	return []price{
		{name: "tools/list, prompts/list and so on", do: posting(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)},
		{name: "tools/call, answered within a second", do: calling("echo", `{}`)},
		{name: "the same, of a client of 2026-07-28", do: func(w *world, _ legacy, _ *spent) { w.modernTool("echo", `{}`, "") }},
		{name: "the same, after 5 s", do: calling("steps", `{"n":1,"millis":5000}`)},
		{name: "tools/call over a WebSocket, by an invocation of its own", before: socketing, do: func(w *world, _ legacy, s *spent) {
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
		{name: "its alarm, and the round to the next pause", before: pausing, do: ringing},
		{name: "tools/call that changes a value (native.Update)", do: calling("count", `{}`)},
		{name: "tools/call that initializes (State.Once)", do: calling("init", `{}`)},
		{name: "the same when that has been done", before: calling("init", `{}`), do: calling("init", `{}`)},
		{name: "tools/call that sets an alarm (Session.WakeAt)", do: calling("wake", `{}`)},
		{name: "that alarm, and its handler", before: setting, do: ringing},
		{name: "resources/subscribe", server: news, do: posting(subscribe)},
		{name: "tools/call that tells one subscriber (Session.ResourceUpdated)", server: news, before: posting(subscribe), do: calling("touch", `{}`)},
	}
}

// socketing has a connection with a session.
func socketing(w *world, _ legacy, s *spent) {
	k := w.socket()
	k.send(w.t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`)
	k.send(w.t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	s.conn = k
}

// executed executes what was asked to be invoked, once.
func (w *world) executed() {
	w.mu.Lock()
	todo := w.invoked
	w.mu.Unlock()
	for _, a := range todo {
		w.handle(a)
	}
}

// counts is the operation counted.
func (p price) counts(t *testing.T) price {
	w := memory(t)
	w.hosted.Make = shop
	if p.server != nil {
		w.hosted.Make = p.server
	}
	counting := sessiontest.NewCounting(w.open())
	w.open = func() session.Store { return counting }
	c := w.legacy(everything)
	w.modernTool("echo", `{}`, "") // the session of a client of 2026-07-28 is there
	s := &spent{}
	if p.before != nil {
		p.before(w, c, s)
	}
	w.due()
	w.invoked = nil
	counting.Reset()
	p.do(w, c, s)
	got := counting.Counts()
	var calls, begins []string
	for _, name := range slices.Sorted(maps.Keys(got.Calls)) {
		switch n := got.Calls[name]; {
		case name == "Wait":
		case n == 1:
			calls = append(calls, name)
		default:
			calls = append(calls, fmt.Sprint(n, " ", name))
		}
	}
	if n := len(w.invoked); n > 0 {
		begins = append(begins, fmt.Sprint(n, " invocation"))
	}
	if n := len(w.due()); n > 0 {
		begins = append(begins, fmt.Sprint(n, " alarm"))
	}
	return price{name: p.name, calls: strings.Join(calls, ", "), reads: got.Reads, writes: got.Writes, waits: got.Waits, begins: strings.Join(begins, ", ")}
}

// row is its line in docs/costs.md.
func (p price) row() string {
	none := func(text string) string {
		if text == "" {
			return "–"
		}
		return text
	}
	return fmt.Sprintf("| %s | %s | %d | %d | %d | %s |", p.name, none(p.calls), p.reads, p.writes, p.waits, none(p.begins))
}

// TestCostOfNativeServers: what operations cost is what docs/costs.md says.
func TestCostOfNativeServers(t *testing.T) {
	var got []string
	for _, p := range nativePrices() {
		synctest.Test(t, func(t *testing.T) { got = append(got, p.counts(t).row()) })
	}
	text, err := os.ReadFile("../../docs/costs.md")
	if err != nil {
		t.Fatal(err)
	}
	const head = "| operation of a native server | calls of the store | reads | writes | waits | begins |\n"
	_, table, _ := strings.Cut(string(text), head)
	table, _, _ = strings.Cut(table, "\n\n")
	var want []string
	if lines := strings.Split(table, "\n"); len(lines) > 1 {
		want = lines[1:]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the table of costs in docs/costs.md (-this test +it):\n%s", diff)
		t.Logf("%s", strings.Join(got, "\n"))
	}
}
