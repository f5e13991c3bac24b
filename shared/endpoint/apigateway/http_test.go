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

var get = events.APIGatewayProxyRequest{HTTPMethod: "GET", Path: "/"}

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
	type event = events.APIGatewayProxyRequest
	proxied := func(e *event, path, proxy string) { // below the base path of a custom domain
		e.Resource, e.Path, e.PathParameters, e.RequestContext.Path = "/{proxy+}", path, map[string]string{"proxy": proxy}, path
	}
	for name, tt := range map[string]struct {
		sent func(*event)
		want func(*seen)
	}{
		"plain: the stage is no part of the path": {func(*event) {}, func(*seen) {}},
		"what a client says of the stage does not count": {func(e *event) {
			e.MultiValueHeaders = map[string][]string{"X-Forwarded-Prefix": {"/other"}}
		}, func(*seen) {}},
		"the host the client named": {func(e *event) {
			e.Headers, e.MultiValueHeaders = map[string]string{"Host": "mcp.example:8443"}, map[string][]string{"Host": {"mcp.example:8443"}}
		}, func(s *seen) { s.Host = "mcp.example:8443" }},
		"base64": {func(e *event) {
			e.Body, e.IsBase64Encoded = base64.StdEncoding.EncodeToString([]byte{0xff, 0}), true
		}, func(s *seen) { s.Body = "\xff\x00" }},
		"headers of many values": {func(e *event) {
			e.Headers, e.MultiValueHeaders = map[string]string{"accept": "b/b"}, map[string][]string{"accept": {"a/a", "b/b"}}
		}, func(s *seen) { s.Header["Accept"] = []string{"a/a", "b/b"} }},
		"query": {func(e *event) {
			e.MultiValueQueryStringParameters = map[string][]string{"a b": {"1&2", "é"}}
		}, func(s *seen) { s.Query = "a+b=1%262&a+b=%C3%A9" }},
		"base path": {func(e *event) { proxied(e, "/prod/notes/mcp", "notes/mcp") }, func(*seen) {}},
		"base path like a server, a slash at the end": {func(e *event) { proxied(e, "/prod/prod/mcp/", "prod/mcp") }, func(s *seen) { s.Path = "/prod/mcp/" }},
		"base path, what has to be escaped":           {func(e *event) { proxied(e, "/prod/n%20s/mcp", "n s/mcp") }, func(s *seen) { s.Path = "/n s/mcp" }},
		"base path, the root": {func(e *event) {
			e.Resource, e.Path, e.RequestContext.Path = "/", "/prod", "/prod"
		}, func(s *seen) { s.Path = "/" }},
		"stage, the root": {func(e *event) { e.Resource, e.Path, e.RequestContext.Path = "/", "/", "/prod/" }, func(s *seen) { s.Path = "/" }},
		"no body":         {func(e *event) { e.HTTPMethod, e.Body = "get", "" }, func(s *seen) { s.Method, s.Body, s.Length = "GET", "", 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			e := event{HTTPMethod: "POST", Path: "/notes/mcp", Body: "é"}
			e.RequestContext.DomainName, e.RequestContext.Identity.SourceIP = "api.example", "192.0.2.1"
			e.RequestContext.Stage, e.RequestContext.Path = "prod", "/prod/notes/mcp"
			tt.sent(&e)
			want := seen{Method: "POST", Host: "api.example", Path: "/notes/mcp", Remote: "192.0.2.1", Body: "é", Length: 2, Header: http.Header{"X-Forwarded-Prefix": {"/prod"}}}
			tt.want(&want)
			var got seen
			invoke(t, t.Context(), func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				got = seen{r.Method, r.Host, r.URL.Path, r.URL.RawQuery, r.RemoteAddr, string(body), r.ContentLength, r.Header}
			}, e)
			commontest.Same(t, want, got)
		})
	}
}

func TestEventThatIsNoRequestIsAnswered(t *testing.T) {
	for name, event := range map[string]events.APIGatewayProxyRequest{
		"base64":                   {HTTPMethod: "POST", Path: "/a", Body: "%", IsBase64Encoded: true},
		"path":                     {HTTPMethod: "POST", Path: "/%zz"},
		"method":                   {HTTPMethod: "A B", Path: "/a"},
		"an event of another kind": {},
	} {
		res := invoke(t, t.Context(), func(http.ResponseWriter, *http.Request) { t.Error("the handler was called") }, event)
		if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 400 || !json.Valid(body) {
			t.Errorf("%s: got %d %s, %v", name, res.StatusCode, body, err)
		}
	}
}

func TestResponseAsLambdaSendsIt(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"a status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204); w.WriteHeader(500) }, `{"statusCode":204,"headers":{"Content-Length":"0"}}`},
		{"a body", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, `{"statusCode":200}hello`},
		{"headers", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header()["Vary"] = []string{"A", "B"}
			w.WriteHeader(404)
			w.Header().Set("Too", "late")
		}, `{"statusCode":404,"headers":{"Content-Length":"0","Content-Type":"text/plain"},"multiValueHeaders":{"Vary":["A","B"]}}`},
		{"flushes between", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 3 {
				_, _ = fmt.Fprint(w, i)
				_ = http.NewResponseController(w).Flush()
			}
			_, _ = io.WriteString(w, "end")
		}, `{"statusCode":200}012end`},
	} {
		res := invoke(t, t.Context(), tt.handler, get)
		raw, err := io.ReadAll(res)
		commontest.OK(t, errors.Join(err, res.Close()))
		commontest.EqualIn(t, tt.name, tt.want, strings.Replace(string(raw), strings.Repeat("\x00", 8), "", 1))
	}
}

// A reader that goes, and an invocation that ends, end the handler.
func TestHandlerIsToldThatItIsOver(t *testing.T) {
	var failed error
	res := invoke(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		_, _ = io.WriteString(w, "unheard")
		failed = http.NewResponseController(w).Flush()
	}, get)
	commontest.Check(t, res.Close())
	if !errors.Is(failed, io.ErrClosedPipe) {
		t.Errorf("its flush gave %v", failed)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	res = invoke(t, ctx, func(w http.ResponseWriter, r *http.Request) {
		cancel(errors.New("the time is over"))
		<-r.Context().Done()
		_, _ = io.WriteString(w, context.Cause(r.Context()).Error())
	}, get)
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "the time is over" {
		t.Errorf("got %q, %v", body, err)
	}
}

// A panic before the response is 500. One in the response breaks it off.
func TestPanicOfTheHandler(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		res := invoke(t, t.Context(), func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			if flushed {
				_ = http.NewResponseController(w).Flush()
			}
			panic("secret")
		}, get)
		body, err := io.ReadAll(res.Body)
		if flushed && (err == nil || string(body) != "half" || res.StatusCode != 200) {
			t.Errorf("got %d %s, %v", res.StatusCode, body, err)
		}
		if !flushed && (err != nil || res.StatusCode != 500 || !json.Valid(body) || bytes.Contains(body, []byte("secret"))) {
			t.Errorf("got %d %s, %v", res.StatusCode, body, err)
		}
	}
}
