//go:build browser

package console

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// servers are the names of the working servers. One more, billing, fails at its start.
var servers = strings.Fields("weather github linear postgres search calendar mail notes files browser maps translate stocks slack jira docs images music recipes tickets")

// checks are the names of the checks that console.mjs makes on a machine.
var checks = []string{
	"the link works once", "views", "live", "a tool is tried", "keyboard", "stop and end", "keys", "reload", "viewer", "tenants", "one tenant", "pages of others", "hidden", "pages of addresses",
	"add, switch and set", "a held tool is taken", "limits", "a key for a client",
}

// ofAStack are the checks on the console of a stack.
var ofAStack = []string{"the link works once", "views", "a tool is tried", "keyboard", "keys", "pages of others", "hidden", "an hour", "a search", "stop and end", "pages of addresses"}

// withProvider are the checks of a sign-in at a provider.
var withProvider = []string{"an operator signs in", "a viewer signs in", "a stranger does not", "a grant ends", "pages of addresses", "consent"}

// TestConsoleInARealBrowser needs Chromium: the one in DORMOUSE_TEST_BROWSER, or else one
// from a package of npm. Screenshots stay in DORMOUSE_SHOTS, if it names a folder.
func TestConsoleInARealBrowser(t *testing.T) { look(t, place{}, checks) }

// TestConsoleOfAStackInARealBrowser looks at the console that a function serves.
func TestConsoleOfAStackInARealBrowser(t *testing.T) {
	look(t, place{stack: true}, ofAStack, "--access", "keys")
}

// TestConsoleSignInInARealBrowser has users sign in at a provider, whose groups have roles.
func TestConsoleSignInInARealBrowser(t *testing.T) {
	at := commontest.FreeAddress(t) // tokens are for one address, so its port must be known
	look(t, place{oauth: true}, withProvider, "--access", "oauth", "--listen", at)
}

// place says which console is tested: of a machine by default, of a stack, or one with
// sign-in.
type place struct{ stack, oauth bool }

func rule(group string) map[string]any { return map[string]any{"groups": []string{group}} }

func look(t *testing.T, of place, checks []string, flags ...string) {
	t.Helper()
	node := programtest.Tool(t, "node", programtest.NodeHelp)
	dir := programtest.NodeModules(t, filepath.Join("console"), ".", programtest.Run(t, ".", programtest.NodeHelp, 0, node, "--version"))
	programtest.Copy(t, "console.mjs", filepath.Join(dir, "console.mjs"))
	script, err := filepath.Abs("server.mjs")
	commontest.OK(t, err)
	entries := map[string]any{"billing": map[string]any{"command": node, "args": []string{script, "broken"}}}
	for _, name := range servers {
		entries[name] = map[string]any{"command": node, "args": []string{script}, "env": map[string]string{"API_TOKEN": "a-value-that-nobody-sees"}}
	}
	entries["recipes"] = map[string]any{"command": node, "args": []string{script, "more"}, "x-dormouse": map[string]any{"record": "off", "tools": map[string]any{"pin": true}}}
	data := t.TempDir()
	text, err := json.Marshal(map[string]any{
		"mcpServers": entries,
		"x-dormouse": map[string]any{"access": map[string]any{"roles": map[string]any{"operator": rule("sre"), "viewer": rule("eng")}}},
	})
	commontest.OK(t, err)
	file := filepath.Join(t.TempDir(), "servers.json")
	programtest.Write(t, file, text)
	program := programtest.Program{}
	if of.stack {
		program = program.OnEmulator(t)
	}
	base := strings.TrimSuffix(program.Host(t, entries, nil, append([]string{"--data", data, "--access", "keys", "--servers", file}, flags...)...)["weather"].URL, "/weather/mcp")
	shots := os.Getenv("DORMOUSE_SHOTS")
	if shots == "" {
		shots = t.TempDir()
	}
	asked, err := json.Marshal(map[string]any{
		"stack": of.stack, "oauth": of.oauth, "file": file, "base": base, "data": data, "dormouse": filepath.Join(programtest.Root(t), "bin", "dormouse"), "servers": servers,
		"browser": os.Getenv("DORMOUSE_TEST_BROWSER"), "shots": shots,
	})
	commontest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), node, filepath.Join(dir, "console.mjs"), string(asked))
	cmd.Env = append(os.Environ(), "LANG=en_US.UTF-8", "TZ=UTC") // Chromium from npm needs a language
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	commontest.OK(t, err)
	commontest.OK(t, cmd.Start())
	done := map[string]bool{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var line struct{ Check, Error, Note string }
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Errorf("%s: %v", lines.Text(), err)
			continue
		}
		done[line.Check] = true
		switch {
		case line.Error != "":
			t.Errorf("%s: %s", line.Check, line.Error)
		default:
			t.Log(line.Check, line.Note)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
	for _, name := range checks {
		if !done[name] {
			t.Errorf("%s: not checked", name)
		}
	}
}
