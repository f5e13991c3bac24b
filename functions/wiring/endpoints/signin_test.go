package endpoints_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/authorization"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/nativetest"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// site is an endpoint with an identity provider, both on loopback, and a store in memory.
// New handlers serve each request, as in a fresh function.
type site struct {
	t      testing.TB
	url    string
	issuer string
	key    *rsa.PrivateKey
	store  *storagetest.Counting
	log    *commontest.Lines
	posted *commontest.Lines // to WebSocket clients
	warm   http.Handler      // replaces new handlers if set
	open   bool              // any caller may call
	signIn bool              // users sign in here, with any name
	rules  bool              // access.allow holds for users who sign in here

	mu    sync.Mutex
	asked int // requests to the issuer
}

// signingKey is that of all identity providers: it takes a while to make one.
var signingKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func newSite(t testing.TB) *site {
	t.Helper()
	key, err := signingKey()
	commontest.OK(t, err)
	s := &site{t: t, key: key, store: storagetest.NewCounting(storagetest.NewMemory()), log: &commontest.Lines{}, posted: &commontest.Lines{}}
	idp := httptest.NewServer(http.HandlerFunc(s.identify))
	t.Cleanup(idp.Close)
	s.issuer = idp.URL
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := s.warm
		if h == nil {
			h = s.handler()
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	s.url = front.URL
	return s
}

// identify serves the identity provider.
func (s *site) identify(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked++
	s.mu.Unlock()
	b64 := base64.RawURLEncoding.EncodeToString
	document := any(map[string]any{"issuer": s.issuer, "jwks_uri": s.issuer + "/keys"})
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
	case "/keys":
		document = map[string]any{"keys": []any{map[string]any{
			"kty": "RSA", "kid": "k", "n": b64(s.key.N.Bytes()), "e": b64(big.NewInt(int64(s.key.E)).Bytes()),
		}}}
	default:
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(document)
}

func (s *site) token(sub, server string, more ...map[string]any) string {
	s.t.Helper()
	c := jwt.MapClaims{
		"iss": s.issuer, "sub": sub, "aud": s.url + "/" + server + "/mcp", "exp": time.Now().Unix() + 600, "scope": "mcp", "groups": []string{"eng"},
	}
	for _, changes := range more {
		maps.Copy(c, changes)
	}
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, c)
	token.Header["kid"] = "k"
	text, err := token.SignedString(crypto.Signer(s.key))
	commontest.OK(s.t, err)
	return text
}

const servers = `{
	"mcpServers": {
		"counter": {"x-dormouse": {"native": "counter"}},
		"who": {"x-dormouse": {"native": "who"}},
		"closed": {"x-dormouse": {"native": "who"}},
		"files": {"x-dormouse": {"native": "files"}},
		"gone": {"x-dormouse": {"native": "who"}, "disabled": true},
	},
	"x-dormouse": {"groups": {"dev": {"servers": ["who", "files"]}}, "access": {"name": "corp", "tenant": "acme", "claims": ["groups"],
		"allow": {"*": {"groups": ["eng"]}, "closed": {"groups": ["admins"]}, "files": {"groups": ["eng"], "tools": {"write_*": {"groups": ["admins"]}, "write_note": {"everyone": true}}}}}},
}`

