package apigw

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

// newREST starts a REST API in front of the pool's function and returns its URL.
func newREST(t testing.TB, pool *lambda.Pool, change func(*RESTConfig)) string {
	t.Helper()
	cfg := RESTConfig{Function: "echo", Invoker: pool}
	if change != nil {
		change(&cfg)
	}
	server := httptest.NewServer(NewRESTAPI(cfg))
	t.Cleanup(server.Close)
	return server.URL
}

// page is a response that was read to its end.
type page struct {
	status int
	header http.Header
	length int64 // -1 if the header did not have it
	body   string
	err    error // of reading the body
}

func do(t testing.TB, method, url, body string) page {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	return page{resp.StatusCode, resp.Header, resp.ContentLength, string(got), err}
}

func TestRequestReachesTheFunctionAndComesBack(t *testing.T) {
	url := newREST(t, newPool(t, nil), func(c *RESTConfig) { c.Stage = "dev" })
	got := do(t, "POST", url+"/mcp?mode=event&a=1", "zwölf")
	if got.err != nil || got.status != 200 || got.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%+v", got)
	}
	var e events.APIGatewayProxyRequest
	if err := json.Unmarshal([]byte(got.body), &e); err != nil {
		t.Fatal(err)
	}
	if e.Path != "/mcp" || e.HTTPMethod != "POST" || e.Body != "enfDtmxm" || !e.IsBase64Encoded || e.RequestContext.Stage != "dev" ||
		e.PathParameters["proxy"] != "mcp" || e.QueryStringParameters["a"] != "1" || e.RequestContext.Identity.SourceIP != "127.0.0.1" {
		t.Errorf("event: %s", got.body)
	}
	if id := e.RequestContext.RequestID; len(id) != 36 || got.header.Get("X-Amzn-Requestid") != id || got.header.Get("X-Amz-Apigw-Id") == "" ||
		got.header.Get("X-Amzn-Trace-Id") != e.Headers["X-Amzn-Trace-Id"] {
		t.Errorf("headers: %v", got.header)
	}
}

func TestStreamReachesTheClientPieceByPiece(t *testing.T) {
	r, g := newPool(t, nil), localtest.NewGate(t)
	url := newREST(t, r, nil)
	req, err := http.NewRequestWithContext(t.Context(), "GET", url+"/x?mode=stream&n=3&gate="+g.Path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	// The head comes before the first chunk, which the gate holds back.
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	held := g.Arrival()
	for n := 1; n <= 3; n++ {
		held.Pass()
		buf := make([]byte, 8)
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != fmt.Sprintf("chunk %d\n", n) {
			t.Fatalf("read %q, %v", buf, err)
		}
	}
	if rest, err := io.ReadAll(resp.Body); len(rest) != 0 || err != nil {
		t.Fatalf("rest %q, %v", rest, err)
	}
}

func TestClientThatGoesAwayDoesNotStopTheFunction(t *testing.T) {
	r, g := newPool(t, nil), localtest.NewGate(t)
	url := newREST(t, r, nil)
	for _, mode := range []string{"hold", "stream"} {
		t.Run(mode, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "GET", url+"/x?mode="+mode+"&n=3&gate="+g.Path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 1)
			go func() {
				resp, err := http.DefaultClient.Do(req)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				failed <- err
			}()
			held := g.Arrival()
			leave()
			if err := localtest.Wait(t, failed); !errors.Is(err, context.Canceled) {
				t.Fatalf("client: %v", err)
			}
			for range map[string]int{"hold": 1, "stream": 3}[mode] {
				held.Pass()
			}
			localtest.Eventually(t, "the process to be idle", func() bool {
				s := r.Status()[0]
				return len(s.Instances) == 1 && s.Instances[0].State == lambda.StateIdle
			})
			if s := r.Status()[0]; s.Failed != 0 {
				t.Errorf("counters: %+v", s)
			}
		})
	}
}

func TestFailureAfterTheHeadCutsTheConnection(t *testing.T) {
	for _, then := range []string{"error", "crash"} {
		t.Run(then, func(t *testing.T) {
			r, g := newPool(t, nil), localtest.NewGate(t)
			url := newREST(t, r, nil)
			req, err := http.NewRequestWithContext(t.Context(), "GET", url+"/x?mode=stream&n=1&then="+then+"&gate="+g.Path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			g.Arrival().Pass()
			got, err := io.ReadAll(resp.Body)
			if string(got) != "chunk 1\n" || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("read %q, %v, want a cut", got, err)
			}
		})
	}
}

