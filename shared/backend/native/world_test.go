package native_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// world is everything that outlives a message: the store, the invocations that were
// requested, and the connections of the WebSocket API. Handlers, hosts and backends are
// made anew for each event.
type world struct {
	apikey.Open
	t      testing.TB
	open   func() storage.Store
	apart  bool // invocations can be started
	since  time.Time
	limits sessions.Limits
	hosted native.Hosted
	sealer *storage.Sealer

	mu      sync.Mutex
	invoked []native.Alarm // not yet executed
	alarms  map[string]native.Alarm
	posted  []string // what was sent to the one connection of the WebSocket API
	posting time.Duration
	props   []byte
	deaf    error // of the scheduler
}

func newWorld(t testing.TB, open func() storage.Store) *world {
	sealer, err := bridge.NewSealer([]byte("a secret of thirty-two bytes, at least"))
	commontest.OK(t, err)
	return &world{
		t: t, open: open, sealer: sealer, apart: true, alarms: map[string]native.Alarm{},
		hosted: native.Hosted{Make: demo, AnswerTimeout: 6 * time.Hour},
	}
}

func memory(t testing.TB) *world {
	store := storagetest.NewMemory()
	return newWorld(t, func() storage.Store { return store })
}

// inTime runs a test in virtual time, on a store in memory. timed returns such a test.
func inTime(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	timed(test)(t)
}

func timed(test func(t *testing.T, w *world)) func(*testing.T) {
	return func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, memory(t)) })
	}
}

// onEachStore runs a test over the stores of one machine; SQLite is opened anew for
// each event.
func onEachStore(t *testing.T, test func(t *testing.T, w *world)) {
	t.Run("memory", func(t *testing.T) { test(t, memory(t)) })
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store.db")
		test(t, newWorld(t, func() storage.Store {
			store, err := sqlitestore.Open(path)
			commontest.Check(t, err)
			t.Cleanup(func() { _ = store.Close() })
			return store
		}))
	})
}

// backend returns the Backend of a process that has just started.
func (w *world) backend() (*native.Backend, storage.Store) {
	store := w.open()
	c := native.Config{
		Since: w.since, Store: store, Clients: w, Schedule: w, ShowErrors: true, Log: slog.New(slog.DiscardHandler),
		Servers: func(name string) (native.Hosted, bool) { return w.hosted, name == "demo" },
	}
	if w.apart {
		c.Invoke = w.invoke
	}
	return native.NewBackend(c), store
}

func (w *world) options() transport.Options {
	b, store := w.backend()
	return transport.Options{
		Servers: func(name string) (sessions.Server, bool) {
			return sessions.Server{Name: name, Digest: "d", InPlace: true}, name == "demo"
		},
		Host: sessions.New(store, b, w.limits), Auth: w, Sealer: w.sealer,
	}
}

// Members implements transport.Authenticator. Every client is ada, with the Props that the world has
// for her.
func (w *world) Members(_ *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return apikey.Same(storage.Identity{Tenant: "acme", Principal: "ada", Props: w.props}, servers), nil
}

func (w *world) invoke(_ context.Context, event []byte) error {
	a, ok := native.ReadAlarm(event)
	if !ok {
		w.t.Errorf("no event of ours: %s", event)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.invoked = append(w.invoked, a)
	return nil
}

// work executes the invocations that were requested, each twice, because Lambda may do so
// too.
func (w *world) work() {
	w.t.Helper()
	for {
		w.mu.Lock()
		todo := w.invoked
		w.invoked = nil
		w.mu.Unlock()
		if len(todo) == 0 {
			return
		}
		for _, a := range append(todo, todo...) {
			w.handle(a)
		}
	}
}

func (w *world) handle(a native.Alarm) {
	w.t.Helper()
	b, _ := w.backend()
	commontest.Check(w.t, b.Handle(context.Background(), a))
}

func (w *world) sweep() {
	w.t.Helper()
	b, _ := w.backend()
	commontest.Check(w.t, b.Sweep(context.Background()))
}

func (w *world) Schedule(_ context.Context, a native.Alarm) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deaf == nil {
		w.alarms[a.ID()] = a
	}
	return w.deaf
}

func (w *world) Cancel(_ context.Context, a native.Alarm) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.alarms, a.ID())
	return nil
}

func (w *world) due() []native.Alarm {
	w.mu.Lock()
	defer w.mu.Unlock()
	var due []native.Alarm
	for id, a := range w.alarms {
		due = append(due, a)
		delete(w.alarms, id)
	}
	return due
}

func (w *world) Post(_ context.Context, _ string, data []byte) error {
	time.Sleep(w.posting) // virtual
	w.mu.Lock()
	defer w.mu.Unlock()
	w.posted = append(w.posted, string(data))
	return nil
}

func (w *world) Close(context.Context, string) error { return nil }

func (w *world) posts() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.posted
	w.posted = nil
	return out
}

