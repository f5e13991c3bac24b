package apigateway_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/apigateway"
)

func invoke(t *testing.T, ctx context.Context, h http.HandlerFunc, event events.APIGatewayProxyRequest) *events.APIGatewayProxyStreamingResponse {
	t.Helper()
	res, err := apigateway.HTTP(h, slog.New(slog.DiscardHandler))(ctx, event)
	commontest.OK(t, err)
	return res
}

func TestEventBecomesARequest(t *testing.T) {
	type seen struct {
		Method, Host, Path, Query, Remote, Body string
		Length                                  int64
		Header                                  http.Header
	}
	base := func(change func(*events.APIGatewayProxyRequest)) events.APIGatewayProxyRequest {
		e := events.APIGatewayProxyRequest{HTTPMethod: "POST", Path: "/notes/mcp", Body: "é"}
		e.RequestContext.DomainName = "api.example"
		e.RequestContext.Stage, e.RequestContext.Path = "prod", "/prod/notes/mcp"
		e.RequestContext.Identity.SourceIP = "192.0.2.1"
		change(&e)
		return e
	}
	want := func(change func(*seen)) seen {
		s := seen{Method: "POST", Host: "api.example", Path: "/notes/mcp", Remote: "192.0.2.1", Body: "é", Length: 2, Header: http.Header{}}
		change(&s)
		s.Header.Set("X-Forwarded-Prefix", "/prod")
		return s
	}
	tests := []struct {
		name  string
		event events.APIGatewayProxyRequest
		want  seen
	}{
		{"what a client says of the stage does not count", base(func(e *events.APIGatewayProxyRequest) {
			e.MultiValueHeaders = map[string][]string{"X-Forwarded-Prefix": {"/other"}}
		}), want(func(*seen) {})},
		{"plain: the stage is no part of the path", base(func(*events.APIGatewayProxyRequest) {}), want(func(*seen) {})},
		{"the host the client named", base(func(e *events.APIGatewayProxyRequest) {
			e.Headers = map[string]string{"Host": "mcp.example:8443"}
			e.MultiValueHeaders = map[string][]string{"Host": {"mcp.example:8443"}}
		}), want(func(s *seen) { s.Host = "mcp.example:8443" })},
		{"base64", base(func(e *events.APIGatewayProxyRequest) {
			e.Body, e.IsBase64Encoded = base64.StdEncoding.EncodeToString([]byte{0xff, 0}), true
		}), want(func(s *seen) { s.Body = "\xff\x00" })},
		{"headers of many values", base(func(e *events.APIGatewayProxyRequest) {
			e.Headers = map[string]string{"accept": "b/b"}
			e.MultiValueHeaders = map[string][]string{"accept": {"a/a", "b/b"}}
		}), want(func(s *seen) { s.Header = http.Header{"Accept": {"a/a", "b/b"}} })},
		{"headers of one value only", base(func(e *events.APIGatewayProxyRequest) {
			e.Headers, e.MultiValueHeaders = map[string]string{"mcp-session-id": "x"}, map[string][]string{}
		}), want(func(s *seen) { s.Header = http.Header{"Mcp-Session-Id": {"x"}} })},
		{"query", base(func(e *events.APIGatewayProxyRequest) {
			e.MultiValueQueryStringParameters = map[string][]string{"a b": {"1&2", "é"}}
		}), want(func(s *seen) { s.Query = "a+b=1%262&a+b=%C3%A9" })},
		{"base path of a custom domain", base(func(e *events.APIGatewayProxyRequest) {
			e.Resource, e.Path, e.PathParameters = "/{proxy+}", "/prod/notes/mcp", map[string]string{"proxy": "notes/mcp"}
		}), want(func(*seen) {})},
		{"base path, which the context lacks", base(func(e *events.APIGatewayProxyRequest) {
			e.Resource, e.Path, e.PathParameters = "/{proxy+}", "/prod/notes/mcp", map[string]string{"proxy": "notes/mcp"}
			e.RequestContext.Path = ""
		}), want(func(*seen) {})},
		{"base path like a server, a slash at the end", base(func(e *events.APIGatewayProxyRequest) {
			e.Resource, e.Path, e.PathParameters = "/{proxy+}", "/prod/prod/mcp/", map[string]string{"proxy": "prod/mcp"}
			e.RequestContext.Path = "/prod/prod/mcp/"
		}), want(func(s *seen) { s.Path = "/prod/mcp/" })},
		{"base path, what has to be escaped", base(func(e *events.APIGatewayProxyRequest) {
			e.Resource, e.Path, e.PathParameters = "/{proxy+}", "/prod/n%20s/mcp", map[string]string{"proxy": "n s/mcp"}
			e.RequestContext.Path = "/prod/n%20s/mcp"
		}), want(func(s *seen) { s.Path = "/n s/mcp" })},
		{"base path, the root", base(func(e *events.APIGatewayProxyRequest) {
			e.Resource, e.Path, e.RequestContext.Path = "/", "/prod", "/prod"
		}), want(func(s *seen) { s.Path = "/" })},
		{"base path, a path of its own", base(func(e *events.APIGatewayProxyRequest) {
			e.Resource, e.Path, e.RequestContext.Path = "/token", "/prod/token", "/prod/token"
		}), want(func(s *seen) { s.Path = "/token" })},
		{"base path, the console", base(func(e *events.APIGatewayProxyRequest) {
			e.Resource, e.Path, e.PathParameters = "/console/{proxy+}", "/prod/console/api/info", map[string]string{"proxy": "api/info"}
			e.RequestContext.Path = "/prod/console/api/info"
		}), want(func(s *seen) { s.Path = "/console/api/info" })},
		{"stage, the root", base(func(e *events.APIGatewayProxyRequest) {
			e.Resource, e.Path, e.RequestContext.Path = "/", "/", "/prod/"
		}), want(func(s *seen) { s.Path = "/" })},
		{"no body", base(func(e *events.APIGatewayProxyRequest) { e.HTTPMethod, e.Body = "get", "" }), want(func(s *seen) {
			s.Method, s.Body, s.Length = "GET", "", 0
		})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got seen
			invoke(t, t.Context(), func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				got = seen{r.Method, r.Host, r.URL.Path, r.URL.RawQuery, r.RemoteAddr, string(body), r.ContentLength, r.Header}
			}, tt.event)
			commontest.Same(t, tt.want, got)
		})
	}
}

