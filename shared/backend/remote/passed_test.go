package remote_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/backend/remote"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// scripted is an upstream of an older version. It says the lines on the stream of a request. The last
// one is the response, and waits for the answer to the one before. %s is the id of the request.
type scripted struct {
	ids      bool // the events have ids, and the stream can be resumed
	cut      bool // the stream of a request ends after two events
	sse      bool // HTTP+SSE
	greeting string
	lines    []string
	heard    chan string   // requests, with the id and progress token 0, and answers
	answered chan struct{} // closed when the question is answered
	out      chan []byte   // to the stream of HTTP+SSE
	id       string        // of the request
}

func (u *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m, _ := wire.Parse(body)
	switch {
	case r.Method == http.MethodGet && u.sse:
		u.out = make(chan []byte, 9)
		out := u.out
		w.Header().Set("Content-Type", wire.MediaSSE)
		_, _ = w.Write(wire.AppendSSE(nil, wire.SSE{Name: "endpoint", Data: []byte("/mcp")}))
		for {
			w.(http.Flusher).Flush()
			select {
			case raw := <-out:
				_, _ = w.Write(wire.AppendSSE(nil, wire.SSE{Data: raw}))
			case <-r.Context().Done():
				return
			}
		}
	case r.Method == http.MethodGet && r.Header.Get(wire.HeaderLastEventID) != "":
		var after int
		_, _ = fmt.Sscan(r.Header.Get(wire.HeaderLastEventID), &after)
		u.say(w, after)
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case m.Method == wire.MethodDiscover:
		w.WriteHeader(http.StatusBadRequest)
	case m.Kind == wire.Response:
		u.heard <- string(body)
		close(u.answered)
		w.WriteHeader(http.StatusAccepted)
	case m.Method == wire.MethodInitialize:
		u.hear(body)
		w.Header().Set(wire.HeaderSessionID, "s1")
		greeting := strings.ReplaceAll(u.greeting, "%s", string(m.ID))
		if u.sse {
			u.out <- []byte(greeting)
			return
		}
		w.Header().Set("Content-Type", wire.MediaJSON)
		_, _ = io.WriteString(w, greeting)
	case m.Kind == wire.Notification && m.Method != wire.NotifyInitialized:
		u.hear(body)
	case m.Kind == wire.Request:
		u.hear(body)
		if u.id = string(m.ID); u.sse {
			go u.say(httptest.NewRecorder(), 0)
			return
		}
		u.say(w, 0)
	}
}

func (u *scripted) hear(body []byte) {
	for _, path := range [][]string{{"id"}, {"params", "requestId"}, {"params", "_meta", wire.MetaProgressToken}} {
		body, _ = wire.Replace(body, []byte("0"), path...)
	}
	u.heard <- string(body)
}

func (u *scripted) say(w http.ResponseWriter, after int) {
	w.Header().Set("Content-Type", wire.MediaSSE)
	for i, line := range u.lines[after:] {
		raw := []byte(strings.ReplaceAll(line, "%s", u.id))
		if after+i == len(u.lines)-1 {
			<-u.answered
		}
		if u.sse {
			u.out <- raw
			continue
		}
		e := wire.SSE{Data: raw}
		if u.ids {
			e.ID = fmt.Sprint(after + i + 1)
		}
		_, _ = w.Write(wire.AppendSSE(nil, e))
		w.(http.Flusher).Flush()
		if u.cut && after+i == 1 {
			return
		}
	}
}

