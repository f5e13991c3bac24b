package remote_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/remote"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func plain(w *world) *mcp.ClientSession {
	return w.connect(mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil))
}

// faulty answers the next n requests of a method with a fault, in place of the upstream.
type faulty struct {
	http.Handler
	method string // "": tools/call
	n      atomic.Int64
	seen   atomic.Int64 // requests of the method that arrived
	fault  http.HandlerFunc
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	if bytes.Contains(body, []byte(`"`+cmp.Or(f.method, wire.MethodToolsCall)+`"`)) {
		f.seen.Add(1)
		if f.n.Add(-1) >= 0 {
			f.fault(w, r)
			return
		}
	}
	f.Handler.ServeHTTP(w, r)
}

// streamable is an upstream of 2025-11-25.
func streamable() http.Handler {
	return speaking("2025-11-25", mcp.NewStreamableHTTPHandler(demo, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}))
}

func TestLostSessionIsOpenedAnewOnce(t *testing.T) {
	for name, fault := range map[string]http.HandlerFunc{
		"404": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "session not found", http.StatusNotFound) },
		"400": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Bad Request: No valid session ID provided", http.StatusBadRequest)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEachStore(t, func(t *testing.T, store storage.Store) {
				up := &faulty{Handler: streamable(), fault: fault}
				w := newWorld(t, store, up)
				c := plain(w)
				commontest.EqualIn(t, "before", "1", call(t, c, "count"))
				up.n.Store(1)
				commontest.EqualIn(t, "of a new session", "1", call(t, c, "count"))
				commontest.EqualIn(t, "then", "2", call(t, c, "count"))
				commontest.EqualIn(t, "calls", 4, up.seen.Load())
				up.n.Store(2)
				_, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "count"})
				commontest.Contains(t, "a server that knows no session", "HTTP "+name, fmt.Sprint(err))
				commontest.EqualIn(t, "calls", 6, up.seen.Load())
			})
		})
	}
}

// A server is upgraded to a version without sessions, or goes back.
func TestServerThatSpeaksAnotherVersionIsAskedAgainWhichOne(t *testing.T) {
	old, modern := streamable(), mcp.NewStreamableHTTPHandler(demo, &mcp.StreamableHTTPOptions{Stateless: true})
	i, up := 0, old
	w := newWorld(t, storagetest.NewMemory(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if up == modern && r.Header.Get(wire.HeaderProtocolVersion) != wire.V20260728 {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"Unsupported protocol version","data":{"supported":["2026-07-28"]}}}`)
			return
		}
		up.ServeHTTP(w, r)
	}))
	w.warm = remote.New()
	c := plain(w)
	for i, up = range []http.Handler{old, modern, old} {
		hello, _ := w.posts(wire.MethodInitialize, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`, "")
		commontest.Contains(t, fmt.Sprint("a new session, ", i), `"result"`, hello)
		commontest.EqualIn(t, fmt.Sprint("an open session, ", i), "1", call(t, c, "count"))
	}
}

// Nobody knows what the method of an extension does.
func TestRequestOfAnExtensionWhoseAnswerIsLostIsNotSentAgain(t *testing.T) {
	const method = "com.example/charge"
	up := &faulty{Handler: streamable(), method: method, fault: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", wire.MediaSSE)
	}}
	w := newWorld(t, storagetest.NewMemory(), up)
	up.n.Store(1)
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"_meta":{"` + wire.MetaProtocolVersion + `":"2026-07-28","` + wire.MetaClientCapabilities + `":{}}}}`
	answer, _ := w.posts(method, body, "")
	if wire.Lookup([]byte(answer), "error") == nil || up.seen.Load() != 1 {
		t.Errorf("after %d requests: %s", up.seen.Load(), answer)
	}
}

func TestCallWhoseAnswerIsLostIsNotSentAgain(t *testing.T) {
	for name, fault := range map[string]http.HandlerFunc{
		"cut": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"cut stream": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, ": hello\n\n")
		},
		"502": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"202": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) },
		"sent a message of more than": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "id: 1\ndata:\n\ndata: "+strings.Repeat("x", 17<<20)+"\n\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			up := &faulty{Handler: streamable(), fault: fault}
			w := newWorld(t, storagetest.NewMemory(), up)
			c := plain(w)
			up.n.Store(1)
			_, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "count"})
			commontest.Contains(t, "the error", "is not known", fmt.Sprint(err))
			if strings.HasPrefix(name, "sent") {
				commontest.Contains(t, "the error", name, fmt.Sprint(err))
			}
			commontest.EqualIn(t, "calls arrived", 1, up.seen.Load())
			commontest.EqualIn(t, "the next call", "1", call(t, c, "count"))
		})
	}
}

func TestServerThatIsBusyIsWaitedFor(t *testing.T) {
	up := &faulty{Handler: streamable(), fault: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	}}
	w := newWorld(t, storagetest.NewMemory(), up)
	c := plain(w)
	up.n.Store(2)
	commontest.Equal(t, "1", call(t, c, "count"))
	before := up.seen.Load()
	up.n.Store(100)
	if _, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "count"}); err == nil || up.seen.Load()-before != 3 {
		t.Errorf("a server that stays busy was asked %d times, want 3: %v", up.seen.Load()-before, err)
	}
	up.fault = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	up.n.Store(1)
	_, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "count"})
	commontest.Contains(t, "the error", "try again in 3600 s", fmt.Sprint(err))
}
