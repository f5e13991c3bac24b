package transport

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// exchange is one HTTP request and its answer: what every transport needs.
type exchange struct {
	opts  *Options
	w     http.ResponseWriter
	r     *http.Request
	begun time.Time

	party
	session storage.ID
	id      json.RawMessage // id of the first request in the body; error responses carry it
	method  string          // method of that request, or else of the first message
	msgs    []wire.Message  // the messages of a POST; nil for other methods
	batch   bool            // the messages were posted as a batch
	read    bool            // an attempt was made to read the body
	status  int             // the status that was sent; 0: none yet
	sent    *counter        // counts the body of the answer; nil without a meter
	err     error           // what went wrong, even if the status reports success
	called  called
}

// saw looks for the end of a call among events, and records it for the log line.
func (x *exchange) saw(events []sessions.Event) {
	if x.called.tool == "" && x.r.Method != http.MethodGet || len(events) == 0 {
		return
	}
	if last := events[len(events)-1]; last.Final && len(last.Raw) > 0 {
		x.called.ends(last.Raw, x.opts.ShowErrors)
	}
}

func (x *exchange) ctx() context.Context { return x.r.Context() }

// detached returns a context for work that must be done even after the client has gone.
func (x *exchange) detached() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(x.ctx()), spare)
}

func (x *exchange) stop(call sessions.Stream, sent string) {
	ctx, cancel := x.detached()
	defer cancel()
	call.Stop(ctx, sent)
}

func (x *exchange) at(over storage.Transport) sessions.Endpoint {
	return x.opts.endpoint(x.party, over)
}

// until returns the time at which a response must end. The argument hold is how long it may be
// held open; the limits of the endpoint and of the request's context may be shorter.
func (x *exchange) until(hold time.Duration) time.Time {
	end := x.begun.Add(min(hold, x.opts.Limit))
	if limit, ok := x.ctx().Deadline(); ok {
		end = earlier(end, limit.Add(-spare))
	}
	return end
}

// spare is how long before the deadline of the request's context a response ends, so that there is
// time to end it well.
const spare = 2 * time.Second

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// json sends a complete answer in JSON.
func (x *exchange) json(status int, body []byte) { x.document(status, wire.MediaJSON, body) }

// document sends a whole answer of a media type.
func (x *exchange) document(status int, media string, body []byte) {
	x.w.Header().Set("Content-Type", media)
	if x.opts.AnswerFirst {
		x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	x.empty(status)
	// A client that has gone misses its answer; nothing can be done about it.
	if x.r.Method != http.MethodHead {
		_, _ = x.w.Write(body)
	}
	if x.opts.AnswerFirst {
		_ = http.NewResponseController(x.w).Flush()
	}
}

// empty answers without a body.
func (x *exchange) empty(status int) {
	x.status = status
	x.w.WriteHeader(status)
}

// commit begins an event stream. After it, no status can report an error.
func (x *exchange) commit() *stream {
	h := x.w.Header()
	h.Set("Content-Type", wire.MediaSSE)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	x.empty(http.StatusOK)
	return &stream{w: x.w, polls: polls(x)}
}

// polls reports whether the client comes back for the rest of a response, as clients of 2025-11-25 do
// (SEP-1699). Some clients of older versions fail at a priming event or a retry. A client that sends
// initialize has not negotiated a version, whatever its header says.
func polls(x *exchange) bool {
	return x.r.Header.Get(wire.HeaderProtocolVersion) == wire.V20251125 && !slices.ContainsFunc(x.msgs, isInitialize)
}

type counter struct {
	http.ResponseWriter
	bytes int
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.bytes += n
	return n, err
}

// Unwrap is for http.ResponseController.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
