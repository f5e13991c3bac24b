package authserver

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func (b *Server) token(w http.ResponseWriter, r *http.Request) error {
	f, err := form(r)
	if err != nil {
		return err
	}
	var answer tokens
	var begun storage.Grant
	switch f.Get("grant_type") {
	case grantCode:
		answer, begun, err = b.redeem(r, f)
	case grantRefresh:
		answer, err = b.refresh(r, f)
	case grantClient:
		answer, err = b.exchangeKey(r, f)
	case grantJWT:
		answer, err = b.exchangeAssertion(r, f)
	case "":
		err = bad("invalid_request", "the request has no grant_type; send one that the metadata lists")
	default:
		err = bad("unsupported_grant_type", "this grant_type is not supported; send one that the metadata lists")
	}
	if err != nil {
		return err
	}
	w.Header().Set("Pragma", "no-cache")
	writeJSON(w, http.StatusOK, answer)
	if begun.ID != "" {
		// Flush sends the tokens before keep runs. A gateway that buffers answers passes them on only when
		// the handler returns.
		_ = http.NewResponseController(w).Flush()
		b.keep(r.Context(), begun)
	}
	if kind := f.Get("grant_type"); kind == grantCode || kind == grantRefresh {
		if err := b.documents.keep(r.Context(), f.Get("client_id")); err != nil {
			b.log.WarnContext(r.Context(), "a client's document was not kept; it is fetched again", "error", err)
		}
	}
	return nil
}

// badGrant is the answer for every code and refresh token that is wrong, so that unknown
// and wrong ones look alike.
func badGrant() *refusal {
	return bad("invalid_grant", "this code or token is unknown, expired, or was used before; sign in again")
}

// redeem exchanges a code for tokens. A wrong request changes nothing. A code that comes a second
// time ends the grant that was made from it. The caller must call keep for the grant after it has
// sent the tokens.
func (b *Server) redeem(r *http.Request, f url.Values) (tokens, storage.Grant, error) {
	who, c, err := b.openCode(r, f)
	if err != nil {
		return tokens{}, storage.Grant{}, err
	}
	g := storage.Grant{
		Tenant: c.Tenant, Principal: c.Principal, Issuer: c.Issuer, Server: c.Request.Server, Scopes: c.Request.Scopes, Client: who.id, Name: c.Request.Name,
		Host: hostOf(c.Request.Redirect), Props: c.Props, Claims: c.Claims,
	}
	refresh, g, err := b.begin(r.Context(), g, c.Handle)
	if errors.Is(err, storage.Conflict) {
		if _, err := Revoke(r.Context(), b.store, grantID(c.Handle)); err != nil {
			return tokens{}, storage.Grant{}, err
		}
		b.log.WarnContext(r.Context(), "a code was used twice; its grant is revoked", "grant", grantID(c.Handle))
		return tokens{}, storage.Grant{}, badGrant()
	}
	if err != nil {
		return tokens{}, storage.Grant{}, err
	}
	return b.issue(g, b.toolRules(g), g.Scopes, refresh), g, nil
}

func (b *Server) openCode(r *http.Request, f url.Values) (who client, c code, err error) {
	if who, err = b.authenticate(r, f); err != nil {
		return who, c, err
	}
	server, err := b.resource(f)
	if err != nil {
		return who, c, err
	}
	switch {
	case !b.seals[forCode].OpenJSON(f.Get("code"), &c), c.Request.Client != who.id, c.Request.Redirect != f.Get("redirect_uri"), !proves(f.Get("code_verifier"), c.Request.Challenge):
		return who, c, badGrant()
	case server != "" && server != c.Request.Server:
		return who, c, bad("invalid_target", "the code is for another resource; send the resource of the sign-in")
	case !b.has(c.Request.Server), time.Now().Unix() >= c.Until:
		return who, c, badGrant()
	}
	return who, c, nil
}

