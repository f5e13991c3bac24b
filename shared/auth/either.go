package auth

import (
	"context"
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Tokens authenticates callers by the tokens of an identity provider. Package oauth
// implements it.
type Tokens interface {
	// Verify returns the identity that a token stands for, and checks that it may use a
	// server. Errors are as for [Keys.Authenticate].
	Verify(ctx context.Context, token, server string) (session.Identity, error)
	// Confirm checks that a caller that was verified earlier, with this
	// [session.Identity].Credential, may still use a server. Errors are as for Verify.
	Confirm(ctx context.Context, credential, server string) error
}

// Either takes API keys and tokens. It tells them apart by their beginning: a key begins
// with dm_, and no token does.
type Either struct {
	keys   *Keys
	tokens Tokens
}

// NewEither returns an Either.
func NewEither(keys *Keys, tokens Tokens) *Either { return &Either{keys, tokens} }

// Authenticate uses [Keys.Authenticate] for a key and Tokens.Verify for any other token.
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
		return e.keys.Verify(r.Context(), token, server)
	}
	return e.tokens.Verify(r.Context(), token, server)
}

// Confirm uses [Keys.Confirm] for the credential of a key and Tokens.Confirm for any other.
func (e *Either) Confirm(ctx context.Context, credential, server string) error {
	if isID(credential) {
		return e.keys.Confirm(ctx, credential, server)
	}
	return e.tokens.Confirm(ctx, credential, server)
}
