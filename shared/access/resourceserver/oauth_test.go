package resourceserver_test

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestTokenSaysWhoItsHolderIs(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		exp := time.Now().Add(10 * time.Minute)
		want := storage.Identity{
			Tenant: "acme", Principal: "corp:ada", Credential: fmt.Sprintf("idp:%d", exp.Add(time.Minute).Unix()),
			Props:  []byte(`{"client_id":"app","email":"ada@example.com","groups":["eng"],"scope":"mcp other"}`),
			Scopes: []string{"mcp", "other"}, Scoped: true,
		}
		c := claims(map[string]any{"email": "ada@example.com", "groups": []string{"eng"}, "secret": "x", "scope": "mcp other"})
		s := i.server(t, func(s *resourceserver.Settings) {
			s.Name, s.Tenant, s.Claims = "corp", "acme", []string{"email", "groups", "absent"}
		})
		for name, token := range map[string]string{
			"RS256": signed(t, c, nil),
			"PS256": signedBy(t, jwt.SigningMethodPS256, signers().rsa, "rsa", c, nil),
			"ES256": signedBy(t, jwt.SigningMethodES256, signers().ec, "ec", c, nil),
			"EdDSA": signedBy(t, jwt.SigningMethodEdDSA, signers().ed, "ed", c, nil),
			"typ":   signed(t, c, map[string]any{"typ": "at+jwt"}),
			"kid":   signed(t, c, map[string]any{"kid": nil, "typ": nil}),
		} {
			got, err := verify(s, token)
			commontest.CheckIn(t, name, err)
			commontest.SameIn(t, name, want, got)
		}
	})
}

// The audience of a token is one server.
func TestTokenForAnotherServerIsRefused(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.server(t, func(s *resourceserver.Settings) {
			s.Audiences = map[string][]string{"one": {"api://one"}, "two": {"api://two"}}
		})
		for _, test := range []struct {
			audience any
			taken    bool
		}{
			{publicURL + "/one/mcp", true},
			{publicURL + "/one/mcp/", true},
			{publicURL + "/one/sse", true},
			{"HTTPS://MCP.Example.COM/one/mcp", true},
			{[]string{"account", publicURL + "/one/mcp"}, true},
			{"api://one", true},
			{publicURL + "/two/mcp", false},
			{"api://two", false},
			{publicURL, false},
			{publicURL + "/one", false},
			{publicURL + "/ONE/mcp", false},
			{publicURL + "/one/mcp?a", false},
			{publicURL + "/two/../one/mcp", false},
			{publicURL + ":443/one/mcp", false},
			{"http://mcp.example.com/one/mcp", false},
			{"https://mcp.example.com.evil.example/one/mcp", false},
			{"https://mcp.example.com@evil.example/one/mcp", false},
			{"", false},
			{[]any{12, map[string]any{}}, false},
			{nil, false},
		} {
			_, err := verify(s, signed(t, claims(map[string]any{"aud": test.audience}), nil))
			if test.taken != (err == nil) || err != nil && (storage.CodeOf(err) != storage.Unauthenticated || storage.RefusedOf(err).Principal != "login.example:ada") {
				t.Errorf("%v: %v", test.audience, err)
			}
		}
	})
}

func TestIssuerIsComparedByteForByte(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.server(t, nil)
		for _, iss := range []any{issuerURL + "/", strings.ToUpper(issuerURL), "https://login.example/realms/two", "login.example", "", nil, []string{issuerURL}} {
			refused(t, fmt.Sprint(iss), storage.Unauthenticated, s, signed(t, claims(map[string]any{"iss": iss}), nil))
		}
		commontest.EqualIn(t, "fetches for tokens of others", 0, i.times("/keys"))
	})
}

