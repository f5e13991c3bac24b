package endpoints_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"

	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// visit signs in as ada of the group eng on the pages at target. It returns the URL, with
// the code, to which the last page redirects.
func visit(ctx context.Context, target string) (*url.URL, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	web := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	method, form := http.MethodGet, url.Values(nil)
	for range 10 {
		r, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(form.Encode()))
		if err != nil {
			return nil, err
		}
		if method == http.MethodPost {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		res, err := web.Do(r)
		if err != nil {
			return nil, err
		}
		page, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil {
			return nil, err
		}
		if to, err := res.Location(); err == nil {
			if to.Path == "/done" {
				return to, nil
			}
			method, target, form = http.MethodGet, to.String(), nil
			continue
		}
		action := regexp.MustCompile(`<form method="post" action="([^"]*)">`).FindSubmatch(page)
		if action == nil {
			return nil, errors.New(string(page))
		}
		form = url.Values{"answer": {"allow"}, "name": {"ada"}, "groups": {"eng"}}
		for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllSubmatch(page, -1) {
			form.Set(string(m[1]), html.UnescapeString(string(m[2])))
		}
		next, err := r.URL.Parse(string(action[1]))
		if err != nil {
			return nil, err
		}
		method, target = http.MethodPost, next.String()
	}
	return nil, errors.New("too many pages")
}

// goClient connects go-sdk's client, which signs in by itself. logins counts its
// sign-ins.
func (s *site) goClient(address string, logins *int) (*mcp.ClientSession, error) {
	s.t.Helper()
	handler, err := sdkauth.NewAuthorizationCodeHandler(&sdkauth.AuthorizationCodeHandlerConfig{
		DynamicClientRegistrationConfig: &sdkauth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			ClientName: "go-sdk", RedirectURIs: []string{"http://127.0.0.1:5000/done"}, TokenEndpointAuthMethod: "none",
		}},
		RedirectURL: "http://127.0.0.1:5000/done",
		AuthorizationCodeFetcher: func(ctx context.Context, args *sdkauth.AuthorizationArgs) (*sdkauth.AuthorizationResult, error) {
			*logins++
			back, err := visit(ctx, args.URL)
			if err != nil {
				return nil, err
			}
			q := back.Query()
			if q.Get("error") != "" {
				return nil, errors.New(q.Encode())
			}
			return &sdkauth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	return client.Connect(s.t.Context(), &mcp.StreamableClientTransport{Endpoint: s.url + address, OAuthHandler: handler}, nil)
}

func TestGoSDKSignsInCallsAndStepsUp(t *testing.T) {
	s := newSite(t)
	s.signIn = true
	logins := 0
	c, err := s.goClient("/who/mcp", &logins)
	commontest.OK(t, err)
	defer func() { _ = c.Close() }()
	if list, err := c.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 1 || logins != 1 {
		t.Fatalf("%+v, %v, %d sign-ins", list, err, logins)
	}
	res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "me"})
	if err != nil || logins != 2 {
		t.Fatal(err, logins)
	}
	text := res.Content[0].(*mcp.TextContent).Text
	if !strings.HasPrefix(text, "dev:ada of acme, ") || !strings.Contains(text, `"scope":"mcp who:write"`) {
		t.Error(text)
	}
}

// brokered signs ada in and returns an access token of the site's own, with scopes.
func (s *site) brokered(address, scope string) (client, access, refresh string) {
	s.t.Helper()
	_, doc := s.post("/register", `{"redirect_uris":["http://127.0.0.1/done"]}`)
	client = doc["client_id"].(string)
	verifier := strings.Repeat("v", 43)
	hash := sha256.Sum256([]byte(verifier))
	back, err := visit(s.t.Context(), s.url+"/authorize?"+url.Values{
		"response_type": {"code"}, "client_id": {client}, "redirect_uri": {"http://127.0.0.1/done"}, "code_challenge": {base64.RawURLEncoding.EncodeToString(hash[:])}, "code_challenge_method": {"S256"},
		"resource": {s.url + address}, "scope": {scope},
	}.Encode())
	commontest.OK(s.t, err)
	form := url.Values{"grant_type": {"authorization_code"}, "client_id": {client}, "code": {back.Query().Get("code")}, "redirect_uri": {"http://127.0.0.1/done"}, "code_verifier": {verifier}}
	status, got := s.post("/token", form)
	if status != http.StatusOK {
		s.t.Fatal(status, got)
	}
	return client, got["access_token"].(string), got["refresh_token"].(string)
}

