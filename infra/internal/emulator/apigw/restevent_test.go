package apigw

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

// sent returns the event of a request as a function decodes it.
func sent(t *testing.T, r *http.Request, body []byte, cfg RESTConfig, now time.Time) (e events.APIGatewayProxyRequest) {
	t.Helper()
	payload, err := json.Marshal(NewRESTAPI(cfg).event(r, body, requestHeaders(r, now), "id", "extended", now))
	if err == nil {
		err = json.Unmarshal(payload, &e)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestRESTEvent(t *testing.T) {
	now := time.Date(2026, 11, 21, 13, 5, 9, 7e6, time.UTC)
	r := httptest.NewRequestWithContext(t.Context(), "POST", "http://mcp.localhost:8080/mcp/a%2Fb?x=1&x=2&y=%C3%A9", strings.NewReader("{}"))
	r.RemoteAddr = "127.0.0.1:55555"
	r.Header = http.Header{
		"Accept":          {"application/json", "text/event-stream"},
		"Connection":      {"keep-alive, X-Only-Here"},
		"Keep-Alive":      {"timeout=5"},
		"Mcp-Session-Id":  {"s1"},
		"Te":              {"trailers"},
		"User-Agent":      {"inspector/1"},
		"X-Amzn-Trace-Id": {"Root=1-00000000-0123456789abcdef01234567"},
		"X-Forwarded-For": {"203.0.113.9"},
		"X-Only-Here":     {"hop"},
	}
	multi := map[string][]string{
		"Accept":            {"application/json", "text/event-stream"},
		"Host":              {"mcp.localhost:8080"},
		"Mcp-Session-Id":    {"s1"},
		"User-Agent":        {"inspector/1"},
		"X-Amzn-Trace-Id":   {"Root=1-00000000-0123456789abcdef01234567"},
		"X-Forwarded-For":   {"203.0.113.9, 127.0.0.1"},
		"X-Forwarded-Port":  {"8080"},
		"X-Forwarded-Proto": {"http"},
	}
	want := events.APIGatewayProxyRequest{
		Resource: "/{proxy+}", Path: "/mcp/a%2Fb", HTTPMethod: "POST",
		Headers: map[string]string{
			"Accept": "text/event-stream", "Host": "mcp.localhost:8080", "Mcp-Session-Id": "s1", "User-Agent": "inspector/1",
			"X-Amzn-Trace-Id": "Root=1-00000000-0123456789abcdef01234567",
			"X-Forwarded-For": "203.0.113.9, 127.0.0.1", "X-Forwarded-Port": "8080", "X-Forwarded-Proto": "http",
		},
		MultiValueHeaders:               multi,
		QueryStringParameters:           map[string]string{"x": "2", "y": "é"},
		MultiValueQueryStringParameters: map[string][]string{"x": {"1", "2"}, "y": {"é"}},
		PathParameters:                  map[string]string{"proxy": "mcp/a/b"},
		RequestContext: events.APIGatewayProxyRequestContext{
			AccountID: "000000000000", APIID: "api1", Stage: "dev", ResourceID: "proxy", ResourcePath: "/{proxy+}", Path: "/mcp/a%2Fb",
			RequestID: "id", ExtendedRequestID: "extended", HTTPMethod: "POST", Protocol: "HTTP/1.1", DomainName: "mcp.localhost:8080", DomainPrefix: "mcp",
			RequestTime: "21/Nov/2026:13:05:09 +0000", RequestTimeEpoch: 1795266309007,
			Identity: events.APIGatewayRequestIdentity{SourceIP: "127.0.0.1", UserAgent: "inspector/1"},
		},
		Body: "e30=", IsBase64Encoded: true,
	}
	got := sent(t, r, []byte("{}"), RESTConfig{Stage: "dev", APIID: "api1"}, now)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestBodyIsBase64(t *testing.T) {
	tests := map[string]struct {
		body, want string
		coded      bool
	}{
		"text":     {"zwölf", "enfDtmxm", true},
		"empty":    {"", "", false},
		"no UTF-8": {"\xff\x00a", "/wBh", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost/mcp", nil)
			e := sent(t, r, []byte(tt.body), RESTConfig{}, time.Now())
			if e.Body != tt.want || e.IsBase64Encoded != tt.coded {
				t.Errorf("body %q, base64 %t", e.Body, e.IsBase64Encoded)
			}
		})
	}
}

// The endpoint accepts bodies of up to 4 MiB, and API Gateway accepts 10 KiB of headers,
// whatever bytes they contain. The event for them must stay below Lambda's limit.
func TestABodyAndHeadersFullOfEscapesAreAnEventThatLambdaTakes(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost/mcp", nil)
	r.Header.Set("Cookie", strings.Repeat("<&\x7f", 10<<10/3))
	body := []byte(strings.Repeat(`\"`, 2<<20))
	api, now := NewRESTAPI(RESTConfig{}), time.Now()
	payload, err := json.Marshal(api.event(r, body, requestHeaders(r, now), uuid.NewString(), awsapi.NewID(), now))
	if err != nil || len(payload) > maxEvent {
		t.Errorf("%d bytes, Lambda takes %d: %v", len(payload), maxEvent, err)
	}
}

func TestResponseHeaders(t *testing.T) {
	head := responseHead{
		Headers: map[string]string{
			"content-type": "text/event-stream", "WWW-Authenticate": `Bearer resource_metadata="x"`, "transfer-encoding": "chunked",
			"Connection": "keep-alive", "Server": "go", "Mcp-Session-Id": "s1", "X-Many": "single", "x-amzn-RequestId": "mine",
		},
		MultiValueHeaders: map[string][]string{"x-many": {"a", "b"}, "Set-Cookie": {"a=1"}},
		Cookies:           []string{"b=2", "c=3"},
	}
	h := http.Header{"X-Amzn-Requestid": {"the gateway's"}}
	head.apply(h)
	want := http.Header{
		"Content-Type":                     {"text/event-stream"},
		"X-Amzn-Remapped-Www-Authenticate": {`Bearer resource_metadata="x"`},
		"X-Amzn-Remapped-Connection":       {"keep-alive"},
		"X-Amzn-Remapped-Server":           {"go"},
		"X-Amzn-Remapped-X-Amzn-Requestid": {"mine"},
		"X-Amzn-Requestid":                 {"the gateway's"},
		"Mcp-Session-Id":                   {"s1"},
		"X-Many":                           {"a", "b"},
		"Set-Cookie":                       {"a=1", "b=2", "c=3"},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
}

func TestReadPrelude(t *testing.T) {
	nul := preludeEnd
	tests := map[string]struct {
		raw, body string
		status    int
		wrong     bool
	}{
		"head and body":        {raw: `{"statusCode":202,"headers":{"A":"b"}}` + nul + "data: x\n\n", status: 202, body: "data: x\n\n"},
		"head alone":           {raw: `{"statusCode":204}` + nul, status: 204},
		"body begins with NUL": {raw: `{"statusCode":200}` + nul + "\x00\x00x", status: 200, body: "\x00\x00x"},
		"ends early":           {raw: `{"statusCode":200}` + nul[:7], wrong: true},
		"empty":                {raw: "", wrong: true},
		"no status":            {raw: `{"headers":{}}` + nul, wrong: true},
		"informational":        {raw: `{"statusCode":103}` + nul, wrong: true},
		"impossible status":    {raw: `{"statusCode":1000}` + nul, wrong: true},
		"no JSON":              {raw: `statusCode: 200` + nul, wrong: true},
		"too long":             {raw: `{"statusCode":200,"headers":{"A":"` + strings.Repeat("b", maxPrelude) + `"}}` + nul, wrong: true},
	}
	readers := map[string]func(io.Reader) io.Reader{
		"whole":    func(r io.Reader) io.Reader { return r },
		"by byte":  iotest.OneByteReader,
		"halves":   iotest.HalfReader,
		"with end": iotest.DataErrReader,
	}
	for name, tt := range tests {
		for how, reader := range readers {
			t.Run(name+"/"+how, func(t *testing.T) {
				from := reader(strings.NewReader(tt.raw))
				head, first, err := readPrelude(from, make([]byte, 2*maxPrelude))
				if tt.wrong {
					if !errors.Is(err, errMalformed) {
						t.Fatalf("error %v, want errMalformed", err)
					}
					return
				}
				if err != nil || head.StatusCode != tt.status {
					t.Fatalf("%+v, %v", head, err)
				}
				first = slices.Clone(first)
				rest, err := io.ReadAll(from)
				if got := string(first) + string(rest); got != tt.body || err != nil {
					t.Errorf("body %q, %v, want %q", got, err, tt.body)
				}
			})
		}
	}
}

func TestReadBuffered(t *testing.T) {
	tests := map[string]struct {
		raw, body string
		status    int
		wrong     bool
	}{
		"text":           {raw: `{"statusCode":200,"body":"hello"}`, status: 200, body: "hello"},
		"base64":         {raw: `{"statusCode":201,"body":"/wBh","isBase64Encoded":true}`, status: 201, body: "\xff\x00a"},
		"no body":        {raw: `{"statusCode":202}`, status: 202},
		"broken base64":  {raw: `{"statusCode":200,"body":"?","isBase64Encoded":true}`, wrong: true},
		"no status":      {raw: `{"body":"hello"}`, wrong: true},
		"a string":       {raw: `"hello"`, wrong: true},
		"null":           {raw: `null`, wrong: true},
		"nothing":        {raw: ``, wrong: true},
		"over the limit": {raw: `{"statusCode":200,"body":"` + strings.Repeat("x", maxEvent) + `"}`, wrong: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			head, body, err := readBuffered(strings.NewReader(tt.raw))
			if tt.wrong {
				if !errors.Is(err, errMalformed) {
					t.Fatalf("error %v, want errMalformed", err)
				}
				return
			}
			if err != nil || head.StatusCode != tt.status || string(body) != tt.body {
				t.Errorf("%+v, %q, %v", head, body, err)
			}
		})
	}
}
