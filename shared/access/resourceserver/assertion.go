package resourceserver

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
)

// Assertions verifies the assertions of one company's identity provider: identity assertion
// authorization grants (ID-JAG). With such an assertion, a client that the provider knows gets a
// token without asking the user.
type Assertions struct {
	Settings // with the issuer, and the name with which the principals of its users begin
	verifier verifier
}

// NewAssertions makes an Assertions for one of the settings' enterprise issuers. The argument s
// is a result of [Settings.Complete]; client and log may be nil. NewAssertions makes no request.
func NewAssertions(s Settings, e Enterprise, client *http.Client, log *slog.Logger) *Assertions {
	switch u, err := url.Parse(e.Issuer); {
	case e.Name != "":
		s.Name = e.Name
	case e.Issuer != s.Issuer && err == nil:
		s.Name = strings.ToLower(u.Hostname())
	}
	s.Issuer, s.JWKS = e.Issuer, e.JWKS
	v := newVerifier(s, &keySet{issuer: s.Issuer, pinned: s.JWKS, client: cmp.Or(client, newClient()), log: cmp.Or(log, slog.New(slog.DiscardHandler))})
	v.types = []string{"oauth-id-jag+jwt"}
	return &Assertions{s, v}
}

// Verify returns the claims of an assertion. It checks the signature, the times and the
// type. The caller checks for whom and for what the assertion was issued.
//
// Errors: Unauthenticated; Unavailable.
func (a *Assertions) Verify(ctx context.Context, assertion string) (map[string]any, error) {
	if len(assertion) > maxToken {
		return nil, badToken("it is too long")
	}
	return a.verifier.verify(ctx, assertion)
}
