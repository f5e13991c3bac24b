package endpoints_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// All sleeps of these tests are virtual: the tests run in bubbles of package synctest
// (inMarket).

// market is an endpoint with limits. Each principal has a key.
type market struct {
	t      testing.TB
	limits string // x-dormouse.limits of the file
	store  *storagetest.Counting
	log    *commontest.Lines
	posted *commontest.Lines
	http   http.Handler
	called atomic.Int32 // calls that reached a tool; tools of one batch run at once
}

func newMarket(t testing.TB, limits string) *market {
	t.Helper()
	m := &market{t: t, limits: limits, store: storagetest.NewCounting(storagetest.NewMemory()), log: &commontest.Lines{}, posted: &commontest.Lines{}}
	h, err := endpoints.NewHTTP(m.function(), m.servers(), endpoints.Alarms{}, nil, nil)
	commontest.OK(t, err)
	m.http = h.Handler
	return m
}

func (m *market) function() *wiring.Function {
	m.t.Helper()
	text := `{"mcpServers": {"shop": {"x-dormouse": {"native": "shop"}}}, "x-dormouse": {"limits": ` + m.limits + `}}`
	c, warnings, err := serversfile.Parse([]byte(text), "servers.json", nil)
	if err != nil || len(warnings) > 0 {
		m.t.Fatal(warnings, err)
	}
	f, err := wiring.New(wiring.Settings{Servers: c, Secret: make([]byte, 32)}, wiring.Parts{
		Store: m.store, Meter: meter.New(meter.Options{}), Log: slog.New(slog.NewJSONHandler(m.log, nil)), Runners: clients{m.posted}, Clients: closing{clients{m.posted}},
	})
	commontest.OK(m.t, err)
	f.Auth = named{}
	return f
}

// closing are clients that also note which connections were closed.
type closing struct{ clients }

func (c closing) Close(_ context.Context, conn string) error {
	_, err := c.Write([]byte("closed " + conn))
	return err
}

// named admits every caller. The principal is the value of Authorization, or ada.
type named struct{ apikey.Open }

func (named) Members(r *http.Request, _ string, servers []string) (map[string]storage.Identity, error) {
	return apikey.Same(storage.Identity{Tenant: cmp.Or(r.Header.Get("X-Tenant"), "acme"), Principal: cmp.Or(r.Header.Get("Authorization"), "ada")}, servers), nil
}

func (m *market) servers() native.Servers {
	return native.Servers{"shop": func(_ context.Context, n native.Session) (*mcp.Server, error) {
		server := mcp.NewServer(&mcp.Implementation{Name: "shop", Version: "1"}, n.Options())
		native.AddTool(n, server, &mcp.Tool{Name: "echo"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			m.called.Add(1)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "sold"}}}, nil, nil
		})
		native.AddTool(n, server, &mcp.Tool{Name: "slow"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			m.called.Add(1)
			time.Sleep(5 * time.Second)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "sold"}}}, nil, nil
		})
		return server, nil
	}}
}

func (m *market) do(method, body string, headers ...string) *httptest.ResponseRecorder {
	m.t.Helper()
	return m.at("/shop/mcp", method, body, headers...)
}

func (m *market) at(path, method, body string, headers ...string) *httptest.ResponseRecorder {
	m.t.Helper()
	r := httptest.NewRequestWithContext(m.t.Context(), method, path, strings.NewReader(body))
	r.Host = "127.0.0.1"
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	m.http.ServeHTTP(w, r)
	return w
}

// buyer is a client with a session.
type buyer struct {
	m       *market
	headers []string
}

func (m *market) open(version string, headers ...string) *buyer {
	m.t.Helper()
	w := m.do("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`, headers...)
	id := w.Header().Get("Mcp-Session-Id")
	if w.Code != 200 || id == "" {
		m.t.Fatalf("initialize: %d %s", w.Code, w.Body)
	}
	b := &buyer{m, append([]string{"Mcp-Session-Id", id, "Mcp-Protocol-Version", version}, headers...)}
	if w := b.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); w.Code != 202 {
		m.t.Fatalf("initialized: %d %s", w.Code, w.Body)
	}
	return b
}

func (b *buyer) post(body string) *httptest.ResponseRecorder {
	return b.m.do("POST", body, b.headers...)
}

