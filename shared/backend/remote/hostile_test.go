package remote

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// at returns an exchange with a server that answers with an event stream, which send writes.
func at(t *testing.T, send http.HandlerFunc) *exchange {
	t.Helper()
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", wire.MediaSSE)
		send(w, r)
	}))
	t.Cleanup(func() {
		far.CloseClientConnections()
		far.Close()
	})
	to, err := url.Parse(far.URL)
	commontest.OK(t, err)
	c := New()
	return &exchange{s: &server{c, Server{Name: "far"}}, client: c.private, url: to, header: http.Header{}}
}

// A server whose client is asked, and thinks for hours, fills no memory meanwhile.
func TestAServerThatSendsWhileItsClientIsAskedIsLeft(t *testing.T) {
	for name, ask := range map[string]func(t *testing.T, x *exchange) *conversation{
		"ask": func(t *testing.T, x *exchange) *conversation {
			talk, err := x.ask(t.Context(), []byte("{}"), nil)
			commontest.OK(t, err)
			return talk
		},
		"asking": func(t *testing.T, x *exchange) *conversation { return asking(t.Context(), x, []byte("{}")) },
	} {
		for of, line := range map[string]string{
			"a line": strings.Repeat("x", 1<<10), "comments": ": x\n",
		} {
			t.Run(name+" "+of, func(t *testing.T) {
				left, asked := make(chan struct{}), make(chan struct{})
				x := at(t, func(w http.ResponseWriter, _ *http.Request) {
					defer close(left)
					_, _ = w.Write([]byte("data: {}\n\n"))
					w.(http.Flusher).Flush()
					<-asked
					for {
						if _, err := w.Write([]byte(line)); err != nil {
							return
						}
					}
				})
				talk := ask(t, x)
				_, err := talk.next(t.Context())
				commontest.OK(t, err)
				x.s.put("a", owner{"acme", "ada"}, talk, time.Hour)
				close(asked)
				<-left
				if held := talk.flow.ahead.Load(); held > 2*maxAhead {
					t.Errorf("%d bytes are held", held)
				}
			})
		}
	}
}

func TestAConversationThatHoldsMuchIsNotKept(t *testing.T) {
	c, closed := New(), false
	talk := &conversation{stop: func() { closed = true }, flow: &flow{}}
	talk.flow.ahead.Store(maxAhead + 1)
	c.put("a", owner{"acme", "ada"}, talk, time.Hour)
	commontest.EqualIn(t, "it is closed", true, closed)
}

func TestHandshakesInMemoryAreBounded(t *testing.T) {
	c := New()
	for i := range 100 {
		c.rememberLink(storage.ID(fmt.Sprint(i)), link{Handshake: bytes.Repeat([]byte("x"), 1<<20)})
		c.rememberLink(storage.ID(fmt.Sprint(i)), link{Handshake: bytes.Repeat([]byte("x"), 1<<20)})
		held := 0
		for _, l := range c.links {
			held += len(l.Handshake)
		}
		if held > mostGreeted || held != c.greeted {
			t.Fatalf("%d bytes after %d links, %d are counted", held, i, c.greeted)
		}
	}
}
