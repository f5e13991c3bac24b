//go:build clients

package clients

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// signInClients returns the programs that sign in by themselves: SDKs that register, go
// through the pages, and refresh their tokens.
func signInClients() map[string]func(t *testing.T) []string {
	python := func(requirements string) func(*testing.T) []string {
		return func(t *testing.T) []string {
			return append(preparePython(t, requirements, "signin.py"), "--visit", prepareVisit(t))
		}
	}
	typeScript := func(name string) func(*testing.T) []string {
		return func(t *testing.T) []string {
			return append(prepareTypeScript(t, name, "signin.mjs"), "--visit", prepareVisit(t))
		}
	}
	return map[string]func(*testing.T) []string{
		"py-1.30.0": python("requirements-1.30.0.txt"), "py-2.3.0": python("requirements-2.3.0.txt"), "ts-1.32.2": typeScript("ts"), "ts-2.4.0": typeScript("ts2"),
		"go-1.8.0": func(t *testing.T) []string { return append(prepareGo(t), "--sign-in") }, // goes through the pages itself
	}
}

// Each client registers, signs in, lists, calls, and refreshes
// its token. Users sign in with any name, also at the address of all servers and behind
// API Gateway; at oidc-provider through Dormouse; or at oidc-provider directly, with its
// tokens.
func TestRealClientsSignIn(t *testing.T) {
	for place, host := range map[string]func(*testing.T) string{
		"any name": hostWithSignIn, "the address of all servers": hostOneWithSignIn, "behind API Gateway": hostBehindAPIGateway,
		"provider": hostWithProvider, "tokens of the provider": hostWithProvidersTokens, "tokens that only the provider reads": hostWithIntrospection,
	} {
		t.Run(place, func(t *testing.T) {
			url := host(t)
			for name, prepare := range signInClients() {
				t.Run(name, func(t *testing.T) { signInWith(t, prepare(t), url, signingIn{}) })
			}
		})
	}
}

// A client whose grant was revoked is refused and signs in again, in each era of
// the protocol that it has. It is the client of a metadata document, and does not register.
// New handlers serve each request.
func TestRealClientsWithADocumentSignInAgainAfterARevocation(t *testing.T) {
	modes := map[string]map[string]string{ // the flags of each era
		"py-1.30.0": {legacyEra: ""}, "ts-1.32.2": {legacyEra: ""},
		"py-2.3.0": {legacyEra: "--mode legacy", modernEra: "--mode auto"}, "ts-2.4.0": {legacyEra: "--mode legacy", modernEra: "--mode auto"},
		"go-1.8.0": {legacyEra: "--protocol " + legacyEra, modernEra: ""},
	}
	for name, prepare := range signInClients() {
		for era, flags := range modes[name] {
			t.Run(name+" "+era, func(t *testing.T) {
				s := newColdSite(t)
				signInWith(t, append(prepare(t), strings.Fields(flags)...), s.url+"/counter/mcp", signingIn{version: era, document: s.document, revoke: true})
				s.checkDocument(t)
			})
		}
	}
}

// prepareVisit builds the program that goes through the pages for clients that are not in
// Go.
func prepareVisit(t *testing.T) string {
	t.Helper()
	return programtest.Build(t, filepath.Join("clients", "visit"), ".", "./visit")
}

// A call that needs another scope is refused before it runs. The client then
// signs in once more, and the call runs once. TypeScript 1.32 cannot do this, so it is
// left out: it refreshes its token and gives up.
func TestRealClientsStepUp(t *testing.T) {
	servers := map[string]any{"access": map[string]any{"scopes": map[string]any{"counter": map[string]any{"counter:write": []string{"add"}}}}}
	for name, prepare := range signInClients() {
		if name == "ts-1.32.2" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			url := examples(t).Host(t, counter(), servers, "--listen", commontest.FreeAddress(t), "--access", "oauth")["counter"].URL
			command := append(prepare(t), "--step-up", "--url", url)
			if strings.HasPrefix(name, "go") {
				command = append(command, "--protocol", legacyEra) // with sessions, so that the counter counts the calls of a session
			}
			var got struct {
				Logins, Failed int
				Scope, Text    string
			}
			out := programtest.Run(t, ".", "the client could not sign in", runLimit, command[0], command[1:]...)
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if scopes := strings.Fields(got.Scope); got.Logins != 2 || got.Failed != 0 || got.Text != "1" || !slices.Contains(scopes, "mcp") || !slices.Contains(scopes, "counter:write") {
				t.Errorf("%s", out)
			}
		})
	}
}

// Versions of the two eras of the protocol.
const (
	legacyEra = "2025-11-25"
	modernEra = "2026-07-28"
)

// signingIn says how a program signs in, besides the flags of its client.
type signingIn struct {
	version  string // that it has to negotiate; "": any
	document string // its metadata document; "": it registers
	revoke   bool   // its grant is revoked at last, and it signs in again
}