// The metadata of another issuer is not used, even if it stands at the right URL.
func TestKeysAreThoseOfTheIssuerThatIsSet(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		for _, metadata := range []map[string]any{
			{"issuer": issuerURL + "/", "jwks_uri": "https://login.example/keys"},
			{"issuer": "https://evil.example", "jwks_uri": "https://login.example/keys"},
			{"issuer": issuerURL, "jwks_uri": "http://login.example/keys"},
			{"issuer": issuerURL},
		} {
			i.set(func() { i.metadata = metadata })
			refused(t, fmt.Sprint(metadata), storage.Unavailable, i.server(t, nil), signed(t, claims(nil), nil))
			commontest.EqualIn(t, fmt.Sprint(metadata)+": fetches of keys", 0, i.times("/keys"))
		}
		i.set(func() { i.metadata = nil })
		taken(t, "with jwks_uri set", i.server(t, func(s *resourceserver.Settings) { s.JWKS = "https://login.example/keys" }), signed(t, claims(nil), nil))
	})
}

func TestTimesOfATokenHoldWithinAMinute(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		now := time.Now().Unix()
		for name, test := range map[string]struct {
			change map[string]any
			taken  bool
		}{
			"expired 59 s ago": {map[string]any{"exp": now - 59}, true},
			"expired 61 s ago": {map[string]any{"exp": now - 61}, false},
			"without an end":   {map[string]any{"exp": nil}, false},
			"in 59 s":          {map[string]any{"nbf": now + 59}, true},
			"in 61 s":          {map[string]any{"nbf": now + 61}, false},
			"issued in 59 s":   {map[string]any{"iat": now + 59}, true},
			"issued in 61 s":   {map[string]any{"iat": now + 61}, false},
		} {
			_, err := verify(i.server(t, nil), signed(t, claims(test.change), nil))
			if test.taken != (err == nil) || err != nil && storage.CodeOf(err) != storage.Unauthenticated {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestRememberedTokenEndsInTime(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s, token := i.server(t, nil), signed(t, claims(map[string]any{"exp": time.Now().Unix() + 10}), nil)
		who, err := verify(s, token)
		commontest.OK(t, err)
		time.Sleep(69 * time.Second)
		taken(t, "a good token", s, token)
		commontest.Check(t, confirm(s, who.Credential, "one"))
		time.Sleep(time.Second)
		refused(t, "the token", storage.Unauthenticated, s, token)
		wantCode(t, "its connection", confirm(s, who.Credential, "one"), storage.Unauthenticated)
	})
}

// A token's header never decides which key verifies it or how.
func TestForgedTokensAreRefusedWithoutAFetch(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		der, err := x509.MarshalPKIXPublicKey(signers().rsa.Public())
		commontest.OK(t, err)
		good := claims(nil)
		plain := signed(t, good, nil)
		parts := strings.Split(plain, ".")
		head := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
		own := public("rsa", signers().other)
		tokens := map[string]string{
			"alg none":                  signedBy(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "rsa", good, nil),
			"alg missing":               head(`{"kid":"rsa"}`) + "." + parts[1] + "." + parts[2],
			"HS256 with the public key": signedBy(t, jwt.SigningMethodHS256, der, "rsa", good, nil),
			"an algorithm not listed":   signedBy(t, jwt.SigningMethodRS512, signers().rsa, "rsa", good, nil),
			"jwk":                       signedBy(t, jwt.SigningMethodRS256, signers().other, "rsa", good, map[string]any{"jwk": own}),
			"jku":                       signedBy(t, jwt.SigningMethodRS256, signers().other, "rsa", good, map[string]any{"jku": "https://evil.example/keys"}),
			"crit":                      signed(t, good, map[string]any{"crit": []string{"exp"}}),
			"a kid that is no text":     signed(t, good, map[string]any{"kid": 7}),
			"JWE with iterations":       head(`{"alg":"PBES2-HS256+A128KW","enc":"A256GCM","p2c":2147483647}`) + ".a.b.c.d",
			"too long":                  signed(t, claims(map[string]any{"more": strings.Repeat("x", 8<<10)}), nil),
			"four parts":                plain + ".a",
			"JSON serialization":        `{"payload":"` + parts[1] + `","signatures":[]}`,
			"dots":                      "..",
			"payload is no object":      parts[0] + "." + head(`[]`) + "." + parts[2],
		}
		s := i.server(t, nil)
		for name, token := range tokens {
			refused(t, name, storage.Unauthenticated, s, token)
		}
		commontest.EqualIn(t, "requests to the issuer", 0, len(i.asked))
	})
}

