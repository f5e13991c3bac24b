package transport_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/transport"
)

type refusedLine struct {
	Refused                             bool
	Refusal, Outcome, Server, Principal string
	Caller                              struct{ Server, Tenant, Principal, Key, Address string }
}

func (w *world) refused() (line refusedLine) {
	w.t.Helper()
	all := strings.Split(strings.TrimSpace(w.logged.String()), "\n")
	commontest.OK(w.t, json.Unmarshal([]byte(all[len(all)-1]), &line))
	return line
}

// Every refusal names the key, its principal and tenant if the key was proven, the server
// that was asked for, and the address. No line has the key itself, and none lets a stranger
// choose a name for which bills and metrics count.
func TestLogLineOfARefusalNamesItsCaller(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		for _, tt := range []struct{ who, path, refusal, server, tenant, principal string }{
			{"elsewhere", "/pushy/mcp", "forbidden", "pushy", "acme", "ada"},
			{"revoked", "/pushy/mcp", "unauthenticated", "pushy", "acme", "ada"},
			{"expired", "/pushy/mcp", "unauthenticated", "pushy", "", ""}, // the store has forgotten it
			{"wrong", "/pushy/mcp", "unauthenticated", "pushy", "", ""},
			{"unknown", "/made-up/mcp", "unauthenticated", "made-up", "", ""},
			{"malformed", "/pushy/mcp", "unauthenticated", "pushy", "", ""},
			{"nobody", "/pushy/mcp", "unauthenticated", "pushy", "", ""},
		} {
			r := request("POST", tt.path, initialize)
			r.RemoteAddr = "192.0.2.7:4711"
			g.as(tt.who, r)
			want := refusedLine{Refused: true, Refusal: tt.refusal}
			want.Caller.Server, want.Caller.Tenant, want.Caller.Principal, want.Caller.Address = tt.server, tt.tenant, tt.principal, "192.0.2.7"
			if parts := strings.Split(g.keys[tt.who], "_"); len(parts) == 3 {
				want.Caller.Key = parts[1]
				if strings.Contains(g.logged.String(), parts[2]) {
					t.Errorf("%s: the log has the key", tt.who)
				}
			}
			if diff := cmp.Diff(want, g.refused()); diff != "" {
				t.Errorf("%s: %s", tt.who, diff)
			}
		}
	})
}

// A gateway knows the address better than the connection does.
func TestLogLineHasTheAddressOfTheGateway(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		r := request("POST", "/pushy/mcp", initialize)
		g.as("wrong", r.WithContext(storage.WithAddress(r.Context(), "203.0.113.9")))
		commontest.EqualIn(t, "address", "203.0.113.9", g.refused().Caller.Address)
	})
}

func TestLogLineOfARefusedConnectionNamesItsCaller(t *testing.T) {
	inGuarded(t, func(t *testing.T, g *guarded) {
		for query, server := range map[string]string{"?server=pushy": "pushy", "?group=all": "/mcp", "?group=some": "/g/some/mcp"} {
			r := request("GET", "/"+query, "")
			r.Header.Set("Authorization", g.keys["revoked"])
			g.opts.Groups = func(string) (transport.Group, bool) { return transport.Group{}, true }
			g.opts.Names = func() []string { return []string{"pushy"} }
			g.function().Connect(storage.WithAddress(t.Context(), "192.0.2.7"), "c", r)
			got := g.refused()
			if got.Caller.Principal != "ada" || got.Caller.Server != server || got.Caller.Address != "192.0.2.7" || got.Server != "" {
				t.Errorf("%s: %+v", query, got)
			}
		}
	})
}

// A call that a limit refuses is no failure.
func TestLogLineOfACallBeyondALimitSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := w.visit("quiet")
		w.backend.err = storage.Errorf(storage.Busy, "too many calls").Because(&storage.Limited{Kind: "rate", Scope: "principal", After: time.Second})
		c.call("look")
		if got := w.refused(); got.Outcome != "refused" || got.Refusal != "rate" || got.Refused || got.Principal != "ada" || got.Caller.Address == "" {
			t.Errorf("%+v", got)
		}
		w.backend.err = errors.New("broken")
		c.call("look")
		if got := w.refused(); got.Outcome != "failed" || got.Refusal != "" {
			t.Errorf("%+v", got)
		}
	})
}
