package authserver_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func withRoles(t *testing.T) *site {
	t.Helper()
	return newSite(t, func(c *authserver.Config) {
		c.Roles = map[string]resourceserver.Rule{"operator": {Groups: []string{"sre"}}, "viewer": {Groups: []string{"eng"}}}
		c.Claims = []string{"groups"}
	})
}

func forConsole(changes ...string) url.Values {
	return with(request(resourceserver.ConsoleClient), append([]string{"redirect_uri", at + "/console/home", "resource", at + "/console/", "scope", ""}, changes...)...)
}

// entersConsole has a user sign in to the console and returns the access token, or the
// error that the page gets.
func (s *site) entersConsole(name, groups string) (access, refused string) {
	s.t.Helper()
	q := s.browser().signIn(ask(forConsole()), name, groups)
	if q.Get("error") != "" {
		return "", q.Get("error") + " " + q.Get("error_description")
	}
	got := s.granted(redeeming(resourceserver.ConsoleClient, q.Get("code"), "redirect_uri", at+"/console/home"))
	return got["access_token"].(string), ""
}

func TestUsersSignInToTheConsoleWithTheRoleThatTheRulesGive(t *testing.T) {
	s := withRoles(t)
	for _, test := range []struct {
		name, groups string
		want         storage.Role
	}{
		{"ada", "sre", storage.RoleOperator},
		{"bob", "eng,others", storage.RoleViewer},
		{"eve", "eng,sre", storage.RoleOperator}, // both rules fit
	} {
		access, refused := s.entersConsole(test.name, test.groups)
		if refused != "" {
			t.Fatal(test.name, refused)
		}
		who, role, err := s.issued().Operator(t.Context(), access)
		if err != nil || role != test.want || who.Principal != "dev:"+test.name || who.Tenant != "default" {
			t.Errorf("%s: %s %+v, %v", test.name, role, who, err)
		}
		commontest.EqualIn(t, "the token of "+test.name+" is good for a server", false, s.good(access, "files"))
	}
	if _, refused := s.entersConsole("sam", "others"); !strings.HasPrefix(refused, "access_denied") {
		t.Errorf("a user without a role: %q", refused)
	}
	commontest.EqualIn(t, "the log has a token", false, strings.Contains(s.log.String(), "da_"))
}

// A token for the console lets its holder act on all servers of a tenant. Only the
// console gets such a token, and it gets no token for anything else.
func TestOnlyTheConsoleGetsTokensForTheConsole(t *testing.T) {
	s := withRoles(t)
	client := s.register(callback)
	for name, q := range map[string]url.Values{
		"another client":            request(client, "resource", at+"/console/"),
		"the console, for a server": forConsole("resource", at+"/files/mcp"),
		"the console, for nothing":  forConsole("resource", ""),
	} {
		to, err := url.Parse(s.browser().begin(ask(q)))
		if err != nil || to.Query().Get("error") != "invalid_target" || to.Query().Get("code") != "" {
			t.Errorf("%s: sent to %v, %v", name, to, err)
		}
	}
	s.wantPage("another address", s.get(ask(forConsole("redirect_uri", callback))))
	// A token for a server is not valid for the console.
	_, access, _ := s.tokens()
	if _, _, err := s.issued().Operator(t.Context(), access); storage.CodeOf(err) != storage.Unauthenticated {
		t.Errorf("with a token for a server: %v", err)
	}
	key, record, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "robot", Servers: []string{"*"}, Role: storage.RoleOperator})
	commontest.OK(t, err)
	s.refusedWith(t, url.Values{"grant_type": {"client_credentials"}, "client_id": {record.ID}, "client_secret": {key}, "resource": {at + "/console/"}}, "invalid_target")
	without := newSite(t, nil)
	commontest.EqualIn(t, "without roles", http.StatusBadRequest, without.get(ask(forConsole())).StatusCode)
}

func TestTheRoleOfAUserEndsWithItsGrantAndWithTheRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withRoles(t)
		access, _ := s.entersConsole("ada", "sre")
		holder := s.issued()
		role := func(v *resourceserver.Issued) (storage.Role, storage.Code) {
			_, role, err := v.Operator(t.Context(), access)
			return role, storage.CodeOf(err)
		}
		if r, code := role(holder); r != storage.RoleOperator || code != "" {
			t.Fatal(r, code)
		}
		roles := s.config.Roles
		s.config.Roles = map[string]resourceserver.Rule{"operator": {Groups: []string{"admins"}}, "viewer": {Groups: []string{"sre"}}}
		if r, code := role(s.issued()); r != storage.RoleViewer || code != "" {
			t.Errorf("after a change of the rules: %s %s", r, code)
		}
		s.config.Roles = map[string]resourceserver.Rule{"operator": {Groups: []string{"admins"}}}
		if _, code := role(s.issued()); code != storage.Forbidden {
			t.Errorf("without a rule that fits: %s", code)
		}
		s.config.Roles = roles
		all, err := s.store.Grants().List(t.Context(), "", "", 10)
		if err != nil || len(all) != 1 || all[0].Client != resourceserver.ConsoleClient {
			t.Fatalf("%+v, %v", all, err)
		}
		_, err = authserver.Revoke(t.Context(), s.store, all[0].ID)
		commontest.OK(t, err)
		time.Sleep(31 * time.Second) // of the synctest clock
		if _, code := role(holder); code != storage.Unauthenticated {
			t.Errorf("after the grant was revoked: %s", code)
		}
	})
}
