package transport_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// listened makes a world whose server "known" reports changes. The returned function
// lists the subscriptions that it was asked for.
func listened(t *testing.T, w *world) func() []string {
	t.Helper()
	w.handshake(t, listenable)
	w.awake("known")
	return subscriptions(w)
}

const (
	updated  = `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"`
	listenTo = `{"resourceSubscriptions":["file:///a"]}`
)

// a listener gets notifications on the response to its POST. When it closes the
// response, its subscription ends, and the server is told so. Other requests of the
// client meanwhile get their own responses.
func TestListenerThatClosesItsResponseHasEndedItsSubscription(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		asked := listened(t, w)
		listener := w.begin(listening(listenTo).request())
		listener.seen()
		w.pushed(updated + `}}`)
		w.do(ask{server: "known", method: "tools/list"}.request()).result(t)
		want := []string{acknowledged(listenTo), updated + `,` + stamp + `}}`}
		if diff := cmp.Diff(want, listener.seen().datas(t)); diff != "" || listener.isOver() {
			t.Errorf("-want +got:\n%s", diff)
		}
		listener.leave()
		commontest.SameIn(t, "the server was asked", []string{"subscribe file:///a", "tools/list ", "unsubscribe file:///a"}, asked())
	})
}

// a listener that cannot go on gets no result, but an error.
func TestListenerThatCannotGoOnGetsNoResult(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		listened(t, w)
		listener := w.begin(listening(`{"toolsListChanged":true}`).request())
		listener.seen()
		w.down("Wait")
		w.pushed(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`) // the server will fail to find the next one
		datas := listener.end().datas(t)
		want := []string{acknowledged(`{"toolsListChanged":true}`), `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{` + stamp + `}}`}
		commontest.Same(t, want, datas[:len(datas)-1])
		if last := []byte(datas[len(datas)-1]); string(wire.Lookup(last, "id")) != "41" || wire.Lookup(last, "error") == nil || wire.Lookup(last, "result") != nil {
			t.Errorf("it ends with %s", last)
		}
	})
}
