package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/config/override"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// place is an API over a store in memory, with keys of all roles.
type place struct {
	t      *testing.T
	store  *storagetest.Memory
	url    string
	keys   map[string]string
	halted []string // box, session, by and time
}

func newPlace(t *testing.T, change ...func(*api.Options)) *place {
	t.Helper()
	file, _, err := serversfile.Parse([]byte(`{"mcpServers":{"one":{"command":"a","x-dormouse":{"tools":{"descriptions":{"echo":"Says it"}}}},"two":{"command":"b"},"off":{"command":"c","disabled":true},"bad":{"command":1}}}`), "servers.json", nil)
	commontest.OK(t, err)
	p := &place{t: t, store: storagetest.NewMemory(), keys: map[string]string{}}
	for name, g := range map[string]apikey.Grant{
		"user":     {Tenant: "acme", Principal: "ada", Servers: []string{"*"}},
		"viewer":   {Tenant: "acme", Principal: "vic", Servers: []string{"*"}, Role: storage.RoleViewer},
		"operator": {Tenant: "acme", Principal: "olga", Servers: []string{"*"}, Role: storage.RoleOperator},
		"narrow":   {Tenant: "acme", Principal: "nora", Servers: []string{"two"}, Role: storage.RoleOperator},
		"owner":    {Tenant: "default", Principal: "olaf", Servers: []string{"*"}, Role: storage.RoleOperator},
		"stranger": {Tenant: "other", Principal: "sam", Servers: []string{"*"}, Role: storage.RoleOperator},
	} {
		if p.keys[name], _, err = apikey.Create(t.Context(), p.store, g); err != nil {
			t.Fatal(err)
		}
	}
	o := api.Options{
		Info: api.Info{Place: api.PlaceStack}, Store: p.store, Caller: api.Holders(apikey.NewKeys(p.store), nil),
		Servers: func() *serversfile.File { return file },
		Acts: api.Acts{
			End: func(ctx context.Context, id storage.ID) error {
				_, err := p.change(ctx, id, func(s *storage.Session) { s.State, s.Quit = storage.Ended, storage.QuitService })
				return err
			},
			Give: func(ctx context.Context, id storage.ID, principal string) ([]storage.Session, error) {
				s, err := p.change(ctx, id, func(s *storage.Session) { s.Principal = principal })
				return []storage.Session{s}, err
			},
			Halt: func(_ context.Context, box storage.BoxID, h frame.Halt) (bool, error) {
				p.halted = append(p.halted, strings.Join([]string{string(box), string(h.Session), h.By, h.Within().String()}, " "))
				return true, nil
			},
		},
	}
	for _, c := range change {
		c(&o)
	}
	s := httptest.NewServer(api.New(o))
	t.Cleanup(s.Close)
	p.url = s.URL
	p.fill(file)
	return p
}

func (p *place) change(ctx context.Context, id storage.ID, f func(*storage.Session)) (storage.Session, error) {
	s, _, err := p.store.Load(ctx, id, "")
	if f(&s); err == nil {
		err = p.store.Save(ctx, s)
	}
	return s, err
}

// fill stores two sessions of acme and one of another tenant, their boxes, and a list of
// tools.
func (p *place) fill(file *serversfile.File) {
	p.t.Helper()
	now := time.Now()
	for id, server := range map[storage.ID]string{"aaaa1": "one", "aaab2": "two", "bbbb3": "one"} {
		s := storage.Session{ID: id, Server: server, Tenant: "acme", Principal: "ada", State: storage.Ready, Transport: storage.HTTP, Created: now, Used: now, Expires: now.Add(time.Hour), Init: []byte(`{"clientInfo":{"name":"cursor"}}`)}
		if id == "bbbb3" {
			s.Tenant = "other"
		}
		commontest.OK(p.t, p.store.Create(p.t.Context(), s))
		b := storage.Box{ID: storage.BoxFor(s.Tenant, server), Tenant: s.Tenant, Server: server, Gen: 1, State: storage.Awake, Conn: "c", Changed: now}
		commontest.OK(p.t, p.store.SaveBox(p.t.Context(), b))
	}
	one, _ := file.Server("one")
	commontest.OK(p.t, p.store.SaveHandshake(p.t.Context(), storage.Handshake{
		Digest: storage.RecordFor("acme", one.Digest), Version: "tools/list 2025-11-25  x", Taken: now, Expires: now.Add(time.Hour),
		Result: []byte(`{"gen":1,"list":{"tools":[{"name":"echo"},{"name":"add"}]}}`),
	}))
}

