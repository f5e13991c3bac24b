//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// gateway is an AgentCore Gateway with one MCP server as its target, as the pages "MCP servers
// targets", "Use MCP sessions with your AgentCore gateway", "Use an AgentCore gateway" and "Set
// up outbound authorization" of AWS's developer guide describe it (November 2026). It differs from
// other clients: unless it keeps sessions, it initializes for each message, and it sends headers
// and a query of its own clients.
type gateway struct {
	*client      // its version is one that an AgentCore Gateway speaks, its key outbound authorization
	kept    bool // sessionConfiguration is set
}

// agentCoreVersions are those of "Use an AgentCore gateway".
var agentCoreVersions = []string{wire.V20250326, wire.V20250618, wire.V20251125, wire.V20260728}

// asks sends a request and returns what the target answers. In a version with sessions it uses the
// session that it keeps, or opens one for this request. answer gets the questions of the server, and
// returns their results.
func (g *gateway) asks(method, name, params string, answer func(method string) string) (wire.Message, error) {
	g.t.Helper()
	if g.version == wire.V20260728 {
		return g.rounds(method, name, params, answer)
	}
	if !g.kept || g.session == "" {
		g.session = ""
		commontest.OK(g.t, g.open(fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"elicitation":{},"sampling":{}},"clientInfo":{"name":"AgentCore Gateway","version":"1"}}`, g.version)))
	}
	s, err := g.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"one","method":%q,"params":{%s}}`, method, params))
	commontest.OK(g.t, err)
	defer s.close()
	for {
		m, err := s.next()
		switch {
		case err != nil || m.Kind == wire.Response:
			return m, err
		case m.Kind == wire.Request:
			commontest.Check(g.t, g.tell(`{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":`+answer(m.Method)+`}`))
		}
	}
}

// rounds sends a request of 2026-07-28 until its result asks for nothing more.
func (g *gateway) rounds(method, name, params string, answer func(method string) string) (wire.Message, error) {
	g.t.Helper()
	for more := ""; ; {
		_, m := g.modernly(method, name, strings.Trim(params+more, ","), `{"elicitation":{"form":{}}}`)
		var asked struct {
			ResultType    string
			RequestState  string
			InputRequests map[string]struct{ Method string }
		}
		if m.Result == nil || json.Unmarshal(m.Result, &asked) != nil || asked.ResultType != wire.ResultInputRequired {
			return m, nil
		}
		answers := map[string]json.RawMessage{}
		for id, question := range asked.InputRequests {
			answers[id] = json.RawMessage(answer(question.Method))
		}
		text, err := json.Marshal(answers)
		if err != nil {
			return m, err
		}
		more = fmt.Sprintf(`,"requestState":%q,"inputResponses":%s`, asked.RequestState, text)
	}
}

// synchronizes reads the lists with all their pages, as CreateGatewayTarget, UpdateGatewayTarget and
// SynchronizeGatewayTargets do, and returns the names of the tools. A list that the target does not have
// is a JSON-RPC error.
func (g *gateway) synchronizes() []string {
	g.t.Helper()
	var tools []string
	for method, of := range map[string]string{"tools/list": "tools", "prompts/list": "prompts", "resources/list": "resources", "resources/templates/list": "resourceTemplates"} {
		for cursor, last := "", ""; ; last = cursor {
			params := ""
			if cursor != "" {
				params = fmt.Sprintf(`"cursor":%q`, cursor)
			}
			m, err := g.asks(method, "", params, nil)
			commontest.OKIn(g.t, method, err)
			if m.Result == nil && method != "tools/list" {
				if !strings.Contains(string(m.Error), "-32601") {
					g.t.Errorf("%s: %s", method, m.Raw)
				}
				break
			}
			var page map[string]json.RawMessage
			var all []struct{ Name string }
			if err := json.Unmarshal(m.Result, &page); err != nil || json.Unmarshal(page[of], &all) != nil {
				g.t.Fatalf("%s: %s", method, m.Raw)
			}
			if of == "tools" {
				for _, one := range all {
					tools = append(tools, one.Name)
				}
			}
			if cursor, _ = wire.String(page["nextCursor"]); cursor == "" {
				break
			}
			if cursor == last {
				g.t.Fatalf("%s has the same page twice", method)
			}
		}
	}
	return tools
}

