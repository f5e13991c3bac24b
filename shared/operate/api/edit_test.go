package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// edited returns the options of a machine that notes what it is told.
func edited(told *[]string) func(*api.Options) {
	note := func(words ...string) { *told = append(*told, strings.Join(words, " ")) }
	return func(o *api.Options) {
		o.Info.URL = "https://mcp.example.com"
		o.Edits = api.Edits{
			Add: func(_ context.Context, s api.NewServer) (string, error) {
				if s.Name == "bad" {
					return "", errors.New("bad was not added: it did not start")
				}
				note("add", s.Name, s.What, strings.Join(s.Env, " "))
				return "added " + s.Name, nil
			},
			Switch: func(_ context.Context, server string, on bool) error {
				note("switch", server, map[bool]string{true: "on", false: "off"}[on])
				return nil
			},
			SetValue: func(_ context.Context, server, name, _ string) error {
				note("set", server, name)
				return nil
			},
		}
		o.Vitals = func(context.Context) (api.Vitals, error) { return api.Vitals{Processors: 2}, nil }
	}
}

// A key must not become a command on the machine, so only its user edits.
func TestOnlyTheUserOfTheMachineEdits(t *testing.T) {
	var told []string
	p := newPlace(t, edited(&told))
	orders := map[string]string{
		"/api/v1/servers":            `{"name":"new","what":"npx -y x","env":["A=1"]}`,
		"/api/v1/servers/one/switch": `{"on":false}`,
		"/api/v1/servers/one/value":  `{"name":"A","value":"secret"}`,
	}
	for path, body := range orders {
		for _, who := range []string{"", "user", "viewer", "narrow", "operator", "owner"} {
			if status, text := p.ask(who, "POST", path, body, nil); status != http.StatusForbidden && (who != "" || status != http.StatusUnauthorized) {
				t.Errorf("%s by %q: %d %s", path, who, status, text)
			}
		}
	}
	if told != nil {
		t.Error("edited:", told)
	}
	var o api.Options
	edited(&told)(&o)
	o.Store, o.Caller = p.store, func(*http.Request, apikey.Right) (api.Caller, error) { return api.Machine("the user"), nil }
	machine := httptest.NewServer(api.New(o))
	defer machine.Close()
	p.url = machine.URL
	for path, body := range orders {
		if status, text := p.ask("", "POST", path, body, nil); status != http.StatusOK {
			t.Errorf("%s by the user: %d %s", path, status, text)
		}
	}
	if len(told) != 3 {
		t.Error("edited:", told)
	}
	if status, text := p.ask("", "POST", "/api/v1/servers", `{"name":"bad","what":"x"}`, nil); status != http.StatusBadRequest || !strings.Contains(text, "it did not start") {
		t.Errorf("a server that does not start: %d %s", status, text)
	}
	var info api.Info
	if p.ask("", "GET", "/api/v1/", "", &info); !info.Edits {
		t.Error("the user is not told that they may edit")
	}
}

func TestAStackIsNotEditedHere(t *testing.T) {
	if status, text := newPlace(t).ask("owner", "POST", "/api/v1/servers", `{}`, nil); status != http.StatusNotImplemented {
		t.Errorf("%d %s", status, text)
	}
}

func TestLimitsAreSetByTheOwner(t *testing.T) {
	p := newPlace(t)
	for who, want := range map[string]int{"viewer": 403, "operator": 403, "stranger": 403, "owner": 200} {
		if status, text := p.ask(who, "POST", "/api/v1/quotas/acme", `{"principal":"60/m","boxes":3}`, nil); status != want {
			t.Errorf("%s: %d %s, want %d", who, status, text, want)
		}
	}
	if status, text := p.ask("owner", "POST", "/api/v1/quotas/acme", `{"month_usd":"twenty"}`, nil); status != http.StatusBadRequest {
		t.Errorf("a limit that is none: %d %s", status, text)
	}
	var list struct{ Quotas []api.Quota }
	if status, text := p.ask("viewer", "GET", "/api/v1/quotas", "", &list); status != http.StatusOK || len(list.Quotas) != 1 || list.Quotas[0].Tenant != "acme" || list.Quotas[0].Limits.Boxes != 3 {
		t.Errorf("of its own tenant: %d %s", status, text)
	}
	list.Quotas = nil
	if p.ask("stranger", "GET", "/api/v1/quotas", "", &list); len(list.Quotas) != 1 || list.Quotas[0].Tenant != "other" || list.Quotas[0].Limits.Boxes != 0 {
		t.Errorf("another tenant's: %v", list.Quotas)
	}
}

func TestVitalsAreShownToTheOwnersTenant(t *testing.T) {
	var told []string
	p := newPlace(t, edited(&told))
	for who, want := range map[string]int{"viewer": 501, "owner": 200, "narrow": 501} {
		if status, text := p.ask(who, "GET", "/api/v1/machine", "", nil); status != want {
			t.Errorf("%s: %d %s, want %d", who, status, text, want)
		}
	}
}

// Each client's entry has the key, so that nobody puts it in by hand.
func TestClientsGetTheirEntryWithTheKey(t *testing.T) {
	var told []string
	p := newPlace(t, edited(&told))
	var answer struct{ Clients []api.ClientWays }
	if status, text := p.ask("operator", "POST", "/api/v1/servers/two/clients", `{"key":"dm_made"}`, &answer); status != http.StatusOK || len(answer.Clients) < 10 {
		t.Fatalf("%d %s", status, text)
	}
	for _, c := range answer.Clients {
		if last := c.Ways[len(c.Ways)-1]; !strings.Contains(last.Text, "https://mcp.example.com/two/mcp") || !strings.Contains(last.Text, "dm_made") {
			t.Errorf("%s: %v", c.Name, c.Ways)
		}
	}
	if status, text := p.ask("narrow", "POST", "/api/v1/servers/one/clients", `{}`, nil); status != http.StatusNotFound {
		t.Errorf("a server that the key is not for: %d %s", status, text)
	}
}
