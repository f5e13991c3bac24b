package front

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// reply is the response to one modern request. It is plain JSON, with a status, if
// the answer is the first that there is to say and comes before a client could
// take the silence for a failure; else an event stream.
type reply struct {
	x     *exchange
	id    []byte
	end   time.Time // when it has to be over
	alive time.Time // when there has to be a sign of life
	task  time.Time // when the call becomes a task, if it has been accepted; zero for never
	out   *stream   // nil while nothing has been sent
}

func (x *exchange) reply(req bridge.Request) *reply {
	return &reply{x: x, id: req.ID, end: x.until(x.opts.Limit), alive: x.begun.Add(x.opts.KeepAlive)}
}

var (
	// errGone: the client has closed the response.
	errGone = fmt.Errorf("the client has closed the response: %w", context.Canceled)
	// errOver: the call is over, and what it came to is not kept.
	errOver = &wire.Error{Code: wire.CodeInvalidParams, Message: "the call is over and its result is not kept; send the request anew"}
	// errForgotten: what a client was asked is not in the log any more, so that it
	// cannot be asked again.
	errForgotten = &wire.Error{Code: wire.CodeInvalidParams, Message: "what was asked is not kept any more; send the request anew"}
	// errLate: the response cannot be held any longer, and there is no other way to
	// get at the result.
	errLate = &wire.Error{Code: wire.CodeInternal, Message: "the call took longer than a response can be held here; it was cancelled"}
)

// next returns the next events of a call, at least one, and shows meanwhile that
// somebody is there. It fails with errTask when the call is to become a task.
func (r *reply) next(call *host.Call) ([]session.Event, error) {
	for {
		until := earlier(r.end, r.alive)
		// What is executed in this very function ends with it.
		mayLeave := !r.task.IsZero() && !call.Held()
		if mayLeave {
			until = earlier(until, r.task)
		}
		events, err := r.until(call, until)
		switch {
		case err != nil || len(events) > 0:
			return events, err
		case call.Done():
			return nil, errOver
		case mayLeave && !time.Now().Before(r.task):
			return nil, errTask
		case !time.Now().Before(r.end):
			return nil, errLate
		}
		if !time.Now().Before(r.alive) {
			if err := r.comment(); err != nil {
				return nil, err
			}
		}
	}
}

// wait waits for something to hear, and shows meanwhile that somebody is there.
func (r *reply) wait(hear <-chan heard) (heard, error) {
	for {
		timer := time.NewTimer(time.Until(earlier(r.end, r.alive)))
		select {
		case h := <-hear:
			timer.Stop()
			return h, nil
		case <-r.x.ctx().Done():
			timer.Stop()
			return heard{}, errGone
		case <-timer.C:
		}
		if !time.Now().Before(r.end) {
			return heard{}, errLate
		}
		if err := r.comment(); err != nil {
			return heard{}, err
		}
	}
}

// until returns what comes of a call until then.
func (r *reply) until(call *host.Call, then time.Time) ([]session.Event, error) {
	events, err := call.Next(r.x.ctx(), then)
	if err != nil && errors.Is(r.x.ctx().Err(), context.Canceled) {
		return nil, errGone
	}
	return events, err
}

// begin makes the response an event stream.
func (r *reply) begin() {
	if r.out == nil {
		r.out = r.x.commit()
	}
}

func (r *reply) comment() error {
	r.begin()
	r.out.comment("keep-alive")
	return r.flush()
}

// notify sends a message in front of the answer.
func (r *reply) notify(raw []byte) error {
	r.begin()
	r.out.message(raw)
	return r.flush()
}

func (r *reply) flush() error {
	r.alive = time.Now().Add(r.x.opts.KeepAlive)
	if err := r.out.flush(); err != nil {
		return errGone
	}
	return nil
}

// finish sends the answer; code is that of an error, 0 for a result.
func (r *reply) finish(raw []byte, code wire.Code) {
	if r.out == nil {
		r.x.json(statusOf(code), raw)
		return
	}
	r.out.message(raw)
	_ = r.out.flush() // a client that has gone misses its answer, and there is nobody to tell
}

// fail ends a response with an error. It returns one that has not been answered:
// there is a table for those.
func (r *reply) fail(err error) error {
	var rpc *wire.Error
	switch {
	case errors.Is(err, errGone) && r.out != nil:
		return nil
	case errors.As(err, &rpc):
	case r.out == nil:
		return err
	default:
		rpc = problemOf(err).rpc
	}
	r.x.err = err
	r.finish(wire.ErrorResponse(r.id, rpc), rpc.Code)
	return nil
}

// message adds a message as the modern era frames it: it has no id, because there
// is no coming back.
func (s *stream) message(raw []byte) {
	s.buf = wire.AppendSSE(s.buf, wire.SSE{Name: "message", Data: raw})
}

// statusOf is the status of an error that is answered as plain JSON. Those that MCP
// names no status for are answers like others (MCP 2026-07-28, basic/transports,
// "Errors").
func statusOf(code wire.Code) int {
	switch code {
	case wire.CodeMethodNotFound:
		return http.StatusNotFound
	case wire.CodeParse, wire.CodeInvalidRequest, wire.CodeInvalidParams,
		wire.CodeHeaderMismatch, wire.CodeMissingCapability, wire.CodeUnsupportedVersion:
		return http.StatusBadRequest
	default:
		return http.StatusOK
	}
}
