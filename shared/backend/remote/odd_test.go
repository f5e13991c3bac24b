package remote_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// odd answers each call with a form, in which %s is the id of the call.
func odd(w *world, up *faulty, sse bool, form string) {
	up.fault = func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		answer := strings.ReplaceAll(form, "%s", string(wire.Lookup(body, "id")))
		if !sse {
			rw.Header().Set("Content-Type", wire.MediaJSON)
			_, _ = io.WriteString(rw, answer)
			return
		}
		rw.Header().Set("Content-Type", wire.MediaSSE)
		_, _ = rw.Write(wire.AppendSSE(nil, wire.SSE{Data: []byte(answer)}))
	}
	up.n.Store(1)
	w.server.Headers = map[string]string{"Authorization": "Bearer hunter22"}
}

func TestAnswerOfARemoteServerInAnOddFormIsTakenOrEndsTheCall(t *testing.T) {
	const result = `"result":{"content":[{"type":"text","text":"odd"}]}`
	for name, c := range map[string]struct{ form, fails string }{
		"a byte order mark":         {"\uFEFF" + `{"jsonrpc":"2.0","id":%s,` + result + `}`, ""},
		"two":                       {`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":null}{"jsonrpc":"2.0","id":%s,` + result + `}`, ""},
		"a batch":                   {`[{"jsonrpc":"2.0","method":"notifications/tools/list_changed"},{"jsonrpc":"2.0","id":%s,` + result + `}]`, ""},
		"an error with id null":     {`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"hunter22"}}`, `its error has no id: {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"***"}}`},
		"an error that is a string": {`{"jsonrpc":"2.0","id":%s,"error":"` + strings.Repeat("hunter22 ", 100) + `"}`, `member "error" must be an object, this is a string: {`},
		"no JSON":                   {`{"jsonrpc":"2.0","id":%s,"result":NaN}`, "not valid JSON at byte"},
	} {
		for _, sse := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, sse %v", name, sse), func(t *testing.T) {
				up := &faulty{Handler: streamable()}
				w := newWorld(t, storagetest.NewMemory(), up)
				session := plain(w)
				odd(w, up, sse, c.form)
				r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "count"})
				if c.fails == "" {
					commontest.Equal(t, "odd", text(t, r, err))
					return
				}
				got := fmt.Sprint(err)
				commontest.Contains(t, "the error", "answered with something that is no JSON-RPC response: ", got)
				commontest.Contains(t, "the error", c.fails, got)
				if strings.Contains(got, "hunter") || len(got) > 600 {
					t.Errorf("the error says %v", err)
				}
			})
		}
	}
}

// asksModern calls a tool as a client of 2026-07-28 that can be asked for its roots, and
// returns how many questions come back.
func asksModern(t *testing.T, w *world) int {
	t.Helper()
	body, _ := sent(t, post(t, w.url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{},"_meta":{"`+wire.MetaProtocolVersion+
		`":"2026-07-28","`+wire.MetaClientInfo+`":{"name":"c","version":"1"},"`+wire.MetaClientCapabilities+`":{"roots":{}}}}}`,
		wire.HeaderProtocolVersion, wire.V20260728, wire.HeaderMethod, wire.MethodToolsCall, wire.HeaderName, "count"))
	if i := strings.LastIndex(body, "data: {"); i >= 0 {
		body = body[i+len("data: "):]
	}
	var questions map[string]json.RawMessage
	commontest.OKIn(t, body[:min(len(body), 300)], json.Unmarshal(wire.Lookup([]byte(body), "result", "inputRequests"), &questions))
	return len(questions)
}

// A client gets at most 1,024 questions of a server that asks without end.
func TestClientIsAskedByAServerThatAsksWithoutEnd(t *testing.T) {
	up := &faulty{Handler: streamable(), fault: func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", wire.MediaSSE)
		for i := range 20_000 { // then the server answers, and nobody was asked
			raw := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"roots/list","params":{"_meta":{"x":%q}}}`, i, strings.Repeat("x", 4000))
			if _, err := rw.Write(wire.AppendSSE(nil, wire.SSE{Data: raw})); err != nil {
				return
			}
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = rw.Write(wire.AppendSSE(nil, wire.SSE{Data: wire.ResultResponse(wire.Lookup(body, "id"), content("nobody was asked"))}))
	}}
	up.n.Store(1)
	if got := asksModern(t, newWorld(t, storagetest.NewMemory(), up)); got > 1024 {
		t.Errorf("the client got %d questions at once", got)
	}
}
