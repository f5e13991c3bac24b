package transport_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/aggregate"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// grouped runs a test with n servers behind /mcp: s0, s1 and so on. Each has the tools echo
// and tool0, tool1 and so on. The records know the servers in known.
func grouped(t *testing.T, n int, change func(*transport.Group), test func(t *testing.T, w *world)) {
	bubble(t, func(t *testing.T, w *world) {
		w.opts.Sealer = newSealer(t)
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("s%d", i))
		}
		w.opts.Names = func() []string { return names }
		w.opts.Servers = func(name string) (sessions.Server, bool) {
			return sessions.Server{Name: name, Digest: name, Record: true, Anonymous: true}, slices.Contains(names, name)
		}
		g := transport.Group{}
		if change != nil {
			change(&g)
		}
		w.opts.Groups = func(name string) (transport.Group, bool) { return g, name == "" }
		for i, name := range names {
			w.keep(name, wire.V20251125, fmt.Sprintf(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x","version":"1"},"instructions":"use %s"}`, name))
			list := fmt.Sprintf(`{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"tool%d","description":"does thing %d","inputSchema":{"type":"object","x":1.0}}]}`, i, i)
			for _, caps := range []string{"", "elicitation,elicitation.form,elicitation.url,roots,sampling,sampling.context,sampling.tools"} {
				w.keep(name, "tools/list 2025-11-25 "+caps+" anyone", `{"gen":1,"says":true,"list":`+list+`}`)
			}
		}
		test(t, w)
	})
}

func (w *world) keep(server, part, result string) {
	w.t.Helper()
	err := w.store.SaveHandshake(w.t.Context(), storage.Handshake{Digest: storage.RecordFor("tenant", server), Version: part, Result: json.RawMessage(result), Taken: time.Now()})
	commontest.OK(w.t, err)
}

func toolNames(t *testing.T, body string) (names []string) {
	t.Helper()
	var got struct {
		Result struct{ Tools []struct{ Name string } }
	}
	commontest.OKIn(t, body, json.Unmarshal([]byte(body), &got))
	for _, tool := range got.Result.Tools {
		names = append(names, tool.Name)
	}
	return names
}

func (w *world) openGroup() *client {
	w.t.Helper()
	return w.visitAt("/mcp")
}

func TestTwentyServersAreListedWithoutWakingOne(t *testing.T) {
	grouped(t, 20, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		var got []string
		if cost := w.counted(func() { got = toolNames(t, c.post(list).body) }); cost.Reads != 2 || cost.Writes != 0 {
			t.Errorf("tools/list costs %+v", cost)
		}
		if len(got) != 40 || got[0] != "s0__echo" || got[39] != "s19__tool19" {
			t.Errorf("got %q", got)
		}
		commontest.EqualIn(t, "servers without prompts", `{"jsonrpc":"2.0","id":1,"result":{"prompts":[]}}`, c.post(`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`).body)
		if modern := toolNames(t, w.do(ask{path: "/mcp", method: "tools/list"}.request()).body); !slices.Equal(modern, got) {
			t.Errorf("the modern era got %q", modern)
		}
		if len(w.backend.got) > 0 {
			t.Errorf("servers got %s", w.backend.got)
		}
	})
}

// The session of a group, too, lives if its client uses it and never says that it is
// initialized.
func TestGroupSessionWithoutInitializedThatIsUsedLives(t *testing.T) {
	for _, body := range []string{`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s1__echo"}}`} {
		grouped(t, 2, nil, func(t *testing.T, w *world) {
			a := w.do(request("POST", "/mcp", initialize))
			c := w.at("/mcp", a.header.Get(sessionIs))
			for range 3 {
				if a := c.post(body); a.status != 200 {
					t.Fatalf("got %d %s", a.status, a.body)
				}
				<-time.After(time.Hour)
			}
		})
	}
}

