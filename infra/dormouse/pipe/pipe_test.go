package pipe_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/dormouse/pipe"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// end is the client's end of a pipe.
type end struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Reader
	log  commontest.Lines
	done chan struct{}
	raw  *io.PipeReader
}

// open runs a pipe until the test ends.
func open(t *testing.T, c pipe.Config) *end {
	t.Helper()
	in, write := io.Pipe()
	read, out := io.Pipe()
	e := &end{t: t, in: write, out: bufio.NewReader(read), raw: read, done: make(chan struct{})}
	c.In, c.Out, c.Log = in, out, &e.log
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(e.done)
		commontest.Check(t, pipe.Run(ctx, c))
		_ = out.Close()
	}()
	t.Cleanup(func() {
		stop()
		_ = read.Close()
		<-e.done
	})
	return e
}

// ends ends the client, and returns when the pipe has ended.
func (e *end) ends() {
	_ = e.in.Close()
	<-e.done
}

func (e *end) say(line string) {
	e.t.Helper()
	_, err := io.WriteString(e.in, line+"\n")
	commontest.OK(e.t, err)
}

// hears compares the next line with want.
func (e *end) hears(want string) {
	e.t.Helper()
	line, err := e.out.ReadString('\n')
	if got := strings.TrimSuffix(line, "\n"); got != want || err != nil {
		e.t.Fatalf("the client hears %s (%v), want %s", got, err, want)
	}
}

// A client and a server of the go-sdk, which know nothing of the pipe between them: calls, questions
// of the server in a call, and what it says apart from one.
func TestAClientUsesARemoteServerOfTheSDK(t *testing.T) {
	for name, options := range map[string]*mcp.StreamableHTTPOptions{
		"events": {EventStore: mcp.NewMemoryEventStore(nil)}, "JSON": {JSONResponse: true, Stateless: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := mcp.NewServer(&mcp.Implementation{Name: "remote", Version: "1"}, nil)
			tool := func(name string, says func(ctx context.Context, r *mcp.CallToolRequest) (string, error)) {
				mcp.AddTool(server, &mcp.Tool{Name: name}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
					text, err := says(ctx, r)
					return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, err
				})
			}
			tool("greet", func(context.Context, *mcp.CallToolRequest) (string, error) { return "hello", nil })
			tool("ask", func(ctx context.Context, r *mcp.CallToolRequest) (string, error) {
				answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Sure?"})
				if err != nil {
					return "", err
				}
				return answer.Action, nil
			})
			remote := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options))
			t.Cleanup(remote.Close)
			changed := make(chan struct{}, 8)
			client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, &mcp.ClientOptions{
				ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					return &mcp.ElicitResult{Action: "decline"}, nil
				},
				ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
			})
			e := open(t, pipe.Config{URL: remote.URL, Key: "key"})
			s, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: e.raw, Writer: e.in}, nil)
			if err != nil {
				t.Fatal(err, e.log.String())
			}
			calls := map[string]string{"greet": "hello"}
			if !options.Stateless && s.InitializeResult().ProtocolVersion < "2026-07-28" {
				calls["ask"] = "decline"
			}
			for tool, want := range calls {
				result, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool})
				if err != nil || result.IsError || result.Content[0].(*mcp.TextContent).Text != want {
					t.Fatalf("%s: %+v, %v", tool, result, err)
				}
			}
			if !options.Stateless {
				tool("new", func(context.Context, *mcp.CallToolRequest) (string, error) { return "", nil })
				<-changed
			}
			commontest.Check(t, s.Close())
			<-e.done
		})
	}
}

const (
	hello     = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	helloBack = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"},"odd":1.50}}`
	ready     = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	call      = `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"t","arguments":{"where":"Köln"}},"own":[1.0]}`
	answer    = `{"jsonrpc":"2.0","id":"a","result":{"content":[],"big":12345678901234567890}}`
)

// remote is an endpoint that answers as a test says. Its requests are told as
// "METHOD session version last-event-id", and a body.
type remote struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string
}

