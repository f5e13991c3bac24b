//go:build e2e

package dormouse_test

import (
	"fmt"
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

// asks sends a request and returns the result. In a version with sessions it uses the session that
// it keeps, or opens one for this request.
func (g *gateway) asks(method, name, params string) wire.Message {
	g.t.Helper()
	if g.version == wire.V20260728 {
		return g.served(method, name, params, "{}")
	}
	if !g.kept || g.session == "" {
		g.session = ""
		commontest.OK(g.t, g.open(fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"AgentCore Gateway","version":"1"}}`, g.version)))
	}
	s, err := g.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"one","method":%q,"params":{%s}}`, method, params))
	commontest.OK(g.t, err)
	defer s.close()
	m, err := s.response(`"one"`)
	commontest.OKIn(g.t, method, err)
	return m
}

// synchronizes reads the list of tools with all its pages, as CreateGatewayTarget does, and returns
// their names.
func (g *gateway) synchronizes() string {
	g.t.Helper()
	var tools []string
	for params, pages := "", 0; pages < 5; pages++ {
		list := g.asks(wire.MethodToolsList, "", params).Result
		tools = append(tools, toolsIn(list))
		cursor, more := wire.String(wire.Lookup(list, "nextCursor"))
		if !more {
			break
		}
		params = fmt.Sprintf(`"cursor":%q`, cursor)
	}
	return strings.Join(tools, " ")
}

// calls calls a tool, and returns the text of its result.
func (g *gateway) calls(tool, arguments string) string {
	g.t.Helper()
	return textOf(g.asks(wire.MethodToolsCall, tool, fmt.Sprintf(`"name":%q,"arguments":%s`, tool, arguments)))
}

// An AgentCore Gateway has servers of Dormouse as targets: with each version that it speaks, with a key or a
// token as outbound authorization, with and without sessions.
func TestE2EAgentCoreGateway(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"many": {"-pages", "3"}})
	m.start("--listen", commontest.FreeAddress(t), "--access", "oauth")
	key := m.keys("create", "gateway", "--all-servers")

	// AgentCore Identity has a custom provider with the token endpoint of the metadata, the key as its
	// client, and the custom parameter resource.
	token := m.token("many", key)
	passed := map[string]string{ // metadataConfiguration lets them through
		"User-Agent": "AgentCore-Gateway", "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"X-Amzn-Bedrock-AgentCore-Runtime-Session-Id": strings.Repeat("s", 33), "X-Tenant": "acme",
	}
	for _, version := range agentCoreVersions {
		for name, auth := range map[string]string{"API key": key, "OAuth client credentials": token} {
			t.Run(version+", "+name, func(t *testing.T) {
				c := m.in(t).client("many")
				c.url, c.version, c.key, c.more = c.url+"?tenant=acme", version, auth, passed
				g := &gateway{client: c}
				commontest.EqualIn(t, "the catalog has", "echo echo1 echo2", g.synchronizes())
				commontest.EqualIn(t, "echo says", "passed", g.calls("echo", `{"text":"passed"}`))
				if version == wire.V20260728 {
					return
				}
				commontest.EqualIn(t, "without sessions each call has one of its own, and counts", "1 1", g.calls("count", `{}`)+" "+g.calls("count", `{}`))
				g.kept, g.session = true, ""
				commontest.EqualIn(t, "with a session calls count", "1 2", g.calls("count", `{}`)+" "+g.calls("count", `{}`))
			})
		}
	}
}
