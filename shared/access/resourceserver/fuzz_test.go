package resourceserver_test

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Whatever text is sent as a token, it admits no caller without a signature and
// causes no panic. Every refusal says that the token is bad.
func FuzzToken(f *testing.F) {
	signers()
	for _, seed := range []string{
		"", "a.b.c", "..", "eyJhbGciOiJub25lIn0.e30.", "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSJ9.e30.AAAA",
		"eyJhbGciOiJFUzI1NiIsImtpZCI6ImVjIn0.eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUvcmVhbG1zL29uZSIsImV4cCI6OTk5OTk5OTk5OTl9.AAAA",
		"eyJhbGciOiJFZERTQSIsImtpZCI6ImVkIn0.eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUvcmVhbG1zL29uZSIsImV4cCI6OTk5OTk5OTk5OTl9.",
	} {
		f.Add(seed)
	}
	i := newIssuer()
	f.Fuzz(func(t *testing.T, token string) {
		who, err := i.server(t, nil).Verify(t.Context(), token, "one")
		if err == nil || who.Principal != "" || storage.CodeOf(err) != storage.Unauthenticated {
			t.Errorf("%+v, %v", who, err)
		}
	})
}
