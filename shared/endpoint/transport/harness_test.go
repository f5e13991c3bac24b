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

// world is everything that outlives a request: the store, the servers and the WebSocket API. Nothing
// else stays in memory. Each request is served by a handler and a host that were made for it.
type world struct {
	t       *testing.T
	store   storage.Store // of the test and of the servers
	served  storage.Store // of requests: store, if nothing lies around it
	backend *backend
	api     *api
	limits  sessions.Limits
	opts    transport.Options
	fresh   func(*transport.Options) // sets what a function makes when it starts; may be nil
	stays   *transport.HTTP
	secrets storage.Secrets // nil: no server needs any
	logged  *commontest.Lines
	pushes  []storage.ID // sessions for which a function of w.function wants to be invoked again

	mu     sync.Mutex
	faults map[string]fault // by method of the store, "" for all others
	calls  map[string]int   // calls of the store that requests made, by method
}

// bubble runs a test in fake time, on a store in memory. The files scenario_*_test.go play the
// scenarios of shared/testdata/scenarios.md, whose numbers stand above the tests.
func bubble(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

// in runs a test of a name in a world: [bubble], or [modern].
func in(t *testing.T, name string, world func(*testing.T, func(*testing.T, *world)), test func(t *testing.T, w *world)) {
	t.Run(name, func(t *testing.T) { world(t, test) })
}

func newWorld(t *testing.T) *world {
	store := storagetest.NewMemory()
	w := &world{t: t, store: store, served: store, api: &api{gone: map[string]bool{}}, logged: &commontest.Lines{}, calls: map[string]int{}}
	w.backend = &backend{w: w, asked: map[string]chan string{}, turn: make(chan struct{}, 1)}
	t.Cleanup(w.backend.running.Wait) // tools have the store till they end
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
		Observer: observe.Log(slog.New(slog.NewJSONHandler(w.logged, nil))),
	}
	w.handshake(t, `{"protocolVersion":"2025-11-25","capabilities":{}}`)
	return w
}

// change has how edit each server that the endpoint looks up from now on.
func (w *world) change(how func(s *sessions.Server)) {
	servers := w.opts.Servers
	w.opts.Servers = func(name string) (sessions.Server, bool) {
		s, ok := servers(name)
		how(&s)
		return s, ok
	}
}

func (w *world) handshake(t *testing.T, result string) {
	t.Helper()
	h := storage.Handshake{Digest: storage.RecordFor("tenant", "known"), Version: wire.V20251125, Result: json.RawMessage(result)}
	commontest.OK(t, w.store.SaveHandshake(t.Context(), h))
}

func (w *world) awake(servers ...string) {
	w.t.Helper()
	for _, server := range servers {
		commontest.OK(w.t, w.store.SaveBox(w.t.Context(), storage.Box{ID: storage.BoxFor("tenant", server), State: storage.Awake, Gen: 1}))
	}
}

type principal func(*http.Request) (name string, err error)

func (p principal) Members(r *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	name, err := p(r)
	return apikey.Same(storage.Identity{Tenant: "tenant", Principal: name}, servers), err
}

func (principal) ConfirmMembers(_ context.Context, _, _ string, servers []string) ([]string, error) {
	return servers, nil
}

func (w *world) count() *storagetest.Counting {
	counting := storagetest.NewCounting(w.served)
	w.served = counting
	return counting
}

// counted returns what do costs in calls of the store, apart from their bytes.
func (w *world) counted(do func()) storagetest.Counts {
	counting := w.count()
	do()
	got := counting.Counts()
	got.Bytes = 0
	return got
}

// fault is what happens to a request's call of the store; do makes the call.
type fault func(do func() error) error

var errDown = storage.Errorf(storage.Unavailable, "the store does not answer; try again").Because(errors.New("disk on fire"))

// fail makes methods of the store fail, also for requests that are under way. The name ""
// stands for every method. Without a name all methods work again.
func (w *world) fail(how fault, methods ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = map[string]fault{}
	for _, m := range methods {
		w.faults[m] = how
	}
}

// down makes methods fail as if they had not been called.
func (w *world) down(methods ...string) {
	w.fail(func(func() error) error { return errDown }, methods...)
}

// deaf makes methods fail as down does, but the store does their work: only the answer is lost.
func (w *world) deaf(methods ...string) {
	w.fail(func(do func() error) error { _ = do(); return errDown }, methods...)
}

func (w *world) around(ctx context.Context, c *intercept.Call, do func(context.Context) error) error {
	w.mu.Lock()
	how, ok := w.faults[c.Method]
	if !ok {
		how = w.faults[""]
	}
	w.calls[c.Method]++
	w.mu.Unlock()
	if how == nil {
		return do(ctx)
	}
	return how(func() error { return do(ctx) })
}