const callEcho = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{}}}`

// sold reports whether a call was executed. Otherwise the answer must be a tool error
// that says when to come back.
func (m *market) sold(w *httptest.ResponseRecorder) bool {
	m.t.Helper()
	text := w.Body.String()
	for line := range strings.SplitSeq(text, "\n") { // of an event stream, the last message
		if data, ok := strings.CutPrefix(line, "data: "); ok && data != "" {
			text = data
		}
	}
	var got struct {
		ID     int
		Result struct {
			Content []struct{ Text string }
			IsError bool
			Type    string                                     `json:"resultType"`
			Meta    map[string]struct{ RetryAfterSeconds int } `json:"_meta"`
		}
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || w.Code != 200 || len(got.Result.Content) != 1 {
		m.t.Fatalf("got %d %s", w.Code, w.Body)
	}
	if got.Result.IsError && (got.Result.Meta["dormouse/limit"].RetryAfterSeconds < 1 || !strings.Contains(got.Result.Content[0].Text, "again") && !strings.Contains(got.Result.Content[0].Text, "go on")) {
		m.t.Fatalf("got %s", w.Body)
	}
	return !got.Result.IsError
}

func inMarket(t *testing.T, limits string, test func(t *testing.T, m *market)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newMarket(t, limits)) })
}

func TestASocketGetsToolErrorsAndIsClosedInAFlood(t *testing.T) {
	inMarket(t, `{"principal": "60/m burst 2"}`, func(t *testing.T, m *market) {
		socket, err := endpoints.NewSocket(m.function(), m.servers(), endpoints.Alarms{Invoke: func(context.Context, []byte) error { return nil }}, func(context.Context, storage.ID) error { return nil }, nil)
		commontest.OK(t, err)
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/?server=shop", nil)
		r.Host = "127.0.0.1"
		if status, _, body := socket.Connect(t.Context(), "c1", r); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		say := func(text string) string { return string(socket.Message(t.Context(), "c1", []byte(text))) }
		say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
		say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		say(callEcho)
		say(strings.Replace(callEcho, `"id":1`, `"id":2`, 1))
		got := say(strings.Replace(callEcho, `"id":1`, `"id":3`, 1))
		if !strings.Contains(got, `"id":3`) || !strings.Contains(got, `"isError":true`) || !strings.Contains(got, `"retryAfterSeconds":1`) {
			t.Fatalf("the third call of a second gets %q; want a tool error that says when to try again", got)
		}
		for i := range 100 {
			say(strings.Replace(callEcho, `"id":1`, fmt.Sprintf(`"id":%d`, 10+i), 1))
		}
		commontest.Contains(t, "after a flood", "closed c1", m.posted.String())
	})
}

func TestAFloodGetsAStatusAndCostsNothing(t *testing.T) {
	inMarket(t, `{"principal": "60/m burst 2"}`, func(t *testing.T, m *market) {
		b := m.open("2025-11-25")
		for range 40 {
			b.post(callEcho)
		}
		m.store.Reset()
		if w := b.post(callEcho); w.Code != 429 || w.Header().Get("Retry-After") == "" {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
		if c := m.store.Counts(); c.Reads+c.Writes > 0 {
			t.Errorf("%+v", c)
		}
	})
}

func TestAtTheCapResultsCanStillBeRead(t *testing.T) {
	inMarket(t, `{"month_usd": 1}`, func(t *testing.T, m *market) {
		b := m.open("2025-11-25")
		done := b.post(strings.Replace(callEcho, "echo", "slow", 1)) // an event stream, with ids
		_, after, ok := strings.Cut(done.Body.String(), "id: ")
		if !m.sold(done) || !ok {
			t.Fatalf("got %s", done.Body)
		}
		first, _, _ := strings.Cut(after, "\n")
		const usd = 2.0
		m.function().Quotas.Charge("acme", meter.Units{Requests: usd / meter.Published().Cost(meter.Units{Requests: 1})})
		if r, err := quota.Show(t.Context(), m.store, "acme"); err != nil || r.USD < usd-1e-3 {
			t.Fatalf("%+v, %v", r, err)
		}
		time.Sleep(time.Minute) // until this instance asks again
		if m.sold(b.post(callEcho)) {
			t.Fatal("a call is executed above the cap")
		}
		again := m.do("GET", "", append(b.headers, "Last-Event-Id", first)...)
		if !m.sold(again) {
			t.Errorf("got %d %s", again.Code, again.Body)
		}
		m.open("2025-11-25", "X-Tenant", "other")
	})
}

// The account agrees with the bill that the log lines add up to.
func TestTheAccountAgreesWithTheBill(t *testing.T) {
	inMarket(t, `{"principal": "off"}`, func(t *testing.T, m *market) {
		const calls = 200
		b := m.open("2025-11-25")
		for range calls {
			b.post(callEcho)
			b.post(`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"none"}}`)
		}
		time.Sleep(time.Minute)
		b.post(callEcho)
		billed := 0.0
		for line := range strings.Lines(m.log.Take()) {
			var said struct{ Units meter.Units }
			commontest.OK(t, json.Unmarshal([]byte(line), &said))
			billed += meter.Published().Cost(said.Units)
		}
		r, err := quota.Show(t.Context(), m.store, "acme")
		commontest.OK(t, err)
		if billed < 4e-6*calls || math.Abs(r.USD-billed) > 0.02*billed {
			t.Errorf("the account has $%.5f, the bill $%.5f", r.USD, billed)
		}
	})
}
