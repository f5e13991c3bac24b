package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// reply is the response to one modern request. If the answer comes within KeepAlive, and no
// message comes before it, the response is plain JSON with a status. Any other response is an
// event stream, because a client could take a longer silence for a failure.
type reply struct {
	x     *exchange
	ctx   context.Context
	view  func(raw []byte) []byte // translates messages for the client
	id    []byte
	end   time.Time // when the response must be over
	alive time.Time // when the next comment is due
	task  time.Time // when the call becomes a task, unless this instance executes it; zero: never
	out   *stream   // nil: nothing has been sent
}

func newReply(m modern) *reply {
	x := m.x
	return &reply{x: x, ctx: m.ctx, view: m.seen, id: m.req.ID, end: x.until(x.opts.Limit), alive: x.begun.Add(x.opts.KeepAlive)}
}

var (
	errGone = fmt.Errorf("the client has closed the response: %w", context.Canceled)
	// errOver: the client came back for the result of a call after it was deleted.
	errOver = &wire.Error{Code: wire.CodeInvalidParams, Message: "the call has ended and its result is deleted; send the request again"}
	// errForgotten: the log no longer has the questions, so the client cannot be asked
	// again.
	errForgotten = &wire.Error{Code: wire.CodeInvalidParams, Message: "the questions of this request are deleted; send the request again"}
	// errLate: the response cannot be held any longer, and the client cannot get the
	// result in any other way.
	errLate = &wire.Error{Code: wire.CodeInternal, Message: "the call took longer than a response can be held here; it was cancelled"}
)

// next returns the next events of a call, at least one. In a silence it sends comments. It
// returns errTask when the call is to become a task.
func (r *reply) next(call *sessions.Call) ([]storage.Event, error) {
	for {
		until := earlier(r.end, r.alive)
		// The call may become a task only if a box executes it. If this process executes the
		// call, the response must stay open; see [sessions.Call.Held].
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

// waitFor returns the next value from a channel. In a silence it sends comments on the response.
// Errors: errGone, errLate.
func waitFor[T any](r *reply, from <-chan T) (next T, err error) {
	for {
		timer := time.NewTimer(time.Until(earlier(r.end, r.alive)))
		select {
		case next = <-from:
			timer.Stop()
			return next, nil
		case <-r.ctx.Done():
			timer.Stop()
			return next, errGone
		case <-timer.C:
		}
		if !time.Now().Before(r.end) {
			return next, errLate
		}
		if err := r.comment(); err != nil {
			return next, err
		}
	}
}

// until waits for the next events of a call and returns them. If deadline passes first, it
// returns none. It returns errGone if the client has gone away.
func (r *reply) until(call *sessions.Call, deadline time.Time) ([]storage.Event, error) {
	events, err := call.Next(r.ctx, deadline)
	if err != nil && errors.Is(r.ctx.Err(), context.Canceled) {
		return nil, errGone
	}
	return events, err
}

// mute reports whether the client takes no event stream.
func (r *reply) mute() bool { return !takesStreams(r.x) }

// begin makes the response an event stream.
func (r *reply) begin() {
	if r.out == nil {
		r.out = r.x.commit()
	}
}

func (r *reply) comment() error {
	if r.mute() {
		r.alive = time.Now().Add(r.x.opts.KeepAlive)
		return nil
	}
	r.begin()
	r.out.comment("keep-alive")
	return r.flush()
}

// notify sends a message before the answer.
func (r *reply) notify(raw []byte) error {
	if r.mute() {
		return nil
	}
	r.begin()
	r.out.message("", r.view(raw))
	return r.flush()
}

func (r *reply) flush() error {
	r.alive = time.Now().Add(r.x.opts.KeepAlive)
	if err := r.out.flush(); err != nil {
		return errGone
	}
	return nil
}

// finish sends the answer. The argument code is the code of an error, 0 for a result.
func (r *reply) finish(raw []byte, code wire.Code) {
	raw = r.view(raw)
	if r.out == nil {
		r.x.json(statusOf(code), raw)
		return
	}
	r.out.message("", raw)
	_ = r.out.flush() // it does not matter if the client has gone
}

// fail ends the response with the error err. If fail cannot send err, it returns err.
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

// statusOf returns the HTTP status of an error that is sent as plain JSON. It is 200
// for errors for which MCP names no status (MCP 2026-07-28, basic/transports,
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

// errTask says that the call was accepted, and must become a task now.
var errTask = errors.New("the call becomes a task")
