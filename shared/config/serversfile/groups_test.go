package serversfile_test

import (
	"strings"
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

func TestMistakesInGroupsAreNamed(t *testing.T) {
	for section, want := range map[string]string{
		`"groups": []`: "x-dormouse.groups must be an object", `"groups": {"a b": {}}`: "a name of a group has letters",
		`"groups": {"a": {"separator": "-"}}`: `unknown key "separator"`, `"groups": {"a": {"names": "none"}}`: `names must be "prefixed" or "plain"`,
		`"groups": {"a": {"servers": [1]}}`: "must be a list of names", `"groups": {"a": {"server": ["x"]}}`: `did you mean "servers"?`,
	} {
		file := `{"x-dormouse": {` + section + `}, "mcpServers": {"a": {"command": "true"}}}`
		if _, _, err := serversfile.Parse([]byte(file), "servers.json", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", section, err, want)
		}
	}
}
