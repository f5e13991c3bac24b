package clients

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// ledger records what the server received from its clients and sent to them.
type ledger struct {
	pace time.Duration

	mu  sync.Mutex
	all []*seen // in the order in which the requests came
}

// seen is one exchange. Only its handler may use the body before the exchange has ended.
type seen struct {
	method  string
	session storage.ID
	from    string           // Last-Event-ID
	stream  storage.StreamID // the stream that it names; Standalone for a GET without one
	begun   time.Time
	ended   time.Time // zero while it is being served
	status  int
	media   string
	body    bytes.Buffer
}

func (l *ledger) begin(r *http.Request) *seen {
	s := &seen{
		method: r.Method, session: storage.ID(r.Header.Get(wire.HeaderSessionID)),
		from: r.Header.Get(wire.HeaderLastEventID), begun: time.Now(),
	}
	if id, err := storage.ParseEventID(s.from); err == nil {
		s.stream = id.Stream
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, s)
	return s
}

func (l *ledger) end(s *seen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.ended = time.Now()
}

// streams returns the responses that were event streams, with their events.
func (l *ledger) streams(t *testing.T) []served {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []served
	for _, s := range l.all {
		if s.ended.IsZero() || s.media != wire.MediaSSE {
			continue
		}
		one := served{seen: s}
		for r := wire.NewSSEReader(bytes.NewReader(s.body.Bytes()), 1<<20); ; {
			e, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			commontest.OK(t, err)
			one.events = append(one.events, e)
		}
		out = append(out, one)
	}
	return out
}

// served is a response that was an event stream.
type served struct {
	*seen
	events []wire.SSE
}

// last returns the id with which the client must come back, and after which time.
func (s served) last() (id string, retry time.Duration) {
	for _, e := range s.events {
		if e.ID != "" {
			id = e.ID
		}
		if e.Retry > 0 {
			retry = e.Retry
		}
	}
	return id, retry
}

// timerSlack is how much too early a client's timer may fire. Node's timers do so by a
// millisecond.
const timerSlack = 2 * time.Millisecond

// check checks all responses by the polling contract. No GET gets an error status, but for
// one whose client ended its session meanwhile. Every
// stream begins with a fresh id and empty data. No client comes back earlier than
// it was told, or with an id other than the last one it got. sharedPace is for clients
// that have one retry for all their streams: they may use that of another stream.
func (l *ledger) check(t *testing.T, sharedPace bool) {
	t.Helper()
	streams := l.streams(t)
	fresh := map[string]bool{}
	by := map[string]served{} // by the id with which the client comes back
	for _, s := range streams {
		if len(s.events) == 0 {
			t.Errorf("%s from %q was answered with an empty stream", s.method, s.from)
			continue
		}
		first := s.events[0]
		if first.ID == "" || first.Retry > 0 && len(s.events) > 1 || !first.HasData || len(first.Data) != 0 || first.Name != "" {
			t.Errorf("P1: %s from %q begins with %+v", s.method, s.from, first)
		}
		if fresh[first.ID] {
			t.Errorf("P2: id %s opened two responses", first.ID)
		}
		fresh[first.ID] = true
		id, _ := s.last()
		by[string(s.session)+" "+id] = s
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	deleted := map[storage.ID]time.Time{} // when the client began to end its session
	for _, s := range l.all {
		if s.method == http.MethodDelete {
			deleted[s.session] = s.begun
		}
	}
	for _, s := range l.all {
		if s.method != http.MethodGet || s.ended.IsZero() {
			continue
		}
		gone := !deleted[s.session].IsZero() && s.ended.After(deleted[s.session])
		if s.status != http.StatusOK && (!gone || s.status != http.StatusNotFound) {
			t.Errorf("P3: a GET from %q was answered with %d", s.from, s.status)
		}
		if s.from == "" {
			continue
		}
		before, ok := by[string(s.session)+" "+s.from]
		if !ok {
			t.Errorf("a client came back from %q, which is not the last it was given", s.from)
			continue
		}
		if waited, told := s.begun.Sub(before.ended), l.told(before, sharedPace); waited < told-timerSlack {
			t.Errorf("P6: a client was told to wait %s and came back to %q after %s", told, s.from, waited)
		}
	}
}

func (l *ledger) told(before served, sharedPace bool) time.Duration {
	if sharedPace {
		return l.pace
	}
	_, retry := before.last()
	return retry
}

// calls counts the polls of the request streams of all sessions, and their ends.
type calls struct {
	polls    map[storage.StreamID]int // GETs that named the stream
	troubled map[storage.StreamID]int // those among them that got a longer retry
	results  map[string]int           // by the text of the message
}

func (l *ledger) calls(t *testing.T) calls {
	t.Helper()
	c := calls{map[storage.StreamID]int{}, map[storage.StreamID]int{}, map[string]int{}}
	for _, s := range l.streams(t) {
		for _, e := range s.events {
			if bytes.Contains(e.Data, []byte(`"result"`)) {
				c.results[string(s.session)+" "+string(e.Data)]++
			}
		}
		if s.stream == storage.Standalone {
			continue
		}
		c.polls[s.stream]++
		if _, retry := s.last(); retry == 10*l.pace {
			c.troubled[s.stream]++
		}
	}
	return c
}

// once checks that no result was sent twice.
func (c calls) once(t *testing.T) {
	t.Helper()
	for result, n := range c.results {
		if n != 1 {
			t.Errorf("sent %d times: %s", n, result)
		}
	}
}

// sorted returns how many polls the calls took, fewest first. It leaves out calls without
// polls.
func (c calls) sorted() []int {
	var n []int
	for _, polls := range c.polls {
		n = append(n, polls)
	}
	slices.Sort(n)
	return n
}

// noting keeps a copy of a response.
type noting struct {
	http.ResponseWriter
	seen *seen
}

// WriteHeader records the status and the kind of body that follows.
func (n *noting) WriteHeader(status int) {
	n.seen.status, n.seen.media = status, n.Header().Get("Content-Type")
	n.ResponseWriter.WriteHeader(status)
}

// Write notes what is sent.
func (n *noting) Write(p []byte) (int, error) {
	n.seen.body.Write(p)
	return n.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController flush.
func (n *noting) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// numbers returns the words "1" to "n" and then those of more.
func numbers(n int, more ...string) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprint(i+1))
	}
	return strings.Join(append(all, more...), " ")
}
