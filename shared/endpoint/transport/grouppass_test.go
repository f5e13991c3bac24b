package transport_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Each message below goes only to the server that it names, with the names that this
// server uses. The answer comes back with the names that the client uses.
func TestWhatNamesAServerGoesToItAlone(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.backend.tool("completion/complete", func(r run) { r.end(`{"completion":{"values":["x"]}}`) })
		w.backend.tool("tasks/get", func(r run) { r.end(`{"taskId":"t-1","status":"working"}`) })
		w.backend.tool("tasks/cancel", func(r run) { r.end(`{"taskId":"t-1","status":"cancelled"}`) })
		c := w.openGroup()
		for _, tt := range []struct{ sent, got, answer string }{
			{
				`"completion/complete","params":{"ref":{"type":"ref/prompt","name":"s1__p"},"argument":{"name":"a","value":"s1__x"}}`,
				`"completion/complete","params":{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":"s1__x"}}`, `{"completion":{"values":["x"]}}`,
			},
			{
				`"completion/complete","params":{"ref":{"type":"ref/resource","uri":"dormouse://s2/a:{b}"},"argument":{"name":"b","value":""}}`,
				`"completion/complete","params":{"ref":{"type":"ref/resource","uri":"a:{b}"},"argument":{"name":"b","value":""}}`, `{"completion":{"values":["x"]}}`,
			},
			{`"tasks/get","params":{"taskId":"s1~t-1"}`, `"tasks/get","params":{"taskId":"t-1"}`, `{"taskId":"s1~t-1","status":"working"}`},
			{`"tasks/cancel","params":{"taskId":"s1~t-1"}`, `"tasks/cancel","params":{"taskId":"t-1"}`, `{"taskId":"s1~t-1","status":"cancelled"}`},
			{`"resources/subscribe","params":{"uri":"dormouse://s2/file:///a"}`, `"resources/subscribe","params":{"uri":"file:///a"}`, `{"content":[]}`},
		} {
			a := c.post(`{"jsonrpc":"2.0","id":"r","method":` + tt.sent + `}`)
			if want := `{"jsonrpc":"2.0","id":"r","result":` + tt.answer + `}`; a.status != 200 || a.body != want {
				t.Errorf("%s: %d %s, want %s", tt.sent, a.status, a.body, want)
			}
			commontest.Same(t, []string{`{"jsonrpc":"2.0","id":"r","method":` + tt.got + `}`}, w.taken())
		}
	})
}

// A request that no server can be found for is answered, so its client does not wait.
func TestARequestForNoServerOfAGroupIsAnswered(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		for sent, want := range map[string]string{
			`"of/nobody"`:                                 `{"code":-32601,"message":"there is no method of/nobody at the address of several servers"}`,
			`"tasks/get","params":{"taskId":"t"}`:         `{"code":-32602,"message":"no server here has what tasks/get names"}`,
			`"tasks/cancel","params":{}`:                  `{"code":-32602,"message":"no server here has what tasks/cancel names"}`,
			`"tools/call","params":{"name":"s9__echo"}`:   `{"code":-32602,"message":"there is no tool s9__echo here (did you mean s0__echo?)"}`,
			`"tools/call","params":{"name":"echo"}`:       `{"code":-32602,"message":"there is no tool echo here (did you mean s0__echo or s1__echo?)"}`,
			`"tools/call","params":{"name":"weather"}`:    `{"code":-32602,"message":"there is no tool weather here"}`,
			`"tools/call","params":{}`:                    `{"code":-32602,"message":"there is no tool  here"}`,
			`"prompts/get","params":{"name":"p"}`:         `{"code":-32602,"message":"there is no prompt p here"}`,
			`"resources/read","params":{"uri":"file:/x"}`: `{"code":-32002,"message":"there is no resource file:/x here","data":{"uri":"file:/x"}}`,
		} {
			a := c.post(`{"jsonrpc":"2.0","id":"r","method":` + sent + `}`)
			if want := `{"jsonrpc":"2.0","id":"r","error":` + want + `}`; a.status != 200 || a.body != want {
				t.Errorf("%s: %d %s, want %s", sent, a.status, a.body, want)
			}
		}
		a := w.do(ask{path: "/mcp", method: "of/nobody"}.request())
		if code, _ := a.rpcError(t); a.status != 404 || code != -32601 {
			t.Errorf("in 2026-07-28: %d %s", a.status, a.body)
		}
		if len(w.backend.got) > 0 {
			t.Errorf("the servers got %s", w.backend.got)
		}
	})
}