// Between a client and a server of older versions each message passes as it is, but for ids, progress
// tokens and tasks.
func TestMessagesBetweenOlderVersionsPassAsTheyAre(t *testing.T) {
	const no = `{"jsonrpc":"2.0","id":7,"error":{"code":1.5,"message":"no","more":1},"x":1}`
	for _, c := range []struct{ version, transport, method string }{
		{wire.V20241105, "sse", wire.MethodToolsCall},
		{wire.V20241105, "sse", wire.MethodPromptsList},
		{wire.V20250326, "", wire.MethodToolsCall},
		{wire.V20250618, "ids", wire.MethodToolsCall},
		{wire.V20251125, "ids", wire.MethodToolsCall},
		{wire.V20250618, "ids", wire.MethodToolsList},
		{wire.V20251125, "", "com.example/x"},
	} {
		t.Run(c.version+c.transport+c.method, func(t *testing.T) {
			for i, ends := range []string{
				`"result":{"resultType":"odd","ttlMs":1,"content":[],"_meta":{"io.modelcontextprotocol/serverInfo":1}},"x":"<"`,
				`"error":{"code":0,"message":"none","more":1}`, `"error":{"code":-32800,"message":"late"}`,
				`"error":{"code":1.5,"message":"odd"}`, `"error":{"code":-32602,"message":"missing","data":null}`,
				`"error":{"code":-32042,"message":"visit","data":{"elicitations":[{"mode":"url","url":"https://a.example","message":"m","elicitationId":"e"}]}}`,
			} {
				greeting := `"result":{"protocolVersion":"` + c.version + `","capabilities":{"logging":{},"tools":{"x":1}},"serverInfo":{"name":"far","version":"1","x":1},"resultType":"odd","x":{"y":1.50}}`
				question := `,"method":"elicitation/create","params":{"message":"m","mode":"url","url":"https://a.example","elicitationId":"e-1","task":{},"_meta":{"k":1}},"x":1}`
				notes := []string{
					`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":2.50,"x":1},"x":1}`,
					`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":2.50}}`,
					`{"jsonrpc":"2.0","method":"notifications/com.example","params":{}}`,
					`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"odd"}}`,
				}
				up := &scripted{
					ids: c.transport == "ids", cut: c.transport == "ids" && i == 0, sse: c.transport == "sse", greeting: `{"jsonrpc":"2.0","id":%s,` + greeting + `}`,
					lines: append(notes, `{"jsonrpc":"2.0","id":7`+question, `{"jsonrpc":"2.0","id":%s,`+ends+`}`),
					heard: make(chan string, 9), answered: make(chan struct{}),
				}
				w := newWorld(t, storagetest.NewMemory(), up)
				if w.warm = remote.New(); up.sse {
					w.server.Transport = remote.SSE
				}
				hello := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + c.version + `","capabilities":{"elicitation":{"url":{}},"x":1},"clientInfo":{"name":"c","version":"1"},"x":"<"}}`
				answer, header := sent(t, post(t, w.url, hello))
				commontest.EqualIn(t, "initialize", hello, <-up.heard)
				commontest.EqualIn(t, "its answer", `{"jsonrpc":"2.0","id":0,`+greeting+`}`, answer)
				headers := []string{wire.HeaderSessionID, header.Get(wire.HeaderSessionID)}
				sent(t, post(t, w.url, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, headers...))
				request := `{"jsonrpc":"2.0","id":0,"method":"` + c.method + `","params":{"name":"t","inputResponses":1,"requestState":"s","_meta":{"progressToken":0,"io.modelcontextprotocol/x":1}},"x":1}`
				resp, err := http.DefaultClient.Do(post(t, w.url, request, headers...))
				commontest.OK(t, err)
				got := ""
				for in := wire.NewSSEReader(resp.Body, 1<<20); ; {
					e, err := in.Next()
					if err != nil {
						break
					}
					if m, _ := wire.Parse(e.Data); m.Kind == wire.Request {
						sent(t, post(t, w.url, strings.Replace(no, "7", string(m.ID), 1), headers...))
						e.Data, _ = wire.Replace(e.Data, []byte("7"), "id")
					}
					got += string(e.Data) + "\n"
				}
				_ = resp.Body.Close()
				if up.sse {
					<-up.heard // initialize, of the session for this message
				}
				commontest.EqualIn(t, "the request", request, <-up.heard)
				commontest.EqualIn(t, "the answer", no, <-up.heard)
				commontest.EqualIn(t, "the client got", strings.ReplaceAll(strings.Join(up.lines, "\n"), "%s", "0"), strings.Trim(got, "\n"))
			}
		})
	}
}

