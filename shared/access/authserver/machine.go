package authserver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
)

// exchangeKey exchanges an API key for an access token (client_credentials). The client's
// id is the key's, and its secret the whole key. The token is good for an hour, but ends
// within 30 seconds after the key ends.
func (b *Server) exchangeKey(r *http.Request, f url.Values) (tokens, error) {
	c, err := credentialsOf(r, f)
	if err != nil {
		return tokens{}, err
	}
	server, err := b.target(f)
	if err != nil {
		return tokens{}, err
	}
	who, err := holder(r.Context(), b.keys, c.secret, b.settings.Members(server))
	switch why := storage.CodeOf(err); {
	case why == storage.Unauthenticated || why == storage.Invalid:
		return tokens{}, unknownClient()
	case why == storage.Forbidden:
		return tokens{}, bad("invalid_target", "this API key is not for this server; use one that names it")
	case err != nil:
		return tokens{}, err
	}
	if c.id != who.Credential {
		return tokens{}, unknownClient()
	}
	scopes := b.settings.Known(server, strings.Fields(f.Get("scope")))
	t := resourceserver.Token{
		Key: who.Credential, Tenant: who.Tenant, Principal: who.Principal, Server: server, Scopes: scopes,
		Expires: time.Now().Add(resourceserver.AccessLife).Unix(), Props: withClient(who.Props, c.id, scopes),
	}
	return tokens{Access: resourceserver.SealToken(b.seals[forAccess], t), Type: "Bearer", Seconds: int64(resourceserver.AccessLife.Seconds()), Scope: strings.Join(scopes, " ")}, nil
}

// holder returns the identity of a key that may use at least one of the servers.
func holder(ctx context.Context, keys *apikey.Keys, key string, servers []string) (who storage.Identity, err error) {
	for _, server := range servers {
		if who, err = keys.Verify(ctx, key, server); storage.CodeOf(err) != storage.Forbidden {
			break
		}
	}
	return who, err
}

// newCompanies returns the issuers whose assertions clients can exchange for tokens.
func newCompanies(s resourceserver.Settings, client *http.Client, log *slog.Logger) (map[string]*resourceserver.Assertions, error) {
	all := map[string]*resourceserver.Assertions{}
	issuers := map[string]string{s.Name: s.Issuer} // issuers, by the name with which the principals of their users begin
	for _, e := range s.Enterprise {
		if _, twice := all[e.Issuer]; twice {
			return nil, errors.New("access: enterprise: an issuer appears twice; list each issuer once")
		}
		a := resourceserver.NewAssertions(s, e, client, log)
		if other, taken := issuers[a.Name]; taken && other != e.Issuer {
			return nil, fmt.Errorf("access: enterprise: the users of %s and of %s would be the same principals, %s:SUBJECT; give one of the two a name of its own", other, e.Issuer, a.Name)
		}
		issuers[a.Name], all[e.Issuer] = e.Issuer, a
	}
	return all, nil
}

// assertionLife is how long an assertion may be good, from its time of issue.
const assertionLife = 10 * time.Minute

// assertion has the claims that an ID-JAG must have, besides those of every JWT.
type assertion struct {
	Issuer   string          `json:"iss"`
	ID       string          `json:"jti"`
	Resource string          `json:"resource"`
	Client   string          `json:"client_id"`
	Scope    string          `json:"scope"`
	Issued   float64         `json:"iat"`
	Expires  float64         `json:"exp"`
	Details  json.RawMessage `json:"authorization_details"`
}

