package apigw

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

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
		commontest.OK(t, json.Unmarshal(payload, &top))
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