// Each token has one fault in its signature. Some are signed with a key of the issuer.
func TestSignatureIsThatOfAKeyOfItsKind(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		good := claims(nil)
		parts := strings.Split(signed(t, good, nil), ".")
		other := strings.Split(signed(t, claims(map[string]any{"sub": "eve"}), nil), ".")
		s := i.server(t, nil)
		for name, token := range map[string]string{
			"another's key":          signedBy(t, jwt.SigningMethodRS256, signers().other, "rsa", good, nil),
			"another's claims":       parts[0] + "." + other[1] + "." + parts[2],
			"no signature":           parts[0] + "." + parts[1] + ".",
			"RS256 with the EC kid":  signedBy(t, jwt.SigningMethodRS256, signers().rsa, "ec", good, nil),
			"ES256 with the RSA kid": signedBy(t, jwt.SigningMethodES256, signers().ec, "rsa", good, nil),
			"EdDSA with the EC kid":  signedBy(t, jwt.SigningMethodEdDSA, signers().ed, "ec", good, nil),
		} {
			refused(t, name, storage.Unauthenticated, s, token)
		}
		// A key that names one algorithm is good for no other.
		i.set(func() { i.keys[0]["alg"] = "RS256" })
		s = i.server(t, nil)
		taken(t, "a good token", s, signed(t, good, nil))
		refused(t, "PS256 with a key for RS256", storage.Unauthenticated, s, signedBy(t, jwt.SigningMethodPS256, signers().rsa, "rsa", good, nil))
	})
}

// The issuer has signed each of these tokens, and the audience is right.
func TestTokensOfOtherKindsAreRefused(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.server(t, nil)
		for name, token := range map[string]string{
			"ID token, by its audience":    signed(t, claims(map[string]any{"aud": "app"}), nil),
			"ID token, by its nonce":       signed(t, claims(map[string]any{"nonce": "n"}), nil),
			"refresh token of Keycloak":    signed(t, claims(map[string]any{"typ": "Refresh"}), nil),
			"ID token of Cognito":          signed(t, claims(map[string]any{"token_use": "id"}), nil),
			"ID-JAG":                       signed(t, claims(nil), map[string]any{"typ": "oauth-id-jag+jwt"}),
			"logout token, by its type":    signed(t, claims(nil), map[string]any{"typ": "logout+jwt"}),
			"token that is bound to a key": signed(t, claims(map[string]any{"cnf": map[string]any{"jkt": "x"}}), nil),
			"a type that is no text":       signed(t, claims(nil), map[string]any{"typ": 3}),
		} {
			refused(t, name, storage.Unauthenticated, s, token)
		}
		taken(t, "of Keycloak and Cognito", s, signed(t, claims(map[string]any{"typ": "Bearer", "token_use": "access"}), nil))
	})
}

func TestClaimsThatArePassedOnAreBounded(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.server(t, func(s *resourceserver.Settings) { s.Claims = []string{"groups"} })
		who, err := verify(s, signed(t, claims(map[string]any{"groups": []string{strings.Repeat("x", 1900)}}), nil))
		if err != nil || len(who.Props) > 2<<10 {
			t.Errorf("%d bytes, %v", len(who.Props), err)
		}
		_, err = verify(s, signed(t, claims(map[string]any{"groups": []string{strings.Repeat("x", 2100)}}), nil))
		wantCode(t, "more", err, storage.Forbidden)
		commontest.EqualIn(t, "the challenge, though a login would not help", "", s.Challenge("/one/mcp", true, err))
	})
}

