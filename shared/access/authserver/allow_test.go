package authserver_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The broker applies the rules for tools to the claims of the sign-in, at the sign-in and
// at each refresh. Tools of a rule that is newer than a token are refused.
func TestTokensKnowWhichRulesForToolsTheirUserFits(t *testing.T) {
	rules := func(tools map[string]resourceserver.Rule) map[string]resourceserver.Rule {
		return map[string]resourceserver.Rule{"files": {Everyone: true, Tools: tools}, "*": {Everyone: true}}
	}
	admins := resourceserver.Rule{Groups: []string{"admins"}}
	s := newSite(t, func(c *authserver.Config) {
		c.Login, c.Scopes = fixed{"sub": "ada", "groups": []any{"eng", "ops"}}, nil
		c.Allow = rules(map[string]resourceserver.Rule{"write_*": admins, "write_note": {Groups: []string{"eng"}}})
	})
	may := func(token string) string {
		t.Helper()
		v := s.issued()
		who, err := verify(t, v, token, "files")
		commontest.OK(t, err)
		tools := v.Tools(who, "files")
		return strings.Join(slices.DeleteFunc([]string{"read", "write_file", "write_note", "drop"}, func(tool string) bool {
			if err := v.Permit(who, "files", []string{"read", tool}); (err == nil) != tools.Allows(tool) {
				t.Errorf("%s: %v, but the list has it: %t", tool, err, tools.Allows(tool))
			}
			return !tools.Allows(tool)
		}), " ")
	}
	client, access, refresh := s.tokens()
	commontest.EqualIn(t, "at the sign-in", "read write_note drop", may(access))
	s.config.Allow = rules(map[string]resourceserver.Rule{"write_*": {Groups: []string{"ops"}}, "drop": {Groups: []string{"eng"}}})
	commontest.EqualIn(t, "with a token of the old rules", "read", may(access))
	got := s.granted(refreshing(client, refresh))
	// The grant keeps the claims that a rule named at the sign-in: eng, but not ops.
	commontest.EqualIn(t, "after a refresh", "read drop", may(got["access_token"].(string)))
	_, access, _ = s.tokens()
	commontest.EqualIn(t, "after a sign-in", "read write_file write_note drop", may(access))
	// A key has no claims: it uses all tools, also by a token that it was exchanged for.
	key, record, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "robot", Servers: []string{"files"}})
	commontest.OK(t, err)
	_, got = s.token(url.Values{"grant_type": {"client_credentials"}, "client_id": {record.ID}, "client_secret": {key}, "resource": {at + "/files/mcp"}})
	commontest.EqualIn(t, "a key", "read write_file write_note drop", may(got["access_token"].(string)))
}

// The refusal of a refresh token that is good says something else than that of an unknown one.
func TestRefreshEndsWithTheIssuerAndTheTenantOfTheSignIn(t *testing.T) {
	for name, change := range map[string]func(*resourceserver.Settings){
		"another name":   func(s *resourceserver.Settings) { s.Name = "next" },
		"another issuer": func(s *resourceserver.Settings) { s.Issuer, s.ClientID = s.Issuer+"/next", "id" },
		"another tenant": func(s *resourceserver.Settings) { s.Tenant = "acme" },
		"tenants without it": func(s *resourceserver.Settings) {
			s.TenantClaim, s.Tenants = "org", map[string]string{"a": "acme"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, nil)
			client, _, refresh := s.tokens()
			change(&s.config.Settings)
			_, unknown := s.token(refreshing(client, "x"+refresh))
			if _, got := s.token(refreshing(client, refresh)); got["error"] != "invalid_grant" || got["error_description"] == unknown["error_description"] {
				t.Errorf("%v; for an unknown token %v", got, unknown)
			}
		})
	}
}