// signInWith runs a program that signs in, and checks what it prints.
func signInWith(t *testing.T, command []string, url string, how signingIn) {
	t.Helper()
	command, logins, status := append(command, "--url", url), 1, 0
	if how.document != "" {
		command = append(command, "--document", how.document)
	}
	if how.revoke {
		command, logins, status = append(command, "--revoke"), 2, 401
	}
	var got struct {
		Tools, Logins, Tokens, Failed, Revoked int
		Scope, Version                         string
	}
	out := programtest.Run(t, ".", "the client could not sign in", runLimit, command[0], command[1:]...)
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got.Tools != 1 || got.Logins != logins || got.Tokens != logins+1 || got.Failed != 0 || got.Revoked != status || !slices.Contains(strings.Fields(got.Scope), "mcp") {
		t.Errorf("%s", out)
	}
	if how.version != "" && got.Version != how.version {
		t.Errorf("it speaks %s, want %s", got.Version, how.version)
	}
}

// counter is a servers file's entry for a server that needs no box.
func counter() map[string]any {
	return map[string]any{"counter": map[string]any{"x-dormouse": map[string]any{"native": "counter"}}}
}

// examples returns the program of functions/natives, which has the server counter.
func examples(t *testing.T) programtest.Program {
	t.Helper()
	return programtest.Own(t, "natives", programtest.Root(t), "./functions/natives")
}

// hostWithSignIn starts a Dormouse where users sign in with any name, and returns the URL
// of its only server.
func hostWithSignIn(t *testing.T) string {
	t.Helper()
	return examples(t).Host(t, counter(), nil, "--listen", commontest.FreeAddress(t), "--access", "oauth")["counter"].URL
}

// hostBehindAPIGateway is hostWithSignIn with functions behind stand-ins of API Gateway
// and Lambda. Like API Gateway, they rename the header WWW-Authenticate.
func hostBehindAPIGateway(t *testing.T) string {
	t.Helper()
	at := examples(t).OnEmulator(t).Host(t, counter(), nil, "--listen", commontest.FreeAddress(t), "--access", "oauth")["counter"].URL
	res, err := http.Post(at, "application/json", strings.NewReader("{}")) //nolint:noctx // a test
	commontest.OK(t, err)
	_ = res.Body.Close() // only the headers matter
	if res.Header.Get("WWW-Authenticate") != "" || res.Header.Get("X-Amzn-Remapped-Www-Authenticate") == "" {
		t.Fatalf("the header is not renamed: %d %v", res.StatusCode, res.Header)
	}
	return at
}

// hostOneWithSignIn is hostWithSignIn, but returns the address of all servers.
func hostOneWithSignIn(t *testing.T) string {
	t.Helper()
	return strings.TrimSuffix(hostWithSignIn(t), "counter/mcp") + "mcp"
}

// hostWithProvider starts a Dormouse whose users sign in at oidc-provider.
func hostWithProvider(t *testing.T) string {
	t.Helper()
	address := commontest.FreeAddress(t)
	access := engines(startProvider(t, "http://"+address+"/callback", "jwt"))
	access["client_id"], access["client_secret"] = "dormouse", "secret"
	return hostWithAccess(t, "oauth", address, access)
}

// hostWithProvidersTokens starts a Dormouse that takes the access tokens of oidc-provider.
func hostWithProvidersTokens(t *testing.T) string {
	t.Helper()
	return hostWithAccess(t, "idp", commontest.FreeAddress(t), engines(startProvider(t, "http://127.0.0.1/unused", "jwt")))
}

// hostWithIntrospection starts a Dormouse that asks oidc-provider about tokens that only
// the provider can read. These tokens are opaque: oidc-provider does not answer about a
// JWT.
func hostWithIntrospection(t *testing.T) string {
	t.Helper()
	issuer := startProvider(t, "http://127.0.0.1/unused", "opaque")
	access := engines(issuer)
	access["introspection"] = map[string]any{"endpoint": issuer + "/token/introspection", "client_id": "dormouse"}
	access["client_secret"] = "secret"
	return hostWithAccess(t, "idp", commontest.FreeAddress(t), access)
}

// engines are settings by which only the group engines may use servers.
func engines(issuer string) map[string]any {
	return map[string]any{"issuer": issuer, "claims": []string{"groups"}, "allow": map[string]any{"*": map[string]any{"groups": []string{"engines"}}}}
}

func hostWithAccess(t *testing.T, mode, address string, access map[string]any) string {
	t.Helper()
	settings := map[string]any{"access": access}
	return examples(t).Host(t, counter(), settings, "--listen", address, "--access", mode)["counter"].URL
}

// startProvider starts oidc-provider and returns its issuer. tokens is jwt or opaque.
func startProvider(t *testing.T, callback, tokens string) string {
	t.Helper()
	dir := nodeModules(t, "oidc-provider")
	programtest.Copy(t, filepath.Join("oidc-provider", "provider.mjs"), filepath.Join(dir, "provider.mjs"))
	_, port, err := net.SplitHostPort(commontest.FreeAddress(t))
	commontest.OK(t, err)
	node := programtest.OnlyFile(t, filepath.Join(dir, "node_modules", "node-*", "bin", "node"), "is there a Node.js for this system in oidc-provider/package.json?")
	programtest.Start(t, nil, node, filepath.Join(dir, "provider.mjs"), "--port", port, "--callback", callback, "--tokens", tokens).Ready(t)
	return "http://127.0.0.1:" + port
}
