package credentials

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Exchange says what a token of the identity provider is exchanged for (RFC 8693). The
// token is the one that the provider gave us when the user signed in; it is never one
// that a client has sent. Audience, Resource, or the Scopes of the Provider must be set.
type Exchange struct {
	Audience string `json:"audience"` // the name of the third party at the identity provider
	Resource string `json:"resource"` // the URL of the third party
}

// SignedIn is the name under which a principal's own token of the identity provider is kept. No
// third party can have this name.
const SignedIn = "@sign-in"

// grantExchange and accessTokenType are names of RFC 8693.
const (
	grantExchange   = "urn:ietf:params:oauth:grant-type:token-exchange"
	accessTokenType = "urn:ietf:params:oauth:token-type:access_token" //nolint:gosec // the name of a type
)

const (
	// refusedFor is how long the package waits after a refusal before it asks the identity
	// provider again.
	refusedFor = time.Minute
	// unsaidLife is how long a token is used if the identity provider does not say when it
	// ends.
	unsaidLife = 5 * time.Minute
	// signedInFor is how long the store keeps a principal's own token that is not used.
	signedInFor = 30 * 24 * time.Hour
)

// Exchanges reports whether a token for one of the providers comes in exchange for the user's token
// of the identity provider. If so, [Vault.KeepSignIn] must get that token when the user signs in.
func (v *Vault) Exchanges(providers []string) bool {
	return slices.ContainsFunc(providers, func(name string) bool { return v.config.Providers[name].Exchange != nil })
}

// KeepSignIn keeps the tokens that the identity provider has given to a principal who
// signed in. The access token ends at until, which is zero if that is not known. The
// refresh token is "" if there is none.
//
// Errors: Invalid for tokens that are too long, Unavailable.
func (v *Vault) KeepSignIn(ctx context.Context, tenant, principal, access, refresh string, until time.Time) error {
	if until.IsZero() {
		until = time.Now().Add(unsaidLife)
	}
	return v.put(ctx, place{tenant, principal, SignedIn}, token{access, refresh, until})
}

// exchanged returns a token that the identity provider gives in exchange for the principal's own
// token.
func (v *Vault) exchanged(ctx context.Context, at place, p Provider) (*storage.Secret, Missing, error) {
	if !v.config.SignsIn {
		return nil, Missing{Provider: at.provider, why: "it is given in exchange for the sign-in of a user, and nobody signs in here; ask who runs this endpoint to run it with --access oauth"}, nil
	}
	var own Missing // set if the principal's own token is missing
	s, missing, err := v.good(ctx, at, func(ctx context.Context, row storage.UpstreamToken, h *held) (asking, error) {
		if h != nil && row.Until.IsZero() {
			return nil, nil // an operator has set the token, so keep it
		}
		subject, lacks, err := v.good(ctx, place{at.tenant, at.principal, SignedIn}, v.refreshing(p))
		if err != nil || subject == nil {
			own = lacks
			return nil, err
		}
		return func(ctx context.Context) (token, error) {
			t, err := v.exchange(ctx, p, subject.Value)
			if storage.CodeOf(err) == storage.Unauthenticated {
				// The user has to sign in again, unless a new sign-in has already
				// replaced the token.
				if dropped := v.drop(ctx, place{at.tenant, at.principal, SignedIn}, lacks.rev); dropped != nil {
					return t, dropped
				}
			}
			return t, err
		}, nil
	})
	if s == nil && own.rev > missing.rev {
		missing.rev = own.rev
	}
	return s, missing, err
}

// exchange asks the identity provider for a token.
//
// Errors: Unauthenticated if it does not take the user's own token, Forbidden if it does
// not give a token to this user, Unavailable otherwise.
func (v *Vault) exchange(ctx context.Context, p Provider, subject string) (token, error) {
	form := url.Values{"grant_type": {grantExchange}, "subject_token": {subject}, "subject_token_type": {accessTokenType}, "requested_token_type": {accessTokenType}}
	for key, value := range map[string]string{"audience": p.Exchange.Audience, "resource": p.Exchange.Resource, "scope": strings.Join(p.Scopes, " ")} {
		if value != "" {
			form.Set(key, value)
		}
	}
	t, err := v.ask(ctx, p, form)
	if refused, ok := errors.AsType[*denied](err); ok && !refused.ofSubject() {
		return token{}, storage.Errorf(storage.Forbidden, "the identity provider does not give it to you: it says %s; ask who runs this endpoint", cmp.Or(refused.code, "nothing of the reason")).Because(refused)
	}
	if t.Refresh = ""; t.Until.IsZero() {
		t.Until = time.Now().Add(unsaidLife)
	}
	return t, err
}

// ofSubject reports whether an exchange may have been refused because of the user's own token, so
// that a new sign-in may help. RFC 8693 (§2.2.2) has invalid_request for such a token.
func (d *denied) ofSubject() bool {
	return slices.Contains([]string{"invalid_request", "invalid_grant", "invalid_token", "login_required", "interaction_required"}, d.code)
}

// drop removes the secret of a row, unless the row has another revision than rev. Errors:
// Unavailable.
func (v *Vault) drop(ctx context.Context, at place, rev int64) error {
	row, err := v.config.Store.UpstreamTokens().Get(ctx, at.id())
	if err != nil || row.Rev != rev {
		return unlessTaken(err)
	}
	row.Sealed, row.Until = "", time.Time{}
	return unlessTaken(v.save(ctx, &row))
}
