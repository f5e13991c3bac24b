package sessiontest

import (
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// aToken returns an upstream token with every field filled.
func aToken(id string) session.UpstreamToken {
	return session.UpstreamToken{
		ID: id, Rev: 1, Tenant: "acme", Principal: "corp:<é>", Provider: "github", Sealed: "c2VhbGVk<é>",
		Until: future(), Busy: now(), Created: past(), Changed: now(), Expires: future(),
	}
}

func upstreamTokenPromises() []promise {
	return []promise{
		{"an upstream token nobody has created is NotFound", func(t *testing.T, k *kit) {
			noError(t, "CreateUpstreamToken", k.CreateUpstreamToken(t.Context(), aToken("g1")))
			noError(t, "CreateKey", k.CreateKey(t.Context(), aKey("g2")))
			for _, id := range []string{"g2", "g", "G1", ""} {
				_, err := k.UpstreamToken(t.Context(), id)
				wantCode(t, "UpstreamToken "+id, err, session.NotFound)
				wantCode(t, "SaveUpstreamToken "+id, k.SaveUpstreamToken(t.Context(), session.UpstreamToken{ID: id, Rev: 1}), session.NotFound)
			}
		}},
		{"an upstream token is kept with every field and Rev 1", func(t *testing.T, k *kit) {
			want := aToken("g1")
			filled(t, want)
			given := want
			given.Rev = 17
			noError(t, "CreateUpstreamToken", k.CreateUpstreamToken(t.Context(), given))
			got, err := k.other(t).UpstreamToken(t.Context(), "g1")
			noError(t, "UpstreamToken", err)
			same(t, "UpstreamToken", got, want)
		}},
		{"of many that create the same upstream token one wins", func(t *testing.T, k *kit) {
			race(t, k, 8, func(s session.Store, _ int) error { return s.CreateUpstreamToken(t.Context(), aToken("g1")) })
			wantCode(t, "CreateUpstreamToken again", k.CreateUpstreamToken(t.Context(), aToken("g1")), session.Conflict)
		}},
		{"of many that save the same revision of an upstream token one wins", func(t *testing.T, k *kit) {
			noError(t, "CreateUpstreamToken", k.CreateUpstreamToken(t.Context(), aToken("g1")))
			race(t, k, 8, func(s session.Store, _ int) error { return s.SaveUpstreamToken(t.Context(), aToken("g1")) })
			changed := aToken("g1")
			changed.Rev, changed.Sealed, changed.Tenant = 2, "", "umbrella"
			noError(t, "SaveUpstreamToken", k.SaveUpstreamToken(t.Context(), changed))
			got, err := k.other(t).UpstreamToken(t.Context(), "g1")
			noError(t, "UpstreamToken", err)
			changed.Rev = 3
			same(t, "UpstreamToken", got, changed)
		}},
		{"an expired upstream token is not there, and its id is free", func(t *testing.T, k *kit) {
			old := aToken("g1")
			old.Expires = past()
			noError(t, "CreateUpstreamToken", k.CreateUpstreamToken(t.Context(), old))
			_, err := k.UpstreamToken(t.Context(), "g1")
			wantCode(t, "UpstreamToken", err, session.NotFound)
			wantCode(t, "SaveUpstreamToken", k.SaveUpstreamToken(t.Context(), old), session.NotFound)
			same(t, "ListUpstreamTokens", upstreamTokenIDs(t, k, "", "", 10), []string(nil))
			noError(t, "CreateUpstreamToken again", k.CreateUpstreamToken(t.Context(), aToken("g1")))
			same(t, "ListUpstreamTokens of what is there now", upstreamTokenIDs(t, k, "", "", 10), []string{"g1"})
		}},
		{"upstream tokens are listed in order, by tenant, without keys and sessions", func(t *testing.T, k *kit) {
			var all []string
			for i := range 120 {
				all = append(all, fmt.Sprintf("g%03d", i))
			}
			for i := range all { // not in the order of the ids
				noError(t, "CreateUpstreamToken", k.CreateUpstreamToken(t.Context(), aToken(all[(i*7)%len(all)])))
			}
			other := aToken("g2")
			other.Tenant = "umbrella"
			noError(t, "CreateUpstreamToken", k.CreateUpstreamToken(t.Context(), other))
			noError(t, "CreateKey", k.CreateKey(t.Context(), aKey("g3")))
			noError(t, "Create", k.Create(t.Context(), plain("g4", "acme")))
			same(t, "all of acme", upstreamTokenIDs(t, k, "acme", "", 1000), all)
			same(t, "two of acme", upstreamTokenIDs(t, k, "acme", "g001", 2), all[2:4])
			same(t, "the last of all", upstreamTokenIDs(t, k, "", "g118", 10), []string{"g119", "g2"})
			same(t, "none", upstreamTokenIDs(t, k, "", "", 0), []string(nil))
			list, err := k.ListUpstreamTokens(t.Context(), "umbrella", "", 10)
			noError(t, "ListUpstreamTokens", err)
			same(t, "a listed token", list, []session.UpstreamToken{other})
			same(t, "keys", keyIDs(t, k, "", "", 10), []string{"g3"})
		}},
	}
}

func upstreamTokenIDs(t *testing.T, k *kit, tenant, after string, limit int) []string {
	t.Helper()
	list, err := k.ListUpstreamTokens(t.Context(), tenant, after, limit)
	noError(t, "ListUpstreamTokens", err)
	var ids []string
	for _, g := range list {
		ids = append(ids, g.ID)
	}
	return ids
}
