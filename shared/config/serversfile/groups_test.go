package serversfile_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestGroupsAndToolsOfTheFile(t *testing.T) {
	read := parse(t, `{"x-dormouse": {"groups": {
	  "all": {"names": "plain"},
	  "dev": {"servers": ["git", "later"], "tools": "search"}
	}}, "mcpServers": {
	  "git": {"command": "true", "x-dormouse": {"tools": {"allow": ["get_*"], "deny": ["get_secret"], "descriptions": {"get_x": "gets x"}}}}
	}}`, nil)
	for _, c := range []*serversfile.File{read, copied(t, read)} {
		all, _ := c.Group(serversfile.AllServers)
		dev, _ := c.Group("dev")
		commontest.Same(t, []serversfile.Group{{Plain: true}, {Servers: []string{"git", "later"}, Search: true}}, []serversfile.Group{all, dev})
		if _, ok := c.Group("none"); ok {
			t.Error("there is a group that the file does not have")
		}
		s, _ := c.Server("git")
		commontest.Same(t, serversfile.ToolFilter{Allow: []string{"get_*"}, Deny: []string{"get_secret"}, Descriptions: map[string]string{"get_x": "gets x"}}, s.Tools)
	}
}
