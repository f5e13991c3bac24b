package transport_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// guarded is a world that admits only callers with API keys, as a deployed endpoint does.
type guarded struct {
	*world
	count *storagetest.Counting
	keys  map[string]string // by who has them
}

func newGuarded(t *testing.T) *guarded {
	w := newWorld(t)
	count := w.count()
	w.store = count
	g := &guarded{world: w, count: count, keys: map[string]string{}}
	w.fresh = g.guard
	for who, grant := range map[string]apikey.Grant{
		"owner":         {Tenant: "acme", Principal: "ada", Servers: []string{"pushy", "quiet"}},
		"owner's other": {Tenant: "acme", Principal: "ada", Servers: []string{storage.EveryServer}},
		"colleague":     {Tenant: "acme", Principal: "eve", Servers: []string{storage.EveryServer}},
		"namesake":      {Tenant: "umbrella", Principal: "ada", Servers: []string{storage.EveryServer}},
		"elsewhere":     {Tenant: "acme", Principal: "ada", Servers: []string{"quiet"}},
		"revoked":       {Tenant: "acme", Principal: "ada", Servers: []string{"pushy"}},
		"expired":       {Tenant: "acme", Principal: "ada", Servers: []string{"pushy"}, Life: time.Minute},
	} {
		key, _, err := apikey.Create(t.Context(), count, grant)
		commontest.OK(t, err)
		g.keys[who] = "Bearer " + key
	}
	g.revoke("revoked")
	time.Sleep(time.Minute)
	owner := g.keys["owner"]
	g.keys["wrong"] = owner[:len(owner)-4] + strings.Repeat("z", 4)
	g.keys["unknown"] = "Bearer dm_zzzzzzzz_" + owner[len("Bearer dm_zzzzzzzz_"):]
	g.keys["malformed"] = "Bearer nonsense"
	return g
}

func inGuarded(t *testing.T, test func(t *testing.T, g *guarded)) {
	synctest.Test(t, func(t *testing.T) { test(t, newGuarded(t)) })
}

func (g *guarded) revoke(who string) {
	g.t.Helper()
	_, err := apikey.Revoke(g.t.Context(), g.count, strings.TrimPrefix(g.keys[who], "Bearer "))
	commontest.OK(g.t, err)
}

func (g *guarded) guard(o *transport.Options) {
	o.Auth, o.Tickets = apikey.NewKeys(g.count), apikey.NewTickets(g.count)
}

func (g *guarded) as(who string, r *http.Request) *answer {
	g.t.Helper()
	if key := g.keys[who]; key != "" {
		r.Header.Set("Authorization", key)
	}
	return g.do(r)
}

// briefly is as, but a stream is closed after a second.
func (g *guarded) briefly(who string, r *http.Request) *answer {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), time.Second)
	defer cancel()
	return g.as(who, r.WithContext(ctx))
}

// effects returns the writes and deliveries since its last call.
func (g *guarded) effects() string {
	synctest.Wait()
	counts := g.count.Counts()
	g.count.Reset()
	g.backend.mu.Lock()
	defer g.backend.mu.Unlock()
	delivered := len(g.backend.got) + len(g.backend.answers)
	g.backend.got, g.backend.answers = nil, nil
	return fmt.Sprintf("%d writes, %d deliveries", counts.Writes, delivered)
}

const noEffects = "0 writes, 0 deliveries"

// victim is a session of the owner, with something in each stream.
type victim struct {
	session   string
	requested string // an event id of a request stream
	common    string // one of the standalone stream
	sse       string // a session of HTTP+SSE
	sseEvent  string // an event id of it
}