func (p *place) ask(as, method, path, body string, into any) (status int, text string) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, strings.NewReader(body))
	commontest.OK(p.t, err)
	if key := p.keys[as]; key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := http.DefaultClient.Do(r)
	commontest.OK(p.t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	commontest.OK(p.t, err)
	if into != nil && res.StatusCode == http.StatusOK {
		commontest.OKIn(p.t, string(raw), json.Unmarshal(raw, into))
	}
	return res.StatusCode, string(raw)
}

func code(text string) string {
	var f api.Failure
	_ = json.Unmarshal([]byte(text), &f)
	return f.Error.Code
}

// gets checks the status of an answer, and fails the code of a refusal.
func (p *place) gets(want int, as, route, body string) {
	p.t.Helper()
	method, path, _ := strings.Cut(route, " ")
	if status, text := p.ask(as, method, "/api/v1/"+path, body, nil); status != want {
		p.t.Errorf("%s as %q: %d %s, want %d", route, as, status, text, want)
	}
}

func (p *place) fails(want, as, route, body string) {
	p.t.Helper()
	method, path, _ := strings.Cut(route, " ")
	if _, text := p.ask(as, method, "/api/v1/"+path, body, nil); code(text) != want {
		p.t.Errorf("%s as %q: %s, want %s", route, as, text, want)
	}
}

func TestEachRouteNeedsTheRoleOfItsTable(t *testing.T) {
	see := []string{"GET /api/v1/", "GET /api/v1/servers", "GET /api/v1/servers/one/tools", "GET /api/v1/processes", "GET /api/v1/sessions", "GET /api/v1/keys", "GET /api/v1/people", "GET /api/v1/changes", "GET /api/v1/servers/one/starts", "GET /api/v1/bill"}
	act := []string{
		"POST /api/v1/servers/one/stop", "POST /api/v1/stop", "POST /api/v1/sessions/aaaa1/stop", "DELETE /api/v1/sessions/aaaa1", "POST /api/v1/sessions/aaaa1/give", "POST /api/v1/keys",
		"POST /api/v1/keys/none/rotate", "DELETE /api/v1/keys/none", "GET /api/v1/logs", "GET /api/v1/servers/one/settings", "POST /api/v1/entry",
	}
	for _, route := range slices.Concat(see, act) {
		method, path, _ := strings.Cut(route, " ")
		for as, may := range map[string]bool{"": false, "user": false, "viewer": slices.Contains(see, route), "operator": true} {
			status, text := newPlace(t).ask(as, method, path, "", nil)
			refused := status == http.StatusUnauthorized || status == http.StatusForbidden
			if refused == may || as == "" && code(text) != "unauthenticated" || as == "user" && code(text) != "forbidden" {
				t.Errorf("%s as %q: %d %s", route, as, status, text)
			}
		}
	}
}

func TestServersHaveStateToolsAndSessionsOfTheCallersTenant(t *testing.T) {
	p := newPlace(t)
	var all struct{ Servers []api.Server }
	if status, text := p.ask("viewer", "GET", "/api/v1/servers", "", &all); status != http.StatusOK {
		t.Fatal(text)
	}
	got := map[string]string{}
	for _, s := range all.Servers {
		got[s.Name] = s.State
		if s.Name == "one" && (s.Sessions != 1 || s.Tools == nil || *s.Tools != 2 || s.Path != "/one/mcp" || s.LastMessage == nil) {
			t.Errorf("%+v", s)
		}
	}
	commontest.Same(t, map[string]string{"one": api.Awake, "two": api.Awake, "off": api.Off, "bad": api.NotServed}, got)
	var tools api.Tools
	if p.ask("viewer", "GET", "/api/v1/servers/one/tools", "", &tools); len(tools.Tools) != 2 || string(tools.Tools[0]) != `{"description":"Says it","name":"echo"}` {
		t.Errorf("%+v", tools)
	}
	for path, want := range map[string]string{"two": "not_found", "oen": "not_found", "bad": "unavailable"} {
		p.fails(want, "viewer", "GET servers/"+path+"/tools", "")
	}
}

