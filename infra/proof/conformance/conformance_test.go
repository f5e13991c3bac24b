//go:build conformance

// Package conformance runs the official MCP conformance suite against Dormouse, once for
// each hosted server and revision of the protocol: a lane. It has only tests (build tag
// conformance, by `make conformance`), which install the pinned programs into
// .tools/conformance. These are the suite with its Node.js (suite), and the servers that
// are hosted over stdio (servers): two everything-servers of go-sdk, one of the legacy era
// and one of both eras, and a server of our own. A legacy server that was made for the
// suite lacks the tools that the scenarios for 2026-07-28 call. Ours has them, and asks
// its client where a modern server would answer with input requests.
//
// A lane passes when every scored scenario has a check that succeeded and none that
// failed or warned. No failure is expected. The test ignores the suite's exit code and
// its ticks: the suite also prints a tick for warnings, and for scenarios that have
// proved nothing.
//
// servers/native is a server in Go that is hosted without a box. It is part of function
// programs of its own.
//
// The remote servers are reached by URL. They have a Dormouse of their own: without event
// ids a server's question is answered in the process that has the connection.
//
// If the server has an HTTP server of its own, the suite also runs against that one, as a
// control. Every check that succeeds there must succeed through Dormouse, scored or not.
// The control also tells a broken suite from a broken endpoint. The test does not judge
// the control itself.
//
// The suite's one scenario about polling needs a tool that takes longer than the suite
// waits; slow_test.go has it. skills_test.go has its scenarios about an extension that
// Dormouse does not know, with a server of the TypeScript SDK. shared/endpoint/transport and infra/proof/clients test the rest
// (HTTP+SSE, WebSocket, most of replay).
package conformance

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const (
	revision2025 = "2025-11-25"
	revision2026 = "2026-07-28"
)

// lane is a hosted server at one revision.
type lane struct {
	server, revision string
	// direct has the arguments that make the server's own HTTP server speak the revision.
	// It is nil if the server does not speak it.
	direct []string
}

func lanes() []lane {
	return []lane{
		{server: "legacy", revision: revision2025, direct: []string{}},
		{server: "dual", revision: revision2025, direct: []string{"-stateless=false"}},
		{server: "extended", revision: revision2026},
		{server: "dual", revision: revision2026, direct: []string{}},
		{server: "modern", revision: revision2025},
		{server: "modern", revision: revision2026},
		{server: "native", revision: revision2025},
		{server: "native", revision: revision2026},
		{server: "remote-legacy", revision: revision2025},
		{server: "remote-dual", revision: revision2026},
	}
}

func buildServers(t *testing.T) map[string]string {
	t.Helper()
	return map[string]string{
		"legacy":   buildServer(t, "legacy", everythingServer, "legacy"),
		"extended": buildServer(t, "legacy", "./testdata/extended", "extended"),
		"dual":     buildServer(t, "dual", everythingServer, "dual"),
	}
}

// The lanes are run one after the other. -run 'TestOfficialSuitePasses/2025-11-25/legacy' runs one.
func TestOfficialSuitePasses(t *testing.T) {
	suite, binaries := installSuite(t), buildServers(t)
	servers := map[string]server{}
	for name, binary := range binaries {
		servers[name] = server{Command: binary}
	}
	self, err := os.Executable()
	commontest.OK(t, err)
	servers["modern"] = server{Command: self, Args: []string{modernOnlyServer, binaries["dual"]}}
	servers["native"] = nativeServer("everything")
	urls := startDormouse(t, servers)
	maps.Copy(urls, startRemotes(t, map[string]string{
		"remote-legacy": startDirectly(t, binaries["legacy"]),
		"remote-dual":   startDirectly(t, binaries["dual"]),
	}))
	var rows []row
	for _, revision := range []string{revision2025, revision2026} {
		t.Run(revision, func(t *testing.T) {
			want := suite.requirements(t, revision)
			for _, l := range lanes() {
				if l.revision == revision {
					t.Run(l.server, func(t *testing.T) {
						rows = append(rows, l.run(t, suite, want, urls[l.server], binaries[l.server])...)
					})
				}
			}
		})
	}
	t.Logf("lanes:\n%s", table(rows))
}

// run returns the row of the lane. The row of its control, if any, comes before it.
func (l lane) run(t *testing.T, suite suite, want requirements, url, binary string) (rows []row) {
	t.Helper()
	if l.revision == revision2026 {
		discover(t, url)
	}
	name := l.server + "-" + l.revision
	here := suite.run(t, name, url, want, "--requirements", l.revision)
	problems := problemsOf(here)
	if l.direct != nil {
		direct := suite.run(t, name+"-direct", startDirectly(t, binary, l.direct...), want, "--requirements", l.revision)
		rows = append(rows, row{name + ", directly", direct})
		problems = append(problems, lost(direct, here)...)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
	return append(rows, row{name, here})
}

// discover fails the test at once, with one line, if the server at a URL does not speak
// 2026-07-28.
func discover(t *testing.T, url string) {
	t.Helper()
	status, answer := ask(t, url, "server/discover")
	var message struct {
		Result struct {
			SupportedVersions []string `json:"supportedVersions"`
		} `json:"result"`
	}
	if err := json.Unmarshal(answer, &message); err != nil || !slices.Contains(message.Result.SupportedVersions, revision2026) {
		t.Fatalf("%s does not speak %s: server/discover was answered with %s %s", url, revision2026, status, answer)
	}
}

// ask sends a request without parameters as a client of 2026-07-28.
func ask(t *testing.T, url, method string) (status string, answer []byte) {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"` + revision2026 + `","io.modelcontextprotocol/clientCapabilities":{}}}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	commontest.OK(t, err)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": revision2026, "Mcp-Method": method,
	} {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	commontest.OK(t, err)
	answer, err = io.ReadAll(res.Body)
	commontest.OK(t, errors.Join(err, res.Body.Close()))
	return res.Status, answer
}

// The polling scenario is not scored. With an everything-server a client never polls,
// because the host answers with JSON if the answer comes soon.
func TestPollingScenarioPasses(t *testing.T) {
	suite := installSuite(t)
	self, err := os.Executable()
	commontest.OK(t, err)
	// retry comes only with the event that ends a response early, here before the answer
	url := startDormouse(t, map[string]server{"slow": {Command: self, Args: []string{slowServer}}}, "--hold", "8s")["slow"]
	want := requirements{scored: []string{"server-sse-polling"}}
	results := suite.run(t, "slow-polling", url, want, "--scenario", want.scored[0])
	for _, problem := range problemsOf(results) {
		t.Error(problem)
	}
	for _, id := range []string{"server-sse-priming-event", "server-sse-retry-field", "server-sse-disconnect-resume"} {
		if !results[0].says(id, success) {
			t.Errorf("%s did not succeed", id)
		}
	}
	t.Logf("lanes:\n%s", table([]row{{"slow, polling", results}}))
}