type answer struct {
	status int
	header http.Header
	body   string
}

// do serves one request in a fresh process.
func (w *world) do(r *http.Request) answer {
	rec := httptest.NewRecorder()
	native.Handler(transport.New(w.options())).ServeHTTP(rec, r)
	return answer{rec.Code, rec.Header(), rec.Body.String()}
}

func request(method, body string, headers ...string) *http.Request {
	r := httptest.NewRequestWithContext(context.Background(), method, "http://localhost/demo/mcp", strings.NewReader(body))
	r.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// messages returns the messages of a response, which is JSON or an event stream.
func (a answer) messages(t testing.TB) []string {
	t.Helper()
	if !strings.HasPrefix(a.header.Get("Content-Type"), wire.MediaSSE) {
		return []string{a.body}
	}
	var out []string
	for _, e := range a.events(t) {
		if len(e.Data) > 0 {
			out = append(out, string(e.Data))
		}
	}
	return out
}

func (a answer) events(t testing.TB) (out []wire.SSE) {
	t.Helper()
	for r := wire.NewSSEReader(strings.NewReader(a.body), 1<<24); ; {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		commontest.OK(t, err)
		out = append(out, e)
	}
}

func (a answer) lastID(t testing.TB) string {
	t.Helper()
	last := ""
	for _, e := range a.events(t) {
		if e.ID != "" {
			last = e.ID
		}
	}
	return last
}

// last returns the JSON-RPC response in an answer.
func (a answer) last(t testing.TB) string {
	t.Helper()
	m := a.messages(t)
	if len(m) == 0 {
		t.Fatalf("no message came: %d %s", a.status, a.body)
	}
	return m[len(m)-1]
}

// legacy is a client of 2025-11-25.
type legacy struct {
	*world
	id string
}

const everything = `{"elicitation":{},"sampling":{},"roots":{"listChanged":true}}`

func (w *world) legacy(capabilities string) legacy {
	w.t.Helper()
	a := w.do(request("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+
		capabilities+`,"clientInfo":{"name":"old","version":"1"}}}`))
	c := legacy{w, a.header.Get("Mcp-Session-Id")}
	if a.status != http.StatusOK || c.id == "" {
		w.t.Fatalf("initialize was answered with %d %s", a.status, a.body)
	}
	if a = c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); a.status != http.StatusAccepted {
		w.t.Fatalf("initialized was answered with %d %s", a.status, a.body)
	}
	return c
}

func (c legacy) request(method, body string, headers ...string) *http.Request {
	return request(method, body, append([]string{"Mcp-Session-Id", c.id, "MCP-Protocol-Version", wire.V20251125}, headers...)...)
}

func (c legacy) post(body string) answer { return c.do(c.request("POST", body)) }

func (c legacy) tool(name, arguments string) answer {
	return c.post(toolCall("1", name, arguments, ""))
}

func (c legacy) poll(last string) answer { return c.do(c.request("GET", "", "Last-Event-ID", last)) }

func toolCall(id, name, arguments, more string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + name + `","arguments":` + arguments + more + `}}`
}

// modern sends a request as a client of 2026-07-28 does. params are further members of
// the request's params, each with a comma after it.
func (w *world) modern(method, name, params, capabilities string) answer {
	w.t.Helper()
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":` + capabilities +
		`,"io.modelcontextprotocol/clientInfo":{"name":"new","version":"2"},"progressToken":9007199254740993}`
	body := `{"jsonrpc":"2.0","id":9007199254740993,"method":"` + method + `","params":{` + params + meta + `}}`
	headers := []string{"MCP-Protocol-Version", wire.V20260728, "Mcp-Method", method}
	if name != "" {
		headers = append(headers, "Mcp-Name", name)
	}
	return w.do(request("POST", body, headers...))
}

func (w *world) modernTool(name, arguments, more string) answer {
	w.t.Helper()
	return w.modern("tools/call", name, `"name":"`+name+`","arguments":`+arguments+`,`+more, everything)
}