func TestCallerSeesAndTouchesNothingOfOthers(t *testing.T) {
	p := newPlace(t)
	ids := func(as, query string) (all []string) {
		var page api.Sessions
		if status, text := p.ask(as, "GET", "/api/v1/sessions"+query, "", &page); status != http.StatusOK {
			t.Fatal(text)
		}
		for _, s := range page.Sessions {
			all = append(all, s.ID)
		}
		if page.Next != "" {
			all = append(all, "and more after "+page.Next)
		}
		return all
	}
	for _, test := range []struct {
		as, query string
		want      []string
	}{
		{"viewer", "", []string{"aaaa1", "aaab2"}},
		{"viewer", "?server=two", []string{"aaab2"}},
		{"viewer", "?principal=bob", nil},
		{"viewer", "?limit=1", []string{"aaaa1", "and more after aaaa1"}},
		{"viewer", "?after=aaaa1", []string{"aaab2"}},
		{"narrow", "", []string{"aaab2"}},
		{"stranger", "", []string{"bbbb3"}},
	} {
		commontest.SameIn(t, test.as+test.query, test.want, ids(test.as, test.query))
	}
	for _, as := range []string{"narrow", "stranger"} {
		for _, route := range []string{"DELETE sessions/aaaa1", "POST sessions/aaaa1/stop", "POST sessions/aaaa1/give", "DELETE sessions/aaaa"} {
			p.fails("not_found", as, route, "")
		}
	}
	if _, text := p.ask("narrow", "POST", "/api/v1/servers/one/stop", "", nil); code(text) != "not_found" || len(p.halted) > 0 {
		t.Errorf("%s, %v", text, p.halted)
	}
	p.fails("forbidden", "narrow", "POST keys", `{"principal":"x","servers":["*"]}`)
	p.fails("forbidden", "operator", "POST keys", `{"principal":"x","tenant":"other","servers":["one"]}`)
	id := strings.Split(p.keys["operator"], "_")[1]
	p.fails("not_found", "stranger", "DELETE keys/"+id, "")
	p.fails("not_found", "stranger", "POST keys/"+id+"/rotate", "")
}

func TestStopTellsTheBoxesOfTheCaller(t *testing.T) {
	for _, test := range []struct {
		as, path, body string
		want           []string
	}{
		{"operator", "servers/one/stop", "", []string{"acme/one  olga 30s"}},
		{"operator", "servers/one/stop", `{"now":true}`, []string{"acme/one  olga 0s"}},
		{"operator", "sessions/aaab/stop", `{"now":false}`, []string{"acme/two aaab2 olga 30s"}},
		{"operator", "stop", "", []string{"acme/one  olga 30s", "acme/two  olga 30s"}},
		{"narrow", "stop", "", []string{"acme/two  nora 30s"}},
	} {
		p := newPlace(t)
		var told api.Stopped
		status, text := p.ask(test.as, "POST", "/api/v1/"+test.path, test.body, &told)
		slices.Sort(p.halted)
		if status != http.StatusOK || len(told.Boxes) != len(test.want) || !slices.Equal(p.halted, test.want) {
			t.Errorf("%s: %d %s, halted %q, want %q", test.path, status, text, p.halted, test.want)
		}
	}
	p := newPlace(t)
	p.fails("invalid", "operator", "POST sessions/aaa/stop", "")
	p.fails("invalid", "operator", "POST stop", `{"when":1}`)
}

// A session that is given away loses its process, which may have secrets of the principal
// before.
func TestASessionIsGivenToAnotherPrincipal(t *testing.T) {
	p := newPlace(t)
	var s api.Session
	status, text := p.ask("operator", "POST", "/api/v1/sessions/aaab/give", `{"principal":"bob"}`, &s)
	if status != http.StatusOK || s.Principal != "bob" || s.ID != "aaab2" || !slices.Equal(p.halted, []string{"acme/two aaab2 olga 0s"}) {
		t.Errorf("%d %s, halted %q", status, text, p.halted)
	}
	member := storage.Session{ID: "cccc4", Server: "one", Tenant: "acme", Principal: "ada", State: storage.Ready, Group: "dddd5", Expires: time.Now().Add(time.Hour)}
	commontest.OK(t, p.store.Create(t.Context(), member))
	if _, text := p.ask("operator", "POST", "/api/v1/sessions/cccc4/give", `{"principal":"bob"}`, nil); code(text) != "invalid" || !strings.Contains(text, "dddd5") {
		t.Error(text)
	}
}

