package transport_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func mirrored(word string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mirror","arguments":{"word":"` + word + `"}}}`
}

// C-32: two POSTs have the same id: of two sessions, or of one session one after the
// other. Each gets its own response, also when it is resumed later.
func TestCallsWithTheSameIDKeepTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.backend.tool("mirror", func(r run) {
			word, _ := wire.String(wire.Lookup([]byte(r.raw), "params", "arguments", "word"))
			r.say(word)
			time.Sleep(2 * time.Second) // calls overlap
			r.end(`{"word":"` + word + `"}`)
		})
		a, b := w.visit("quiet"), w.visit("quiet")
		one, two := a.w.begin(a.request("POST", mirrored("a"))), b.w.begin(b.request("POST", mirrored("b")))
		first, second := one.end(), two.end()
		third := a.post(mirrored("c"))
		for word, x := range map[string]struct {
			v *client
			a *answer
		}{"a": {a, first}, "b": {b, second}, "c": {a, third}} {
			want := []string{said(word), resultOf(`{"word":"` + word + `"}`)}
			commontest.SameIn(t, word, want, x.a.datas(t))
			commontest.SameIn(t, word+", taken up", want, x.v.get(x.a.events(t)[0].ID).datas(t))
		}
	})
}

// The ids of events and sessions that are no good have errors that say what is wrong with them.
func TestErrorsAreToldApart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v, gone := w.visit("pushy"), w.visit("pushy")
		gone.del()
		for id, part := range map[string]string{"x": "index", "-1": "index", "1.!/a": "nonce", "1/a/b": "stream", strings.Repeat("1", 101): "length"} {
			a := v.get(id)
			a.is(t, id, http.StatusBadRequest, wire.CodeInvalidRequest)
			commontest.Contains(t, id, "malformed "+part, a.body)
		}
		gone.call("x").is(t, "a session that has ended", http.StatusNotFound, wire.CodeSessionNotFound)
		w.at(v.path, string(storage.NewID())).call("x").is(t, "an unknown session", http.StatusNotFound, wire.CodeSessionNotFound)
		v.get("0/"+string(storage.NewStreamID())).is(t, "a stream that does not exist", http.StatusOK, 0)
	})
}
