package transport_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// world is everything that outlives a request. That excludes the handler: each request
// gets a new one.
type world struct {
	t       *testing.T
	store   *faultyStore
	backend *backend
	limits  sessions.Limits
	opts    transport.Options
	logged  *bytes.Buffer
	secrets storage.Secrets // nil: no server needs any
}

func newWorld(t *testing.T) *world {
	store := &faultyStore{Store: storagetest.NewMemory()}
	logged := &bytes.Buffer{}
	w := &world{t: t, store: store, backend: &backend{store: store.Store}, logged: logged}
	w.opts = transport.Options{
		Servers: func(name string) (sessions.Server, bool) {
			switch name {
			case "quiet", "pushy": // pushy sends messages outside of requests
				return sessions.Server{Name: name, Digest: name}, true
			case "known": // has a handshake record
				return sessions.Server{Name: name, Digest: name, Record: true}, true
			}
			return sessions.Server{}, false
		},
		Unserved: func(name string) string {
			if name == "weather" {
				return "WEATHER_KEY is not set (servers.json:14:32)"
			}
			return ""
		},
		Removed: func(name string) string {
			if name == "old" {
				return "server old was removed from the servers file at 12:41"
			}
			return ""
		},
		Auth: principal(func(r *http.Request) (string, error) {
			switch r.Header.Get("Authorization") {
			case "Bearer nobody":
				return "", storage.Unauthenticated
			case "":
				return "ada", nil
			default:
				return r.Header.Get("Authorization"), nil
			}
		}),
		Observer: observe.Log(slog.New(slog.NewJSONHandler(logged, nil))),
	}
	err := store.SaveHandshake(t.Context(), storage.Handshake{
		Digest: storage.RecordFor("tenant", "known"), Version: wire.V20251125, Result: json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{}}`),
	})
	commontest.OK(t, err)
	return w
}

type principal func(*http.Request) (name string, err error)

func (p principal) Authenticate(r *http.Request, _ string) (storage.Identity, error) {
	name, err := p(r)
	return storage.Identity{Tenant: "tenant", Principal: name}, err
}

func (p principal) Members(r *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	return apikey.EachServer(p, r, servers)
}

func (principal) Confirm(context.Context, string, string) error { return nil }

func (principal) ConfirmMembers(_ context.Context, _, _ string, servers []string) ([]string, error) {
	return servers, nil
}

// bubble runs a test in fake time.
func bubble(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

func (w *world) handler() *transport.HTTP {
	opts := w.opts
	opts.Host = w.newHost()
	return transport.New(opts)
}

// newHost returns a host of a function that has just started.
func (w *world) newHost() *sessions.Manager {
	h := sessions.New(intercept.New(w.store.Store, w.store.around), w.backend, w.limits)
	if w.secrets != nil {
		return h.With(sessions.Parts{Secrets: w.secrets})
	}
	return h
}

// answer is a whole response, with the time of each flush.
type answer struct {
	status int
	header http.Header
	body   string
	flush  []flush
	took   time.Duration
}

type flush struct {
	at   time.Duration // since the request began
	text string
}

// do serves one request by a handler that was made for it.
func (w *world) do(r *http.Request) *answer {
	w.t.Helper()
	return w.doBy(w.handler(), r)
}

func (w *world) doBy(h http.Handler, r *http.Request) *answer {
	w.t.Helper()
	rec := &recorder{header: http.Header{}, begun: time.Now(), ctx: r.Context()}
	h.ServeHTTP(rec, r)
	rec.Flush()
	a := &answer{status: rec.status, header: rec.sent, flush: rec.flushed, took: time.Since(rec.begun)}
	for _, f := range rec.flushed {
		a.body += f.text
	}
	return a
}

// start serves a request in another goroutine. The channel gets the answer at the end.
func (w *world) start(r *http.Request) <-chan *answer {
	done := make(chan *answer, 1)
	go func() { done <- w.do(r) }()
	return done
}

// recorder is a client that reads what is flushed until it goes. Then its context is
// cancelled.
type recorder struct {
	header, sent http.Header
	status       int
	begun        time.Time
	ctx          context.Context
	buf          bytes.Buffer
	flushed      []flush
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status, r.sent = status, r.header.Clone()
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if errors.Is(r.ctx.Err(), context.Canceled) {
		return 0, io.ErrClosedPipe
	}
	return r.buf.Write(p)
}

func (r *recorder) Flush() {
	r.WriteHeader(http.StatusOK)
	if r.buf.Len() > 0 {
		r.flushed = append(r.flushed, flush{time.Since(r.begun), r.buf.String()})
		r.buf.Reset()
	}
}

func (a *answer) events(t *testing.T) []wire.SSE {
	t.Helper()
	if got := a.header.Get("Content-Type"); a.status != http.StatusOK || got != wire.MediaSSE {
		t.Fatalf("not an event stream: %d %s: %s", a.status, got, a.body)
	}
	var out []wire.SSE
	for r := wire.NewSSEReader(strings.NewReader(a.body), 1<<20); ; {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		commontest.OK(t, err)
		out = append(out, e)
	}
}

// datas returns the messages of an event stream. It leaves out events that only carry an
// id.
func (a *answer) datas(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, e := range a.events(t) {
		if len(e.Data) > 0 {
			out = append(out, string(e.Data))
		}
	}
	return out
}

// lastID returns the id with which a client of this stream comes back.
func (a *answer) lastID(t *testing.T) string {
	t.Helper()
	events := a.events(t)
	for i := len(events) - 1; i >= 0; i-- {
		if events[i].ID != "" {
			return events[i].ID
		}
	}
	t.Fatal("a stream without any id")
	return ""
}

// rpcError returns the JSON-RPC error in the body of an answer.
func (a *answer) rpcError(t *testing.T) (code int, message string) {
	t.Helper()
	var body struct {
		Error struct {
			Code    int
			Message string
		}
	}
	commontest.OKIn(t, fmt.Sprintf("body %q", a.body), json.Unmarshal([]byte(a.body), &body))
	return body.Error.Code, body.Error.Message
}

// request makes a request with the headers that every client sends. headers are pairs of
// name and value, which are set in addition; an empty value removes a header.
func request(method, path, body string, headers ...string) *http.Request {
	r := httptest.NewRequestWithContext(context.Background(), method, "http://localhost"+path, strings.NewReader(body))
	r.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	return r
}

// client is one session of a server, as its client sees it.
type client struct {
	w       *world
	path    string
	session string
	version string
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

func (w *world) open(server string) *client {
	w.t.Helper()
	return w.openAt("/" + server + "/mcp")
}

func (w *world) openAt(path string) *client {
	w.t.Helper()
	a := w.do(request("POST", path, initialize))
	c := &client{w: w, path: path, session: a.header.Get("Mcp-Session-Id"), version: wire.V20251125}
	if a.status != http.StatusOK || c.session == "" {
		w.t.Fatalf("initialize was answered with %d %s", a.status, a.body)
	}
	if a = c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); a.status != http.StatusAccepted {
		w.t.Fatalf("initialized was answered with %d %s", a.status, a.body)
	}
	return c
}

func (w *world) awake(server string) {
	w.t.Helper()
	commontest.OK(w.t, w.store.SaveBox(w.t.Context(), storage.Box{ID: storage.BoxFor("tenant", server), State: storage.Awake, Gen: 1}))
}

// counted returns what do costs in calls of the store, apart from their bytes.
func (w *world) counted(do func()) storagetest.Counts {
	before := w.store.Store
	defer func() { w.store.Store = before }()
	counting := storagetest.NewCounting(before)
	w.store.Store = counting
	do()
	got := counting.Counts()
	got.Bytes = 0
	return got
}

func (c *client) request(method, body string, headers ...string) *http.Request {
	return request(method, c.path, body,
		append([]string{"Mcp-Session-Id", c.session, "MCP-Protocol-Version", c.version}, headers...)...)
}

func (c *client) post(body string, headers ...string) *answer {
	c.w.t.Helper()
	return c.w.do(c.request("POST", body, headers...))
}

func (c *client) call(tool string, headers ...string) *answer {
	c.w.t.Helper()
	return c.post(callOf(tool), headers...)
}

func callOf(tool string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `"}}`
}

func (c *client) get(last string) *answer {
	c.w.t.Helper()
	return c.w.do(c.request("GET", "", "Last-Event-ID", last))
}

// push appends to the standalone stream of the session.
func (c *client) push(text string) {
	c.w.t.Helper()
	run{ctx: c.w.t.Context(), store: c.w.backend.store, session: storage.ID(c.session)}.say(text)
}

// backend is a server whose tools are Go functions. It stands for the relay, the box and
// the process, and writes its messages to the log.
type backend struct {
	store   storage.Store
	clients storage.Clients // over WebSocket; nil: there are none
	tools   map[string]func(run)
	running sync.WaitGroup // tools
	mu      sync.Mutex
	got     []string
	answers []string
	err     error                           // of Deliver
	tend    func() (sessions.Status, error) // called for the status of its tenders; nil: all is in order
	attend  error                           // of Track
}

// run is one delivery, as a tool sees it.
type run struct {
	ctx      context.Context
	store    storage.Store
	session  storage.ID
	stream   storage.StreamID
	requests []json.RawMessage
	address  storage.Address
	clients  storage.Clients // nil: nothing is pushed
	turn     sync.Locker     // held while a batch is written; nil: batches of a session may be written at once
	raw      string          // the messages
}

func (b *backend) tool(name string, f func(run)) {
	if b.tools == nil {
		b.tools = map[string]func(run){}
	}
	b.tools[name] = f
}

func (b *backend) Deliver(ctx context.Context, d sessions.Delivery, _ storage.Box) (sessions.Tracker, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got = append(b.got, string(d.Raw))
	if b.err != nil || len(d.Requests) == 0 {
		return nil, b.err
	}
	msgs, _, err := wire.ParseBody(d.Raw)
	if err != nil {
		return nil, err
	}
	owed := tender{b.tend}
	r := run{context.WithoutCancel(ctx), b.store, d.Session, d.Stream, d.Requests, d.Address, b.clients, nil, string(d.Raw)}
	if msgs[0].Method == wire.MethodInitialize && b.tools["initialize"] == nil {
		capabilities := map[string]string{"quiet": `{}`, "pushy": `{"tools":{"listChanged":true}}`}[d.Server]
		r.end(`{"protocolVersion":"2025-11-25","capabilities":` + capabilities + `}`)
		return owed, nil
	}
	name, _ := wire.String(wire.Lookup(msgs[0].Params, "name"))
	if name == "" {
		name = msgs[0].Method
	}
	if f := b.tools[name]; f != nil {
		b.running.Go(func() { f(r) })
	} else {
		r.end(`{"content":[]}`)
	}
	return owed, nil
}

func (b *backend) Track(context.Context, storage.Session, storage.StreamID) (sessions.Tracker, error) {
	return tender{b.tend}, b.attend
}

func (b *backend) Answer(_ context.Context, a storage.Answer, _ storage.Box) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers = append(b.answers, string(a.Raw))
	return nil
}