func TestPrincipalsOfTwoIssuersAreTwo(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		seen := map[string]bool{}
		for _, name := range []string{"", "corp", "guests"} {
			who, err := verify(i.server(t, func(s *resourceserver.Settings) { s.Name = name }), signed(t, claims(nil), nil))
			if err != nil || seen[who.Principal] || who.Tenant != "default" {
				t.Errorf("%+v, %v", who, err)
			}
			seen[who.Principal] = true
		}
		if !seen["login.example:ada"] {
			t.Errorf("%v", seen)
		}
		// Two subjects are never one principal, however they are written.
		s := i.server(t, nil)
		subjects := []string{"a", "A", "a b", "ä", strings.Repeat("x", 200), strings.Repeat("x", 201), "#a", "a\n", "a:b"}
		principals := map[string]string{}
		for _, sub := range subjects {
			who, err := verify(s, signed(t, claims(map[string]any{"sub": sub}), nil))
			if other, twice := principals[who.Principal]; err != nil || twice || len(who.Principal) > 128 || strings.ContainsAny(who.Principal, " \nä") {
				t.Errorf("%q is %q, as %q: %v", sub, who.Principal, other, err)
			}
			principals[who.Principal] = sub
			// A subject that looks like the hash of another one does not become that principal.
			named, err := verify(s, signed(t, claims(map[string]any{"sub": strings.TrimPrefix(who.Principal, "login.example:")}), nil))
			if hashed := strings.HasPrefix(who.Principal, "login.example:#"); err != nil || hashed && named.Principal == who.Principal {
				t.Errorf("%q is %q as well: %v", who.Principal, named.Principal, err)
			}
		}
		for _, sub := range []any{"", nil, 12, []string{"ada"}} {
			refused(t, fmt.Sprint(sub), storage.Unauthenticated, s, signed(t, claims(map[string]any{"sub": sub}), nil))
		}
	})
}

// The table of the settings decides the tenant, never the token.
func TestTenantIsFromTheTableOnly(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.server(t, func(s *resourceserver.Settings) {
			s.TenantClaim, s.Tenants = "org", map[string]string{"o-1": "acme", "o-2": "umbrella"}
		})
		for org, tenant := range map[any]string{"o-1": "acme", "o-2": "umbrella", "acme": "", "o-3": "", "": "", nil: "", 5: ""} {
			who, err := verify(s, signed(t, claims(map[string]any{"org": org}), nil))
			if who.Tenant != tenant || (tenant == "") != (storage.CodeOf(err) == storage.Forbidden) || err != nil && storage.RefusedOf(err).Principal != "login.example:ada" {
				t.Errorf("%v: %q, %v", org, who.Tenant, err)
			}
		}
	})
}

