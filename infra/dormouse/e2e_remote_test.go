//go:build e2e

package dormouse_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A machine hosts a server of another machine as a remote one.
func TestE2ERemoteServerIsHostedLikeTheOthers(t *testing.T) {
	t.Parallel()
	far := newMachine(t, servers{"one": nil})
	far.start()
	m := machineOf(t, map[string]any{
		"public": map[string]any{"url": far.urls["one"]},
		"far":    map[string]any{"url": far.urls["one"], "x-dormouse": map[string]any{"remote": map[string]any{"private": true}}},
	})
	m.start()
	c := m.session("far")
	if got := c.text("count", ""); got != "1" {
		t.Errorf("the first call counts %s", got)
	}
	m.restart()
	if got := c.text("count", ""); got != "2" {
		t.Errorf("after a restart the session counts %s", got)
	}
	far.restart()
	if got := c.text("count", ""); got == "" {
		t.Error("after a restart of the remote machine nothing is answered")
	}
	if status, body := m.refusal(m.urls["public"]); !strings.Contains(body, "is not public") {
		t.Errorf("a private address answers %d %s", status, body)
	}
}

// farServer returns the URL of a go-sdk server over Streamable HTTP of 2025-11-25, whose
// tool "slow" reports progress, waits for release, and reports progress again.
func farServer(t *testing.T, options *mcp.StreamableHTTPOptions) (url string, calls *atomic.Int64, release chan struct{}) {
	t.Helper()
	calls, release = &atomic.Int64{}, make(chan struct{})
	s := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "slow", InputSchema: map[string]any{"type": "object"}}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		calls.Add(1)
		told := func(n float64) error {
			return r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: n})
		}
		if err := told(1); err != nil {
			return nil, err
		}
		<-release
		if err := told(2); err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
	})
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, options)
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(wire.HeaderMethod) != "" { // of 2026-07-28, which this server does not know
			http.Error(w, "no session", http.StatusBadRequest)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		far.CloseClientConnections()
		far.Close()
	})
	return far.URL, calls, release
}

// farMachine returns a machine that hosts the server at a URL as "far".
func farMachine(t *testing.T, url string) *machine {
	t.Helper()
	return machineOf(t, map[string]any{"far": map[string]any{"url": url, "x-dormouse": map[string]any{"remote": map[string]any{"private": true}}}})
}

// If a function is killed in the middle of a call of a remote server, the store has what
// another function needs to resume the call's stream at that server.
func TestE2ERemoteCallGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	url, calls, release := farServer(t, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)})
	m := farMachine(t, url)
	m.start()
	c := m.session("far")
	messages := c.killed(t, m, release)
	if got := ended(messages); len(got) == 0 || got[len(got)-1] != "response 7" || messages[len(messages)-1].Error != nil {
		t.Errorf("the call ended with %v: %s", got, messages[len(messages)-1].Raw)
	}
	if got := ended(messages); len(got) != 2 || got[0] != "progress 2" {
		t.Errorf("after the kill came %v", got)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// If the remote server sends no event ids, the call ends in an error that says that its
// outcome is not known.
func TestE2ERemoteCallEndsAfterAKillThoughItCannotBeResumed(t *testing.T) {
	t.Parallel()
	url, calls, release := farServer(t, nil)
	m := farMachine(t, url)
	m.start()
	c := m.session("far")
	messages := c.killed(t, m, release)
	last := messages[len(messages)-1]
	if last.Error == nil || !strings.Contains(string(last.Error), "is not known") {
		t.Errorf("the call ended with %s", last.Raw)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// killed calls the slow tool, kills and restarts the machine after its first progress, and
// returns what the client gets then.
func (c *client) killed(t *testing.T, m *machine, release chan struct{}) []wire.Message {
	t.Helper()
	s, err := c.post(c.request("7", "slow", ""))
	if err != nil {
		t.Fatal(err)
	}
	step, err := s.next()
	if err != nil || step.Method != wire.NotifyProgress {
		t.Fatalf("%s, %v", step.Raw, err)
	}
	s.close()
	m.restart()
	close(release)
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, s, "7")
	if err != nil {
		t.Fatal(err)
	}
	return messages
}
