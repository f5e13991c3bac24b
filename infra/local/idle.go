package local

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// use counts the requests and connections of the endpoints. The zero value is ready.
type use struct {
	servers []*http.Server // those whose connections and requests are counted; set before Run waits

	mu          sync.Mutex
	connections int       // open connections, without WebSockets
	requests    int       // requests that are being handled, streams and WebSockets included
	posts       int       // how many of these requests are messages of clients that get an answer
	last        time.Time // the end of the last request
}

// count makes u count the requests and the connections of a server. Call it before the
// server serves.
func (u *use) count(s *http.Server) {
	u.servers = append(u.servers, s)
	h, note := s.Handler, s.ConnState
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A modern client listens with a POST, which ends with its connection only.
		message := r.Method == http.MethodPost && r.Header.Get(wire.HeaderMethod) != wire.MethodListen
		u.add(message, 1)
		defer u.add(message, -1)
		h.ServeHTTP(w, r)
	})
	s.ConnState = func(conn net.Conn, state http.ConnState) {
		note(conn, state)
		u.note(state)
	}
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

// note counts connections.
func (u *use) note(state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch state {
	case http.StateNew:
		u.connections++
	case http.StateHijacked, http.StateClosed:
		u.connections--
	case http.StateActive, http.StateIdle:
	}
}

// calls returns how many messages of clients are being answered.
func (u *use) calls() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.posts
}

// idleSince returns the end of the last request. It returns false while there is a request or
// a connection.
func (u *use) idleSince() (time.Time, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.last, u.requests == 0 && u.connections == 0
}

// lastRequests is how long an idle machine that ends waits for requests that came while
// its endpoints closed, and then for the work that they began.
const lastRequests = time.Minute

// awaitEnd returns when ctx ends, after a drain that Config.Drain has asked for, or when the
// machine was idle for Config.ExitWhenIdle.
//
// It loses no request: it closes the endpoints first, and waits for the answers to
// requests that came before. A later client waits until the next process accepts its
// connection, because the service manager still holds the socket.
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
				awaitBegun(ctx, m)
				return
			}
		}
	}
}

// works reports whether there is work without an open request: a box runs, or an alarm or
// a call waits.
func works(ctx context.Context, m *machine) bool {
	return m.boxesRun(ctx) || m.functions.WaitingAlarms() > 0 || callsWait(ctx, m.functions.Records())
}

// awaitBegun waits for what the last requests have begun, such as tasks. They may have come
// while the endpoints closed.
func awaitBegun(ctx context.Context, m *machine) {
	ctx, cancel := context.WithTimeout(ctx, lastRequests)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for works(ctx, m) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// finish refuses connections and waits for the requests that are handled.
func (u *use) finish(ctx context.Context, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, lastRequests)
	defer cancel()
	for _, s := range u.servers {
		if err := s.Shutdown(ctx); err != nil {
			log.Warn("a request did not end in time", "error", err)
		}
	}
}
