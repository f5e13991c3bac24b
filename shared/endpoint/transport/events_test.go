package transport_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/apigateway"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// The session and the stream that the events in /events name.
const (
	eventSession = storage.ID("2kq8v4m1t7h3c9p5n0r6d2g8s4j1b7u3")
	eventStream  = storage.StreamID("06bk5gpt3sv7v4m1t7h3c9p5n0")
)

// eventWorld returns a world with eventSession, which is ready, and eventStream, which
// has ended.
func eventWorld(t *testing.T) *world {
	w := newWorld(t)
	w.opts.AllowedHosts = []string{"a1b2c3d4e5.execute-api.us-east-1.amazonaws.com"}
	w.opts.Servers = func(name string) (sessions.Server, bool) { return sessions.Server{Name: name}, name == "everything" }
	// These tests do not check the keys in the files.
	w.opts.Auth = principal(func(*http.Request) (string, error) { return "ada", nil })
	now := time.Now()
	err := w.store.Create(t.Context(), storage.Session{
		ID: eventSession, Server: "everything", Tenant: "tenant", Principal: "ada", Transport: storage.HTTP, State: storage.Ready,
		Version: wire.V20251125, Pushes: true, Created: now, Used: now, Expires: now.Add(7 * 24 * time.Hour),
	})
	commontest.OK(t, err)
	r := w.outside(eventSession)
	r.stream, r.requests = eventStream, []json.RawMessage{[]byte("1")}
	r.say("working")
	r.end(`{"content":[]}`)
	w.outside(eventSession).say("news")
	return w
}

func readEvent(t *testing.T, name string) events.APIGatewayProxyRequest {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "events", name+".json"))
	commontest.OK(t, err)
	var event events.APIGatewayProxyRequest
	commontest.OK(t, json.Unmarshal(raw, &event))
	return event
}

func TestEventsOfTheRESTAPIAreAnswered(t *testing.T) {
	tests := []struct {
		name    string
		status  int
		headers map[string]string // the value "*" stands for any value, but the header must be there
		body    []string          // in this order
	}{
		{"http-initialize", 200, map[string]string{"Content-Type": wire.MediaJSON, "Mcp-Session-Id": "*"}, []string{`"id":0,"result":{`}},
		{"http-post-tools-call", 200, map[string]string{"Content-Type": wire.MediaJSON}, []string{`{"jsonrpc":"2.0","id":2,"result":{"content":[]}}`}},
		{"http-get-listen", 200, map[string]string{"Content-Type": wire.MediaSSE}, []string{"\ndata: \n\n", said("news"), "retry: 2000\ndata: \n\n"}},
		{
			"http-get-resume", 200,
			map[string]string{"Content-Type": wire.MediaSSE},
			[]string{"id: 1.", "\ndata: \n\nid: 2/" + string(eventStream) + "\nevent: message\ndata: ", `"id":1,"result"`},
		},
		{"http-delete", 204, nil, nil},
		{"http-options", 204, map[string]string{
			"Access-Control-Allow-Origin": "https://a1b2c3d4e5.execute-api.us-east-1.amazonaws.com", "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := eventWorld(t)
			w.limits.Hold = 10 * time.Millisecond
			res, err := apigateway.HTTP(w.handler(), slog.New(slog.DiscardHandler))(t.Context(), readEvent(t, tt.name))
			commontest.OK(t, err)
			var body bytes.Buffer
			if _, err := body.ReadFrom(res.Body); err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != tt.status {
				t.Fatalf("got %d %s", res.StatusCode, body.String())
			}
			for name, want := range tt.headers {
				if got := res.Headers[name]; got != want && (want != "*" || got == "") {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			rest := body.String()
			for _, want := range tt.body {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Fatalf("%q is not in %q", want, rest)
				}
				rest = after
			}
			if len(tt.body) == 0 && rest != "" {
				t.Errorf("a body: %s", rest)
			}
		})
	}
}
