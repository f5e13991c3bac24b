package sessiontest

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
)

// aToken returns an upstream token with every field filled.
func aToken(id string) session.UpstreamToken {
	return session.UpstreamToken{
		ID: id, Rev: 1, Tenant: "acme", Principal: "corp:<é>", Provider: "github", Sealed: "c2VhbGVk<é>",
		Until: future(), Busy: now(), Created: past(), Changed: now(), Expires: future(),
	}
}

func upstreamTokenPromises() []promise {
	return rows[session.UpstreamToken]{
		full:   aToken,
		kind:   session.UpstreamTokenKind(),
		change: func(v *session.UpstreamToken) { v.Sealed = "" },
		beside: func(t *testing.T, k *kit, id string) {
			noError(t, "CreateKey", k.Keys().Create(t.Context(), aKey(id)))
			noError(t, "Create", k.Create(t.Context(), plain(session.ID(id), "acme")))
		},
		of: session.Store.UpstreamTokens,
	}.promises()
}
