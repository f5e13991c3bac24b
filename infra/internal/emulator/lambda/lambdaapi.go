package lambda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

// APIConfig describes the part of Lambda that functions and other services call. All fields but
// Tenants and Ended are required.
type APIConfig struct {
	Pool    *Pool
	Tenants bool // the functions have tenant isolation
	// RetryWait is how long an event waits after the first failure of its function;
	// after the second it waits twice as long. If every instance is busy, an event waits for
	// a sixtieth of RetryWait, then twice as long each time, up to five times RetryWait.
	RetryWait time.Duration
	Tries     int           // how often the API tries an event whose function fails
	EventAge  time.Duration // how long the API keeps trying an event
	// Ended is called after each invocation, unless Ended is nil. The argument failed is nil if the
	// function did not fail.
	Ended  func(payload, answer []byte, failed error)
	Logger *slog.Logger
}

// API is Lambda's Invoke, as AWS's SDKs and EventBridge use it:
//
//	POST /2015-03-31/functions/<name or ARN>/invocations
//
// It serves only X-Amz-Invocation-Type Event: it answers 202 at once and handles the event in the
// background, up to [APIConfig].Tries times if the function fails. Errors are those of AWS. A
// function with tenants refuses an event if no process is free for the tenant and no more may be
// started. API does not verify the signatures of requests: the server that serves it must
// authenticate callers.
type API struct {
	cfg APIConfig
	// ctx is the context of all invocations. Close cancels it when it returns.
	ctx    context.Context
	cancel context.CancelFunc
	quit   chan struct{} // closed by Close; then no failed event is tried again

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // events that are being handled
}

// NewAPI returns an API without events. It must be closed.
func NewAPI(cfg APIConfig) *API {
	a := &API{cfg: cfg, quit: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// ServeHTTP implements [http.Handler].
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, _ := strings.CutPrefix(r.URL.Path, "/2015-03-31/functions/")
	name, _ := strings.CutSuffix(rest, "/invocations")
	name, _, _ = strings.Cut(strings.TrimPrefix(name, aws.FunctionARN("")), ":") // cuts off a version
	tenant := r.Header.Get("X-Amz-Tenant-Id")
	payload, err := io.ReadAll(r.Body)
	switch {
	case a.cfg.Pool.functions[name] == nil:
		aws.Fail(w, http.StatusNotFound, "ResourceNotFoundException", "Function not found: "+aws.FunctionARN(name))
	case err != nil || !json.Valid(payload):
		aws.Fail(w, http.StatusBadRequest, "InvalidRequestContentException", "Could not parse request body into json")
	case r.Header.Get("X-Amz-Invocation-Type") != "Event":
		aws.Fail(w, http.StatusBadRequest, "InvalidParameterValueException", "Only the invocation type Event is served here")
	case a.cfg.Tenants && tenant == "":
		aws.Fail(w, http.StatusBadRequest, "InvalidParameterValueException", "Tenant ID is required for a function with tenant isolation")
	case a.cfg.Tenants && a.cfg.Pool.Full(name, tenant):
		aws.Fail(w, http.StatusTooManyRequests, "TooManyRequestsException", "Rate Exceeded.")
	default:
		if _, err := a.send(event{name, tenant, payload}); err != nil {
			aws.Fail(w, http.StatusInternalServerError, "ServiceException", "")
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}
}

type event struct {
	function, tenant string
	payload          []byte
}

// call invokes a function and reads its answer to the end. The result failed says why the function
// failed, and err why it was not invoked.
func (a *API) call(e event) (failed, err error) {
	inv, err := a.cfg.Pool.InvokeFor(a.ctx, e.function, e.tenant, e.payload)
	if err != nil {
		return nil, err
	}
	defer func() { _ = inv.Body.Close() }()
	answer, broken := io.ReadAll(inv.Body)
	failed = errors.Join(inv.Failed, broken)
	if a.cfg.Ended != nil {
		a.cfg.Ended(e.payload, answer, failed)
	}
	return failed, nil
}

// Send invokes a function asynchronously, like a request of type Event. It closes done
// when the event was handled, or after the last try has failed. The only error is [ErrClosed].
func (a *API) Send(function string, payload []byte) (done <-chan struct{}, err error) {
	return a.send(event{function: function, payload: payload})
}

func (a *API) send(e event) (done <-chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, fmt.Errorf("send an event to function %s: %w", e.function, ErrClosed)
	}
	end := make(chan struct{})
	a.work.Go(func() {
		defer close(end)
		if err := a.handle(e); err != nil {
			a.cfg.Logger.Warn("an event was given up", "function", e.function, "error", err)
		}
	})
	return end, nil
}

// handle tries an event until the function succeeds or the tries are used up.
func (a *API) handle(e event) error {
	until := time.Now().Add(a.cfg.EventAge)
	throttled := a.cfg.RetryWait / 60
	for tries := 0; ; {
		failed, err := a.call(e)
		var wait time.Duration
		switch {
		case errors.Is(err, ErrThrottled):
			wait = throttled
			throttled = min(2*throttled, 5*a.cfg.RetryWait)
		case err != nil:
			return err
		case failed == nil:
			return nil
		default:
			if tries++; tries == a.cfg.Tries {
				return failed
			}
			wait, err = time.Duration(tries)*a.cfg.RetryWait, failed
		}
		if time.Now().Add(wait).After(until) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-a.quit:
			return err
		}
	}
}

// Close refuses new events, gives up events that wait for another try, and waits until the others
// are handled. If ctx ends first, it returns ctx's error at once. Invocations that have reached
// a function go on.
func (a *API) Close(ctx context.Context) error {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.quit)
	}
	a.mu.Unlock()
	defer a.cancel()
	if err := awsapi.Wait(ctx, &a.work); err != nil {
		return fmt.Errorf("events were given up: %w", err)
	}
	return nil
}