// A list of the group does not wait for a server that takes long to start for the first
// time. The standalone stream tells the client when it is worth to list again.
func TestTheStreamOfAGroupTellsThatAServerIsListedForTheFirstTime(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		w.opts.Servers = func(name string) (sessions.Server, bool) {
			return sessions.Server{Name: name, Digest: map[string]string{"s0": "s0", "s1": "new"}[name], Record: true, Anonymous: true}, name == "s0" || name == "s1"
		}
		c := w.openGroup()
		stream := w.begin(c.request("GET", ""))
		<-time.After(20 * time.Second)
		w.keep("new", "tools/list 2025-11-25  anyone", `{"gen":1,"says":true,"list":{"tools":[{"name":"late","inputSchema":{"type":"object"}}]}}`)
		got := stream.end().datas(t)
		want := []string{
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`,
		}
		commontest.Same(t, want, got)
		if names := toolNames(t, c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).body); !slices.Contains(names, "s1__late") {
			t.Errorf("the list has %q", names)
		}
	})
}

func TestCallThroughAGroupReachesOneServerUnderItsOwnName(t *testing.T) {
	grouped(t, 20, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		a := c.post(`{"jsonrpc":"2.0","id":7.0,"method":"tools/call","params":{"name":"s3__tool3","arguments":{"a":1.0,"name":"s3__x"},"_meta":{"progressToken":9}}}`)
		if a.body != `{"jsonrpc":"2.0","id":7.0,"result":{"content":[]}}` {
			t.Errorf("got %d %s", a.status, a.body)
		}
		want := []string{`{"jsonrpc":"2.0","id":7.0,"method":"tools/call","params":{"name":"tool3","arguments":{"a":1.0,"name":"s3__x"},"_meta":{"progressToken":9}}}`}
		commontest.Same(t, want, w.backend.got)
		s, _, err := w.store.Load(t.Context(), sessions.MemberID(storage.ID(c.session), "s3"), "")
		if err != nil || s.Server != "s3" || s.Version != wire.V20251125 {
			t.Errorf("the server's session is %+v, %v", s, err)
		}
	})
}

func TestCallThroughAGroupCostsWhatItCostsOnTheOwnPath(t *testing.T) {
	grouped(t, 20, nil, func(t *testing.T, w *world) {
		own, one := w.visitAt("/s3/mcp"), w.openGroup()
		own.call("tool3")
		one.call("s3__tool3")
		count := func(c *client, tool string) storagetest.Counts {
			return w.counted(func() {
				if a := c.call(tool); a.status != 200 {
					t.Fatal(a.body)
				}
			})
		}
		if d := cmp.Diff(count(own, "tool3"), count(one, "s3__tool3")); d != "" {
			t.Errorf("own path (-) and group (+):\n%s", d)
		}
	})
}

func TestQuestionThroughAGroupIsAnsweredAtItsServer(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.backend.tool("tool1", func(r run) {
			r.append(`{"jsonrpc":"2.0","id":"q-1","method":"roots/list"}`, false)
			r.append(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9,"progress":1}}`, false)
			r.end(`{"content":[{"type":"resource_link","uri":"file:///a","name":"a"}]}`)
		})
		c := w.openGroup()
		a := c.call("s1__tool1")
		want := []string{
			`{"jsonrpc":"2.0","id":"s1~q-1","method":"roots/list"}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9,"progress":1}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"resource_link","uri":"dormouse://s1/file:///a","name":"a"}]}}`,
		}
		commontest.Same(t, want, a.datas(t))
		w.awake("s1")
		if a := c.post(`{"jsonrpc":"2.0","id":"s1~q-1","result":{"roots":[]}}`); a.status != 202 {
			t.Errorf("the answer got %d %s", a.status, a.body)
		}
		commontest.Same(t, []string{`{"jsonrpc":"2.0","id":"q-1","result":{"roots":[]}}`}, w.backend.answers)
		events := a.events(t)
		again := c.get(events[1].ID)
		commontest.SameIn(t, "after "+events[1].ID, want[1:], again.datas(t))
	})
}

