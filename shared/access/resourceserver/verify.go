package resourceserver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// skew is the tolerated difference between the clocks of the issuer and of this machine.
const skew = time.Minute

type verifier struct {
	keys       *keySet
	issuer     string
	algorithms []string
	types      []string // accepted values of typ in the header
	parser     *jwt.Parser
	validator  *jwt.Validator
}

func newVerifier(s Settings, keys *keySet) verifier {
	return verifier{
		keys: keys, issuer: s.Issuer, algorithms: s.Algorithms, types: []string{"jwt", "at+jwt"},
		parser:    jwt.NewParser(jwt.WithValidMethods(s.Algorithms), jwt.WithoutClaimsValidation(), jwt.WithStrictDecoding()),
		validator: jwt.NewValidator(jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(skew)),
	}
}

// verify returns the claims of a valid JWT, whatever its audience.
//
// Errors: Unauthenticated; Unavailable if the issuer does not give its keys.
func (v verifier) verify(ctx context.Context, token string) (map[string]any, error) {
	h, err := v.header(token)
	if err != nil {
		return nil, err
	}
	// Refuse a token of another issuer before any key is looked up.
	claims := jwt.MapClaims{}
	if _, _, err := v.parser.ParseUnverified(token, claims); err != nil {
		return nil, badToken("it is not a JWT")
	}
	if issuer, _ := claims["iss"].(string); issuer != v.issuer {
		return nil, badToken("it is from another issuer")
	}
	if err := v.judge(claims); err != nil {
		return nil, err
	}
	found, err := v.keys.find(ctx, h.algorithm, h.key)
	if err != nil {
		return nil, err
	}
	set := jwt.VerificationKeySet{}
	for _, k := range found {
		set.Keys = append(set.Keys, k.public)
	}
	verified := jwt.MapClaims{}
	if _, err := v.parser.ParseWithClaims(token, verified, func(*jwt.Token) (any, error) { return set, nil }); err != nil {
		return nil, badToken("its signature is wrong")
	}
	return verified, nil
}

type head struct{ algorithm, key string }

// header reads the header of a JWT (RFC 7515 §4), before any other use of the token. It
// refuses a header that brings its own key, names a URL for a key, or has critical
// extensions. Its type must be one of v.types; it may be missing if JWT is one of them.
func (v verifier) header(token string) (head, error) {
	first, rest, _ := strings.Cut(token, ".")
	if strings.Count(rest, ".") != 1 {
		return head{}, badToken("it is not a signed JWT")
	}
	raw, err := base64.RawURLEncoding.DecodeString(first)
	var h map[string]any
	if err != nil || json.Unmarshal(raw, &h) != nil {
		return head{}, badToken("it is not a JWT")
	}
	for _, name := range []string{"crit", "jwk", "jku", "x5u", "enc", "zip", "b64"} {
		if _, there := h[name]; there {
			return head{}, badToken("its header has " + name)
		}
	}
	algorithm, _ := h["alg"].(string)
	if !slices.Contains(v.algorithms, algorithm) {
		return head{}, badToken("its algorithm is not supported")
	}
	if typ, there := h["typ"]; there || !slices.Contains(v.types, "jwt") {
		name, _ := typ.(string)
		if !slices.Contains(v.types, strings.TrimPrefix(strings.ToLower(name), "application/")) {
			return head{}, badToken("it is another kind of token")
		}
	}
	kid, there := h["kid"]
	id, ok := kid.(string)
	if there && (!ok || id == "") {
		return head{}, badToken("its header names no key (kid)")
	}
	return head{algorithm, id}, nil
}

// judge checks the claims that do not depend on the server: the times, and that the
// token is a bearer access token.
func (v verifier) judge(claims map[string]any) error {
	if err := v.validator.Validate(jwt.MapClaims(claims)); err != nil {
		return badToken("it has expired, or is not valid yet")
	}
	// Only ID tokens, logout tokens and tokens that are bound to a key have these claims.
	for _, name := range []string{"nonce", "at_hash", "c_hash", "events", "cnf"} {
		if _, there := claims[name]; there {
			return badToken("it is not an access token that is sent as Bearer: it has " + name)
		}
	}
	// Keycloak and Cognito name the kind of a token in these claims.
	typ, there := claims["typ"]
	if there && typ != "Bearer" {
		return badToken("it is not an access token")
	}
	if use, there := claims["token_use"]; there && use != "access" {
		return badToken("it is not an access token")
	}
	return nil
}

// expiry returns the end of a token's validity, skew included.
func expiry(claims map[string]any) time.Time {
	exp, _ := claims["exp"].(float64)
	return time.Unix(int64(max(0, min(exp, 1<<40))), 0).Add(skew)
}

// unix reads the Unix seconds in a Credential that Verify has made.
func unix(text string) (time.Time, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(n, 0), err == nil
}

// Identity returns the identity that claims of the provider describe.
//
// Errors: Unauthenticated; Forbidden: the claims give no tenant, or those for native servers (see
// Settings.Claims) are too large. The latter name their caller, as [storage.NameRefused] does.
func (s Settings) Identity(claims map[string]any) (storage.Identity, error) {
	named := s.named(claims)
	switch {
	case named.Principal == "":
		return storage.Identity{}, badToken("it does not name its user")
	case named.Tenant == "":
		return storage.Identity{}, storage.NameRefused(storage.Errorf(storage.Forbidden, "this server does not know your organization; ask its operator to add it"), named)
	}
	who := named
	who.Scopes, who.Scoped = scopes(claims), true
	told := map[string]any{}
	for _, name := range s.Claims {
		if v, ok := claims[name]; ok {
			told[name] = v
		}
	}
	if all := scopes(claims); len(all) > 0 {
		told["scope"] = strings.Join(all, " ")
	}
	for _, name := range []string{"cid", "azp", "client_id"} {
		if id, _ := claims[name].(string); id != "" {
			told["client_id"] = id
		}
	}
	var err error
	if who.Props, err = json.Marshal(told); err != nil {
		return storage.Identity{}, badToken("its claims cannot be read")
	}
	if len(who.Props) > maxClaims {
		err := storage.Errorf(storage.Forbidden, "the claims of the token that the server would get have %d bytes, more than %d; ask the operator of this server to pass on fewer claims, or to leave out groups that do not matter", len(who.Props), maxClaims)
		return storage.Identity{}, storage.NameRefused(err, named)
	}
	return who, nil
}

// named returns the principal and the tenant that claims name; each is "" if they name none.
func (s Settings) named(claims map[string]any) (who storage.Identity) {
	if subject, _ := claims[s.Principal].(string); subject != "" {
		who.Principal = principal(s.Name, subject)
	}
	if s.TenantClaim == "" {
		who.Tenant = s.Tenant
	} else if value, _ := claims[s.TenantClaim].(string); value != "" {
		who.Tenant = s.Tenants[value]
	}
	return who
}

// Names reports whether a sign-in may still give this tenant and a principal of this issuer.
func (s Settings) Names(tenant, principal string) bool {
	known := s.TenantClaim == "" && tenant == s.Tenant || slices.Contains(slices.Collect(maps.Values(s.Tenants)), tenant)
	return known && strings.HasPrefix(principal, s.Name+":")
}
