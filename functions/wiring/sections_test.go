package wiring_test

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A mistake in a section that other packages read has its place. One of a server rejects
// that server alone.
func TestCheckSectionsNamesEachMistakeWithItsPlace(t *testing.T) {
	for name, test := range map[string]struct {
		file   string
		served string
		wrong  []string
	}{
		"right": {`{"mcpServers": {"a": {"command": "a"}},
			"x-dormouse": {"limits": {"principal": "60/m"}, "access": {"issuer": "https://login.example.com", "allow": {"*": {"groups": ["a"]}}}}}`, "a", nil},
		"limits of the file": {`{"mcpServers": {"a": {"command": "a"}},
			"x-dormouse": {"limits": {"hour": 5, "concurrent": -1}}}`, "", []string{
			`f:2:41: x-dormouse.limits: concurrent is -1; want a number above 0, or null for no limit`,
			`f:2:30: x-dormouse.limits: there is no limit "hour"; the limits are principal, concurrent, boxes, month_usd`,
		}},
		"keys of access": {`{"mcpServers": {"a": {"command": "a"}}, "x-dormouse": {"access": {
			"issuer": 5,
			"tenant_claim": "org",
			"allows": {}}}}`, "", []string{
			`f:4:4: x-dormouse.access: unknown key "allows"`,
			`f:2:4: x-dormouse.access: issuer cannot be a number; want a string`,
		}},
		"keys below access": {`{"mcpServers": {"a": {"command": "a"}}, "x-dormouse": {"access": {
			"enterprise": [{"issuer": "https://a.example.com", "audience": "x"}],
			"introspection": {"endpoint": "https://a.example.com", "secret": "x"}}}}`, "", []string{
			`f:2:4: x-dormouse.access: unknown key "audience"`,
			`f:3:4: x-dormouse.access: unknown key "secret"`,
		}},
		"access with a variable": {`{"mcpServers": {"a": {"command": "a"}}, "x-dormouse": {"access": {"issuer": "${NOT_SET}", "tenant_claim": "org"}}}`, "a", nil},
		"connect": {`{"mcpServers": {"a": {"command": "a"}}, "x-dormouse": {"connect": {
			"github": {"authorize": "https://example.com/a"},
			"gitlab": {"authorise": "https://example.com/a"}}}}`, "", []string{
			`f:2:4: x-dormouse.connect: github: authorize and token go together; set both, or neither for an API key`,
			`f:3:4: x-dormouse.connect: unknown key "authorise"`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, err := serversfile.Parse([]byte(test.file), "f", nil)
			commontest.OK(t, err)
			var wrong []string
			if err := wiring.CheckSections(c); err != nil {
				wrong = strings.Split(err.Error(), "\n")
			} else if got := strings.Join(c.Names(), " "); got != test.served {
				t.Errorf("serves %q, want %q", got, test.served)
			}
			for _, r := range c.Rejected() {
				wrong = append(wrong, r.String())
			}
			commontest.Same(t, test.wrong, wrong)
		})
	}
}