func TestStandaloneStreamOfAGroupHasTheEventsOfItsServers(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		c.call("s0__echo")
		c.call("s2__echo")
		push := func(server, text string) {
			of := sessions.MemberID(storage.ID(c.session), server)
			w.outside(of).say(text)
		}
		push("s0", "one")
		push("s2", "two")
		first := c.get("")
		commontest.Same(t, []string{said("one"), said("two")}, first.datas(t))
		push("s0", "three")
		commontest.Same(t, []string{said("three")}, c.get(first.lastID(t)).datas(t))
		push("s2", "four")
		late := w.begin(c.request("GET", "", "Last-Event-ID", "s0~2;s2~1"))
		time.Sleep(time.Second)
		push("s0", "five")
		commontest.Same(t, []string{said("five"), said("four")}, slices.Sorted(slices.Values(late.end().datas(t))))
	})
}

func TestGroupWithoutPrefixesFindsTheServerByTheName(t *testing.T) {
	plain := func(g *transport.Group) { g.Plain = true }
	grouped(t, 2, plain, func(t *testing.T, w *world) {
		c := w.openGroup()
		commontest.Same(t, []string{"s0__echo", "tool0", "s1__echo", "tool1"}, toolNames(t, c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).body))
		for tool, own := range map[string]string{"tool1": "tool1", "s0__echo": "echo"} {
			w.backend.got = nil
			if a := c.call(tool); a.status != 200 || len(w.backend.got) != 1 || w.backend.got[0] != callOf(own) {
				t.Errorf("%s: %s; the server got %s", tool, a.body, w.backend.got)
			}
		}
		a := c.call("nothing")
		if code, message := a.rpcError(t); a.status != 200 || code != -32602 || message != "there is no tool nothing here" {
			t.Errorf("got %d %s", a.status, a.body)
		}
	})
}

// during is a store in which something happens while records are read.
type during struct {
	storage.Store
	do func()
}

func (d *during) Recorded(ctx context.Context, keys []storage.RecordKey) ([]storage.Recorded, error) {
	all, err := d.Store.Recorded(ctx, keys)
	if do := d.do; do != nil {
		d.do = nil
		do()
	}
	return all, err
}

// A kept index finds the server of a name without the lists, until a record changes. A name that
// nobody has costs no more.
func TestGroupWithoutPrefixesKeepsWhatNamesStandFor(t *testing.T) {
	grouped(t, 50, func(g *transport.Group) { g.Plain = true }, func(t *testing.T, w *world) {
		counting := storagetest.NewCounting(w.store)
		w.opts.Kept = &aggregate.Kept{}
		meanwhile := &during{Store: counting}
		w.store = w.opts.Kept.Watch(meanwhile)
		w.serveFrom(w.store)
		c := w.openGroup()
		cost := func(tool string, code int) storagetest.Counts {
			counting.Reset()
			a := c.call(tool)
			var got int
			if strings.Contains(a.body, `"error"`) {
				got, _ = a.rpcError(t)
			}
			if got != code {
				t.Errorf("%s: %s", tool, a.body)
			}
			return counting.Counts()
		}
		c.call("s7__echo") // opens the session there
		for _, tool := range []string{"tool7", "new"} {
			cost(tool, map[string]int{"new": -32602}[tool])
			time.Sleep(2 * time.Second)
		}
		direct, plain, unknown := cost("s7__echo", 0), cost("tool7", 0), cost("new", -32602)
		if plain.Calls["Recorded"] != 0 || plain.Reads > direct.Reads+1 || plain.Writes != direct.Writes {
			t.Errorf("a call costs %+v, %+v with a prefix", plain, direct)
		}
		if first := unknown.Calls["Recorded"]; first != 1 { // it is older than a second
			t.Errorf("the lists were read %d times", first)
		}
		if again := cost("newer", -32602); again.Calls["Recorded"] != 0 || again.Reads > plain.Reads || again.Writes > 0 {
			t.Errorf("an unknown name costs %+v, a known one %+v", again, plain)
		}
		list := `{"gen":1,"says":true,"list":{"tools":[{"name":"new"}]}}`
		w.keep("s9", "tools/list 2025-11-25  anyone", list)
		if got := cost("new", 0); got.Calls["Recorded"] != 1 {
			t.Errorf("after the change of a list: %+v", got)
		}
		if got := cost("new", 0); got.Calls["Recorded"] != 0 {
			t.Errorf("after that: %+v", got)
		}
		w.keep("elsewhere", "tools/list 2025-11-25  anyone", list)
		w.keep("s9", wire.V20251125, `{}`)
		if got := cost("new", 0); got.Calls["Recorded"] != 0 {
			t.Errorf("after the change of another record: %+v", got)
		}
		w.keep("s9", "tools/list 2025-11-25  anyone", list) // the index is made anew
		meanwhile.do = func() {
			w.keep("s8", "tools/list 2025-11-25  anyone", strings.Replace(list, "new", "late", 1))
		}
		cost("late", -32602)
		cost("late", 0)
	})
}

