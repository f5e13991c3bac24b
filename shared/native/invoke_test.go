package native_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/front"
	"github.com/dormouse-mcp/dormouse/shared/native"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// office is a server that says who calls, counts, tells of progress and asks.
func office(_ context.Context, s native.Session) (*mcp.Server, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "office", Version: "1"}, s.Options())
	say := func(text string) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	}
	mcp.AddTool(server, &mcp.Tool{Name: "whoami"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		n, err := native.Update(ctx, s.State(native.OfPrincipal), "calls", func(n int) (int, error) { return n + 1, nil })
		if err != nil {
			return nil, nil, err
		}
		return say(s.Tenant() + " " + s.Principal() + " " + string(s.Props()) + " " + strings.Repeat("I", n))
	})
	mcp.AddTool(server, &mcp.Tool{Name: "steps"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
		if err != nil {
			return nil, nil, err
		}
		return say("done")
	})
	mcp.AddTool(server, &mcp.Tool{Name: "agree"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		if answer, ok := r.Params.InputResponses["q"].(*mcp.ElicitResult); ok {
			return say(answer.Action)
		}
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"q": &mcp.ElicitParams{
			Mode: "form", Message: "agree?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}},
		}}}, nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "hang"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	})
	return server, nil
}

// keys lets in who brings the key, and nobody else.
type keys struct{}

func (keys) Authenticate(r *http.Request, _ string) (session.Identity, error) {
	if r.Header.Get("Authorization") != "Bearer secret" {
		return session.Identity{}, session.Errorf(session.Unauthenticated, "a key is needed")
	}
	return session.Identity{Tenant: "acme", Principal: "keyholder"}, nil
}

func (keys) Confirm(context.Context, string, string) error { return nil }

// handler serves each request by a process of its own.
func officeHandler(w *world) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		o := w.options()
		o.Auth = native.Callers{Next: keys{}}
		native.Handler(front.New(o)).ServeHTTP(rw, r)
	})
}

// lambda is Lambda's InvokeWithResponseStream for the function for HTTP. On one machine
// the real functions are called the same way; see package local.
func lambda(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e struct {
			events.APIGatewayProxyRequest
			Caller *native.Caller `json:"dormouseCaller"`
		}
		err := json.NewDecoder(r.Body).Decode(&e)
		ctx := context.WithoutCancel(r.Context()) // a caller that goes ends nothing
		if err == nil && e.Caller != nil {
			ctx, err = e.Caller.In(ctx)
		}
		if err != nil || r.URL.Path != "/2021-11-15/functions/http/response-streaming-invocations" {
			http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
			return
		}
		res, err := front.Lambda(h)(ctx, e.APIGatewayProxyRequest)
		for buf := make([]byte, 100); err == nil; { // smaller than a head
			var n int
			if n, err = res.Read(buf); n > 0 {
				_, _ = w.Write(frame("PayloadChunk", buf[:n]))
				_ = http.NewResponseController(w).Flush()
			}
		}
		_, _ = w.Write(frame("InvokeComplete", []byte("{}")))
	})
}

// frame is a message of AWS's event streams, as its documentation has it.
func frame(event string, payload []byte) []byte {
	const name = ":event-type"
	headers := append([]byte{byte(len(name))}, name...)
	headers = append(binary.BigEndian.AppendUint16(append(headers, 7), uint16(len(event))), event...)
	f := binary.BigEndian.AppendUint32(nil, uint32(16+len(headers)+len(payload)))
	f = binary.BigEndian.AppendUint32(f, uint32(len(headers)))
	f = binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f))
	f = append(append(f, headers...), payload...)
	return binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f))
}

// ways are how a server is called without HTTP: who calls stands in the call, or has
// a key.
func ways(t *testing.T, h http.Handler) map[string]func(who session.Identity) http.RoundTripper {
	endpoint := httptest.NewServer(lambda(h))
	t.Cleanup(endpoint.Close)
	return map[string]func(session.Identity) http.RoundTripper{
		"in place": func(who session.Identity) http.RoundTripper { return native.InPlace(h, who) },
		"lambda": func(who session.Identity) http.RoundTripper {
			return native.Lambda(native.LambdaConfig{Endpoint: endpoint.URL, Function: "http", Caller: who})
		},
	}
}

func eachWay(t *testing.T, test func(t *testing.T, w *world, calls func(session.Identity) http.RoundTripper)) {
	for _, name := range []string{"in place", "lambda"} {
		t.Run(name, func(t *testing.T) {
			w := memory(t)
			w.apart, w.hosted.Make = false, office
			test(t, w, ways(t, officeHandler(w))[name])
		})
	}
}

