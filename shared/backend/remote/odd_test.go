package remote_test

import (
	"bytes"
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

func TestAnswerOfARemoteServerInAnOddFormIsTaken(t *testing.T) {
	const result = `"result":{"content":[{"type":"text","text":"odd"}]}`
	for name, form := range map[string]string{
		"a byte order mark": "\uFEFF" + `{"jsonrpc":"2.0","id":%s,` + result + `}`,
		"error null":        `{"jsonrpc":"2.0","id":%s,` + result + `,"error":null}`,
		"no version":        `{"id":%s,` + result + `}`,
		"text before it":    `warning: {"jsonrpc":"2.0","id":%s,` + result + `}`,
		"two":               `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":null}{"jsonrpc":"2.0","id":%s,` + result + `}`,
		"a batch":           `[{"jsonrpc":"2.0","method":"notifications/tools/list_changed"},{"jsonrpc":"2.0","id":%s,` + result + `}]`,
		"several lines":     "{\n\"jsonrpc\":\"2.0\",\n\"id\":%s,\n" + result + "\n}",
	} {
		for _, sse := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, sse %v", name, sse), func(t *testing.T) {
				up := &faulty{Handler: streamable()}
				w := newWorld(t, storagetest.NewMemory(), up)
				c := plain(w)
				odd(w, up, sse, form)
				commontest.Equal(t, "odd", call(t, c, "count"))
			})
		}
	}
}

func TestAnswerOfARemoteServerThatCannotBeReadEndsTheCall(t *testing.T) {
	for name, c := range map[string]struct{ form, want string }{
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
				_, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "count"})
				if err == nil || !strings.Contains(err.Error(), "answered with something that is no JSON-RPC response: ") || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got %v", err)
				}
				if bytes.Contains([]byte(err.Error()), []byte("hunter")) || len(err.Error()) > 600 {
					t.Errorf("the error says %v", err)
				}
			})
		}
	}
}
