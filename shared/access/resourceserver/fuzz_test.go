package resourceserver_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
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

// The claims of a valid token may hold any text, because users choose some of them.
func FuzzClaims(f *testing.F) {
	f.Add(`{"aud":"https://mcp.example.com/one/mcp","sub":"ada","scope":"mcp","exp":99999999999}`)
	f.Add(`{"aud":["https://mcp.example.com/one/mcp"],"sub":"ada","scp":["mcp"],"groups":{"a":1},"email":5,"exp":1e400}`)
	i := newIssuer()
	f.Fuzz(func(t *testing.T, text string) {
		var all map[string]any
		if json.Unmarshal([]byte(text), &all) != nil || all == nil {
			return
		}
		i.set(func() { i.active["opaque"] = all })
		s := i.server(t, func(s *resourceserver.Settings) {
			s.Introspection = &resourceserver.Introspection{Endpoint: "https://login.example/introspect"}
			s.Claims = []string{"groups", "email"}
			s.Allow = map[string]resourceserver.Rule{"one": {Groups: []string{"eng"}, Emails: []string{"*@a.example"}, Everyone: true}}
		})
		who, err := s.Verify(t.Context(), "opaque", "one")
		switch code := storage.CodeOf(err); {
		case err == nil:
			if !strings.HasPrefix(who.Principal, "login.example:") || len(who.Principal) > 128 || who.Tenant != "default" || len(who.Props) > storage.MaxProps || !json.Valid(who.Props) {
				t.Errorf("%+v", who)
			}
		case code != storage.Unauthenticated && code != storage.Forbidden && code != storage.Unavailable:
			t.Errorf("%v", err)
		}
	})
}
