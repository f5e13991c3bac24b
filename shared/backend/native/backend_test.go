package native_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func textOf(t testing.TB, response string) string {
	t.Helper()
	var r struct {
		Result struct {
			Content []struct{ Text string }
		}
	}
	if err := json.Unmarshal([]byte(response), &r); err != nil || len(r.Result.Content) == 0 {
		t.Fatalf("no result of a tool: %s", response)
	}
	return r.Result.Content[0].Text
}

func TestLegacyClientMeetsALegacyServer(t *testing.T) {
	w := memory(t)
	a := w.do(request("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`))
	want := `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"prompts":{"listChanged":true},"tools":{"listChanged":true}},"serverInfo":{"name":"demo","version":"3"}}}`
	commontest.Equal(t, want, a.body)
	c := w.legacy(`{}`)
	for request, want := range map[string]string{
		`{"jsonrpc":"2.0","id":"a","method":"ping"}`:                                                     `{"jsonrpc":"2.0","id":"a","result":{}}`,
		`{"jsonrpc":"2.0","id":"a","method":"logging/setLevel","params":{"level":"info"}}`:               `{"jsonrpc":"2.0","id":"a","result":{}}`,
		`{"jsonrpc":"2.0","id":7,"method":"made/up"}`:                                                    `"code":-32601`,
		`{"jsonrpc":"2.0","id":7,"method":"resources/subscribe","params":{"uri":"x:y"}}`:                 `"code":-32601`,
		`{"jsonrpc":"2.0","id":7,"method":"prompts/get","params":{"name":"greet"}}`:                      `"code":-32603`,
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"none"}}`:         `"id":9007199254740993,"error":{"code":-32602`,
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"echo"}}`:         `"id":9007199254740993,"result"`,
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"panics"}}`:                      `"code":-32603,"message":"server \"demo\": it panicked: oh; the log has`,
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":1}}}`: `"isError":true`,
	} {
		commontest.Contains(t, request, want, c.post(request).last(t))
	}
	commontest.Equal(t, "only", textOf(t, c.tool("only", `{}`).last(t)))
	list := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).last(t)
	commontest.Contains(t, "the list", `"only"`, list)
	for _, modern := range []string{"resultType", "ttlMs", "cacheScope", "serverInfo"} {
		if strings.Contains(list, modern) {
			t.Errorf("the list has %s: %s", modern, list)
		}
	}
}

func TestModernClientMeetsAModernServer(t *testing.T) {
	w := memory(t)
	discover := w.modern("server/discover", "", "", `{}`).last(t)
	for _, want := range []string{`"id":9007199254740993`, `"name":"demo"`, `"2026-07-28"`, `"cacheScope":"private"`} {
		commontest.Contains(t, "is missing", want, discover)
	}
	list := w.modern("tools/list", "", "", `{}`).last(t)
	commontest.EqualIn(t, "the list is for", `"private"`, string(wire.Lookup([]byte(list), "result", "cacheScope")))
	commontest.Equal(t, "hi", textOf(t, w.modernTool("echo", `{"text":"hi"}`, "").last(t)))
	a := w.modernTool("steps", `{"n":2}`, "")
	if got := a.messages(t); len(got) != 3 || !strings.Contains(got[0], `"progressToken":9007199254740993`) {
		t.Errorf("got %q", got)
	}
}

func TestOperatorSeesTheToolsOfAServerWithoutASession(t *testing.T) {
	w := memory(t)
	b, store := w.backend()
	tools, err := b.Tools(t.Context(), "acme", "demo")
	commontest.OK(t, err)
	commontest.Contains(t, "the tools", `"echo"`, fmt.Sprintf("%s", tools))
	if sessions, err := store.List(t.Context(), "", "", 1); err != nil || len(sessions) > 0 {
		t.Errorf("the store has %v, %v", sessions, err)
	}
	if _, err := b.Tools(t.Context(), "acme", "other"); !errors.Is(err, storage.NotFound) {
		t.Errorf("a server that is not there: %v", err)
	}
	w.hosted.Make = func(context.Context, native.Session) (*mcp.Server, error) { panic("no") }
	if again, err := b.Tools(t.Context(), "acme", "demo"); err != nil || len(again) != len(tools) {
		t.Errorf("a second time the server is made anew: %s, %v", again, err)
	}
	if tools, err := b.Tools(t.Context(), "others", "demo"); len(tools) > 0 || err != nil && !errors.Is(err, storage.Unavailable) {
		t.Errorf("a server that panics: %s, %v", tools, err)
	}
}

