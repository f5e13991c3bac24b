package apigw

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

const (
	proxyResource = "/{proxy+}"

	// maxPrelude is how many bytes of an answer API Gateway searches for preludeEnd.
	maxPrelude = 16 << 10
	// maxEvent is Lambda's limit for the bytes of an event.
	maxEvent = 6 << 20

	preludeEnd = "\x00\x00\x00\x00\x00\x00\x00\x00"
)

// event returns the event of API Gateway's Lambda proxy integration, format 1.0, for a
// request through a custom domain: the path has no stage. As from API Gateway, members
// without a value are null. Unlike there, the domain name has the port, and header names are
// in canonical form.
//
// The body is base64, as for an API with "*/*" among its binary media types. A JSON string
// with escapes might be longer, and Lambda limits the length of events.
func (a *RESTAPI) event(r *http.Request, body []byte, headers map[string][]string, id, extended string, now time.Time) map[string]any {
	path := r.URL.EscapedPath()
	identity := map[string]any{"sourceIp": awsapi.SourceIP(r), "userAgent": nil}
	for _, unknown := range []string{
		"accessKey", "accountId", "caller", "cognitoAuthenticationProvider", "cognitoAuthenticationType",
		"cognitoIdentityId", "cognitoIdentityPoolId", "principalOrgId", "user", "userArn",
	} {
		identity[unknown] = nil // only authorizers that are not imitated set these
	}
	if agent := r.UserAgent(); agent != "" {
		identity["userAgent"] = agent
	}
	e := map[string]any{
		"resource": proxyResource, "path": path, "httpMethod": r.Method,
		"headers": lastOfEach(headers), "multiValueHeaders": headers,
		"queryStringParameters": nil, "multiValueQueryStringParameters": nil,
		"pathParameters": map[string]string{"proxy": strings.TrimPrefix(r.URL.Path, "/")}, "stageVariables": nil,
		"requestContext": map[string]any{
			"accountId": aws.Account, "resourceId": "proxy", "stage": a.Stage, "domainName": r.Host,
			"domainPrefix": firstLabel(r.Host), "requestId": id, "extendedRequestId": extended,
			"protocol": r.Proto, "identity": identity, "resourcePath": proxyResource, "path": path,
			"httpMethod": r.Method, "requestTime": now.UTC().Format(requestTime), "requestTimeEpoch": now.UnixMilli(),
			"apiId": a.APIID, "deploymentId": "local",
		},
		"body": nil, "isBase64Encoded": len(body) > 0,
	}
	if query := r.URL.Query(); len(query) > 0 {
		e["multiValueQueryStringParameters"], e["queryStringParameters"] = query, lastOfEach(query)
	}
	if len(body) > 0 {
		e["body"] = base64.StdEncoding.EncodeToString(body)
	}
	return e
}

func firstLabel(host string) string {
	label, _, _ := strings.Cut(host, ".")
	return label
}

// requestHeaders returns the client's headers as API Gateway passes them to a Lambda
// function: it drops some, and adds others.
func requestHeaders(r *http.Request, now time.Time) map[string][]string {
	h := make(map[string][]string, len(r.Header)+5)
	for name, values := range r.Header {
		if !droppedInRequest(name) {
			h[name] = values
		}
	}
	for _, named := range r.Header["Connection"] {
		for name := range strings.SplitSeq(named, ",") {
			delete(h, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)))
		}
	}
	proto, port := "http", "80"
	if r.TLS != nil {
		proto, port = "https", "443"
	}
	if _, p, err := net.SplitHostPort(r.Host); err == nil {
		port = p
	}
	from := awsapi.SourceIP(r)
	if before := strings.Join(r.Header["X-Forwarded-For"], ", "); before != "" {
		from = before + ", " + from
	}
	h["Host"] = []string{r.Host}
	h["X-Forwarded-For"] = []string{from}
	h["X-Forwarded-Port"] = []string{port}
	h["X-Forwarded-Proto"] = []string{proto}
	if h["X-Amzn-Trace-Id"] == nil {
		h["X-Amzn-Trace-Id"] = []string{lambda.NewTraceID(now)}
	}
	return h
}

