package lambda

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

const (
	maxSyncPayload  = 6 << 20
	maxEventPayload = 1 << 20
	// eventTries is how often an event is handed to a function that fails: once and
	// two retries.
	eventTries = 3

	defaultRetryWait = time.Minute
	defaultEventAge  = 6 * time.Hour
)

// APIConfig describes the part of Lambda that functions and other services call.
// Invoker and Functions are required.
type APIConfig struct {
	Invoker   Invoker
	Functions []string // names of those there are
	// RetryWait is how long an event waits after its function has failed, and half
	// of how long after the second time; 0 means a minute. An event that found every
	// instance busy waits for a sixtieth of it, then twice as long each time, up to
	// five times RetryWait.
	RetryWait time.Duration
	// EventAge is how long an event is tried; 0 means 6 h.
	EventAge time.Duration
	Logger   *slog.Logger // may be nil
}

// API is Lambda's Invoke, as AWS's SDKs and EventBridge use it:
//
//	POST /2015-03-31/functions/<name or ARN>/invocations
//
// X-Amz-Invocation-Type says how: RequestResponse (and none) waits for the answer,
// Event is answered with 202 at once and handled in the background, DryRun with 204.
// An event is handled once or, when the function fails, up to three times, so a
// function must bear it twice. Failures are those of the AWS SDK:
// ResourceNotFoundException 404, InvalidRequestContentException 400 (the payload is
// not JSON), RequestTooLargeException 413 (6 MiB, 1 MiB for an event),
// TooManyRequestsException 429, InvalidParameterValueException 400,
// ServiceException 500. What the function itself did wrong is a 200 with
// X-Amz-Function-Error. API verifies no signature: whoever serves it authenticates
// the caller.
//
// Versions, aliases, logs in the answer, destinations and dead letters are not
// imitated.
type API struct {
	cfg APIConfig
	log *slog.Logger
	// ctx is that of all events; it ends when Close may wait no longer.
	ctx    context.Context
	cancel context.CancelFunc
	quit   chan struct{} // closed when no event is to be tried again

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // events under way

	events, lost atomic.Int64
}

var _ http.Handler = (*API)(nil)

// NewAPI returns an API that nothing runs for yet. It must be closed.
func NewAPI(cfg APIConfig) *API {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.RetryWait = cmp.Or(cfg.RetryWait, defaultRetryWait)
	cfg.EventAge = cmp.Or(cfg.EventAge, defaultEventAge)
	a := &API{cfg: cfg, log: cfg.Logger, quit: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// ServeHTTP implements [http.Handler].
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, ok := invokedFunction(r)
	switch {
	case !ok:
		awsapi.Fail(w, http.StatusNotFound, "UnknownOperationException", "")
		return
	case !slices.Contains(a.cfg.Functions, name):
		awsapi.Fail(w, http.StatusNotFound, "ResourceNotFoundException", "Function not found: "+FunctionARN(name))
		return
	}
	limit := maxSyncPayload
	kind := r.Header.Get("X-Amz-Invocation-Type")
	if kind == "Event" {
		limit = maxEventPayload
	}
	payload, err := io.ReadAll(io.LimitReader(r.Body, int64(limit)+1))
	switch {
	case err != nil:
		awsapi.Fail(w, http.StatusBadRequest, "InvalidRequestContentException", "The body could not be read")
		return
	case len(payload) > limit:
		awsapi.Fail(w, http.StatusRequestEntityTooLarge, "RequestTooLargeException", fmt.Sprintf("Request must be smaller than %d bytes for the InvokeFunction operation", limit))
		return
	case len(payload) == 0:
		payload = []byte("{}")
	case !json.Valid(payload):
		awsapi.Fail(w, http.StatusBadRequest, "InvalidRequestContentException", "Could not parse request body into json")
		return
	}
	a.invoke(w, r, kind, name, payload)
}

// invokedFunction takes the name out of the path.
func invokedFunction(r *http.Request) (name string, ok bool) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/2015-03-31/functions/")
	name, end := strings.CutSuffix(rest, "/invocations")
	name = strings.TrimPrefix(name, FunctionARN(""))
	return name, ok && end && r.Method == http.MethodPost && name != "" && !strings.Contains(name, "/")
}

