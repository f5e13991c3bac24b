//go:build e2e

package dormouse_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// acts returns the hash of the token with which the server acts.
func (c *client) acts() string {
	c.t.Helper()
	return c.text("acts", `{}`)
}

func hashOf(token string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(token))) }

// secret runs dormouse secrets set for a principal.
func (m *machine) secret(principal, name, value string) {
	m.t.Helper()
	cmd := m.command("secrets set", "--principal", principal, name)
	cmd.Stdin = strings.NewReader(value + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
}

// Who has no token is told where to connect, and starts no process.
func TestE2EUpstreamEachPrincipalHasItsOwnToken(t *testing.T) {
	t.Parallel()
	program := stdio(t)
	m := machineOf(t, map[string]any{"acts": map[string]any{
		"command": program, "args": []string{"-name", "acts"}, "env": map[string]string{"ACTS_AS": "${principal:notes}"},
	}})
	m.start("--access", "keys", "--listen", commontest.FreeAddress(t), "--idle", idle.String())
	keys := map[string]string{"ada": m.keys("create", "ada", "--all-servers"), "bob": m.keys("create", "bob", "--all-servers")}
	m.secret("ada", "notes", "token-of-ada")
	ada, bob := m.as(keys["ada"], "acts"), m.as(keys["bob"], "acts")
	commontest.EqualIn(t, "ada's process acts with", hashOf("token-of-ada"), ada.acts())
	before := len(m.those("stdio"))
	asked := bob.acts()
	if now := len(m.those("stdio")); now != before {
		t.Errorf("a call without a token has started a process: %d, then %d", before, now)
	}
	if !regexp.MustCompile(`http://\S+/acts/connect\?e=[\w-]+`).MatchString(asked) {
		t.Errorf("bob is told %q", asked)
	}
	m.secret("bob", "notes", "token-of-bob")
	commontest.EqualIn(t, "bob's process acts with", hashOf("token-of-bob"), bob.acts())
	m.secret("ada", "notes", "token-of-ada-2")
	commontest.EqualIn(t, "after a change, ada's process acts with", hashOf("token-of-ada-2"), ada.acts())
	m.asleep() // a call that wakes the box waits in the inbox, and acts for its user all the same
	for who, c := range map[string]*client{"ada-2": ada, "bob": bob} {
		if got := c.acts(); got != hashOf("token-of-"+who) {
			t.Errorf("a call that wakes the server acts with %s, want the token of %s", got, who)
		}
	}
	m.nowhere("token-of-")
}

// nowhere checks that a text is in no file, in no log, and among no process's arguments.
func (m *machine) nowhere(text string) {
	m.t.Helper()
	for _, folder := range []string{m.data, m.tmp} {
		err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return nil //nolint:nilerr // a file that has gone holds nothing
			}
			data, err := os.ReadFile(name)
			if err == nil && bytes.Contains(data, []byte(text)) {
				m.t.Errorf("%s has it", name)
			}
			return nil
		})
		commontest.Check(m.t, err)
	}
	out, _ := m.out.lines()
	log, _ := m.log.lines()
	for _, line := range slices.Concat(out, log) {
		if strings.Contains(line, text) {
			m.t.Errorf("a line of the log has it: %s", line)
		}
	}
	for _, p := range m.processes() {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		if err == nil && bytes.Contains(args, []byte(text)) {
			m.t.Errorf("process %d has it among its arguments", p.pid)
		}
	}
}
