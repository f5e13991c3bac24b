//go:build e2e

package dormouse_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore/dynamotest"
)

// TestE2EDynamoDB runs the main flow with all lasting data in DynamoDB. Functions,
// boxes and clients are those of the other tests. Every part has a machine and a
// table of its own.
func TestE2EDynamoDB(t *testing.T) {
	t.Parallel()
	endpoint := dynamoDB(t)
	for name, part := range map[string]func(m *machine, store ...string){
		"talk":            (*machine).talks,
		"cut and resumed": (*machine).losesItsFunctionsInACall,
		"killed whole":    (*machine).killedInACall,
		"asleep":          (*machine).sleepsBetweenCalls,
		"over a socket":   (*machine).talksOverASocket,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := recorded(t).asPrograms()
			part(m, "--store", "dynamodb:e2e-"+storage.NewNonce()+"?endpoint="+endpoint)
			if file := filepath.Join(m.data, "store.db"); read(t, file) != "" {
				t.Errorf("there is a SQLite file %s", file)
			}
		})
	}
}

// talks opens a session, lists and calls tools, answers a question, and
// ends the session.
func (m *machine) talks(store ...string) {
	m.start(store...)
	c := m.session("one")
	commontest.Contains(m.t, "the list of tools is", `"echo"`, string(c.list()))
	commontest.EqualIn(m.t, "echo says", "ü 9007199254740993", c.text("echo", `{"text":"ü 9007199254740993"}`))
	messages, err := c.call("work", `{"before":3}`)
	commontest.OK(m.t, err)
	if diff := cmp.Diff(steps(3, string(messages[len(messages)-1].ID)), ended(messages)); diff != "" {
		m.t.Errorf("messages of a call (-want +got):\n%s", diff)
	}
	m.questions()
	m.largestArgument()

	c.leave()
	if status, err := c.status(http.MethodPost, c.request("9", "echo", "")); err != nil || status != http.StatusNotFound {
		m.t.Errorf("POST after DELETE: status %d, %v, want 404", status, err)
	}
}

// losesItsFunctionsInACall cuts a call in its middle, kills the functions that served it,
// and takes the call up again.
func (m *machine) losesItsFunctionsInACall(store ...string) {
	m.start(store...)
	m.cutInACall(func(p *proxy) {
		p.cut()
		m.killFunctions("http", "relay")
	})
}

// sleepsBetweenCalls waits until everything is asleep, and wakes it with a call.
func (m *machine) sleepsBetweenCalls(store ...string) {
	m.start(append(sleepy(), store...)...)
	c := m.session("one")
	if got := c.text("count", "") + c.text("count", ""); got != "12" {
		m.t.Errorf("the counter of a living process said %s, want 12", got)
	}
	m.asleep()
	m.wakesAnew(c)
}

// talksOverASocket calls over a WebSocket, loses the connection, and gets the missed
// messages over another one.
func (m *machine) talksOverASocket(store ...string) {
	m.start(store...)
	k := m.talk("one")
	commontest.EqualIn(m.t, "echo says", "over a socket", k.text("echo", `{"text":"over a socket"}`))
	_ = k.conn.CloseNow()
	again := m.resume("one", k)
	commontest.EqualIn(m.t, "after the connection was lost a call is answered", "1", again.text("count", ""))
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
