//go:build clients

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// runLimit limits the whole run of a client. Inside the client, each check has a limit of
// 60 s.
const runLimit = 2 * time.Minute

// outcome is one line of a client's output.
type outcome struct {
	Client string `json:"client"`
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	MS     int64  `json:"ms"`
	Error  string `json:"error"`
}

// client is one SDK at one version. prepare installs it. It returns the command that runs
// the client over a transport, without --url and --transport. name is the name that the
// client must report.
type client struct {
	name    string
	prepare func(t *testing.T, transport string) []string
}

// The transports, as the programs call them.
const (
	streamable = "http" // Streamable HTTP
	sse        = "sse"  // HTTP+SSE 2024-11-05
	webSocket  = "ws"   // each text message is one MCP message; the subprotocol is mcp
)

// clientsOver returns the SDKs that have a transport. The Go SDK has no WebSocket
// transport, so the program gosdk adds one.
func clientsOver(transport string) []client {
	all := []client{
		{"ts-1.32.2", func(t *testing.T, transport string) []string { return prepareTypeScriptClient(t, "ts", transport) }},
		{"py-1.30.0", func(t *testing.T, _ string) []string { return preparePython(t, "requirements-1.30.0.txt", "client.py") }},
		// By default this SDK would speak the modern era, which has no sessions, no ping,
		// and no log level of a session.
		{"go-1.8.0", func(t *testing.T, _ string) []string { return append(prepareGo(t), "--protocol", "2025-11-25") }},
	}
	if transport == webSocket {
		return all // mcp 2.x has given it up
	}
	return append(all, client{"py-2.3.0", func(t *testing.T, _ string) []string {
		return preparePython(t, "requirements-2.3.0.txt", "client.py")
	}})
}

// modernClients returns the SDKs that speak the era without sessions, each in all its
// modes that do so.
func modernClients() map[string]client {
	typeScript := func(mode string) client {
		return client{"ts-2.4.0", func(t *testing.T, transport string) []string {
			return append(prepareTypeScriptClient(t, "ts2", transport), "--mode", mode)
		}}
	}
	python := func(mode string) client {
		return client{"py-2.3.0", func(t *testing.T, _ string) []string {
			return append(preparePython(t, "requirements-2.3.0.txt", "client.py"), "--mode", mode)
		}}
	}
	return map[string]client{
		"ts auto": typeScript("auto"), "ts pin": typeScript("pin"), "py auto": python("auto"), "py 2026-07-28": python("2026-07-28"),
		"go": {"go-1.8.0", func(t *testing.T, _ string) []string { return append(prepareGo(t), "--era", "modern") }},
	}
}

func allChecks() []string {
	return []string{
		"initialize", "list", "echo-unicode", "echo-large", "echo-20", "progress", "sampling",
		"elicitation", "roots", "logging", "cancel", "ping", "close",
	}
}

// modernChecks returns the checks that make sense without sessions.
func modernChecks() []string {
	return slices.DeleteFunc(allChecks(), func(check string) bool { return check == "logging" || check == "ping" })
}

func TestDormousePassesEveryClient(t *testing.T) {
	urls := startDormouse(t)
	for _, transport := range dormouseTransports() {
		t.Run(transport, func(t *testing.T) { runClients(t, transport, urls[transport]) })
	}
}

// A function that may hold no response until its call has ended has clients poll for the rest.
func TestClientsPollForTheRestOfACall(t *testing.T) {
	url := programtest.Program{}.OnEmulator(t).Host(t, entries(t), nil, "--hold", "100ms")["everything"].URL
	startOnce(t, url)
	runClients(t, streamable, url)
}

// Each client has an endpoint of its own. Requests of one principal share a process, and
// server-everything keeps the roots of the first client that it asks.
func TestDormousePassesEveryModernClient(t *testing.T) {
	for name, c := range modernClients() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := c.run(t, streamable, startDormouse(t)[streamable])
			r.checks = modernChecks()
			r.start(t)
			r.report(t)
		})
	}
}

// The TypeScript SDKs pass at the address of all servers, where the name of a tool begins
// with its server's. The matrix has the other SDKs. Each client has an endpoint of its
// own, as above.
func TestDormousePassesTypeScriptAtOneAddress(t *testing.T) {
	modern := modernClients()
	for name, tt := range map[string]struct {
		client client
		checks []string
	}{
		"ts-1.32.2 legacy": {clientsOver(webSocket)[0], allChecks()},
		"ts-2.4.0 legacy": {client{"ts-2.4.0", func(t *testing.T, transport string) []string {
			return append(prepareTypeScriptClient(t, "ts2", transport), "--mode", "legacy")
		}}, allChecks()},
		"ts-2.4.0 auto": {modern["ts auto"], modernChecks()},
		"ts-2.4.0 pin":  {modern["ts pin"], modernChecks()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := programtest.Tool(t, "node", programtest.NodeHelp)
			server := map[string]any{"command": node, "args": []string{everything(t), "stdio"}}
			hosted := programtest.Host(t, map[string]any{"everything": server, "other": server})["everything"]
			url := strings.Replace(hosted.URL, "/everything/mcp", "/mcp", 1)
			r := newRun(t, tt.client.name, streamable, append(tt.client.prepare(t, streamable), "--url", url, "--transport", streamable, "--one", "everything"))
			r.checks = tt.checks
			r.start(t)
			r.report(t)
		})
	}
}