func connect(t *testing.T, c native.Client, version string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1"}, o)
	s, err := client.Connect(t.Context(), c.Transport(), &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // some tests have closed it
	return s
}

func call(t *testing.T, s *mcp.ClientSession, tool string) string {
	t.Helper()
	params := &mcp.CallToolParams{Name: tool, Arguments: map[string]any{}}
	params.SetProgressToken("mine")
	result, err := s.CallTool(t.Context(), params)
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	text, ok := result.Content[0].(*mcp.TextContent)
	if !ok || result.IsError {
		t.Fatalf("%s: %+v", tool, result)
	}
	return text.Text
}

var _ native.Authenticator = keys{}

func TestCallsFromGoAreWhatCallsOverHTTPAre(t *testing.T) {
	eachWay(t, func(t *testing.T, _ *world, calls func(session.Identity) http.RoundTripper) {
		for _, version := range []string{wire.V20250618, wire.V20251125, wire.V20260728} {
			t.Run(version, func(t *testing.T) {
				progress := make(chan float64, 1)
				who := session.Identity{Tenant: "acme", Principal: "ada " + version, Props: []byte(`{"role":"cook"}`)}
				s := connect(t, native.Client{Server: "demo", Calls: calls(who)}, version, &mcp.ClientOptions{
					ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
						return &mcp.ElicitResult{Action: "accept"}, nil
					},
					ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress <- r.Params.Progress },
				})
				got := []string{s.InitializeResult().ServerInfo.Name, call(t, s, "whoami"), call(t, s, "whoami"), call(t, s, "agree"), call(t, s, "steps")}
				prefix := "acme ada " + version + ` {"role":"cook"} `
				if diff := cmp.Diff([]string{"office", prefix + "I", prefix + "II", "accept", "done"}, got); diff != "" {
					t.Error(diff)
				}
				if p := <-progress; p != 1 {
					t.Errorf("progress %v", p)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

func TestACallFromGoMayBringAKey(t *testing.T) {
	eachWay(t, func(t *testing.T, _ *world, calls func(session.Identity) http.RoundTripper) {
		s := connect(t, native.Client{Server: "demo", Calls: calls(session.Identity{}), Key: "secret"}, wire.V20251125, nil)
		if got := call(t, s, "whoami"); got != "acme keyholder  I" {
			t.Errorf("called by %q", got)
		}
	})
}

// A tool that calls another server by a key does not do so as whoever has called it.
func TestACallOfSomebodyWhoWasCalledIsHisOwn(t *testing.T) {
	ctx, err := native.Caller{Tenant: "globex", Principal: "eve"}.In(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var who session.Identity
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		who, err = native.Callers{Next: keys{}}.Authenticate(r, "demo")
	})
	for header, want := range map[string]string{"Bearer secret": "keyholder", "": ""} {
		res, failed := native.InPlace(h, session.Identity{}).RoundTrip(request("POST", "{}", "Authorization", header).WithContext(ctx))
		if failed != nil {
			t.Fatal(failed)
		}
		if _, failed = io.Copy(io.Discard, res.Body); failed != nil {
			t.Fatal(failed)
		}
		if failed = res.Body.Close(); failed != nil || who.Principal != want || (err == nil) != (want != "") {
			t.Errorf("with %q it is %+v, %v, %v", header, who, err, failed)
		}
	}
}

func TestACallFromGoWithoutAnybodyIsRefused(t *testing.T) {
	eachWay(t, func(t *testing.T, _ *world, calls func(session.Identity) http.RoundTripper) {
		c := native.Client{Server: "demo", Calls: calls(session.Identity{})}
		client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1"}, nil)
		if _, err := client.Connect(t.Context(), c.Transport(), nil); err == nil {
			t.Error("it was let in")
		}
	})
}

func TestACallFromGoEndsAtItsTimeout(t *testing.T) {
	eachWay(t, func(t *testing.T, w *world, calls func(session.Identity) http.RoundTripper) {
		w.hosted.ToolTimeout = time.Second // a function is not stopped when its caller goes
		c := native.Client{Server: "demo", Calls: calls(session.Identity{Tenant: "acme", Principal: "ada"}), Timeout: 500 * time.Millisecond}
		s := connect(t, c, wire.V20260728, nil)
		begun := time.Now()
		if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "hang", Arguments: map[string]any{}}); err == nil {
			t.Error("it was answered")
		}
		if took := time.Since(begun); took > 15*time.Second {
			t.Errorf("it ended after %s", took)
		}
	})
}

func TestACallerThatIsSaidBadlyIsNobodyElse(t *testing.T) {
	for _, c := range []native.Caller{{}, {Tenant: "acme"}, {Principal: "ada"}, {Tenant: "acme", Principal: "ada", Props: bytes.Repeat([]byte(" "), session.MaxProps+1)}} {
		if _, err := c.In(t.Context()); err == nil {
			t.Errorf("%+v is let in", c)
		}
	}
}

// broken is a Lambda that answers with this.
func broken(t *testing.T, status int, body []byte) http.RoundTripper {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}))
	t.Cleanup(s.Close)
	return native.Lambda(native.LambdaConfig{Endpoint: s.URL, Function: "http"})
}

func TestAnAnswerOfLambdaThatIsNoneIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
	}{
		"refused":          {403, `{"message":"no"}`},
		"nothing":          {200, ""},
		"cut":              {200, "\x00\x00\x00\x20\x00\x00"},
		"a wrong checksum": {200, strings.Repeat("\x00", 16)},
		"text":             {200, `{"statusCode":200}` + strings.Repeat("\x00", 8) + "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/demo/mcp", nil)
			if res, err := broken(t, c.status, []byte(c.body)).RoundTrip(r); err == nil {
				_ = res.Body.Close()
				t.Errorf("status %d", res.StatusCode)
			}
		})
	}
}

func TestAFunctionThatFailsIsAnError(t *testing.T) {
	calls := broken(t, http.StatusOK, frame("InvokeComplete", []byte(`{"ErrorCode":"Runtime.ExitError","ErrorDetails":"out of memory"}`)))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/demo/mcp", nil)
	res, err := calls.RoundTrip(r)
	if err == nil {
		_ = res.Body.Close()
		t.Fatalf("status %d", res.StatusCode)
	}
	if want := "out of memory"; !strings.Contains(err.Error(), want) || errors.Is(err, io.EOF) {
		t.Errorf("%v, want it to say %q", err, want)
	}
}
