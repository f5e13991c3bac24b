package transport_test

import (
	"context"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// The files scenario_*_test.go play the scenarios of shared/testdata/scenarios.md from the outside.
// Nothing stays in memory: each request is served by a handler, a host and a handle on the
// store that were made for it. The numbers of the scenarios stand above the tests.

// stage is a world that shows more, and in which more can fail.
type stage struct {
	*world
	open func() storage.Store // one more handle on the data
	// behind makes the backend of a host, from a handle on the store; nil for the scripted
	// backend.
	behind func(storage.Store) sessions.Backend

	mu        sync.Mutex
	faults    map[string]storagetest.Faults // the present faults, by method of the store
	live      map[*storagetest.Faulty]bool
	calls     map[string]int // calls of the store that requests made, by method
	delivered []sessions.Delivery
	ended     []storage.ID         // sessions whose end the backend was told
	answered  func(storage.Answer) // gets the answers that the backend got; may be nil
}

// scenario plays a scenario on every store, in fake time.
func scenario(t *testing.T, play func(t *testing.T, s *stage)) {
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			memory := storagetest.NewMemory()
			play(t, newStage(t, func() storage.Store { return kept{memory} }))
		})
	})
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "sessions.db")
		synctest.Test(t, func(t *testing.T) {
			play(t, stageAt(t, path))
		})
	})
}

func newStage(t *testing.T, open func() storage.Store) *stage {
	w := newWorld(t)
	s := &stage{world: w, open: open, live: map[*storagetest.Faulty]bool{}, calls: map[string]int{}}
	known, err := w.store.Handshake(t.Context(), storage.RecordFor("tenant", "known"), "2025-11-25")
	commontest.OK(t, err)
	own := open() // the server's and the test's
	t.Cleanup(func() {
		w.backend.running.Wait() // tools have the store till they end
		_ = own.Close()
	})
	w.store.Store, w.backend.store = own, own
	commontest.OK(t, own.SaveHandshake(t.Context(), known))
	return s
}

type kept struct{ storage.Store }

func (kept) Close() error { return nil }

// napping is a store that waits for events by polling, because the signal that ends a real
// wait is outside of virtual time.
type napping struct{ storage.Store }

const longestNap = 100 * time.Millisecond

func (n napping) Wait(ctx context.Context, id storage.ID, stream storage.StreamID, after storage.Index, until time.Time) (storage.Page, error) {
	for begun := time.Now(); ; {
		if err := ctx.Err(); err != nil {
			return storage.Page{}, err
		}
		page, err := n.Read(ctx, id, stream, after, 100)
		if err != nil || len(page.Events) > 0 || !time.Now().Before(until) {
			return page, err
		}
		time.Sleep(min(max(time.Since(begun)/10, 5*time.Millisecond), longestNap, time.Until(until)))
	}
}

// down makes methods of the store fail, as if they had not been called. It applies to
// requests, also to open ones. The name "" stands for every method; without a name all
// methods work again.
func (s *stage) down(methods ...string) { s.fail(storagetest.Faults{Lost: 1}, methods...) }

// deaf makes methods fail as down does, but the store does their work: only the answer is
// lost.
func (s *stage) deaf(methods ...string) { s.fail(storagetest.Faults{Unanswered: 1}, methods...) }

func (s *stage) fail(how storagetest.Faults, methods ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.faults
	s.faults = map[string]storagetest.Faults{}
	for _, m := range methods {
		s.faults[m] = how
	}
	for f := range s.live {
		for m := range was {
			f.Set(m, storagetest.Faults{})
		}
		for m, faults := range s.faults {
			f.Set(m, faults)
		}
	}
}

