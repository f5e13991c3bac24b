package sockets

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

// ending holds the arguments of a call of Disconnect.
type ending struct {
	conn   string
	code   int
	reason string
}

// notes are routes that record their calls.
type notes struct {
	connect func(Conn, *http.Request) Reply            // nil takes every connection
	message func(ctx context.Context, m string) string // nil sends the message back

	mu       sync.Mutex
	conns    []Conn
	messages []string
	ends     []ending
}

func (n *notes) Connect(_ context.Context, c Conn, r *http.Request) Reply {
	n.mu.Lock()
	n.conns = append(n.conns, c)
	n.mu.Unlock()
	if n.connect == nil {
		return Reply{Status: http.StatusOK}
	}
	return n.connect(c, r)
}

func (n *notes) Message(ctx context.Context, _ Conn, data []byte) []byte {
	n.mu.Lock()
	n.messages = append(n.messages, string(data))
	n.mu.Unlock()
	if n.message == nil {
		return data
	}
	return []byte(n.message(ctx, string(data)))
}

func (n *notes) Disconnect(_ context.Context, c Conn, code int, reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ends = append(n.ends, ending{c.ID, code, reason})
}

func (n *notes) told() (conns, messages, ends int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.conns), len(n.messages), len(n.ends)
}

// bench is an API that the test reaches over pipes, for clients and for posts.
type bench struct {
	*API
	localtest.WebSockets
	t      *testing.T
	routes *notes
}

// limits are those of AWS, which are short enough to be met.
func limits() Limits {
	l := Home()
	l.InWork, l.Idle, l.Life, l.Route = 1<<20, 10*time.Minute, 2*time.Hour, 29*time.Second
	return l
}

func newBench(t *testing.T, change func(*Config)) *bench {
	t.Helper()
	b := &bench{t: t, routes: &notes{}}
	cfg := Config{Name: "mcp", Stage: "prod", Routes: b.routes, Limits: limits()}
	if change != nil {
		change(&cfg)
	}
	api := New(cfg)
	b.API = api
	b.WebSockets = localtest.WebSockets{T: t, API: localtest.Serve(t, api), Stage: cfg.Stage}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel() // cuts connections that a test left open
		_ = api.Close(ctx)
	})
	return b
}

// client opens a connection; id is its id for the routes.
func (b *bench) client() (conn *localtest.WebSocket, id string) {
	b.t.Helper()
	conn = b.Open()
	b.routes.mu.Lock()
	defer b.routes.mu.Unlock()
	return conn, b.routes.conns[len(b.routes.conns)-1].ID
}

func (b *bench) post(id, text string) error { return b.API.Post(b.t.Context(), id, []byte(text)) }

// end waits until all goroutines are idle, and returns the only recorded call of
// Disconnect.
func (b *bench) end() ending {
	b.t.Helper()
	synctest.Wait()
	b.routes.mu.Lock()
	defer b.routes.mu.Unlock()
	if len(b.routes.ends) != 1 {
		b.t.Fatalf("the routes were told of %d ends, want 1", len(b.routes.ends))
	}
	return b.routes.ends[0]
}
