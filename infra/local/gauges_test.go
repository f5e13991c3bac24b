package local

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// A reader sees what runs for its tenant. Only a reader who sees everything sees this
// program.
func TestMetricsSayWhatRuns(t *testing.T) {
	m := started(t, nil)
	for id, tenant := range map[storage.ID]string{"aaaa1": "acme", "aaaa2": "acme", "bbbb1": `b"ob`, "over1": "acme"} {
		s := storage.Session{ID: id, Server: "mine", Tenant: tenant, Principal: "ada", Expires: time.Now().Add(time.Hour)}
		if id == "over1" {
			s.State = storage.Ended
		}
		commontest.OK(t, m.functions.Records().Create(t.Context(), s))
	}
	m.recorder.Record(journal.Event{Kind: journal.ServerReady, Tenant: "acme", Name: "mine", Measured: journal.Measured{Install: 2 * time.Second}})
	read := func(may func(tenant, server string) bool) string {
		var text strings.Builder
		commontest.OK(t, metricsOf(m, &text, may))
		seen := map[string]bool{}
		for line := range strings.Lines(text.String()) {
			if !regexp.MustCompile(`^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{([a-z]+="([^"\\\n]|\\["\\n])*",?)+\})? [0-9.e+-]+)\n$`).MatchString(line) {
				t.Errorf("this is no line of metrics: %s", line)
			}
			if strings.HasPrefix(line, "# TYPE") && seen[line] {
				t.Errorf("twice: %s", line)
			}
			seen[line] = true
		}
		return text.String()
	}
	all := read(func(string, string) bool { return true })
	for _, want := range []string{
		`dormouse_sessions{tenant="acme",server="mine"} 2`, `dormouse_sessions{tenant="b\"ob",server="mine"} 1`,
		`dormouse_processes_awake{tenant="acme",server="mine"} 0`, `dormouse_queue_requests{tenant="acme",server="mine"} 0`,
		`dormouse_server_memory_bytes{tenant="acme",server="mine"} 0`, `dormouse_installs_total{tenant="acme",server="mine"} 1`,
		`dormouse_install_seconds_total{tenant="acme",server="mine"} 2`, `dormouse_build_info{version="`, "go_goroutines ", "go_memstats_sys_bytes ",
	} {
		commontest.Contains(t, "", want, all)
	}
	acme := read(func(tenant, _ string) bool { return tenant == "acme" })
	if !strings.Contains(acme, `dormouse_sessions{tenant="acme",server="mine"} 2`) || strings.Contains(acme, `b\"ob`) || strings.Contains(acme, "go_") || strings.Contains(acme, "build_info") {
		t.Errorf("a tenant sees\n%s", acme)
	}
}
