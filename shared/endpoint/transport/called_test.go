package transport_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// calledLine is what the log line of a request says of a call.
type calledLine struct {
	Principal, Client, Tool, Outcome, Why string
}

// logLine is the log line of a request, as far as tests read it.
type logLine struct {
	calledLine
	Stream, Trace string
	Spent         int
}

func (w *world) lastLine() (line logLine) {
	w.t.Helper()
	all := strings.Split(strings.TrimSpace(w.logged.String()), "\n")
	commontest.OK(w.t, json.Unmarshal([]byte(all[len(all)-1]), &line))
	return line
}

func TestLogLineOfACallHasItsOutcome(t *testing.T) {
	const (
		reported = `{"content":[{"type":"text","text":"no city London\nat line 3"}],"isError":true}`
		refused  = `{"code":-32602,"message":"city London?"}`
		died     = `{"code":-32603,"message":"server \"quiet\": exited with code 3","data":{"phase":"runtime"}}`
	)
	for _, tt := range []struct {
		name    string
		end     func(run)
		show    bool
		outcome string
		why     string
	}{
		{name: "result", end: func(r run) { r.end(`{"content":[{"type":"text","text":"\"isError\":true"}]}`) }, outcome: "done"},
		{name: "result of a stream", end: func(r run) { r.say("a"); r.end(`{"content":[]}`) }, outcome: "done"},
		{name: "the tool reports an error", end: func(r run) { r.end(reported) }, outcome: "failed"},
		{name: "and the operator is the caller", end: func(r run) { r.end(reported) }, show: true, outcome: "failed", why: "no city London"},
		{name: "at the end of a stream", end: func(r run) { r.say("a"); r.end(reported) }, show: true, outcome: "failed", why: "no city London"},
		{name: "the server refuses", end: func(r run) { r.fail(refused) }, outcome: "failed", why: "the server answered with the error -32602"},
		{name: "and the operator is that caller", end: func(r run) { r.fail(refused) }, show: true, outcome: "failed", why: "city London?"},
		{name: "the process dies", end: func(r run) { r.fail(died) }, outcome: "failed", why: `server "quiet": exited with code 3`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.opts.ShowErrors = tt.show
				w.backend.tool("look", tt.end)
				w.visit("quiet").call("look")
				commontest.Same(t, calledLine{"ada", "t", "look", tt.outcome, tt.why}, w.lastLine().calledLine)
			})
		})
	}
}

// The server ends the response before the call has ended, and the client polls for the
// result.
func TestLogLineOfALongCallHasTheStreamUntilItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.backend.tool("look", func(r run) { time.Sleep(time.Hour); r.fail(`{"code":1,"message":"x","data":{"phase":"runtime"}}`) })
		c := w.visit("quiet")
		sent := c.call("look", "MCP-Protocol-Version", "2025-11-25")
		begun := w.lastLine()
		if diff := cmp.Diff(calledLine{"ada", "t", "look", "open", ""}, begun.calledLine); diff != "" || begun.Stream == "" {
			t.Fatal(diff, begun)
		}
		w.backend.running.Wait()
		c.get(sent.lastID(t))
		ended := w.lastLine()
		if diff := cmp.Diff(calledLine{Principal: "ada", Outcome: "failed", Why: "x"}, ended.calledLine); diff != "" || ended.Stream != begun.Stream {
			t.Errorf("%s, stream %q of %q", diff, ended.Stream, begun.Stream)
		}
	})
}

func TestLogLineOfAModernCallHasItsOutcome(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("chat", func(r run) { r.end(`{"content":[],"isError":true}`) })
		w.do(modernChat())
		got := w.lastLine()
		if got.Tool != "chat" || got.Outcome != "failed" || got.Client == "" {
			t.Errorf("%+v", got)
		}
	})
}

func TestLogLineOfACallWhoseClientLeavesSaysSo(t *testing.T) {
	modern(t, func(t *testing.T, w *world) {
		w.backend.tool("chat", func(r run) { <-time.After(time.Minute); r.end(`{}`) })
		defer w.backend.running.Wait()
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		w.do(modernChat().WithContext(ctx))
		got := w.lastLine()
		want := "the connection was closed before the answer; the request may have been executed"
		if got.Outcome != "failed" || got.Why != want {
			t.Errorf("got %+v", got)
		}
	})
}

// The operator reads in the terminal the error that a client behind the proxy gets.
func TestLogLineOfAHostThatIsNotServedSaysWhatToDo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		q := request("POST", "/quiet/mcp", initialize)
		q.Host = "mcp.example.com"
		const why = "mcp.example.com is not served: start with --public-url https://mcp.example.com"
		if a := w.do(q); a.status != 403 || !strings.Contains(a.body, why) {
			t.Errorf("answered %d %s", a.status, a.body)
		}
		if got := w.lastLine(); got.Why != why || !strings.Contains(w.logged.String(), `"refused":true`) {
			t.Errorf("logged %s", w.logged)
		}
	})
}

// The operator reads in the terminal that a client has no good key.
func TestLogLineOfARefusedKeySaysWhy(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const why = "this API key is unknown; send a valid key"
		w.opts.Auth = principal(func(*http.Request) (string, error) {
			return "", storage.Errorf(storage.Unauthenticated, why).ForOperator()
		})
		w.do(request("POST", "/quiet/mcp", initialize))
		if got := w.lastLine(); got.Why != why || !strings.Contains(w.logged.String(), `"refused":true`) {
			t.Errorf("logged %s", w.logged)
		}
	})
}

// A traceparent in the message takes precedence over the header. The log does not repeat
// a traceparent that is malformed.
func TestLogLineNamesTheSpanOfTheClient(t *testing.T) {
	const inMessage, inHeader = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	for _, tt := range []struct{ name, meta, header, want string }{
		{"both", inMessage, inHeader, inMessage},
		{"the message", inMessage, "", inMessage},
		{"the header", "", inHeader, inHeader},
		{"the message is wrong", "00-secret", inHeader, inHeader},
		{"upper case", "", strings.ToUpper(inHeader), ""},
		{"no trace", "", "00-00000000000000000000000000000000-b7ad6b7169203331-01", ""},
		{"no span", "", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", ""},
		{"another version", "", "01" + inHeader[2:], ""},
		{"none", "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				w.backend.tool("look", func(r run) { r.end(`{"content":[]}`) })
				c := w.visit("quiet")
				w.logged.Reset()
				c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look","_meta":{"traceparent":"`+tt.meta+`"}}}`, "traceparent", tt.header, "MCP-Protocol-Version", "2025-11-25")
				var line struct{ Traceparent, Protocol string }
				commontest.OK(t, json.Unmarshal(w.logged.Bytes(), &line))
				if line.Traceparent != tt.want || line.Protocol != "2025-11-25" {
					t.Errorf("the line has %+v", line)
				}
			})
		})
	}
}
