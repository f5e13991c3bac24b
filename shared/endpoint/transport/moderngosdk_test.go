package transport_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// endpoint serves a world on loopback, each request by a handler that was made for it. It
// records the methods and versions of the requests.
type endpoint struct {
	url  string
	mu   sync.Mutex
	seen []string
}

func serve(t *testing.T, w *world) *endpoint {
	t.Helper()
	e := &endpoint{}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.seen = append(e.seen, r.Method+" "+r.Header.Get("Mcp-Method")+" "+r.Header.Get("MCP-Protocol-Version"))
		e.mu.Unlock()
		w.handler().ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	e.url = server.URL + "/known/mcp"
	return e
}

func (e *endpoint) requests() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.seen...)
}

// goWorld is a world with the server "known", for a real client in real time.
func goWorld(t *testing.T) *world {
	w := newWorld(t)
	w.opts.Sealer = newSealer(t)
	w.handshake(t, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"srv","version":"1.0.0"},"instructions":"hello"}`)
	w.awake("known")
	w.backend.tool("tools/list", func(r run) {
		r.end(`{"tools":[{"name":"ask","inputSchema":{"type":"object"}}]}`)
	})
	w.backend.tool("ask", func(r run) {
		r.asks("q-1", elicit)
		r.asks("q-2", roots)
		r.answers("q-1", "q-2")
		r.asks("q-3", sample)
		r.answers("q-3")
		r.end(`{"content":[{"type":"text","text":"all answered"}]}`)
	})
	w.backend.tool("steps", func(r run) {
		r.append(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":1}}`, false)
		r.end(`{"content":[{"type":"text","text":"done"}]}`)
	})
	w.backend.tool("missing", func(r run) {
		r.append(`{"jsonrpc":"2.0","id":`+string(r.requests[0])+`,"error":{"code":-32601,"message":"no such thing"}}`, true)
	})
	return w
}

//nolint:staticcheck // sampling and roots are what is tested, deprecated from 2026-07-28 or not
func goClient(t *testing.T, url string, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	opts.ElicitationHandler = func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "ada"}}, nil
	}
	opts.CreateMessageHandler = func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
		return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "4"}}, nil
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1"}, opts)
	client.AddRoots(&mcp.Root{URI: "file:///srv", Name: "srv"})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := client.Connect(context.WithoutCancel(ctx), &mcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // some tests have closed it
	return s
}

func TestGoSDKGoesModernAndAnswersInRounds(t *testing.T) {
	w := goWorld(t)
	e := serve(t, w)
	s := goClient(t, e.url, &mcp.ClientOptions{})
	init := s.InitializeResult()
	if init.ServerInfo == nil || init.ServerInfo.Name != "srv" || init.Instructions != "hello" {
		t.Errorf("discovered %+v", init)
	}
	tools, err := s.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 1 {
		t.Fatal(tools, err)
	}
	result, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "ask", Arguments: map[string]any{"a": 1}})
	if err != nil {
		t.Fatal(err)
	}
	if text, ok := result.Content[0].(*mcp.TextContent); !ok || text.Text != "all answered" {
		t.Errorf("got %+v", result.Content[0])
	}
	want := []string{
		"POST server/discover 2026-07-28", "POST tools/list 2026-07-28",
		"POST tools/call 2026-07-28", "POST tools/call 2026-07-28", "POST tools/call 2026-07-28",
	}
	if diff := cmp.Diff(want, e.requests()); diff != "" {
		t.Error(diff)
	}
}

func TestGoSDKHearsProgressOfItsCall(t *testing.T) {
	w := goWorld(t)
	progress := make(chan float64, 1)
	s := goClient(t, serve(t, w).url, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress <- r.Params.Progress },
	})
	params := &mcp.CallToolParams{Name: "steps", Arguments: map[string]any{}}
	params.SetProgressToken("mine")
	if _, err := s.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	if got := <-progress; got != 1 {
		t.Errorf("progress %v", got)
	}
}

func TestGoSDKKeepsItsConnectionOverAnError(t *testing.T) {
	w := goWorld(t)
	s := goClient(t, serve(t, w).url, &mcp.ClientOptions{})
	_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "missing", Arguments: map[string]any{}})
	var rpc *jsonrpc.Error
	if !errors.As(err, &rpc) || rpc.Code != jsonrpc.CodeMethodNotFound {
		t.Errorf("got %v", err)
	}
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "ask", Arguments: map[string]any{}}); err != nil {
		t.Error(err)
	}
}

// go-sdk's client sends ping and logging/setLevel without _meta.
func TestGoSDKLearnsThatAMethodIsNoMore(t *testing.T) {
	w := goWorld(t)
	s := goClient(t, serve(t, w).url, &mcp.ClientOptions{})
	if err := s.Ping(t.Context(), nil); !isCode(err, jsonrpc.CodeMethodNotFound) {
		t.Errorf("ping: %v", err)
	}
	//nolint:staticcheck // that it is deprecated is the point
	if err := s.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); !isCode(err, jsonrpc.CodeMethodNotFound) {
		t.Errorf("logging/setLevel: %v", err)
	}
	if _, err := s.ListTools(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func isCode(err error, code int64) bool {
	var rpc *jsonrpc.Error
	return errors.As(err, &rpc) && rpc.Code == code
}

func TestGoSDKHearsThatToolsHaveChanged(t *testing.T) {
	w := goWorld(t)
	changed := make(chan struct{}, 8)
	e := serve(t, w)
	s := goClient(t, e.url, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	})
	if _, err := s.ListTools(t.Context(), nil); err != nil { // which pins the session
		t.Fatal(err)
	}
	w.pushed(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatal("not told", e.requests())
	}
	if err := s.Close(); err != nil && !strings.Contains(err.Error(), "closed") {
		t.Error(err)
	}
}

func TestModernNameThatGoSendsAsItIs(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.do(toolCall("zwéi").request()).result(t)
	})
}