// function returns a function that was just started.
func (s *site) function() *wiring.Function {
	c, warnings, err := serversfile.Parse([]byte(servers), "servers.json", nil)
	if err != nil || len(warnings) > 0 {
		s.t.Error(warnings, err)
	}
	before, _, err := serversfile.Parse([]byte(`{"mcpServers": {"old": {"command": "a"}}}`), "servers.json", nil)
	commontest.Check(s.t, err)
	c, _ = c.After(before, time.Now())
	access, err := wiring.ReadAccess(c, s.url, "")
	commontest.Check(s.t, err)
	access.Issuer = s.issuer
	settings := wiring.Settings{Servers: c, Secret: make([]byte, 32), Access: access}
	if s.signIn {
		settings.AuthServer = true
		if settings.Access, err = wiring.ReadBroker(c, s.url, "", true); err != nil {
			s.t.Error(err)
		}
		if settings.Access.Scopes = map[string]map[string][]string{"who": {"who:write": {"me"}}}; !s.rules {
			settings.Access.Allow = nil
		}
	}
	if s.open {
		settings.Access, settings.Open = nil, true
	}
	f, err := wiring.New(settings, wiring.Parts{
		Store: s.store, Meter: meter.New(meter.Options{}), Log: slog.New(slog.NewJSONHandler(s.log, nil)), Runners: clients{s.posted}, Clients: clients{s.posted},
	})
	commontest.Check(s.t, err)
	return f
}

// hosted returns a counter, a server that names its caller, and one with several tools.
func hosted() native.Servers {
	all := nativetest.Servers()
	all["who"] = func(_ context.Context, n native.Session) (*mcp.Server, error) {
		server := mcp.NewServer(&mcp.Implementation{Name: "who", Version: "1"}, n.Options())
		native.AddTool(n, server, &mcp.Tool{Name: "me"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			text := fmt.Sprintf("%s of %s, %s", n.Principal(), n.Tenant(), n.Props())
			if extra := fmt.Sprintf("%+v %+v", r.Extra.Header, r.Extra.TokenInfo); strings.Contains(extra, "Bearer") || strings.Contains(extra, "eyJ") {
				text = "the server got the token"
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
		})
		return server, nil
	}
	all["files"] = func(_ context.Context, n native.Session) (*mcp.Server, error) {
		server := mcp.NewServer(&mcp.Implementation{Name: "files", Version: "1"}, n.Options())
		for _, tool := range []string{"read", "write_file", "write_note"} {
			native.AddTool(n, server, &mcp.Tool{Name: tool}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: tool + " is done"}}}, nil, nil
			})
		}
		return server, nil
	}
	return all
}

func (s *site) handler() http.Handler {
	h, err := endpoints.NewHTTP(s.function(), hosted(), endpoints.Alarms{}, nil, nil)
	commontest.Check(s.t, err)
	if !s.signIn {
		return h.Handler
	}
	signIn, err := authorization.New(s.function(), nil)
	commontest.Check(s.t, err)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if signIn.Serves(r.URL.Path) {
			signIn.ServeHTTP(w, r)
			return
		}
		h.Handler.ServeHTTP(w, r)
	})
}

// clients are connections that collect all posted messages in one place.
type clients struct{ *commontest.Lines }

func (c clients) Post(_ context.Context, _ string, data []byte) error {
	_, err := c.Write(data)
	return err
}
func (clients) Close(context.Context, string) error { return nil }