// exchangeAssertion exchanges the assertion of a company for an access token (RFC 7523,
// ID-JAG). The grant's ID comes from the assertion, so each assertion can be used once.
// There is no refresh token: the client gets another assertion.
func (b *Server) exchangeAssertion(r *http.Request, f url.Values) (tokens, error) {
	if len(b.companies) == 0 {
		return tokens{}, bad("unsupported_grant_type", "this server accepts no assertions; its operator must name their issuers under access.enterprise")
	}
	who, err := b.authenticate(r, f)
	if err != nil {
		return tokens{}, err
	}
	a, claims, from, err := b.assertion(r, f.Get("assertion"))
	if err != nil {
		return tokens{}, err
	}
	server, known := b.settings.Server(b.servers, a.Resource)
	asked, err := b.resource(f)
	switch {
	case err != nil:
		return tokens{}, err
	case !known || asked != "" && asked != server:
		return tokens{}, bad("invalid_grant", "the assertion is for another resource; get one for the URL of this server")
	case a.Client != who.id:
		return tokens{}, bad("invalid_grant", "the assertion is for another client; get one for this client_id")
	}
	person, err := from.Identity(claims)
	if err == nil {
		err = b.settings.Admit(server, claims)
	}
	if code := storage.CodeOf(err); code == storage.Unauthenticated || code == storage.Forbidden {
		return tokens{}, bad("invalid_grant", webpage.ASCII(err.Error()))
	}
	if err != nil {
		return tokens{}, err
	}
	scopes := b.settings.Known(server, strings.Fields(a.Scope))
	now := time.Now()
	g := storage.Grant{
		ID: idText(sum("assertion " + a.Issuer + " " + a.ID))[:handleChars], Tenant: person.Tenant, Principal: person.Principal, Server: server, Scopes: scopes,
		Client: who.id, Name: who.name, Props: person.Props, Created: now, Rotated: now, Expires: now.Add(resourceserver.AccessLife + time.Minute),
	}
	if resourceserver.IsGroup(server) {
		if g.Claims, err = json.Marshal(b.settings.Relevant(g.Server, claims)); err != nil {
			return tokens{}, err
		}
		if len(g.Claims)+len(g.Props) > maxClaims {
			return tokens{}, bad("invalid_grant", "the assertion has too many of the groups that the rules of this server name")
		}
	}
	err = b.store.Grants().Create(r.Context(), g)
	if errors.Is(err, storage.Conflict) {
		return tokens{}, bad("invalid_grant", "the assertion was used before; get a new one")
	}
	if err != nil {
		return tokens{}, err
	}
	return b.issue(g, b.settings.ToolRules(server, claims), scopes, ""), nil
}

// assertion verifies an assertion, and that it is for this endpoint.
func (b *Server) assertion(r *http.Request, text string) (a assertion, claims map[string]any, from *resourceserver.Assertions, err error) {
	from, ok := b.companies[assertionIssuer(text)]
	if !ok {
		return a, nil, from, bad("invalid_grant", "this server does not accept the issuer of the assertion")
	}
	claims, err = from.Verify(r.Context(), text)
	if storage.CodeOf(err) == storage.Unauthenticated {
		return a, nil, from, bad("invalid_grant", "the assertion is invalid: check its signature, its times and its type")
	}
	if err != nil {
		return a, nil, from, err
	}
	all, err := json.Marshal(claims)
	if err != nil || json.Unmarshal(all, &a) != nil {
		return a, nil, from, bad("invalid_grant", "the claims of the assertion cannot be read")
	}
	whom, _ := claims["aud"].(string)
	if list, ok := claims["aud"].([]any); ok && len(list) == 1 {
		whom, _ = list[0].(string)
	}
	switch {
	case strings.TrimSuffix(whom, "/") != b.settings.PublicURL:
		err = bad("invalid_grant", "the assertion is for another audience; it must be the issuer of this server's metadata")
	case a.ID == "" || len(a.ID) > maxID:
		err = bad("invalid_grant", "the assertion has no jti; it needs a unique one")
	case a.Issued == 0 || a.Expires-a.Issued > assertionLife.Seconds():
		err = bad("invalid_grant", "the assertion has no iat, or is valid for too long")
	case len(a.Details) > 0:
		err = bad("invalid_grant", "authorization_details are not supported; leave them out")
	}
	return a, claims, from, err
}

// assertionIssuer returns the issuer that an assertion claims to be from, to find its
// keys. [resourceserver.Assertions.Verify] checks that claim.
func assertionIssuer(text string) string {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return ""
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if plain, err := base64.RawURLEncoding.DecodeString(parts[1]); err != nil || json.Unmarshal(plain, &claims) != nil {
		return ""
	}
	return claims.Issuer
}
