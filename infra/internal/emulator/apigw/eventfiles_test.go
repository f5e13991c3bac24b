package apigw

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// The files of events/ are events from AWS. This test repeats the client's part of each
// one. It compares the emulator's event with the file, field by field. Fields that have
// other values are listed by name; they must exist and have the same kind.

// elsewhere lists the fields whose values an emulator cannot have: names and times.
var elsewhere = []string{
	"requestContext.requestId", "requestContext.extendedRequestId", "requestContext.requestTime", "requestContext.requestTimeEpoch",
	"requestContext.accountId", "requestContext.resourceId", "requestContext.deploymentId",
	"requestContext.connectedAt", "requestContext.connectionId", "requestContext.messageId",
}

// onThePath is the field of the path. Through a custom domain, as in these tests, it has
// no stage.
const onThePath = "requestContext.path"

type eventFile struct {
	HTTPMethod                      string
	Path                            string
	Headers                         map[string]string
	MultiValueQueryStringParameters url.Values
	Body                            string
	IsBase64Encoded                 bool
	RequestContext                  struct {
		RouteKey, APIID, Stage, DisconnectReason string
		DisconnectStatusCode                     int
		Identity                                 struct{ SourceIP, UserAgent string }
	}
}

func readEvents(t *testing.T, pattern string) map[string][]byte {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("..", "..", "..", "..", "events", pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("no events %s, %v", pattern, err)
	}
	all := map[string][]byte{}
	for _, name := range found {
		if all[filepath.Base(name)], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func parseEvent(t *testing.T, raw []byte) (f eventFile) {
	t.Helper()
	commontest.OK(t, json.Unmarshal(raw, &f))
	return f
}

// sentByClient returns the headers that the gateway did not add.
func (f eventFile) sentByClient() http.Header {
	h := http.Header{}
	for name, value := range f.Headers {
		if name != "Host" && name != "X-Forwarded-For" && name != "X-Forwarded-Port" && name != "X-Forwarded-Proto" {
			h.Set(name, value)
		}
	}
	return h
}

// kept is an Invoker that keeps the events and answers 200.
type kept struct{ events chan []byte }

func (k kept) Invoke(_ context.Context, _ string, payload []byte) (*lambda.Invocation, error) {
	k.events <- bytes.Clone(payload)
	return &lambda.Invocation{Body: io.NopCloser(strings.NewReader(`{"statusCode":200}`))}, nil
}

func TestEventsOfTheRESTAPIAreThoseOfAWS(t *testing.T) {
	for name, raw := range readEvents(t, "http-*.json") {
		t.Run(name, func(t *testing.T) {
			f := parseEvent(t, raw)
			body := []byte(f.Body)
			if f.IsBase64Encoded {
				var err error
				if body, err = base64.StdEncoding.DecodeString(f.Body); err != nil {
					t.Fatal(err)
				}
			}
			target := "https://" + f.Headers["Host"] + f.Path
			if q := f.MultiValueQueryStringParameters; len(q) > 0 {
				target += "?" + q.Encode()
			}
			r := httptest.NewRequestWithContext(t.Context(), f.HTTPMethod, target, bytes.NewReader(body))
			r.Header, r.TLS, r.RemoteAddr = f.sentByClient(), &tls.ConnectionState{}, f.RequestContext.Identity.SourceIP+":50000"
			k := kept{make(chan []byte, 1)}
			api := &RESTAPI{Function: "http", Invoker: k, Stage: f.RequestContext.Stage, APIID: f.RequestContext.APIID, Logger: slog.New(slog.DiscardHandler)}
			api.ServeHTTP(httptest.NewRecorder(), r)
			same(t, raw, <-k.events, append(slices.Clone(elsewhere), onThePath))
		})
	}
}

func TestEventsOfWebSocketAPIsAreThoseOfAWS(t *testing.T) {
	// These fields differ: the emulator has another address, and the test's WebSocket
	// library sends another upgrade request.
	connect := []string{
		"requestContext.domainName", "headers.Host", "multiValueHeaders.Host", "headers.X-Amzn-Trace-Id", "multiValueHeaders.X-Amzn-Trace-Id",
		"headers.X-Forwarded-For", "multiValueHeaders.X-Forwarded-For", "headers.X-Forwarded-Port", "multiValueHeaders.X-Forwarded-Port",
		"headers.X-Forwarded-Proto", "multiValueHeaders.X-Forwarded-Proto", "headers.Sec-Websocket-Key", "multiValueHeaders.Sec-Websocket-Key",
		"requestContext.identity.sourceIp",
		"requestContext.disconnectReason", // AWS has its own text for an end without a close frame
	}
	all := readEvents(t, "socket-*.json")
	maps.Copy(all, readEvents(t, "relay-*.json"))
	delete(all, "socket-push.json") // no API sends this event
	for name, raw := range all {
		t.Run(name, func(t *testing.T) {
			f := parseEvent(t, raw)
			api, _, _ := strings.Cut(name, "-")
			opening := f
			if f.RequestContext.RouteKey != "$connect" {
				opening = parseEvent(t, all[api+"-connect.json"])
			}
			k := kept{make(chan []byte, 3)}
			got := f.replay(t, k, opening)
			same(t, raw, got, append(slices.Clone(elsewhere), connect...))
		})
	}
}

// replay opens a connection and repeats on it what the event reports.
func (f eventFile) replay(t *testing.T, k kept, opening eventFile) []byte {
	t.Helper()
	api := sockets.New(sockets.Config{
		Name: f.RequestContext.APIID, Stage: f.RequestContext.Stage, Limits: Limits(),
		Routes: SocketRoutes{f.RequestContext.APIID, f.RequestContext.Stage, "f", k, slog.New(slog.DiscardHandler)},
	})
	server := httptest.NewServer(api)
	defer server.Close()
	defer func() { _ = api.Close(context.WithoutCancel(t.Context())) }()
	h := opening.sentByClient()
	protocols := h.Values("Sec-WebSocket-Protocol")
	for _, own := range []string{"Sec-Websocket-Protocol", "Sec-Websocket-Key", "Sec-Websocket-Version", "X-Amzn-Trace-Id"} {
		h.Del(own)
	}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}} // adds no header of its own
	target := server.URL + "/" + f.RequestContext.Stage + "?" + opening.MultiValueQueryStringParameters.Encode()
	conn, _, err := websocket.Dial(t.Context(), target, &websocket.DialOptions{HTTPClient: client, HTTPHeader: h, Subprotocols: protocols}) //nolint:bodyclose // Dial says that it never needs to be
	commontest.OK(t, err)
	defer func() { _ = conn.CloseNow() }()
	event := <-k.events
	switch f.RequestContext.RouteKey {
	case "$default":
		commontest.OK(t, conn.Write(t.Context(), websocket.MessageText, []byte(f.Body)))
		event = <-k.events
	case "$disconnect":
		if f.RequestContext.DisconnectStatusCode == 1006 {
			_ = conn.CloseNow() // without a close frame
		} else {
			go func() {
				_ = conn.Close(websocket.StatusCode(f.RequestContext.DisconnectStatusCode), f.RequestContext.DisconnectReason)
			}()
		}
		event = <-k.events
	}
	return event
}