// A log level counts for the servers that the session uses, and for those that it uses
// later.
func TestLevelOfAGroupIsThatOfItsServers(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		c.call("s0__echo")
		c.call("s1__echo")
		w.awake("s1")
		w.taken()
		level := `{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"debug"}}`
		if a := c.post(level); a.status != 200 || a.body != `{"jsonrpc":"2.0","id":5,"result":{}}` {
			t.Fatalf("%d %s", a.status, a.body)
		}
		commontest.SameIn(t, "only s1 is awake", []string{level}, w.taken())
		c.call("s2__echo")
		for _, server := range []string{"s0", "s1", "s2"} {
			s, _, err := w.store.Load(t.Context(), sessions.MemberID(storage.ID(c.session), server), "")
			if err != nil || !strings.Contains(string(s.Level), "debug") {
				t.Errorf("%s has the level %s, %v", server, s.Level, err)
			}
		}
	})
}

// A client that cancels a call names no server. The message goes to the awake servers that its
// session uses, of which one knows the call.
func TestCancelReachesTheServerOfTheCall(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		w.backend.tool("tool1", func(r run) {
			time.Sleep(10 * time.Second)
			r.end(`{"content":[]}`)
		})
		c := w.openGroup()
		w.awake("s1")
		answered := w.begin(c.request("POST", `{"jsonrpc":"2.0","id":"long","method":"tools/call","params":{"name":"s1__tool1"}}`))
		synctest.Wait()
		w.taken()
		cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"long","reason":"enough"}}`
		if a := c.post(cancel); a.status != 202 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		commontest.Same(t, []string{cancel}, w.taken())
		answered.end()
	})
}

// modernGroup runs a test of the modern era with n servers behind /mcp, which have listChanged
// for tools and subscriptions to resources.
func modernGroup(t *testing.T, n int, test func(t *testing.T, w *world)) {
	grouped(t, n, nil, func(t *testing.T, w *world) {
		for i := range n {
			w.keep(fmt.Sprintf("s%d", i), wire.V20251125, `{"protocolVersion":"2025-11-25",`+listenable[1:])
		}
		w.opts.Limit = time.Minute
		test(t, w)
	})
}

// pushedBy sends a message outside of requests, in the session of the modern client at a
// server.
func (w *world) pushedBy(server, raw string) {
	w.t.Helper()
	s, _ := w.opts.Servers(server)
	id := sessions.PinnedID(sessions.Caller{Server: s, Tenant: "tenant", Principal: "ada"})
	w.outside(id).append(raw, false)
}

// One subscription brings a client the changes of all servers, and the updates of a
// resource from the server that has it.
func TestSubscriptionAtAGroupHearsItsServers(t *testing.T) {
	modernGroup(t, 3, func(t *testing.T, w *world) {
		respond := func(r run) {
			for i, id := range r.requests {
				r.append(`{"jsonrpc":"2.0","id":`+string(id)+`,"result":{}}`, i == len(r.requests)-1)
			}
		}
		w.backend.tool("resources/subscribe", respond)
		w.backend.tool("resources/unsubscribe", respond)
		w.backend.tool("tool2", func(r run) { r.end(`{"content":[]}`) })
		for _, server := range []string{"s0", "s1", "s2"} { // opens the sessions
			w.do(ask{path: "/mcp", method: "tools/call", params: `"name":"` + server + `__echo","arguments":{}`}.request()).result(t)
		}
		w.taken()
		listens := w.begin(ask{
			path: "/mcp", id: "41", method: "subscriptions/listen",
			params: `"notifications":{"toolsListChanged":true,"resourceSubscriptions":["dormouse://s1/file:///a","file:///of-nobody"]}`,
		}.request())
		synctest.Wait()
		if got := strings.Join(w.taken(), "\n"); strings.Count(got, "resources/subscribe") != 1 || !strings.Contains(got, `"uri":"file:///a"`) {
			t.Errorf("the servers got %s", got)
		}
		w.pushedBy("s0", `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		time.Sleep(time.Second)
		w.pushedBy("s1", `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"}}`)
		time.Sleep(time.Second)
		w.pushedBy("s2", `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"}}`) // of no subscription
		datas := listens.end().datas(t)
		want := []string{
			acknowledged(`{"resourceSubscriptions":["dormouse://s1/file:///a"],"toolsListChanged":true}`),
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{` + stamp + `}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"dormouse://s1/file:///a",` + stamp + `}}`,
		}
		if len(datas) != 4 || !strings.Contains(datas[3], `"id":41,"result"`) {
			t.Fatalf("got %s", strings.Join(datas, "\n"))
		}
		commontest.Same(t, want, datas[:3])
	})
}

// A server with the resource takes a while to acknowledge a subscription. The client then hears
// what other servers have told meanwhile.
func TestSubscriptionAtAGroupLosesNoChangeWhileAServerIsSlow(t *testing.T) {
	modernGroup(t, 2, func(t *testing.T, w *world) {
		respond := func(r run) {
			time.Sleep(10 * time.Second)
			r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"result":{}}`, true)
		}
		w.backend.tool("resources/subscribe", respond)
		w.backend.tool("resources/unsubscribe", respond)
		for _, server := range []string{"s0", "s1"} { // opens the sessions
			w.do(ask{path: "/mcp", method: "tools/call", params: `"name":"` + server + `__echo","arguments":{}`}.request()).result(t)
		}
		listens := w.begin(ask{
			path: "/mcp", id: "41", method: "subscriptions/listen",
			params: `"notifications":{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["dormouse://s1/file:///a"]}`,
		}.request())
		time.Sleep(5 * time.Second)
		w.pushedBy("s0", `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		w.pushedBy("s0", `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`)
		want := []string{
			acknowledged(`{"resourceSubscriptions":["dormouse://s1/file:///a"],"resourcesListChanged":true,"toolsListChanged":true}`),
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{` + stamp + `}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/list_changed","params":{` + stamp + `}}`,
		}
		if datas := listens.end().datas(t); len(datas) != 4 || !slices.Equal(want, datas[:3]) {
			t.Errorf("got %s", strings.Join(datas, "\n"))
		}
	})
}

