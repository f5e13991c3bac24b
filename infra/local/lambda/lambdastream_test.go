package lambda

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/front"
	"github.com/dormouse-mcp/dormouse/shared/native"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// noting is a function that notes what it was invoked with, and answers by a handler.
type noting struct {
	h        http.Handler
	payloads []string
}

func (n *noting) Invoke(ctx context.Context, _ string, payload []byte) (*Invocation, error) {
	n.payloads = append(n.payloads, string(payload))
	var e events.APIGatewayProxyRequest
	if err := json.Unmarshal(payload, &e); err != nil {
		return nil, err
	}
	res, err := front.Lambda(n.h)(ctx, e)
	return &Invocation{ContentType: "application/vnd.awslambda.http-integration-response", Body: io.NopCloser(res)}, err
}

func TestAnAnswerOfAFunctionIsReadWhileItIsWritten(t *testing.T) {
	read := make(chan struct{})
	f := &noting{h: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Path", r.URL.Path)
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(body)
		_ = http.NewResponseController(w).Flush()
		<-read
		_, _ = w.Write([]byte(" and the rest"))
	})}
	api := httptest.NewServer(newLambda(t, f))
	defer api.Close()
	calls := native.Lambda(native.LambdaConfig{Endpoint: api.URL, Function: FunctionARN("f"), Caller: session.Identity{Tenant: "acme", Principal: "ada"}})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/demo/mcp?a=1", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := calls.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	begun := make([]byte, len("hello"))
	if _, err := io.ReadFull(res.Body, begun); err != nil {
		t.Fatal(err)
	}
	close(read)
	rest, err := io.ReadAll(res.Body)
	if got := string(begun) + string(rest); err != nil || got != "hello and the rest" || res.StatusCode != http.StatusAccepted || res.Header.Get("X-Path") != "/demo/mcp" {
		t.Errorf("%q, %v, status %d, headers %v", got, err, res.StatusCode, res.Header)
	}
	if len(f.payloads) != 1 || !strings.Contains(f.payloads[0], `"dormouseCaller":{"tenant":"acme","principal":"ada"}`) {
		t.Errorf("invoked with %v", f.payloads)
	}
}

func TestAFunctionThatFailsBreaksItsStreamOff(t *testing.T) {
	api := httptest.NewServer(newLambda(t, &tries{do: []func() (*Invocation, error){fails}}))
	defer api.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/demo/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := native.Lambda(native.LambdaConfig{Endpoint: api.URL, Function: "f"}).RoundTrip(r)
	if err == nil {
		_ = res.Body.Close()
		t.Fatalf("status %d", res.StatusCode)
	}
	if !strings.Contains(err.Error(), "errorString: no") {
		t.Errorf("%v, want what the function said", err)
	}
}
