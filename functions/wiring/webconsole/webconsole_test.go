package webconsole_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/webconsole"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/places"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/operate/console"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// stack is a console behind the stage of an API. Each event meets a function that has just
// started.
type stack struct {
	t       *testing.T
	store   storage.Store
	servers string // the servers file
	log     commontest.Lines
	posted  commontest.Lines         // what boxes were told
	logs    *webconsole.Logs         // nil: there are none
	access  *resourceserver.Settings // nil: callers have keys
	stage   string
	cookies map[string]string
}

const host = "abc123.execute-api.eu-test-1.amazonaws.com"

func newStack(t *testing.T) *stack {
	return &stack{t: t, store: storagetest.NewMemory(), stage: "/v1", cookies: map[string]string{}, servers: `{"mcpServers":{"one":{"command":"a"},"two":{"command":"b"}}}`}
}

func (s *stack) key(role storage.Role, tenant, who string) string {
	s.t.Helper()
	key, _, err := apikey.Create(s.t.Context(), s.store, apikey.Grant{Tenant: tenant, Principal: who, Servers: []string{"*"}, Role: role})
	commontest.OK(s.t, err)
	return key
}

// has puts a session of a tenant into the store. The session's box is up.
func (s *stack) has(id storage.ID, tenant, server string) {
	s.t.Helper()
	now := time.Now()
	err := s.store.Create(s.t.Context(), storage.Session{
		ID: id, Server: server, Tenant: tenant, Principal: "user-of-" + tenant, State: storage.Ready, Transport: storage.HTTP,
		Created: now, Used: now, Expires: now.Add(time.Hour), Init: []byte(`{"clientInfo":{"name":"cursor"}}`),
	})
	commontest.OK(s.t, err)
	box, err := s.store.Box(s.t.Context(), storage.BoxFor(tenant, server))
	commontest.OK(s.t, err)
	if box.State == storage.Awake {
		return
	}
	box.ID, box.Tenant, box.Server, box.Gen, box.State, box.Conn, box.Changed = storage.BoxFor(tenant, server), tenant, server, box.Gen+1, storage.Awake, "conn", now
	commontest.OK(s.t, s.store.SaveBox(s.t.Context(), box))
}

type boxes struct{ said *commontest.Lines }

// Post implements storage.Poster.
func (b boxes) Post(_ context.Context, conn string, frame []byte) error {
	_, err := b.said.Write([]byte(conn + " " + string(frame) + "\n"))
	return err
}

// Close implements storage.Clients.
func (boxes) Close(context.Context, string) error { return errors.New("no client is connected") }

// function returns a function that has just started.
func (s *stack) function() func(context.Context, events.APIGatewayProxyRequest) (*events.APIGatewayProxyStreamingResponse, error) {
	s.t.Helper()
	c, _, err := serversfile.Parse([]byte(s.servers), "servers.json", nil)
	commontest.OK(s.t, err)
	f, err := wiring.New(wiring.Settings{Servers: c, Secret: []byte(strings.Repeat("s", 32)), Hosts: []string{host}, Access: s.access, AuthServer: s.access != nil}, wiring.Parts{
		Store: s.store, Meter: meter.New(meter.Options{}), Log: slog.New(slog.NewJSONHandler(&s.log, nil)),
		Runners: boxes{&s.posted}, Clients: boxes{&s.posted}, Place: func(places.Needs) string { return "" },
	})
	commontest.OK(s.t, err)
	return webconsole.Function(webconsole.Handler(f, nil, "https://dashboard.example", s.logs), f.Log)
}

// reply is the head of an answer.
type reply struct {
	StatusCode int
	Header     http.Header
}