func demo(_ context.Context, s native.Session) (*mcp.Server, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "demo", Version: "3"}, s.Options())
	native.AddTool(s, server, &mcp.Tool{Name: "only"}, func(context.Context, *mcp.CallToolRequest, words) (*mcp.CallToolResult, any, error) {
		return text("only"), nil, nil
	})
	tool(server, "echo", func(_ context.Context, r *mcp.CallToolRequest, in words) (*mcp.CallToolResult, error) {
		return text(in.Text), nil
	})
	tool(server, "who", func(_ context.Context, r *mcp.CallToolRequest, _ words) (*mcp.CallToolResult, error) {
		name, _ := json.Marshal([]any{
			s.Client().Name, s.Version(), s.Principal(), s.Tenant(), string(s.Props()), s.Capabilities().Elicitation != nil,
			r.Extra.TokenInfo.UserID, r.Extra.Header.Get("X-Extra"), r.Session.ID() == s.ID(),
		})
		return text(string(name)), nil
	})
	tool(server, "steps", func(ctx context.Context, r *mcp.CallToolRequest, in words) (*mcp.CallToolResult, error) {
		for i := range in.N {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1)})
			select {
			case <-time.After(time.Duration(in.Millis) * time.Millisecond):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return text("done"), nil
	})
	tool(server, "ask", ask)
	tool(server, "job", func(ctx context.Context, r *mcp.CallToolRequest, in words) (*mcp.CallToolResult, error) {
		if state := r.Params.RequestState; state == "third" {
			return text("finished"), nil
		} else if state == "" {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
			return native.Later(time.Now().Add(time.Hour), "second"), nil
		}
		return native.Later(time.Now().Add(time.Hour), "third"), nil
	})
	tool(server, "panics", func(context.Context, *mcp.CallToolRequest, words) (*mcp.CallToolResult, error) { panic("oh") })
	tool(server, "log", func(ctx context.Context, r *mcp.CallToolRequest, _ words) (*mcp.CallToolResult, error) {
		_ = r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "seen"}) //nolint:staticcheck // deprecated, and used
		return text("logged"), nil
	})
	server.AddPrompt(&mcp.Prompt{Name: "greet"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return nil, errors.New("no greeting today")
	})
	return server, nil
}

type words struct {
	Text   string `json:"text,omitempty"`
	N      int    `json:"n,omitempty"`
	Millis int    `json:"millis,omitempty"`
}

func tool(s *mcp.Server, name string, h func(context.Context, *mcp.CallToolRequest, words) (*mcp.CallToolResult, error)) {
	mcp.AddTool(s, &mcp.Tool{Name: name}, func(ctx context.Context, r *mcp.CallToolRequest, in words) (*mcp.CallToolResult, any, error) {
		res, err := h(ctx, r, in)
		return res, nil, err
	})
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// ask is a tool that asks for the inputs that its argument names, separated by commas, and
// returns the answers.
func ask(_ context.Context, r *mcp.CallToolRequest, in words) (*mcp.CallToolResult, error) {
	if len(r.Params.InputResponses) == 0 {
		inputs := mcp.InputRequestMap{}
		for what := range strings.SplitSeq(in.Text, ",") {
			switch what {
			case "form":
				inputs[what] = &mcp.ElicitParams{Mode: "form", Message: "name?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}}}
			case "sample":
				inputs[what] = &mcp.CreateMessageParams{MaxTokens: 1, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: "2+2"}}}} //nolint:staticcheck // deprecated, and used
			case "roots":
				inputs[what] = &mcp.ListRootsParams{} //nolint:staticcheck // deprecated, and used
			}
		}
		return &mcp.CallToolResult{InputRequests: inputs, RequestState: "kept"}, nil
	}
	var got []string
	for what := range strings.SplitSeq(in.Text, ",") {
		switch a := r.Params.InputResponses[what].(type) {
		case *mcp.ElicitResult:
			got = append(got, fmt.Sprint(a.Action, " ", a.Content["name"]))
		case *mcp.CreateMessageWithToolsResult: //nolint:staticcheck // deprecated, and used
			got = append(got, a.Model)
		case *mcp.CreateMessageResult: //nolint:staticcheck // deprecated, and used
			got = append(got, a.Model)
		case *mcp.ListRootsResult: //nolint:staticcheck // deprecated, and used
			got = append(got, a.Roots[0].URI)
		default:
			got = append(got, fmt.Sprintf("%T", a))
		}
	}
	return text(strings.Join(got, "; ") + " " + r.Params.RequestState), nil
}

// socket is one connection of the WebSocket API.
type socket struct{ w *world }

// socket opens a connection with a session.
func (w *world) socket(capabilities string) socket {
	w.t.Helper()
	k := socket{w}
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "http://localhost/?server=demo", nil)
	if status, _, body := k.front().Connect(context.Background(), "conn", r); status != http.StatusOK {
		w.t.Fatalf("got %d %s", status, body)
	}
	k.send(w.t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"clientInfo":{"name":"old","version":"1"}}}`)
	k.send(w.t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	w.posts()
	return k
}

func (k socket) front() *transport.Socket {
	o := k.w.options()
	o.Host = o.Host.With(sessions.Parts{Clients: k.w})
	return transport.NewSocket(transport.SocketOptions{Options: o, Push: func(context.Context, storage.ID) error { return nil }})
}

// send sends a message of the client to a fresh process. The immediate answer counts as
// posted too.
func (k socket) send(t testing.TB, message string) {
	t.Helper()
	reply, err := native.Stay(t.Context(), func(ctx context.Context) ([]byte, error) {
		return k.front().Message(ctx, "conn", []byte(message)), nil
	})
	commontest.OK(t, err)
	if reply != nil {
		_ = k.w.Post(t.Context(), "conn", reply)
	}
}
