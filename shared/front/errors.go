package front

import (
	"context"
	"errors"
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// table says what each of our codes is to an HTTP client. It is the only place
// that does. A code that is not in it is Internal.
func table(code session.Code) (status int, rpc wire.Code) {
	switch code {
	case session.Invalid:
		return http.StatusBadRequest, wire.CodeInvalidRequest
	case session.Unauthenticated:
		return http.StatusUnauthorized, wire.CodeServer
	case session.Forbidden:
		return http.StatusForbidden, wire.CodeServer
	case session.NotFound:
		return http.StatusNotFound, wire.CodeSessionNotFound
	case session.Duplicate:
		return http.StatusConflict, wire.CodeInvalidRequest
	case session.Closed:
		return http.StatusMethodNotAllowed, wire.CodeServer
	case session.TooLarge:
		return http.StatusRequestEntityTooLarge, wire.CodeInvalidRequest
	case session.Busy:
		return http.StatusTooManyRequests, wire.CodeServer
	case session.Conflict, session.Fenced, session.Unavailable:
		return http.StatusServiceUnavailable, wire.CodeServer
	case session.Unknown:
		return http.StatusInternalServerError, wire.CodeOutcomeUnknown
	default:
		return http.StatusInternalServerError, wire.CodeInternal
	}
}

// problem is an answer that says no.
type problem struct {
	status int
	code   session.Code
	rpc    *wire.Error
	allow  string // the methods that are served, with 405
}

func (p *problem) Error() string { return p.rpc.Message }

// Unwrap lets session.CodeOf see the code.
func (p *problem) Unwrap() error { return p.code }

// refusal is a problem that is not in the table: a rung of the ladder with a
// status or a code of its own.
func refusal(status int, code session.Code, rpc wire.Code, message string) *problem {
	return &problem{status: status, code: code, rpc: &wire.Error{Code: rpc, Message: message}}
}

// notAllowed is 405, which has to name what is allowed.
func notAllowed(allow, message string) *problem {
	p := refusal(http.StatusMethodNotAllowed, session.Invalid, wire.CodeServer, message)
	p.allow = allow
	return p
}

// problemOf finds out how an error is answered. Only texts that are meant for
// clients come out of it.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var known *session.Error
	var rpc *wire.Error
	switch {
	case errors.As(err, &known): // whatever caused it
	case errors.As(err, &rpc):
		return &problem{status: http.StatusBadRequest, code: session.Invalid, rpc: rpc}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return refusal(http.StatusInternalServerError, session.Unknown, wire.CodeOutcomeUnknown, "the time for this request is over; whether it was executed is not known")
	}
	code := session.CodeOf(err)
	status, number := table(code)
	p = refusal(status, code, number, text(err, code))
	if status == http.StatusMethodNotAllowed {
		p.allow = methodsNoGet
	}
	return p
}

// text is what a client may read of an error.
func text(err error, code session.Code) string {
	var known *session.Error
	var id *session.EventIDError
	switch {
	case code == session.Internal:
		return "internal error; it has been logged"
	case errors.As(err, &known):
		return known.Message
	case errors.As(err, &id):
		return id.Error()
	case code == session.Unauthenticated:
		return "the request is not authenticated; send an Authorization header"
	case code == session.NotFound:
		return "there is no such session; send initialize to open one"
	default:
		return "the request could not be served (" + string(code) + "); try again"
	}
}

// refuse answers an error. Nothing may have been sent yet.
func (x *exchange) refuse(err error) {
	p := problemOf(err)
	if x.err = err; session.CodeOf(err) != p.code {
		x.err = p
	}
	h := x.w.Header()
	h.Del(wire.HeaderSessionID)
	if p.code == session.Unauthenticated {
		h.Set("WWW-Authenticate", challenge(x.r))
	}
	if p.status == http.StatusTooManyRequests && x.asks {
		x.json(http.StatusOK, wire.ErrorResponse(x.id, busy(p.rpc)))
		return
	}
	switch p.status {
	case http.StatusMethodNotAllowed:
		h.Set("Allow", p.allow)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	}
	x.json(p.status, wire.ErrorResponse(x.id, p.rpc))
}

// busy is the answer to a request for which there is no room. It is a response like
// any other: Python's client ends its whole session at a 429, and no client that we
// know looks at Retry-After.
func busy(rpc *wire.Error) *wire.Error {
	told := *rpc
	told.Data = struct {
		Seconds int `json:"retryAfterSeconds"`
	}{1}
	return &told
}

// passing says that a poll which met this error has to be told to come back
// later, whatever the table says: an error status ends the whole connection of
// some clients (P3).
func passing(err error) bool {
	status := problemOf(err).status
	return status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}