// calls calls a tool, and returns the text of its result.
func (g *gateway) calls(tool, arguments string, answer func(method string) string) (string, error) {
	g.t.Helper()
	m, err := g.asks("tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":%s`, tool, arguments), answer)
	if err != nil {
		return "", err
	}
	return textOf(m), nil
}

// An AgentCore Gateway has servers of Dormouse as targets: with each version that it speaks, with a key or a
// token as outbound authorization, with and without sessions.
func TestE2EAgentCoreGateway(t *testing.T) {
	t.Parallel()
	m := machineOf(t, map[string]any{
		"one":  map[string]any{"command": stdio(t)},
		"many": map[string]any{"command": stdio(t), "args": []string{"-pages", "3"}},
	})
	address := commontest.FreeAddress(t)
	m.start("--listen", address, "--access", "oauth")
	base := "http://" + address
	key := m.keys("create", "gateway", "--all-servers")
	id := strings.Split(key, "_")[1]

	// AgentCore Identity has a custom provider with the token endpoint of the metadata, this client, and
	// the custom parameter resource.
	var metadata struct {
		Token string `json:"token_endpoint"`
	}
	found := web(t, http.DefaultClient, http.MethodGet, base+"/.well-known/oauth-authorization-server", "", http.Header{})
	if err := json.Unmarshal([]byte(found.text), &metadata); err != nil || metadata.Token == "" {
		t.Fatal(err, found)
	}
	token := func(server string) string {
		form := url.Values{"grant_type": {"client_credentials"}, "client_id": {id}, "client_secret": {key}, "resource": {m.urls[server]}}
		answer := web(t, http.DefaultClient, http.MethodPost, metadata.Token, form.Encode(), http.Header{"Content-Type": {"application/x-www-form-urlencoded"}})
		var got struct {
			Access string `json:"access_token"`
			Type   string `json:"token_type"`
		}
		if err := json.Unmarshal([]byte(answer.text), &got); err != nil || got.Access == "" || got.Type != "Bearer" {
			t.Fatal(err, answer)
		}
		return got.Access
	}
	passed := map[string]string{ // metadataConfiguration lets them through
		"User-Agent": "AgentCore-Gateway", "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"X-Amzn-Bedrock-AgentCore-Runtime-Session-Id": strings.Repeat("s", 33), "X-Tenant": "acme",
	}
	for _, version := range agentCoreVersions {
		for name, auth := range map[string]func(server string) string{
			"API key": func(string) string { return key }, "OAuth client credentials": token,
		} {
			t.Run(version+", "+name, func(t *testing.T) {
				target := func(server string) *gateway {
					c := m.in(t).client(server)
					c.url, c.version, c.key, c.more = c.url+"?tenant=acme", version, auth(server), passed
					return &gateway{client: c}
				}
				g := target("one")
				if tools := g.synchronizes(); !slices.Equal(tools, []string{"echo"}) {
					t.Errorf("the catalog has %q", tools)
				}
				if tools := target("many").synchronizes(); !slices.Equal(tools, []string{"echo", "echo1", "echo2"}) {
					t.Errorf("of three pages the catalog has %q", tools)
				}
				if text, err := g.calls("echo", `{"text":"passed"}`, nil); text != "passed" || err != nil {
					t.Errorf("echo says %q, %v", text, err)
				}
				if version != wire.V20260728 {
					// Without sessions each call has a session of its own.
					for range 2 {
						if text, err := g.calls("count", `{}`, nil); text != "1" || err != nil {
							t.Errorf("count says %q, %v", text, err)
						}
					}
					g.kept, g.session = true, ""
					for _, want := range []string{"1", "2"} {
						if text, err := g.calls("count", `{}`, nil); text != want || err != nil {
							t.Errorf("with a session count says %q, %v; want %s", text, err, want)
						}
					}
				}
				if version == wire.V20250326 { // it has no elicitation
					return
				}
				asked := ""
				text, err := g.calls("ask", `{"method":"elicitation/create"}`, func(method string) string {
					asked = method
					return `{"action":"accept","content":{"n":7}}`
				})
				if asked != wire.MethodElicit || !strings.Contains(text, `"n":7`) || err != nil {
					t.Errorf("asked for %q, the tool got %q, %v", asked, text, err)
				}
			})
		}
	}
}
