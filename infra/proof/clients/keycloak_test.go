//go:build clients && keycloak

package clients

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/infra/proof/internal/webuser"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const (
	keycloakVersion = "26.4.7"
	keycloakSHA256  = "dd9834c023460be856f731423d86228c23b5d002194a2064642bec0cc6573eaa"
	// keycloakLimit bounds Keycloak's first start, which builds a part of it.
	keycloakLimit = 6 * time.Minute
)

// Users sign in at Keycloak through Dormouse, whose tokens are exchanged (RFC 8693), or clients bring Keycloak's own tokens. For these tokens the
// realm has what docs/sign-in.md says: a scope that adds the server's URL to the
// audience, and registration without the policy of trusted hosts.
func TestRealClientsSignInWithKeycloak(t *testing.T) {
	k := startKeycloak(t)
	for mode, host := range map[string]func(*testing.T, *keycloak) string{"provider": hostWithKeycloak, "tokens of the provider": hostWithKeycloaksTokens} {
		t.Run(mode, func(t *testing.T) {
			at := host(t, k)
			for name, prepare := range signInClients() {
				t.Run(name, func(t *testing.T) { signInWith(t, prepare(t), at, signingIn{}) })
			}
		})
	}
	t.Run("exchange", func(t *testing.T) { exchangeAtKeycloak(t, k) })
}