// same compares the file with the event that was sent. Header names match without
// case.
func same(t *testing.T, file, sent []byte, differ []string) {
	t.Helper()
	want, got := map[string]any{}, map[string]any{}
	for into, raw := range map[*map[string]any][]byte{&want: file, &got: sent} {
		var v any
		commontest.OK(t, json.Unmarshal(raw, &v))
		flatten(*into, "", v)
	}
	for _, name := range differ {
		w, wants := want[name]
		g, has := got[name]
		if wants != has || wants && kindOf(w) != kindOf(g) {
			t.Errorf("%s: the file has %v (%t), sent was %v (%t)", name, w, wants, g, has)
		}
		if strings.HasSuffix(name, "requestTime") {
			for _, at := range []any{w, g} {
				if _, err := time.Parse(requestTime, at.(string)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		delete(want, name)
		delete(got, name)
	}
	commontest.SameIn(t, "file (-) and emulator (+)", want, got)
}

// flatten adds every value under its path; lists count as values.
func flatten(into map[string]any, path string, v any) {
	m, ok := v.(map[string]any)
	if !ok || len(m) == 0 {
		into[path] = v
		return
	}
	for name, member := range m {
		if path == "headers" || path == "multiValueHeaders" {
			name = http.CanonicalHeaderKey(name)
		}
		at := name
		if path != "" {
			at = path + "." + name
		}
		flatten(into, at, member)
	}
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case float64:
		return "number"
	case []any:
		return "list"
	}
	return "other"
}
