//go:build clients

package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"testing"
	"time"
)

// runLimit bounds one client's whole run; each check has its own 60 s inside the client.
const runLimit = 2 * time.Minute

// outcome is one line of a client's output.
type outcome struct {
	Client string `json:"client"`
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	MS     int64  `json:"ms"`
	Error  string `json:"error"`
}

// client is one SDK at one version. prepare installs it and returns the command that runs it,
// without --url and --transport; name is what the client must call itself.
type client struct {
	name    string
	prepare func(*testing.T) []string
}

func allClients() []client {
	return []client{
		{"ts-1.32.2", prepareTypeScript},
		{"py-1.30.0", func(t *testing.T) []string { return preparePython(t, "requirements-1.30.0.txt") }},
		{"py-2.3.0", func(t *testing.T) []string { return preparePython(t, "requirements-2.3.0.txt") }},
		{"go-1.8.0", prepareGo},
	}
}

func allChecks() []string {
	return []string{
		"initialize", "list", "echo-unicode", "echo-256k", "echo-20", "progress", "sampling",
		"elicitation", "roots", "logging", "cancel", "ping", "close",
	}
}

func TestReferenceServerPassesEveryClient(t *testing.T) {
	runClients(t, startReference(t))
}

func TestDormousePassesEveryClient(t *testing.T) {
	runClients(t, startDormouse(t))
}

func runClients(t *testing.T, url string) {
	for _, c := range allClients() {
		t.Run(c.name, func(t *testing.T) {
			outcomes := runClient(t, c, url)
			for _, check := range allChecks() {
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
		})
	}
}

// runClient returns what the client reported, by check. A report that does not agree with itself
// or with the list of checks fails the test.
func runClient(t *testing.T, c client, url string) map[string]outcome {
	t.Helper()
	command := append(c.prepare(t), "--url", url, "--transport", "http")
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &stdout, &stderr, 5*time.Second
	runErr := cmd.Run()
	outcomes, allOK := parseOutcomes(t, c.name, &stdout)
	if stderr.Len() > 0 {
		t.Logf("stderr: %s", stderr.Bytes())
	}
	if allOK && runErr != nil {
		t.Errorf("all checks passed, but the client ended with: %v", runErr)
	}
	if !allOK && runErr == nil {
		t.Error("some checks failed, but the client exited 0")
	}
	return outcomes
}

func parseOutcomes(t *testing.T, name string, lines io.Reader) (outcomes map[string]outcome, allOK bool) {
	t.Helper()
	outcomes, allOK = map[string]outcome{}, true
	known := map[string]bool{}
	for _, check := range allChecks() {
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