// answering is an Invoker that returns the body of a streamed answer.
type answering func(ctx context.Context) (io.ReadCloser, error)

func (a answering) Invoke(ctx context.Context, _ string, _ []byte) (*lambda.Invocation, error) {
	body, err := a(ctx)
	if err != nil {
		return nil, err
	}
	return &lambda.Invocation{ContentType: streamingType, Body: body}, nil
}

// serveInBubble runs one request and reports whether the handler cut the connection.
func serveInBubble(t *testing.T, function answering) (rec *httptest.ResponseRecorder, cut bool) {
	t.Helper()
	rec = httptest.NewRecorder()
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
			cut = true
		}
	}()
	api := NewRESTAPI(RESTConfig{Function: "f", Invoker: function})
	api.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "GET", "http://localhost/mcp", nil))
	return rec, false
}

func TestStreamLimits(t *testing.T) {
	const head = `{"statusCode":200}` + preludeEnd
	tests := []struct {
		name     string
		every    time.Duration // time between two chunks of a function that writes for ever
		prelude  string
		lasts    time.Duration
		status   int
		complete bool
	}{
		{name: "silent stream", every: time.Hour, prelude: head, lasts: 5 * time.Minute, status: 200},
		{name: "long stream", every: time.Minute, prelude: head, lasts: 15 * time.Minute, status: 200},
		{name: "head that never ends", every: time.Minute, prelude: `{`, lasts: 15 * time.Minute, status: 504, complete: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, w := io.Pipe()
				pace := time.NewTicker(tt.every)
				go func() {
					_, err := io.WriteString(w, tt.prelude)
					for err == nil {
						select {
						case <-pace.C:
							_, err = io.WriteString(w, " ")
						case <-t.Context().Done():
							return
						}
					}
				}()
				began := time.Now()
				rec, cut := serveInBubble(t, func(context.Context) (io.ReadCloser, error) { return r, nil })
				if lasted := time.Since(began); lasted != tt.lasts {
					t.Errorf("ended after %s, want %s", lasted, tt.lasts)
				}
				if rec.Code != tt.status || cut == tt.complete {
					t.Errorf("status %d, cut %t", rec.Code, cut)
				}
			})
		})
	}
}

func TestFunctionThatDoesNotAnswerTimesOutAfter15Minutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		rec, _ := serveInBubble(t, func(ctx context.Context) (io.ReadCloser, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if lasted := time.Since(began); rec.Code != 504 || lasted != 15*time.Minute {
			t.Fatalf("status %d after %s", rec.Code, lasted)
		}
	})
}

// Text of a client can never be a top-level member of API Gateway's event.
func TestNobodyCanSayOverHTTPThatItIsTime(t *testing.T) {
	k := kept{make(chan []byte, 2)}
	api := NewRESTAPI(RESTConfig{Function: "http", Invoker: k})
	const lie = `{"tenant":"acme","principal":"ada","session":"s1"}`
	for _, body := range []string{
		`{"dormouseAlarm":` + lie + `}`,
		`","dormouseAlarm":` + lie + `,"x":"`,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/demo/mcp?dormouseAlarm=%7B%22tenant%22%3A1%7D", strings.NewReader(body))
		for _, name := range []string{"dormouseAlarm", "Dormousealarm", `x","dormouseAlarm`} {
			r.Header[name] = []string{lie}
		}
		api.ServeHTTP(httptest.NewRecorder(), r)
	}
	for range 2 {
		payload := localtest.Wait(t, k.events)
		var top map[string]json.RawMessage
		if err := json.Unmarshal(payload, &top); err != nil {
			t.Fatal(err)
		}
		for name := range top {
			if strings.HasPrefix(strings.ToLower(name), "dormouse") {
				t.Errorf("the event has %s at its top: %s", name, payload)
			}
		}
		if _, ok := native.ReadAlarm(payload); ok {
			t.Errorf("the event is an alarm: %s", payload)
		}
	}
}
