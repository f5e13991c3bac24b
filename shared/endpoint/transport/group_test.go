package transport_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

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
			w.keepList(name, "tools/list", list)
		}
		test(t, w)
	})
}

func (w *world) keep(server, part, result string) {
	w.t.Helper()
	err := w.store.SaveHandshake(w.t.Context(), storage.Handshake{Digest: storage.RecordFor("tenant", server), Version: part, Result: json.RawMessage(result), Taken: time.Now()})
	commontest.OK(w.t, err)
}

// keepList keeps a list of a server for clients of both eras.
func (w *world) keepList(server, method, list string) {
	w.t.Helper()
	for _, abilities := range []string{"", ofModern} {
		w.keep(server, method+" 2025-11-25 "+abilities+" anyone", `{"gen":1,"says":true,"list":`+list+`}`)
	}
}

// ofModern are the abilities for which lists of clients of 2026-07-28 are kept.
const ofModern = "elicitation,elicitation.form,elicitation.url,roots,sampling,sampling.context,sampling.tools"

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

// unlisted makes servers of a group, which may be new, unknown to the records.
func (w *world) unlisted(servers ...string) {
	names, known := w.opts.Names(), w.opts.Servers
	for _, server := range servers {
		if !slices.Contains(names, server) {
			names = append(names, server)
		}
	}
	w.opts.Names = func() []string { return names }
	w.opts.Servers = func(name string) (sessions.Server, bool) {
		if slices.Contains(servers, name) {
			return sessions.Server{Name: name, Digest: "new " + name, Record: true, Anonymous: true}, true
		}
		return known(name)
	}
}

// groupParties plays a scenario at the address of n servers, over every transport.
func groupParties(t *testing.T, n int, plain bool, play func(t *testing.T, w *world, p party)) {
	for _, over := range slices.Sorted(maps.Keys(transports)) {
		t.Run(over, func(t *testing.T) {
			grouped(t, n, func(g *transport.Group) { g.Plain = plain }, func(t *testing.T, w *world) {
				p := transports[over](w, "")
				play(t, w, p)
				p.leave()
			})
		})
	}
}

