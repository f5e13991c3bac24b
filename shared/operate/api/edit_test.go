package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
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
	}
}

// A key must not become a command on the machine, so only its user edits.
func TestOnlyTheUserOfTheMachineEdits(t *testing.T) {
	var told []string
	p := newPlace(t, edited(&told))
	orders := map[string]string{
		"POST servers":            `{"name":"new","what":"npx -y x","env":["A=1"]}`,
		"POST servers/one/switch": `{"on":false}`,
		"POST servers/one/value":  `{"name":"A","value":"secret"}`,
	}
	for route, body := range orders {
		p.gets(http.StatusUnauthorized, "", route, body)
		for _, who := range []string{"user", "viewer", "narrow", "operator", "owner"} {
			p.gets(http.StatusForbidden, who, route, body)
		}
	}
	if told != nil {
		t.Error("edited:", told)
	}
	user := newPlace(t, edited(&told), func(o *api.Options) {
		o.Caller = func(*http.Request, apikey.Right) (api.Caller, error) { return api.Machine("the user"), nil }
	})
	for route, body := range orders {
		user.gets(http.StatusOK, "", route, body)
	}
	commontest.EqualIn(t, "edited", 3, len(told))
	if status, text := user.ask("", "POST", "/api/v1/servers", `{"name":"bad","what":"x"}`, nil); status != http.StatusBadRequest || !strings.Contains(text, "it did not start") {
		t.Errorf("a server that does not start: %d %s", status, text)
	}
	var info api.Info
	if user.ask("", "GET", "/api/v1/", "", &info); !info.Edits {
		t.Error("the user is not told that they may edit")
	}
}

func TestLimitsAreSetByTheOwner(t *testing.T) {
	p := newPlace(t)
	for who, want := range map[string]int{"viewer": 403, "operator": 403, "stranger": 403, "owner": 200} {
		p.gets(want, who, "POST quotas/acme", `{"principal":"60/m","boxes":3}`)
	}
	p.gets(http.StatusBadRequest, "owner", "POST quotas/acme", `{"month_usd":"twenty"}`)
	var list struct{ Quotas []api.Quota }
	if status, text := p.ask("viewer", "GET", "/api/v1/quotas", "", &list); status != http.StatusOK || len(list.Quotas) != 1 || list.Quotas[0].Tenant != "acme" || list.Quotas[0].Limits.Boxes != 3 {
		t.Errorf("of its own tenant: %d %s", status, text)
	}
	list.Quotas = nil
	if p.ask("stranger", "GET", "/api/v1/quotas", "", &list); len(list.Quotas) != 1 || list.Quotas[0].Tenant != "other" || list.Quotas[0].Limits.Boxes != 0 {
		t.Errorf("another tenant's: %v", list.Quotas)
	}
}

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
	p.gets(http.StatusNotFound, "narrow", "POST servers/one/clients", `{}`)
}