// When a grant is revoked, the tickets that its token got and its open
// connections end with it. These functions have just started, so they learn of the
// revocation at once; other functions learn of it within 30 seconds.
func TestARevokedGrantEndsTicketsAndConnections(t *testing.T) {
	s := newSite(t)
	s.signIn = true
	client, token, _ := s.brokered("/who/mcp", "")
	ticket := func() string {
		t.Helper()
		var got struct{ Ticket string }
		if a := s.do("POST", "/who/ticket", "", bearer(token)); json.Unmarshal([]byte(a.body), &got) != nil || got.Ticket == "" {
			t.Fatal(a)
		}
		return got.Ticket
	}
	connect := func(conn, ticket string) int { t.Helper(); return s.connect(conn, "server=who&ticket="+ticket) }
	answered := func(conn string) bool { t.Helper(); return strings.Contains(s.say(conn, initialize), `"result"`) }
	first, second, unused := ticket(), ticket(), ticket()
	if connect("c1", first) != http.StatusOK || connect("c2", second) != http.StatusOK || !answered("c1") {
		t.Fatal("a ticket of a grant that is good opens no connection")
	}
	if status, _ := s.post("/revoke", url.Values{"token": {token}, "client_id": {client}}); status != http.StatusOK {
		t.Fatal(status)
	}
	commontest.EqualIn(t, "a ticket of before", http.StatusUnauthorized, connect("c3", unused))
	commontest.EqualIn(t, "a connection of before goes on", false, answered("c2"))
}

// On every transport, a call without its scope is refused before
// anything is woken or written.
func TestACallWithoutItsScopeIsRefusedAsTheTransportCan(t *testing.T) {
	s := newSite(t)
	s.signIn = true
	_, token, _ := s.brokered("/who/mcp", "")
	in := s.as(token, s.begin("who", token))
	s.cost()
	check := func(name, body string) {
		t.Helper()
		if !strings.Contains(body, `"code":403`) || !strings.Contains(body, `"data":{"error":"insufficient_scope","resource_metadata":"`+s.url+metadata+`/who/mcp","scope":"mcp who:write"`) {
			t.Errorf("%s: %s", name, body)
		}
	}
	a := s.do("POST", "/who/mcp", call("me"), in...)
	want := `Bearer error="insufficient_scope", resource_metadata="` + s.url + metadata + `/who/mcp", scope="mcp who:write"`
	if a.status != http.StatusForbidden || a.header.Get("WWW-Authenticate") != want {
		t.Errorf("%d %s", a.status, a.header)
	}
	check("POST", a.body)
	modern := s.do("POST", "/who/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"me","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
		bearer(token), "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: me")
	commontest.Equal(t, http.StatusForbidden, modern.status)
	check("a client of 2026-07-28", modern.body)
	if got := s.cost(); got != [2]int{2, 0} { // the revoked grants, in each new instance
		t.Errorf("two refusals cost %v", got)
	}
	// On a WebSocket, the endpoint answers each request of a batch.
	two := "[" + call("me") + "," + strings.Replace(call("me"), `"id":2`, `"id":"b"`, 1) + "]"
	status, talk := s.dial("server=who", token)
	if status != http.StatusOK {
		t.Fatal(status)
	}
	talk(initialize, initialized)
	answers := talk(two)
	if check("WebSocket, a batch", answers); !strings.Contains(answers, `"id":2`) || !strings.Contains(answers, `"id":"b"`) || answers[0] != '[' {
		t.Errorf("a batch over a WebSocket: %s", answers)
	}
}