// A client hears all servers of a group, under the names of the group, and what it says reaches
// the server that it is for. It hears each at once, also one that it uses for the first time.
func TestGroupHasTheMessagesOfAllItsServers(t *testing.T) {
	groupParties(t, 3, false, func(t *testing.T, w *world, p party) {
		w.awake("s1")
		w.backend.tool("tool1", func(r run) {
			answer := r.ask("q-1", roots)
			r.append(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9,"progress":1}}`, false)
			r.end(`{"content":[{"type":"resource_link","uri":"file:///a","name":` + string(wire.Lookup([]byte(answer), "result", "name")) + `}]}`)
		})
		w.backend.tool("tool2", func(r run) {
			r.end(`{}`)
			time.Sleep(time.Second)
			r.outside().append(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}`, false)
		})
		const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`
		for _, step := range []struct {
			say   string
			heard []string
		}{
			{`{"jsonrpc":"2.0","id":"p","method":"ping"}`, []string{`{"jsonrpc":"2.0","id":"p","result":{}}`}},
			{callOf("s1__tool1"), []string{`{"jsonrpc":"2.0","id":"s1~q-1",` + roots + `}`}},
			{`{"jsonrpc":"2.0","id":"s1~q-1","result":{"name":"n"}}`, []string{
				`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9,"progress":1}}`,
				`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"resource_link","uri":"dormouse://s1/file:///a","name":"n"}]}}`,
			}},
			{callOf("nothing"), []string{`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"there is no tool nothing here"}}`}},
			{`{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"debug"}}`, []string{`{"jsonrpc":"2.0","id":5,"result":{}}`}},
		} {
			p.say(step.say)
			commontest.SameIn(t, step.say, step.heard, p.heard())
		}
		p.say(cancel)
		all := w.taken()
		commontest.EqualIn(t, "the server got last", cancel, all[len(all)-1])

		p.leave()
		p.back() // Streamable HTTP listens from now on
		p.heard()
		p.say(callOf("s2__tool2"))
		commontest.SameIn(t, "the call", []string{resultOf(`{}`)}, p.heard())
		time.Sleep(time.Second)
		commontest.SameIn(t, "afterwards", []string{`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"dormouse://s2/a:b"}}`}, p.heard())
	})
}

// A client that comes back gets what came meanwhile, of all servers, and nothing twice.
func TestGroupGoesOn(t *testing.T) {
	for tool, uri := range map[string]string{"s1__tool1": "dormouse://s1/file:///a", "tool1": "file:///a"} {
		t.Run(tool, func(t *testing.T) {
			groupParties(t, 2, tool == "tool1", func(t *testing.T, w *world, p party) {
				proceed := make(chan bool)
				w.backend.tool("tool1", func(r run) {
					r.say("half")
					<-proceed
					r.end(`{"content":[{"type":"resource_link","uri":"file:///a","name":"a"}]}`)
				})
				w.backend.tool("tool0", func(r run) {
					r.end(`{}`)
					<-proceed
					r.outside().say("missed")
				})
				p.say(callOf(tool))
				commontest.SameIn(t, "the call", []string{said("half")}, p.heard())
				p.leave()
				proceed <- true
				time.Sleep(time.Minute)
				p.back()
				want := []string{`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"resource_link","uri":"` + uri + `","name":"a"}]}}`}
				commontest.SameIn(t, "its end", want, p.heard())
				p.say(callOf(strings.ReplaceAll(tool, "1", "0")))
				commontest.SameIn(t, "the other call", []string{resultOf(`{}`)}, p.heard())
				p.leave()
				proceed <- true
				time.Sleep(time.Minute)
				p.back()
				commontest.SameIn(t, "the other server", []string{said("missed")}, p.heard())
			})
		})
	}
}

// A server that has been called has a process of the client's own. Lists come from that process.
func TestListComesFromTheProcessThatTheClientUses(t *testing.T) {
	groupParties(t, 1, false, func(t *testing.T, w *world, p party) {
		w.keep("s0", "tools/list 2025-11-25  anyone", `{"gen":1,"list":{"tools":[{"name":"old"}]}}`)
		w.backend.tool("tools/list", func(r run) {
			r.end(fmt.Sprintf(`{"tools":[{"name":"own_%t"}]}`, r.session == sessions.MemberID(storage.ID(p.id()), "s0")))
		})
		p.say(callOf("s0__echo"))
		w.awake("s0")
		p.heard()
		p.say(list)
		commontest.Contains(t, "the list", "own_true", strings.Join(p.heard(), ""))
	})
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
		commontest.SameIn(t, "the modern era", got, toolNames(t, w.do(ask{path: "/mcp", method: "tools/list"}.request()).body))
		w.silent()
	})
}

// A list of the group does not wait for a server that takes long to start for the first
// time. The standalone stream tells the client when it is worth to list again.
func TestTheStreamOfAGroupTellsThatAServerIsListedForTheFirstTime(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		w.unlisted("s1")
		c := w.openGroup()
		stream := w.begin(c.request("GET", ""))
		<-time.After(20 * time.Second)
		w.keep("new s1", "tools/list 2025-11-25  anyone", `{"gen":1,"says":true,"list":{"tools":[{"name":"late","inputSchema":{"type":"object"}}]}}`)
		got := stream.end().datas(t)
		want := []string{
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`,
		}
		commontest.Same(t, want, got)
		if names := toolNames(t, c.post(list).body); !slices.Contains(names, "s1__late") {
			t.Errorf("the list has %q", names)
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
		commontest.SameIn(t, "own path (-) and group (+)", count(own, "tool3"), count(one, "s3__tool3"))
	})
}

// A kept index finds the server of a name without the lists, until a record changes. A name that
// nobody has costs no more.
func TestGroupWithoutPrefixesKeepsWhatNamesStandFor(t *testing.T) {
	grouped(t, 50, func(g *transport.Group) { g.Plain = true }, func(t *testing.T, w *world) {
		counting := storagetest.NewCounting(w.store)
		w.opts.Kept = &aggregate.Kept{}
		w.store = w.opts.Kept.Watch(counting)
		w.served = w.store
		c := w.openGroup()
		// cost calls a tool that there is or is not, and asserts how often the lists are read.
		cost := func(what, tool string, known bool, lists int) storagetest.Counts {
			t.Helper()
			counting.Reset()
			a := c.call(tool)
			got := counting.Counts()
			if found := wire.Lookup([]byte(a.body), "result") != nil; found != known || got.Calls["Recorded"] != lists {
				t.Errorf("%s: %s, which costs %+v", what, a.body, got)
			}
			return got
		}
		c.call("s7__echo") // opens the session there
		c.call("tool7")
		time.Sleep(2 * time.Second)
		direct, plain := cost("with a prefix", "s7__echo", true, 0), cost("without", "tool7", true, 0)
		if plain.Reads > direct.Reads+1 || plain.Writes != direct.Writes {
			t.Errorf("a call costs %+v, %+v with a prefix", plain, direct)
		}
		cost("an index older than a second", "new", false, 1)
		cost("a newer index", "newer", false, 0)
		w.keepList("s9", "tools/list", `{"tools":[{"name":"new"}]}`)
		cost("after the change of a list", "new", true, 1)
	})
}

