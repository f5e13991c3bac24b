package endpoints_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The server files has the tools read, write_file and write_note. By access.allow only
// admins may use write_*, but everybody may use write_note.

const listTools = `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`

// toolsIn returns the names of the tools in an answer, sorted.
func toolsIn(body string) (names []string) {
	for _, m := range regexp.MustCompile(`"name":"(read|write_[a-z]+)"`).FindAllStringSubmatch(body, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return names
}

// modernRequest returns a request of 2026-07-28, and its headers.
func modernRequest(method, tool string) (body string, headers []string) {
	params := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	headers = []string{"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: " + method}
	if tool != "" {
		params += `,"name":"` + tool + `","arguments":{}`
		headers = append(headers, "Mcp-Name: "+tool)
	}
	return `{"jsonrpc":"2.0","id":2,"method":"` + method + `","params":{` + params + `}}`, headers
}

func (s *site) overHTTP(token string) func(messages ...string) string {
	in := s.as(token, s.begin("files", token))
	return func(messages ...string) string {
		a := s.do("POST", "/files/mcp", messages[0], in...)
		if a.header.Get("WWW-Authenticate") != "" {
			s.t.Error("a client would open a browser:", a.header)
		}
		return a.body
	}
}

func (s *site) overSocket(token string) func(messages ...string) string {
	_, say := s.dial("server=files", token)
	say(initialize, initialized)
	return say
}

// A client sees and calls the tools that the rules let its user use, at both endpoints. Package
// sessions, which applies the rules, is the same behind every transport.
func TestOfToolsOnlyThoseOfTheRulesAreSeenAndCalled(t *testing.T) {
	s := newSite(t)
	s.warm = s.handler()
	for name, over := range map[string]func(token string) func(messages ...string) string{"HTTP": s.overHTTP, "WebSocket": s.overSocket} {
		for groups, want := range map[string][]string{"eng": {"read", "write_note"}, "admins": {"read", "write_file", "write_note"}} {
			say := over(s.token("ada", "files", map[string]any{"groups": []string{"eng", groups}}))
			commontest.SameIn(t, name+": listed for "+groups, want, toolsIn(say(listTools)))
			for _, tool := range []string{"write_file", "read"} { // the session goes on after a refusal
				wanted := tool + " is done"
				if !slices.Contains(want, tool) {
					wanted = `"code":403`
				}
				commontest.Contains(t, name+": "+groups+" calls "+tool, wanted, say(call(tool)))
			}
		}
	}
}