// started returns the options of a function that has just started.
func (w *world) started() transport.Options {
	opts := w.opts
	if w.fresh != nil {
		w.fresh(&opts)
	}
	opts.Host = sessions.New(intercept.New(w.served, w.around), w.backend, w.limits).With(sessions.Parts{Clients: w.api, Secrets: w.secrets})
	return opts
}

// handler returns a new function, or with Outlive the one program that stays.
func (w *world) handler() *transport.HTTP {
	if w.opts.Outlive == nil {
		return transport.New(w.started())
	}
	if w.stays == nil {
		w.stays = transport.New(w.started())
	}
	return w.stays
}

// answer is what the client of a request has read.
type answer struct {
	status int
	header http.Header
	body   string
	flush  []flush
	took   time.Duration // 0 while the request goes on
}

type flush struct {
	at   time.Duration // since the request began
	text string
}

func (w *world) do(r *http.Request) *answer {
	w.t.Helper()
	c, serve := w.prepare(r)
	serve()
	return c.read()
}

// begin serves a request in another goroutine, at most until the end of the test.
func (w *world) begin(r *http.Request) *conn {
	c, serve := w.prepare(r)
	w.t.Cleanup(func() { c.cut(); <-c.over })
	go serve()
	return c
}

func (w *world) prepare(r *http.Request) (c *conn, serve func()) {
	ctx, cut := context.WithCancel(r.Context())
	c = &conn{recorder: newRecorder(ctx), over: make(chan struct{}), cut: cut}
	h := w.handler()
	return c, func() {
		defer close(c.over)
		defer cut()
		c.serve(h, r.WithContext(ctx))
	}
}

// conn is a request under way, as its client sees it.
type conn struct {
	*recorder
	over chan struct{}
	cut  context.CancelFunc // the client goes
}

// settle waits until every goroutine has done what it can do now. Writers that meet need a
// moment for that.
func settle() {
	time.Sleep(200 * time.Millisecond)
	synctest.Wait()
}

// seen returns what the client has read so far.
func (c *conn) seen() *answer {
	settle()
	return c.read()
}

func (c *conn) end() *answer {
	<-c.over
	return c.read()
}

// leave closes the connection when the client has read all that there is now.
func (c *conn) leave() *answer {
	settle()
	return c.gone()
}

func (c *conn) gone() *answer {
	c.cut()
	return c.end()
}

// recorder is a client that reads what is flushed until it goes. Then its context is
// cancelled. Others may read it while it records.
type recorder struct {
	begun time.Time
	ctx   context.Context

	mu           sync.Mutex
	header, sent http.Header
	status       int
	buf          bytes.Buffer
	flushed      []flush
	took         time.Duration
}

func newRecorder(ctx context.Context) *recorder {
	return &recorder{header: http.Header{}, begun: time.Now(), ctx: ctx}
}

func (r *recorder) serve(h http.Handler, q *http.Request) {
	h.ServeHTTP(r, q)
	r.Flush()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = time.Since(r.begun)
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(status)
}

func (r *recorder) begin(status int) {
	if r.status == 0 {
		r.status, r.sent = status, r.header.Clone()
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(http.StatusOK)
	if errors.Is(r.ctx.Err(), context.Canceled) {
		return 0, io.ErrClosedPipe
	}
	return r.buf.Write(p)
}

func (r *recorder) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(http.StatusOK)
	if r.buf.Len() > 0 {
		r.flushed = append(r.flushed, flush{time.Since(r.begun), r.buf.String()})
		r.buf.Reset()
	}
}

func (r *recorder) read() *answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &answer{status: r.status, header: r.sent, flush: r.flushed, took: r.took}
	for _, f := range r.flushed {
		a.body += f.text
	}
	return a
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

// datas returns the messages of an event stream. It leaves out events that only carry an id.
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
func (a *answer) lastID(t *testing.T) (last string) {
	t.Helper()
	for _, e := range a.events(t) {
		if e.ID != "" {
			last = e.ID
		}
	}
	if last == "" {
		t.Fatal("a stream without any id")
	}
	return last
}

func (a *answer) retry(t *testing.T) (last time.Duration) {
	t.Helper()
	for _, e := range a.events(t) {
		if e.Retry > 0 {
			last = e.Retry
		}
	}
	return last
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

// is asserts the status of an answer and, unless it is 0, the code of its JSON-RPC error.
func (a *answer) is(t *testing.T, what string, status int, code wire.Code) {
	t.Helper()
	if got := wire.Lookup([]byte(a.body), "error", "code"); a.status != status || code != 0 && string(got) != fmt.Sprint(int(code)) {
		t.Errorf("%s: got %d %s, want %d and the code %d", what, a.status, a.body, status, code)
	}
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
