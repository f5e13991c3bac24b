//go:build e2e

package dormouse_test

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite" // opens the store to count its rows

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// greedyTime is the variable with the time for which one principal of
// TestE2EGreedyNeighbour uses as much as it can.
const greedyTime = "DORMOUSE_TEST_GREEDY"

// Limits for dormouse and its runners, during the greedy time and afterwards.
const (
	greedyMemory = 1 << 30   // bytes resident at most
	greedyFiles  = 3000      // descriptors at most
	restMemory   = 256 << 20 // bytes above those at the start, after everything has ended
	restFiles    = 20        // descriptors more
	// The store keeps events for a day, 1,000 of a session. A busy session may have 16
	// times as many until its requests have settled. A stream that closed at once keeps a
	// row or two until the next hour.
	sessionRows = 1100
	busyRows    = 17 * sessionRows
	streamRows  = 4
)

// One principal uses as much of HTTP as it can. Meanwhile another principal
// of its tenant, and one of another tenant, make calls. Each of their calls must succeed.
// Memory, descriptors and rows must stay limited and return to normal.
func TestE2EGreedyNeighbour(t *testing.T) {
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv(greedyTime), "5s"))
	commontest.OK(t, err)
	m := newMachine(t, servers{"one": nil})
	// dormouse itself limits callers. On AWS the gateway's throttles do that, and
	// function programs have no such limits.
	m.programs = false
	m.start(append(sleepy(), "--access", "keys", "--init-timeout", "5s")...)
	g := &greedy{m: m, key: m.keys("create", "greedy", "--all-servers"), slowKey: m.keys("create", "slow", "--all-servers")}
	second := m.as(m.keys("create", "second", "--all-servers"), "one")
	third := m.as(m.keys("create", "third", "--tenant", "other", "--all-servers"), "one")
	second.calls(func(n int) bool { return n < 3 })
	before := m.taken()
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	over := m.watch()
	var done sync.WaitGroup
	done.Go(func() { g.take(ctx) })
	var during [2]int
	for i, c := range []*client{second, third} {
		done.Go(func() { during[i] = c.calls(func(int) bool { return ctx.Err() == nil }) })
	}
	done.Wait()
	peak := over()
	rows := before.rows + 2*busyRows + sessionRows*(len(g.sessions)+2) + streamRows*int(g.streams.Load())
	most := taken{greedyMemory, greedyFiles, rows}
	if !peak.within(most) {
		t.Errorf("while somebody is greedy: %s, want at most %s", peak, most)
	}
	if min(during[0], during[1]) == 0 {
		t.Errorf("the neighbours got %d answers while somebody was greedy", during)
	}
	for _, c := range g.sessions {
		c.leave()
	}
	after := m.settled(taken{before.memory + restMemory, before.files + restFiles, rows})
	t.Logf("neighbours: %d calls", during)
	t.Logf("before: %s; at most: %s, allowed %s; after: %s", before, peak, most, after)
}

// as opens a session with a key.
func (m *machine) as(key, server string) *client {
	m.t.Helper()
	c := m.client(server)
	c.key = key
	commontest.OK(m.t, c.open(params))
	return c
}

// calls makes calls while more returns true, and returns how many. One that fails fails the test.
func (c *client) calls(more func(n int) bool) (n int) {
	for ; more(n); n++ {
		messages, err := c.call("echo", fmt.Sprintf(`{"text":"call %d"}`, n))
		if err != nil || textOf(messages[len(messages)-1]) != fmt.Sprintf("call %d", n) {
			c.t.Errorf("call %d of a neighbour: %v %v", n, ended(messages), err)
			return n
		}
		<-time.After(10 * time.Millisecond) // it is no load of its own
	}
	return n
}

// taken is what a machine uses: bytes of memory, descriptors, rows.
type taken struct{ memory, files, rows int }

func (k taken) String() string {
	return fmt.Sprintf("%d MB, %d descriptors, %d rows", k.memory>>20, k.files, k.rows)
}

func (k taken) within(most taken) bool {
	return k.memory <= most.memory && k.files <= most.files && k.rows <= most.rows
}

// taken measures dormouse, its runners and the store.
func (m *machine) taken() (k taken) {
	m.t.Helper()
	for _, p := range m.those("dormouse", "runner") {
		k.memory += memoryOf(p.pid, "VmRSS")
		files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid)) // a process that has ended has no such folder
		k.files += len(files)
	}
	rows, err := countRows(m.t.Context(), filepath.Join(m.data, local.StoreFile))
	commontest.CheckIn(m.t, "count the rows of the store", err)
	k.rows = rows
	return k
}

