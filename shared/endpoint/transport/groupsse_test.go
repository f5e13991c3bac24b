package transport_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// ofMember returns the session that a session of a group has with a server.
func (c *sseClient) ofMember(server string) storage.ID {
	return sessions.MemberID(storage.ID(c.session), server)
}

// pushes sends a message of a server outside of requests.
func (c *sseClient) pushes(server, text string) {
	c.w.t.Helper()
	a := storage.Address{Session: c.ofMember(server), Stream: storage.Standalone, LegacySSE: true}
	c.w.outside(c.ofMember(server)).to(a).say(text)
	synctest.Wait()
}

func TestGroupOverSSEHasTheMessagesOfAllItsServers(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.backend.tool("tool1", func(r run) {
			r.append(`{"jsonrpc":"2.0","id":"q-1","method":"roots/list"}`, false)
			r.end(`{"content":[{"type":"resource_link","uri":"file:///a","name":"a"}]}`)
		})
		c := w.openSSE("", "").open()
		c.accepted(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
		c.accepted(callOf("s1__tool1"))
		time.Sleep(time.Second) // the stream has found the session with s1
		w.awake("s1")
		c.accepted(`{"jsonrpc":"2.0","id":"s1~q-1","result":{"roots":[]}}`)
		c.accepted(callOf("s2__echo"))
		time.Sleep(time.Second)
		c.pushes("s2", "two")
		c.pushes("s1", "one")
		c.accepted(`{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"debug"}}`)
		c.accepted(callOf("nothing"))
		c.accepted(`{"jsonrpc":"2.0","id":6,"method":"of/nobody"}`)
		cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`
		w.taken()
		c.accepted(cancel)
		commontest.Same(t, []string{cancel}, slicesWith(w.taken(), "cancelled")[:1])
		commontest.Same(t, []string{`{"jsonrpc":"2.0","id":"q-1","result":{"roots":[]}}`}, w.backend.answers)
		got := c.messages()
		if len(got) == 0 || !strings.Contains(got[0], `"protocolVersion":"2025-11-25"`) || !strings.Contains(got[0], `"instructions":"# s0`) {
			t.Fatalf("got %q", got)
		}
		want := []string{
			`{"jsonrpc":"2.0","id":"p","result":{}}`,
			`{"jsonrpc":"2.0","id":"s1~q-1","method":"roots/list"}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"resource_link","uri":"dormouse://s1/file:///a","name":"a"}]}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`,
			said("two"), said("one"),
			`{"jsonrpc":"2.0","id":5,"result":{}}`,
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"there is no tool nothing here"}}`,
			`{"jsonrpc":"2.0","id":6,"error":{"code":-32601,"message":"there is no method of/nobody at the address of several servers"}}`,
		}
		commontest.Same(t, want, got[1:])
	})
}

func slicesWith(texts []string, part string) (out []string) {
	for _, text := range texts {
		if strings.Contains(text, part) {
			out = append(out, text)
		}
	}
	return out
}

// The lists come from the records, as over Streamable HTTP. A server that has never been
// listed is asked, and nothing but the list gets into the client's stream.
func TestGroupOverSSEListsItsServers(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		names := append(w.opts.Names(), "fresh")
		known := w.opts.Servers
		w.opts.Names = func() []string { return names }
		w.opts.Servers = func(name string) (sessions.Server, bool) {
			if name == "fresh" {
				return sessions.Server{Name: name, Digest: name, Record: true, Anonymous: true}, true
			}
			return known(name)
		}
		w.backend.tool("tools/list", func(r run) { r.end(`{"tools":[{"name":"new","inputSchema":{"type":"object"}}]}`) })
		c := w.openSSE("", "").open()
		c.accepted(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		time.Sleep(time.Second)
		got := c.messages()
		if len(got) != 2 {
			t.Fatalf("got %q", got)
		}
		commontest.Same(t, []string{"s0__echo", "s0__tool0", "s1__echo", "s1__tool1", "fresh__new"}, toolNames(t, got[1]))
	})
}

// A client that comes back with the id of its last event gets what came meanwhile, of all
// servers, and nothing twice. So does a client that names its session only.
func TestGroupOverSSEGoesOn(t *testing.T) {
	for _, by := range []string{"the id of the last event", "the session"} {
		grouped(t, 3, func(g *transport.Group) { g.Servers = []string{"s0", "s2"} }, func(t *testing.T, w *world) {
			of := w.opts.Groups
			w.opts.Groups = func(name string) (transport.Group, bool) { g, _ := of(""); return g, name == "dev" }
			c := w.openSSE("g/dev", "").open()
			c.accepted(callOf("s0__echo"))
			time.Sleep(time.Second)
			c.pushes("s0", "one")
			first := c.gone()
			c.pushes("s0", "two")
			c.accepted(callOf("s2__echo"))
			c.pushes("s2", "three")
			query, headers := "?sessionId="+c.session, []string{}
			if by != "the session" {
				query, headers = "", []string{"Last-Event-ID", first.lastID(t)}
			}
			again := w.openSSE("g/dev", query, headers...)
			time.Sleep(time.Second)
			c.pushes("s0", "four")
			got := again.messages()
			if want := []string{said("two"), called, said("three"), said("four")}; len(got) != 4 || cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))) != "" {
				t.Errorf("by %s: %q after %q", by, got, messagesOf(t, first))
			}
		})
	}
}

func TestGroupOverSSEIsOfItsPrincipalOnly(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		c := w.openSSE("", "").open()
		for _, body := range []string{callOf("s1__echo"), callOf("nothing"), `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, initialize} {
			if a := c.post(body, "Authorization", "Bearer eve"); a.status != http.StatusNotFound {
				t.Errorf("%s: %d %s", body, a.status, a.body)
			}
		}
		if a := w.do(request("GET", "/sse?sessionId="+c.session, "", "Accept", "text/event-stream", "Authorization", "Bearer eve")); a.status != http.StatusNotFound {
			t.Errorf("the stream: %d %s", a.status, a.body)
		}
		if got := c.messages(); len(got) != 1 {
			t.Errorf("the stream has %q", got)
		}
		if len(w.backend.got) > 0 {
			t.Errorf("the servers got %s", w.backend.got)
		}
	})
}

