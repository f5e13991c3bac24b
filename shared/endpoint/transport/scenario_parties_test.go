package transport_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// hall is a stage where clients of all transports meet. It is also the WebSocket API, and
// a server's tools can ask their clients.
type hall struct {
	*stage
	*api
	batch sync.Mutex // one batch at a time, as a runner sends them for each session

	mu    sync.Mutex
	asked map[string]chan string // answers by session and question
	conns int                    // that there have been
}

func newHall(s *stage) *hall {
	h := &hall{stage: s, api: newAPI(), asked: map[string]chan string{}}
	s.answered = h.hear
	for _, server := range []string{"quiet", "pushy"} {
		s.awake(server)
	}
	h.tool(wire.MethodInitialize, func(v voice) {
		v.end(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}}}`)
	})
	return h
}

// socket serves one event of the WebSocket API by a function that was made for it.
func (h *hall) socket(serve func(*transport.Socket)) {
	h.t.Helper()
	host, leave := h.host()
	defer leave()
	opts := h.opts
	opts.Host = host.With(sessions.Parts{Clients: h})
	serveSocket(h.t, opts, serve)
}

func (h *hall) connect(query url.Values, headers ...string) (conn string, status int) {
	h.mu.Lock()
	h.conns++
	conn = fmt.Sprint("c", h.conns)
	h.mu.Unlock()
	r := request("GET", "/local?"+query.Encode(), "", headers...)
	h.socket(func(k *transport.Socket) { status, _, _ = k.Connect(h.t.Context(), conn, r) })
	return conn, status
}

// voice sends the messages of a tool in a hall. They reach the client, whatever its
// transport, as if they had come through the relay function.
type voice struct {
	run
	h *hall
}

func (h *hall) tool(name string, f func(voice)) {
	h.backend.tool(name, func(r run) {
		r.clients, r.turn = h, &h.batch
		f(voice{r, h})
	})
}

// aside returns a voice for messages outside of requests.
func (v voice) aside() voice {
	v.stream = storage.Standalone
	return v
}

// ask asks the client, and waits for the answer without a limit. The end of the test ends
// the tool too.
func (v voice) ask(id, question string) (answer string) {
	heard := make(chan string, 1)
	v.h.mu.Lock()
	v.h.asked[string(v.session)+" "+id] = heard
	v.h.mu.Unlock()
	v.append(`{"jsonrpc":"2.0","id":"`+id+`",`+question+`}`, false)
	select {
	case answer = <-heard:
	case <-v.h.t.Context().Done():
		runtime.Goexit()
	}
	return answer
}

// hear takes each answer. A repeat of an answer changes nothing.
func (h *hall) hear(a storage.Answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := string(a.Session) + " " + a.Question
	if heard := h.asked[at]; heard != nil {
		heard <- string(a.Raw)
		delete(h.asked, at)
	}
}

// sent returns the messages of one session that the server got.
func (h *hall) sent(id string) (all []sessions.Delivery) {
	h.stage.mu.Lock()
	defer h.stage.mu.Unlock()
	for _, d := range h.delivered {
		if string(d.Session) == id {
			all = append(all, d)
		}
	}
	return all
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

// transports are the ways to be a client of a session. headers are pairs of name and
// value.
var transports = map[string]func(h *hall, server string, headers ...string) party{
	"Streamable HTTP": func(h *hall, server string, headers ...string) party {
		a := h.do(request("POST", "/"+server+"/mcp", initialize, headers...))
		p := &httpParty{h: h, headers: headers, client: &client{
			w: h.world, path: "/" + server + "/mcp", session: a.header.Get("Mcp-Session-Id"), version: wire.V20251125,
		}}
		if a.status != http.StatusOK || p.session == "" {
			h.t.Fatalf("initialize was answered with %d %s", a.status, a.body)
		}
		p.say(wsInitialized)
		return p
	},
	"HTTP+SSE": func(h *hall, server string, headers ...string) party {
		p := &sseParty{h: h, server: server, headers: headers}
		p.back()
		p.greet(h.t, p)
		return p
	},
	"WebSocket": func(h *hall, server string, headers ...string) party {
		p := &wsParty{h: h, server: server, headers: headers, last: map[string]string{}}
		p.back()
		p.greet(h.t, p)
		return p
	},
}

// greeting is the handshake of a client that has a connection before its first message.
type greeting struct{}

func (greeting) greet(t *testing.T, p party) {
	t.Helper()
	p.say(initialize)
	if got := p.heard(); len(got) != 1 || !strings.Contains(got[0], `"id":0,"result"`) {
		t.Fatalf("initialize was answered with %q", got)
	}
	p.say(wsInitialized)
}

// parties plays a scenario over every transport, on every store.
func parties(t *testing.T, server string, play func(t *testing.T, h *hall, p party)) {
	for _, over := range slices.Sorted(maps.Keys(transports)) {
		t.Run(over, func(t *testing.T) {
			scenario(t, func(t *testing.T, s *stage) {
				h := newHall(s)
				p := transports[over](h, server)
				play(t, h, p)
				p.leave()
			})
		})
	}
}

// httpParty is a client of Streamable HTTP. It has a response for each request. When it
// comes back and has no response to resume, it sends a GET.
type httpParty struct {
	*client
	h       *hall
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
	p.h.t.Helper()
	r := p.request("POST", raw, p.headers...)
	if m, err := wire.Parse([]byte(raw)); err == nil && m.Kind == wire.Request {
		p.open = append(p.open, &reading{conn: p.h.begin(r)})
		return
	}
	if a := p.h.do(r); a.status != http.StatusAccepted {
		p.h.t.Fatalf("%s was answered with %d %s", raw, a.status, a.body)
	}
}

func (p *httpParty) heard() []string {
	p.h.t.Helper()
	all := p.told
	p.told = nil
	for _, r := range p.open {
		a := r.seen()
		var datas []string
		switch {
		case a.status == http.StatusOK && a.header.Get("Content-Type") == wire.MediaJSON:
			datas = []string{a.body}
		case a.status != 0:
			datas = a.datas(p.h.t)
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
	for _, r := range p.open {
		a := r.read()
		if a.header.Get("Content-Type") != wire.MediaSSE {
			continue
		}
		resumed = append(resumed, &reading{conn: p.h.begin(p.request("GET", "", append([]string{"Last-Event-ID", a.lastID(p.h.t)}, p.headers...)...))})
	}
	if resumed == nil {
		resumed = []*reading{{conn: p.h.begin(p.request("GET", "", p.headers...))}}
	}
	p.open = resumed
}

type sseParty struct {
	greeting
	h       *hall
	server  string
	headers []string
	reading *reading
	last    string // id of the last event of the previous stream, and of the session
	session string
}

func (p *sseParty) id() string { return p.session }

func (p *sseParty) back() {
	p.h.t.Helper()
	headers := append([]string{"Accept", wire.MediaSSE, "Last-Event-ID", p.last}, p.headers...)
	p.reading = &reading{conn: p.h.begin(request("GET", "/"+p.server+"/sse", "", headers...)), n: 1}
	first := p.reading.seen().events(p.h.t)[0]
	to, err := url.Parse(string(first.Data))
	if err != nil || first.Name != "endpoint" {
		p.h.t.Fatalf("the stream begins with %q %s, %v", first.Name, first.Data, err)
	}
	if now := to.Query().Get("sessionId"); p.session != "" && now != p.session {
		p.h.t.Errorf("came back to session %s, want %s", now, p.session)
	} else {
		p.session = now
	}
}

func (p *sseParty) say(raw string) {
	p.h.t.Helper()
	if a := p.h.do(request("POST", "/"+p.server+"/message?sessionId="+p.session, raw, p.headers...)); a.status != http.StatusAccepted {
		p.h.t.Fatalf("%s was answered with %d %s", raw, a.status, a.body)
	}
}

func (p *sseParty) heard() (all []string) {
	p.h.t.Helper()
	a := p.reading.seen()
	for _, e := range a.events(p.h.t)[p.reading.n:] {
		p.reading.n++
		if e.Name != "message" {
			p.h.t.Errorf("an event is a %q: %s", e.Name, e.Data)
		}
		all = append(all, string(e.Data))
	}
	return all
}

func (p *sseParty) leave() { p.last = p.reading.leave().lastID(p.h.t) }

// wsParty is a client of a WebSocket that asked for event ids.
type wsParty struct {
	greeting
	h       *hall
	server  string
	headers []string
	conn    string
	session string
	told    []string          // messages that came as replies, or before the connection was lost
	last    map[string]string // id of the last event of each stream
}

func (p *wsParty) id() string { return p.session }

func (p *wsParty) back() {
	p.h.t.Helper()
	query := url.Values{"server": {p.server}, "event-ids": {"1"}}
	if p.session != "" {
		query.Set("session", p.session)
		query["last-event-id"] = slices.Collect(maps.Values(p.last))
	}
	var status int
	if p.conn, status = p.h.connect(query, p.headers...); status != http.StatusOK {
		p.h.t.Fatalf("the connection was refused with %d", status)
	}
}

func (p *wsParty) say(raw string) {
	p.h.socket(func(k *transport.Socket) {
		if reply := k.Message(p.h.t.Context(), p.conn, []byte(raw)); reply != nil {
			p.take(string(reply))
		}
	})
}

// take records what a message says. If the message is not about an event, take keeps the
// message too.
func (p *wsParty) take(raw string) {
	var m struct {
		Method string
		Params struct{ SessionID, EventID string }
	}
	if json.Unmarshal([]byte(raw), &m) != nil || m.Method != "notifications/dormouse/event" {
		p.told = append(p.told, raw)
		return
	}
	p.session = m.Params.SessionID
	_, stream, _ := strings.Cut(m.Params.EventID, "/")
	// The notification that a request was accepted may come after its first event.
	if !strings.HasPrefix(m.Params.EventID, "0/") || p.last[stream] == "" {
		p.last[stream] = m.Params.EventID
	}
}

func (p *wsParty) heard() []string {
	settle()
	for _, raw := range p.h.take(p.conn) {
		p.take(raw)
	}
	all := p.told
	p.told = nil
	return all
}

func (p *wsParty) leave() {
	p.told = p.heard()
	_ = p.h.Close(p.h.t.Context(), p.conn)
	p.h.socket(func(k *transport.Socket) { k.Disconnect(p.h.t.Context(), p.conn) })
	synctest.Wait()
}
