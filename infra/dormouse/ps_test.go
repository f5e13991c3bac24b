package dormouse

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/nativetest"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

func TestARunningMachineShowsItsServersAndKeepsItsFolder(t *testing.T) {
	s := newShell(t)
	s.file("servers.json", `{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}},"old":{"command":"a","disabled":true},"wrong":{"command":1}}}`)
	stop := s.up()
	got, _ := s.run("list --data $DATA")
	s.mask = append([]string{addressOf(got), "http://ADDRESS"}, s.mask...)
	got, code := s.run("list --data $DATA")
	want := `NAME     STATE       TOOLS  SESSIONS  CALLS·24H  LAST  ADDRESS
counter  asleep      1      0         0          –     http://ADDRESS/counter/mcp
old      off         –      –         –          –     it is disabled in the servers file
wrong    not served  –      –         –          –     command must be a string, not a number (servers.json:1:119)
`
	if got != want || code != exitDone {
		t.Errorf("exit code %d (-want +got):\n%s", code, cmp.Diff(want, got))
	}
	for _, test := range [][2]string{
		{"ps", "0 processes\n\n0 sessions; dormouse sessions lists them.\n => 0"},
		{"tools counter", "TOOL  ARGUMENTS     HINTS  DESCRIPTION\nadd   [by=integer]  –      Add to the counter of this session, and tell its value\n => 0"},
		{"tools conter", "no server conter: did you mean counter?\n => 1"},
		{"call counter add by=5", "5\n-- on stderr:\n"},
		{"call counter add bye=5", "no argument bye: did you mean by?; add takes [by=integer]\n => 2"},
		{"call counter ad", "counter has no tool ad: did you mean add?\n => 1"},
		{"call wrong x", "wrong is not served: command must be a string, not a number (servers.json:1:119)\n => 1"},
		{"call old x", "old is off: it is disabled in the servers file\n => 1"},
		{"stop counter", "counter is a native server: it runs inside Dormouse, and only while it answers a message. Its calls in flight go on until they end or reach tool_timeout_sec. To take it out of service: dormouse disable counter\n => 0"},
		{"stop --all --json", "{\n  \"boxes\": []\n}\n => 0"},
		{"calls old", "No call.\n => 0"},
		{"end nobody", "no session nobody: it has ended or expired; dormouse sessions lists those there are\n => 1"},
	} {
		got, code := s.run(test[0] + " --data $DATA")
		if got = fmt.Sprintf("%s => %d", got, code); !strings.Contains(got, test[1]) {
			t.Errorf("dormouse %s printed %q, want %q", test[0], got, test[1])
		}
	}
	second, code := s.run("run --listen 127.0.0.1:0 --data $DATA --servers $DATA/servers.json")
	if want := fmt.Sprintf("DATA is in use by another dormouse run, process %d; stop that one or name another folder with --data\n", os.Getpid()); code != exitFailed || !strings.Contains(second, want) {
		t.Errorf("a second run: exit code %d, %s; want %s", code, second, want)
	}
	stop()
}

