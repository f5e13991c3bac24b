package native

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// A server can be called from Go without HTTP: by a function call on AWS
// ([Lambda]), or in this process ([InPlace]). Nothing of what a client over HTTP
// meets is left out, for the request is the same: eras, sessions, limits, and who may
// do what.

// DefaultTimeout is how long one request of a [Client] may take if nothing is said.
const DefaultTimeout = time.Minute

// Client is how go-sdk's client reaches a server through calls.
type Client struct {
	Server string            // its name in the servers file
	Calls  http.RoundTripper // [Lambda] or [InPlace]
	Key    string            // API key that says who calls; "" where Calls does
	// Timeout bounds each request; 0 is [DefaultTimeout], less than 0 none. A legacy
	// call that takes longer goes on: its client asks for the rest.
	Timeout time.Duration
	// Listen keeps one request open for what belongs to no request; a function runs all
	// that time. A modern client listens by itself, if it wants.
	Listen bool
}

// Transport connects a client of go-sdk, for one session.
func (c Client) Transport() mcp.Transport {
	timeout := cmp.Or(c.Timeout, DefaultTimeout)
	calls := c.Calls
	if c.Key != "" {
		calls = keyed{c.Calls, c.Key}
	}
	return &mcp.StreamableClientTransport{
		Endpoint: "http://localhost/" + url.PathEscape(c.Server) + "/mcp", DisableStandaloneSSE: !c.Listen,
		HTTPClient: &http.Client{Transport: calls, Timeout: max(timeout, 0)},
	}
}

// keyed sends a key with each request.
type keyed struct {
	calls http.RoundTripper
	key   string
}

// RoundTrip implements http.RoundTripper.
func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.key)
	return k.calls.RoundTrip(r)
}

type callerKey struct{}

// withCaller is a context in which somebody who has proved it otherwise than by
// headers calls.
func withCaller(ctx context.Context, who session.Identity) context.Context {
	return context.WithValue(ctx, callerKey{}, who)
}

// Authenticator says who sends a request; package auth has those there are.
type Authenticator interface {
	Authenticate(r *http.Request, server string) (session.Identity, error)
	Confirm(ctx context.Context, credential, server string) error
}

// Callers lets in who stands in the context of a request ([Caller.In], [InPlace]),
// and asks Next about all others. Nothing in a request itself can put anybody there.
type Callers struct{ Next Authenticator }

// Authenticate implements [Authenticator].
func (c Callers) Authenticate(r *http.Request, server string) (session.Identity, error) {
	if who, ok := r.Context().Value(callerKey{}).(session.Identity); ok && who.Principal != "" {
		return who, nil
	}
	return c.Next.Authenticate(r, server)
}

// Confirm implements [Authenticator].
func (c Callers) Confirm(ctx context.Context, credential, server string) error {
	return c.Next.Confirm(ctx, credential, server)
}

// Caller is who calls by a function call, as the event says it: the member
// dormouseCaller at its top. API Gateway makes the top of its events itself, so that
// they have no such member whatever a client sends; an event that does have it comes
// from somebody who may invoke the function, which is IAM's to say, and whose word is
// good for every tenant.
type Caller struct {
	Tenant    string          `json:"tenant"`
	Principal string          `json:"principal"`
	Props     json.RawMessage `json:"props,omitempty"` // an object, or nothing
}

// In is a context in which this caller calls; see [Callers].
//
// Errors: Invalid, for an event that says badly who calls: it must not be taken for
// one that does not.
func (c Caller) In(ctx context.Context) (context.Context, error) {
	switch {
	case c.Tenant == "" || c.Principal == "":
		return nil, session.Errorf(session.Invalid, "the event does not name the tenant and the principal that call")
	case len(c.Props) > session.MaxProps:
		return nil, session.Errorf(session.TooLarge, "the caller's props have %d bytes; at most %d are kept", len(c.Props), session.MaxProps)
	}
	return withCaller(ctx, session.Identity{Tenant: c.Tenant, Principal: c.Principal, Props: c.Props}), nil
}

// LambdaConfig says which function is called, and as whom.
type LambdaConfig struct {
	Endpoint string // https://lambda.<region>.amazonaws.com
	Function string // name or ARN of the function for HTTP
	// Caller is who calls, if that is not said by a key: who may invoke the function
	// may be anybody. Only Tenant, Principal and Props count.
	Caller session.Identity
	// Client sends the requests; nil is http.DefaultClient.
	Client *http.Client
	// Sign proves who sends a request with this body (SigV4, service lambda); nil where
	// nobody asks.
	Sign func(ctx context.Context, r *http.Request, body []byte) error
}

// Lambda makes each HTTP request a call of a function (InvokeWithResponseStream), with
// the event that API Gateway would make of it. The response is read while the
// function writes it. A request of more than 4 MiB does not fit. Safe for concurrent
// use.
func Lambda(c LambdaConfig) http.RoundTripper {
	if c.Client == nil {
		c.Client = http.DefaultClient
	}
	return &lambdaCalls{c}
}

type lambdaCalls struct{ cfg LambdaConfig }

// maxCall is how long a body may be, so that its event is below Lambda's 6 MiB.
const maxCall = 4 << 20