func TestGroupSaysWhyAServerIsNotServed(t *testing.T) {
	grouped(t, 1, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		if _, message := c.call("weather__today").rpcError(t); message != `server "weather" is not served: WEATHER_KEY is not set (servers.json:14:32)` {
			t.Errorf("got %q", message)
		}
		a := ask{path: "/mcp", method: "tools/call", params: `"name":"weather__today"`}
		if got := w.do(a.request()); got.status != 400 {
			t.Errorf("the modern era got %d %s", got.status, got.body)
		}
	})
}

func TestModernCallThroughAGroup(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.backend.tool("tool1", func(r run) { r.end(`{"content":[{"type":"text","text":"hi"}]}`) })
		a := ask{path: "/mcp", method: "tools/call", params: `"name":"s1__tool1","arguments":{}`}
		if got := w.do(a.request()); got.status != 200 || string(wire.Lookup([]byte(got.body), "result", "content")) != `[{"type":"text","text":"hi"}]` {
			t.Errorf("got %d %s", got.status, got.body)
		}
		wrong := a.request()
		wrong.Header.Set("Mcp-Name", "tool1")
		if got := w.do(wrong); got.status != 400 {
			t.Errorf("a header that says something else: %d %s", got.status, got.body)
		}
		d := w.do(ask{path: "/mcp", method: "server/discover"}.request())
		if caps := string(wire.Lookup([]byte(d.body), "result", "capabilities", "tools")); caps != `{"listChanged":true}` {
			t.Errorf("discover: %s", d.body)
		}
		if text, _ := wire.String(wire.Lookup([]byte(d.body), "result", "instructions")); text != "# s0 (names begin with s0__)\n\nuse s0\n\n# s1 (names begin with s1__)\n\nuse s1\n\n# s2 (names begin with s2__)\n\nuse s2" {
			t.Errorf("instructions %q", text)
		}
	})
}