// The rules of access.allow apply to one server, or with "*" to all others.
func TestOnlyThoseWhoAreAllowedUseAServer(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.server(t, func(s *resourceserver.Settings) {
			s.Allow = map[string]resourceserver.Rule{
				"one": {Groups: []string{"eng"}, Emails: []string{"*@Example.com", "bob@other.example"}, Claims: map[string][]string{"dept": {"ops"}}},
				"*":   {Everyone: true},
			}
		})
		for name, test := range map[string]struct {
			change  map[string]any
			allowed bool
		}{
			"nothing known":             {nil, false},
			"a group":                   {map[string]any{"groups": []string{"all", "eng"}}, true},
			"a group as a text":         {map[string]any{"groups": "eng"}, true},
			"another group":             {map[string]any{"groups": []string{"engine", "Eng"}}, false},
			"a domain":                  {map[string]any{"email": "ada@example.COM", "email_verified": true}, true},
			"a domain, not verified":    {map[string]any{"email": "ada@example.com", "email_verified": false}, false},
			"another domain":            {map[string]any{"email": "ada@example.com.evil.example", "email_verified": true}, false},
			"a domain below":            {map[string]any{"email": "ada@evil.example.com", "email_verified": true}, false},
			"a name in quotes":          {map[string]any{"email": `"ada@evil.example"@example.com`, "email_verified": true}, false},
			"a letter that looks alike": {map[string]any{"email": "ada@ex\u0430mple.com", "email_verified": true}, false},
			"an address":                {map[string]any{"email": "Bob@other.example", "email_verified": true}, true},
			"addresses in a list":       {map[string]any{"email": []string{"ada@example.com"}, "email_verified": true}, false},
			"a claim":                   {map[string]any{"dept": "ops"}, true},
			"the claim, another value":  {map[string]any{"dept": "oops"}, false},
		} {
			token := signed(t, claims(test.change), nil)
			_, err := verify(s, token)
			if test.allowed != (err == nil) || err != nil && (storage.CodeOf(err) != storage.Forbidden || storage.RefusedOf(err).Principal != "login.example:ada") {
				t.Errorf("%s: %v", name, err)
			}
			commontest.EqualIn(t, name+": the challenge, though a login would not help", "", s.Challenge("/one/mcp", true, err))
		}
		both := []string{publicURL + "/one/mcp", publicURL + "/two/mcp"}
		_, err := s.VerifyGroup(t.Context(), signed(t, claims(map[string]any{"aud": both}), nil), "", []string{"two"})
		commontest.CheckIn(t, "who is not named comes under *", err)
		s = i.server(t, func(s *resourceserver.Settings) { s.Allow = map[string]resourceserver.Rule{"two": {Everyone: true}} })
		refused(t, "a server that is not named", storage.Forbidden, s, signed(t, claims(nil), nil))
		s = i.server(t, func(s *resourceserver.Settings) {
			s.Allow = map[string]resourceserver.Rule{"one": {Everyone: true, Tools: map[string]resourceserver.Rule{"write_*": {Groups: []string{"admins"}}}}}
		})
		for group, writes := range map[string]storage.Code{"admins": "", "eng": storage.Forbidden} {
			who, err := verify(s, signed(t, claims(map[string]any{"groups": group}), nil))
			commontest.CheckIn(t, group, err)
			wantCode(t, group+" write", s.Permit(who, "one", []string{"write_a"}), writes)
			wantCode(t, group+" read", s.Permit(who, "one", []string{"read"}), "")
		}
	})
}

// The challenge is complete.
func TestChallengesAreThoseOfTheSpecification(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		plain := i.server(t, nil)
		two := "mcp  files:read"
		none := ""
		const at = `resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/one/mcp"`
		token := func(scope any) error {
			_, err := verify(i.server(t, func(s *resourceserver.Settings) { s.Scope = &two }), signed(t, claims(map[string]any{"scope": scope}), nil))
			return err
		}
		for name, test := range map[string]struct {
			server *resourceserver.ResourceServer
			tried  bool
			err    error
			want   string
		}{
			"no token":       {plain, false, storage.Unauthenticated, "Bearer " + at + `, scope="mcp"`},
			"a bad token":    {plain, true, storage.Unauthenticated, `Bearer error="invalid_token", ` + at + `, scope="mcp"`},
			"two tokens":     {plain, true, storage.Invalid, `Bearer error="invalid_request", ` + at + `, scope="mcp"`},
			"not allowed":    {plain, true, storage.Forbidden, ""},
			"trouble":        {plain, true, storage.Unavailable, ""},
			"a scope lacks":  {i.server(t, func(s *resourceserver.Settings) { s.Scope = &two }), true, token("mcp"), `Bearer error="insufficient_scope", ` + at + `, scope="mcp files:read"`},
			"no scopes here": {i.server(t, func(s *resourceserver.Settings) { s.Scope = &none }), false, storage.Unauthenticated, "Bearer " + at},
		} {
			commontest.EqualIn(t, name, test.want, test.server.Challenge("/one/mcp", test.tried, test.err))
		}
		commontest.EqualIn(t, "whose token lacks a scope", "login.example:ada", storage.RefusedOf(token("mcp")).Principal)
		for _, scope := range []any{"files:read mcp", []string{"mcp", "files:read"}} {
			commontest.CheckIn(t, fmt.Sprintf("%v", scope), token(scope))
		}
		taken(t, "scp", plain, signed(t, claims(map[string]any{"scope": nil, "scp": []string{"mcp"}}), nil))
		taken(t, "no scope is wanted", i.server(t, func(s *resourceserver.Settings) { s.Scope = &none }), signed(t, claims(map[string]any{"scope": nil}), nil))
	})
}

