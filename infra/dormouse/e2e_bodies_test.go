//go:build e2e

package dormouse_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/bodies"
)

// What calls say is read by auditors of their tenant, over each transport and in both eras, and
// without the secrets of the server. It is in no log, no history, no telemetry, no
// file of the data folder but the log of answers, and in no view of anybody else.
func TestE2EBodiesAreReadByTheirRoleOnly(t *testing.T) {
	t.Parallel()
	const planted, secret, redacted = "planted-4f1c2b", `env-secret"of/one`, "marked-77"
	var telemetry commontest.Lines
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(&telemetry, r.Body)
		commontest.Check(t, err)
	}))
	t.Cleanup(collector.Close)
	m := machineOf(t, map[string]any{"one": map[string]any{
		"command": stdio(t), "args": []string{"-name", "one"}, "env": map[string]string{"TOKEN": secret},
		"x-dormouse": map[string]any{"tasks": "always", "audit": map[string]any{"redact": []string{"password"}}},
	}})
	m.ours(`{"audit": {"bodies": "auditor"}}`)
	m.env = append(m.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_BSP_SCHEDULE_DELAY=100", "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	commontest.OK(t, os.MkdirAll(filepath.Join(m.data, "bodies"), 0o700))
	commontest.OK(t, os.WriteFile(filepath.Join(m.data, "bodies", "bodies.log"), []byte(`{"time":"2026-11`), 0o600)) // a full disk has cut this line
	m.start("--access", "keys")
	keyOf := func(tenant, role string) string {
		return m.keys("create", tenant+"-"+role, "--tenant", tenant, "--all-servers", "--role", role)
	}
	ada := keyOf("acme", "user")
	coded := base64.StdEncoding.EncodeToString([]byte("u:" + secret))
	said := func(how string) string {
		text, err := json.Marshal(map[string]string{"text": planted + " " + how + " " + secret + " " + coded, "Password": redacted})
		commontest.OK(t, err)
		return string(text)
	}

	m.as(ada, "one").text("echo", said("legacy"))
	modern := &client{t: t, http: http.DefaultClient, url: m.urls["one"], key: ada}
	modern.served("tools/call", "echo", `"name":"echo","arguments":`+said("modern"), "{}")
	var task taskState
	made := modern.served("tools/call", "work", `"name":"work","arguments":`+strings.Replace(said("task"), "{", `{"before":1,"pause":900,"tag":"`+planted+`",`, 1), `{"extensions":{"io.modelcontextprotocol/tasks":{}}},"progressToken":"t"`)
	commontest.OK(t, json.Unmarshal(made.Result, &task))
	modern.until(task.TaskID, "completed")
	conn, _, err := websocket.Dial(t.Context(), m.ws["one"], &websocket.DialOptions{Subprotocols: []string{"mcp"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + ada}}}) //nolint:bodyclose // the library closes it
	commontest.OK(t, err)
	defer func() { _ = conn.CloseNow() }()
	s := &socket{t: t, conn: conn}
	s.shakesHands()
	s.text("echo", said("socket"))

	read := func(key string, args ...string) string {
		out, _ := operate(t, slices.Concat([]string{"calls", "--url", strings.TrimSuffix(m.urls["one"], "/one/mcp"), "--key", key}, args)...) // who may not read gets an error
		return out
	}
	auditor := keyOf("acme", "auditor")
	found := map[string]bodies.Body{}
	m.eventually(patience, "the auditor reads four calls", func() bool {
		clear(found)
		for line := range strings.Lines(read(auditor, "--bodies")) {
			var b bodies.Body
			if json.Unmarshal([]byte(line), &b) == nil && b.Result != nil {
				for _, how := range []string{"legacy", "modern", "task", "socket"} {
					if strings.Contains(string(b.Arguments), planted+" "+how) {
						found[how] = b
					}
				}
			}
		}
		return len(found) == 4
	})
	for how, b := range found {
		if b.Tenant != "acme" || b.Principal != "acme-user" || b.Server != "one" || how != "task" && !strings.Contains(string(b.Result), planted+" "+how) {
			t.Errorf("%s: %s with %s, %s", how, b.Principal, b.Arguments, b.Result)
		}
	}
	own, _ := operate(t, "calls", "--bodies", "--data", m.data)
	seen := map[string]string{
		"the auditor of another tenant": read(keyOf("globex", "auditor"), "--bodies"), "an operator": read(keyOf("acme", "operator"), "--bodies"),
		"a viewer": read(keyOf("acme", "viewer"), "--bodies"), "its user": read(ada, "--bodies"), "the user of the machine": own,
		"the history": read(auditor, "--json"), "an operator's history": read(keyOf("default", "operator"), "--json"),
	}
	m.end()
	seen["stdout"], seen["the log"], seen["telemetry"] = m.out.tail(10_000), m.log.tail(10_000), telemetry.String()
	commontest.Contains(t, "telemetry has", "tools/call echo", seen["telemetry"])
	kept := 0
	err = filepath.WalkDir(m.data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		name := filepath.Base(path)
		if strings.HasPrefix(name, "bodies") {
			kept++
			if info, err := d.Info(); err == nil && info.Mode().Perm() != 0o600 {
				t.Errorf("%s can be read by others: %v", path, info.Mode())
			}
		}
		if !strings.HasPrefix(name, "store.db") { // its log keeps each answer for 24 hours, with and without an audit
			seen[path] = string(text)
		}
		return err
	})
	commontest.Check(t, err)
	secrets := []string{secret, strings.ReplaceAll(secret, `"`, `\"`), coded[4:20], redacted}
	lacks := func(where, text string, words ...string) {
		for _, word := range words {
			if strings.Contains(text, word) {
				t.Errorf("%s has %q", where, word)
			}
		}
	}
	for where, text := range seen {
		lacks(where, text, append(secrets, planted)...)
	}
	for how, b := range found {
		lacks("what the auditor reads of "+how, fmt.Sprintf("%s %s", b.Arguments, b.Result), secrets...)
	}
	commontest.EqualIn(t, "there is no file with bodies", false, kept == 0)
}
