package lambda

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// tries is an Invoker whose function has the given outcomes one after the other, and then
// repeats the last one.
type tries struct {
	do []func() (*Invocation, error)

	mu       sync.Mutex
	times    []time.Duration // of the invocations, since the first
	first    time.Time
	payloads []string
}

func (f *tries) Invoke(_ context.Context, _ string, payload []byte) (*Invocation, error) {
	f.mu.Lock()
	if f.first.IsZero() {
		f.first = time.Now()
	}
	n := len(f.times)
	f.times = append(f.times, time.Since(f.first))
	f.payloads = append(f.payloads, string(payload))
	f.mu.Unlock()
	return f.do[min(n, len(f.do)-1)]()
}

func answers(body string) func() (*Invocation, error) {
	return func() (*Invocation, error) { return &Invocation{Body: io.NopCloser(strings.NewReader(body))}, nil }
}

func fails() (*Invocation, error) {
	return &Invocation{Body: http.NoBody, Failed: &FunctionError{Function: "f", Type: "errorString", Message: "no"}}, nil
}

func throttles() (*Invocation, error) { return nil, ErrThrottled }

func newLambda(t *testing.T, in Invoker) *API {
	t.Helper()
	a := NewAPI(APIConfig{Invoker: in, Functions: []string{"f"}})
	t.Cleanup(func() {
		if err := a.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return a
}

// invokeRequest returns a request of the type kind.
func invokeRequest(t *testing.T, path, kind, body string) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://local"+path, strings.NewReader(body))
	if kind != "" {
		r.Header.Set("X-Amz-Invocation-Type", kind)
	}
	return r
}

const invokePath = "/2015-03-31/functions/f/invocations"

func TestAnEventIsAcceptedBeforeItIsHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := &tries{do: []func() (*Invocation, error){func() (*Invocation, error) { <-release; return answers("null")() }}}
		a := newLambda(t, f)
		w := httptest.NewRecorder()
		// A function names its own version when it invokes itself.
		a.ServeHTTP(w, invokeRequest(t, strings.Replace(invokePath, "/f/", "/f:$LATEST/", 1), "Event", `{"y":2}`))
		if w.Code != http.StatusAccepted || w.Body.Len() != 0 {
			t.Errorf("%d %s, want 202 without a body", w.Code, w.Body)
		}
		close(release)
		synctest.Wait()
		if d := cmp.Diff([]string{`{"y":2}`}, f.payloads); d != "" {
			t.Errorf("payloads (-want +got):\n%s", d)
		}
	})
}

func TestAnEventIsTriedAsLambdaDoes(t *testing.T) {
	const m = time.Minute
	tests := map[string]struct {
		do    []func() (*Invocation, error)
		times []time.Duration
	}{
		"handled":          {[]func() (*Invocation, error){answers("")}, []time.Duration{0}},
		"failed once":      {[]func() (*Invocation, error){fails, answers("")}, []time.Duration{0, m}},
		"failed always":    {[]func() (*Invocation, error){fails}, []time.Duration{0, m, 3 * m}},
		"busy is no try":   {[]func() (*Invocation, error){throttles, throttles, fails, fails, answers("")}, []time.Duration{0, time.Second, 3 * time.Second, 63 * time.Second, 183 * time.Second}},
		"no such function": {[]func() (*Invocation, error){func() (*Invocation, error) { return nil, io.EOF }}, []time.Duration{0}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &tries{do: test.do}
				done, err := newLambda(t, f).Send("f", []byte("{}"))
				commontest.OK(t, err)
				<-done
				if d := cmp.Diff(test.times, f.times); d != "" {
					t.Errorf("times of the tries (-want +got):\n%s", d)
				}
			})
		})
	}
}

func TestAnEventThatFindsEveryInstanceBusyIsGivenUpAfterSixHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a := newLambda(t, &tries{do: []func() (*Invocation, error){throttles}})
		done, err := a.Send("f", []byte("{}"))
		commontest.OK(t, err)
		<-done
		if took := time.Since(start); took > 6*time.Hour || took < 6*time.Hour-5*time.Minute {
			t.Errorf("given up after %v", took)
		}
	})
}

func TestCloseOfLambdaWaitsForWhatRunsAndForNoRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		slow := func() (*Invocation, error) { <-time.After(time.Second); return fails() }
		a := newLambda(t, &tries{do: []func() (*Invocation, error){slow}})
		done, err := a.Send("f", []byte("{}"))
		commontest.OK(t, err)
		synctest.Wait()
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
		<-done
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v", took)
		}
		if _, err := a.Send("f", []byte("{}")); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestInvokeRefusesWhatLambdaRefuses(t *testing.T) {
	f := &tries{do: []func() (*Invocation, error){answers("")}}
	get := invokeRequest(t, invokePath, "Event", "{}")
	get.Method = http.MethodGet
	for name, test := range map[string]struct {
		request *http.Request
		status  int
		kind    string
	}{
		"no such function":  {invokeRequest(t, "/2015-03-31/functions/g/invocations", "Event", "{}"), 404, "ResourceNotFoundException"},
		"no such operation": {invokeRequest(t, "/2015-03-31/functions/f", "Event", "{}"), 404, "UnknownOperationException"},
		"GET":               {get, 404, "UnknownOperationException"},
		"not JSON":          {invokeRequest(t, invokePath, "Event", "{"), 400, "InvalidRequestContentException"},
		"another type":      {invokeRequest(t, invokePath, "RequestResponse", "{}"), 400, "InvalidParameterValueException"},
		"over 1 MiB":        {invokeRequest(t, invokePath, "Event", `"`+strings.Repeat("x", 1<<20)+`"`), 413, "RequestTooLargeException"},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			newLambda(t, f).ServeHTTP(w, test.request)
			if w.Code != test.status || w.Header().Get("X-Amzn-ErrorType") != test.kind {
				t.Errorf("%s: %d %s, want %d %s", name, w.Code, w.Header().Get("X-Amzn-ErrorType"), test.status, test.kind)
			}
		})
	}
	if n := len(f.times); n != 0 {
		t.Errorf("the function was invoked %d times", n)
	}
}
