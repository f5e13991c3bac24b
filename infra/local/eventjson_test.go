package local

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/go-cmp/cmp"
)

// proxyEvent is an event as API Gateway writes it: null where the Go type has "" or
// nothing, and the fields that the Go type does not have. What stands here hides what
// is embedded.
type proxyEvent struct {
	*events.APIGatewayProxyRequest
	RequestContext  proxyContext `json:"requestContext"`
	Body            *string      `json:"body"`
	IsBase64Encoded bool         `json:"isBase64Encoded"`
}

type proxyContext struct {
	*events.APIGatewayProxyRequestContext
	Identity     proxyIdentity `json:"identity"`
	Authorizer   *struct{}     `json:"authorizer,omitempty"` // there is none
	DeploymentID string        `json:"deploymentId"`
}

// proxyIdentity has what only authorizers of other kinds know, as null.
type proxyIdentity struct {
	AccessKey                     *string `json:"accessKey"`
	AccountID                     *string `json:"accountId"`
	Caller                        *string `json:"caller"`
	CognitoAuthenticationProvider *string `json:"cognitoAuthenticationProvider"`
	CognitoAuthenticationType     *string `json:"cognitoAuthenticationType"`
	CognitoIdentityID             *string `json:"cognitoIdentityId"`
	CognitoIdentityPoolID         *string `json:"cognitoIdentityPoolId"`
	PrincipalOrgID                *string `json:"principalOrgId"`
	SourceIP                      string  `json:"sourceIp"`
	User                          *string `json:"user"`
	UserAgent                     *string `json:"userAgent"`
	UserArn                       *string `json:"userArn"`
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// encoded is the event as encoding/json writes it.
func encoded(t *testing.T, e *events.APIGatewayProxyRequest) []byte {
	t.Helper()
	c := &e.RequestContext
	identity := proxyIdentity{SourceIP: c.Identity.SourceIP, UserAgent: orNull(c.Identity.UserAgent)}
	text, err := json.Marshal(proxyEvent{
		APIGatewayProxyRequest: e, Body: orNull(e.Body), IsBase64Encoded: e.IsBase64Encoded,
		RequestContext: proxyContext{APIGatewayProxyRequestContext: c, Identity: identity, DeploymentID: "local"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// decoded is JSON as it is understood.
func decoded(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

func TestAnEventIsWrittenAsItsTypeSays(t *testing.T) {
	odd := "a \"quoted\" \\ <b>&\u2028 \x01\x7f \xff zw\u00f6lf \U0001f42d"
	for name, change := range map[string]func(*events.APIGatewayProxyRequest){
		"as it is":     func(*events.APIGatewayProxyRequest) {},
		"with a query": func(e *events.APIGatewayProxyRequest) { e.QueryStringParameters = map[string]string{odd: odd, "": ""} },
		"with a query of many": func(e *events.APIGatewayProxyRequest) {
			e.MultiValueQueryStringParameters = map[string][]string{odd: {"", odd, "x"}, "": {}}
		},
		"no agent":         func(e *events.APIGatewayProxyRequest) { e.RequestContext.Identity.UserAgent = "" },
		"an odd path":      func(e *events.APIGatewayProxyRequest) { e.Path, e.RequestContext.Path = odd, odd },
		"an odd host":      func(e *events.APIGatewayProxyRequest) { e.RequestContext.DomainName = odd },
		"an empty header":  func(e *events.APIGatewayProxyRequest) { e.Headers["X"], e.MultiValueHeaders["X"] = "", []string{""} },
		"a body of escape": func(e *events.APIGatewayProxyRequest) { e.Body, e.IsBase64Encoded = odd, false },
		"no body":          func(e *events.APIGatewayProxyRequest) { e.Body, e.IsBase64Encoded = "", false },
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), "POST", "http://mcp.localhost:8080/a/b?c=d", strings.NewReader("{}"))
			r.Header.Set("User-Agent", "test")
			e := restEvent(r, []byte("{}"), "local", "local", time.Now())
			change(e)
			got, err := marshalEvent(e)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(decoded(t, encoded(t, e)), decoded(t, got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnEventOfAWebSocketIsWrittenAsItsTypeSays(t *testing.T) {
	api, err := NewWebSocketAPI(WebSocketConfig{Name: "mcp", Stage: "prod", Function: "f", Invoker: &wsFunction{handle: echo}})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), "GET", "http://mcp.localhost:8080/prod?a=b&a=c", nil)
	r.Header.Set("User-Agent", `odd "agent"`)
	c := newWSConn(api, r)
	for name, e := range map[string]*events.APIGatewayWebsocketProxyRequest{
		"$connect":       c.connectEvent(r),
		"$default":       c.messageEvent([]byte("{\"a\":\"\\u00e9<&>\u2028\"}")),
		"nothing":        c.messageEvent(nil),
		"$disconnect":    c.disconnectEvent(closedByPost),
		"without a word": c.disconnectEvent(closing{code: 1005}),
	} {
		t.Run(name, func(t *testing.T) {
			want, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(decoded(t, want), decoded(t, marshalSocketEvent(e))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestARoutesAnswerIsReadAsItsTypeSays(t *testing.T) {
	for _, body := range []string{
		`{"statusCode":200,"headers":null,"multiValueHeaders":null,"body":"{\"v\":1}"}` + "\n",
		`{"statusCode":200,"body":"eA==","isBase64Encoded":true}`, `{"statusCode":200,"body":null}`, `{"body":"a\u00e9"}`, `{}`, `null`,
		`{"statusCode":200,"headers":{"Sec-WebSocket-Protocol":"mcp"},"multiValueHeaders":{"A":["b","c"]},"body":""}`,
		`{"statuscode":201}`, `{"\u0062ody":"x"}`, `{"statusCode":200,"other":{"body":"no"}}`,
		`{"statusCode":"200"}`, `{"statusCode":200.5}`, `{"statusCode":200`, `{"body":7}`, `{"statusCode":200}x`, `[]`, `"x"`, ``,
	} {
		var want routeAnswer
		wantErr := json.Unmarshal([]byte(body), &want)
		got, err := readRouteAnswer([]byte(body))
		if (err == nil) != (wantErr == nil) {
			t.Errorf("%s: %v, encoding/json says %v", body, err, wantErr)
		} else if diff := cmp.Diff(want, got); err == nil && diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	}
}