func (g *guarded) victim() victim {
	g.t.Helper()
	g.backend.tool("chat", func(r run) { r.say("secret"); r.end(`{}`) })
	var v victim
	a := g.as("owner", request("POST", "/pushy/mcp", initialize))
	if v.session = a.header.Get(sessionIs); v.session == "" {
		g.t.Fatal(a.status, a.body)
	}
	for _, body := range []string{initialized, callOf("chat")} {
		if a = g.as("owner", request("POST", "/pushy/mcp", body, v.headers()...)); a.status >= 300 {
			g.t.Fatal(a.status, a.body)
		}
	}
	_, stream, _ := strings.Cut(a.lastID(g.t), "/")
	v.requested = "0/" + stream
	g.outside(storage.ID(v.session)).say("secret")
	v.common = "0"
	a = g.briefly("owner", request("GET", "/pushy/sse", ""))
	endpoint := a.events(g.t)[0]
	u, err := url.Parse(string(endpoint.Data))
	commontest.OK(g.t, err)
	v.sse, v.sseEvent = u.Query().Get("sessionId"), endpoint.ID
	return v
}

func (v victim) headers(more ...string) []string {
	return append([]string{sessionIs, v.session, versionIs, "2025-11-25"}, more...)
}

// stolen returns the requests that a stranger can make who knows the ids of another
// principal's session.
func (v victim) stolen() map[string]func() *http.Request {
	mcp := func(method, body string, more ...string) func() *http.Request {
		return func() *http.Request { return request(method, "/pushy/mcp", body, v.headers(more...)...) }
	}
	return map[string]func() *http.Request{
		"POST a request":            mcp("POST", callOf("chat")),
		"POST a ping":               mcp("POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`),
		"POST a notification":       mcp("POST", initialized),
		"POST a response":           mcp("POST", `{"jsonrpc":"2.0","id":"q","result":{}}`),
		"GET":                       mcp("GET", ""),
		"GET a request stream":      mcp("GET", "", "Last-Event-ID", v.requested),
		"GET the standalone stream": mcp("GET", "", "Last-Event-ID", v.common),
		"DELETE":                    mcp("DELETE", ""),
		"SSE by the event id":       func() *http.Request { return request("GET", "/pushy/sse", "", "Last-Event-ID", v.sseEvent) },
		"SSE by the session":        func() *http.Request { return request("GET", "/pushy/sse?sessionId="+v.sse, "") },
		"SSE message":               func() *http.Request { return request("POST", "/pushy/message?sessionId="+v.sse, callOf("chat")) },
	}
}

// anew returns the requests that need only the right to the server.
func anew() map[string]func() *http.Request {
	return map[string]func() *http.Request{
		"POST initialize": func() *http.Request { return request("POST", "/pushy/mcp", initialize) },
		"POST modern":     func() *http.Request { return toolCall("chat").at("pushy").request() },
		"SSE":             func() *http.Request { return request("GET", "/pushy/sse", "") },
		"POST ticket":     func() *http.Request { return request("POST", "/pushy/ticket", "") },
		"no such server":  func() *http.Request { return request("POST", "/nothing/mcp", initialize) },
		"not even JSON":   func() *http.Request { return request("POST", "/pushy/mcp", "{") },
		"no such session": func() *http.Request { return request("DELETE", "/pushy/mcp", "", sessionIs, "x") },
	}
}

func TestWhoHasNoRightIsRefusedOnEveryVerbWithoutAnEffect(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		verbs := g.victim().stolen()
		maps.Copy(verbs, anew())
		for who, want := range map[string]struct {
			status    int
			challenge string
		}{
			"nobody":    {401, "Bearer"},
			"malformed": {401, `Bearer error="invalid_token"`},
			"wrong":     {401, `Bearer error="invalid_token"`},
			"unknown":   {401, `Bearer error="invalid_token"`},
			"revoked":   {401, `Bearer error="invalid_token"`},
			"expired":   {401, `Bearer error="invalid_token"`},
			"elsewhere": {403, ""}, // no login would help
		} {
			for name, verb := range verbs {
				g.effects()
				a := g.as(who, verb())
				if got := a.header.Get("WWW-Authenticate"); a.status != want.status || got != want.challenge {
					t.Errorf("%s, %s: %d %q, want %d %q", who, name, a.status, got, want.status, want.challenge)
				}
				commontest.EqualIn(t, who+", "+name, noEffects, g.effects())
				if strings.Contains(a.body, "secret") || a.header.Get(sessionIs) != "" {
					t.Errorf("%s, %s: %s", who, name, a.body)
				}
			}
		}
	})
}