// proxyEvent is what a function reads of an event of API Gateway.
type proxyEvent struct {
	Resource          string              `json:"resource"`
	Path              string              `json:"path"`
	Method            string              `json:"httpMethod"`
	Headers           map[string]string   `json:"headers"`
	MultiValueHeaders map[string][]string `json:"multiValueHeaders"`
	Query             map[string]string   `json:"queryStringParameters,omitempty"`
	MultiValueQuery   url.Values          `json:"multiValueQueryStringParameters,omitempty"`
	PathParameters    map[string]string   `json:"pathParameters"`
	Context           proxyContext        `json:"requestContext"`
	Body              string              `json:"body"`
	IsBase64Encoded   bool                `json:"isBase64Encoded"`
	Caller            *Caller             `json:"dormouseCaller,omitempty"`
}

type proxyContext struct {
	RequestID    string `json:"requestId"`
	Stage        string `json:"stage"`
	ResourcePath string `json:"resourcePath"`
	Path         string `json:"path"`
	HTTPMethod   string `json:"httpMethod"`
	DomainName   string `json:"domainName"`
	Protocol     string `json:"protocol"`
}

// RoundTrip implements http.RoundTripper.
func (l *lambdaCalls) RoundTrip(r *http.Request) (*http.Response, error) {
	event, err := l.event(r)
	if err != nil {
		return nil, err
	}
	target := l.cfg.Endpoint + "/2021-11-15/functions/" + url.PathEscape(l.cfg.Function) + "/response-streaming-invocations"
	call, err := http.NewRequestWithContext(r.Context(), http.MethodPost, target, bytes.NewReader(event))
	if err != nil {
		return nil, err
	}
	call.Header.Set("Content-Type", "application/json")
	call.Header.Set("X-Amz-Invocation-Type", "RequestResponse")
	if l.cfg.Sign != nil {
		if err := l.cfg.Sign(r.Context(), call, event); err != nil {
			return nil, fmt.Errorf("sign the call of function %s: %w", l.cfg.Function, err)
		}
	}
	res, err := l.cfg.Client.Do(call)
	if err != nil {
		return nil, fmt.Errorf("call function %s: %w", l.cfg.Function, err)
	}
	if res.StatusCode != http.StatusOK {
		defer func() { _ = res.Body.Close() }() // what is of interest was read
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return nil, fmt.Errorf("call function %s: status %d: %s", l.cfg.Function, res.StatusCode, text)
	}
	answer, err := readAnswer(r, payloads(res.Body))
	if err != nil {
		_ = res.Body.Close() // as above
		return nil, fmt.Errorf("call function %s: %w", l.cfg.Function, err)
	}
	return answer, nil
}

// event is the request as API Gateway hands it to a function.
func (l *lambdaCalls) event(r *http.Request) ([]byte, error) {
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(io.LimitReader(r.Body, maxCall+1))
		_ = r.Body.Close() // it was read
		if err != nil {
			return nil, err
		}
	}
	if len(body) > maxCall {
		return nil, session.Errorf(session.TooLarge, "the request has more than %d bytes, which a function call carries", maxCall)
	}
	header := r.Header.Clone()
	header.Set("Host", r.URL.Host)
	header.Set("X-Forwarded-Proto", "https")
	path := r.URL.EscapedPath()
	e := proxyEvent{
		Resource: "/{proxy+}", Path: path, Method: r.Method, Headers: map[string]string{}, MultiValueHeaders: header,
		PathParameters: map[string]string{"proxy": strings.TrimPrefix(r.URL.Path, "/")},
		Context: proxyContext{
			RequestID: session.NewNonce(), Stage: "call", ResourcePath: "/{proxy+}", Path: path, HTTPMethod: r.Method,
			DomainName: r.URL.Host, Protocol: "HTTP/1.1",
		},
	}
	for name, values := range header {
		e.Headers[name] = values[len(values)-1]
	}
	if query := r.URL.Query(); len(query) > 0 {
		e.Query, e.MultiValueQuery = map[string]string{}, query
		for name, values := range query {
			e.Query[name] = values[len(values)-1]
		}
	}
	if len(body) > 0 {
		e.Body, e.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
	}
	if who := l.cfg.Caller; who.Principal != "" {
		e.Caller = &Caller{Tenant: who.Tenant, Principal: who.Principal, Props: who.Props}
	}
	return json.Marshal(e)
}

// Bounds of the head of an answer, which ends with eight zero bytes.
const (
	maxHead = 16 << 10
	headEnd = "\x00\x00\x00\x00\x00\x00\x00\x00"
)

// readAnswer makes an HTTP response of what a function answers API Gateway with.
func readAnswer(r *http.Request, body io.ReadCloser) (*http.Response, error) {
	var head []byte
	for one := make([]byte, 1); !bytes.HasSuffix(head, []byte(headEnd)); {
		if _, err := io.ReadFull(body, one); err != nil {
			return nil, fmt.Errorf("its answer ends in its head: %w", err)
		}
		if head = append(head, one...); len(head) > maxHead {
			return nil, errors.New("its answer does not begin with a head")
		}
	}
	var h struct {
		Status  int                 `json:"statusCode"`
		Headers map[string]string   `json:"headers"`
		Multi   map[string][]string `json:"multiValueHeaders"`
	}
	if err := json.Unmarshal(head[:len(head)-len(headEnd)], &h); err != nil || h.Status < 100 {
		return nil, fmt.Errorf("the head of its answer cannot be read: %w", errors.Join(err, fmt.Errorf("status %d", h.Status)))
	}
	res := &http.Response{
		Status: fmt.Sprintf("%d %s", h.Status, http.StatusText(h.Status)), StatusCode: h.Status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: body, ContentLength: -1, Request: r,
	}
	for name, values := range h.Multi {
		res.Header[http.CanonicalHeaderKey(name)] = values
	}
	for name, value := range h.Headers {
		res.Header.Set(name, value)
	}
	return res, nil
}
