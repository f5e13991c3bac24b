package transport_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A page of another site can make its reader's browser send GETs without an Origin. None
// of them may open a stream, or a session.
func TestStreamIsOpenedForNoPageOfElsewhere(t *testing.T) {
	for name, tt := range map[string]struct {
		headers []string
		status  int
	}{
		"a client":                   {nil, 200},
		"EventSource of an own page": {[]string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "empty"}, 200},
		"fetch of a page that may":   {[]string{"Origin", "http://127.0.0.1", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "empty"}, 200},
		"an image elsewhere":         {[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image"}, 403},
		"an image of another port":   {[]string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "image"}, 403},
		"no-cors fetch elsewhere":    {[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "empty"}, 403},
		"a frame of an own page":     {[]string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "iframe"}, 403},
		"a program that wants JSON":  {[]string{"Accept", "application/json"}, 406},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{"/pushy/sse", "/pushy/mcp"} {
				bubble(t, func(t *testing.T, w *world) {
					a := w.begin(request("GET", path, "", append([]string{"Accept", wire.MediaSSE}, tt.headers...)...)).leave()
					opened, err := w.store.List(t.Context(), "", "", 10)
					commontest.OK(t, err)
					if a.status != tt.status || len(opened) > 0 != (tt.status == 200) {
						t.Errorf("%s, %s: got %d %s and %d sessions", name, path, a.status, a.body, len(opened))
					}
				})
			}
		})
	}
}

// Where the platform reports that a client has gone, the function ends its response.
func TestHeldStreamEndsWithItsReader(t *testing.T) {
	for _, path := range []string{"/pushy/sse", "/pushy/mcp"} {
		bubble(t, func(t *testing.T, w *world) {
			var headers []string
			if strings.HasSuffix(path, "/mcp") {
				headers = []string{"Mcp-Session-Id", w.visit("pushy").session}
			}
			ended := w.begin(request("GET", path, "", append(headers, "Accept", wire.MediaSSE)...))
			time.Sleep(3 * time.Second)
			if a := ended.gone(); a.took != 3*time.Second {
				t.Errorf("%s was held for %s", path, a.took)
			}
		})
	}
}

// unread is a body that fails the test if it is read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

func TestBodyIsReadOfCallersThatMayCallOnly(t *testing.T) {
	for name, change := range map[string]func(*world, *http.Request){
		"another Host":  func(_ *world, r *http.Request) { r.Host = "evil.example" },
		"another page":  func(_ *world, r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
		"no key":        func(_ *world, r *http.Request) { r.Header.Set("Authorization", "Bearer nobody") },
		"no server":     func(_ *world, r *http.Request) { r.URL.Path = "/absent/mcp" },
		"not for JSON":  func(_ *world, r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
		"too long":      func(_ *world, r *http.Request) { r.ContentLength = 4<<20 + 1 },
		"a small limit": func(w *world, r *http.Request) { w.opts.MaxBody, r.ContentLength = 10, 11 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := request("POST", "/quiet/mcp", "")
			r.Header.Set("Content-Type", "application/json")
			r.Body = io.NopCloser(unread{t})
			change(w, r)
			if a := w.do(r); a.status < 400 {
				t.Errorf("%s: got %d", name, a.status)
			}
		})
	}
}

// A client of HTTP+SSE takes a refused POST for a broken connection, so the endpoint
// sends the error on the stream.
func TestNoRoomIsSaidOnTheStreamOfHTTPAndSSE(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.openSSE("quiet", "").open()
		w.backend.err = storage.Errorf(storage.Busy, "no room")
		c.accepted(callOf("x"))
		messages := messagesOf(t, c.gone())
		if last := messages[len(messages)-1]; !strings.Contains(last, `"id":1`) || !strings.Contains(last, `"text":"no room"}],"isError":true`) || !strings.Contains(last, `"retryAfterSeconds":1`) {
			t.Errorf("got %s", last)
		}
	})
}

type issued struct{ who storage.Identity }

func (i *issued) Issue(_ context.Context, who storage.Identity, _ string) (string, time.Duration, error) {
	i.who = who
	return "ticket", time.Minute, nil
}

func (i *issued) Redeem(context.Context, string, string) (storage.Identity, error) {
	return storage.Identity{}, errors.New("not in this test")
}

func TestTicketHasWhatIsKnownOfItsOwner(t *testing.T) {
	w, tickets := newWorld(t), &issued{}
	w.opts.Auth, w.opts.Tickets = letsIn{storage.Identity{Tenant: "tenant", Principal: "ada", Props: []byte(`{"plan":"pro"}`)}, principal(nil)}, tickets
	if a := w.do(request("POST", "/quiet/ticket", "")); a.status != 200 || string(tickets.who.Props) != `{"plan":"pro"}` {
		t.Errorf("got %d and a ticket for %+v", a.status, tickets.who)
	}
}