func countRows(ctx context.Context, file string) (rows int, err error) {
	db, err := sql.Open("sqlite", "file:"+file+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var sum string
	const tables = `SELECT coalesce(group_concat('(SELECT count(*) FROM "' || name || '")', '+'), '0') FROM sqlite_master WHERE type = 'table'`
	if err := db.QueryRowContext(ctx, tables).Scan(&sum); err != nil {
		return 0, err
	}
	err = db.QueryRowContext(ctx, "SELECT "+sum).Scan(&rows)
	return rows, err
}

// watch begins to measure the machine. most ends the measurement and returns the largest
// values.
func (m *machine) watch() (most func() taken) {
	var peak taken
	var work sync.WaitGroup
	end := make(chan struct{})
	work.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			k := m.taken()
			peak = taken{max(peak.memory, k.memory), max(peak.files, k.files), max(peak.rows, k.rows)}
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	})
	return func() taken {
		close(end)
		work.Wait()
		return peak
	}
}

// settled waits until a machine uses no more than most.
func (m *machine) settled(most taken) (k taken) {
	m.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(time.Second) {
		if k = m.taken(); k.within(most) {
			return k
		}
		if time.Now().After(deadline) {
			m.t.Errorf("a minute after all was over: %s, want at most %s", k, most)
			return k
		}
	}
}

// greedy is a principal that uses as much as it can.
type greedy struct {
	m       *machine
	key     string
	slowKey string // key of a principal that only sends slow bodies; with the same key they would leave no room for other requests

	mu       sync.Mutex
	sessions []*client

	streams atomic.Int64
}

// take uses as much as it can until ctx ends.
func (g *greedy) take(ctx context.Context) {
	own := g.m.as(g.key, "one")
	g.sessions = append(g.sessions, own)
	var work sync.WaitGroup
	for range 100 {
		work.Go(func() { repeat(ctx, func(int) { g.post(ctx, own, "x") }) })
	}
	for range 2 {
		work.Go(func() { repeat(ctx, func(int) { g.post(ctx, own, strings.Repeat("x", 1<<20)) }) })
	}
	for range 30 {
		work.Go(func() { repeat(ctx, func(int) { g.stream(ctx) }) })
	}
	for n := range 150 {
		work.Go(func() { repeat(ctx, func(int) { g.slowBody(ctx, n%3 > 0) }) })
	}
	work.Go(func() {
		repeat(ctx, func(n int) {
			if n < 60 {
				g.session(ctx)
			} else {
				<-ctx.Done()
			}
		})
	})
	work.Wait()
}

func repeat(ctx context.Context, do func(n int)) {
	for n := 0; ctx.Err() == nil; n++ {
		do(n)
	}
}

// post makes a call and reads its answer.
func (g *greedy) post(ctx context.Context, c *client, text string) {
	s, err := c.send(ctx, http.MethodPost, "", c.request(c.id(), "echo", fmt.Sprintf(`{"text":%q}`, text)))
	if err != nil {
		return // the time is over
	}
	_, _ = s.messages() // the time may be over
	s.close()
}

// stream opens a stream of HTTP+SSE and closes it.
func (g *greedy) stream(ctx context.Context) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(g.m.urls["one"], "mcp")+"sse", nil)
	if err != nil {
		return
	}
	c := g.m.client("one")
	c.key = g.key
	if s, err := c.do(r); err == nil {
		s.close()
		g.streams.Add(1)
	}
	select { // or there would be nothing but sessions
	case <-time.After(500 * time.Millisecond):
	case <-ctx.Done():
	}
}

// slowBody sends half of a body and waits until the server cuts it off.
func (g *greedy) slowBody(ctx context.Context, keyed bool) {
	u, err := url.Parse(g.m.urls["one"])
	if err != nil {
		return
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // it has served
	defer func() { _ = conn.Close() }()
	size, auth := 200<<10, ""
	if keyed {
		size, auth = 4<<20, "Authorization: Bearer "+g.slowKey+"\r\n"
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\n%sContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n", u.Path, u.Host, auth, size)
	if _, err := conn.Write(append([]byte(head), bytes.Repeat([]byte(" "), size/2)...)); err == nil {
		_, _ = io.Copy(io.Discard, conn) // to its end, whatever is said
	}
}

// session opens one more session, with a process of its own.
func (g *greedy) session(ctx context.Context) {
	c := g.m.client("one")
	c.key = g.key
	if c.open(params) != nil {
		return // refused, or the time is over
	}
	g.post(ctx, c, "x")
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sessions = append(g.sessions, c)
}
