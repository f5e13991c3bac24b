// Package apigw imitates API Gateway in front of functions: a REST API, and the routes of a
// WebSocket API.
package apigw

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

const maxRequestBody = 10 << 20

// RESTAPI imitates a regional API Gateway REST API with the resources / and /{proxy+}, and the
// method ANY, integrated with functions in response transfer mode STREAM. The answer of a
// function is a head, 8 NUL bytes, and the body.
//
// These responses come from RESTAPI itself, always as {"message": …}:
//
//	400 Bad Request                   the body could not be read
//	413 Request Too Long              a body over 10 MiB
//	429 Too Many Requests             every instance of the function is busy
//	502 Internal server error         the function failed, or the event is over Lambda's
//	                                  6 MiB, or the answer does not have the required form
//
// If the function fails after it has sent the head, RESTAPI cuts the connection. If the client
// goes away, the function goes on, and RESTAPI drops the rest of its answer.
//
// Authorizers, stage variables, mapping, compression, throttling and timeouts of the gateway,
// buffered answers, and the bandwidth limit of streams over 10 MB are not imitated.
//
// All fields but Paths are required.
type RESTAPI struct {
	Function string // serves all paths that are not in Paths
	// Paths has the functions of other paths, by path. A path that ends with a slash stands
	// for all paths below it, as /path/{proxy+} does.
	Paths   map[string]string
	Invoker lambda.Invoker
	Stage   string // only in requestContext, not in the path
	APIID   string
	Logger  *slog.Logger
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
	a.integrate(w, r, id, payload)
}

func (a *RESTAPI) function(path string) string {
	if f := a.Paths[path]; f != "" {
		return f
	}
	for at, f := range a.Paths {
		if strings.HasSuffix(at, "/") && strings.HasPrefix(path, at) {
			return f
		}
	}
	return a.Function
}

// integrate runs the function and passes its answer on.
func (a *RESTAPI) integrate(w http.ResponseWriter, r *http.Request, id string, payload []byte) {
	inv, err := a.Invoker.Invoke(context.WithoutCancel(r.Context()), a.function(r.URL.Path), payload)
	if err != nil {
		a.fail(w, id, err)
		return
	}
	defer func() { _ = inv.Body.Close() }()
	if inv.Failed != nil {
		a.fail(w, id, inv.Failed)
		return
	}
	buf := make([]byte, 2*maxPrelude)
	head, first, err := readPrelude(inv.Body, buf)
	if err != nil {
		a.fail(w, id, err)
		return
	}
	head.apply(w.Header())
	w.WriteHeader(head.StatusCode)
	if err := pump(w, inv.Body, first, buf); err != nil {
		a.Logger.Warn("the answer of a function broke off", "function", a.Function, "request_id", id, "error", err)
		panic(http.ErrAbortHandler)
	}
}

// pump writes chunk, and then the rest of the answer, which it reads into buf. The error is that of
// reading; it is nil if the client has gone.
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

// fail responds with an error of the gateway. It must be called before any part of a response was
// sent.
func (a *RESTAPI) fail(w http.ResponseWriter, id string, err error) {
	status, text := http.StatusBadGateway, textInternal
	if errors.Is(err, lambda.ErrThrottled) {
		status, text = http.StatusTooManyRequests, "Too Many Requests"
	}
	a.Logger.Warn("an invocation failed", "function", a.Function, "request_id", id, "status", status, "error", err)
	awsapi.Refuse(w, status, text)
}