// Clients pass with server-everything's own HTTP servers, hosted as remote servers. A
// check may fail if docs/remote-servers.md does not promise its feature.
func TestDormousePassesClientsWithARemoteServer(t *testing.T) {
	for far, lacks := range map[string][]string{streamable: nil, sse: {"roots", "logging"}} {
		t.Run("upstream "+far, func(t *testing.T) {
			t.Parallel()
			url := programtest.Host(t, map[string]any{"everything": remoteEntry(startReference(t, far))})["everything"].URL
			for _, c := range clientsOver(streamable) {
				// The other clients wait a minute or more for a feature that such a
				// server lacks; make matrix runs them.
				if c.name != map[string]string{streamable: "ts-1.32.2", sse: "go-1.8.0"}[far] {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					r := c.run(t, streamable, url)
					r.start(t)
					outcomes := r.outcomes(t)
					for _, check := range allChecks() {
						if got := outcomes[check]; !got.OK && !slices.Contains(lacks, check) {
							t.Errorf("%s: after %d ms: %s", check, got.MS, got.Error)
						}
					}
				})
			}
		})
	}
}

// TestClientsOfAllTransportsAtOnceDoNotMix runs every client over every transport against
// one server at the same time. Each message of a client has its name and its transport.
// Each client checks that all its answers have them too, so an answer to the wrong client
// fails a check.
func TestClientsOfAllTransportsAtOnceDoNotMix(t *testing.T) {
	urls := startDormouse(t)
	var runs []*clientRun
	for _, transport := range dormouseTransports() {
		for _, c := range clientsOver(transport) {
			runs = append(runs, c.run(t, transport, urls[transport]))
		}
	}
	for _, r := range runs {
		r.start(t)
	}
	for _, r := range runs {
		t.Run(r.name+" over "+r.transport, func(t *testing.T) { r.report(t) })
	}
}

// runClients runs one client after the other.
func runClients(t *testing.T, transport, url string) {
	for _, c := range clientsOver(transport) {
		t.Run(c.name, func(t *testing.T) {
			r := c.run(t, transport, url)
			r.start(t)
			r.report(t)
		})
	}
}

// clientRun is one run of a client's program.
type clientRun struct {
	name, transport string
	checks          []string
	cmd             *exec.Cmd
	stdout, stderr  bytes.Buffer
}

// run makes everything ready to start.
func (c client) run(t *testing.T, transport, url string) *clientRun {
	t.Helper()
	command := append(c.prepare(t, transport), "--url", url, "--transport", transport)
	return newRun(t, c.name, transport, command)
}

func newRun(t *testing.T, name, transport string, command []string) *clientRun {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	t.Cleanup(cancel)
	r := &clientRun{name: name, transport: transport, checks: allChecks(), cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	r.cmd.Stdout, r.cmd.Stderr, r.cmd.WaitDelay = &r.stdout, &r.stderr, 5*time.Second
	return r
}

func (r *clientRun) start(t *testing.T) {
	t.Helper()
	commontest.OK(t, r.cmd.Start())
}

// report makes a subtest of every check.
func (r *clientRun) report(t *testing.T) {
	outcomes := r.outcomes(t)
	for _, check := range r.checks {
		t.Run(check, func(t *testing.T) {
			got, ok := outcomes[check]
			switch {
			case !ok:
				t.Fatal("the client ended without reporting this check")
			case !got.OK:
				t.Fatalf("after %d ms: %s", got.MS, got.Error)
			}
			t.Logf("%d ms", got.MS)
		})
	}
}

// outcomes waits for the client and returns its results by check. A report that
// contradicts itself or the list of checks fails the test.
func (r *clientRun) outcomes(t *testing.T) map[string]outcome {
	t.Helper()
	runErr := r.cmd.Wait()
	outcomes, allOK := parseOutcomes(t, r.name, r.checks, &r.stdout)
	if r.stderr.Len() > 0 {
		t.Logf("stderr: %s", r.stderr.Bytes())
	}
	if allOK && runErr != nil {
		t.Errorf("all checks passed, but the client ended with: %v", runErr)
	}
	if !allOK && runErr == nil {
		t.Error("some checks failed, but the client exited 0")
	}
	return outcomes
}

func parseOutcomes(t *testing.T, name string, checks []string, lines io.Reader) (outcomes map[string]outcome, allOK bool) {
	t.Helper()
	outcomes, allOK = map[string]outcome{}, true
	known := map[string]bool{}
	for _, check := range checks {
		known[check] = true
	}
	decoder := json.NewDecoder(lines)
	decoder.DisallowUnknownFields()
	for {
		var line outcome
		err := decoder.Decode(&line)
		if errors.Is(err, io.EOF) {
			return outcomes, allOK && len(outcomes) == len(known)
		}
		if err != nil {
			t.Errorf("the client's output is not one JSON line a check: %v", err)
			return outcomes, false
		}
		if line.Client != name {
			t.Errorf("client calls itself %s, want %s", line.Client, name)
		}
		if _, twice := outcomes[line.Check]; twice || !known[line.Check] {
			t.Errorf("check %s is unknown or comes twice", line.Check)
		}
		outcomes[line.Check] = line
		allOK = allOK && line.OK
	}
}
