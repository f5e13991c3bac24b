//go:build e2e

package dormouse_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore/dynamotest"
)

// A client opens a session, lists and calls tools, answers the questions of a server and ends the
// session.
func TestE2ETalk(t *testing.T) {
	t.Parallel()
	newMachine(t, servers{"one": nil}).talks()
}

// All lasting data is in DynamoDB. Functions and boxes are programs; each part has a table of its
// own.
func TestE2EDynamoDB(t *testing.T) {
	t.Parallel()
	endpoint := dynamoDB(t)
	for name, part := range map[string]func(m *machine, store ...string){"talk": (*machine).talks, "killed whole": (*machine).killedInACall} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, servers{"one": nil}).asPrograms()
			part(m, "--store", "dynamodb:e2e-"+storage.NewNonce()+"?endpoint="+endpoint)
			if file := filepath.Join(m.data, "store.db"); read(t, file) != "" {
				t.Errorf("there is a SQLite file %s", file)
			}
		})
	}
}

func (m *machine) talks(store ...string) {
	m.start(store...)
	c := m.session("one")
	commontest.Contains(m.t, "the list of tools is", `"echo"`, string(c.list()))
	commontest.EqualIn(m.t, "echo says", "ü 9007199254740993", c.text("echo", `{"text":"ü 9007199254740993"}`))
	messages, err := c.call("work", `{"before":3}`)
	commontest.OK(m.t, err)
	commontest.SameIn(m.t, "messages of a call", steps(3, string(messages[len(messages)-1].ID)), ended(messages))
	for method, result := range map[string]string{
		"sampling/createMessage": `{"role":"assistant","model":"m","content":{"type":"text","text":"<it> is 9007199254740993"}}`,
		"elicitation/create":     `{"action":"accept","content":{"n":1e2}}`,
	} {
		id := c.id()
		s, err := c.post(c.request(id, "ask", fmt.Sprintf(`{"method":%q}`, method)))
		commontest.OK(m.t, err)
		question, err := s.asked()
		commontest.OK(m.t, err)
		commontest.OK(m.t, c.tell(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, question.ID, result)))
		end, err := s.response(id)
		commontest.OK(m.t, err)
		s.close()
		// The server returns what it read: its own id, and the client's result unchanged.
		commontest.EqualIn(m.t, "the server was answered", fmt.Sprintf(`{"jsonrpc":"2.0","id":"s1","result":%s}`, result)+"\n", textOf(end))
	}
	k := m.talk("one")
	commontest.EqualIn(m.t, "echo says", "over a socket", k.text("echo", `{"text":"over a socket"}`))
	_ = k.conn.CloseNow()
	commontest.EqualIn(m.t, "after the connection was lost a call is answered", "1", m.resume("one", k).text("count", ""))

	before := len(m.those("stdio"))
	c.leave()
	status, err := c.status(http.MethodPost, c.request("9", "echo", ""))
	commontest.OK(m.t, err)
	commontest.EqualIn(m.t, "POST after DELETE", http.StatusNotFound, status)
	m.eventually(patience, "its process has ended", func() bool { return len(m.those("stdio")) < before })
}

// dynamoDB returns the endpoint of a DynamoDB Local.
func dynamoDB(t *testing.T) string {
	t.Helper()
	server := dynamotest.Server{Running: os.Getenv(dynamotest.Variable)}
	t.Cleanup(server.Stop)
	endpoint, err := server.Endpoint()
	commontest.OK(t, err)
	return endpoint
}

// list asks for the tools in a request of a client with a session.
func (c *client) list() json.RawMessage {
	c.t.Helper()
	s, err := c.post(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`)
	commontest.OK(c.t, err)
	defer s.close()
	m, err := s.response(`"list"`)
	if err != nil || m.Result == nil {
		c.t.Fatalf("tools/list was answered with %s, %v", m.Raw, err)
	}
	return bytes.Clone(m.Result)
}
