package auth

import (
	"context"
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Tokens says who a caller is by what an identity provider has issued. Package oauth has
// one.
type Tokens interface {
	// Verify says for whom a token speaks, and that they may use a server. Errors are
	// those of [Keys.Authenticate].
	Verify(ctx context.Context, token, server string) (session.Identity, error)
	// Confirm says whether somebody who was verified earlier, with this
	// [session.Identity].Credential, may still use a server. Errors are those of Verify.
	Confirm(ctx context.Context, credential, server string) error
}

// Either takes API keys and tokens. What a request sends decides: a key begins with dm_,
// which no token does.
type Either struct {
	keys   *Keys
	tokens Tokens
}

// NewEither takes keys and tokens.
func NewEither(keys *Keys, tokens Tokens) *Either { return &Either{keys, tokens} }

// Authenticate is [Keys.Authenticate] for a key, and verifies any other token.
func (e *Either) Authenticate(r *http.Request, server string) (session.Identity, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) == 0 {
		return session.Identity{}, session.Errorf(session.Unauthenticated, "the request is not authenticated; sign in, or send an API key as Authorization: Bearer KEY")
	}
	token, err := bearer(headers)
	if err != nil {
		return session.Identity{}, err
	}
	if strings.HasPrefix(token, keyPrefix) {
		return e.keys.verify(r.Context(), token, server)
	}
	return e.tokens.Verify(r.Context(), token, server)
}

// Confirm is [Keys.Confirm] for what a key gave, and asks about any other credential
// where it comes from.
func (e *Either) Confirm(ctx context.Context, credential, server string) error {
	if isID(credential) {
		return e.keys.Confirm(ctx, credential, server)
	}
	return e.tokens.Confirm(ctx, credential, server)
}
