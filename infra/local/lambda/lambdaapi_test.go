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

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

// tries is an Invoker whose function does one thing after the other, and the last
// one for ever.
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
	return &Invocation{Body: noBody{}, Failed: &FunctionError{Function: "f", Type: "errorString", Message: "no"}}, nil
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

// invokeRequest is one of the type kind.
func invokeRequest(t *testing.T, path, kind, body string) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://local"+path, strings.NewReader(body))
	if kind != "" {
		r.Header.Set("X-Amz-Invocation-Type", kind)
	}
	return r
}

const invokePath = "/2015-03-31/functions/f/invocations"

func TestInvokeGivesTheFunctionsAnswerBack(t *testing.T) {
	for _, path := range []string{invokePath, "/2015-03-31/functions/" + FunctionARN("f") + "/invocations"} {
		f := &tries{do: []func() (*Invocation, error){answers(`{"x":1}`)}}
		w := httptest.NewRecorder()
		newLambda(t, f).ServeHTTP(w, invokeRequest(t, path, "RequestResponse", `{"y":2}`))
		if w.Code != http.StatusOK || w.Body.String() != `{"x":1}` || w.Header().Get("X-Amz-Function-Error") != "" {
			t.Errorf("%s: %d %v %s", path, w.Code, w.Header(), w.Body)
		}
		if d := cmp.Diff([]string{`{"y":2}`}, f.payloads); d != "" {
			t.Errorf("payloads (-want +got):\n%s", d)
		}
	}
}

func TestInvokeTellsOfAFailedFunctionWith200(t *testing.T) {
	w := httptest.NewRecorder()
	newLambda(t, &tries{do: []func() (*Invocation, error){fails}}).ServeHTTP(w, invokeRequest(t, invokePath, "", "{}"))
	want := `{"errorMessage":"no","errorType":"errorString"}`
	if w.Code != http.StatusOK || w.Header().Get("X-Amz-Function-Error") != "Unhandled" || w.Body.String() != want {
		t.Errorf("%d %v %s, want 200, Unhandled, %s", w.Code, w.Header(), w.Body, want)
	}
}

func TestAnEventIsAcceptedBeforeItIsHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := &tries{do: []func() (*Invocation, error){func() (*Invocation, error) { <-release; return answers("null")() }}}
		a := newLambda(t, f)
		w := httptest.NewRecorder()
		a.ServeHTTP(w, invokeRequest(t, invokePath, "Event", `{"y":2}`))
		if w.Code != http.StatusAccepted || w.Body.Len() != 0 {
			t.Errorf("%d %s, want 202 without a body", w.Code, w.Body)
		}
		close(release)
		synctest.Wait()
		if d := cmp.Diff([]string{`{"y":2}`}, f.payloads); d != "" {
			t.Errorf("payloads (-want +got):\n%s", d)
		}
		if d := cmp.Diff(EventUsage{Accepted: 1}, a.Usage()); d != "" {
			t.Errorf("usage (-want +got):\n%s", d)
		}
	})
}

func TestAnEventIsTriedAsLambdaDoes(t *testing.T) {
	const m = time.Minute
	tests := map[string]struct {
		do    []func() (*Invocation, error)
		times []time.Duration
		lost  int64
	}{
		"handled":          {[]func() (*Invocation, error){answers("")}, []time.Duration{0}, 0},
		"failed once":      {[]func() (*Invocation, error){fails, answers("")}, []time.Duration{0, m}, 0},
		"failed always":    {[]func() (*Invocation, error){fails}, []time.Duration{0, m, 3 * m}, 1},
		"busy is no try":   {[]func() (*Invocation, error){throttles, throttles, fails, fails, answers("")}, []time.Duration{0, time.Second, 3 * time.Second, 63 * time.Second, 183 * time.Second}, 0},
		"no such function": {[]func() (*Invocation, error){func() (*Invocation, error) { return nil, ErrUnknownFunction }}, []time.Duration{0}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &tries{do: test.do}
				a := newLambda(t, f)
				done, err := a.Send("f", []byte("{}"))
				if err != nil {
					t.Fatal(err)
				}
				<-done
				if d := cmp.Diff(test.times, f.times); d != "" {
					t.Errorf("times of the tries (-want +got):\n%s", d)
				}
				if got := a.Usage().Lost; got != test.lost {
					t.Errorf("%d events lost, want %d", got, test.lost)
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
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
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
	throttled := &tries{do: []func() (*Invocation, error){throttles}}
	ok := &tries{do: []func() (*Invocation, error){answers("")}}
	request := func(path, kind, body string) *http.Request { return invokeRequest(t, path, kind, body) }
	get := request(invokePath, "", "")
	get.Method = http.MethodGet
	tests := map[string]struct {
		in      Invoker
		request *http.Request
		status  int
		kind    string
	}{
		"no such function":   {ok, request("/2015-03-31/functions/g/invocations", "Event", "{}"), 404, "ResourceNotFoundException"},
		"no such operation":  {ok, request("/2015-03-31/functions/f", "", "{}"), 404, "UnknownOperationException"},
		"GET":                {ok, get, 404, "UnknownOperationException"},
		"not JSON":           {ok, request(invokePath, "Event", "{"), 400, "InvalidRequestContentException"},
		"unknown type":       {ok, request(invokePath, "Later", "{}"), 400, "InvalidParameterValueException"},
		"event over 1 MiB":   {ok, request(invokePath, "Event", `"`+strings.Repeat("x", 1<<20)+`"`), 413, "RequestTooLargeException"},
		"request over 6 MiB": {ok, request(invokePath, "", `"`+strings.Repeat("x", 6<<20)+`"`), 413, "RequestTooLargeException"},
		"all busy":           {throttled, request(invokePath, "", "{}"), 429, "TooManyRequestsException"},
		"dry run":            {ok, request(invokePath, "DryRun", "{}"), 204, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			newLambda(t, test.in).ServeHTTP(w, test.request)
			if w.Code != test.status || w.Header().Get("X-Amzn-ErrorType") != test.kind {
				t.Errorf("%d %s, want %d %s", w.Code, w.Header().Get("X-Amzn-ErrorType"), test.status, test.kind)
			}
		})
	}
	if n := len(ok.times); n != 0 {
		t.Errorf("the function was invoked %d times", n)
	}
}

func TestAnEventReachesARealProcess(t *testing.T) {
	r := newRig(t, nil)
	a := NewAPI(APIConfig{Invoker: r.pool, Functions: r.pool.names, RetryWait: time.Millisecond})
	done, err := a.Send("echo", localtest.Payload(t, "hello", localtest.Query("mode", "echo")))
	if err != nil {
		t.Fatal(err)
	}
	localtest.Wait(t, done)
	if got := r.pool.Status()[0]; got.Invoked != 1 || got.Failed != 0 {
		t.Errorf("status = %+v", got)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