func TestEventThatIsNoRequestIsAnswered(t *testing.T) {
	tests := map[string]events.APIGatewayProxyRequest{
		"base64": {HTTPMethod: "POST", Path: "/a", Body: "%", IsBase64Encoded: true},
		"path":   {HTTPMethod: "POST", Path: "/%zz"},
		"method": {HTTPMethod: "A B", Path: "/a"},
	}
	for name, event := range tests {
		t.Run(name, func(t *testing.T) {
			res := invoke(t, t.Context(), func(http.ResponseWriter, *http.Request) { t.Error("the handler was called") }, event)
			body, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != 400 || !json.Valid(body) {
				t.Errorf("%s: got %d %s, %v", name, res.StatusCode, body, err)
			}
		})
	}
}

// The operator who put another API before the function, or a warmer, finds it in the log.
func TestEventOfAnotherKindIsLogged(t *testing.T) {
	for raw, want := range map[string]string{
		`{"version":"2.0","routeKey":"$default","rawPath":"/echo/mcp","requestContext":{"apiId":"a1","stage":"$default","domainName":"a1.execute-api.us-east-1.amazonaws.com","http":{"method":"POST","path":"/echo/mcp"}}}`: "an HTTP API",
		`{"version":"2.0","routeKey":"$default","rawPath":"/echo/mcp","requestContext":{"apiId":"a1","domainName":"a1.lambda-url.us-east-1.on.aws","http":{"method":"POST","path":"/echo/mcp"}}}`:                            "a function URL",
		`{"source":"serverless-plugin-warmup"}`:                                                      "a warmer",
		`{"version":"0","id":"1","detail-type":"Scheduled Event","source":"aws.events","detail":{}}`: "a schedule",
		`{}`: "a test",
	} {
		var event events.APIGatewayProxyRequest
		commontest.OK(t, json.Unmarshal([]byte(raw), &event))
		var logged bytes.Buffer
		never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Errorf("%s: the handler was called", raw) })
		res, err := apigateway.HTTP(never, slog.New(slog.NewJSONHandler(&logged, nil)))(t.Context(), event)
		if err != nil || res.StatusCode != http.StatusBadRequest {
			t.Fatalf("%s: got %+v, %v", raw, res, err)
		}
		if line := logged.String(); !strings.Contains(line, want) || strings.Count(line, "\n") != 1 {
			t.Errorf("%s: logged %s, want %q", raw, line, want)
		}
	}
}