// A call through /mcp that takes long becomes a task, whose name says which server has it.
func TestTaskOfAGroup(t *testing.T) {
	modernGroup(t, 2, func(t *testing.T, w *world) {
		w.after("tool1", 10*time.Second)
		w.after("tool0", time.Hour)
		call := func(tool string) task {
			return w.becomes(ask{path: "/mcp", method: "tools/call", caps: taskCaps, params: `"name":"` + tool + `","arguments":{}`})
		}
		of := func(made task, method string) ask { a := made.of(method, ""); a.path = "/mcp"; return a }
		made := call("s1__tool1")
		if !strings.HasPrefix(made.TaskID, "s1~") {
			t.Fatalf("the task is called %q", made.TaskID)
		}
		got := taskOf(t, w.do(of(made, "tasks/get").request()).result(t))
		if got.Status != "working" || got.TaskID != made.TaskID {
			t.Errorf("got %+v", got)
		}
		listens := w.begin(ask{path: "/mcp", id: "41", method: "subscriptions/listen", caps: taskCaps, params: `"notifications":{"taskIds":["` + made.TaskID + `"]}`}.request())
		time.Sleep(30 * time.Second)
		if got = taskOf(t, w.do(of(made, "tasks/get").request()).result(t)); got.Status != "completed" || !strings.Contains(string(got.Result), `"text":"tool1"`) {
			t.Errorf("got %+v", got)
		}
		datas := listens.end().datas(t)
		if len(datas) != 3 || datas[0] != acknowledged(`{"taskIds":["`+made.TaskID+`"]}`) || !strings.Contains(datas[1], `"status":"completed"`) || !strings.Contains(datas[1], `"taskId":"`+made.TaskID+`"`) {
			t.Errorf("the listener heard %s", strings.Join(datas, "\n"))
		}
		long := call("s0__tool0")
		w.acked(of(long, "tasks/cancel"))
		if got = taskOf(t, w.do(of(long, "tasks/get").request()).result(t)); got.Status != "cancelled" {
			t.Errorf("got %+v", got)
		}
		// A server does not know another server's task, even if the name of the task
		// begins with the server's own name.
		other := made
		other.TaskID = "s0" + strings.TrimPrefix(made.TaskID, "s1")
		if a := w.do(of(other, "tasks/get").request()); !strings.Contains(a.body, `"error"`) {
			t.Errorf("a task of s1 at s0: %s", a.body)
		}
	})
}

// With tasks of 2025-11-25, the list has those of all servers that the session uses.
func TestTaskListOfAGroup(t *testing.T) {
	grouped(t, 3, func(*transport.Group) {}, func(t *testing.T, w *world) {
		w.backend.tool("tasks/list", func(r run) {
			s, _, err := r.w.store.Load(r.ctx, r.session, "")
			commontest.Check(t, err)
			if s.Server == "s1" {
				r.fail(`{"code":-32601,"message":"no tasks here"}`)
				return
			}
			r.end(`{"tasks":[{"taskId":"of ` + s.Server + `","status":"working"}]}`)
		})
		c := w.openGroup()
		for _, server := range []string{"s0", "s1", "s2"} {
			c.call(server + "__echo")
		}
		a := c.post(`{"jsonrpc":"2.0","id":3,"method":"tasks/list"}`)
		if want := `{"jsonrpc":"2.0","id":3,"result":{"tasks":[{"taskId":"s0~of s0","status":"working"},{"taskId":"s2~of s2","status":"working"}]}}`; a.body != want {
			t.Errorf("got %s", a.body)
		}
	})
}
