package policy_test

import (
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/policy"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestRulesReadTheClaimsOfTheirToolsToo(t *testing.T) {
	rules := policy.Rules{"files": {Groups: []string{"eng"}, Tools: map[string]policy.Rule{
		"write_*":    {Groups: []string{"admins"}},
		"delete":     {Emails: []string{"*@a.example"}, Claims: map[string][]string{"level": {"3"}}},
		"write_note": {Everyone: true},
	}}}
	commontest.Same(t, []string{"email", "groups", "level"}, rules.Claims())
	claims := map[string]any{"groups": []any{"all", "admins", "eng"}, "level": "3", "email": "eve@b.example", "email_verified": true, "name": "Eve"}
	kept := rules.Relevant(claims)
	for _, c := range []map[string]any{claims, kept} {
		commontest.SameIn(t, fmt.Sprint(c), []string{"delete", "write_*", "write_note"}, rules["files"].ToolsOf(c))
	}
	if groups := kept["groups"].([]any); len(groups) != 2 || kept["name"] != nil || kept["level"].([]any)[0] != "3" {
		t.Errorf("kept %v", kept)
	}
	commontest.Same(t, []string{"write_note"}, rules["files"].ToolsOf(map[string]any{"groups": "eng"}))
}
