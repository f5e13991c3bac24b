package apikey

import (
	"context"
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Tokens authenticates callers by the tokens of an identity provider. Package resourceserver
// implements it.
type Tokens interface {
	// VerifyGroup returns the identity of a token at each of the servers that its user may use. The
	// token must be for the group or, if group is "", for one or several of the servers. Errors are as
	// for [Keys.Members].
	VerifyGroup(ctx context.Context, token, group string, servers []string) (map[string]storage.Identity, error)
	// ConfirmMembers returns those of the servers that a caller may still use. The caller was verified
	// earlier, with this [storage.Identity].Credential. Errors are as for VerifyGroup.
	ConfirmMembers(ctx context.Context, credential, group string, servers []string) ([]string, error)
}

// Either takes API keys and tokens. A key begins with dm_, and no token does.
type Either struct {
	keys   *Keys
	tokens Tokens
}

// NewEither returns an Either that leaves API keys to the first argument, and all other tokens to
// the second.
func NewEither(keys *Keys, tokens Tokens) *Either { return &Either{keys, tokens} }

// Members uses [Keys.Members] for a key and Tokens.VerifyGroup for any other token.
func (e *Either) Members(r *http.Request, group string, servers []string) (map[string]storage.Identity, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) == 0 {
		return nil, storage.Errorf(storage.Unauthenticated, "the request is not authenticated; sign in, or send an API key as Authorization: Bearer KEY")
	}
	token, err := bearer(headers)
	if err != nil {
		return nil, err
	}
	if IsKey(token) {
		return e.keys.members(r.Context(), token, servers)
	}
	return e.tokens.VerifyGroup(r.Context(), token, group, servers)
}

// ConfirmMembers uses [Keys.ConfirmMembers] for the credential of a key and
// Tokens.ConfirmMembers for any other.
func (e *Either) ConfirmMembers(ctx context.Context, credential, group string, servers []string) ([]string, error) {
	if isID(credential) {
		return e.keys.ConfirmMembers(ctx, credential, group, servers)
	}
	return e.tokens.ConfirmMembers(ctx, credential, group, servers)
}
