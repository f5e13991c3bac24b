package endpoints_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// listed returns the names in an answer of the registry.
func listed(t *testing.T, a reply) (names []string) {
	t.Helper()
	var page struct {
		Servers []struct{ Server struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(a.body), &page); err != nil {
		t.Errorf("%v: %s", err, a.body)
	}
	for _, s := range page.Servers {
		names = append(names, s.Server.Name)
	}
	return names
}

func TestRegistryHasTheServersThatItsCallerMayUse(t *testing.T) {
	s := newSite(t)
	key := func(servers ...string) string {
		text, _, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "ada", Servers: servers})
		commontest.OK(t, err)
		return text
	}
	for name, tt := range map[string]struct {
		credential string
		want       []string
	}{
		"a key for all": {key(storage.EveryServer), []string{"local/closed", "local/counter", "local/files", "local/who"}},
		"a key for one": {key("who"), []string{"local/who"}},
		"a token":       {s.token("bob", "who"), []string{"local/who"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.do("GET", "/registry/v0.1/servers", "", bearer(tt.credential))
			got := slices.DeleteFunc(listed(t, a), func(name string) bool { return name == "local/booking" || name == "local/job" })
			if a.status != http.StatusOK || !slices.Equal(got, tt.want) {
				t.Errorf("%s: got %d %q, want %q", name, a.status, got, tt.want)
			}
			status := map[bool]int{true: http.StatusOK, false: http.StatusNotFound}
			for _, server := range []string{"who", "files", "gone", "none"} {
				a := s.do("GET", "/registry/v0.1/servers/local%2F"+server+"/versions/latest", "", bearer(tt.credential))
				want := status[slices.Contains(tt.want, "local/"+server)]
				commontest.EqualIn(t, fmt.Sprintf("%s: %s: %s", name, server, a.body), want, a.status)
				card := s.do("GET", "/"+server+"/mcp/server-card", "", bearer(tt.credential))
				if media := card.header.Get("Content-Type"); card.status != want || want == http.StatusOK && media != "application/mcp-server-card+json" {
					t.Errorf("%s: the card of %s: got %d, %s: %s", name, server, card.status, media, card.body)
				}
			}
			catalog := s.do("GET", "/.well-known/ai-catalog.json", "", bearer(tt.credential))
			commontest.EqualIn(t, "the catalog has who", slices.Contains(tt.want, "local/who"), strings.Contains(catalog.body, s.url+"/who/mcp/server-card"))
		})
	}
}

func TestRegistryRefusesAsTheOfficialOneDoes(t *testing.T) {
	s := newSite(t)
	for header, want := range map[string]int{"Authorization: Bearer dmk_wrong": http.StatusUnauthorized, "Origin: https://elsewhere.example": http.StatusForbidden} {
		for _, path := range []string{"/registry/v0.1/servers", "/.well-known/ai-catalog.json", "/who/mcp/server-card"} {
			a := s.do("GET", path, "", header)
			var refused struct{ Error string }
			if err := json.Unmarshal([]byte(a.body), &refused); err != nil || a.status != want || refused.Error == "" {
				t.Errorf("%s with %s: got %d %s", path, header, a.status, a.body)
			}
			commontest.EqualIn(t, fmt.Sprintf("%s with %s is challenged", path, header), want == http.StatusUnauthorized, a.header.Get("WWW-Authenticate") == "Bearer")
		}
	}
}
