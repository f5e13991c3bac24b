package transport_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

const (
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// client is one session of Streamable HTTP, as its client sees it.
type client struct {
	w       *world
	path    string
	session string
	version string
}

func (w *world) at(path, session string) *client {
	return &client{w: w, path: path, session: session, version: wire.V20251125}
}

// greet does the first half of the handshake.
func (w *world) greet(path string, headers ...string) *client {
	w.t.Helper()
	a := w.do(request("POST", path, initialize, headers...))
	c := w.at(path, a.header.Get(sessionIs))
	if a.status != http.StatusOK || c.session == "" {
		w.t.Fatalf("initialize was answered with %d %s", a.status, a.body)
	}
	return c
}

func (w *world) visit(server string) *client {
	w.t.Helper()
	return w.visitAt("/" + server + "/mcp")
}

func (w *world) visitAt(path string) *client {
	w.t.Helper()
	c := w.greet(path)
	if a := c.post(initialized); a.status != http.StatusAccepted {
		w.t.Fatalf("initialized was answered with %d %s", a.status, a.body)
	}
	return c
}

func (c *client) request(method, body string, headers ...string) *http.Request {
	return request(method, c.path, body, append([]string{sessionIs, c.session, versionIs, c.version}, headers...)...)
}

func (c *client) post(body string, headers ...string) *answer {
	c.w.t.Helper()
	return c.w.do(c.request("POST", body, headers...))
}

func (c *client) call(tool string, headers ...string) *answer {
	c.w.t.Helper()
	return c.post(callOf(tool), headers...)
}

func (c *client) get(last string) *answer {
	c.w.t.Helper()
	return c.w.do(c.request("GET", "", lastEventIs, last))
}

func (c *client) del() *answer {
	c.w.t.Helper()
	return c.w.do(c.request("DELETE", ""))
}

// calling starts a call; listen starts a GET.
func (c *client) calling(tool string, headers ...string) *conn {
	return c.w.begin(c.request("POST", callOf(tool), headers...))
}

func (c *client) listen(last string) *conn {
	return c.w.begin(c.request("GET", "", lastEventIs, last))
}

func (c *client) push(text string) {
	c.w.t.Helper()
	c.w.outside(storage.ID(c.session)).say(text)
}

func (c *client) record() storage.Session {
	c.w.t.Helper()
	record, _, err := c.w.store.Load(c.w.t.Context(), storage.ID(c.session), "")
	commontest.OK(c.w.t, err)
	return record
}

// sseClient is a client of HTTP+SSE.
type sseClient struct {
	*conn
	w       *world
	base    string // of its addresses
	headers []string
	session string
	n       int // events that the client has taken, with the endpoint event
}

// openSSE opens an event stream of a server, or of all servers for "".
func (w *world) openSSE(server, query string, headers ...string) *sseClient {
	w.t.Helper()
	c := &sseClient{w: w, headers: headers}
	if server != "" {
		c.base = "/" + server
	}
	c.follow(query)
	return c
}

// follow opens an event stream, and reads the session from its first event.
func (c *sseClient) follow(query string, headers ...string) {
	c.w.t.Helper()
	c.conn = c.w.begin(request("GET", c.base+"/sse"+query, "", slices.Concat([]string{"Accept", wire.MediaSSE}, c.headers, headers)...))
	synctest.Wait()
	if a := c.read(); a.status == http.StatusOK {
		first := a.events(c.w.t)[0]
		to, err := url.Parse(string(first.Data))
		if err != nil || first.Name != "endpoint" {
			c.w.t.Fatalf("the stream begins with %q %s, %v", first.Name, first.Data, err)
		}
		c.session, c.n = to.Query().Get("sessionId"), 1
	}
}

func (c *sseClient) post(body string, headers ...string) *answer {
	c.w.t.Helper()
	a := c.w.do(request("POST", c.base+"/message?sessionId="+c.session, body, append(headers, c.headers...)...))
	synctest.Wait()
	return a
}

func (c *sseClient) accepted(body string) {
	c.w.t.Helper()
	if a := c.post(body); a.status != http.StatusAccepted || a.body != "Accepted" {
		c.w.t.Fatalf("%s was answered with %d %s", body, a.status, a.body)
	}
}

func (c *sseClient) open() *sseClient {
	c.w.t.Helper()
	c.accepted(initialize)
	c.accepted(initialized)
	return c
}

// messages closes the connection, and returns the messages that came on the stream.
func (c *sseClient) messages() []string {
	c.w.t.Helper()
	return messagesOf(c.w.t, c.gone())
}

// messagesOf returns the messages of a stream, without the endpoint event.
func messagesOf(t *testing.T, a *answer) (out []string) {
	t.Helper()
	for i, e := range a.events(t) {
		switch {
		case i == 0 && e.Name == "endpoint":
		case e.Name == "message":
			out = append(out, string(e.Data))
		default:
			t.Errorf("event %d is a %q: %s", i, e.Name, e.Data)
		}
	}
	return out
}

// api is the WebSocket API of clients: its connections, and what was posted to them.
type api struct {
	mu    sync.Mutex
	conns int      // that there have been
	got   []posted // since the last take
	gone  map[string]bool
}

type posted struct{ conn, text string }

// Post implements storage.Clients.
func (a *api) Post(_ context.Context, conn string, data []byte) error {
	if a.isGone(conn) {
		return storage.Errorf(storage.Closed, "simulated: gone")
	}
	a.gets(conn, data)
	return nil
}

// gets has the client of a connection get a message.
func (a *api) gets(conn string, data []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got = append(a.got, posted{conn, string(data)})
}

// Close implements storage.Clients.
func (a *api) Close(_ context.Context, conn string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone[conn] = true
	return nil
}

func (a *api) isGone(conn string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone[conn]
}

// take returns what the client of a connection has got since its last call, in order.
func (a *api) take(conn string) (texts []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got = slices.DeleteFunc(a.got, func(p posted) bool {
		if p.conn == conn {
			texts = append(texts, p.text)
		}
		return p.conn == conn
	})
	return texts
}

// newSocket returns a function for WebSockets that has just started. push gets the sessions
// for which it wants to be invoked again.
func (w *world) newSocket(push func(storage.ID)) *transport.Socket {
	return transport.NewSocket(transport.SocketOptions{Options: w.started(), Push: func(_ context.Context, id storage.ID) error {
		push(id)
		return nil
	}})
}

// function returns a function for WebSockets, which does not push to the sessions in pushes.
func (w *world) function() *transport.Socket {
	return w.newSocket(func(id storage.ID) { w.pushes = append(w.pushes, id) })
}

// invoke serves one event of the API by a function, and then the pushes that this function asks for.
func (w *world) invoke(serve func(*transport.Socket)) {
	w.t.Helper()
	var owed []storage.ID
	k := w.newSocket(func(id storage.ID) { owed = append(owed, id) })
	serve(k)
	for _, id := range owed {
		commontest.Check(w.t, k.Push(w.t.Context(), id))
	}
}

func (w *world) connect(conn, query string, headers ...string) (status int, protocol, body string) {
	w.t.Helper()
	status, protocol, raw := w.function().Connect(w.t.Context(), conn, request("GET", "/local?"+query, "", headers...))
	return status, protocol, string(raw)
}

// connects asserts the status of a connection that is asked for.
func (w *world) connects(what string, want int, conn, query string, headers ...string) {
	w.t.Helper()
	if status, _, body := w.connect(conn, query, headers...); status != want {
		w.t.Errorf("%s: got %d %s, want %d", what, status, body, want)
	}
}

// send returns the reply to a message, when all messages that it causes have been pushed.
func (w *world) send(conn, data string) string {
	w.t.Helper()
	reply := w.function().Message(w.t.Context(), conn, []byte(data))
	synctest.Wait()
	return string(reply)
}

// openSocket opens a session of the server pushy over a connection, and returns its id.
func (w *world) openSocket(conn string) storage.ID {
	w.t.Helper()
	w.connects("openSocket", 200, conn, "server=pushy&event-ids=1")
	reply := w.send(conn, initialize)
	id, ok := wire.String(wire.Lookup([]byte(reply), "params", "sessionId"))
	if !ok {
		w.t.Fatalf("initialize: %s", reply)
	}
	if reply := w.send(conn, initialized); reply != "" {
		w.t.Fatalf("initialized: %s", reply)
	}
	w.api.take(conn)
	return storage.ID(id)
}

// link is a client of a WebSocket, which gets the pushes that it needs.
type link struct {
	*api
	w       *world
	query   url.Values
	headers []string // of the request that asks for a connection
	conn    string
	conns   []string // that it has had
}

func (w *world) link(query url.Values) *link { return &link{api: w.api, w: w, query: query} }

func (l *link) connect() (status int) {
	l.w.t.Helper()
	l.api.mu.Lock()
	l.api.conns++
	l.conn = fmt.Sprint("c", l.api.conns)
	l.api.mu.Unlock()
	l.conns = append(l.conns, l.conn)
	r := request("GET", "/local?"+l.query.Encode(), "", l.headers...)
	l.w.invoke(func(k *transport.Socket) { status, _, _ = k.Connect(l.w.t.Context(), l.conn, r) })
	return status
}

func (l *link) open() *link {
	l.w.t.Helper()
	if status := l.connect(); status != http.StatusOK {
		l.w.t.Fatalf("the connection was refused with %d", status)
	}
	if got := l.say(initialize); len(got) == 0 || !strings.Contains(got[len(got)-1], `"id":0,"result"`) {
		l.w.t.Fatalf("initialize was answered with %q", got)
	}
	l.say(initialized)
	return l
}

func (l *link) send(raw string) {
	l.w.t.Helper()
	l.w.invoke(func(k *transport.Socket) {
		if reply := k.Message(l.w.t.Context(), l.conn, []byte(raw)); reply != nil {
			l.gets(l.conn, reply)
		}
	})
}

// say sends a message, and returns what the client has got since the last one.
func (l *link) say(raw string) []string {
	l.w.t.Helper()
	l.send(raw)
	time.Sleep(time.Second)
	return l.heard()
}

func (l *link) heard() (all []string) {
	for _, conn := range l.conns {
		all = append(all, l.take(conn)...)
	}
	return all
}

// hang closes the connection.
func (l *link) hang() {
	_ = l.Close(l.w.t.Context(), l.conn)
	l.w.invoke(func(k *transport.Socket) { k.Disconnect(l.w.t.Context(), l.conn) })
}

// party is a client with one session, over any transport.
type party interface {
	id() string
	// say sends a message, and fails the test if it is not accepted.
	say(raw string)
	// heard returns the server's messages since its last call, in order.
	heard() []string
	// leave drops every connection. back connects again to everything that was open, and
	// to the standalone stream.
	leave()
	back()
}

// transports are the ways to be a client of a session with a server, or with all servers for
// "". headers are pairs of name and value.
var transports = map[string]func(w *world, server string, headers ...string) party{
	"Streamable HTTP": func(w *world, server string, headers ...string) party {
		p := &httpParty{client: w.greet(strings.Replace("/"+server+"/mcp", "//", "/", 1), headers...), headers: headers}
		p.say(initialized)
		return p
	},
	"HTTP+SSE": func(w *world, server string, headers ...string) party {
		return greeted(w.t, &sseParty{sseClient: w.openSSE(server, "", headers...)})
	},
	"WebSocket": func(w *world, server string, headers ...string) party {
		query := url.Values{"server": {server}, "event-ids": {"1"}}
		if server == "" {
			query = url.Values{"group": {"all"}, "event-ids": {"1"}}
		}
		p := &wsParty{link: w.link(query), last: map[string]string{}}
		p.headers = headers
		p.back()
		return greeted(w.t, p)
	},
}

// greeted does the handshake of a client that has a connection before its first message.
func greeted(t *testing.T, p party) party {
	t.Helper()
	p.say(initialize)
	if got := p.heard(); len(got) != 1 || !strings.Contains(got[0], `"id":0,"result"`) {
		t.Fatalf("initialize was answered with %q", got)
	}
	p.say(initialized)
	return p
}

// parties plays a scenario over every transport.
func parties(t *testing.T, server string, play func(t *testing.T, w *world, p party)) {
	everyParty(t, func(t *testing.T, w *world, open func(server string, headers ...string) party) {
		p := open(server)
		play(t, w, p)
		p.leave()
	})
}

func everyParty(t *testing.T, play func(t *testing.T, w *world, open func(server string, headers ...string) party)) {
	for _, over := range slices.Sorted(maps.Keys(transports)) {
		in(t, over, bubble, func(t *testing.T, w *world) {
			play(t, w, func(server string, headers ...string) party { return transports[over](w, server, headers...) })
		})
	}
}

// httpParty is a client of Streamable HTTP. It has a response for each request. When it
// comes back, it resumes them, and listens.
type httpParty struct {
	*client
	headers []string
	open    []*reading // in the order they were opened
	told    []string   // before its connections were lost
}

// reading is a response, and how much of it the party has read.
type reading struct {
	*conn
	n int
}

func (p *httpParty) id() string { return p.session }

func (p *httpParty) say(raw string) {
	p.w.t.Helper()
	r := p.request("POST", raw, p.headers...)
	if m, err := wire.Parse([]byte(raw)); err == nil && m.Kind == wire.Request {
		p.open = append(p.open, &reading{conn: p.w.begin(r)})
		return
	}
	if a := p.w.do(r); a.status != http.StatusAccepted {
		p.w.t.Fatalf("%s was answered with %d %s", raw, a.status, a.body)
	}
}

func (p *httpParty) heard() []string {
	p.w.t.Helper()
	all := p.told
	p.told = nil
	for _, r := range p.open {
		a := r.seen()
		var datas []string
		switch {
		case a.status == http.StatusOK && a.header.Get("Content-Type") == wire.MediaJSON:
			datas = []string{a.body}
		case a.status != 0:
			datas = a.datas(p.w.t)
		}
		all, r.n = append(all, datas[r.n:]...), len(datas)
	}
	return all
}

func (p *httpParty) leave() {
	p.told = p.heard()
	for _, r := range p.open {
		r.leave()
	}
}

func (p *httpParty) back() {
	var resumed []*reading
	listens := false // on the standalone stream
	for _, r := range p.open {
		if a := r.read(); a.header.Get("Content-Type") == wire.MediaSSE {
			last := a.lastID(p.w.t)
			listens = listens || !strings.Contains(last, "/")
			resumed = append(resumed, &reading{conn: p.w.begin(p.request("GET", "", append(p.headers, lastEventIs, last)...))})
		}
	}
	if !listens {
		resumed = append(resumed, &reading{conn: p.w.begin(p.request("GET", "", p.headers...))})
	}
	p.open = resumed
}

type sseParty struct {
	*sseClient
	last string // id of the last event of the previous stream
}

func (p *sseParty) id() string { return p.session }

func (p *sseParty) say(raw string) { p.accepted(raw) }

func (p *sseParty) heard() []string {
	p.w.t.Helper()
	all := messagesOf(p.w.t, p.seen())[p.n-1:]
	p.n += len(all)
	return all
}

func (p *sseParty) leave() { p.last = p.conn.leave().lastID(p.w.t) }

func (p *sseParty) back() {
	p.w.t.Helper()
	was := p.session
	if p.follow("", lastEventIs, p.last); p.session != was {
		p.w.t.Errorf("came back to session %s, want %s", p.session, was)
	}
}

// wsParty is a client of a WebSocket that asked for event ids.
type wsParty struct {
	*link
	session string
	told    []string          // before the connection was lost
	last    map[string]string // id of the last event of each stream
}

func (p *wsParty) id() string { return p.session }

func (p *wsParty) back() {
	p.w.t.Helper()
	if p.session != "" {
		p.query.Set("session", p.session)
		p.query["last-event-id"] = slices.Collect(maps.Values(p.last))
	}
	if status := p.connect(); status != http.StatusOK {
		p.w.t.Fatalf("the connection was refused with %d", status)
	}
}

func (p *wsParty) say(raw string) { p.send(raw) }

func (p *wsParty) heard() []string {
	settle()
	all := p.told
	p.told = nil
	for _, raw := range p.link.heard() {
		if !p.notes(raw) {
			all = append(all, raw)
		}
	}
	return all
}

// notes records what a message says about an event. It reports whether it was about one.
func (p *wsParty) notes(raw string) bool {
	var m struct {
		Method string
		Params struct{ SessionID, EventID string }
	}
	if json.Unmarshal([]byte(raw), &m) != nil || m.Method != "notifications/dormouse/event" {
		return false
	}
	p.session = m.Params.SessionID
	_, stream, ofRequest := strings.Cut(m.Params.EventID, "/")
	if !ofRequest { // of a server of a group, or of the only one
		_, stream, _ = strings.Cut(m.Params.EventID, "~")
	}
	// The notification that a request was accepted may come after its first event.
	if !strings.HasPrefix(m.Params.EventID, "0/") || p.last[stream] == "" {
		p.last[stream] = m.Params.EventID
	}
	return true
}

func (p *wsParty) leave() {
	p.told = p.heard()
	p.hang()
	synctest.Wait()
}