func (b *backend) End(context.Context, storage.Session, storage.Box) error { return nil }

// tender reports that everything is in order, unless the test says otherwise.
type tender struct {
	tend func() (sessions.Status, error)
}

func (t tender) Check(context.Context) (sessions.Status, error) {
	if t.tend != nil {
		return t.tend()
	}
	return sessions.Status{Accepted: true, Next: time.Now().Add(time.Hour)}, nil
}

// seq numbers the batches of all sessions. Within one session the numbers increase, as
// those of a runner do.
var seq atomic.Int64

// append writes one event behind the last. The host may write to the stream meanwhile.
func (r run) append(raw string, final bool) {
	if r.turn != nil {
		r.turn.Lock()
		defer r.turn.Unlock()
	}
	err := error(storage.Conflict)
	for errors.Is(err, storage.Conflict) {
		var tail storage.Tail
		if tail, err = r.store.Tail(r.ctx, r.session, r.stream); err == nil {
			err = sessions.Publisher{Store: r.store, Clients: r.clients}.Append(r.ctx, r.address, storage.Batch{
				Session: r.session, Stream: r.stream, First: tail.Last + 1, Gen: 1, Seq: seq.Add(1), Final: final, Events: [][]byte{[]byte(raw)},
			})
		}
	}
	if err != nil {
		panic(err)
	}
}