func TestStolenIDsAreWorthNothing(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		v := g.victim()
		for _, who := range []string{"colleague", "namesake"} {
			g.as(who, request("POST", "/pushy/ticket", "")) // notes that the key was used
			for name, verb := range v.stolen() {
				g.effects()
				a := g.as(who, verb())
				if a.status != 404 || strings.Contains(a.body, "secret") {
					t.Errorf("%s, %s: %d %s", who, name, a.status, a.body)
				}
				commontest.EqualIn(t, who+", "+name, noEffects, g.effects())
			}
		}
		commontest.Contains(t, "the owner", "secret", g.as("owner", v.stolen()["POST a request"]()).body)
	})
}

func TestSessionIsThePrincipalsAndNotTheKeys(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		v := g.victim()
		g.revoke("owner")
		g.as("owner", v.stolen()["POST a request"]()).is(t, "the revoked key", 401, 0)
		commontest.Contains(t, "another key of the principal", "secret", g.as("owner's other", v.stolen()["POST a request"]()).body)
	})
}

func TestKeyInAnAddressIsNotTaken(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		key := url.QueryEscape(strings.TrimPrefix(g.keys["owner"], "Bearer "))
		for _, name := range []string{"key", "token", "access_token", "ticket", "Authorization"} {
			g.as("nobody", request("POST", "/pushy/mcp?"+name+"="+key, initialize)).is(t, name, 401, 0)
		}
	})
}

func TestKeysAndTicketsAreNotLogged(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		verbs := g.victim().stolen()
		maps.Copy(verbs, anew())
		secrets := map[string]string{"ticket": g.ticket("owner")}
		for who, key := range g.keys {
			secrets[who] = strings.TrimPrefix(key, "Bearer ")
			for _, verb := range verbs {
				g.briefly(who, verb())
			}
			g.connect("c", "server=pushy", "Authorization", key)
		}
		for range 2 {
			g.connect("c", "server=pushy&ticket="+secrets["ticket"])
		}
		g.connect("c", "server=pushy&ticket="+secrets["owner"])
		for who, secret := range secrets {
			if who != "malformed" && strings.Contains(g.logged.String(), secret[len(secret)-20:]) {
				t.Errorf("the log shows what %s came with", who)
			}
		}
		commontest.EqualIn(t, "lines of connects", len(g.keys)+3, strings.Count(g.logged.String(), `"msg":"socket"`))
	})
}

func (g *guarded) ticket(who string) string {
	g.t.Helper()
	a := g.as(who, request("POST", "/pushy/ticket", ""))
	ticket, ok := wire.String(wire.Lookup([]byte(a.body), "ticket"))
	if !ok {
		g.t.Fatal(a.status, a.body)
	}
	return ticket
}

// quiet fails the test if anything was written, delivered, posted or closed, apart from
// as many writes as writes says.
func (g *guarded) quiet(what, writes string) {
	g.t.Helper()
	commontest.EqualIn(g.t, what, writes+" writes, 0 deliveries", g.effects())
	g.api.mu.Lock()
	defer g.api.mu.Unlock()
	commontest.EqualIn(g.t, what+", pushed", 0, len(g.pushes)+len(g.api.got)+len(g.api.gone))
}

func (g *guarded) socketSession(conn string) (id string) {
	g.t.Helper()
	g.connects("the owner", 200, conn, "server=pushy&event-ids=1", "Authorization", g.keys["owner"])
	g.send(conn, initialize)
	g.send(conn, initialized)
	list, err := g.count.List(g.t.Context(), "acme", "", 10)
	if err != nil || len(list) != 1 || list[0].State != storage.Ready {
		g.t.Fatal(list, err)
	}
	g.api.take(conn)
	g.effects()
	return string(list[0].ID)
}

