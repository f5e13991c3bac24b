package remote_test

import (
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
		"error null":                {`{"jsonrpc":"2.0","id":%s,` + result + `,"error":null}`, ""},
		"no version":                {`{"id":%s,` + result + `}`, ""},
		"text before it":            {`warning: {"jsonrpc":"2.0","id":%s,` + result + `}`, ""},
		"two":                       {`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":null}{"jsonrpc":"2.0","id":%s,` + result + `}`, ""},
		"a batch":                   {`[{"jsonrpc":"2.0","method":"notifications/tools/list_changed"},{"jsonrpc":"2.0","id":%s,` + result + `}]`, ""},
		"several lines":             {"{\n\"jsonrpc\":\"2.0\",\n\"id\":%s,\n" + result + "\n}", ""},
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