func TestNotificationsAndLevelsReachAnOlderServerAsTheyAre(t *testing.T) {
	up := &scripted{
		greeting: `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"logging":{}},"serverInfo":{"name":"far","version":"1"}}}`,
		lines:    []string{`{"jsonrpc":"2.0","id":%s,"error":{"code":0,"message":"no such level"}}`},
		heard:    make(chan string, 9), answered: make(chan struct{}),
	}
	w := newWorld(t, storagetest.NewMemory(), up)
	w.warm = remote.New()
	_, in := w.posts(wire.MethodInitialize, hello, "")
	<-up.heard
	level := `{"jsonrpc":"2.0","id":0,"method":"logging/setLevel","params":{"level":"trace","more":1,"_meta":{"k":1}},"x":1}`
	close(up.answered)
	answer, _ := w.posts("", level, in)
	commontest.Equal(t, level, <-up.heard)
	commontest.Equal(t, strings.Replace(up.lines[0], "%s", "0", 1), answer)
	up.answered = make(chan struct{})
	defer close(up.answered)
	ended := make(chan string, 1)
	go func() {
		answer, _ := w.posts("", `{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"t"}}`, in)
		ended <- answer
	}()
	<-up.heard
	for _, message := range []string{
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0,"reason":"tired","more":{"n":1.50},"_meta":{"k":1}},"x":1}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"q","progress":1.50,"more":1},"x":1}`,
		`{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{"more":1,"_meta":{"k":1}},"x":1}`,
	} {
		w.posts("", message, in)
		commontest.Equal(t, message, <-up.heard)
	}
	commontest.Contains(t, "the call that was cancelled", `"code":-32800`, <-ended)
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true}},"clientInfo":{"name":"c","version":"1"}}}`

// The server answers each method with an error, but for the one that greets.
func TestErrorsPassAsTheyAre(t *testing.T) {
	const newer = `{"jsonrpc":"2.0","id":0,"method":"prompts/list","params":{"_meta":{"` + wire.MetaProtocolVersion + `":"2026-07-28","` + wire.MetaClientCapabilities + `":{}}}}`
	for greets, greeting := range map[string]string{
		wire.MethodInitialize: `{"protocolVersion":"2025-11-25","capabilities":{"prompts":{}},"serverInfo":{"name":"far","version":"1"}}`,
		wire.MethodDiscover:   `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"prompts":{}},"ttlMs":0,"cacheScope":"private"}`,
		"":                    ``,
	} {
		for _, fault := range []string{`"error":{"code":0,"message":"none","data":null,"more":{"n":1.50}}`, `"error":{"code":1.5,"message":"odd"}`} {
			w := newWorld(t, storagetest.NewMemory(), http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				answer := fault
				if method, _ := wire.String(wire.Lookup(body, "method")); method == greets {
					answer = `"result":` + greeting
				}
				rw.Header().Set("Content-Type", wire.MediaJSON)
				_, _ = fmt.Fprintf(rw, `{"jsonrpc":"2.0","id":%s,%s}`, wire.Lookup(body, "id"), answer)
			}))
			got, in := w.posts(wire.MethodInitialize, hello, "")
			if greets != "" {
				got, _ = w.posts("", `{"jsonrpc":"2.0","id":0,"method":"prompts/list"}`, in)
				other, _ := w.posts(wire.MethodPromptsList, newer, "")
				commontest.EqualIn(t, greets+", the newer client got", `{"jsonrpc":"2.0","id":0,`+fault+`}`, other)
			}
			commontest.EqualIn(t, greets+", the older client got", `{"jsonrpc":"2.0","id":0,`+fault+`}`, got)
		}
	}
}
