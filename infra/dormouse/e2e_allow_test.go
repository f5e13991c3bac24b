//go:build e2e

package dormouse_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// signedIn registers a client, signs a user in on the pages of the development sign-in,
// and returns the access token.
func signedIn(t *testing.T, base, server, name, groups string) string {
	t.Helper()
	jar, err := cookiejar.New(nil)
	commontest.OK(t, err)
	browser := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	form := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	const done = "http://127.0.0.1/done"
	var client struct {
		ID string `json:"client_id"`
	}
	registered := web(t, browser, http.MethodPost, base+"/register", `{"redirect_uris":["`+done+`"]}`, http.Header{"Content-Type": {"application/json"}})
	if err := json.Unmarshal([]byte(registered.text), &client); err != nil {
		t.Fatal(err, registered)
	}
	verifier := strings.Repeat("v", 43)
	hash := sha256.Sum256([]byte(verifier))
	at := base + "/authorize?" + url.Values{
		"response_type": {"code"}, "client_id": {client.ID}, "redirect_uri": {done}, "resource": {base + "/" + server + "/mcp"},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(hash[:])}, "code_challenge_method": {"S256"},
	}.Encode()
	method, fields := http.MethodGet, url.Values{}
	for range 10 {
		here := web(t, browser, method, at, fields.Encode(), form)
		if to := here.to; to != nil {
			if strings.HasPrefix(to.String(), done) {
				var got struct {
					Token string `json:"access_token"`
				}
				answer := web(t, browser, http.MethodPost, base+"/token", url.Values{
					"grant_type": {"authorization_code"}, "client_id": {client.ID}, "code": {to.Query().Get("code")}, "redirect_uri": {done}, "code_verifier": {verifier},
				}.Encode(), form)
				if err := json.Unmarshal([]byte(answer.text), &got); err != nil || got.Token == "" {
					t.Fatal(err, answer)
				}
				return got.Token
			}
			method, at, fields = http.MethodGet, to.String(), url.Values{}
			continue
		}
		action := regexp.MustCompile(`<form method="post" action="([^"]*)">`).FindStringSubmatch(here.text)
		if action == nil {
			t.Fatal(here)
		}
		fields = hiddenFields(here.text)
		for field, value := range map[string]string{"answer": "allow", "name": name, "groups": groups} {
			fields.Set(field, value)
		}
		method, at = http.MethodPost, base+action[1] // the pages name paths
	}
	t.Fatal("too many pages")
	return ""
}

// A program in a box offers all its tools, and users see those that the rules let them
// use. That holds for the first list of tools, and for a later one from the handshake
// record.
func TestE2EUsersSeeTheToolsOfTheRules(t *testing.T) {
	t.Parallel()
	const hiddenTool = "pid"
	program := modern(t)
	m := machineOf(t, map[string]any{"one": map[string]any{"command": program}})
	m.ours(`{"access": {"allow": {"one": {"everyone": true, "tools": {"` + hiddenTool + `": {"groups": ["admins"]}}}}}}`)
	address := commontest.FreeAddress(t)
	m.start("--listen", address, "--access", "oauth")
	base := "http://" + address
	for _, round := range []string{"at first", "again"} {
		for name, groups := range map[string]string{"ada": "eng", "root": "admins,eng"} {
			token := signedIn(t, base, "one", name, groups)
			header := usual("Authorization", "Bearer "+token)
			opened := web(t, http.DefaultClient, http.MethodPost, m.urls["one"], initialize, header)
			if opened.status != http.StatusOK {
				t.Fatal(opened)
			}
			header.Set("Mcp-Session-Id", opened.header.Get("Mcp-Session-Id"))
			web(t, http.DefaultClient, http.MethodPost, m.urls["one"], `{"jsonrpc":"2.0","method":"notifications/initialized"}`, header)
			list := web(t, http.DefaultClient, http.MethodPost, m.urls["one"], `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, header)
			var tools []string
			for _, found := range regexp.MustCompile(`"name":"([a-z_]+)"`).FindAllStringSubmatch(list.text, -1) {
				tools = append(tools, found[1])
			}
			if slices.Contains(tools, hiddenTool) != (name == "root") || len(tools) < 2 {
				t.Errorf("%s, %s sees %v", round, name, tools)
			}
			called := web(t, http.DefaultClient, http.MethodPost, m.urls["one"], `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"`+hiddenTool+`","arguments":{}}}`, header)
			if refused := called.status == http.StatusForbidden && strings.Contains(called.text, "ask its operator"); refused != (name == "ada") {
				t.Errorf("%s, %s calls it: %d %s", round, name, called.status, called.text)
			}
		}
	}
}

// The token of a call is in no file of the data folder and of the temporary folder, in no log line,
// and in the environment and the arguments of no process. Functions and boxes are programs here.
func TestE2ETokenIsNowhere(t *testing.T) {
	t.Parallel()
	program := stdio(t)
	m := machineOf(t, map[string]any{"one": map[string]any{"command": program}}).asPrograms()
	address := commontest.FreeAddress(t)
	m.start("--listen", address, "--access", "oauth")
	if out, err := m.command("connect", "claude-code", "one").CombinedOutput(); err != nil || !strings.Contains(string(out), "opens a page in the browser") || !strings.Contains(string(out), m.urls["one"]) {
		t.Errorf("%v: %s", err, out)
	}
	token := signedIn(t, "http://"+address, "one", "ada", "eng")
	c := m.as(token, "one")
	c.text("count", `{}`)
	m.nowhere(token[3:43])
	m.nowhere(token[len(token)-40:])
	if len(m.those("stdio")) != 1 {
		t.Errorf("the process of the server is not among %v", m.processes())
	}
	for _, p := range m.processes() {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		if err == nil && bytes.Contains(env, []byte(token)) {
			t.Errorf("process %d has it in its environment", p.pid)
		}
	}
}