// Over a WebSocket, too, strangers and ids of others reach nothing.
func TestConnectOfWhoHasNoRightIsRefusedWithoutAnEffect(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		owned := "&session=" + g.socketSession("victim")
		refused := func(who, query string, status int) {
			t.Helper()
			g.effects()
			var headers []string
			if key := g.keys[who]; key != "" {
				headers = []string{"Authorization", key}
			}
			g.connects(who+", "+query, status, "thief", "server=pushy"+query, headers...)
			g.quiet(who+", "+query, "0")
		}
		for who, status := range map[string]int{
			"nobody": 401, "malformed": 401, "wrong": 401, "unknown": 401, "revoked": 401, "expired": 401, "elsewhere": 403,
		} {
			for _, query := range []string{"", owned, owned + "&last-event-id=0"} {
				refused(who, query, status)
			}
		}
		for _, who := range []string{"colleague", "namesake"} {
			g.as(who, request("POST", "/pushy/ticket", "")) // notes that the key was used
			for _, query := range []string{"", "&event-ids=1", "&last-event-id=0", "&last-event-id=1.n/r"} {
				refused(who, owned+query, 404)
			}
		}
		for _, conn := range []string{"victim2", "Victim", "../victim", ""} {
			for _, message := range []string{initialize, initialized, wsCall("1", "")} {
				commontest.Contains(t, conn, "belongs to no session", g.send(conn, message))
			}
			g.function().Disconnect(t.Context(), conn)
		}
		g.quiet("connections that are nobody's", "0")
		if reply := g.send("victim", wsCall("1", "")); !strings.Contains(reply, "notifications/dormouse/event") || len(g.api.take("victim")) == 0 {
			t.Errorf("the owner is answered with %s", reply)
		}
	})
}

func TestTicketLetsOneConnectionInAsWhoGotIt(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		a := g.as("owner", request("POST", "/pushy/ticket", "", "Content-Type", ""))
		if string(wire.Lookup([]byte(a.body), "expires_in")) != "60" || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%d %v %s", a.status, a.header, a.body)
		}
		a = g.as("owner", request("GET", "/pushy/ticket", ""))
		a.is(t, "GET", 405, 0)
		commontest.EqualIn(t, "Allow", "POST, OPTIONS", a.header.Get("Allow"))
		g.as("owner's other", request("POST", "/nothing/ticket", "")).is(t, "no such server", 404, 0)
		ticket := g.ticket("owner")
		g.connects("the first time", 200, "c1", "server=pushy&ticket="+ticket)
		got, err := g.count.Connection(t.Context(), "c1")
		commontest.OK(t, err)
		want := storage.Connection{
			ID: "c1", Session: got.Session, Server: "pushy", Tenant: "acme", Principal: "ada", Expires: got.Expires,
			Credential: strings.Split(g.keys["owner"], "_")[1],
		}
		commontest.Same(t, want, got)
		g.effects()
		g.connects("the second time", 401, "c2", "server=pushy&ticket="+ticket, "Authorization", g.keys["owner"])
		g.quiet("the second time", "1") // the attempt to take it
	})
}

func TestTicketThatIsNotGoodIsRefusedWithoutAnEffect(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		owned := g.socketSession("victim")
		old := g.ticket("owner")
		time.Sleep(time.Minute)
		revoked := g.ticket("owner")
		g.revoke("owner")
		for name, test := range map[string]struct {
			query  string
			status int
			writes string
		}{
			"too old":                {"server=pushy&ticket=" + old, 401, "1"},
			"of a revoked key":       {"server=pushy&ticket=" + revoked, 401, "1"},
			"for another server":     {"server=quiet&ticket=" + g.ticket("owner's other"), 403, "1"},
			"with another's session": {"server=pushy&session=" + owned + "&ticket=" + g.ticket("colleague"), 404, "1"},
			"invented":               {"server=pushy&ticket=dt_" + strings.Repeat("a", 32), 401, "1"},
			"malformed":              {"server=pushy&ticket=x", 401, "0"},
			"a key":                  {"server=pushy&ticket=" + strings.TrimPrefix(g.keys["owner's other"], "Bearer "), 401, "0"},
		} {
			g.effects()
			g.connects(name, test.status, "c1", test.query)
			g.quiet(name, test.writes)
		}
	})
}