// What was given before an error is the new principal's already.
func TestAnErrorLeavesNoGivenSessionItsProcess(t *testing.T) {
	p := newPlace(t, func(o *api.Options) {
		give, halt := o.Give, o.Halt
		o.Give = func(ctx context.Context, id storage.ID, principal string) ([]storage.Session, error) {
			given, _ := give(ctx, id, principal)
			given = append(given, storage.Session{ID: "member", Server: "one", Tenant: "acme"})
			return given, storage.Errorf(storage.Unavailable, "the store is away")
		}
		o.Halt = func(ctx context.Context, box storage.BoxID, h frame.Halt) (bool, error) {
			_, _ = halt(ctx, box, h)
			return false, storage.Errorf(storage.Unavailable, "the box is away")
		}
	})
	_, text := p.ask("operator", "POST", "/api/v1/sessions/aaab/give", `{"principal":"bob"}`, nil)
	if want := []string{"acme/two aaab2 olga 0s", "acme/one member olga 0s"}; code(text) != "unavailable" || !strings.Contains(text, "the store is away") || !slices.Equal(p.halted, want) {
		t.Errorf("%s, halted %q", text, p.halted)
	}
}

func TestKeysAreMadeRotatedAndRevoked(t *testing.T) {
	p := newPlace(t)
	for life, want := range map[string]int{"": api.KeyDays, `,"life_seconds":null`: api.KeyDays, `,"life_seconds":86400`: 1, `,"life_seconds":0`: 0} {
		var k api.Key
		if p.ask("operator", "POST", "/api/v1/keys", `{"principal":"eve","servers":["one"]`+life+`}`, &k); want == 0 != (k.Expires == nil) || k.Expires != nil && int(k.Expires.Sub(k.Created).Hours()) != 24*want {
			t.Errorf("with %q the key ends at %v", life, k.Expires)
		}
	}
	var made api.Key
	if status, text := p.ask("operator", "POST", "/api/v1/keys", `{"principal":"eve","servers":["one"],"role":"viewer","life_seconds":3600}`, &made); status != http.StatusOK ||
		made.Tenant != "acme" || made.Role != "viewer" || made.Expires == nil || !strings.HasPrefix(made.Key, "dm_") {
		t.Fatalf("%s", text)
	}
	var next api.Rotated
	if status, text := p.ask("operator", "POST", "/api/v1/keys/"+made.ID+"/rotate", `{"grace_seconds":60}`, &next); status != http.StatusOK || next.Key.Principal != "eve" || next.Old.ID != made.ID || next.Old.Key != "" {
		t.Errorf("%s", text)
	}
	if status, text := p.ask("operator", "DELETE", "/api/v1/keys/"+next.Key.ID, "", nil); status != http.StatusOK || !strings.Contains(text, `"revoked"`) {
		t.Errorf("%s", text)
	}
	if _, text := p.ask("operator", "POST", "/api/v1/keys", `{"principal":"eve","servers":["oen"]}`, nil); code(text) != "invalid" || !strings.Contains(text, "did you mean one?") {
		t.Errorf("%s", text)
	}
}

func TestWhatAPlaceDoesNotHaveIsSaid(t *testing.T) {
	p := newPlace(t, func(o *api.Options) { o.Halt, o.End, o.Give, o.Servers = nil, nil, nil, nil })
	for _, route := range []string{"GET servers", "GET logs", "GET bill", "GET calls", "GET series", "GET metrics", "POST stop", "POST sessions/aaaa1/stop", "POST sessions/aaaa1/give", "DELETE sessions/aaaa1"} {
		p.fails("not_here", "operator", route, "")
	}
	p.fails("not_found", "operator", "GET nothing", "")
}