// say sends a notification; end sends the response to the first request.
func (r run) say(text string) {
	r.append(said(text), false)
}

func (r run) end(result string) {
	r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"result":`+result+`}`, true)
}

// fail sends an error as the response to the first request.
func (r run) fail(rpc string) {
	r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":`+rpc+`}`, true)
}

func said(text string) string {
	return `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + text + `"}}`
}

// faultyStore is a store that fails requests when a test wants it to: fail gets the name of
// each method that a request calls.
type faultyStore struct {
	storage.Store
	mu   sync.Mutex
	fail func(method string) error
}

func (s *faultyStore) failing(fail func(method string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// down makes the named methods fail, or all if it gets none, until it is called again.
func (s *faultyStore) down(methods ...string) {
	s.failing(func(method string) error {
		for _, m := range methods {
			if m == method || m == "*" {
				return storage.Errorf(storage.Unavailable, "the store does not answer; try again").Because(errors.New("disk on fire"))
			}
		}
		return nil
	})
}

func (s *faultyStore) around(ctx context.Context, c *intercept.Call, do func(context.Context) error) error {
	if err := s.check(c.Method); err != nil {
		return err
	}
	return do(ctx)
}

func (s *faultyStore) check(method string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil {
		return nil
	}
	return s.fail(method)
}
