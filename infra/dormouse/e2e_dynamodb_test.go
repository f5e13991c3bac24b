//go:build e2e

package main_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/dynamostore/dynamotest"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// TestE2EDynamoDB runs the main flow with all lasting data in DynamoDB. Functions,
// boxes and clients are those of the other tests. Every part has a machine and a
// table of its own.
func TestE2EDynamoDB(t *testing.T) {
	t.Parallel()
	dynamoDB := dynamotest.Server{Running: os.Getenv(dynamotest.Variable)}
	t.Cleanup(dynamoDB.Stop)
	endpoint, err := dynamoDB.Endpoint()
	if err != nil {
		t.Fatal(err)
	}
	for name, part := range map[string]func(*testing.T, *machine, []string){
		"talk":            talkOnDynamoDB,
		"cut and resumed": cutOnDynamoDB,
		"killed whole":    killedOnDynamoDB,
		"asleep":          asleepOnDynamoDB,
		"over a socket":   socketOnDynamoDB,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, servers{"one": {"-calls", filepath.Join(t.TempDir(), "calls")}}).asPrograms()
			part(t, m, []string{"--store", "dynamodb:e2e-" + session.NewNonce() + "?endpoint=" + endpoint})
			if file := filepath.Join(m.data, "store.db"); read(t, file) != "" {
				t.Errorf("there is a SQLite file %s", file)
			}
		})
	}
}

func TestE2EDynamoDBTableThatIsNoneIsTold(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil}).asPrograms()
	for store, want := range map[string]string{
		"dynamodb:x?region=r":                           `"x" is no name of a table`,
		"dynamodb:dormouse?endpoint=127.0.0.1:8000":     "want http://HOST:PORT",
		"dynamodb:dormouse?endpoint=http://127.0.0.1:1": "cannot be asked for table",
	} {
		out, err := m.command("run", "--servers", m.servers, "--store", store).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "--store "+store) || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, with output %s, want an error with %q", store, err, out, want)
		}
	}
}

// talkOnDynamoDB opens a session, lists and calls tools, answers a question, and
// ends the session.
func talkOnDynamoDB(t *testing.T, m *machine, store []string) {
	m.start(store...)
	c := m.session("one")
	s, err := c.post(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if tools, err := s.response(`"list"`); err != nil || !strings.Contains(string(tools.Result), `"echo"`) {
		t.Errorf("the list of tools is %s, %v", tools.Raw, err)
	}
	if got := c.text("echo", `{"text":"ü 9007199254740993"}`); got != "ü 9007199254740993" {
		t.Errorf("echo says %q", got)
	}
	messages, err := c.call("work", `{"before":3}`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"progress 1", "progress 2", "progress 3"}, ended(messages[:len(messages)-1])); diff != "" {
		t.Errorf("progress of a call (-want +got):\n%s", diff)
	}
	m.questions()
	m.largestArgument()

	if status, err := c.status(http.MethodDelete, ""); err != nil || status != http.StatusNoContent {
		t.Errorf("DELETE: status %d, %v, want 204", status, err)
	}
	if status, err := c.status(http.MethodPost, c.request("9", "echo", "")); err != nil || status != http.StatusNotFound {
		t.Errorf("POST after DELETE: status %d, %v, want 404", status, err)
	}
}

// cutOnDynamoDB cuts a call in its middle, kills the functions that served it, and
// resumes it.
func cutOnDynamoDB(t *testing.T, m *machine, store []string) {
	m.start(store...)
	c := m.session("one")
	p := c.through(t)
	w := c.begin()
	start := w.last
	w.progress(t, 1, 2)
	p.cut()
	_, _ = w.messages() // the third may have come
	m.killFunctions("http", "relay")
	s, err := c.resume(w.last)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := s.primed(); err != nil {
		t.Fatal(err)
	}
	w.open(t)
	rest, err := s.messages()
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"progress 1", "progress 2", "progress 3", "progress 4", "progress 5", "response " + w.id}
	if diff := cmp.Diff(all[len(all)-len(rest):], ended(rest)); diff != "" || len(rest) < 3 {
		t.Errorf("after the cut (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(all, c.resumed(start)); diff != "" {
		t.Errorf("from the beginning (-want +got):\n%s", diff)
	}
	if got := m.tools(); got != "work\n" {
		t.Errorf("the tool was run as %q, want once", got)
	}
}

// killedOnDynamoDB kills every process of the machine in the middle of a call. The next
// machine ends the call, and the session continues.
func killedOnDynamoDB(t *testing.T, m *machine, store []string) {
	m.start(store...)
	c := m.session("one")
	before := c.whoami()
	w := c.begin()
	w.progress(t, 1, 3)
	m.killAll()
	m.start(store...)
	c = m.again(c, "one")
	s, err := c.resume(w.last)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	end, err := s.response(w.id)
	if err != nil {
		t.Fatalf("the call has no end: %v", err)
	}
	if f, err := failureOf(end); err != nil || f.Data.Phase != "runtime" {
		t.Errorf("the call ended in %s, %v, want phase runtime", end.Raw, err)
	}
	after := c.whoami()
	if after.PID == before.PID || string(after.Init) != params {
		t.Errorf("the process is %d with %s, was %d; want another one with the client's parameters", after.PID, after.Init, before.PID)
	}
	m.startedAnew(c.session)
}

// asleepOnDynamoDB waits until everything is asleep, and wakes it with a call.
func asleepOnDynamoDB(t *testing.T, m *machine, store []string) {
	m.start(append(sleepy(), store...)...)
	c := m.session("one")
	if got := c.text("count", "") + c.text("count", ""); got != "12" {
		t.Errorf("the counter of a living process said %s, want 12", got)
	}
	m.asleep()
	if got := c.text("count", ""); got != "1" {
		t.Errorf("the counter says %s, want 1 in a process started anew", got)
	}
	m.startedAnew(c.session)
	for _, kind := range []string{"function.crash", "box.crash"} {
		if n := m.count(kind); n > 0 {
			t.Errorf("%d events %s, want none: everything ended by itself", n, kind)
		}
	}
}

// socketOnDynamoDB calls over a WebSocket, loses the connection, and gets the missed
// messages over another one.
func socketOnDynamoDB(t *testing.T, m *machine, store []string) {
	m.start(store...)
	k := m.talk("one")
	k.say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"over a socket"}}}`)
	if end := k.end("7"); textOf(end) != "over a socket" {
		t.Errorf("echo says %s", end.Raw)
	}
	_ = k.conn.CloseNow()
	again := m.resume("one", k)
	again.say(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"count","arguments":{}}}`)
	if end := again.end("8"); end.Kind != wire.Response || textOf(end) != "1" {
		t.Errorf("after the connection was lost a call is answered %s", end.Raw)
	}
}

// tools returns the tools that were called, one on a line.
func (m *machine) tools() string {
	m.t.Helper()
	servers := read(m.t, m.servers)
	_, rest, _ := strings.Cut(servers, `"-calls",`)
	name := strings.Split(rest, `"`)
	if len(name) < 2 {
		m.t.Fatalf("the servers are not told where to write their calls: %s", servers)
	}
	return read(m.t, name[1])
}