// If the function of a POST dies between the mark and the session, the next POST opens
// the session, and the mark costs no more reads.
func TestGroupOverSSEAMarkWithoutASessionIsForgotten(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		counted := w.count()
		c := w.openSSE("", "").open()
		h := sessions.New(w.store, w.backend, sessions.Limits{EventAge: time.Hour})
		commontest.OK(t, h.Say(t.Context(), storage.ID(c.session), []byte(`{"jsonrpc":"2.0","method":"notifications/dormouse/joined","params":{"server":"s1"}}`)))
		time.Sleep(time.Minute)
		counted.Reset()
		time.Sleep(time.Minute)
		if got := counted.Counts(); got.Reads > 60 {
			t.Errorf("a minute of silence costs %+v", got)
		}
		c.accepted(callOf("s1__echo"))
		time.Sleep(time.Second)
		if got := c.messages(); len(got) != 2 || got[1] != called {
			t.Errorf("got %q", got)
		}
	})
}

// TypeScript's client opens a new stream when its own was cut, and believes that it still has
// its old session. So it sends no initialize.
func TestGroupOverSSEServesAClientThatSendsNoInitialize(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		c := w.openSSE("", "")
		c.accepted(callOf("s1__tool1"))
		time.Sleep(time.Second)
		commontest.Same(t, []string{`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`}, c.messages())
		s, _, err := w.store.Load(t.Context(), c.ofMember("s1"), "")
		if err != nil || s.Version != "2024-11-05" || !strings.Contains(string(s.Init), "clientInfo") {
			t.Errorf("the server's session begins with %q %s, %v", s.Version, s.Init, err)
		}
	})
}