func TestResponseAsLambdaSendsIt(t *testing.T) {
	tests := []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"nothing", func(http.ResponseWriter, *http.Request) {}, `{"statusCode":200,"headers":{"Content-Length":"0"}}`},
		{"a status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204); w.WriteHeader(500) }, `{"statusCode":204,"headers":{"Content-Length":"0"}}`},
		{"a body", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, `{"statusCode":200}hello`},
		{"headers", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header()["Vary"] = []string{"A", "B"}
			w.WriteHeader(404)
			w.Header().Set("Too", "late")
		}, `{"statusCode":404,"headers":{"Content-Length":"0","Content-Type":"text/plain"},"multiValueHeaders":{"Vary":["A","B"]}}`},
		{"a flush without anything", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			w.(http.Flusher).Flush()
		}, `{"statusCode":201}`},
		{"flushes between", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 3 {
				_, _ = fmt.Fprint(w, i)
				_ = http.NewResponseController(w).Flush()
			}
			_, _ = io.WriteString(w, "end")
		}, `{"statusCode":200}012end`},
		{"much", func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				_, _ = w.Write(bytes.Repeat([]byte("x"), 1000))
			}
		}, `{"statusCode":200}` + strings.Repeat("x", 100_000)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := invoke(t, t.Context(), tt.handler, events.APIGatewayProxyRequest{HTTPMethod: "GET", Path: "/"})
			raw, err := io.ReadAll(res)
			commontest.OK(t, errors.Join(err, res.Close()))
			if got := strings.Replace(string(raw), strings.Repeat("\x00", 8), "", 1); got != tt.want {
				t.Errorf("got %.300s, want %.300s", got, tt.want)
			}
		})
	}
}

func TestFlushedBytesArriveBeforeTheHandlerReturns(t *testing.T) {
	proceed := make(chan struct{})
	res := invoke(t, t.Context(), func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "fir")
		_, _ = io.WriteString(w, "st")
		_ = http.NewResponseController(w).Flush()
		<-proceed
		_, _ = io.WriteString(w, "second")
	}, events.APIGatewayProxyRequest{HTTPMethod: "GET", Path: "/"})
	p := make([]byte, 100)
	n, err := res.Body.Read(p)
	if err != nil || string(p[:n]) != "first" {
		t.Errorf("got %q, %v; small writes must come in one piece", p[:n], err)
	}
	close(proceed)
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "second" {
		t.Errorf("got %q, %v", rest, err)
	}
}

func TestReaderThatGoesEndsTheHandler(t *testing.T) {
	var failed error
	returned := false
	res := invoke(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		_, _ = io.WriteString(w, "unheard")
		failed = http.NewResponseController(w).Flush()
		returned = true
	}, events.APIGatewayProxyRequest{HTTPMethod: "GET", Path: "/"})
	commontest.Check(t, res.Close())
	if !returned || !errors.Is(failed, io.ErrClosedPipe) {
		t.Errorf("returned: %v, its flush gave %v", returned, failed)
	}
}

func TestHandlerIsToldWhenTheInvocationEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the time is over")
	res := invoke(t, ctx, func(w http.ResponseWriter, r *http.Request) {
		cancel(cause)
		<-r.Context().Done()
		_, _ = io.WriteString(w, context.Cause(r.Context()).Error())
	}, events.APIGatewayProxyRequest{HTTPMethod: "GET", Path: "/"})
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != cause.Error() {
		t.Errorf("got %q, %v", body, err)
	}
}

func TestPanicOfTheHandler(t *testing.T) {
	t.Run("before the response is 500", func(t *testing.T) {
		res := invoke(t, t.Context(), func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(200)
			_, _ = io.WriteString(w, "half")
			panic("secret")
		}, events.APIGatewayProxyRequest{HTTPMethod: "GET", Path: "/"})
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 500 || !json.Valid(body) || bytes.Contains(body, []byte("secret")) {
			t.Errorf("got %d %s, %v", res.StatusCode, body, err)
		}
	})
	t.Run("in the response breaks it off", func(t *testing.T) {
		res := invoke(t, t.Context(), func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic("why")
		}, events.APIGatewayProxyRequest{HTTPMethod: "GET", Path: "/"})
		body, err := io.ReadAll(res.Body)
		if err == nil || !strings.Contains(err.Error(), "why") || string(body) != "half" || res.StatusCode != 200 {
			t.Errorf("got %d %s, %v", res.StatusCode, body, err)
		}
	})
}

func TestInvocationsDoNotShareAnything(t *testing.T) {
	serve := apigateway.HTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }), slog.New(slog.DiscardHandler))
	for _, path := range []string{"/%zz", "/a", "/b"} {
		res, err := serve(t.Context(), events.APIGatewayProxyRequest{HTTPMethod: "GET", Path: path})
		commontest.OK(t, err)
		if body, _ := io.ReadAll(res.Body); path != "/%zz" && string(body) != path {
			t.Errorf("%s: got %s", path, body)
		}
	}
}