// do sends a request as the page does. It keeps cookies and follows no redirect.
func (s *stack) do(method, path, body string, change ...func(*http.Request)) (reply, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, "https://"+host+path, nil)
	commontest.OK(s.t, err)
	r.Header.Set(console.Header, "1")
	if method != http.MethodGet {
		r.Header.Set("Origin", "https://"+host)
	}
	for name, value := range s.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	for _, c := range change {
		c(r)
	}
	e := events.APIGatewayProxyRequest{
		Path: r.URL.Path, HTTPMethod: r.Method, MultiValueHeaders: r.Header, Headers: map[string]string{},
		MultiValueQueryStringParameters: r.URL.Query(), Body: base64.StdEncoding.EncodeToString([]byte(body)), IsBase64Encoded: true,
	}
	r.Header.Set("Host", r.Host)
	r.Header.Set("X-Forwarded-Proto", "https")
	for name, values := range r.Header {
		e.Headers[name] = values[len(values)-1]
	}
	e.RequestContext.Path, e.RequestContext.DomainName, e.RequestContext.Stage = s.stage+r.URL.Path, host, "v1"
	res, err := s.function()(s.t.Context(), e)
	commontest.OK(s.t, err)
	text, err := io.ReadAll(res.Body)
	commontest.OK(s.t, err)
	head := http.Header(res.MultiValueHeaders)
	if head == nil {
		head = http.Header{}
	}
	for name, value := range res.Headers {
		head[name] = []string{value}
	}
	for _, c := range (&http.Response{Header: head}).Cookies() {
		if s.cookies[c.Name] = c.Value; c.MaxAge < 0 {
			delete(s.cookies, c.Name)
		}
	}
	return reply{res.StatusCode, head}, string(text)
}

// signIn signs in to the console with a key.
func (s *stack) signIn(key string) {
	s.t.Helper()
	clear(s.cookies)
	body, err := json.Marshal(map[string]string{"key": key})
	commontest.OK(s.t, err)
	if res, text := s.do("POST", "/console/session", string(body)); res.StatusCode != http.StatusOK || !strings.Contains(res.Header.Get("Set-Cookie"), "Secure") {
		s.t.Fatalf("signing in: %d %s %v", res.StatusCode, text, res.Header)
	}
}

// The console is below the stage of the API, or behind a name of the owner's. The console that nobody
// looks at does not use the store.
func TestAStackLetsInByALinkOnce(t *testing.T) {
	for _, stage := range []string{"/v1", ""} {
		s, counted := newStack(t), storagetest.NewCounting(storagetest.NewMemory())
		s.stage, s.store = stage, counted
		key := s.key(storage.RoleViewer, "acme", "vic")
		counted.Reset()
		if res, page := s.do("GET", "/console/home", ""); res.StatusCode != http.StatusOK || !strings.Contains(page, "<title>Dormouse</title>") {
			t.Errorf("the page: %d %s", res.StatusCode, page)
		}
		if c := counted.Counts(); c.Reads+c.Writes+c.Waits != 0 {
			t.Errorf("the page alone asks the store: %+v", c)
		}
		_, text := s.do("POST", console.EntryPath, "", func(r *http.Request) {
			r.Header = http.Header{"Authorization": {"Bearer " + key}}
		})
		var link api.Entry
		commontest.OKIn(t, text, json.Unmarshal([]byte(text), &link))
		for _, want := range []string{stage + "/console/home", stage + "/console/home#/sign-in/used"} {
			res, _ := s.do("GET", link.URL, "")
			commontest.EqualIn(t, "the link leads to", want, res.Header.Get("Location"))
		}
		if res, text := s.do("GET", "/console/api/v1/", ""); res.StatusCode != http.StatusOK {
			t.Errorf("with the cookie: %d %s", res.StatusCode, text)
		}
		_, err := apikey.Revoke(t.Context(), s.store, key)
		commontest.OK(t, err)
		if res, text := s.do("GET", "/console/api/v1/", ""); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("with the cookie of a revoked key: %d %s", res.StatusCode, text)
		}
		if res, _ := s.do("GET", "/console/home", "", func(r *http.Request) { r.Host = "evil.example" }); res.StatusCode != http.StatusForbidden {
			t.Errorf("under another name: %d", res.StatusCode)
		}
		// Some gateways remove the slash at the end of a path.
		res, _ := s.do("GET", "/console", "")
		commontest.EqualIn(t, "/console leads to", stage+"/console/home", res.Header.Get("Location"))
	}
}

