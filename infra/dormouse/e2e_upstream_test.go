//go:build e2e

package dormouse_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/http/cookiejar"
	"net/url"
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

// openPage opens a page of the machine, or sends a form of it.
func openPage(t *testing.T, browser *http.Client, target string, form url.Values) (*url.URL, string) {
	t.Helper()
	var res *http.Response
	var err error
	if form == nil {
		res, err = browser.Get(target) //nolint:noctx // the client has a limit
	} else {
		res, err = browser.PostForm(target, form) //nolint:noctx // the client has a limit
	}
	commontest.OK(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res.Status, err, string(body))
	}
	return res.Request.URL, string(body)
}

// hiddenFields returns the hidden fields of the first form of a page.
func hiddenFields(body string) url.Values {
	f := url.Values{}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllStringSubmatch(body, -1) {
		f.Set(m[1], html.UnescapeString(m[2]))
	}
	return f
}

// The value of ada is set by the operator; bob sets his own on the page.
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
	link := regexp.MustCompile(`http://\S+/acts/connect\?e=[\w-]+`).FindString(asked)
	if link == "" {
		t.Fatalf("bob is told %q", asked)
	}
	m.connects(link, keys["bob"], "token-of-bob")
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

// connects stores a token by the page at link, as a user with a browser and a key does.
func (m *machine) connects(link, key, token string) {
	m.t.Helper()
	jar, err := cookiejar.New(nil)
	commontest.OK(m.t, err)
	browser := &http.Client{Jar: jar, Timeout: patience}
	at, body := openPage(m.t, browser, link, nil)
	f := hiddenFields(body)
	f.Set("ticket", m.ticket("acts", key))
	at, body = openPage(m.t, browser, at.String(), f)
	f = hiddenFields(body)
	f.Set("action", "connect")
	f.Set("secret", token)
	if _, body = openPage(m.t, browser, at.String(), f); !strings.Contains(body, "is connected") {
		m.t.Fatal(body)
	}
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
