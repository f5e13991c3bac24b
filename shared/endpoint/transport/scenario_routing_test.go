package transport_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// mirror adds a tool that sends the arguments of its call as a message. After a pause it
// returns them as its result. The pause lets calls overlap.
func mirror(w *world, pause time.Duration) {
	w.backend.tool("mirror", func(r run) {
		word, _ := wire.String(wire.Lookup([]byte(r.raw), "params", "arguments", "word"))
		r.say(word)
		time.Sleep(pause)
		r.end(`{"word":"` + word + `"}`)
	})
}

func mirrored(id, word string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"mirror","arguments":{"word":"` + word + `"}}}`
}

func result(id, word string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"result":{"word":"` + word + `"}}`
}

// C-32: two POSTs have the same id: of two sessions, or of one session one after the
// other. Each gets its own response, also when it is resumed later.
func TestCallsWithTheSameIDKeepTheirOwn(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		mirror(w, 2*time.Second)
		a, b := w.visit("quiet"), w.visit("quiet")
		one, two := a.w.begin(a.request("POST", mirrored("1", "a"))), b.w.begin(b.request("POST", mirrored("1", "b")))
		first, second := one.end(), two.end()
		third := a.post(mirrored("1", "c"))
		for word, x := range map[string]struct {
			v *client
			a *answer
		}{"a": {a, first}, "b": {b, second}, "c": {a, third}} {
			want := []string{said(word), result("1", word)}
			if diff := cmp.Diff(want, x.a.datas(t)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", word, diff)
			}
			if diff := cmp.Diff(want, x.v.get(x.a.events(t)[0].ID).datas(t)); diff != "" {
				t.Errorf("%s, taken up (-want +got):\n%s", word, diff)
			}
		}
	})
}

// C-33: two POSTs of one session have the same id at the same time. The server's side
// refuses the second (see box and native). The refusal goes to the second POST, and the
// messages of the first call to the first.
func TestRefusalOfADuplicateIDGoesToItsOwnPOST(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		const refusal = `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"this id is in use"}}`
		var mu sync.Mutex
		busy := false
		w.backend.tool("strict", func(r run) {
			mu.Lock()
			twice := busy
			busy = true
			mu.Unlock()
			if twice {
				r.append(refusal, true)
				return
			}
			time.Sleep(5 * time.Second)
			r.end(`{}`)
		})
		v := w.visit("quiet")
		first := v.calling("strict")
		synctest.Wait()
		if second := v.call("strict"); second.body != refusal {
			t.Errorf("the second got %d %s", second.status, second.body)
		}
		commontest.SameIn(t, "the first", []string{resultOf(`{}`)}, first.end().datas(t))
	})
}

// A client can tell errors apart by the status, by the code, and by a text that says what
// to do.
func TestErrorsAreToldApart(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		v, gone, quiet := w.visit("pushy"), w.visit("pushy"), w.visit("quiet")
		gone.del()
		unknown := w.at(v.path, string(storage.NewID()))
		lastID := func(id string) *answer { return v.get(id) }
		fails := func(err error) func() *answer {
			return func() *answer {
				w.backend.err = err
				defer func() { w.backend.err = nil }()
				return v.call("x")
			}
		}
		for name, tt := range map[string]struct {
			do     func() *answer
			status int
			code   int
			says   string
		}{
			"duplicate request id":     {fails(storage.Errorf(storage.Duplicate, "request 1 is in flight")), 409, -32600, "in flight"},
			"channel closed":           {func() *answer { return quiet.get("") }, 405, -32000, "no standalone stream"},
			"event id, index":          {func() *answer { return lastID("x") }, 400, -32600, "malformed index"},
			"event id, negative index": {func() *answer { return lastID("-1") }, 400, -32600, "malformed index"},
			"event id, nonce":          {func() *answer { return lastID("1.!/a") }, 400, -32600, "malformed nonce"},
			"event id, stream":         {func() *answer { return lastID("1/a/b") }, 400, -32600, "malformed stream"},
			"event id, length":         {func() *answer { return lastID(strings.Repeat("1", 101)) }, 400, -32600, "malformed length"},
			"session terminated":       {func() *answer { return gone.call("x") }, 404, -32001, "no such session"},
			"session unknown":          {func() *answer { return unknown.call("x") }, 404, -32001, "no such session"},
			"too large":                {fails(storage.Errorf(storage.TooLarge, "over 16 MiB")), 413, -32600, "16 MiB"},
			"input and output":         {fails(storage.Errorf(storage.Unavailable, "no answer")), 503, -32000, "no answer"},
			"a store that is down": {func() *answer {
				w.down("")
				defer w.down()
				return v.call("x")
			}, 503, -32000, ""},
			"a defect": {fails(storage.Errorf(storage.Internal, "nil map")), 500, -32603, "it has been logged"},
		} {
			a := tt.do()
			code, message := a.rpcError(t)
			if a.status != tt.status || code != tt.code || !strings.Contains(message, tt.says) || strings.Contains(message, "nil map") {
				t.Errorf("%s: got %d %s, want %d, %d, …%s…", name, a.status, a.body, tt.status, tt.code, tt.says)
			}
		}
		// A stream that does not exist is no error.
		if a := lastID("0/" + string(storage.NewStreamID())); a.status != http.StatusOK {
			t.Errorf("an unknown stream: got %d %s", a.status, a.body)
		}
	})
}
