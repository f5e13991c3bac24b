package transport_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// A request that no server can be found for is answered, so its client does not wait.
func TestARequestForNoServerOfAGroupIsAnswered(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		c := w.openGroup()
		for sent, want := range map[string]string{
			`"of/nobody"`:                                 `{"code":-32601,"message":"there is no method of/nobody at the address of several servers"}`,
			`"tasks/get","params":{"taskId":"t"}`:         `{"code":-32602,"message":"no server here has what tasks/get names"}`,
			`"tools/call","params":{"name":"s9__echo"}`:   `{"code":-32602,"message":"there is no tool s9__echo here"}`,
			`"tools/call","params":{"name":"echo"}`:       `{"code":-32602,"message":"there is no tool echo here"}`,
			`"tools/call","params":{"name":"weather__x"}`: `{"code":-32602,"message":"server \"weather\" is not served: WEATHER_KEY is not set (servers.json:14:32)"}`,
			`"resources/read","params":{"uri":"file:/x"}`: `{"code":-32002,"message":"there is no resource file:/x here","data":{"uri":"file:/x"}}`,
		} {
			a := c.post(`{"jsonrpc":"2.0","id":"r","method":` + sent + `}`)
			commontest.EqualIn(t, sent, `{"jsonrpc":"2.0","id":"r","error":`+want+`}`, a.body)
		}
		c.post(`{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"loud"}}`).is(t, "an unknown level", 200, wire.CodeInvalidParams)
		w.do(ask{path: "/mcp", method: "of/nobody"}.request()).is(t, "in 2026-07-28", 404, wire.CodeMethodNotFound)
		c.version = wire.V20250326
		const pings, unknown = `{"jsonrpc":"2.0","id":"p","method":"ping"}`, `{"jsonrpc":"2.0","id":"r","method":"of/nobody"}`
		got := c.post("[" + initialized + "," + pings + "," + pings + "," + unknown + "]").body
		const pong = `{"jsonrpc":"2.0","id":"p","result":{}}`
		commontest.EqualIn(t, "a batch", "["+pong+","+pong+`,{"jsonrpc":"2.0","id":"r","error":{"code":-32601,"message":"there is no method of/nobody at the address of several servers"}}]`, got)
		commontest.EqualIn(t, "a batch without a request", 202, c.post("["+initialized+"]").status)
		c.post("["+callOf("s0__echo")+","+pings+"]").is(t, "a batch for a server and for none", 400, wire.CodeInvalidRequest)
		w.silent()
	})
}

// modernGroup runs a test of the modern era with n servers behind /mcp, which have listChanged
// for tools and subscriptions to resources. The client has used each of them. A server takes a
// while to acknowledge a subscription.
func modernGroup(t *testing.T, n int, acknowledges time.Duration, test func(t *testing.T, w *world)) {
	grouped(t, n, nil, func(t *testing.T, w *world) {
		for i := range n {
			w.keep(fmt.Sprintf("s%d", i), wire.V20251125, `{"protocolVersion":"2025-11-25",`+listenable[1:])
			w.do(ask{path: "/mcp", method: "tools/call", params: fmt.Sprintf(`"name":"s%d__echo","arguments":{}`, i)}.request()).result(t)
		}
		for _, method := range []string{"resources/subscribe", "resources/unsubscribe"} {
			w.backend.tool(method, func(r run) { time.Sleep(acknowledges); r.end(`{}`) })
		}
		w.opts.Limit = time.Minute
		w.taken()
		test(t, w)
	})
}

// listensTo opens a subscription at the group.
func (w *world) listensTo(notifications string) *conn {
	c := w.begin(ask{path: "/mcp", id: "41", method: "subscriptions/listen", caps: taskCaps, params: `"notifications":` + notifications}.request())
	time.Sleep(time.Second)
	return c
}

