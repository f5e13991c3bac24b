package local

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// toolFile has servers that differ in what their records hold.
const toolFile = `{"mcpServers":{
	"asked":   {"command":"x","args":["asked"]},
	"of-ada":  {"command":"x","args":["of-ada"]},
	"greeted": {"command":"x","args":["greeted"]},
	"fresh":   {"command":"x","args":["fresh"]},
	"silent":  {"command":"x","args":["silent"],"x-dormouse":{"record":"off"}},
	"counter": {"x-dormouse":{"native":"counter"}}
}}`

func TestFirstBlockCountsToolsFromTheRecords(t *testing.T) {
	var out bytes.Buffer
	m := started(t, func(c *Config) {
		if err := os.WriteFile(c.Servers, []byte(toolFile), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Display = display.New(display.Options{Out: &out})
	})
	store := m.functions.records()
	keep := func(tenant, server, version, result string) {
		t.Helper()
		s, _ := m.servers.Load().Server(server)
		h := session.Handshake{
			Digest: session.RecordFor(tenant, s.Digest), Version: version, Result: json.RawMessage(result),
			Taken: time.Now(), Expires: time.Now().Add(time.Hour),
		}
		if err := store.SaveHandshake(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Create(t.Context(), session.Session{ID: session.NewID(), Server: "of-ada", Tenant: "ada", Principal: "ada", Expires: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	keep("local", "asked", "tools/list 2025-11-25 x", `{"gen":1,"list":{"tools":[{"name":"a"},{"name":"b"}]}}`)
	keep("ada", "of-ada", "tools/list 2025-11-25 x", `{"gen":1,"list":{"tools":[{"name":"a"}]}}`)
	keep("local", "greeted", "2025-11-25", `{}`)

	announce(m)
	m.cfg.Display.Close()
	got := map[string]string{}
	for line := range strings.Lines(out.String()) {
		if _, tools, ok := strings.Cut(strings.TrimRight(line, "\n"), "/mcp"); ok {
			got[strings.Fields(line)[0]] = strings.TrimSpace(tools)
		}
	}
	for server, want := range map[string]string{"asked": "2 tools", "of-ada": "1 tool", "greeted": "", "fresh": "never started", "silent": "", "counter": "1 tool"} {
		if text, ok := got[server]; !ok || text != want {
			t.Errorf("%s: %q, want %q:\n%s", server, text, want, out.String())
		}
	}
	for of, want := range map[[2]string]string{{"local", "asked"}: "2 tools", {"ada", "asked"}: "", {"ada", "of-ada"}: "1 tool", {"local", "no-such-server"}: ""} {
		if got := toolsOf(m, of[0], of[1]); got != want {
			t.Errorf("when %s of %s is ready: %q, want %q", of[1], of[0], got, want)
		}
	}
}