func TestSearchModeHasTwoTools(t *testing.T) {
	search := func(g *transport.Group) { g.Search = true }
	grouped(t, 20, search, func(t *testing.T, w *world) {
		c := w.openGroup()
		commontest.Same(t, []string{"find_tools", "call_tool"}, toolNames(t, c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).body))
		find := `"name":"find_tools","arguments":{"query":"thing 7","limit":1}`
		a := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + find + `}}`)
		if got := wire.Lookup([]byte(a.body), "result", "structuredContent", "tools"); string(got) != `[{"name":"s7__tool7","description":"does thing 7","inputSchema":{"type":"object","x":1.0}}]` {
			t.Errorf("found %s", a.body)
		}
		modern := w.do(ask{path: "/mcp", method: "tools/call", params: find}.request())
		if got := wire.Lookup([]byte(modern.body), "result", "structuredContent", "tools"); len(got) == 0 {
			t.Errorf("the modern era found %s", modern.body)
		}
		if len(w.backend.got) > 0 {
			t.Errorf("servers got %s", w.backend.got)
		}
		call := `"name":"call_tool","arguments":{"name":"s7__tool7","arguments":{"a":1.0}}`
		if a = c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + call + `}}`); a.status != 200 || len(w.backend.got) != 1 {
			t.Fatalf("call_tool: %s", a.body)
		}
		if want := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"tool7","arguments":{"a":1.0}}}`; w.backend.got[0] != want {
			t.Errorf("the server got %s", w.backend.got[0])
		}
		if a := w.do(ask{path: "/mcp", method: "tools/call", params: call}.request()); a.status != 200 || len(w.backend.got) != 2 {
			t.Errorf("call_tool of the modern era: %d %s", a.status, a.body)
		}
		l := w.link(url.Values{"group": {"all"}, "tools": {"search"}})
		l.open()
		commontest.SameIn(t, "over a WebSocket", []string{"find_tools", "call_tool"}, toolNames(t, l.say(list)[0]))
	})
}

func TestEndOfAGroupsSessionEndsThoseOfItsServers(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		c.call("s1__echo")
		if a := c.del(); a.status != 204 {
			t.Fatalf("DELETE: %d %s", a.status, a.body)
		}
		s, _, err := w.store.Load(t.Context(), sessions.MemberID(storage.ID(c.session), "s1"), "")
		if err != nil || s.State != storage.Ended {
			t.Errorf("the server's session is %s, %v", s.State, err)
		}
		if a := c.call("s1__echo"); a.status != 404 {
			t.Errorf("a call afterwards: %d %s", a.status, a.body)
		}
	})
}

func TestListAsksOnlyServersThatHaveNeverBeenListed(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		names := append(w.opts.Names(), "fresh", "bad")
		known := w.opts.Servers
		w.opts.Names = func() []string { return names }
		w.opts.Servers = func(name string) (sessions.Server, bool) {
			if name == "fresh" || name == "bad" {
				return sessions.Server{Name: name, Digest: name, Record: true, Anonymous: true}, true
			}
			return known(name)
		}
		w.backend.tool("tools/list", func(r run) {
			if s, _, err := r.w.store.Load(r.ctx, r.session, ""); err == nil && s.Server == "bad" {
				r.fail(`{"code":-32603,"message":"it has exited"}`)
				return
			}
			r.end(`{"tools":[{"name":"new","inputSchema":{"type":"object"}}]}`)
		})
		c := w.openGroup()
		a := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		if got := toolNames(t, a.body); len(got) != 7 || got[6] != "fresh__new" {
			t.Errorf("the tools are %q", got)
		}
		commontest.EqualIn(t, "_meta is", `{"dormouse/unavailable":{"bad":"it has exited"}}`, string(wire.Lookup([]byte(a.body), "result", "_meta")))
		if len(w.backend.got) != 2 {
			t.Errorf("servers got %s", w.backend.got)
		}
	})
}

func TestToolsThatTheFileLeavesOutAreNeitherListedNorCalled(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		all := w.opts.Servers
		w.opts.Servers = func(name string) (sessions.Server, bool) {
			s, ok := all(name)
			s.Tools = storage.ToolFilter{Allow: []string{"tool*"}, Deny: []string{"*"}}
			return s, ok
		}
		for path, want := range map[string][]string{"/mcp": {"s0__tool0", "s1__tool1"}, "/s1/mcp": {"tool1"}} {
			c := w.visitAt(path)
			commontest.SameIn(t, path, want, toolNames(t, c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).body))
			prefix := ""
			if path == "/mcp" {
				prefix = "s1__"
			}
			a := c.call(prefix + "echo")
			if code, message := a.rpcError(t); a.status != 200 || code != -32602 || message != `server "s1" offers no tool "echo" here: x-dormouse.tools in the servers file leaves it out` {
				t.Errorf("%s: got %d %s", path, a.status, a.body)
			}
			if len(w.backend.got) > 0 {
				t.Errorf("the server got %s", w.backend.got)
			}
		}
	})
}

// The file's description of a tool holds wherever the tool is listed: at /mcp and at the
// server's own address, from the record and from the server, over each transport.
func TestDescriptionsOfTheFileReplaceThoseOfTheServer(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		record := ""
		all := w.opts.Servers
		w.opts.Servers = func(name string) (sessions.Server, bool) {
			s, ok := all(name)
			if record != "" {
				s.Digest = record
			}
			s.Tools = storage.ToolFilter{Says: map[string]string{"tool1": "our \"words\"", "echo": "says it again", "gone": "x"}}
			return s, ok
		}
		describes := func(what, body, prefix string) {
			t.Helper()
			for _, want := range []string{
				`{"name":"` + prefix + `tool1","description":"our \"words\"","inputSchema":{"type":"object","x":1.0}}`,
				`{"description":"says it again","name":"` + prefix + `echo","inputSchema":{"type":"object"}}`,
			} {
				if !strings.Contains(body, want) {
					t.Errorf("%s: %s, want %s", what, body, want)
				}
			}
		}
		list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
		describes("/mcp", w.openGroup().post(list).body, "s1__")
		describes("/mcp, modern", w.do(ask{path: "/mcp", method: "tools/list"}.request()).body, "s1__")
		found := w.visitAt("/mcp?tools=search").post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"find_tools","arguments":{"query":"words again"}}}`)
		describes("search", string(wire.Lookup([]byte(found.body), "result", "structuredContent")), "s1__")
		c := w.visitAt("/s1/mcp")
		describes("the record", c.post(list).body, "")
		if len(w.backend.got) > 0 {
			t.Fatalf("the server got %s", w.backend.got)
		}
		record = "another" // which has no list
		w.backend.tool("tools/list", func(r run) {
			r.end(`{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"tool1","description":"does thing 1","inputSchema":{"type":"object","x":1.0}}]}`)
		})
		describes("the server", w.visitAt("/s1/mcp").post(list).body, "")
		describes("the server, through /mcp", w.openGroup().post(list).body, "s1__")
		if len(w.backend.got) == 0 {
			t.Error("the server was not asked")
		}
	})
}