// pushedBy sends a message outside of requests, in the session of the modern client at a server.
func (w *world) pushedBy(server, raw string) {
	w.t.Helper()
	s, _ := w.opts.Servers(server)
	id := sessions.PinnedID(sessions.Caller{Server: s, Identity: storage.Identity{Tenant: "tenant", Principal: "ada"}})
	w.outside(id).append(raw, false)
	time.Sleep(time.Second)
}

const toolsChanged, resourcesChanged = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"`, `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"`

// One subscription brings a client the changes of all servers, and the updates of a
// resource from the server that has it. A server that takes a while to acknowledge its part
// delays no change of another one.
func TestSubscriptionAtAGroupHearsItsServers(t *testing.T) {
	modernGroup(t, 3, 10*time.Second, func(t *testing.T, w *world) {
		listens := w.listensTo(`{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["dormouse://s1/file:///a","file:///of-nobody"]}`)
		w.pushedBy("s0", toolsChanged+`}`)
		w.pushedBy("s0", resourcesChanged+`}`)
		time.Sleep(10 * time.Second)
		if got := strings.Join(w.taken(), "\n"); strings.Count(got, "resources/subscribe") != 1 || !strings.Contains(got, `"uri":"file:///a"`) {
			t.Errorf("the servers got %s", got)
		}
		w.pushedBy("s1", updated+`}}`)
		w.pushedBy("s2", updated+`}}`) // of no subscription
		datas, want := listens.end().datas(t), []string{
			acknowledged(`{"resourceSubscriptions":["dormouse://s1/file:///a"],"resourcesListChanged":true,"toolsListChanged":true}`),
			toolsChanged + `,"params":{` + stamp + `}}`, resourcesChanged + `,"params":{` + stamp + `}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"dormouse://s1/file:///a",` + stamp + `}}`,
		}
		last := len(datas) - 1
		commontest.Contains(t, "it ends with", `"id":41,"result"`, datas[last])
		commontest.Same(t, want, datas[:last])
	})
}

// A call through /mcp that takes long becomes a task, whose name says which server has it.
func TestTaskOfAGroup(t *testing.T) {
	modernGroup(t, 2, 0, func(t *testing.T, w *world) {
		w.after("tool1", 10*time.Second)
		w.after("tool0", time.Hour)
		call := func(tool string) task {
			return w.becomes(ask{path: "/mcp", method: "tools/call", caps: taskCaps, params: `"name":"` + tool + `","arguments":{}`})
		}
		of := func(made task, method string) ask { a := made.of(method, ""); a.path = "/mcp"; return a }
		get := func(made task) task { return taskOf(t, w.do(of(made, "tasks/get").request()).result(t)) }
		made := call("s1__tool1")
		if got := get(made); !strings.HasPrefix(made.TaskID, "s1~") || got.Status != "working" || got.TaskID != made.TaskID {
			t.Errorf("made %+v, got %+v", made, got)
		}
		listens := w.listensTo(`{"taskIds":["` + made.TaskID + `"]}`)
		time.Sleep(30 * time.Second)
		if got := get(made); got.Status != "completed" || !strings.Contains(string(got.Result), `"text":"tool1"`) {
			t.Errorf("got %+v", got)
		}
		datas := listens.end().datas(t)
		if len(datas) != 3 || datas[0] != acknowledged(`{"taskIds":["`+made.TaskID+`"]}`) || !strings.Contains(datas[1], `"status":"completed"`) || !strings.Contains(datas[1], `"taskId":"`+made.TaskID+`"`) {
			t.Errorf("the listener heard %s", strings.Join(datas, "\n"))
		}
		long := call("s0__tool0")
		w.acked(of(long, "tasks/cancel"))
		commontest.EqualIn(t, "it is", "cancelled", get(long).Status)
		// A server does not know another server's task, even under its own name.
		made.TaskID = "s0" + strings.TrimPrefix(made.TaskID, "s1")
		w.do(of(made, "tasks/get").request()).is(t, "a task of s1 at s0", 400, wire.CodeInvalidParams)
	})
}