func TestOutputAndUseAreOfTheCallersTenantAndServers(t *testing.T) {
	p := newPlace(t, func(o *api.Options) {
		o.Output = func(_ context.Context, of api.Outputs, emit func(api.Output) error) error {
			for _, out := range []api.Output{
				{Server: "one", Process: "aaaa1", Text: "ours\n"},
				{Server: "one", Process: "bbbb3", Text: "theirs\n"},
				{Server: "two", Process: "shared", Shared: []string{"gone", "aaab2"}, Text: "shared\n"},
				{Server: "one", Process: "gone", Text: "whose?\n"},
			} {
				if err := emit(out); err != nil {
					return err
				}
			}
			return nil
		}
		o.Bill = func(context.Context, time.Time) (api.Bill, error) {
			return api.Bill{Shares: []api.Share{{Server: "one", Tenant: "acme"}, {Server: "two", Tenant: "acme"}, {Server: "one", Tenant: "other"}, {}}}, nil
		}
	})
	for as, want := range map[string][]string{"operator": {"ours", "shared"}, "narrow": {"shared"}, "stranger": {"theirs"}} {
		_, text := p.ask(as, "GET", "/api/v1/logs", "", nil)
		var got []string
		for line := range strings.Lines(text) {
			var o api.Output
			commontest.OKIn(t, text, json.Unmarshal([]byte(line), &o))
			got = append(got, strings.TrimSpace(o.Text))
		}
		commontest.SameIn(t, as, want, got)
	}
	for as, want := range map[string]int{"viewer": 2, "narrow": 1, "stranger": 1} {
		var b api.Bill
		p.ask(as, "GET", "/api/v1/bill?since=1h", "", &b)
		commontest.EqualIn(t, "shares that "+as+" sees", want, len(b.Shares))
	}
	p.fails("invalid", "viewer", "GET bill?since=soon", "")
}

