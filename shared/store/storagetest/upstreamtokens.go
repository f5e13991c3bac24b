package storagetest

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// aToken returns an upstream token with every field filled.
func aToken(id string) storage.UpstreamToken {
	return storage.UpstreamToken{
		ID: id, Rev: 1, Tenant: "acme", Principal: "corp:<é>", Provider: "github", Sealed: "c2VhbGVk<é>",
		Until: future(), Busy: now(), Created: past(), Changed: now(), Expires: future(),
	}
}

func upstreamTokenPromises() []promise {
	return rows[storage.UpstreamToken]{
		full:   aToken,
		kind:   storage.UpstreamTokenKind(),
		change: func(v *storage.UpstreamToken) { v.Sealed = "" },
		beside: func(t *testing.T, k *kit, id string) {
			noError(t, "CreateKey", k.Keys().Create(t.Context(), aKey(id)))
			noError(t, "Create", k.Create(t.Context(), plain(storage.ID(id), "acme")))
		},
		of: storage.Store.UpstreamTokens,
	}.promises()
}