func newRemote(t *testing.T, serve func(w http.ResponseWriter, r *http.Request, body string)) *remote {
	t.Helper()
	m := &remote{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m.mu.Lock()
		m.seen = append(m.seen, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Method, r.Header.Get("Mcp-Session-Id"), r.Header.Get("MCP-Protocol-Version"), r.Header.Get("Last-Event-ID"))))
		m.mu.Unlock()
		serve(w, r, string(body))
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *remote) saw(t *testing.T, what string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.seen, what) {
		t.Errorf("the endpoint saw %q, not %q", m.seen, what)
	}
}

// greets serves a handshake, and reports whether the message was of one.
func greets(w http.ResponseWriter, r *http.Request, body, session string) bool {
	switch {
	case r.Method == http.MethodGet && r.Header.Get("Last-Event-ID") == "":
		w.WriteHeader(http.StatusMethodNotAllowed)
	case body == hello:
		w.Header().Set("Mcp-Session-Id", session)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "\n"+strings.Replace(helloBack, ",", ",\n ", 1))
	case body == ready:
		w.WriteHeader(http.StatusAccepted)
	default:
		return false
	}
	return true
}

// Bytes of messages pass as they are, and a stream that breaks is resumed where it broke, also by an
// endpoint that is restarting.
func TestAStreamThatBreaksIsResumed(t *testing.T) {
	resumed := 0
	m := newRemote(t, func(w http.ResponseWriter, r *http.Request, body string) {
		if greets(w, r, body, "s1") {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		switch last := r.Header.Get("Last-Event-ID"); {
		case body == call:
			_, _ = io.WriteString(w, "retry: 1\nid: 1\ndata: \n\nid: 2\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"x/y\"}\n\n")
		case last == "2":
			if resumed++; resumed == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = io.WriteString(w, "id: 3\ndata:\n\n")
		case last == "3":
			_, _ = io.WriteString(w, "id: 4\ndata: "+answer+"\n\n")
		}
	})
	e := open(t, pipe.Config{URL: m.URL, Key: "key"})
	e.say(hello)
	e.hears(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"},"odd":1.50}}`)
	e.say(ready)
	e.say(call)
	e.hears(`{"jsonrpc":"2.0","method":"x/y"}`)
	e.hears(answer)
	e.ends()
	for _, want := range []string{"POST", "POST s1 2025-11-25", "GET s1 2025-11-25 3", "DELETE s1 2025-11-25"} {
		m.saw(t, want)
	}
}

// An endpoint that has forgotten the session refuses two calls with 404. One new session is opened,
// and the client does not notice.
func TestASessionThatIsGoneIsOpenedAnew(t *testing.T) {
	var sessions atomic.Int32
	var refused sync.WaitGroup
	refused.Add(2)
	m := newRemote(t, func(w http.ResponseWriter, r *http.Request, body string) {
		if body == hello {
			sessions.Add(1)
		}
		switch {
		case greets(w, r, body, fmt.Sprintf("s%d", sessions.Load())):
		case r.Header.Get("Mcp-Session-Id") == "s1":
			refused.Done()
			refused.Wait()
			w.WriteHeader(http.StatusNotFound)
		case body == call:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
		}
	})
	e := open(t, pipe.Config{URL: m.URL, Key: "key"})
	e.say(hello)
	e.hears(helloBack)
	e.say(ready)
	for range 2 {
		e.say(call)
	}
	for range 2 {
		e.hears(answer)
	}
	m.saw(t, "POST s2 2025-11-25")
	commontest.EqualIn(t, "sessions", 2, sessions.Load())
}

func TestWhatFailsIsTheAnswer(t *testing.T) {
	for _, test := range []struct {
		name, body, kind string
		status           int
		want             string
	}{
		{"a refusal with an error", `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no tool t","data":{"x":1}}}`, "application/json", 400, `{"jsonrpc":"2.0","id":"a","error":{"code":-32602,"message":"no tool t","data":{"x":1}}}`},
		{"a refusal without one", "<html>", "text/html", 502, `{"jsonrpc":"2.0","id":"a","error":{"code":-32000,"message":"URL/mcp answers 502 Bad Gateway"}}`},
		{"a wrong key", "", "", 401, `{"jsonrpc":"2.0","id":"a","error":{"code":-32000,"message":"URL/mcp answers 401 Unauthorized: the key is not taken"}}`},
		{"a stream without an answer", "data: \n\n", "text/event-stream", 200, `{"jsonrpc":"2.0","id":"a","error":{"code":-32010,"message":"the stream of URL/mcp broke before the answer; whether the request was executed is not known"}}`},
		{"no answer", "", "", 202, `{"jsonrpc":"2.0","id":"a","error":{"code":-32010,"message":"the answer of URL/mcp was lost or is none; whether the request was executed is not known"}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newRemote(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				w.Header().Set("Content-Type", test.kind)
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			})
			e := open(t, pipe.Config{URL: m.URL + "/mcp?token=secret", Key: "key"})
			e.say("\ufeff" + call) // .NET begins its output with a byte order mark
			e.hears(strings.ReplaceAll(test.want, "URL", m.URL))
		})
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	e := open(t, pipe.Config{URL: gone.URL + "/mcp?token=secret", Key: "key"})
	e.say(call)
	line, err := e.out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, `{"jsonrpc":"2.0","id":"a","error":{"code":-32000,"message":"nothing answers at `+gone.URL+`/mcp: `) || strings.Contains(line, "secret") {
		t.Error(line, err)
	}
}

// A request of 2026-07-28 says in headers what its body says, and ends when it is cancelled.
func TestARequestOfTheModernEra(t *testing.T) {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
	const modernCall = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","arguments":{"where":"Köln"},` + meta + `}}`
	const listen = `{"jsonrpc":"2.0","id":8,"method":"subscriptions/listen","params":{` + meta + `}}`
	begun, ended := make(chan struct{}), make(chan struct{})
	m := newRemote(t, func(w http.ResponseWriter, r *http.Request, body string) {
		w.Header().Set("Content-Type", "application/json")
		var msg struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.Unmarshal([]byte(body), &msg)
		if got := r.Header.Get("Mcp-Method"); got != msg.Method || r.Header.Get("MCP-Protocol-Version") != "2026-07-28" {
			t.Errorf("%s has the headers %v", body, r.Header)
		}
		switch {
		case msg.Method == "tools/list":
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{"where":{"type":"string","x-mcp-header":"Where"}}}}]}}`, msg.ID)
		case msg.Method == "tools/call" && r.Header.Get("Mcp-Param-Where") == "":
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":7,"error":{"code":-32020,"message":"header mismatch"}}`)
		case msg.Method == "tools/call":
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":7,"result":{"name":%q,"where":%q}}`, r.Header.Get("Mcp-Name"), r.Header.Get("Mcp-Param-Where"))
		default:
			close(begun)
			<-r.Context().Done()
			close(ended)
		}
	})
	e := open(t, pipe.Config{URL: m.URL, Key: "key"})
	e.say(modernCall) // nobody has listed the tools before
	e.hears(`{"jsonrpc":"2.0","id":7,"result":{"name":"t","where":"=?base64?S8O2bG4=?="}}`)
	e.say(listen)
	<-begun
	e.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":8}}`)
	<-ended
	_ = e.in.Close()
	if rest, err := io.ReadAll(e.out); len(rest) > 0 || err != nil || e.log.String() != "" {
		t.Errorf("a cancelled request was answered: %s, %v, %s", rest, err, e.log.String())
	}
}

