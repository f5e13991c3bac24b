package transport_test

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// messages returns the texts that are not notifications of event ids.
func messages(texts []string) []string {
	return slices.DeleteFunc(texts, func(text string) bool { return strings.Contains(text, "notifications/dormouse/event") })
}

// answers asserts that the one answer to a message has a text.
func (l *link) answers(what, raw, part string) {
	l.w.t.Helper()
	if got := l.say(raw); len(got) != 1 || !strings.Contains(got[0], part) {
		l.w.t.Errorf("%s: got %q, want %q", what, got, part)
	}
}

// A message over WebSocket has at most 128 KiB, so a longer list has pages.
func TestGroupOverWebSocketListsInPages(t *testing.T) {
	grouped(t, 20, nil, func(t *testing.T, w *world) {
		for i := range 20 {
			tool := `{"name":"echo","description":"` + strings.Repeat("x", 15<<10) + `","inputSchema":{"type":"object"}}`
			w.keep("s"+strconv.Itoa(i), "tools/list 2025-11-25  anyone", `{"gen":1,"says":true,"list":{"tools":[`+tool+`]}}`)
		}
		l := w.link(url.Values{"group": {"all"}}).open()
		var names []string
		for cursor, pages := "", 0; pages < 10; pages++ {
			got := l.say(`{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{` + cursor + `}}`)
			if len(got) != 1 || len(got[0]) > storage.MaxPost {
				t.Fatalf("%d messages, the first with %d bytes", len(got), len(got[0]))
			}
			names = append(names, toolNames(t, got[0])...)
			next := wire.Lookup([]byte(got[0]), "result", "nextCursor")
			if next == nil {
				break
			}
			cursor = `"cursor":` + string(next)
		}
		slices.Sort(names)
		commontest.EqualIn(t, "tools on the pages", 20, len(slices.Compact(names)))
		l.answers("no cursor", `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"cursor":"what"}}`, "-32602")
	})
}

func TestConnectionsToAGroupThatAreRefused(t *testing.T) {
	grouped(t, 2, nil, func(t *testing.T, w *world) {
		l := w.link(url.Values{"group": {"all"}}).open()
		c, err := w.store.Connection(t.Context(), l.conn)
		commontest.OK(t, err)
		id := string(c.Session)
		for query, want := range map[string]int{
			"group=other":                                 http.StatusNotFound,
			"group=all&ticket=x":                          http.StatusUnauthorized,
			"server=s0&session=" + id:                     http.StatusNotFound,
			"group=all&last-event-id=0/~s0":               http.StatusBadRequest,
			"server=s0&last-event-id=0/~s0&session=" + id: http.StatusBadRequest,
		} {
			l := w.link(nil)
			l.query, _ = url.ParseQuery(query)
			commontest.EqualIn(t, query, want, l.connect())
		}
		other := w.link(url.Values{"group": {"all"}, "session": {id}})
		other.headers = []string{"Authorization", "Bearer eve"}
		commontest.EqualIn(t, "another principal", http.StatusNotFound, other.connect())
	})
}

// A ticket and a connection are good for the servers of the caller's key. If the key
// loses a server, so does the connection.
func TestConnectionToAGroupIsForTheServersOfItsKey(t *testing.T) {
	grouped(t, 3, nil, func(t *testing.T, w *world) {
		keys := storagetest.NewMemory()
		key, record, err := apikey.Create(t.Context(), keys, apikey.Grant{Tenant: "tenant", Principal: "ada", Servers: []string{"s0", "s2"}})
		commontest.OK(t, err)
		narrow := func(servers ...string) {
			k, err := keys.Keys().Get(t.Context(), record.ID)
			if err == nil {
				k.Servers = servers
				err = keys.Keys().Save(t.Context(), k)
			}
			commontest.OK(t, err)
			time.Sleep(apikey.Remembered)
			w.opts.Auth = apikey.NewKeys(keys)
		}
		w.opts.Auth, w.opts.Tickets = apikey.NewKeys(keys), apikey.NewTickets(keys)
		a := w.do(request("POST", "/ticket", "", "Authorization", "Bearer "+key))
		ticket, _ := wire.String(wire.Lookup([]byte(a.body), "ticket"))
		if a.status != http.StatusOK || ticket == "" {
			t.Fatalf("no ticket: %d %s", a.status, a.body)
		}
		byTicket, byHeader := w.link(url.Values{"group": {"all"}, "ticket": {ticket}}), w.link(url.Values{"group": {"all"}})
		byHeader.headers = []string{"Authorization", "Bearer " + key}
		for name, l := range map[string]*link{"ticket": byTicket, "header": byHeader} {
			l.open()
			commontest.SameIn(t, name, []string{"s0__echo", "s0__tool0", "s2__echo", "s2__tool2"}, toolNames(t, l.say(`{"jsonrpc":"2.0","id":7,"method":"tools/list"}`)[0]))
			l.answers(name, callOf("s1__tool1"), "there is no tool s1__tool1 here")
		}
		commontest.EqualIn(t, "the ticket again", http.StatusUnauthorized, w.link(byTicket.query).connect())
		narrow("s2")
		byHeader.answers("a server that was taken from the key", callOf("s0__tool0"), "there is no tool s0__tool0 here")
		byHeader.answers("one that was left", callOf("s2__tool2"), `"result"`)
		narrow("other")
		byHeader.say(callOf("s2__tool2"))
		commontest.EqualIn(t, "the connection without a key is gone", true, byHeader.isGone(byHeader.conn))
	})
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
