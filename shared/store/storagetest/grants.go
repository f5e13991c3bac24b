package storagetest

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// aGrant returns a grant with every field filled.
func aGrant(id string) storage.Grant {
	return storage.Grant{
		ID: id, Rev: 1, Tenant: "acme", Principal: "corp:<é>", Issuer: "https://login.example", Server: "files", Scopes: []string{"mcp", "files:write"},
		Client: "https://client.example/é.json", Name: "Client <é>", Host: "client.example", Props: []byte(`{"plan":"é"}`), Claims: []byte(`{"groups":["é"]}`),
		Current: []byte("\x00\xff current"), Previous: []byte("\x00 previous"), Before: []byte("\xfe before"), Salt: []byte("\xff salt"),
		Created: past(), Rotated: now(), Revoked: now(), Expires: future(),
	}
}

func grantPromises() []promise {
	return rows[storage.Grant]{
		full:   aGrant,
		kind:   storage.GrantKind(),
		change: func(g *storage.Grant) { g.Scopes = []string{"mcp"} },
		spoil: func(g *storage.Grant) {
			g.Current[0], g.Before[0], g.Salt[0], g.Scopes[0], g.Claims[2] = 'z', 'z', 'z', "z", 'z'
		},
		beside: func(t *testing.T, k *kit, id string) {
			noError(t, "CreateKey", k.Keys().Create(t.Context(), aKey(id)))
			noError(t, "Create", k.Create(t.Context(), plain(storage.ID(id), "acme")))
		},
		of: storage.Store.Grants,
	}.promises()
}
