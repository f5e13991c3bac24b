//go:build clients

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/infra/proof/internal/webuser"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// guarded is a Dormouse whose users sign in with any name, as a remote server.
type guarded struct {
	url  string
	data string // its data folder
}

// asked returns how many requests each principal has sent to the remote server, as its
// log says.
func (g guarded) asked(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for line := range bytes.Lines(programtest.Read(t, filepath.Join(g.data, "logs", "dormouse.jsonl"))) {
		var l struct{ Msg, Server, Principal string }
		if json.Unmarshal(line, &l) == nil && l.Msg == "request" && l.Server != "" {
			counts[l.Principal]++
		}
	}
	return counts
}

// withKey sends an API key with each request.
type withKey string

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

// near is a Dormouse that hosts the guarded one as "far", for callers with keys.
type near struct{ root, url, data string }

// dormouse runs a command of the built program.
func (n near) dormouse(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(string(programtest.Run(t, ".", "dormouse failed", 0, filepath.Join(n.root, "bin", "dormouse"), args...)))
}

// open opens a session. The client is of 2025-11-25 and can open no page.
func (n near) open(t *testing.T, key string) *mcp.ClientSession {
	t.Helper()
	transport := &mcp.StreamableClientTransport{Endpoint: n.url + "/far/mcp", HTTPClient: &http.Client{Transport: withKey(key)}, DisableStandaloneSSE: true}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "remote", Version: "1"}, nil).Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	commontest.OK(t, err)
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// call calls a tool, and returns its text.
func call(t *testing.T, session *mcp.ClientSession, tool string) (text string, isError bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"by": 2}})
	if err != nil {
		return err.Error(), true
	}
	return result.Content[0].(*mcp.TextContent).Text, result.IsError
}

// connect goes through the pages as a user with a key, who signs in at the far server with a
// name of their own.
func (n near) connect(t *testing.T, link, key, name string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.url+"/far/ticket", nil)
	commontest.OK(t, err)
	res, err := (&http.Client{Transport: withKey(key)}).Do(r)
	commontest.OK(t, err)
	defer func() { _ = res.Body.Close() }()
	var ticket struct{ Ticket string }
	if err := json.NewDecoder(res.Body).Decode(&ticket); err != nil || ticket.Ticket == "" {
		t.Fatal(res.Status, err)
	}
	answers := webuser.Ada()
	maps.Copy(answers, map[string]string{"ticket": ticket.Ticket, "action": "connect", "name": name})
	page, err := webuser.New(answers).Visit(t.Context(), link, "")
	if err != nil || !strings.Contains(page.Text, "is connected") {
		t.Fatalf("%v: %s ends with %s", err, page.URL, page.Text)
	}
}

// Users of a remote server sign in there. dormouse add finds out where. Each principal
// gets a token of their own, and a call of a principal without a token returns a link to
// get one.
func TestRemoteServerGetsTheTokenOfEachUser(t *testing.T) {
	root, address := programtest.Root(t), commontest.FreeAddress(t)
	far := guarded{data: t.TempDir()}
	far.url = examples(t).Host(t, counter(), nil, "--listen", commontest.FreeAddress(t), "--access", "oauth", "--data", far.data)["counter"].URL
	n := near{root, "http://" + address, t.TempDir()}
	file := filepath.Join(t.TempDir(), "servers.json")
	programtest.Write(t, file, []byte(`{"mcpServers": {}}`))
	n.dormouse(t, "add", "far", far.url, "--oauth", "--private", "--no-start", "--public-url", n.url, "--servers", file)
	programtest.Host(t, map[string]any{"far": nil}, "--listen", address, "--access", "keys", "--data", n.data, "--servers", file)
	keys := map[string]string{}
	for _, who := range []string{"ada", "bob", "cy"} {
		keys[who] = n.dormouse(t, "keys", "create", who, "--all-servers", "--data", n.data)
	}
	sessions, links := map[string]*mcp.ClientSession{}, map[string]string{}
	for who, key := range keys {
		sessions[who] = n.open(t, key)
		tools, err := sessions[who].ListTools(t.Context(), nil)
		if err != nil || len(tools.Tools) != 1 || tools.Tools[0].Name != "connect_account" {
			t.Fatalf("%s, who has no token, can call %v, %v", who, tools, err)
		}
		before := far.asked(t)
		text, isError := call(t, sessions[who], "connect_account")
		links[who] = regexp.MustCompile(regexp.QuoteMeta(n.url) + `/connect\?e=[\w-]+`).FindString(text)
		if !isError || links[who] == "" {
			t.Fatalf("%s, who has no token, gets %q", who, text)
		}
		if after := far.asked(t); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the call of %s reached the remote server: %v, then %v", who, before, after)
		}
	}
	n.connect(t, links["ada"], keys["ada"], "ada-there")
	n.connect(t, links["bob"], keys["bob"], "bob-there")
	for i, who := range []string{"ada", "bob"} {
		if text, isError := call(t, sessions[who], "add"); isError || text != "2" {
			t.Errorf("%s gets %q", who, text)
		}
		// What belongs to the connection of the one before may come as late as now.
		if asked := far.asked(t); asked["dev:"+who+"-there"] == 0 || i == 0 && asked["dev:bob-there"] > 0 {
			t.Errorf("after a call of %s the remote server was asked %v", who, asked)
		}
	}
	if text, isError := call(t, sessions["cy"], "add"); !isError || !strings.Contains(text, "/connect?e=") {
		t.Errorf("cy, who has no token, gets %q", text)
	}
	if data, err := os.ReadFile(file); err != nil || bytes.Contains(data, []byte("Bearer da_")) {
		t.Errorf("the servers file holds a token: %s, %v", data, err)
	}
}
