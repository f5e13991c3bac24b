package authserver_test

import (
	"context"
	"net/http"
	"net/url"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
)

// fixed is a sign-in that gives everybody the same claims, and shows no page.
type fixed map[string]any

func (fixed) Origin() string { return "" }

func (fixed) URL(_ context.Context, a authserver.Attempt, redirect string) (string, error) {
	return redirect + "?" + url.Values{"state": {a.State}, "code": {"x"}}.Encode(), nil
}

func (f fixed) User(context.Context, authserver.Attempt, string, url.Values) (authserver.User, error) {
	return authserver.User{Claims: f}, nil
}

func anys(texts []string) []any {
	all := make([]any, len(texts))
	for i, t := range texts {
		all[i] = t
	}
	return all
}

// The sign-in that takes any name is for the user of this machine. Whoever reaches the
// endpoint from elsewhere gets neither its page nor a name.
func TestTheSignInWithAnyNameIsForThisMachineOnly(t *testing.T) {
	s := newSite(t, nil)
	s.peer = "192.0.2.7:40000"
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		commontest.EqualIn(t, method+" from another machine", http.StatusBadRequest, s.do(method, at+"/login?state=x", url.Values{"name": {"boss"}, "groups": {"admins"}}, nil).StatusCode)
	}
	s.peer = "[::1]:40000"
	commontest.EqualIn(t, "from this machine", http.StatusOK, s.do(http.MethodGet, at+"/login?state=x", nil, nil).StatusCode)
}

// The users of two issuers on one host would be the same principals, unless each issuer has
// a name of its own.
func TestIssuersWithOneNameAreRefused(t *testing.T) {
	const host = "https://kc.example.com/realms/"
	for name, test := range map[string]struct {
		enterprise []resourceserver.Enterprise
		wrong      bool
	}{
		"two realms":                {[]resourceserver.Enterprise{{Issuer: host + "partners"}, {Issuer: host + "contractors"}}, true},
		"the sign-in's host":        {[]resourceserver.Enterprise{{Issuer: "https://login.example.com/partners"}}, true},
		"the sign-in's name":        {[]resourceserver.Enterprise{{Issuer: host + "partners", Name: "login.example.com"}}, true},
		"names of their own":        {[]resourceserver.Enterprise{{Issuer: host + "partners", Name: "partners"}, {Issuer: host + "contractors", Name: "contractors"}}, false},
		"one that has none":         {[]resourceserver.Enterprise{{Issuer: host + "partners", Name: "partners"}, {Issuer: host + "contractors"}}, false},
		"the issuer of the sign-in": {[]resourceserver.Enterprise{{Issuer: "https://login.example.com/staff"}}, false},
	} {
		s := newSite(t, func(c *authserver.Config) {
			c.PublicURL, c.Issuer, c.Name, c.ClientID, c.Login = "https://mcp.example.com", "https://login.example.com/staff", "", "us", fixed{"sub": "ada"}
		})
		s.config.Enterprise = test.enterprise
		if _, err := authserver.New(s.config); (err != nil) != test.wrong {
			t.Errorf("%s: %v", name, err)
		}
	}
}
