package local

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// reloading is a machine with a servers file that a test changes. It does not watch the
// file itself.
type reloading struct {
	*machine
	t   *testing.T
	out *bytes.Buffer // events as JSON lines; written under the lock of the recorder
}

func newReloading(t *testing.T, change func(*Config)) reloading {
	t.Helper()
	r := reloading{t: t, out: &bytes.Buffer{}}
	r.machine = configured(t, func(c *Config) {
		c.JSON = r.out
		if change != nil {
			change(c)
		}
	})
	ctx, unwatch := context.WithCancel(t.Context())
	defer unwatch()
	commontest.OK(t, r.start(ctx))
	return r
}

// save writes the servers file and makes the machine read it.
func (r reloading) save(text string) (serversfile.Changes, error) {
	r.t.Helper()
	commontest.OK(r.t, os.WriteFile(r.cfg.Servers, []byte(text), 0o600))
	return r.reload()
}

// answer opens a session as a client, and returns the status and the body of the
// response.
func (r reloading) answer(server string) (int, string) {
	r.t.Helper()
	q := httptest.NewRequestWithContext(r.t.Context(), http.MethodPost, "http://127.0.0.1/"+server+"/mcp", strings.NewReader(
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`))
	q.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	w := httptest.NewRecorder()
	r.functions.Web().ServeHTTP(w, q)
	return w.Code, w.Body.String()
}

// told returns the events about the servers file, without their times.
func (r reloading) told() (all []map[string]any) {
	r.t.Helper()
	for line := range strings.Lines(r.out.String()) {
		var e map[string]any
		commontest.OK(r.t, json.Unmarshal([]byte(line), &e))
		if kind, _ := e["kind"].(string); strings.HasPrefix(kind, "servers.") {
			delete(e, "time")
			all = append(all, e)
		}
	}
	return all
}

const oneNative = `"counter":{"x-dormouse":{"native":"counter"}}`

func TestChangedServersFileIsServedAndSaid(t *testing.T) {
	r := newReloading(t, nil)
	changes, err := r.save(`{"mcpServers":{"again":{"x-dormouse":{"native":"counter"}}}}`)
	if err != nil || changes.String() != "+ again  - counter" {
		t.Errorf("changes: %s, %v", changes, err)
	}
	if status, text := r.answer("again"); status != http.StatusOK {
		t.Errorf("the new server: %d %s", status, text)
	}
	if status, text := r.answer("counter"); status != http.StatusNotFound || !strings.Contains(text, "server counter was removed from the servers file at ") {
		t.Errorf("the removed server: %d %s", status, text)
	}
	_, err = r.save(`{"mcpServers":{` + oneNative + `}}`)
	commontest.Check(t, err)
	if status, text := r.answer("counter"); status != http.StatusOK {
		t.Errorf("the server is back: %d %s", status, text)
	}
	want := []map[string]any{
		{"kind": "servers.changed", "name": "servers.json", "detail": "+ again  - counter", "running": 0., "added": []any{"again"}, "removed": []any{"counter"}},
		{"kind": "servers.changed", "name": "servers.json", "detail": "+ counter  - again", "running": 0., "added": []any{"counter"}, "removed": []any{"again"}},
	}
	commontest.Same(t, want, r.told())
}

func TestFileThatCannotBeServedChangesNothingAndIsSaidOnce(t *testing.T) {
	for name, test := range map[string]struct {
		file, want string
	}{
		"no JSON":      {"{\n  \"mcpServers\": {\"a\" {}}\n}", "2:22: not JSON: invalid character '{' after object name"},
		"two mistakes": {"{\"mcpServers\": [],\n\"x-dormouse\": {\"access\": 1}}", "1:16: mcpServers must be an object, not an array (and 1 more)"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReloading(t, nil)
			for range 2 {
				if _, err := r.save(test.file); err == nil {
					t.Error("it is taken")
				}
			}
			if status, text := r.answer("counter"); status != http.StatusOK {
				t.Errorf("what was there before: %d %s", status, text)
			}
			told := r.told()
			if len(told) != 1 || told[0]["kind"] != "servers.refused" || !strings.HasPrefix(told[0]["reason"].(string), test.want) ||
				!strings.HasSuffix(told[0]["reason"].(string), "; what was there before is still served") {
				t.Errorf("told %v, want %s", told, test.want)
			}
		})
	}
}

// Only a start turns on the sign-in that takes any name.
func TestAReloadKeepsTheIdentityProvider(t *testing.T) {
	r := newReloading(t, func(c *Config) { c.Access, c.PublicURL = AccessOAuth, "http://127.0.0.1:8787" })
	const provider = `"issuer":"https://login.example.com","client_id":"c"`
	for i, access := range []string{"", provider, ""} {
		if _, err := r.save(`{"mcpServers":{` + oneNative + `},"x-dormouse":{"access":{` + access + `}}}`); (err == nil) != (i < 2) {
			t.Errorf("file %d: %v", i, err)
		}
	}
}

func TestFileWithTheSameServersIsNoNews(t *testing.T) {
	r := newReloading(t, nil)
	before := r.functions.(*inprocess).made.Load()
	if changes, err := r.save(`{ "mcpServers": { /* a comment */ ` + oneNative + ` } }`); err != nil || !changes.None() {
		t.Errorf("changes: %s, %v", changes, err)
	}
	if len(r.told()) != 0 || r.functions.(*inprocess).made.Load() != before {
		t.Errorf("told %v", r.told())
	}
}

func TestServerThatCannotBeHostedAnyMoreSaysWhy(t *testing.T) {
	r := newReloading(t, nil)
	if changes, err := r.save(`{"mcpServers":{"counter":{"command":"${NOT_SET_ANYWHERE}"}}}`); err != nil || !strings.HasPrefix(changes.String(), "~ counter (not served: command: NOT_SET_ANYWHERE is not set") {
		t.Errorf("changes: %s, %v", changes, err)
	}
	if status, text := r.answer("counter"); status != http.StatusServiceUnavailable || !strings.Contains(text, "NOT_SET_ANYWHERE is not set") {
		t.Errorf("it answers %d %s", status, text)
	}
}

// A function that began before the change may start a box after it.
func TestBoxIsStartedWithTheDefinitionThatHoldsNow(t *testing.T) {
	read := func(args string) (*serversfile.File, string) {
		c, _, err := serversfile.Parse([]byte(`{"mcpServers":{"a":{"command":"a","args":["`+args+`"]}}}`), "servers.json", nil)
		commontest.OK(t, err)
		s, _ := c.Server("a")
		return c, s.Marshal()
	}
	now, _ := read("new")
	_, old := read("old")
	asked := fleet.Task{Server: "a", Env: map[string]string{serverEnv: old, "OTHER": "x"}}
	got := current(now, time.Minute, asked)
	s, err := serversfile.UnmarshalServer(got.Env[serverEnv])
	if err != nil || s.Args[0] != "new" || s.Idle != time.Minute || got.Env["OTHER"] != "x" || asked.Env[serverEnv] != old {
		t.Errorf("%v, %v, and the caller's task has %s", s.Args, err, asked.Env[serverEnv])
	}
	gone := current(now, time.Minute, fleet.Task{Server: "removed", Env: map[string]string{serverEnv: old}})
	commontest.EqualIn(t, "a removed server has another definition", false, gone.Env[serverEnv] != old)
}

func TestReloadByCommand(t *testing.T) {
	r := newReloading(t, nil)
	commontest.OK(t, os.WriteFile(r.cfg.Servers, []byte(`{"mcpServers":{`+oneNative+`,"more":{"x-dormouse":{"native":"counter"}}}}`), 0o600))
	reload := func() (got api.Reloaded, up bool, err error) {
		up, err = operate(t, r.folder.Path, http.MethodPost, "reload", &got)
		return got, up, err
	}
	got, up, err := reload()
	if err != nil || !up || got.Error != "" || got.Changes != "+ more" {
		t.Errorf("%+v, %v, %v", got, up, err)
	}
	commontest.OK(t, os.WriteFile(r.cfg.Servers, []byte(`{`), 0o600))
	if got, _, err := reload(); err != nil || got.Changes != "" || !strings.Contains(got.Error, "not JSON") {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestTheEndStoresWhatTenantsHaveUsed(t *testing.T) {
	r := newReloading(t, func(c *Config) {
		commontest.OK(t, os.WriteFile(c.Servers, []byte(`{"mcpServers":{`+oneNative+`},"x-dormouse":{"limits":{"month_usd":1}}}`), 0o600))
	})
	r.answer("counter") // the first use of a tenant is stored at once
	first, err := quota.Show(t.Context(), r.functions.Records(), apikey.LocalTenant)
	commontest.OK(t, err)
	r.answer("counter")
	r.stop(t.Context())
	store, err := sqlitestore.Open(filepath.Join(r.cfg.Data, StoreFile))
	commontest.OK(t, err)
	defer func() { _ = store.Close() }()
	if used, err := quota.Show(t.Context(), store, apikey.LocalTenant); err != nil || first.USD == 0 || used.USD <= first.USD {
		t.Errorf("%+v, before %+v, %v", used, first, err)
	}
}

func TestWhatRequestsUseIsOnTheBill(t *testing.T) {
	r := newReloading(t, nil)
	r.answer("counter")
	b, err := r.ledger.Bill(t.Context())
	commontest.OK(t, err)
	if u := r.ledger.Total(); u.Requests != 1 || u.WriteUnits == 0 || len(b.Shares) == 0 || b.Shares[0].Server != "counter" {
		t.Errorf("the total is %+v of %+v", u, b.Shares)
	}
}
