package transport_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A server that has initialize is told once what its client declares.
func TestModernClientsShareAProcessIfTheyDeclareTheSameExtensions(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		inits := map[storage.ID]string{}
		w.backend.tool("who", func(r run) {
			s, _, err := w.store.Load(r.ctx, r.session, "")
			commontest.Check(t, err)
			inits[r.session] = string(wire.Lookup(s.Init, "capabilities", "extensions"))
			r.end(`{}`)
		})
		for _, capabilities := range []string{
			`{}`, `{"elicitation":{}}`, taskCaps, // no extension but that of Dormouse itself
			`{"extensions":{"a/b":{"n":1.50},"c/d":{}}}`, `{"roots":{},"extensions":{"c/d":{},"io.modelcontextprotocol/tasks":{},"a/b":{"n":1.50}}}`,
			`{"extensions":{"c/d":{}}}`,
		} {
			a := toolCall("who")
			a.caps = capabilities
			w.do(a.request()).result(t)
		}
		var told []string
		for _, init := range inits {
			told = append(told, init)
		}
		slices.Sort(told)
		if want := []string{``, `{"a/b":{"n":1.50},"c/d":{}}`, `{"c/d":{}}`}; !slices.Equal(told, want) {
			t.Errorf("servers were told %q, want %q", told, want)
		}
	})
}

func TestModernNotificationsOfExtensionsReachTheServer(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.do(toolCall("echo").request()).result(t)
		tell := func(method string, headers ...string) *answer {
			r := ask{method: method, headers: headers}.request()
			setBody(r, strings.Replace(bodyOf(r), `"id":7,`, ``, 1))
			return w.do(r)
		}
		before := len(w.backend.got)
		for _, method := range []string{wire.NotifyCancelled, wire.NotifyRootsChanged, wire.NotifyMessage, wire.NotifyInitialized} {
			if a := tell(method); a.status != http.StatusAccepted || a.body != "" || len(w.backend.got) != before {
				t.Errorf("%s: %d, and the server got %s", method, a.status, w.backend.got[before:])
			}
		}
		if a := tell("notifications/com.example/x", "Mcp-Method", "notifications/com.example/y"); a.status != http.StatusBadRequest || len(w.backend.got) != before {
			t.Errorf("another method in the header: %d, and the server got %s", a.status, w.backend.got[before:])
		}
		a := tell("notifications/com.example/x")
		if a.status != http.StatusAccepted || len(w.backend.got) != before+1 || !strings.Contains(w.backend.got[before], `"method":"notifications/com.example/x"`) {
			t.Errorf("%d, and the server got %s", a.status, w.backend.got[before:])
		}
	})
}