// reply is the answer to a request.
type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request; each header is "Name: value".
func (s *site) do(method, path, body string, headers ...string) reply {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	commontest.OK(s.t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	commontest.OK(s.t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	commontest.OK(s.t, err)
	return reply{res.StatusCode, res.Header, string(text)}
}

const (
	initialize  = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

func call(tool string) string {
	return `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"` + tool + `","arguments":{}}}`
}

func bearer(token string) string { return "Authorization: Bearer " + token }

// begin opens a session, and returns the headers for its later requests.
func (s *site) begin(server, token string) []string {
	s.t.Helper()
	a := s.do("POST", "/"+server+"/mcp", initialize, bearer(token))
	id := a.header.Get("Mcp-Session-Id")
	if a.status != http.StatusOK || id == "" {
		s.t.Fatalf("initialize: %+v", a)
	}
	if a := s.do("POST", "/"+server+"/mcp", initialized, bearer(token), "Mcp-Session-Id: "+id); a.status != http.StatusAccepted {
		s.t.Fatalf("initialized: %+v", a)
	}
	return []string{"Mcp-Session-Id: " + id, "MCP-Protocol-Version: 2025-11-25"}
}

func (s *site) as(token string, in []string) []string { return append(slices.Clone(in), bearer(token)) }

// cost returns the reads and writes since its last call.
func (s *site) cost() [2]int {
	c := s.store.Counts()
	s.store.Reset()
	return [2]int{c.Reads, c.Writes}
}

// doors returns the method and the path of each HTTP route of a server.
func doors(server string) map[string][2]string {
	return map[string][2]string{
		"POST mcp": {"POST", "/" + server + "/mcp"}, "GET mcp": {"GET", "/" + server + "/mcp"}, "DELETE mcp": {"DELETE", "/" + server + "/mcp"},
		"GET sse": {"GET", "/" + server + "/sse"}, "POST message": {"POST", "/" + server + "/message"}, "POST ticket": {"POST", "/" + server + "/ticket"},
	}
}

// A new function answers each request.
func TestWhoHasNoGoodTokenIsToldWhereToGetOne(t *testing.T) {
	s := newSite(t)
	type request struct {
		method, path string
		headers      []string
		status       int
		problem      string // of the challenge
		at           string // the address in the challenge
	}
	check := func(name string, r request) {
		t.Helper()
		a := s.do(r.method, r.path, initialize, r.headers...)
		want := "Bearer " + r.problem + `resource_metadata="` + s.url + metadata + r.at + `", scope="mcp"`
		if got := a.header.Get("WWW-Authenticate"); a.status != r.status || got != want || r.method == "POST" && !strings.Contains(a.body, `"jsonrpc":"2.0","id":1,`) {
			t.Errorf("%s: %d %s\n got %s\nwant %s", name, a.status, a.body, got, want)
		}
	}
	s.cost()
	token := s.token("ada", "who")
	for name, door := range doors("who") {
		at := "/who/mcp"
		if strings.HasSuffix(door[1], "/sse") || strings.HasSuffix(door[1], "/message") {
			at = "/who/sse"
		}
		check(name, request{door[0], door[1], nil, 401, "", at})
	}
	for name, r := range map[string]request{
		"all servers":         {"POST", "/mcp", nil, 401, "", "/mcp"},
		"a group, HTTP+SSE":   {"POST", "/g/dev/message", nil, 401, "", "/g/dev/sse"},
		"in the query":        {"POST", "/who/mcp?access_token=" + token, nil, 401, "", "/who/mcp"}, // too long to be repeated
		"two headers":         {"POST", "/who/mcp", []string{bearer(token), bearer("dm_aaaaaaaa_x")}, 400, `error="invalid_request", `, "/who/mcp"},
		"a query is of it":    {"POST", "/who/mcp?team=a", nil, 401, "", "/who/mcp?team=a"},
		"nothing is smuggled": {"POST", `/who/mcp?a="b`, nil, 401, "", "/who/mcp"},
	} {
		check(name, r)
	}
	if cost := s.cost(); cost != [2]int{} || s.asked != 0 {
		t.Errorf("it cost %v reads and writes, and %d requests to the issuer", cost, s.asked)
	}
	check("a bad one", request{"POST", "/who/mcp", []string{bearer(token[:len(token)-9] + "AAAAAAAAA")}, 401, `error="invalid_token", `, "/who/mcp"})
}

const metadata = "/.well-known/oauth-protected-resource"

func TestMetadataIsOnlyWhereClientsLookForIt(t *testing.T) {
	s := newSite(t)
	s.cost()
	for address, name := range map[string]string{"/who/mcp": "who", "/who/sse/": "who", "/mcp?names=plain": "all servers", "/g/dev/mcp": "the servers of dev"} {
		a := s.do("GET", metadata+address, "", "Origin: https://app.example")
		var got map[string]any
		commontest.OKIn(t, a.body, json.Unmarshal([]byte(a.body), &got))
		want := map[string]any{
			"resource": s.url + address, "authorization_servers": []any{s.issuer}, "scopes_supported": []any{"mcp"},
			"bearer_methods_supported": []any{"header"}, "resource_name": name,
		}
		commontest.SameIn(t, address, want, got)
		commontest.EqualIn(t, address+": Access-Control-Allow-Origin", "*", a.header.Get("Access-Control-Allow-Origin"))
		a = s.do("OPTIONS", metadata+address, "", "Origin: https://app.example", "Access-Control-Request-Method: GET", "Access-Control-Request-Headers: mcp-protocol-version")
		if a.status != 204 || !strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "MCP-Protocol-Version") {
			t.Errorf("OPTIONS %s: %+v", address, a)
		}
	}
	for _, path := range []string{
		metadata, metadata + "/who", metadata + "/gone/mcp", metadata + "/none/mcp", metadata + "/g/none/mcp", metadata + "/g/all/mcp", metadata + "/who/ticket", metadata + "/who/mcp/x", metadata[:len(metadata)-1] + "/who/mcp",
		"/.well-known/oauth-authorization-server/who/mcp", "/who/mcp/.well-known/openid-configuration", "/.well-known/x",
	} {
		a := s.do("GET", path, "", "Origin: https://app.example", "X-Forwarded-Host: evil.example")
		if a.status != 404 || !json.Valid([]byte(a.body)) || a.header.Get("Access-Control-Allow-Origin") != "*" || a.header.Get("WWW-Authenticate") != "" {
			t.Errorf("%s: %+v", path, a)
		}
	}
	for _, server := range []string{"none", "gone"} {
		if a := s.do("POST", "/"+server+"/mcp", initialize); a.status != 401 || a.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: %+v", server, a)
		}
	}
	if cost := s.cost(); cost != [2]int{} || s.asked != 0 {
		t.Errorf("it cost %v reads and writes, and %d requests to the issuer", cost, s.asked)
	}
}

// Below a base path of a custom domain, all that the endpoint prints leads back below it.
func TestSignInBelowABasePath(t *testing.T) {
	s := newSite(t)
	s.url += "/prod-mcp"
	s.warm = http.StripPrefix("/prod-mcp", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.handler().ServeHTTP(w, r) }))
	for _, address := range []string{"/who/mcp", "/g/dev/mcp"} {
		refused := s.do("POST", address, initialize)
		at := s.url + metadata + address
		if refused.status != 401 || !strings.Contains(refused.header.Get("WWW-Authenticate"), `resource_metadata="`+at+`"`) {
			t.Errorf("%s: %+v", address, refused)
		}
		commontest.Contains(t, "the metadata", `"resource":"`+s.url+address+`"`, s.do("GET", metadata+address, "").body)
	}
	commontest.EqualIn(t, "a token for the resource", 200, s.do("POST", "/who/mcp", initialize, bearer(s.token("ada", "who"))).status)
	other := map[string]any{"aud": strings.TrimSuffix(s.url, "/prod-mcp") + "/who/mcp"}
	commontest.EqualIn(t, "a token for another base path", 401, s.do("POST", "/who/mcp", initialize, bearer(s.token("ada", "who", other))).status)
}

