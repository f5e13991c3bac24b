package transport_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// ofMember returns the session that a session of a group has with a server.
func (c *sseClient) ofMember(server string) storage.ID {
	return sessions.MemberID(storage.ID(c.session), server)
}

func slicesWith(texts []string, part string) (out []string) {
	for _, text := range texts {
		if strings.Contains(text, part) {
			out = append(out, text)
		}
	}
	return out
}

func TestGroupOverSSEIsOfItsPrincipalOnly(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		c := w.openSSE("", "").open()
		for _, body := range []string{callOf("s1__echo"), callOf("nothing"), `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, initialize} {
			c.post(body, "Authorization", "Bearer eve").is(t, body, http.StatusNotFound, 0)
		}
		w.do(request("GET", "/sse?sessionId="+c.session, "", "Accept", "text/event-stream", "Authorization", "Bearer eve")).is(t, "the stream", http.StatusNotFound, 0)
		commontest.EqualIn(t, "messages on the stream", 1, len(c.messages()))
		w.silent()
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