func TestGroupHasItsServersOnly(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.opts.Groups = func(name string) (transport.Group, bool) {
			return transport.Group{Servers: []string{"s2", "s0"}}, name == "dev"
		}
		c := w.visitAt("/g/dev/mcp")
		commontest.Same(t, []string{"s0__echo", "s0__tool0", "s2__echo", "s2__tool2"}, toolNames(t, c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).body))
		if a := c.call("s1__echo"); a.status != 200 || len(w.backend.got) > 0 {
			t.Errorf("a server of no group: %s", a.body)
		}
		if a := c.call("s2__echo"); a.status != 200 || len(w.backend.got) != 1 {
			t.Errorf("got %s", a.body)
		}
		for path, want := range map[string]string{
			"/g/ops/mcp":    "there is no group ops; check the name behind /g/",
			"/g/ops/sse":    "there is no group ops; check the name behind /g/",
			"/g/dev/ticket": "there is nothing at this path; servers are at /<server>/mcp", // tickets are off
		} {
			if _, message := w.do(request("POST", path, initialize)).rpcError(t); message != want {
				t.Errorf("%s: %s", path, message)
			}
		}
	})
}

// Without prefixes, only the lists say which server has a tool. A server whose list is
// unknown may have the tool, so the error says why that server cannot be asked.
func TestGroupWithoutPrefixesNamesTheServersThatCannotBeAsked(t *testing.T) {
	grouped(t, 2, func(g *transport.Group) { g.Plain = true }, func(t *testing.T, w *world) {
		known := w.opts.Servers
		w.opts.Names = func() []string { return []string{"s0", "far"} }
		w.opts.Servers = func(name string) (sessions.Server, bool) {
			if name == "far" {
				return sessions.Server{Name: name, Digest: name, InPlace: true}, true
			}
			return known(name)
		}
		w.backend.tool("tools/list", func(r run) { r.fail(`{"code":-32603,"message":"the remote server far cannot be reached"}`) })
		c := w.openGroup()
		want := `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"there is no tool weather here; servers that cannot be asked for theirs: far (the remote server far cannot be reached)"}}`
		if a := c.call("weather"); a.body != want {
			t.Errorf("got %d %s", a.status, a.body)
		}
		if a := c.call("tool0"); a.body != `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}` {
			t.Errorf("a tool of another server: %d %s", a.status, a.body)
		}
	})
}
