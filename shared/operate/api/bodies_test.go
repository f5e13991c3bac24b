package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/bodies"
)

// Auditors and operators read what is kept for their role, of their tenant and servers. Nobody
// else asks for bodies at all.
func TestBodiesAreAskedForByRole(t *testing.T) {
	var asked []bodies.Query
	p := newPlace(t, func(o *api.Options) {
		o.Bodies = func(_ context.Context, q bodies.Query) ([]bodies.Body, error) {
			asked = append(asked, q)
			return []bodies.Body{{Server: "two", Arguments: []byte(`{"a":1}`)}, {Server: "two"}}, nil
		}
	})
	var err error
	if p.keys["auditor"], _, err = apikey.Create(t.Context(), p.store, apikey.Grant{Tenant: "acme", Principal: "audrey", Servers: []string{"*"}, Role: storage.RoleAuditor}); err != nil {
		t.Fatal(err)
	}
	for as, c := range map[string]struct {
		status int
		role   storage.Role
		of     string
	}{
		"auditor": {http.StatusOK, storage.RoleAuditor, ""}, "operator": {http.StatusOK, storage.RoleOperator, ""}, "narrow": {http.StatusOK, storage.RoleOperator, "two"},
		"viewer": {http.StatusForbidden, "", ""}, "user": {http.StatusForbidden, "", ""}, "": {http.StatusUnauthorized, "", ""},
	} {
		asked = nil
		status, text := p.ask(as, "GET", "/api/v1/bodies?server=two&tool=echo&limit=7", "", nil)
		commontest.EqualIn(t, as+" gets "+text, c.status, status)
		if status != http.StatusOK {
			if len(asked) > 0 {
				t.Errorf("%q has asked %+v", as, asked)
			}
			continue
		}
		if q := asked[0]; q.Role != c.role || q.Tenant != "acme" || strings.Join(q.Servers, " ") != c.of || q.Server != "two" || q.Tool != "echo" || q.Limit != 7 {
			t.Errorf("%q has asked %+v", as, q)
		}
		if lines := strings.Split(strings.TrimSpace(text), "\n"); len(lines) != 2 || !strings.Contains(lines[0], `"arguments":{"a":1}`) {
			t.Errorf("%q reads %s", as, text)
		}
	}
}

// An operator of a tenant can neither make an auditor's key nor replace one to have it.
func TestOnlyTheOwnerMakesAuditors(t *testing.T) {
	p := newPlace(t)
	body := `{"principal":"audrey","servers":["one"],"role":"auditor","tenant":"acme"}`
	for as, want := range map[string]int{"operator": http.StatusForbidden, "narrow": http.StatusForbidden, "viewer": http.StatusForbidden, "owner": http.StatusForbidden} {
		p.gets(want, as, "POST keys", body)
	}
	var made api.Key
	if status, text := p.ask("owner", "POST", "/api/v1/keys", strings.Replace(body, `,"tenant":"acme"`, "", 1), &made); status != http.StatusOK || made.Role != "auditor" {
		t.Errorf("the owner makes one: %d %s", status, text)
	}
	_, record, err := apikey.Create(t.Context(), p.store, apikey.Grant{Tenant: "acme", Principal: "audrey", Servers: []string{"one"}, Role: storage.RoleAuditor})
	commontest.OK(t, err)
	p.gets(http.StatusForbidden, "operator", "POST keys/"+record.ID+"/rotate", "")
	p.gets(http.StatusOK, "operator", "DELETE keys/"+record.ID, "")
}