// exchangeAtKeycloak has a user sign in and call a stdio server, whose process gets the
// token of a third party that Keycloak gives in exchange for the user's own.
func exchangeAtKeycloak(t *testing.T, k *keycloak) {
	address := commontest.FreeAddress(t)
	issuer := k.newRealm(t, "exchange")
	client := k.dormouse(t, "exchange", address, map[string]string{"standard.token.exchange.enabled": "true", "standard.token.exchange.enableRefreshRequestedTokenType": "NO"})
	k.post(t, "/exchange/clients", map[string]any{"clientId": "crm-api", "secret": "other", "publicClient": false})
	deals := k.post(t, "/exchange/client-scopes", map[string]any{
		"name": "deals", "protocol": "openid-connect", "attributes": map[string]string{"include.in.token.scope": "true"},
		"protocolMappers": []any{map[string]any{
			"name": "crm", "protocol": "openid-connect", "protocolMapper": "oidc-audience-mapper",
			"config": map[string]string{"included.client.audience": "crm-api", "access.token.claim": "true"},
		}},
	})
	k.do(t, http.MethodPut, "/exchange/clients/"+client+"/optional-client-scopes/"+deals, nil, nil)
	server := map[string]any{
		"command": programtest.Tool(t, "node", programtest.NodeHelp), "args": []string{everything(t), "stdio"},
		"env": map[string]string{"CRM_TOKEN": "${principal:crm}"},
	}
	settings := map[string]any{
		"access": map[string]any{"issuer": issuer, "client_id": "dormouse", "client_secret": "secret"},
		"connect": map[string]any{"crm": map[string]any{
			"token": issuer + "/protocol/openid-connect/token", "client_id": "dormouse", "client_secret": "secret", "scopes": []string{"deals"}, "exchange": map[string]any{"audience": "crm-api"},
		}},
	}
	at := programtest.HostWith(t, map[string]any{"everything": server}, settings, "--listen", address, "--access", "oauth")["everything"].URL
	session, token := signedIn(t, at)
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "get-env"})
	if err != nil || res.IsError {
		t.Fatalf("%+v, %v", res, err)
	}
	var env struct {
		Token string `json:"CRM_TOKEN"`
	}
	commontest.OK(t, json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &env))
	parts := strings.Split(env.Token, ".")
	if len(parts) != 3 || env.Token == token() {
		t.Fatalf("the process acts with %q", env.Token)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	commontest.OK(t, err)
	var claims struct {
		Iss, Aud, Azp, Scope string
		Username             string `json:"preferred_username"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatalf("%v: %s", err, payload)
	}
	if claims.Iss != issuer || claims.Aud != "crm-api" || claims.Azp != "dormouse" || claims.Username != "ada" || !slices.Contains(strings.Fields(claims.Scope), "deals") {
		t.Errorf("the process acts with a token of %s", payload)
	}
}

// signedIn connects go-sdk's client, which signs in as ada, and returns its session and a
// function that returns its token.
func signedIn(t *testing.T, at string) (session *mcp.ClientSession, token func() string) {
	t.Helper()
	const done = "http://127.0.0.1:5000/done"
	user := webuser.New(webuser.Ada())
	handler, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{
		DynamicClientRegistrationConfig: &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{RedirectURIs: []string{done}, TokenEndpointAuthMethod: "none"}},
		RedirectURL:                     done,
		AuthorizationCodeFetcher: func(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			page, err := user.Visit(ctx, args.URL, done)
			if err != nil {
				return nil, err
			}
			q := page.URL.Query()
			return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
		},
	})
	commontest.OK(t, err)
	client := mcp.NewClient(&mcp.Implementation{Name: "signin", Version: "1"}, nil)
	session, err = client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: at, OAuthHandler: handler}, nil)
	commontest.OK(t, err)
	t.Cleanup(func() { _ = session.Close() })
	return session, func() string {
		source, err := handler.TokenSource(t.Context())
		commontest.OK(t, err)
		got, err := source.Token()
		commontest.OK(t, err)
		return got.AccessToken
	}
}

// dormouse registers the client of a Dormouse in a realm, and returns its id.
func (k *keycloak) dormouse(t *testing.T, realm, address string, attributes map[string]string) string {
	t.Helper()
	attributes["pkce.code.challenge.method"] = "S256"
	return k.post(t, "/"+realm+"/clients", map[string]any{
		"clientId": "dormouse", "secret": "secret", "redirectUris": []string{"http://" + address + "/callback"}, "publicClient": false, "standardFlowEnabled": true,
		"attributes": attributes,
	})
}

// hostWithKeycloak starts a Dormouse that is a client of a realm of its own.
func hostWithKeycloak(t *testing.T, k *keycloak) string {
	t.Helper()
	address := commontest.FreeAddress(t)
	issuer := k.newRealm(t, "staff")
	client := k.dormouse(t, "staff", address, map[string]string{})
	groups := k.post(t, "/staff/client-scopes", map[string]any{"name": "groups", "protocol": "openid-connect", "protocolMappers": []any{groupsMapper()}})
	k.do(t, http.MethodPut, "/staff/clients/"+client+"/default-client-scopes/"+groups, nil, nil)
	access := engines(issuer)
	access["client_id"], access["client_secret"] = "dormouse", "secret"
	return hostWithAccess(t, "oauth", address, access)
}

// groupsMapper puts the groups of a user into the claim groups.
func groupsMapper() map[string]any {
	return map[string]any{
		"name": "groups", "protocol": "openid-connect", "protocolMapper": "oidc-group-membership-mapper",
		"config": map[string]string{"claim.name": "groups", "full.path": "false", "access.token.claim": "true", "id.token.claim": "true", "userinfo.token.claim": "true"},
	}
}

// hostWithKeycloaksTokens starts a Dormouse that takes the tokens of a realm, where
// clients register themselves.
func hostWithKeycloaksTokens(t *testing.T, k *keycloak) string {
	t.Helper()
	address := commontest.FreeAddress(t)
	issuer := k.newRealm(t, "open")
	scope := k.post(t, "/open/client-scopes", map[string]any{
		"name": "mcp", "protocol": "openid-connect", "attributes": map[string]string{"include.in.token.scope": "true", "display.on.consent.screen": "false"},
		"protocolMappers": []any{groupsMapper(), map[string]any{
			"name": "server", "protocol": "openid-connect", "protocolMapper": "oidc-audience-mapper",
			"config": map[string]string{"included.custom.audience": "http://" + address + "/counter/mcp", "access.token.claim": "true"},
		}},
	})
	k.do(t, http.MethodPut, "/open/default-optional-client-scopes/"+scope, nil, nil)
	var policies []struct{ ID, ProviderID, SubType string }
	k.do(t, http.MethodGet, "/open/components?type=org.keycloak.services.clientregistration.policy.ClientRegistrationPolicy", nil, &policies)
	for _, p := range policies {
		if p.ProviderID == "trusted-hosts" {
			k.do(t, http.MethodDelete, "/open/components/"+p.ID, nil, nil)
		}
	}
	return hostWithAccess(t, "idp", address, engines(issuer))
}

// keycloak is a running Keycloak with an administrator.
type keycloak struct{ at, token string }

// newRealm makes a realm whose refresh tokens rotate, with the user ada of the group
// engines. It returns the realm's issuer.
func (k *keycloak) newRealm(t *testing.T, name string) string {
	t.Helper()
	k.login(t)
	k.post(t, "", map[string]any{"realm": name, "enabled": true, "sslRequired": "none", "accessTokenLifespan": 3600, "revokeRefreshToken": true})
	group := k.post(t, "/"+name+"/groups", map[string]any{"name": "engines"})
	user := k.post(t, "/"+name+"/users", map[string]any{
		"username": "ada", "enabled": true, "email": "ada@example.com", "emailVerified": true, "firstName": "Ada", "lastName": "Lovelace",
		"credentials": []any{map[string]any{"type": "password", "value": "lovelace", "temporary": false}},
	})
	k.do(t, http.MethodPut, "/"+name+"/users/"+user+"/groups/"+group, nil, nil)
	return k.at + "/realms/" + name
}

// login gets a token of the administrator.
func (k *keycloak) login(t *testing.T) {
	t.Helper()
	form := url.Values{"grant_type": {"password"}, "client_id": {"admin-cli"}, "username": {"admin"}, "password": {"admin"}}
	res, err := http.PostForm(k.at+"/realms/master/protocol/openid-connect/token", form) //nolint:noctx // a test
	commontest.OK(t, err)
	defer func() { _ = res.Body.Close() }() // only read
	var got struct {
		Token string `json:"access_token"`
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil || got.Token == "" {
		t.Fatalf("the administrator cannot sign in: %s, %v", res.Status, err)
	}
	k.token = got.Token
}

// post creates an object and returns its id.
func (k *keycloak) post(t *testing.T, path string, v any) string {
	t.Helper()
	at := k.do(t, http.MethodPost, path, v, nil)
	return at[strings.LastIndex(at, "/")+1:]
}

// do sends a request of the administrator, and returns the Location of the answer.
func (k *keycloak) do(t *testing.T, method, path string, v, into any) string {
	t.Helper()
	body, err := json.Marshal(v)
	commontest.OK(t, err)
	r, err := http.NewRequestWithContext(t.Context(), method, k.at+"/admin/realms"+path, bytes.NewReader(body))
	commontest.OK(t, err)
	r.Header.Set("Authorization", "Bearer "+k.token)
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	commontest.OK(t, err)
	answer, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode >= http.StatusMultipleChoices {
		t.Fatalf("%s %s: %s, %v: %s", method, path, res.Status, err, answer)
	}
	if into != nil {
		commontest.OK(t, json.Unmarshal(answer, into))
	}
	return res.Header.Get("Location")
}

// startKeycloak starts Keycloak with a database in memory.
func startKeycloak(t *testing.T) *keycloak {
	t.Helper()
	dir := installKeycloak(t)
	address := commontest.FreeAddress(t)
	_, port, err := net.SplitHostPort(address)
	commontest.OK(t, err)
	p := programtest.Start(t, []string{"KC_BOOTSTRAP_ADMIN_USERNAME=admin", "KC_BOOTSTRAP_ADMIN_PASSWORD=admin", "JAVA_OPTS_APPEND=-Xmx512m"},
		"bash", filepath.Join(dir, "bin", "kc.sh"), "start-dev", "--db", "dev-mem", "--http-host", "127.0.0.1", "--http-port", port)
	k, begun := &keycloak{at: "http://" + address}, time.Now()
	for {
		res, err := http.Get(k.at + "/realms/master/.well-known/openid-configuration") //nolint:noctx // a test
		if err == nil {
			_ = res.Body.Close() // only its status matters
			if res.StatusCode == http.StatusOK {
				t.Logf("Keycloak answers after %s", time.Since(begun).Round(time.Second))
				return k
			}
		}
		select {
		case <-p.Exited():
			t.Fatal("Keycloak ended before it was ready")
		case <-time.After(500 * time.Millisecond):
		}
		if time.Since(begun) > keycloakLimit {
			t.Fatalf("Keycloak was not ready within %s: %v", keycloakLimit, err)
		}
	}
}

// installKeycloak returns the folder of the pinned Keycloak, which Maven fetches once.
func installKeycloak(t *testing.T) string {
	t.Helper()
	const artifact = "keycloak-quarkus-dist-" + keycloakVersion + ".zip"
	dir := programtest.Installed(t, filepath.Join("clients", "keycloak"), []byte(keycloakSHA256), func(dir string) {
		programtest.Run(t, dir, javaHelp, 0, programtest.Tool(t, "mvn", javaHelp), "-B", "-q", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy",
			"-Dartifact=org.keycloak:keycloak-quarkus-dist:"+keycloakVersion+":zip", "-DoutputDirectory="+dir)
		sum := sha256.Sum256(programtest.Read(t, filepath.Join(dir, artifact)))
		if got := hex.EncodeToString(sum[:]); got != keycloakSHA256 {
			t.Fatalf("%s has the SHA-256 %s, want %s", artifact, got, keycloakSHA256)
		}
		archive, err := zip.OpenReader(filepath.Join(dir, artifact))
		commontest.OK(t, err)
		commontest.OK(t, errors.Join(os.CopyFS(dir, archive), archive.Close()))
	})
	return filepath.Join(dir, "keycloak-"+keycloakVersion)
}
