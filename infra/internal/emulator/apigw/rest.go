// Package apigw imitates API Gateway in front of functions: a REST API, and the
// routes of a WebSocket API. It hides the form of the events that invoke a function,
// and of the answers.
package apigw

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

const (
	defaultRESTTimeout = 15 * time.Minute
	idleTimeout        = 5 * time.Minute // how long a stream may go without a byte until it is cut, as for a regional API
	maxRequestBody     = 10 << 20
)

// RESTConfig describes one REST API. Function and Invoker are required.
type RESTConfig struct {
	Function string
	// Paths are the functions of paths that have one of their own. A path that ends with a
	// slash stands for all paths below it, as /path/{proxy+} does.
	Paths   map[string]string
	Invoker lambda.Invoker
	Stage   string // only in requestContext, not in the path; "" means "local"
	APIID   string // "" means "local"
	// Timeout is the integration's timeout: from the request to the last byte of the
	// answer. 0 means 15 min, the maximum of a streaming integration.
	Timeout time.Duration
	Logger  *slog.Logger // may be nil
}

// RESTAPI imitates a regional API Gateway REST API with the resources / and /{proxy+}, and the
// method ANY, integrated with one function in response transfer mode STREAM. It takes
// answers of both kinds: streamed (a head, 8 NUL bytes, the body) and buffered (one JSON
// object).
//
// The gateway's own answers, always as {"message": …}:
//
//	413 Request Too Long              a body over 10 MiB
//	429 Too Many Requests             every instance of the function is busy
//	502 Internal server error         the function failed, or the event is over Lambda's
//	                                  6 MiB, or the answer does not have the required form
//	504 Endpoint request timed out    nothing to send when Timeout has passed
//
// After a failure that comes after the head, RESTAPI cuts the connection. If the client
// goes away, the function goes on; RESTAPI drops the rest of its answer.
//
// Authorizers, stage variables, mapping, compression, throttling by the gateway and the
// bandwidth limit of streams over 10 MB are not imitated.
type RESTAPI struct {
	cfg RESTConfig
	log *slog.Logger
}

var _ http.Handler = (*RESTAPI)(nil)

// NewRESTAPI returns the handler of one API. It needs no closing.
func NewRESTAPI(cfg RESTConfig) *RESTAPI {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Stage, cfg.APIID = cmp.Or(cfg.Stage, "local"), cmp.Or(cfg.APIID, "local")
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultRESTTimeout)
	return &RESTAPI{cfg: cfg, log: cfg.Logger}
}

// ServeHTTP handles one request to its end.
func (a *RESTAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	body, err := readRequest(r)
	if err != nil {
		if errors.Is(err, errTooLong) {
			// Part of the body is unread, so the connection cannot be used again.
			w.Header()["Connection"] = []string{"close"}
			awsapi.Refuse(w, http.StatusRequestEntityTooLarge, "Request Too Long")
			return
		}
		awsapi.Refuse(w, http.StatusBadRequest, "Bad Request")
		return
	}
	id, extended, headers := uuid.NewString(), awsapi.NewID(), requestHeaders(r, began)
	h := w.Header()
	h["X-Amzn-Requestid"] = []string{id}
	h["X-Amz-Apigw-Id"] = []string{extended}
	trace := headers["X-Amzn-Trace-Id"]
	h["X-Amzn-Trace-Id"] = trace[len(trace)-1:]
	payload, err := json.Marshal(a.event(r, body, headers, id, extended, began))
	if err == nil && len(payload) > maxEvent {
		err = fmt.Errorf("the event has %d bytes, Lambda takes %d", len(payload), maxEvent)
	}
	if err != nil {
		a.fail(w, id, err)
		return
	}
	a.integrate(w, r, id, payload, began)
}

func (a *RESTAPI) function(path string) string {
	if f := a.cfg.Paths[path]; f != "" {
		return f
	}
	for at, f := range a.cfg.Paths {
		if strings.HasSuffix(at, "/") && strings.HasPrefix(path, at) {
			return f
		}
	}
	return a.cfg.Function
}

// integrate runs the function and passes its answer on.
func (a *RESTAPI) integrate(w http.ResponseWriter, r *http.Request, id string, payload []byte, began time.Time) {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(r.Context()), began.Add(a.cfg.Timeout))
	inv, err := a.cfg.Invoker.Invoke(ctx, a.function(r.URL.Path), payload)
	cancel()
	if err != nil {
		a.fail(w, id, err)
		return
	}
	defer func() { _ = inv.Body.Close() }()
	if inv.Failed != nil {
		a.fail(w, id, inv.Failed)
		return
	}
	guard := newGuard(inv.Body, began.Add(a.cfg.Timeout))
	defer guard.stop()
	if inv.ContentType != streamingType {
		head, body, err := readBuffered(guard)
		if err != nil {
			a.fail(w, id, err)
			return
		}
		head.apply(w.Header())
		w.WriteHeader(head.StatusCode)
		_, _ = w.Write(body)
		return
	}
	buf := make([]byte, 2*maxPrelude)
	head, first, err := readPrelude(guard, buf)
	if err != nil {
		a.fail(w, id, err)
		return
	}
	head.apply(w.Header())
	w.WriteHeader(head.StatusCode)
	if err := pump(w, guard, first, buf); err != nil {
		a.log.Warn("the answer of a function broke off", "function", a.cfg.Function, "request_id", id, "error", err)
		panic(http.ErrAbortHandler)
	}
}

// pump copies the body as it arrives, and flushes each piece at once. It returns the error
// of the function's side. If the client has gone, it returns nil.
func pump(w http.ResponseWriter, from io.Reader, chunk, buf []byte) error {
	rc := http.NewResponseController(w)
	for err := error(nil); ; {
		if _, gone := w.Write(chunk); gone != nil {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if rc.Flush() != nil {
			return nil
		}
		var n int
		n, err = from.Read(buf)
		chunk = buf[:n]
	}
}

// fail sends the gateway's own answer when no part of the function's answer was sent.
// It logs the details that the client does not get.
func (a *RESTAPI) fail(w http.ResponseWriter, id string, err error) {
	status, text := http.StatusBadGateway, textInternal
	switch {
	case errors.Is(err, lambda.ErrThrottled):
		status, text = http.StatusTooManyRequests, "Too Many Requests"
	case errors.Is(err, context.DeadlineExceeded):
		status, text = http.StatusGatewayTimeout, textTimeout
	}
	a.log.Warn("an invocation failed", "function", a.cfg.Function, "request_id", id, "status", status, "error", err)
	awsapi.Refuse(w, status, text)
}

// guard reads a body under the limits of a stream. When a limit is exceeded, Read returns
// context.DeadlineExceeded and the body is closed.
type guard struct {
	body  io.ReadCloser
	until time.Time
	timer *time.Timer
	fired atomic.Bool
}

func newGuard(body io.ReadCloser, until time.Time) *guard {
	g := &guard{body: body, until: until}
	g.timer = time.AfterFunc(g.left(), func() {
		g.fired.Store(true)
		// Closing the body wakes the reader. The function goes on.
		_ = body.Close()
	})
	return g
}

func (g *guard) left() time.Duration { return min(idleTimeout, time.Until(g.until)) }

func (g *guard) Read(p []byte) (int, error) {
	n, err := g.body.Read(p)
	if err != nil && g.fired.Load() {
		return n, context.DeadlineExceeded
	}
	if n > 0 && !g.fired.Load() {
		g.timer.Reset(g.left())
	}
	return n, err
}

func (g *guard) stop() { g.timer.Stop() }