// host returns a new host over a new handle on the store; leave closes both.
func (s *stage) host() (h *sessions.Manager, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counting := storagetest.NewCounting(s.open())
	faulty := storagetest.NewFaulty(counting, 1, storagetest.Faults{})
	for m, faults := range s.faults {
		faulty.Set(m, faults)
	}
	s.live[faulty] = true
	var backend sessions.Backend = spy{s.backend, s}
	if s.behind != nil {
		backend = s.behind(faulty)
	}
	return sessions.New(faulty, backend, s.limits), func() {
		_ = counting.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.live, faulty)
		for m, n := range counting.Counts().Calls {
			s.calls[m] += n
		}
	}
}

// conn is a request under way.
type conn struct {
	rec  *witness
	over chan struct{}
	took time.Duration
	cut  context.CancelFunc // the client goes
}

// witness is a recorder that other goroutines can read while it records.
type witness struct {
	mu sync.Mutex
	recorder
}

func (w *witness) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorder.WriteHeader(status)
}

func (w *witness) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.recorder.Write(p)
}

func (w *witness) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorder.Flush()
}

// begin serves a request in another goroutine, at most until the end of the scenario.
func (s *stage) begin(r *http.Request) *conn {
	ctx, cancel := context.WithCancel(r.Context())
	c := &conn{rec: &witness{recorder: recorder{header: http.Header{}, begun: time.Now(), ctx: ctx}}, over: make(chan struct{}), cut: cancel}
	host, leave := s.host()
	opts := s.opts
	opts.Host = host
	s.t.Cleanup(func() { cancel(); <-c.over })
	go func() {
		defer close(c.over)
		defer cancel()
		defer leave()
		transport.New(opts).ServeHTTP(c.rec, r.WithContext(ctx))
		c.rec.Flush()
		c.rec.mu.Lock()
		defer c.rec.mu.Unlock()
		c.took = time.Since(c.rec.begun)
	}()
	return c
}

// settle waits until every goroutine has done what it can do now. A store that is polled
// needs a moment for that.
func settle() {
	time.Sleep(2 * longestNap)
	synctest.Wait()
}

// seen returns what the client of a request has read so far.
func (c *conn) seen() *answer {
	settle()
	return c.read()
}

func (c *conn) read() *answer {
	c.rec.mu.Lock()
	defer c.rec.mu.Unlock()
	a := &answer{status: c.rec.status, header: c.rec.sent, flush: c.rec.flushed, took: c.took}
	for _, f := range c.rec.flushed {
		a.body += f.text
	}
	return a
}

func (c *conn) isOver() bool {
	settle()
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

func (c *conn) end() *answer {
	<-c.over
	return c.read()
}

// leave closes the connection, and returns what the client has read.
func (c *conn) leave() *answer {
	settle()
	c.cut()
	return c.end()
}

func (s *stage) do(r *http.Request) *answer { return s.begin(r).end() }

type visitor struct {
	*client
	s *stage
}

func (s *stage) visit(server string) visitor {
	s.t.Helper()
	v := s.greet(server)
	if a := v.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); a.status != http.StatusAccepted {
		s.t.Fatalf("initialized was answered with %d %s", a.status, a.body)
	}
	return v
}

// greet does the first half of the handshake.
func (s *stage) greet(server string) visitor {
	s.t.Helper()
	a := s.do(request("POST", "/"+server+"/mcp", initialize))
	id := a.header.Get("Mcp-Session-Id")
	if a.status != http.StatusOK || id == "" {
		s.t.Fatalf("initialize was answered with %d %s", a.status, a.body)
	}
	return visitor{&client{w: s.world, path: "/" + server + "/mcp", session: id, version: "2025-11-25"}, s}
}

func (v visitor) post(body string, headers ...string) *answer {
	return v.s.do(v.request("POST", body, headers...))
}

func (v visitor) call(tool string, headers ...string) *answer {
	return v.post(callOf(tool), headers...)
}
func (v visitor) get(last string) *answer { return v.listen(last).end() }
func (v visitor) del() *answer            { return v.s.do(v.request("DELETE", "")) }