func TestWebPagesAreRefused(t *testing.T) {
	p := newPlace(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/api/v1/", nil)
	commontest.OK(t, err)
	r.Header.Set("Authorization", "Bearer "+p.keys["operator"])
	r.Header.Set("Origin", "https://evil.example")
	res, err := http.DefaultClient.Do(r)
	if err != nil || res.StatusCode != http.StatusForbidden {
		t.Fatalf("%v %v", res, err)
	}
	_ = res.Body.Close()
}

func TestOwnerOfAMachineSeesAllTenants(t *testing.T) {
	p := newPlace(t, func(o *api.Options) {
		o.Caller = api.Owner("secret")
		o.Status = func(context.Context) (api.Status, error) {
			return api.Status{Failed: map[string]string{"one": "no key"}}, nil
		}
	})
	p.keys["owner"], p.keys["wrong"] = "secret", "secre"
	var all struct{ Servers []api.Server }
	if p.ask("owner", "GET", "/api/v1/servers", "", &all); all.Servers[0].State != api.Failed || all.Servers[0].Start != api.FailedLast {
		t.Errorf("a server that failed, and of which nothing runs, is %+v", all.Servers[0])
	}
	var page api.Sessions
	if p.ask("owner", "GET", "/api/v1/sessions", "", &page); len(page.Sessions) != 3 {
		t.Errorf("%+v", page)
	}
	if p.ask("owner", "GET", "/api/v1/sessions?tenant=acme", "", &page); len(page.Sessions) != 2 {
		t.Errorf("of one tenant: %+v", page)
	}
	p.gets(http.StatusUnauthorized, "wrong", "GET sessions", "")
}

// A box stays up for a while after its process has failed. Its server must not look like
// one that answers.
func TestStateTellsServersThatFailedFromThoseThatAreAwake(t *testing.T) {
	now := time.Now()
	boxes := []api.Box{{Box: "default/one", Server: "one"}, {Box: "acme/one", Server: "one"}, {Box: "default/two", Server: "two"}}
	process := func(server, state, detail string, ago time.Duration) api.Process {
		return api.Process{Server: server, State: state, Detail: detail, Since: now.Add(-ago)}
	}
	exited := process("one", "exited", "server \"one\": exited with code 1: no key\nTraceback", time.Minute)
	for name, test := range map[string]struct {
		all     []api.Process
		state   string
		running int
		why     string
	}{
		"nothing is known yet": {[]api.Process{}, api.Starting, 0, ""},
		"it is tried again":    {[]api.Process{exited, process("one", "started", "", 0)}, api.Starting, 1, "exited with code 1: no key"},
		"it works again":       {[]api.Process{exited, process("one", "stopped", "", 0)}, api.Awake, 0, ""},
		"it answers":           {[]api.Process{exited, process("one", "ready", "", 0)}, api.Awake, 1, ""},
		"it has failed":        {[]api.Process{process("one", "exited", "older", time.Hour), exited}, api.Failed, 0, "exited with code 1: no key"},
		"another answers":      {[]api.Process{exited, process("two", "ready", "", 0)}, api.Failed, 0, "exited with code 1: no key"},
	} {
		t.Run(name, func(t *testing.T) {
			state, up, running, why := api.StateOf("one", api.Status{Boxes: boxes, Processes: test.all})
			sleeping := []api.Box{{Server: "one", State: api.Asleep}}
			if state, up, _, why := api.StateOf("one", api.Status{Boxes: sleeping, Processes: test.all}); state != api.Asleep || up != 0 || why != "" {
				t.Errorf("%s, and its box sleeps: %s, %d boxes, %q", name, state, up, why)
			}
			failed := api.Status{Boxes: sleeping, Processes: test.all, Failed: map[string]string{"one": "no key"}}
			if state, up, _, why := api.StateOf("one", failed); state != api.Failed || up != 0 || why != "no key" {
				t.Errorf("%s, its box sleeps, and its last start has failed: %s, %d boxes, %q", name, state, up, why)
			}
			if state != test.state || up != 2 || running != test.running || why != test.why {
				t.Errorf("%s: %s, %d boxes, %d processes, %q", name, state, up, running, why)
			}
		})
	}
}

func TestReloadIsForKeysOfAllServers(t *testing.T) {
	reload := func(o *api.Options) { o.Reload = func() api.Reloaded { return api.Reloaded{Changes: "+ more"} } }
	p := newPlace(t, reload)
	var got api.Reloaded
	if status, text := p.ask("operator", "POST", "/api/v1/reload", "", &got); status != http.StatusOK || got.Changes != "+ more" {
		t.Errorf("%d %s", status, text)
	}
	for _, as := range []string{"viewer", "narrow"} {
		p.gets(http.StatusForbidden, as, "POST reload", "")
	}
	newPlace(t).fails("not_here", "operator", "POST reload", "")
}

// What was said before a stop or a reload may be old. Whoever only puts boxes to sleep keeps
// the record.
func TestStopAndReloadForgetRecords(t *testing.T) {
	for _, c := range []struct{ path, body, forgotten string }{
		{"servers/one/stop", "{}", "acme/one other/one"},
		{"servers/one/stop", `{"keep":true}`, ""},
		{"stop", `{"now":true}`, "acme/one other/one acme/two other/two"},
		{"sessions/aaaa1/stop", "{}", ""},
		{"reload", "", "acme/one other/one acme/two other/two"},
		{"reload", `{"forget":["two"]}`, "acme/two other/two"},
		{"reload", `{"forget":[]}`, ""},
	} {
		var forgotten []string
		p := newPlace(t, func(o *api.Options) {
			o.Reload = func() api.Reloaded { return api.Reloaded{} }
			o.Forget = func(_ context.Context, tenant string, s serversfile.Server) error {
				if tenant != "local" && tenant != "default" && s.Name != "off" { // which have no sessions here
					forgotten = append(forgotten, tenant+"/"+s.Name)
				}
				return nil
			}
			o.Caller = func(*http.Request, apikey.Right) (api.Caller, error) { return api.Machine("me"), nil }
		})
		if status, text := p.ask("", "POST", "/api/v1/"+c.path, c.body, nil); status != http.StatusOK {
			t.Fatalf("%s: %d %s", c.path, status, text)
		}
		commontest.EqualIn(t, fmt.Sprintf("%s %s forgets", c.path, c.body), c.forgotten, strings.Join(forgotten, " "))
	}
	broken := newPlace(t, func(o *api.Options) {
		o.Reload = func() api.Reloaded { return api.Reloaded{Error: "a comma is missing"} }
		o.Forget = func(context.Context, string, serversfile.Server) error {
			t.Error("a record of a broken file is forgotten")
			return nil
		}
	})
	broken.ask("operator", "POST", "/api/v1/reload", "", nil)
}

// The servers file says what runs for all tenants, so only the owner of the stack pushes it.
func TestAPushIsForTheOwnerOfTheStack(t *testing.T) {
	takes := func(o *api.Options) { o.Pushed = true }
	p := newPlace(t, takes)
	push := func(text string) string {
		body, err := json.Marshal(api.Push{Name: "servers.json", Text: text})
		commontest.OK(t, err)
		return string(body)
	}
	const file = `{"mcpServers":{"one":{"command":"a"},"three":{"command":"c"}}}`
	for _, as := range []string{"user", "viewer", "narrow", "operator", "stranger"} {
		p.gets(http.StatusForbidden, as, "PUT servers", push(file))
	}
	var got api.Pushed
	if status, text := p.ask("owner", "PUT", "/api/v1/servers", push(file), &got); status != http.StatusOK || got.Version != 1 {
		t.Errorf("%d %s", status, text)
	}
	if f, err := override.Load(t.Context(), p.store); err != nil || string(f.Text) != file || f.By != "olaf" || f.Version != 1 {
		t.Errorf("stored is %+v, %v", f, err)
	}
	for name, text := range map[string]string{
		"a mistake": `{"mcpServers":{"one":{"command":1}}}`, "a variable": `{"mcpServers":{"one":{"command":"a","env":{"A":"${HOME}"}}}}`,
		"a secret": `{"mcpServers":{"one":{"command":"a","env":{"TOKEN":"abc"}}}}`, "nothing": "",
	} {
		if status, text := p.ask("owner", "PUT", "/api/v1/servers", push(text), nil); status != http.StatusBadRequest || strings.Contains(text, "abc") {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if status, text := p.ask("owner", "PUT", "/api/v1/servers", push(strings.Repeat(" ", override.MaxFile)+file), nil); status != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %d %s", status, text)
	}
	if status, text := p.ask("owner", "PUT", "/api/v1/servers", `{"name":"servers.json","withdraw":true}`, &got); status != http.StatusOK || got.Version != 2 {
		t.Errorf("withdrawn: %d %s", status, text)
	}
	newPlace(t).fails("not_here", "owner", "PUT servers", push(file))
}

func TestCallsAreOfTheCallersTenantAndServers(t *testing.T) {
	var asked api.CallQuery
	p := newPlace(t, func(o *api.Options) {
		o.Calls = func(_ context.Context, q api.CallQuery) (api.Calls, error) {
			asked = q
			return api.Calls{Calls: []api.Call{}}, nil
		}
		o.Series = func(_ context.Context, q api.SeriesQuery) (api.Series, error) {
			if q.Tenant != "acme" || time.Since(q.Since) > 25*time.Hour {
				t.Errorf("the series of %+v", q)
			}
			return api.Series{Buckets: []api.Bucket{{Server: "one", Calls: 3, Failed: 1}, {Server: "one", Calls: 2}}}, nil
		}
		o.Metrics = func(w io.Writer, may func(tenant, server string) bool) error {
			_, err := fmt.Fprintln(w, may("acme", "one"), may("acme", "two"), may("other", "two"))
			return err
		}
	})
	p.gets(http.StatusOK, "narrow", "GET calls?server=two&tool=add&principal=ada&failed=true&since=2h&after=7&limit=5", "")
	if age := time.Since(asked.Since); age < 2*time.Hour || age > 3*time.Hour {
		t.Errorf("calls since %v", asked.Since)
	}
	asked.Since = time.Time{}
	want := api.CallQuery{Tenant: "acme", Server: "two", Principal: "ada", Tool: "add", Servers: []string{"two"}, Failed: true, After: "7", Limit: 5}
	commontest.SameIn(t, "narrow asks", want, asked)
	if p.ask("viewer", "GET", "/api/v1/calls?tenant=other", "", nil); asked.Servers != nil || asked.Tenant != "acme" || asked.Limit != 100 {
		t.Errorf("viewer asks %+v", asked)
	}
	for _, wrong := range []string{"calls?limit=0", "calls?since=soon", "series?since=-1h"} {
		p.fails("invalid", "viewer", "GET "+wrong, "")
	}
	var list struct{ Servers []api.Server }
	if p.ask("viewer", "GET", "/api/v1/servers", "", &list); *list.Servers[0].Calls != 5 || *list.Servers[0].FailedCalls != 1 || *list.Servers[1].Calls != 0 {
		t.Errorf("%+v", list)
	}
	for who, want := range map[string]string{"narrow": "false true false\n", "owner": "true true true\n", "viewer": "true true false\n"} {
		_, text := p.ask(who, "GET", "/api/v1/metrics", "", nil)
		commontest.EqualIn(t, "the metrics of "+who, want, text)
	}
	if p.ask("owner", "GET", "/api/v1/calls", "", nil); asked.Tenant != "default" {
		t.Errorf("the owner's key reads the calls of tenant %q", asked.Tenant)
	}
	p.gets(http.StatusForbidden, "user", "GET calls", "")
}

// A machine has a box that sleeps, although its runner is still there. The list of servers has
// what is wrong with the servers file, and the number of tools of native servers.
func TestAMachineTellsWhatItKnowsBesideTheStore(t *testing.T) {
	native, _, err := serversfile.Parse([]byte(`{"mcpServers":{"one":{"command":"a"},"own":{"x-dormouse":{"native":"own"}},"lost":{"x-dormouse":{"native":"lost"}}}}`), "servers.json", nil)
	commontest.OK(t, err)
	last := map[string][]api.Start{"other": {{Failed: true, Reason: "no key"}}}
	p := newPlace(t, func(o *api.Options) {
		o.Servers = func() *serversfile.File { return native }
		o.Notes = func() []string { return []string{"servers.json:1:1: it is broken"} }
		o.Starts = func(_ context.Context, q api.StartQuery) ([]api.Start, error) { return last[q.Tenant], nil }
		o.NativeTools = func(_ context.Context, tenant, server string) ([]json.RawMessage, error) {
			if server == "lost" {
				return nil, storage.Errorf(storage.NotFound, "no such server")
			}
			return []json.RawMessage{[]byte(`{"name":"of-` + tenant + `"}`)}, nil
		}
		o.Status = func(context.Context) (api.Status, error) {
			return api.Status{
				Boxes:     []api.Box{{Box: "acme/one", Server: "one", Task: "t1"}},
				Processes: []api.Process{{Server: "one", Box: "acme/one", Process: "aaaa1", Sessions: []string{"aaaa1"}, State: "ready"}},
				Failed:    map[string]string{"one": "for another tenant's eyes"},
			}, nil
		}
	})
	var all struct {
		Servers []api.Server
		Notes   []string
	}
	p.ask("operator", "GET", "/api/v1/servers", "", &all)
	if len(all.Servers) != 3 || all.Servers[0].State != api.Awake || len(all.Notes) != 1 {
		t.Errorf("the list is %+v", all)
	}
	if own, lost := all.Servers[1].Tools, all.Servers[2].Tools; own == nil || *own != 1 || lost != nil {
		t.Errorf("the native servers are %+v", all.Servers[1:])
	}
	if _, text := p.ask("operator", "GET", "/api/v1/servers/own/tools", "", nil); !strings.Contains(text, "of-acme") {
		t.Errorf("the tools are %s", text)
	}
	var told api.Stopped
	if p.ask("operator", "POST", "/api/v1/servers/own/stop", "", &told); told.Why == "" {
		t.Errorf("stop says %+v", told)
	}
	var status api.Status
	p.ask("operator", "GET", "/api/v1/processes", "", &status)
	if one := status.Processes[0]; one.Principal != "ada" || one.Client != "cursor" || one.LastCall == nil {
		t.Errorf("the process is %+v", one)
	}
	b, err := p.store.Box(t.Context(), "acme/one")
	if err == nil {
		b.State, b.Task = storage.Asleep, "t1"
		err = p.store.SaveBox(t.Context(), b)
	}
	commontest.OK(t, err)
	p.ask("operator", "GET", "/api/v1/servers", "", &all)
	if s := all.Servers[0]; s.State != api.Asleep || s.Why != "" {
		t.Errorf("with a box that sleeps, the server is %+v", s)
	}
	last["acme"] = last["other"]
	p.ask("operator", "GET", "/api/v1/servers", "", &all)
	if s := all.Servers[0]; s.State != api.Failed || s.Why != "no key" {
		t.Errorf("after a start for the tenant failed, the server is %+v", s)
	}
	if p.ask("owner", "GET", "/api/v1/servers", "", &all); all.Servers[0].Start != api.FailedLast || strings.Contains(all.Servers[0].Why, "eyes") {
		t.Errorf("the owner sees of another tenant's failure %+v", all.Servers[0])
	}
	if p.ask("narrow", "GET", "/api/v1/servers", "", &all); len(all.Servers) != 0 {
		t.Errorf("a key for another server sees %+v", all)
	}
}

func TestVersionIsDormousesOwnAlsoInAProgramOfAnother(t *testing.T) {
	deps := []*debug.Module{{Path: "example.com/other", Version: "v9.0.0"}, {Path: "github.com/dormouse-mcp/dormouse", Version: "v0.2.0"}}
	commontest.Equal(t, "v0.2.0", api.VersionIn(&debug.BuildInfo{Main: debug.Module{Path: "example.com/hello", Version: "v3.1.0"}, Deps: deps}))
}
