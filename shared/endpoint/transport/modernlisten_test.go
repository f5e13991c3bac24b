package transport_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

const listenable = `{"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true,"listChanged":true}},"serverInfo":{"name":"srv","version":"1"}}`

// listening is a modern client's request for notifications of changes at the server "known".
func listening(filter string) ask {
	return ask{server: "known", id: "41", method: "subscriptions/listen", params: `"notifications":` + filter}
}

// pushed sends a message outside of requests, in the session of the principal ada at the
// server "known".
func (w *world) pushed(raw string) {
	w.t.Helper()
	id := sessions.PinnedID(sessions.Caller{Server: sessions.Server{Name: "known"}, Identity: storage.Identity{Tenant: "tenant", Principal: "ada"}})
	w.outside(id).append(raw, false)
}

const stamp = `"_meta":{"io.modelcontextprotocol/subscriptionId":41}`

func acknowledged(filter string) string {
	return `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{` + stamp + `,"notifications":` + filter + `}}`
}

const (
	updated  = `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"`
	listenTo = `{"resourceSubscriptions":["file:///a"]}`
)

const ended = `{"jsonrpc":"2.0","id":41,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":41,"io.modelcontextprotocol/serverInfo":{"name":"srv","version":"1"}}}}`

func TestModernListenHearsOfChanges(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.handshake(t, listenable)
		w.opts.Limit = time.Minute
		w.do(ask{server: "known", method: "tools/list"}.request()).result(t)
		w.pushed(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"before":1}}`)
		one, two := w.begin(listening(`{"toolsListChanged":true}`).request()), w.begin(listening(`{"resourcesListChanged":true}`).request())
		synctest.Wait()
		w.pushed(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		w.pushed(`{"jsonrpc":"2.0","method":"notifications/resources/list_changed","params":{"x":1,"_meta":{"a":2,"io.modelcontextprotocol/subscriptionId":"forged"}}}`)
		w.pushed(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}`)
		w.pushed(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"}}`)
		want := []string{acknowledged(`{"toolsListChanged":true}`), `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{` + stamp + `}}`, ended}
		commontest.Same(t, want, one.end().datas(t))
		want = []string{
			acknowledged(`{"resourcesListChanged":true}`),
			`{"jsonrpc":"2.0","method":"notifications/resources/list_changed","params":{"x":1,"_meta":{"a":2,"io.modelcontextprotocol/subscriptionId":41}}}`, ended,
		}
		commontest.Same(t, want, two.end().datas(t))
	})
}

// subscriptions makes the server "known" accept subscriptions to every resource but
// file:///no. The returned function lists the requests that the server got.
func subscriptions(w *world) func() []string {
	respond := func(r run) {
		msgs, _, err := wire.ParseBody([]byte(r.raw))
		commontest.Check(w.t, err)
		for i, m := range msgs {
			end := `"result":{}`
			if uri, _ := wire.String(wire.Lookup(m.Params, "uri")); uri == "file:///no" {
				end = `"error":{"code":-32602,"message":"no"}`
			}
			r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[i])+`,`+end+`}`, i == len(msgs)-1)
		}
	}
	w.backend.tool("resources/subscribe", respond)
	w.backend.tool("resources/unsubscribe", respond)
	return func() []string {
		w.backend.mu.Lock()
		defer w.backend.mu.Unlock()
		var asked []string
		for _, raw := range w.backend.got {
			msgs, _, err := wire.ParseBody([]byte(raw))
			if err != nil {
				panic(err)
			}
			for _, m := range msgs {
				uri, _ := wire.String(wire.Lookup(m.Params, "uri"))
				asked = append(asked, strings.TrimPrefix(m.Method, "resources/")+" "+uri)
			}
		}
		return asked
	}
}

func TestModernListenSubscribesWhileItIsHeld(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.handshake(t, listenable)
		asked := subscriptions(w)
		w.opts.Limit = time.Minute
		listen := w.begin(listening(`{"resourceSubscriptions":["file:///b","file:///no","file:///a","file:///a"]}`).request())
		time.Sleep(time.Second)
		w.pushed(updated + `}}`)
		w.pushed(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///no"}}`)
		want := []string{
			acknowledged(`{"resourceSubscriptions":["file:///a","file:///b"]}`),
			updated + `,` + stamp + `}}`, ended,
		}
		commontest.Same(t, want, listen.end().datas(t))
		calls := []string{
			"subscribe file:///a", "subscribe file:///b", "subscribe file:///no",
			"unsubscribe file:///a", "unsubscribe file:///b", "unsubscribe file:///no",
		}
		commontest.Same(t, calls, asked())
	})
}

func TestModernResourceStaysSubscribedForTheOtherListener(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.handshake(t, listenable)
		asked := subscriptions(w)
		w.opts.Limit = time.Minute
		first, second := w.begin(listening(listenTo).request()), w.begin(listening(listenTo).request())
		time.Sleep(10 * time.Second)
		first.gone()
		commontest.Same(t, []string{"subscribe file:///a", "subscribe file:///a"}, asked())
		w.pushed(updated + `}}`)
		commontest.Equal(t, 3, len(second.end().datas(t)))
		if got := asked(); len(got) != 3 || got[2] != "unsubscribe file:///a" {
			t.Errorf("the server got %s", got)
		}
	})
}

func TestModernListenIsRefused(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.handshake(t, listenable)
		for _, filter := range []string{`null`, `[]`, `{"toolsListChanged":1}`, `{"resourceSubscriptions":"file:///a"}`, `{"resourceSubscriptions":[1]}`} {
			w.do(listening(filter).request()).is(t, filter, 400, wire.CodeInvalidParams)
		}
	})
}

// a listener that cannot go on gets no result, but an error.
func TestListenerThatCannotGoOnGetsNoResult(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.handshake(t, listenable)
		listener := w.begin(listening(`{"toolsListChanged":true}`).request())
		listener.seen()
		w.down("Wait")
		w.pushed(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`) // the next one cannot be found
		datas := listener.end().datas(t)
		last := []byte(datas[len(datas)-1])
		if len(datas) != 3 || string(wire.Lookup(last, "id")) != "41" || wire.Lookup(last, "error") == nil || wire.Lookup(last, "result") != nil {
			t.Errorf("it ends with %s", last)
		}
	})
}
