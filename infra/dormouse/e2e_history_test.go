//go:build e2e

package dormouse_test

import (
	"encoding/json"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// get returns the status and the body of a page of the endpoint.
func get(t *testing.T, url, key, host string) (status int, body string) {
	t.Helper()
	header := http.Header{"Host": {host}}
	if key != "" {
		header.Set("Authorization", "Bearer "+key)
	}
	answer := web(t, http.DefaultClient, http.MethodGet, url, "", header)
	return answer.status, answer.text
}

func TestE2ECallsAreListedAndCounted(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start()
	url := strings.TrimSuffix(m.urls["one"], "/one/mcp")
	if status, body := get(t, url+"/healthz", "", ""); status != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz: %d %s", status, body)
	}
	c := m.session("one")
	c.text("echo", `{"text":"never kept"}`)
	c.outcome("exit", `{}`)
	var calls []struct {
		Principal, Server, Tool, Session, Reason, Client string
		Failed                                           bool
	}
	m.eventually(patience, "two calls are in the history", func() bool {
		out, code := operate(t, "calls", "one", "--json", "--data", m.data)
		return code == 0 && json.Unmarshal([]byte(out), &calls) == nil && len(calls) == 2
	})
	if calls[0].Tool != "exit" || !calls[0].Failed || calls[0].Reason == "" || calls[1].Tool != "echo" || calls[1].Failed || calls[1].Session != c.session {
		t.Errorf("calls are %+v", calls)
	}
	status, metrics := get(t, url+"/metrics", "", "")
	for _, want := range []string{`tool="echo",outcome="done"} 1`, `tool="exit",outcome="failed"} 1`, `dormouse_box_starts_total{tenant="local",server="one"} 1`} {
		if status != http.StatusOK || !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %s: %d\n%s", want, status, metrics)
		}
	}
	if strings.Contains(metrics, "never kept") {
		t.Error("/metrics has an argument")
	}
	if status, _ := get(t, url+"/metrics", "", "rebound.example.com"); status == http.StatusOK {
		t.Error("a web page that reaches loopback by its own name reads /metrics")
	}
	m.end()
	out, code := operate(t, "calls", "--failed", "--data", m.data)
	if code != 0 || strings.Count(out, "\n") != 2 || !strings.Contains(out, "exit") {
		t.Errorf("calls --failed while nothing is up: %d, %s", code, out)
	}
}

// The link of `dormouse open` signs in to the console. Before that, the console serves
// its page, but its API refuses requests.
func TestE2EConsoleIsOpenedByTheUserOfTheMachine(t *testing.T) {
	everyway(t, consoleIsOpened)
}

func consoleIsOpened(t *testing.T, machine func(servers) *machine) {
	t.Helper()
	m := machine(servers{"one": nil})
	m.start()
	m.session("one").text("echo", `{"text":"x"}`)
	url := strings.TrimSuffix(m.urls["one"], "/one/mcp")
	if status, body := get(t, url+"/console/", "", ""); status != http.StatusOK || !strings.Contains(body, "<title>Dormouse</title>") {
		t.Errorf("the page: %d %s", status, body)
	}
	if status, _ := get(t, url+"/console/", "", "rebound.example.com"); status != http.StatusForbidden {
		t.Errorf("the page by a name that is not served: %d", status)
	}
	link, code := operate(t, "open", "--data", m.data)
	link, _, _ = strings.Cut(link, "\n") // what follows was on stderr
	if code != 0 || !strings.HasPrefix(link, url+"/console/enter?ticket=") {
		t.Fatalf("open: %d %s", code, link)
	}
	jar, err := cookiejar.New(nil)
	commontest.OK(t, err)
	browser := &http.Client{Jar: jar}
	ask := func(path string) (int, string) {
		answer := web(t, browser, http.MethodGet, path, "", http.Header{"X-Dormouse-Console": {"1"}})
		return answer.status, answer.text
	}
	if status, _ := ask(url + "/console/api/v1/servers"); status != http.StatusUnauthorized {
		t.Errorf("the API without a cookie: %d", status)
	}
	if status, _ := ask(link); status != http.StatusOK {
		t.Errorf("the link: %d", status)
	}
	known := map[string]string{"": `"role":"operator"`, "servers": `"name":"one"`, "sessions": `"principal":"local"`}
	kept := map[string]string{"servers/one/settings": `"command"`, "people": `"principal":"local"`, "servers/one/starts": `"tenant":"local","principal":"local"`, "bill?since=720h&by=server": `"server":"one"`}
	for path, want := range kept {
		known[path] = want
		if m.programs { // a function serves the console, which knows what one knows on AWS
			known[path] = "not_here"
		}
	}
	for path, want := range known {
		t.Run(path, func(t *testing.T) {
			if status, body := ask(url + "/console/api/v1/" + path); !strings.Contains(body, want) || status != http.StatusOK && want != "not_here" {
				t.Errorf("%s: %d %s", path, status, body)
			}
		})
	}
	if m.programs {
		if status, body := ask(url + "/console/api/v1/"); !strings.Contains(body, `"place":"stack"`) {
			t.Errorf("the console is not that of a function: %d %s", status, body)
		}
	}
	if status, _ := get(t, url+"/api/v1/servers", "", ""); status != http.StatusUnauthorized {
		t.Errorf("the API beside the console: %d", status)
	}
}

func TestE2EMetricsNeedAKeyThatMaySee(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start("--access", "keys")
	url := strings.TrimSuffix(m.urls["one"], "/one/mcp")
	for role, want := range map[string]int{"user": http.StatusForbidden, "viewer": http.StatusOK, "operator": http.StatusOK} {
		t.Run(role, func(t *testing.T) {
			if status, body := get(t, url+"/metrics", m.keys("create", "ada", "--server", "one", "--role", role), ""); status != want {
				t.Errorf("%s: %d %s", role, status, body)
			}
		})
	}
	if status, _ := get(t, url+"/metrics", "", ""); status != http.StatusUnauthorized {
		t.Errorf("without a key: %d", status)
	}
	if status, _ := get(t, url+"/healthz", "", ""); status != http.StatusOK {
		t.Errorf("/healthz needs a key: %d", status)
	}
}