// up hosts $DATA/servers.json with $DATA, and returns when it can be asked. The returned
// function ends it.
func (s *shell) up(changes ...func(*local.Config)) (stop func()) {
	s.t.Helper()
	cfg := local.Config{
		Listen: "127.0.0.1:0", Servers: s.data + "/servers.json", Data: s.data, Runner: []string{"/does/not/exist"},
		Native: nativetest.Servers(), Idle: time.Minute, Log: io.Discard,
	}
	for _, change := range changes {
		change(&cfg)
	}
	ready, ended := make(chan string, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(s.t.Context())
	cfg.Ready = func(url string) { ready <- url }
	go func() { ended <- local.Run(ctx, cfg) }()
	select {
	case err := <-ended:
		s.t.Fatal(err)
	case <-ready:
	}
	return func() {
		cancel()
		commontest.Check(s.t, localtest.Wait(s.t, ended))
	}
}

// addressOf returns the base URL in the output of list.
func addressOf(printed string) string {
	return regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(printed)
}

// tables returns functions that print tables of made-up values, by their golden file.
func tables() map[string]func(io.Writer) error {
	at := func(ago time.Duration) time.Time { return noon().Add(-ago) }
	p := func(ago time.Duration) *time.Time { v := at(ago); return &v }
	eleven, calls, none := 11, int64(41), int64(0)
	r := report{Running: true, Sessions: 2, Status: api.Status{
		Boxes: []api.Box{{Box: "default/one", Server: "one", PID: 8, Started: at(time.Minute), Processes: []api.Member{
			{PID: 9, Command: "node cli.js", Started: at(time.Second)},
		}}},
		Processes: []api.Process{
			{Server: "one", Process: "principal-0123456789abcdef", Box: "default/one", PID: 9, State: "ready", Since: at(time.Second), Principal: "ada", Client: "cursor", LastCall: p(5 * time.Minute), Memory: 81 << 20},
			{Server: "one", Process: "c3bjph2vld4rqqqqqqqq", Box: "default/one", State: "exited", Phase: "runtime", Detail: strings.Repeat("x", 200) + "\ny", Since: at(0), Principal: "2 people"},
		},
	}}
	stack := report{Running: true, Sessions: 1, Status: api.Status{Boxes: []api.Box{{Box: "acme/one", Server: "one", State: "awake", Started: at(3 * time.Hour)}}}}
	tools := api.Tools{Server: "one", Tools: []json.RawMessage{
		json.RawMessage(`{"name":"echo","description":"Says it\nagain","inputSchema":{"properties":{"message":{"type":"string"},"loud":{}},"required":["message"]},"annotations":{"readOnlyHint":true}}`),
		json.RawMessage(`{"name":"drop","inputSchema":{},"annotations":{"destructiveHint":true,"idempotentHint":true}}`),
	}}
	servers := []api.Server{
		{Name: "everything", State: api.Asleep, Path: "/everything/mcp", Tools: &eleven, Sessions: 2, Calls: &calls, FailedCalls: &none, LastMessage: p(3 * time.Minute)},
		{Name: "mine", State: api.Awake, Path: "/mine/mcp", Processes: 2, Boxes: 1, Sessions: 4, LastMessage: p(2 * time.Second)},
		{Name: "flaky", State: api.Failed, Start: api.FailedLast, Path: "/flaky/mcp", Why: "exited with code 1: ZeroDivisionError: division by zero", Sessions: 1, LastMessage: p(time.Hour)},
		{Name: "weather", State: api.NotServed, Why: "WEATHER_KEY is not set (servers.json:14:32)"},
	}
	sessions := []api.Session{{
		ID: "c3bjph2vld4rqqqqqqqq", Server: "one", State: "ended", Quit: "client_terminated", Principal: "ada", Client: "cursor",
		Created: at(time.Hour), LastMessage: at(time.Minute), Expires: at(-time.Hour),
	}, {
		ID: "d3bjph2vld4rqqqqqqqq", Server: "two", State: "ready", Principal: "bob",
		Created: at(72 * time.Hour), LastMessage: at(50 * time.Hour), Expires: at(-100 * time.Hour),
	}}
	ended := []api.Call{
		{Time: at(time.Minute), Principal: "ada", Server: "mine", Tool: "get_forecast", Client: "claude-code", MS: 31},
		{Time: at(25 * time.Hour), Principal: "bob", Server: "mine", Tool: "get_forecast", MS: 12_345, Failed: true, Reason: "the server exited with code 1: " + strings.Repeat("x", 200)},
	}
	return map[string]func(io.Writer) error{
		"calls.txt":    func(w io.Writer) error { return printCalls(w, ended, noon()) },
		"ps.txt":       func(w io.Writer) error { return r.print(w, noon(), false, false) },
		"ps-all.txt":   func(w io.Writer) error { return r.print(w, noon(), true, true) },
		"ps-stack.txt": func(w io.Writer) error { return stack.print(w, noon(), false, false) },
		"tools.txt":    func(w io.Writer) error { return printTools(w, tools) },
		"list.txt":     func(w io.Writer) error { return printServers(w, servers, "https://mcp.example.com/", noon()) },
		"sessions.txt": func(w io.Writer) error { return printSessions(w, sessions, noon()) },
	}
}

func TestTablesAreAsInTestdata(t *testing.T) {
	for name, print := range tables() {
		var out strings.Builder
		commontest.OK(t, print(&out))
		compare(t, filepath.Join("testdata", name), out.String())
	}
}

func TestArgumentsAreConvertedByTheToolsSchema(t *testing.T) {
	for _, test := range [][3]string{ // text, type, value; "" for a refusal
		{"5", "string", `"5"`},
		{"5", "integer", "5"},
		{"5.5", "integer", ""},
		{"true", "boolean", "true"},
		{`{"a":1}`, "object", `{"a":1}`},
		{"x", "any", `"x"`},
		{"x", "integer", ""},
	} {
		got, err := valueOf(test[0], test[1])
		if string(got) != test[2] || (err == nil) != (test[2] != "") {
			t.Errorf("%s as %s: %s, %v", test[0], test[1], got, err)
		}
	}
	for _, all := range []string{"null", "[]", "1", "{"} {
		if got, err := (tool{}).values([]string{"a=1"}, all); err == nil {
			t.Errorf("--args %s: %v", all, got)
		}
	}
}
