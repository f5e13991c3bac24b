package native_test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

// news is a server with a resource that changes. Its tool touch notifies subscribers. Its
// tool grow announces that there are more resources, and its tool say notifies its own
// client.
func news(_ context.Context, s native.Session) (*mcp.Server, error) {
	o := s.Options()
	o.Capabilities.Resources = &mcp.ResourceCapabilities{Subscribe: true, ListChanged: true}
	o.SubscribeHandler = func(context.Context, *mcp.SubscribeRequest) error { return nil }
	o.UnsubscribeHandler = func(context.Context, *mcp.UnsubscribeRequest) error { return nil }
	server := mcp.NewServer(&mcp.Implementation{Name: "news", Version: "1"}, o)
	tell := map[string]func(context.Context) error{
		"touch": func(ctx context.Context) error { return s.ResourceUpdated(ctx, "note://1") },
		"grow":  func(ctx context.Context) error { return s.ListChanged(ctx, native.Resources) },
		"say": func(ctx context.Context) error {
			return s.Notify(ctx, wire.NotifyMessage, map[string]string{"level": "info", "data": "hello"})
		},
	}
	for name, f := range tell {
		mcp.AddTool(server, &mcp.Tool{Name: name}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, f(ctx)
		})
	}
	return server, nil
}

// heard returns the notifications on the standalone stream of a session, by method and URI.
func (w *world) heard(id storage.ID) []string {
	w.t.Helper()
	page, err := w.open().Read(context.Background(), id, storage.Standalone, 0, storage.MaxRead)
	commontest.OK(w.t, err)
	var all []string
	for _, e := range page.Events {
		method, _ := wire.String(wire.Lookup(e.Raw, "method"))
		uri, _ := wire.String(wire.Lookup(e.Raw, "params", "uri"))
		all = append(all, strings.TrimSpace(strings.TrimPrefix(method, "notifications/")+" "+uri))
	}
	return all
}

func (w *world) wantHeard(who string, id storage.ID, want ...string) {
	w.t.Helper()
	commontest.SameIn(w.t, who+" has heard", want, w.heard(id))
}

func (c legacy) done(tool string) {
	c.t.Helper()
	commontest.Contains(c.t, tool, "done", c.tool(tool, "{}").last(c.t))
}

func (c legacy) resource(method string) {
	c.t.Helper()
	got := c.post(`{"jsonrpc":"2.0","id":7,"method":"resources/` + method + `","params":{"uri":"note://1"}}`).last(c.t)
	commontest.Contains(c.t, method, `"result":{}`, got)
}

func TestSubscribersHearOfAChangeThatAnotherSessionMade(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		w.hosted.Make = news
		reader, writer := w.legacy("{}"), w.legacy("{}")
		writer.done("touch")
		reader.resource("subscribe")
		writer.done("touch")
		writer.done("touch")
		const updated = "resources/updated note://1"
		w.wantHeard("the subscriber", storage.ID(reader.id), updated, updated)
		reader.resource("unsubscribe")
		writer.done("touch")
		writer.resource("subscribe")
		writer.done("touch")
		w.wantHeard("who is not any more", storage.ID(reader.id), updated, updated)
		w.wantHeard("who subscribed last", storage.ID(writer.id), updated)
	})
}

// The author's SubscribeHandler is meant for go-sdk's own transports. This package calls
// it too, on the server that is made for the request, before it keeps anything.
func TestSubscribeHandlerIsCalledAndMayRefuse(t *testing.T) {
	w := memory(t)
	var asked []string
	w.hosted.Make = func(ctx context.Context, s native.Session) (*mcp.Server, error) {
		o := s.Options()
		o.SubscribeHandler = func(_ context.Context, r *mcp.SubscribeRequest) error {
			asked = append(asked, "subscribe "+r.Params.URI+" "+r.Extra.TokenInfo.UserID)
			if r.Params.URI != "note://1" {
				return errors.New("there is no such note")
			}
			return nil
		}
		o.UnsubscribeHandler = func(_ context.Context, r *mcp.UnsubscribeRequest) error {
			asked = append(asked, "unsubscribe "+r.Params.URI)
			return nil
		}
		server := mcp.NewServer(&mcp.Implementation{Name: "news", Version: "1"}, o)
		server.AddResource(&mcp.Resource{Name: "1", URI: "note://1"}, nil)
		return server, nil
	}
	c := w.legacy("{}")
	c.resource("subscribe")
	c.resource("unsubscribe")
	got := c.post(`{"jsonrpc":"2.0","id":7,"method":"resources/subscribe","params":{"uri":"note://2"}}`).last(t)
	commontest.Contains(t, "", "there is no such note", got)
	commontest.Same(t, []string{"subscribe note://1 ada", "unsubscribe note://1", "subscribe note://2 ada"}, asked)
}

func TestAllSessionsOfTheServerHearThatAListHasChanged(t *testing.T) {
	w := memory(t)
	w.hosted.Make = news
	a, b := w.legacy("{}"), w.legacy("{}")
	other := storage.Session{ID: "other", Server: "other", Tenant: "acme", State: storage.Ready, Expires: time.Now().Add(time.Hour)}
	foreign := storage.Session{ID: "foreign", Server: "demo", Tenant: "umbrella", State: storage.Ready, Expires: time.Now().Add(time.Hour)}
	for _, s := range []storage.Session{other, foreign} {
		commontest.OK(t, w.open().Create(t.Context(), s))
	}
	a.done("grow")
	w.wantHeard("the one", storage.ID(a.id), "resources/list_changed")
	w.wantHeard("the other", storage.ID(b.id), "resources/list_changed")
	w.wantHeard("who uses another server", "other")
	w.wantHeard("another tenant", "foreign")
}

func TestNothingSaidAtOnceByManyFunctionsIsLost(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		w.hosted.Make = news
		c := w.legacy("{}")
		var work sync.WaitGroup
		for range 20 {
			work.Go(func() { c.done("say") })
		}
		work.Wait()
		w.wantHeard("the client", storage.ID(c.id), slices.Repeat([]string{"message"}, 20)...)
	})
}

func TestAModernClientThatListensHearsWhatAnotherFunctionSays(t *testing.T) {
	w := memory(t)
	w.hosted.Make = news
	body := `{"jsonrpc":"2.0","id":5,"method":"subscriptions/listen","params":{"notifications":{"resourcesListChanged":true,"resourceSubscriptions":["note://1"]},` +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"new","version":"2"}}}}`
	server := httptest.NewServer(native.Handler(transport.New(w.options())))
	defer server.Close()
	r := request("POST", body, "MCP-Protocol-Version", wire.V20260728, "Mcp-Method", "subscriptions/listen")
	r.RequestURI, r.URL.Host = "", server.Listener.Addr().String()
	response, err := http.DefaultClient.Do(r)
	commontest.OK(t, err)
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	hears := func(word string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), word) {
				return
			}
		}
		t.Fatalf("the response ended before %q: %v", word, lines.Err())
	}
	hears("acknowledged")
	c := w.legacy("{}")
	c.done("touch")
	hears("resources/updated")
	c.done("grow")
	hears("resources/list_changed")
}