// The user signs in with a browser, once for all pipes to the endpoint.
func TestTheUserSignsIn(t *testing.T) {
	var url string
	registered, refreshed, says := 0, 0, "code=c0de"
	mux := http.NewServeMux()
	reply := func(w http.ResponseWriter, status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	valid := map[string]bool{"Bearer first": true}
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		if !valid[r.Header.Get("Authorization")] {
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+url+`/.well-known/oauth-protected-resource/mcp", scope="use"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	})
	mux.HandleFunc("/.well-known/oauth-protected-resource/mcp", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, map[string]any{"resource": url + "/mcp", "authorization_servers": []string{url}})
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, map[string]any{
			"issuer": url, "authorization_endpoint": url + "/authorize", "token_endpoint": url + "/token", "registration_endpoint": url + "/register",
			"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": []string{"none"},
		})
	})
	mux.HandleFunc("/register", func(w http.ResponseWriter, r *http.Request) {
		registered++
		var about map[string]any
		_ = json.NewDecoder(r.Body).Decode(&about)
		about["client_id"] = "registered"
		reply(w, http.StatusCreated, about)
	})
	mux.HandleFunc("/authorize", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("code_challenge_method") != "S256" || q.Get("resource") != url+"/mcp" || q.Get("scope") != "use" {
			t.Errorf("the sign-in asks for %v", q)
		}
		back := q.Get("redirect_uri")
		if stranger, err := http.Get(back + "?code=stolen&state=guessed"); err != nil || stranger.StatusCode != http.StatusNotFound { //nolint:noctx,bodyclose // a test
			t.Errorf("a stranger's way back: %v, %v", stranger, err)
		}
		http.Redirect(w, r, back+"?"+says+"&state="+q.Get("state"), http.StatusFound)
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		token := map[string]any{"access_token": "first", "token_type": "Bearer", "refresh_token": "again", "expires_in": 3600}
		switch r.FormValue("grant_type") {
		case "authorization_code":
			if r.FormValue("code") != "c0de" || r.FormValue("code_verifier") == "" || r.FormValue("client_id") != "registered" {
				t.Errorf("the token is asked for with %v", r.Form)
			}
		case "refresh_token":
			refreshed++
			token["access_token"] = "second"
			valid["Bearer second"] = true
		}
		reply(w, 200, token)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	url = server.URL

	folder := filepath.Join(t.TempDir(), "dormouse", "tokens")
	visits, pages := 0, make(chan string, 8)
	c := pipe.Config{URL: url + "/mcp", Tokens: folder, Browse: func(page string) {
		visits++
		go func() {
			resp, err := http.Get(page) //nolint:noctx // a test
			if err != nil {
				t.Error(err)
				return
			}
			page, _ := io.ReadAll(resp.Body)
			pages <- string(page)
			_ = resp.Body.Close()
		}()
	}}
	twice := func() { // the second one finds the token
		for range 2 {
			e := open(t, c)
			e.say(call)
			e.hears(answer)
			e.ends()
		}
	}
	twice()
	if visits != 1 || registered != 1 {
		t.Errorf("the browser was opened %d times, and %d clients were registered", visits, registered)
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	for path, want := range map[string]os.FileMode{files[0]: 0o600, folder: 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}

	// An access token that has ended, or that the endpoint refuses, is refreshed without the
	// user, and the new one is kept.
	for n, change := range []func(token map[string]any){
		func(token map[string]any) { token["expiry"] = "2026-01-01T00:00:00Z" },
		func(token map[string]any) { token["access_token"] = "refused" },
	} {
		text, err := os.ReadFile(files[0])
		commontest.OK(t, err)
		var kept map[string]any
		commontest.OK(t, json.Unmarshal(text, &kept))
		change(kept["token"].(map[string]any))
		text, _ = json.Marshal(kept)
		commontest.OK(t, os.WriteFile(files[0], text, 0o600))
		twice()
		if visits != 1 || refreshed != n+1 {
			t.Errorf("the browser was opened %d times, and the token refreshed %d times", visits, refreshed)
		}
	}
	// Who is refused reads why, in the browser and at the client.
	says, c.Tokens = "error=access_denied&error_description=not+assigned", t.TempDir()
	<-pages // of the sign-in before
	e := open(t, c)
	e.say(call)
	told, _ := e.out.ReadString('\n')
	e.ends()
	for _, text := range []string{told, <-pages} {
		commontest.Contains(t, "who is refused is told", "it says access_denied: not assigned", text)
	}
}