// calling starts a call; listen starts a GET.
func (v visitor) calling(tool string) *conn { return v.s.begin(v.request("POST", callOf(tool))) }

func (v visitor) listen(last string) *conn {
	return v.s.begin(v.request("GET", "", "Last-Event-ID", last))
}

// follower is a client that always comes back as the server tells it.
type follower struct {
	v      visitor
	conn   *conn  // the response it reads, nil between two
	last   string // what it comes back with
	due    time.Time
	opened int
	heard  []string
}

// step does what is due now. If a response has ended, it records the events and comes
// back.
func (f *follower) step(t *testing.T) {
	t.Helper()
	if f.conn != nil {
		select {
		case <-f.conn.over:
			f.note(t)
		default:
		}
	}
	if f.conn == nil && !time.Now().Before(f.due) {
		f.conn = f.v.listen(f.last)
		f.opened++
	}
}

// note closes the response and records its events.
func (f *follower) note(t *testing.T) {
	t.Helper()
	a := f.conn.end()
	f.heard, f.last = append(f.heard, a.datas(t)...), a.lastID(t)
	f.conn, f.due = nil, f.conn.rec.begun.Add(a.took+a.retry(t))
}

// follow lets followers follow for a time, and then records what they have read. It calls
// happen once a second.
func follow(t *testing.T, seconds int, happen func(second int), followers ...*follower) {
	t.Helper()
	const steps = 10 // a second
	for step := range seconds * steps {
		if step%steps == 0 {
			happen(step / steps)
		}
		for _, f := range followers {
			f.step(t)
		}
		time.Sleep(time.Second / steps)
	}
	for _, f := range followers {
		if f.conn != nil {
			settle()
			f.conn.cut()
			f.note(t)
		}
	}
}

func (v visitor) record() storage.Session {
	v.s.t.Helper()
	record, _, err := v.s.backend.store.Load(v.s.t.Context(), storage.ID(v.session), "")
	commontest.OK(v.s.t, err)
	return record
}

// tail returns the end of the newest request stream of the session, or of the standalone
// stream if there is none.
func (v visitor) tail() storage.Tail {
	v.s.t.Helper()
	stream, err := v.s.backend.store.Newest(v.s.t.Context(), storage.ID(v.session))
	commontest.OK(v.s.t, err)
	tail, err := v.s.backend.store.Tail(v.s.t.Context(), storage.ID(v.session), stream)
	commontest.OK(v.s.t, err)
	return tail
}

type spy struct {
	*backend
	s *stage
}

func (b spy) Deliver(ctx context.Context, d sessions.Delivery, box storage.Box) (sessions.Tracker, error) {
	b.s.mu.Lock()
	b.s.delivered = append(b.s.delivered, d)
	b.s.mu.Unlock()
	return b.backend.Deliver(ctx, d, box)
}

func (b spy) Answer(ctx context.Context, a storage.Answer, box storage.Box) error {
	b.s.mu.Lock()
	answered := b.s.answered
	b.s.mu.Unlock()
	if answered != nil {
		answered(a)
	}
	return b.backend.Answer(ctx, a, box)
}

func (b spy) End(ctx context.Context, record storage.Session, box storage.Box) error {
	b.s.mu.Lock()
	b.s.ended = append(b.s.ended, record.ID)
	b.s.mu.Unlock()
	return b.backend.End(ctx, record, box)
}

// aside returns a run for messages of a tool that do not belong to its call.
func aside(r run) run { return run{ctx: r.ctx, store: r.store, session: r.session} }

func (a *answer) retry(t *testing.T) (last time.Duration) {
	t.Helper()
	for _, e := range a.events(t) {
		if e.Retry > 0 {
			last = e.Retry
		}
	}
	return last
}

// resultOf returns the scripted server's response to request 1.
func resultOf(result string) string { return `{"jsonrpc":"2.0","id":1,"result":` + result + `}` }