func TestVisitorsOfAStackSeeAndTouchTheirTenantOnly(t *testing.T) {
	s := newStack(t)
	s.has("aaaa1", "acme", "one")
	s.has("bbbb2", "globex", "one")
	sees := func(want, not string) {
		t.Helper()
		for _, path := range []string{"sessions", "processes", "keys"} {
			if res, text := s.do("GET", "/console/api/v1/"+path, ""); res.StatusCode != http.StatusOK || !strings.Contains(text, want) || strings.Contains(text, not) {
				t.Errorf("%s: %d %s; want %s and not %s", path, res.StatusCode, text, want, not)
			}
		}
	}
	s.signIn(s.key(storage.RoleViewer, "acme", "vic"))
	sees("acme", "globex")
	if res, text := s.do("POST", "/console/api/v1/servers/one/stop", "{}"); res.StatusCode != http.StatusForbidden {
		t.Errorf("a viewer stops: %d %s", res.StatusCode, text)
	}
	s.signIn(s.key(storage.RoleOperator, "globex", "olga"))
	sees("globex", "acme")
	if res, text := s.do("DELETE", "/console/api/v1/sessions/aaaa1", ""); res.StatusCode != http.StatusNotFound {
		t.Errorf("a session of another tenant: %d %s", res.StatusCode, text)
	}
	if res, text := s.do("POST", "/console/api/v1/servers/one/stop", "{}"); res.StatusCode != http.StatusOK || !strings.Contains(text, "globex/one") || strings.Contains(text, "acme") {
		t.Errorf("stop: %d %s", res.StatusCode, text)
	}
	if said := s.posted.Take(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "halt") {
		t.Errorf("boxes were told %s", said)
	}
	if res, text := s.do("DELETE", "/console/api/v1/sessions/bbbb2", ""); res.StatusCode != http.StatusOK {
		t.Errorf("end: %d %s", res.StatusCode, text)
	}
	if got, _, err := s.store.Load(t.Context(), "bbbb2", ""); err != nil || got.State != storage.Ended {
		t.Errorf("the session is %s, %v", got.State, err)
	}
}

// user makes a token, as the authorization server does for a user of groups.
func (s *stack) user(tenant, who string, groups ...string) string {
	s.t.Helper()
	sealer, err := resourceserver.NewTokenSealer([]byte(strings.Repeat("s", 32)))
	commontest.OK(s.t, err)
	claims, err := json.Marshal(map[string][]string{"groups": groups})
	commontest.OK(s.t, err)
	return resourceserver.SealToken(sealer, resourceserver.Token{
		Grant: "grant-of-" + who, Tenant: tenant, Principal: who, Server: resourceserver.Console, Claims: claims, Expires: time.Now().Add(time.Hour).Unix(),
	})
}

func TestUsersOfAProviderHaveTheirRoleAtTheConsole(t *testing.T) {
	s := newStack(t)
	s.access = &resourceserver.Settings{PublicURL: "https://" + host, Issuer: "https://login.example.com", Brokered: resourceserver.Brokered{
		Roles: map[string]resourceserver.Rule{"operator": {Groups: []string{"sre"}}, "viewer": {Groups: []string{"eng"}}},
	}}
	s.has("aaaa1", "acme", "one")
	stop := func() int {
		res, _ := s.do("POST", "/console/api/v1/servers/one/stop", "{}")
		return res.StatusCode
	}
	s.signIn(s.user("acme", "okta:1", "sre"))
	if _, text := s.do("GET", "/console/api/v1/", ""); !strings.Contains(text, `"role":"operator"`) || !strings.Contains(text, `"user":true`) || !strings.Contains(text, `"sign_in":"login.example.com"`) {
		t.Errorf("an operator is told %s", text)
	}
	commontest.EqualIn(t, "an operator stops", http.StatusOK, stop())
	if said := s.posted.Take(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "okta:1") {
		t.Errorf("boxes were told %s", said)
	}
	s.signIn(s.user("acme", "okta:2", "eng"))
	commontest.EqualIn(t, "a viewer stops", http.StatusForbidden, stop())
	clear(s.cookies)
	other := s.user("acme", "okta:3", "others")
	if res, text := s.do("POST", "/console/session", `{"key":"`+other+`"}`); res.StatusCode != http.StatusForbidden || res.Header.Get("Set-Cookie") != "" {
		t.Errorf("a user without a role signs in: %d %s", res.StatusCode, text)
	}
	if log := s.log.String(); strings.Contains(log, "da_") || !strings.Contains(log, `"principal":"okta:1"`) {
		t.Errorf("the log is %s", log)
	}
	s.signIn(s.user("acme", "ada", "sre"))
	commontest.OK(t, resourceserver.Revoke(t.Context(), s.store, "grant-of-ada", "acme"))
	commontest.EqualIn(t, "an operator whose grant was revoked stops", http.StatusUnauthorized, stop())
	s.access = nil // Access is now keys
	if res, _ := s.do("POST", "/console/session", `{"key":"`+s.user("acme", "okta:1", "sre")+`"}`); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("a token where there is no sign-in: %d", res.StatusCode)
	}
}
