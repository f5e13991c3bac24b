package local

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// use counts the requests and connections of the endpoints. Its zero value is ready to use.
type use struct {
	servers []*http.Server     // HTTP servers that are counted; set before awaitEnd runs
	open    []*openConnections // the connections of these servers, without WebSockets

	mu       sync.Mutex
	requests int       // requests that are being handled, streams and WebSockets included
	posts    int       // those of the requests that are messages of clients and get an answer
	last     time.Time // when a request last began or ended
}

// count makes u count the requests and the connections of a server. Call it before the
// server serves.
func (u *use) count(s *http.Server, open *openConnections) {
	u.servers, u.open = append(u.servers, s), append(u.open, open)
	h := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A client of protocol version 2026-07-28 listens with a POST that lasts as long as its connection.
		message := r.Method == http.MethodPost && r.Header.Get(wire.HeaderMethod) != wire.MethodListen
		u.add(message, 1)
		defer u.add(message, -1)
		h.ServeHTTP(w, r)
	})
}

func (u *use) add(message bool, requests int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.requests += requests
	if message {
		u.posts += requests
	}
	u.last = time.Now()
}

// calls returns how many messages of clients are being handled.
func (u *use) calls() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.posts
}

// idleSince returns the time at which a request last began or ended. ok is false while there is a
// request or a connection.
func (u *use) idleSince() (since time.Time, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.last, u.requests == 0 && !slices.ContainsFunc(u.open, (*openConnections).any)
}

// lastRequests is how long an idle machine, before it ends, waits for requests that came while it
// closed its endpoints. It waits as long again for tasks that these requests began.
const lastRequests = time.Minute

// awaitEnd returns when ctx ends, after the drain that Config.Drain asks for, or when the machine
// was idle for Config.ExitWhenIdle.
//
// An idle machine loses no request. It closes its endpoints first, and waits for the answers to
// earlier requests. Later clients wait for the next process, because the service manager still holds
// the listening sockets.
func awaitEnd(ctx context.Context, m *machine) {
	if m.cfg.ExitWhenIdle == 0 {
		select {
		case <-ctx.Done():
		case <-m.cfg.Drain:
			drain(ctx, m)
		}
		return
	}
	tick := time.NewTicker(min(m.cfg.ExitWhenIdle/4, sweepEvery))
	defer tick.Stop()
	busy := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.cfg.Drain:
			drain(ctx, m)
			return
		case now := <-tick.C:
			last, idle := m.public.use.idleSince()
			if !idle || works(ctx, m) {
				busy = now
			} else if now.Sub(busy) >= m.cfg.ExitWhenIdle && now.Sub(last) >= m.cfg.ExitWhenIdle {
				m.log.Info("nothing was asked, so dormouse run ends; the next connection starts it again", "idle", m.cfg.ExitWhenIdle.String())
				m.public.use.finish(ctx, m.log)
				ctx, cancel := context.WithTimeout(ctx, lastRequests)
				defer cancel()
				for works(ctx, m) && storage.Rest(ctx, 100*time.Millisecond) == nil { // work that goes on after its request, such as tasks
				}
				return
			}
		}
	}
}

// works reports whether there is work without an open request: a box runs, an alarm is set, or a
// call waits.
func works(ctx context.Context, m *machine) bool {
	return m.boxesRun(ctx) || m.functions.WaitingAlarms() > 0 || callsWait(ctx, m.functions.Records())
}

// finish refuses new connections and waits until the current requests have ended.
func (u *use) finish(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, lastRequests)
	defer cancel()
	for _, s := range u.servers {
		if err := s.Shutdown(ctx); err != nil {
			log.Warn("a request did not end in time", "error", err)
		}
	}
}