// A token of another server, or of an address of several, is refused, even with the id of an
// existing session.
func TestTokenOfAnotherAddressOpensNoDoor(t *testing.T) {
	s := newSite(t)
	in := s.begin("who", s.token("ada", "who"))
	all := doors("who")
	all["all servers"], all["a group"] = [2]string{"POST", "/mcp"}, [2]string{"POST", "/g/dev/mcp"}
	s.cost()
	for _, of := range []string{"/counter/mcp", "/mcp", "/g/dev/mcp"} {
		other := s.token("ada", "x", map[string]any{"aud": []string{"https://other.example/mcp", s.url + of}})
		for name, door := range all {
			if door[1] == of {
				continue
			}
			for _, headers := range [][]string{{bearer(other)}, s.as(other, in)} {
				a := s.do(door[0], door[1], call("me"), headers...)
				if got := a.header.Get("WWW-Authenticate"); a.status != 401 || !strings.HasPrefix(got, `Bearer error="invalid_token", `) {
					t.Errorf("a token of %s, %s: %+v", of, name, a)
				}
			}
		}
	}
	commontest.EqualIn(t, "it cost", [2]int{}, s.cost())
}

func TestKeysGoOnBesideTokens(t *testing.T) {
	s := newSite(t)
	key, record, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "corp:ada", Servers: []string{"counter"}})
	commontest.OK(t, err)
	in := s.begin("counter", key)
	commontest.Equal(t, 200, s.do("POST", "/counter/mcp", call("add"), s.as(key, in)...).status)
	// A principal may use a key or a token, and gets the same sessions.
	if a := s.do("POST", "/counter/mcp", call("add"), s.as(s.token("ada", "counter"), in)...); a.status != 200 || !strings.Contains(a.body, `"text":"2"`) {
		t.Errorf("%+v", a)
	}
	if a := s.do("POST", "/who/mcp", initialize, bearer(key)); a.status != 403 || a.header.Get("WWW-Authenticate") != "" {
		t.Errorf("another server: %+v", a)
	}
	every, _, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "corp:ada", Servers: []string{storage.EveryServer}})
	commontest.OK(t, err)
	if a := s.do("POST", "/old/mcp", initialize, bearer(every)); a.status != 404 || !strings.Contains(a.body, "server old was removed from the servers file") {
		t.Errorf("a server that was removed: %+v", a)
	}
	_, say := s.dial("server=counter", key)
	say(initialize, initialized)
	commontest.Contains(t, "over a WebSocket", "result", say(call("add")))
	_, err = apikey.Revoke(t.Context(), s.store, record.ID)
	commontest.OK(t, err)
	if got := say(call("add")); strings.Contains(got, "result") {
		t.Errorf("revoked, over a WebSocket of before: %s", got)
	}
	if a := s.do("POST", "/counter/mcp", initialize, bearer(key)); a.status != 401 || !strings.HasPrefix(a.header.Get("WWW-Authenticate"), `Bearer error="invalid_token"`) {
		t.Errorf("revoked: %+v", a)
	}
}