// C-89: an authenticator that admits a caller without a principal has failed. The endpoint
// refuses that caller in every era, and the error does not name the caller's credential.
func TestWhoHasNoNameIsNotLetIn(t *testing.T) {
	for _, who := range []storage.Identity{{Credential: "secret"}, {Principal: "ada", Credential: "secret"}, {Tenant: "tenant", Credential: "secret"}} {
		bubble(t, func(t *testing.T, w *world) {
			w.opts.Auth = letsIn{who, principal(nil)}
			for _, r := range []*http.Request{request("POST", "/quiet/mcp", initialize), request("GET", "/quiet/sse", ""), toolCall("x").request()} {
				a := w.do(r)
				a.is(t, r.URL.Path, http.StatusInternalServerError, wire.CodeInternal)
				if strings.Contains(a.body, "secret") {
					t.Errorf("got %s", a.body)
				}
			}
			commontest.EqualIn(t, "a WebSocket", http.StatusInternalServerError, w.link(url.Values{"server": {"quiet"}}).connect())
			w.nothingCame(t)
		})
	}
}

type letsIn struct {
	who storage.Identity
	principal
}

func (l letsIn) Members(_ *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	return apikey.Same(l.who, servers), nil
}

type issued struct {
	transport.Tickets
	who storage.Identity
}

func (i *issued) Issue(_ context.Context, who storage.Identity, _ string) (string, time.Duration, error) {
	i.who = who
	return "ticket", time.Minute, nil
}

// The rules that bind a caller bind the connection that its ticket opens.
func TestTicketHasWhatIsKnownOfItsOwner(t *testing.T) {
	w, tickets := newWorld(t), &issued{}
	who := storage.Identity{Tenant: "tenant", Principal: "ada", Credential: "c", Props: []byte(`{"plan":"pro"}`), Scopes: []string{"s"}, Scoped: true, ToolRules: []string{"rule"}}
	w.opts.Auth, w.opts.Tickets = letsIn{who, principal(nil)}, tickets
	w.do(request("POST", "/quiet/ticket", "")).is(t, "a ticket", 200, 0)
	commontest.Same(t, who, tickets.who)
}

func TestConnectionOfARevokedKeyIsClosedAtItsNextMessage(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		g.socketSession("c1")
		warm := g.function()
		if warm.Message(t.Context(), "c1", []byte(wsCall("1", ""))); len(g.backend.got) != 1 {
			t.Fatal("the message was not delivered")
		}
		g.revoke("owner")
		time.Sleep(apikey.Remembered)
		g.api.take("c1")
		g.effects()
		reply := warm.Message(t.Context(), "c1", []byte(wsCall("2", "")))
		if !strings.Contains(string(reply), "revoked or expired") || !g.api.gone["c1"] {
			t.Errorf("%s; closed: %v", reply, g.api.gone)
		}
		if got := g.effects(); got != noEffects || len(g.api.take("c1")) > 0 {
			t.Error(got)
		}
	})
}

func TestTroubleWithTheKeysIsNotARefusal(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		g.socketSession("c1")
		faulty := storagetest.NewFaulty(g.count, 1, storagetest.Faults{})
		faulty.Set("Key", storagetest.Faults{Lost: 1})
		g.fresh = func(o *transport.Options) { g.guard(o); o.Auth = apikey.NewKeys(faulty) }
		if reply := g.send("c1", wsCall("1", "")); !strings.Contains(reply, "did not answer") || g.api.gone["c1"] {
			t.Errorf("a message: %s; closed: %v", reply, g.api.gone)
		}
		g.connects("a connect", 503, "c2", "server=pushy", "Authorization", g.keys["owner"])
		g.as("owner", request("POST", "/pushy/mcp", initialize)).is(t, "a request", 503, 0)
	})
}