func (a *API) invoke(w http.ResponseWriter, r *http.Request, kind, name string, payload []byte) {
	switch kind {
	case "", "RequestResponse":
		// As on Lambda, a caller that goes away does not end the invocation.
		answer, failed, err := call(context.WithoutCancel(r.Context()), a.cfg.Invoker, name, payload)
		a.answer(w, answer, failed, err)
	case "Event":
		if _, err := a.Send(name, payload); err != nil {
			a.answer(w, nil, nil, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	case "DryRun":
		w.WriteHeader(http.StatusNoContent)
	default:
		awsapi.Fail(w, http.StatusBadRequest, "InvalidParameterValueException", "Unknown invocation type")
	}
}

func (a *API) answer(w http.ResponseWriter, body []byte, failed *FunctionError, err error) {
	switch {
	case errors.Is(err, ErrThrottled):
		awsapi.Fail(w, http.StatusTooManyRequests, "TooManyRequestsException", "Rate Exceeded.")
	case err != nil:
		a.log.Warn("an invocation failed", "error", err)
		awsapi.Fail(w, http.StatusInternalServerError, "ServiceException", "")
	default:
		w.Header().Set("X-Amz-Executed-Version", "$LATEST")
		if failed != nil {
			w.Header().Set("X-Amz-Function-Error", "Unhandled")
			body, _ = json.Marshal(map[string]string{"errorType": failed.Type, "errorMessage": failed.Message}) // strings always encode
		}
		awsapi.JSON(w, http.StatusOK, body)
	}
}

// call invokes a function and reads its whole answer. What the function did wrong is
// not an error.
func call(ctx context.Context, in Invoker, name string, payload []byte) ([]byte, *FunctionError, error) {
	inv, err := in.Invoke(ctx, name, payload)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = inv.Body.Close() }()
	if inv.Failed != nil {
		return nil, inv.Failed, nil
	}
	body, err := io.ReadAll(io.LimitReader(inv.Body, maxSyncPayload+1))
	var failed *FunctionError
	switch {
	case errors.As(err, &failed):
		return nil, failed, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read the answer of function %s: %w", name, err)
	case len(body) > maxSyncPayload:
		return nil, &FunctionError{Function: name, Type: "Function.ResponseSizeTooLarge", Message: fmt.Sprintf("Response payload size exceeded maximum allowed payload size (%d bytes).", maxSyncPayload)}, nil
	}
	return body, nil, nil
}

// Send invokes a function asynchronously, as a caller does by the type Event. done
// is closed when the event was handled or given up. The error is [ErrClosed]. Send
// keeps payload, which must be JSON.
func (a *API) Send(function string, payload []byte) (done <-chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, fmt.Errorf("send an event to function %s: %w", function, ErrClosed)
	}
	end := make(chan struct{})
	a.events.Add(1)
	a.work.Go(func() {
		defer close(end)
		if err := a.handle(function, payload); err != nil {
			a.lost.Add(1)
			a.log.Warn("an event was given up", "function", function, "error", err)
		}
	})
	return end, nil
}

// handle tries an event until it is handled. The error is that of the last try.
func (a *API) handle(function string, payload []byte) error {
	until := time.Now().Add(a.cfg.EventAge)
	busy := a.cfg.RetryWait / 60
	for tries := 0; ; {
		_, failed, err := call(a.ctx, a.cfg.Invoker, function, payload)
		var wait time.Duration
		switch {
		case errors.Is(err, ErrThrottled):
			wait = busy
			busy = min(2*busy, 5*a.cfg.RetryWait)
		case err != nil:
			return err
		case failed == nil:
			return nil
		default:
			tries++
			if tries == eventTries {
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

// EventUsage is what became of the asynchronous invocations.
type EventUsage struct {
	Accepted int64
	Lost     int64 // given up after all tries
}

// Usage returns the counters as they are now.
func (a *API) Usage() EventUsage {
	return EventUsage{Accepted: a.events.Load(), Lost: a.lost.Load()}
}

// Close takes no events any more, gives up those that wait for another try, and
// returns when the last one under way has ended. When ctx ends first, it waits no
// longer and returns ctx's error; what has reached a function runs on.
func (a *API) Close(ctx context.Context) error {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.quit)
	}
	a.mu.Unlock()
	defer a.cancel()
	done := make(chan struct{})
	go func() {
		a.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("events were given up: %w", ctx.Err())
	}
}
