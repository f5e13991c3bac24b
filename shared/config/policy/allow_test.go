package policy_test

import (
	"slices"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/config/policy"
)

func TestRulesReadTheClaimsOfTheirToolsToo(t *testing.T) {
	rules := policy.Rules{"files": {Groups: []string{"eng"}, Tools: map[string]policy.Rule{
		"write_*":    {Groups: []string{"admins"}},
		"delete":     {Emails: []string{"*@a.example"}, Claims: map[string][]string{"level": {"3"}}},
		"write_note": {Everyone: true},
	}}}
	if got := rules.Claims(); !slices.Equal(got, []string{"email", "groups", "level"}) {
		t.Error(got)
	}
	claims := map[string]any{"groups": []any{"all", "admins", "eng"}, "level": "3", "email": "eve@b.example", "email_verified": true, "name": "Eve"}
	kept := rules.Relevant(claims)
	for _, c := range []map[string]any{claims, kept} {
		if got := rules["files"].ToolsOf(c); !slices.Equal(got, []string{"delete", "write_*", "write_note"}) {
			t.Errorf("%v fits %v", c, got)
		}
	}
	if groups := kept["groups"].([]any); len(groups) != 2 || kept["name"] != nil || kept["level"].([]any)[0] != "3" {
		t.Errorf("kept %v", kept)
	}
	if got := rules["files"].ToolsOf(map[string]any{"groups": "eng"}); !slices.Equal(got, []string{"write_note"}) {
		t.Error(got)
	}
}
