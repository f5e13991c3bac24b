package endpoints_test

import (
	"bufio"
	"net/http"
	"regexp"
	"slices"
	"strings"
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

// channel lists and calls the tools of the server files.
type channel struct {
	list func() string
	call func(tool string) (status int, body string)
}

func (s *site) overHTTP(token string) channel {
	in := s.as(token, s.begin("files", token))
	return channel{
		func() string { return s.do("POST", "/files/mcp", listTools, in...).body },
		func(tool string) (int, string) {
			a := s.do("POST", "/files/mcp", call(tool), in...)
			if a.header.Get("WWW-Authenticate") != "" {
				s.t.Error("a client would open a browser:", a.header)
			}
			return a.status, a.body
		},
	}
}

// stream opens a session of HTTP+SSE. say posts a message, and next waits for the next one
// on the stream.
func (s *site) stream(server, token string) (say func(body string), next func() string) {
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/"+server+"/sse", nil)
	commontest.OK(s.t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(r)
	commontest.OK(s.t, err)
	s.t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		s.t.Fatal(res.Status)
	}
	lines := bufio.NewScanner(res.Body)
	next = func() string {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return data
			}
		}
		s.t.Fatal("the stream ended", lines.Err())
		return ""
	}
	to := next()
	say = func(body string) { s.do("POST", to, body, bearer(token)) }
	say(strings.Replace(initialize, "2025-11-25", "2024-11-05", 1))
	next()
	say(initialized)
	return say, next
}

func (s *site) overSocket(token string) channel {
	status, say := s.dial("server=files", token)
	if status != http.StatusOK {
		s.t.Fatal(status)
	}
	say(initialize, initialized)
	return channel{func() string { return say(listTools) }, func(tool string) (int, string) { return 0, say(call(tool)) }}
}

// A client sees and calls the tools that the rules let its user use, at both endpoints. Package
// sessions, which applies the rules, is the same behind every transport.
func TestOfToolsOnlyThoseOfTheRulesAreSeenAndCalled(t *testing.T) {
	s := newSite(t)
	s.warm = s.handler()
	for name, over := range map[string]func(token string) channel{
		"HTTP": s.overHTTP, "WebSocket": s.overSocket,
	} {
		t.Run(name, func(t *testing.T) {
			for who, groups := range map[string][]string{"ada": {"eng"}, "root": {"eng", "admins"}} {
				c := over(s.token(who, "files", map[string]any{"groups": groups}))
				want := []string{"read", "write_note"}
				if who == "root" {
					want = []string{"read", "write_file", "write_note"}
				}
				if got := toolsIn(c.list()); !slices.Equal(got, want) {
					t.Errorf("%s: %s sees %v", name, who, got)
				}
				for _, tool := range want {
					if status, body := c.call(tool); status > 200 || !strings.Contains(body, tool+" is done") {
						t.Errorf("%s: %s calls %s: %d %s", name, who, tool, status, body)
					}
				}
				if who == "root" {
					continue
				}
				status, body := c.call("write_file")
				if !strings.Contains(body, `"code":403`) || strings.Contains(body, `"data"`) || status != 0 && status != http.StatusForbidden {
					t.Errorf("%s: %s calls what only admins may: %d %s", name, who, status, body)
				}
				if status, body := c.call("read"); status > 200 || !strings.Contains(body, "read is done") {
					t.Errorf("%s: the session does not go on: %d %s", name, status, body)
				}
			}
		})
	}
	if strings.Contains(s.log.String(), "write_file is done") {
		t.Error("a tool has run that was refused")
	}
}
