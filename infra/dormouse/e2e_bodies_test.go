//go:build e2e

package dormouse_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
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
	const planted, secret = "planted-4f1c2b", `env-secret"of/one`
	to := newCollector(t)
	m := machineOf(t, map[string]any{"one": map[string]any{
		"command": stdio(t), "args": []string{"-name", "one"}, "env": map[string]string{"TOKEN": secret},
		"x-dormouse": map[string]any{"tasks": "always", "audit": map[string]any{"redact": []string{"password"}}},
	}})
	m.ours(`{"audit": {"bodies": "auditor"}}`)
	m.env = append(m.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+to.URL, "OTEL_BSP_SCHEDULE_DELAY=100", "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	m.start("--access", "keys")
	keyOf := func(tenant, role string) string {
		return m.keys("create", tenant+"-"+role, "--tenant", tenant, "--all-servers", "--role", role)
	}
	ada := keyOf("acme", "user")
	said := func(how string) string {
		text, err := json.Marshal(map[string]string{"text": planted + " " + how + " " + secret + " " + base64.StdEncoding.EncodeToString([]byte("u:"+secret)), "Password": "marked-77"})
		commontest.OK(t, err)
		return string(text)
	}

	m.as(ada, "one").text("echo", said("legacy"))
	modern := &client{t: t, http: http.DefaultClient, url: m.urls["one"], key: ada}
	if answer := modern.served("tools/call", "echo", `"name":"echo","arguments":`+said("modern"), "{}"); answer.Error != nil {
		t.Fatalf("the modern call got %s", answer.Raw)
	}
	var task struct {
		Result struct {
			TaskID string
		}
	}
	answer := modern.served("tools/call", "work", `"name":"work","arguments":`+strings.Replace(said("task"), "{", `{"before":1,"pause":900,"tag":"`+planted+`",`, 1), `{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}},"progressToken":"t"`)
	if err := json.Unmarshal(answer.Raw, &task); err != nil || task.Result.TaskID == "" {
		t.Fatalf("the call is no task: %s", answer.Raw)
	}
	modern.until(task.Result.TaskID, "completed")
	conn, _, err := websocket.Dial(t.Context(), m.ws["one"], &websocket.DialOptions{Subprotocols: []string{"mcp"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + ada}}}) //nolint:bodyclose // the library closes it
	commontest.OK(t, err)
	s := &socket{t: t, conn: conn}
	defer func() { _ = conn.CloseNow() }()
	s.say(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":` + params + `}`)
	s.end(`"init"`)
	s.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	s.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":` + said("socket") + `}}`)
	s.end("1")

	read := func(key string, args ...string) string {
		cmd := m.command("calls", append([]string{"--url", strings.TrimSuffix(m.urls["one"], "/one/mcp"), "--key", key}, args...)...)
		cmd.Args = slices.Concat(cmd.Args[:2], cmd.Args[4:]) // --data would be this machine
		out, _ := cmd.CombinedOutput()                       // who may not read gets an error
		return string(out)
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
		t.Run(how, func(t *testing.T) {
			if b.Tenant != "acme" || b.Principal != "acme-user" || b.Server != "one" || how != "task" && !strings.Contains(string(b.Result), planted+" "+how) {
				t.Errorf("%s: %s with %s, %s", how, b.Principal, b.Arguments, b.Result)
			}
		})
	}
	coded := base64.StdEncoding.EncodeToString([]byte("u:" + secret))[4:20]
	escaped := strings.ReplaceAll(secret, `"`, `\"`)
	for who, text := range map[string]string{
		"the auditor of another tenant": read(keyOf("globex", "auditor"), "--bodies"), "an operator": read(keyOf("acme", "operator"), "--bodies"),
		"a viewer": read(keyOf("acme", "viewer"), "--bodies"), "its user": read(ada, "--bodies"), "the user of the machine": func() string {
			out, _ := m.command("calls", "--bodies").CombinedOutput()
			return string(out)
		}(),
		"the history": read(auditor, "--json"), "an operator's history": read(keyOf("default", "operator"), "--json"),
	} {
		t.Run(who, func(t *testing.T) {
			if strings.Contains(text, planted) || strings.Contains(text, "marked-77") {
				t.Errorf("%s reads %.300s", who, text)
			}
		})
	}
	m.end()
	own := read(auditor, "--bodies") // nothing answers
	all := map[string]string{"stdout": m.out.tail(10_000), "the log": m.log.tail(10_000), "telemetry": to.all, "what answers when all is over": own}
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
			all[path] = string(text)
		}
		return err
	})
	commontest.Check(t, err)
	for where, text := range all {
		t.Run(where, func(t *testing.T) {
			for _, word := range []string{planted, secret, escaped, coded, "marked-77"} {
				if strings.Contains(text, word) {
					t.Errorf("%s has %q", where, word)
				}
			}
		})
	}
	for how, b := range found {
		t.Run(how, func(t *testing.T) {
			if text := fmt.Sprintf("%s %s", b.Arguments, b.Result); strings.Contains(text, secret) || strings.Contains(text, escaped) || strings.Contains(text, coded) || strings.Contains(text, "marked-77") {
				t.Errorf("the auditor reads a secret in %s: %s", how, text)
			}
		})
	}
	if kept == 0 {
		t.Error("there is no file with bodies")
	}
}
