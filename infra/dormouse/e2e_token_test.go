//go:build e2e

package dormouse_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// token returns an access token for a server, which a client gets for a key.
func (m *machine) token(server, key string) string {
	m.t.Helper()
	var metadata struct {
		Token string `json:"token_endpoint"`
	}
	base := strings.TrimSuffix(m.urls[server], "/"+server+"/mcp")
	found := web(m.t, http.DefaultClient, http.MethodGet, base+"/.well-known/oauth-authorization-server", "", http.Header{})
	commontest.OK(m.t, json.Unmarshal([]byte(found.text), &metadata))
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {strings.Split(key, "_")[1]}, "client_secret": {key}, "resource": {m.urls[server]}}
	answer := web(m.t, http.DefaultClient, http.MethodPost, metadata.Token, form.Encode(), http.Header{"Content-Type": {"application/x-www-form-urlencoded"}})
	var got struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(answer.text), &got); err != nil || got.Token == "" {
		m.t.Fatal(err, answer)
	}
	return got.Token
}

// The token of a call is in no file of the data folder and of the temporary folder, in no log line,
// and in the environment and the arguments of no process. Functions and boxes are programs here.
func TestE2ETokenIsNowhere(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil}).asPrograms()
	m.start("--listen", commontest.FreeAddress(t), "--access", "oauth")
	token := m.token("one", m.keys("create", "ada", "--all-servers"))
	m.as(token, "one").text("count", `{}`)
	m.nowhere(token[3:43])
	m.nowhere(token[len(token)-40:])
	m.only("stdio")
	for _, p := range m.processes() {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		if err == nil && bytes.Contains(env, []byte(token)) {
			t.Errorf("process %d has it in its environment", p.pid)
		}
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