func TestListAsksOnlyServersThatHaveNeverBeenListed(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.unlisted("fresh", "bad", "late")
		w.backend.tool("tools/list", func(r run) {
			switch s, _, _ := r.w.store.Load(r.ctx, r.session, ""); s.Server {
			case "bad":
				r.fail(`{"code":-32603,"message":"it has exited"}`)
				return
			case "late":
				time.Sleep(time.Minute)
			}
			r.end(`{"tools":[{"name":"new","inputSchema":{"type":"object"}}]}`)
		})
		c := w.openGroup()
		a := c.post(list)
		if got := toolNames(t, a.body); len(got) != 7 || got[6] != "fresh__new" {
			t.Errorf("the tools are %q", got)
		}
		commontest.EqualIn(t, "_meta is", `{"dormouse/unavailable":{"bad":"it has exited","late":"it has not answered within 20s; ask for the list again"}}`, string(wire.Lookup([]byte(a.body), "result", "_meta")))
		commontest.EqualIn(t, "messages to the servers", 3, len(w.backend.got))
	})
}

// The file's description of a tool holds wherever the tool is listed: at /mcp and at the
// server's own address, from the record and from the server.
func TestDescriptionsOfTheFileReplaceThoseOfTheServer(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		words := storage.ToolFilter{Says: map[string]string{"tool1": "our \"words\"", "echo": "says it again", "gone": "x"}}
		w.change(func(s *sessions.Server) { s.Tools = words })
		describes := func(what, body, prefix string) {
			t.Helper()
			for _, want := range []string{
				`{"name":"` + prefix + `tool1","description":"our \"words\"","inputSchema":{"type":"object","x":1.0}}`,
				`{"description":"says it again","name":"` + prefix + `echo","inputSchema":{"type":"object"}}`,
			} {
				commontest.Contains(t, what, want, body)
			}
		}
		describes("/mcp", w.openGroup().post(list).body, "s1__")
		describes("the record", w.visitAt("/s1/mcp").post(list).body, "")
		w.change(func(s *sessions.Server) { s.Digest = "another" }) // which has no list
		w.backend.tool("tools/list", func(r run) {
			r.end(`{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"tool1","description":"does thing 1","inputSchema":{"type":"object","x":1.0}}]}`)
		})
		describes("the server", w.visitAt("/s1/mcp").post(list).body, "")
		w.opts.SignIn = mayNot{"tool1"}
		commontest.SameIn(t, "what a caller sees who may not call tool1", []string{"echo"}, toolNames(t, w.visitAt("/s1/mcp").post(list).body))
	})
}

// mayNot is a sign-in whose callers may not call a tool.
type mayNot struct{ tool string }

func (m mayNot) Tools(storage.Identity, string) storage.ToolFilter {
	return storage.ToolFilter{Deny: []string{m.tool}}
}
func (mayNot) Permit(storage.Identity, string, []string) error { return nil }
func (mayNot) Metadata(_, _ string) []byte                     { return nil }
func (mayNot) MetadataURL(string) string                       { return "" }
func (mayNot) Challenge(string, bool, error) string            { return "" }

func TestGroupHasItsServersOnly(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.opts.Groups = func(name string) (transport.Group, bool) {
			return transport.Group{Servers: []string{"s2", "s0"}}, name == "dev"
		}
		c := w.visitAt("/g/dev/mcp")
		commontest.Same(t, []string{"s0__echo", "s0__tool0", "s2__echo", "s2__tool2"}, toolNames(t, c.post(list).body))
		if a := c.call("s1__echo"); a.status != 200 || len(w.backend.got) > 0 {
			t.Errorf("a server of no group: %s", a.body)
		}
		if a := c.call("s2__echo"); a.status != 200 || len(w.backend.got) != 1 {
			t.Errorf("got %s", a.body)
		}
		w.openSSE("g/dev", "").open()
		for path, want := range map[string]string{"/g/ops/mcp": "there is no group ops", "/g/ops/sse": "there is no group ops", "/g/dev/ticket": "nothing at this path"} { // tickets are off
			a := w.do(request("POST", path, initialize))
			a.is(t, path, 404, wire.CodeServer)
			commontest.Contains(t, path, want, a.body)
		}
	})
}