// A client opens a WebSocket with a ticket, and the connection belongs to the
// identity of the token.
func TestTicketOfATokenOpensAWebSocket(t *testing.T) {
	s := newSite(t)
	a := s.do("POST", "/who/ticket", "", bearer(s.token("ada", "who")))
	var got struct {
		Ticket  string `json:"ticket"`
		Seconds int    `json:"expires_in"`
	}
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || got.Seconds != 60 || got.Ticket == "" {
		t.Fatalf("%+v, %v", a, err)
	}
	if status := s.connect("c1", "server=who&ticket="+got.Ticket); status != 200 {
		t.Fatalf("a ticket: %d", status)
	}
	commontest.EqualIn(t, "the ticket again", 401, s.connect("c2", "server=who&ticket="+got.Ticket))
	commontest.EqualIn(t, "a token in a header", 200, s.connect("c3", "server=who", bearer(s.token("ada", "who"))))
	commontest.EqualIn(t, "a token in the query", 401, s.connect("c4", "server=who&access_token="+s.token("ada", "who")))
	commontest.EqualIn(t, "a token of another server", 401, s.connect("c5", "server=who", bearer(s.token("ada", "counter"))))
	// The claims come from the token with which the ticket was requested.
	commontest.Contains(t, "", `corp:ada of acme, {\"groups\":[\"eng\"],\"scope\":\"mcp\"}`, s.say("c1", initialize, initialized, call("me")))
	connection, err := s.store.Connection(t.Context(), "c1")
	if err != nil || !strings.HasPrefix(connection.Credential, "idp:") || strings.Contains(connection.Credential, "eyJ") {
		t.Errorf("%+v, %v", connection, err)
	}
}
