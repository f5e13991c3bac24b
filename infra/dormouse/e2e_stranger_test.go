//go:build e2e

package dormouse_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A stranger has the program and a servers file with three servers, one of which is
// broken. Within five minutes the stranger calls a tool from a real client, and reads why
// the broken server does not work, without the documents: only what the program prints says
// what to type next.
func TestE2EStrangerFindsTheBrokenServerAndCallsATool(t *testing.T) {
	t.Parallel()
	program := stdio(t)
	begun := time.Now()
	m := machineOf(t, map[string]any{
		"first":  map[string]any{"command": program, "args": []string{"-name", "first"}},
		"second": map[string]any{"command": program, "args": []string{"-name", "second"}},
		"broken": map[string]any{"command": program, "args": []string{"-stderr", "the token of the service has expired\n", "-exit", "1"}},
	})
	lap := func(what string) { t.Logf("%6.1f s  %s", time.Since(begun).Seconds(), what) }

	m.run()
	address := func(name string) string {
		line := m.awaitLine(m.log, patience, "the first block names "+name, func(line string) bool { return strings.HasPrefix(line, "  "+name+" ") })
		return strings.Fields(line)[1]
	}
	first, broken := address("first"), address("broken")
	lap("dormouse run has printed the addresses")

	// The first block says: clients  dormouse connect claude-code
	hint := m.awaitLine(m.log, patience, "the first block says how to connect", func(line string) bool { return strings.HasPrefix(line, "  clients ") })
	words := strings.Fields(hint)[2:]
	out, err := m.command(words[0], words[1:]...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "claude mcp add --transport http") || !strings.Contains(string(out), first) {
		t.Fatalf("dormouse %s: %v\n%s", strings.Join(words, " "), err, out)
	}
	lap("dormouse " + strings.Join(words, " ") + " has said what to paste")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "stranger", Version: "1"}, nil)
	s, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: first}, nil)
	commontest.OK(t, err)
	result, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "hello"}})
	if err != nil || result.IsError || result.Content[0].(*mcp.TextContent).Text != "hello" {
		t.Fatalf("the tool said %+v, %v", result, err)
	}
	_ = s.Close()
	lap("a real client has called a tool")

	_, err = client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: broken}, nil)
	const why = "the token of the service has expired"
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("the client says %v, want %q", err, why)
	}
	m.awaitLine(m.log, patience, "the terminal says why the broken server fails", func(line string) bool {
		return strings.Contains(line, " broken failed ") && strings.Contains(line, why)
	})
	for _, command := range []string{"list", "logs"} {
		m.eventually(patience, "dormouse "+command+" says why", func() bool {
			out, err := m.command(command).CombinedOutput()
			return err == nil && strings.Contains(string(out), why)
		})
	}
	lap("client, terminal, dormouse list and dormouse logs have said why the third one fails")

	// The answer at a mistyped address names the servers that exist.
	if status, body := m.refusal(strings.Replace(first, "/first/", "/frist/", 1)); status != 404 || !strings.Contains(body, "there is no server frist (did you mean first?); there are ") {
		t.Errorf("a mistyped address: %d %s", status, body)
	}
	shown := web(t, http.DefaultClient, http.MethodGet, first, "", http.Header{"Accept": {"text/html,application/xhtml+xml,*/*;q=0.8"}})
	if !strings.Contains(shown.text, "claude mcp add --transport http first "+first) {
		t.Errorf("a browser gets %s", shown.text)
	}
	if total := time.Since(begun); total > 5*time.Minute {
		t.Errorf("all of it took %s, want less than five minutes", total)
	}
}
