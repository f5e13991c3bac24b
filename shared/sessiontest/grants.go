package sessiontest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// aGrant returns a grant with every field filled.
func aGrant(id string) session.Grant {
	return session.Grant{
		ID: id, Rev: 1, Tenant: "acme", Principal: "corp:<é>", Server: "files", Scopes: []string{"mcp", "files:write"},
		Client: "https://client.example/é.json", Name: "Client <é>", Host: "client.example", Props: []byte(`{"plan":"é"}`), Claims: []byte(`{"groups":["é"]}`),
		Current: []byte("\x00\xff current"), Previous: []byte("\x00 previous"), Salt: []byte("\xff salt"),
		Created: past(), Rotated: now(), Revoked: now(), Expires: future(),
	}
}

func grantPromises() []promise {
	return []promise{
		{"a grant nobody has created is NotFound", func(t *testing.T, k *kit) {
			noError(t, "CreateGrant", k.CreateGrant(t.Context(), aGrant("g1")))
			noError(t, "CreateKey", k.CreateKey(t.Context(), aKey("g2")))
			for _, id := range []string{"g2", "g", "G1", ""} {
				_, err := k.Grant(t.Context(), id)
				wantCode(t, "Grant "+id, err, session.NotFound)
				wantCode(t, "SaveGrant "+id, k.SaveGrant(t.Context(), session.Grant{ID: id, Rev: 1}), session.NotFound)
			}
		}},
		{"a grant is kept with every field and Rev 1", func(t *testing.T, k *kit) {
			want := aGrant("g1")
			filled(t, want)
			given := want
			given.Rev = 17
			noError(t, "CreateGrant", k.CreateGrant(t.Context(), given))
			got, err := k.other(t).Grant(t.Context(), "g1")
			noError(t, "Grant", err)
			same(t, "Grant", got, want)
		}},
		{"of many that create the same grant one wins", func(t *testing.T, k *kit) {
			race(t, k, 8, func(s session.Store, _ int) error { return s.CreateGrant(t.Context(), aGrant("g1")) })
			wantCode(t, "CreateGrant again", k.CreateGrant(t.Context(), aGrant("g1")), session.Conflict)
		}},
		{"of many that save the same revision of a grant one wins", func(t *testing.T, k *kit) {
			noError(t, "CreateGrant", k.CreateGrant(t.Context(), aGrant("g1")))
			race(t, k, 8, func(s session.Store, _ int) error { return s.SaveGrant(t.Context(), aGrant("g1")) })
			changed := aGrant("g1")
			changed.Rev, changed.Scopes, changed.Tenant = 2, []string{"mcp"}, "umbrella"
			noError(t, "SaveGrant", k.SaveGrant(t.Context(), changed))
			got, err := k.other(t).Grant(t.Context(), "g1")
			noError(t, "Grant", err)
			changed.Rev = 3
			same(t, "Grant", got, changed)
		}},
		{"an expired grant is not there, and its id is free", func(t *testing.T, k *kit) {
			old := aGrant("g1")
			old.Expires = past()
			noError(t, "CreateGrant", k.CreateGrant(t.Context(), old))
			_, err := k.Grant(t.Context(), "g1")
			wantCode(t, "Grant", err, session.NotFound)
			wantCode(t, "SaveGrant", k.SaveGrant(t.Context(), old), session.NotFound)
			same(t, "ListGrants", grantIDs(t, k, "", "", 10), []string(nil))
			noError(t, "CreateGrant again", k.CreateGrant(t.Context(), aGrant("g1")))
			same(t, "ListGrants of what is there now", grantIDs(t, k, "", "", 10), []string{"g1"})
		}},
		{"grants are listed in order, by tenant, without keys and sessions", func(t *testing.T, k *kit) {
			var all []string
			for i := range 120 {
				all = append(all, fmt.Sprintf("g%03d", i))
			}
			for i := range all { // not in the order of the ids
				noError(t, "CreateGrant", k.CreateGrant(t.Context(), aGrant(all[(i*7)%len(all)])))
			}
			other := aGrant("g2")
			other.Tenant = "umbrella"
			noError(t, "CreateGrant", k.CreateGrant(t.Context(), other))
			noError(t, "CreateKey", k.CreateKey(t.Context(), aKey("g3")))
			noError(t, "Create", k.Create(t.Context(), plain("g4", "acme")))
			same(t, "all of acme", grantIDs(t, k, "acme", "", 1000), all)
			same(t, "two of acme", grantIDs(t, k, "acme", "g001", 2), all[2:4])
			same(t, "the last of all", grantIDs(t, k, "", "g118", 10), []string{"g119", "g2"})
			same(t, "none", grantIDs(t, k, "", "", 0), []string(nil))
			list, err := k.ListGrants(t.Context(), "umbrella", "", 10)
			noError(t, "ListGrants", err)
			same(t, "a listed grant", list, []session.Grant{other})
			same(t, "keys", keyIDs(t, k, "", "", 10), []string{"g3"})
		}},
		{"grants are copied in and out", func(t *testing.T, k *kit) {
			want := aGrant("g1") // aGrant is called once, because another grant would have later times
			g := want
			g.Current, g.Salt, g.Scopes, g.Claims = slices.Clone(g.Current), slices.Clone(g.Salt), slices.Clone(g.Scopes), slices.Clone(g.Claims)
			noError(t, "CreateGrant", k.CreateGrant(t.Context(), g))
			for range 2 {
				g.Current[0], g.Salt[0], g.Scopes[0], g.Claims[2] = 'z', 'z', "z", 'z'
				got, err := k.Grant(t.Context(), "g1")
				noError(t, "Grant", err)
				same(t, "Grant", got, want)
				g = got
			}
		}},
	}
}

func grantIDs(t *testing.T, k *kit, tenant, after string, limit int) []string {
	t.Helper()
	list, err := k.ListGrants(t.Context(), tenant, after, limit)
	noError(t, "ListGrants", err)
	var ids []string
	for _, g := range list {
		ids = append(ids, g.ID)
	}
	return ids
}