// droppedInRequest reports whether API Gateway drops a header of a request: one in the
// Lambda column of the table in "Amazon API Gateway important notes", or one that RFC 9110
// §7.6.1 calls connection-specific.
func droppedInRequest(name string) bool {
	switch name {
	case "Connection", "Content-Md5", "Expect", "Keep-Alive", "Max-Forwards", "Proxy-Authenticate",
		"Proxy-Connection", "Server", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Www-Authenticate":
		return true
	}
	return false
}

// responseHeader returns the name under which a header of the function reaches the client, or "" if
// API Gateway drops it. name must be canonical.
func responseHeader(name string) string {
	switch name {
	case "Authorization", "Connection", "Content-Md5", "Date", "Max-Forwards", "Server", "User-Agent",
		"Www-Authenticate", "X-Amzn-Requestid":
		return "X-Amzn-Remapped-" + name
	case "Expect", "Host", "Keep-Alive", "Proxy-Authenticate", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Via":
		return ""
	}
	return name
}

// responseHead is the head of a function's answer to a proxy event.
type responseHead struct {
	StatusCode        int                 `json:"statusCode"`
	Headers           map[string]string   `json:"headers"`
	MultiValueHeaders map[string][]string `json:"multiValueHeaders"`
	Cookies           []string            `json:"cookies"`
}

// errMalformed means that a function's answer does not have the form of a proxy
// integration.
var errMalformed = errors.New("malformed proxy response")

func parseHead(raw []byte) (*responseHead, error) {
	var head responseHead
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if head.StatusCode < 200 || head.StatusCode > 599 {
		return nil, fmt.Errorf("%w: status code %d", errMalformed, head.StatusCode)
	}
	return &head, nil
}

// readPrelude reads the head of a streamed answer into buf, which must have room for
// maxPrelude bytes. It returns the head and the first bytes of the body, which stay
// in buf.
func readPrelude(from io.Reader, buf []byte) (*responseHead, []byte, error) {
	n := 0
	for {
		k, err := from.Read(buf[n:])
		n += k
		if at := bytes.Index(buf[:min(n, maxPrelude)], []byte(preludeEnd)); at >= 0 {
			head, err := parseHead(buf[:at])
			return head, buf[at+len(preludeEnd) : n], err
		}
		switch {
		case n >= maxPrelude:
			return nil, nil, fmt.Errorf("%w: no end of the head in the first %d bytes", errMalformed, maxPrelude)
		case errors.Is(err, io.EOF):
			return nil, nil, fmt.Errorf("%w: the answer ended after %d bytes, before the end of its head", errMalformed, n)
		case err != nil:
			return nil, nil, err
		}
	}
}

// apply sets the function's headers in h, by the rules of API Gateway. A name in
// MultiValueHeaders replaces the same name in Headers. Without a Content-Type, the response
// gets that of JSON.
func (head *responseHead) apply(h http.Header) {
	several := make(map[string]bool, len(head.MultiValueHeaders))
	for name, values := range head.MultiValueHeaders {
		name = textproto.CanonicalMIMEHeaderKey(name)
		several[name] = true
		if to := responseHeader(name); to != "" {
			h[to] = append(h[to], values...)
		}
	}
	for name, value := range head.Headers {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if to := responseHeader(name); to != "" && !several[name] {
			h[to] = append(h[to], value)
		}
	}
	h["Set-Cookie"] = append(h["Set-Cookie"], head.Cookies...)
	if len(h["Set-Cookie"]) == 0 {
		delete(h, "Set-Cookie")
	}
	if len(h["Content-Type"]) == 0 {
		h["Content-Type"] = []string{"application/json"}
	}
}

// errTooLong means that a request's body is over the gateway's limit.
var errTooLong = errors.New("the request body is too long")

// readRequest reads the whole body, because the event contains all of it.
func readRequest(r *http.Request) ([]byte, error) {
	if r.ContentLength > maxRequestBody {
		return nil, errTooLong
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequestBody+1))
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	if len(body) > maxRequestBody {
		return nil, errTooLong
	}
	return body, nil
}