// proves reports whether a verifier belongs to a challenge (RFC 7636 §4.6).
func proves(verifier, challenge string) bool {
	if len(verifier) < 43 || len(verifier) > 128 {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum(verifier))), []byte(challenge)) == 1
}

// refresh exchanges a refresh token for the next one and a new access token.
func (b *Server) refresh(r *http.Request, f url.Values) (tokens, error) {
	who, err := b.authenticate(r, f)
	if err != nil {
		return tokens{}, err
	}
	server, err := b.resource(f)
	if err != nil {
		return tokens{}, err
	}
	token := f.Get("refresh_token")
	handle, ok := handleOf(token)
	if !ok {
		return tokens{}, badGrant()
	}
	scopes := strings.Fields(f.Get("scope")) // those that the server does not have any more are dropped
	g, next, err := b.rotate(r.Context(), handle, token, func(g storage.Grant) error {
		switch {
		case g.Client != who.id:
			return badGrant()
		case !g.Revoked.IsZero():
			return errRevoked
		case !b.has(g.Server) || !b.admits(g): // only a client that has had a token of the grant learns it
			return bad("invalid_grant", "the operator has changed the servers, or who may use them, since this sign-in; sign in again")
		case server != "" && server != g.Server:
			return bad("invalid_target", "the token is for another resource; send the resource of the sign-in")
		case slices.ContainsFunc(b.settings.Known(g.Server, scopes), func(s string) bool { return slices.Contains(scopes, s) && !slices.Contains(g.Scopes, s) }):
			return bad("invalid_scope", "a refresh cannot add scopes; sign in again to get more")
		}
		return nil
	})
	switch {
	case errors.Is(err, storage.NotFound):
		return tokens{}, badGrant()
	case errors.Is(err, errLate):
		b.log.WarnContext(r.Context(), "a refresh token came after its successor was used; it is refused, and its grant goes on", "grant", g.ID)
		return tokens{}, badGrant()
	case errors.Is(err, errReused), errors.Is(err, errRevoked):
		// Revoke again: an earlier Revoke may have ended the grant, and failed before it ended the access
		// tokens.
		if _, err := Revoke(r.Context(), b.store, g.ID); err != nil {
			return tokens{}, err
		}
		if errors.Is(err, errReused) {
			b.log.WarnContext(r.Context(), "a refresh token was used twice; its grant is revoked", "grant", g.ID)
		}
		return tokens{}, badGrant()
	case err != nil:
		return tokens{}, err
	}
	granted := g.Scopes
	if len(scopes) > 0 {
		granted = slices.DeleteFunc(b.settings.Known(g.Server, scopes), func(s string) bool { return !slices.Contains(g.Scopes, s) })
	}
	return b.issue(g, b.toolRules(g), granted, next), nil
}

// revoke ends the grant of a token (RFC 7009). The answer does not say whether there was
// a grant.
func (b *Server) revoke(w http.ResponseWriter, r *http.Request) error {
	f, err := form(r)
	if err != nil {
		return err
	}
	token := f.Get("token")
	if token == "" {
		return bad("invalid_request", "the request has no token; send the one to revoke")
	}
	c, err := credentialsOf(r, f)
	if err != nil {
		return err
	}
	id := ""
	if handle, ok := handleOf(token); ok {
		id = grantID(handle)
	} else if t, ok := resourceserver.OpenToken(b.seals[forAccess], token); ok {
		id = t.Grant
	}
	if id != "" {
		err = b.end(r, id, c)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// end revokes a grant for the client that has it. A client without a secret need not name itself,
// because it has a token of the grant.
func (b *Server) end(r *http.Request, id string, c credentials) error {
	g, err := b.store.Grants().Get(r.Context(), id)
	if errors.Is(err, storage.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if c.id != "" && c.id != g.Client {
		return nil
	}
	known, err := b.client(r.Context(), g.Client)
	if err == nil && known.secret && !known.check(c.secret) {
		return unknownClient()
	}
	_, err = Revoke(r.Context(), b.store, id)
	return storage.IgnoreNotFound(err)
}