// A client asks for the scopes that the challenge names. So the challenge also names the
// optional scopes of the token. Otherwise a caller of several servers would lose one
// server's scope for another's. The challenge leaves out scopes that no server has.
func TestAStepUpKeepsTheScopesOfTheToken(t *testing.T) {
	r := newIssuer().server(t, func(s *resourceserver.Settings) {
		s.Scopes = map[string]map[string][]string{"one": {"one:write": {"write_*"}, "one:all": {"*"}}, "two": {"two:write": {"write_*"}}}
	})
	for _, tt := range []struct {
		has  []string
		want string
	}{
		{[]string{"mcp"}, "mcp two:write"},
		{[]string{"openid", "one:write", "mcp", "one:all", "one:write"}, "mcp two:write one:all one:write"},
		{[]string{"mcp", "two:write"}, ""},
	} {
		err := r.Permit(storage.Identity{Scoped: true, Scopes: tt.has}, "two", []string{"write_a"})
		want := ""
		if tt.want != "" {
			want = `Bearer error="insufficient_scope", resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/mcp", scope="` + tt.want + `"`
		}
		commontest.EqualIn(t, fmt.Sprint(tt.has), want, r.Challenge("/mcp", true, err))
	}
}

func TestTokenIsInNoErrorAndNoLogLine(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		var log bytes.Buffer
		s := newServer(t, resourceserver.Config{
			Settings: resourceserver.Settings{PublicURL: publicURL, Issuer: issuerURL}, Servers: []string{"one"},
			Client: &http.Client{Transport: i}, Log: slog.New(slog.NewJSONHandler(&log, nil)),
		})
		i.set(func() { i.answer = down(500) })
		for _, token := range []string{signed(t, claims(nil), nil), signed(t, claims(map[string]any{"sub": "SECRET", "iss": "SECRET", "aud": "SECRET"}), map[string]any{"kid": "SECRET"}), "SECRET", "SECRET.SECRET.SECRET"} {
			_, err := verify(s, token)
			if err == nil || strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), token[len(token)-6:]) || strings.Contains(s.Challenge("/one/mcp", true, err), "SECRET") {
				t.Errorf("%v", err)
			}
		}
		if text := log.String(); !strings.Contains(text, "keys of the identity provider") || strings.Contains(text, "SECRET") || strings.Contains(text, "eyJ") {
			t.Error(text)
		}
	})
}

// A server may trim or fold names, so the scopes of a tool are needed for names like its own.
func TestScopesOfAToolAreNeededForNamesLikeIt(t *testing.T) {
	r := newIssuer().server(t, func(s *resourceserver.Settings) {
		s.Scopes = map[string]map[string][]string{"one": {"one:write": {"write_*", "Purge"}}}
	})
	for tool, want := range map[string]bool{"read": true, "write_a": false, " write_a": false, "Write-a": false, "purge": false, "purge\x00": false, "purges": true} {
		for _, batch := range [][]string{{tool}, {"read", tool}} {
			commontest.EqualIn(t, fmt.Sprint(batch), want, r.Permit(storage.Identity{Scoped: true, Scopes: []string{"mcp"}}, "one", batch) == nil)
		}
	}
}
