package local

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
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
		commontest.OK(t, os.WriteFile(c.Servers, []byte(toolFile), 0o600))
		c.Display = display.New(display.Options{Out: &out})
	})
	store := m.functions.Records()
	keep := func(tenant, server, version, result string) {
		t.Helper()
		s, _ := m.servers.Load().Server(server)
		h := storage.Handshake{
			Digest: storage.RecordFor(tenant, s.Digest), Version: version, Result: json.RawMessage(result),
			Taken: time.Now(), Expires: time.Now().Add(time.Hour),
		}
		commontest.OK(t, store.SaveHandshake(t.Context(), h))
	}
	commontest.OK(t, store.Create(t.Context(), storage.Session{ID: storage.NewID(), Server: "of-ada", Tenant: "ada", Principal: "ada", Expires: time.Now().Add(time.Hour)}))
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
	delete(got, "all")
	commontest.Same(t, map[string]string{"asked": "2 tools", "of-ada": "1 tool", "greeted": "", "fresh": "program missing", "silent": "", "counter": "1 tool"}, got)
	for of, want := range map[[2]string]string{{"local", "asked"}: "2 tools", {"ada", "asked"}: "", {"ada", "of-ada"}: "1 tool", {"local", "no-such-server"}: ""} {
		commontest.EqualIn(t, fmt.Sprintf("when %s of %s is ready", of[1], of[0]), want, toolsOf(m, of[0], of[1]))
	}
	for of, want := range map[[3]string]bool{{"local", "asked", "a"}: true, {"local", "asked", "x"}: false, {"ada", "asked", "x"}: true, {"local", "counter", "x"}: false, {"local", "no", "x"}: true} {
		commontest.EqualIn(t, fmt.Sprintf("tool %s of %s of %s is counted by its name", of[2], of[1], of[0]), want, m.lines.Lists(of[0], of[1], of[2]))
	}
}

// A name that is not in a list has the list read again, but not for each call.
func TestListsOfNamesAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, names := 0, map[string]bool{"a": true}
		l := &toolNames{of: map[[2]string]nameList{}, read: func(string, string) map[string]bool { reads++; return maps.Clone(names) }}
		for range 5 {
			if !l.has("acme", "mine", "a") || l.has("acme", "mine", "new") {
				t.Error("the list is not what was read")
			}
		}
		if names["new"] = true; reads != 1 {
			t.Errorf("%d reads", reads)
		}
		time.Sleep(relist)
		if !l.has("acme", "mine", "new") || reads != 2 {
			t.Errorf("the new tool is not found after %d reads", reads)
		}
	})
}