func TestServerKnowsWhoIsBeforeIt(t *testing.T) {
	w := memory(t)
	w.props = []byte(`{"plan":"<free>"}`)
	c := w.legacy(`{"elicitation":{}}`)
	call := func() string {
		r := c.request("POST", toolCall("1", "who", "{}", ""), "X-Extra", "e", "Authorization", "Bearer secret")
		return textOf(t, w.do(r).last(t))
	}
	commontest.Same(t, `["old","2025-11-25","ada","acme","{\"plan\":\"\u003cfree\u003e\"}",true,"ada","e",true]`, call())
	w.props = []byte(`{"plan":"paid"}`)
	commontest.Contains(t, "claims of a new token are not seen", "paid", call())
	w.props = nil
	commontest.Contains(t, "claims are not kept", "paid", call())
	if got := textOf(t, w.modernTool("who", `{}`, "").last(t)); !strings.HasPrefix(got, `["new","2026-07-28","ada"`) {
		t.Errorf("got %s", got)
	}
}

func TestBatchIsExecutedAtOnceAndEndsTogether(t *testing.T) {
	w := memory(t)
	a := w.do(request("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`))
	r := request("POST", "["+toolCall(`"a"`, "echo", `{"text":"x"}`, "")+","+toolCall("2", "steps", `{"n":1,"millis":1}`, "")+
		`,{"jsonrpc":"2.0","id":3,"method":"ping"}]`, "Mcp-Session-Id", a.header.Get("Mcp-Session-Id"))
	body := w.do(r).body
	for _, want := range []string{`"id":"a"`, `"id":2`, `"id":3`} {
		commontest.EqualIn(t, "times that the body has "+want, 1, strings.Count(body, want))
	}
}

func TestLogMessagesComeForTheLevelThatWasSet(t *testing.T) {
	w := memory(t)
	c := w.legacy(`{}`)
	commontest.Equal(t, 1, len(c.tool("log", `{}`).messages(t)))
	c.post(`{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"debug"}}`)
	if got := c.tool("log", `{}`).messages(t); len(got) != 2 || !strings.Contains(got[0], `"seen"`) {
		t.Errorf("got %q", got)
	}
}

func TestLongCallIsHeldByTheFunctionThatExecutesIt(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		c := w.legacy(`{}`)
		begun := time.Now()
		a := c.post(toolCall("1", "steps", `{"n":60,"millis":5000}`, `,"_meta":{"progressToken":"p"}`))
		if got := a.messages(t); len(got) != 61 || textOf(t, got[60]) != "done" {
			t.Errorf("got %d messages", len(got))
		}
		if took := time.Since(begun); took < 5*time.Minute || took > 5*time.Minute+time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// go-sdk has no field for a tool's support of tasks. AsTask makes the lists of tools show
// it.
func TestToolSaysWhatItThinksOfTasks(t *testing.T) {
	w := memory(t)
	w.hosted.Make = func(_ context.Context, s native.Session) (*mcp.Server, error) {
		server := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, s.Options())
		own := &mcp.Tool{Name: "b", Meta: mcp.Meta{"mine": 1}}
		for _, tool := range []*mcp.Tool{native.AsTask(&mcp.Tool{Name: "a"}, native.TaskRequired), native.AsTask(own, native.TaskOptional), {Name: "c"}} {
			native.AddTool(s, server, tool, func(context.Context, *mcp.CallToolRequest, words) (*mcp.CallToolResult, any, error) {
				return text(""), nil, nil
			})
		}
		commontest.EqualIn(t, "the author's tool was changed", 1, len(own.Meta))
		return server, nil
	}
	for era, list := range map[string]string{
		"legacy": w.legacy(everything).post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).last(t),
		"modern": w.modern("tools/list", "", "", "{}").last(t),
	} {
		t.Run(era, func(t *testing.T) {
			var got []string
			var tools []json.RawMessage
			commontest.OK(t, json.Unmarshal(wire.Lookup([]byte(list), "result", "tools"), &tools))
			for _, tool := range tools {
				got = append(got, string(wire.Lookup(tool, "execution"))+" "+string(wire.Lookup(tool, "_meta")))
			}
			commontest.Same(t, []string{`{"taskSupport":"required"} `, `{"taskSupport":"optional"} {"mine":1}`, " "}, got)
		})
	}
}
