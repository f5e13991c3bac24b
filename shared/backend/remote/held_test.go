package remote_test

import (
	"bufio"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestClientsOfARemoteServerHearThatAToolWasTaken(t *testing.T) {
	store := storagetest.NewMemory()
	server := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	tool := func(name string) {
		mcp.AddTool(server, &mcp.Tool{Name: name}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return nil, nil, nil
		})
	}
	tool("add")
	w := newWorld(t, store, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	pin := storage.Pin{Server: "far", Source: "remote"}
	w.pin = &pin
	heard := make(chan struct{}, 9)
	client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { heard <- struct{}{} },
	})
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: w.url}, nil)
	commontest.OK(t, err)
	t.Cleanup(func() { _ = s.Close() })
	if tools := s.InitializeResult().Capabilities.Tools; tools == nil || !tools.ListChanged {
		t.Errorf("the client was offered %+v", tools)
	}
	modern := w.listens()
	commontest.Contains(t, "the client of 2026-07-28 got", `"toolsListChanged":true`, modern("acknowledged"))
	names := func() (all []string) {
		list, err := s.ListTools(t.Context(), nil)
		commontest.OK(t, err)
		for _, tool := range list.Tools {
			all = append(all, tool.Name)
		}
		return all
	}
	names()
	tool("more")
	commontest.EqualIn(t, "before: the client sees", 1, len(names()))
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "more"}); err == nil {
		t.Error("a tool that is held was called")
	}
	keeper := held.NewKeeper(store, nil, slog.New(slog.DiscardHandler), nil)
	state, err := keeper.State(t.Context(), pin)
	if err != nil || len(state.Held) != 1 {
		t.Fatal(state, err)
	}
	_, err = keeper.Accept(t.Context(), pin, map[string]string{"more": state.Held[0].Hash})
	commontest.OK(t, err)
	commontest.OK(t, native.NewBackend(native.Config{Store: store}).ListChanged(t.Context(), "acme", "far", native.Tools))
	<-heard
	modern(wire.NotifyToolsChanged)
	commontest.EqualIn(t, "the client sees", 2, len(names()))
}

// listens begins a subscription of a client of 2026-07-28. It returns a function that waits for
// a line with a word.
func (w *world) listens() (until func(word string) string) {
	w.t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{"` +
		wire.MetaProtocolVersion + `":"` + wire.V20260728 + `","` + wire.MetaClientCapabilities + `":{}}}}`
	resp, err := http.DefaultClient.Do(post(w.t, w.url, body, wire.HeaderProtocolVersion, wire.V20260728, wire.HeaderMethod, wire.MethodListen))
	commontest.OK(w.t, err)
	w.t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	return func(word string) string {
		for lines.Scan() {
			if strings.Contains(lines.Text(), word) {
				return lines.Text()
			}
		}
		w.t.Fatalf("the response ended before %q: %v", word, lines.Err())
		return ""
	}
}
