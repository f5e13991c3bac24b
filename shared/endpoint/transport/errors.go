package transport

import (
	"context"
	"errors"
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// The methods that addresses serve, for the header Allow.
const (
	methods        = "GET, POST, DELETE, OPTIONS"
	methodsNoGet   = "POST, DELETE, OPTIONS" // the server has nothing to push
	methodsModern  = "POST, OPTIONS"         // the modern era has no sessions and no streams to resume
	methodsSSE     = "GET, OPTIONS"
	methodsMessage = "POST, OPTIONS"
	methodsRead    = "GET, HEAD, OPTIONS"
)

// table returns the HTTP status and the JSON-RPC code for a [storage.Code]. An unknown code counts
// as Internal.
func table(code storage.Code) (status int, rpc wire.Code) {
	switch code {
	case storage.Invalid:
		return http.StatusBadRequest, wire.CodeInvalidRequest
	case storage.Unauthenticated:
		return http.StatusUnauthorized, wire.CodeServer
	case storage.Forbidden:
		return http.StatusForbidden, wire.CodeServer
	case storage.NotFound:
		return http.StatusNotFound, wire.CodeSessionNotFound
	case storage.Duplicate:
		return http.StatusConflict, wire.CodeInvalidRequest
	case storage.Closed:
		return http.StatusMethodNotAllowed, wire.CodeServer
	case storage.TooLarge:
		return http.StatusRequestEntityTooLarge, wire.CodeInvalidRequest
	case storage.Busy:
		return http.StatusTooManyRequests, wire.CodeServer
	case storage.Conflict, storage.Fenced, storage.Unavailable:
		return http.StatusServiceUnavailable, wire.CodeServer
	case storage.Unknown:
		return http.StatusInternalServerError, wire.CodeOutcomeUnknown
	default:
		return http.StatusInternalServerError, wire.CodeInternal
	}
}

// problem is an answer that refuses a request.
type problem struct {
	status int
	code   storage.Code
	rpc    *wire.Error
	allow  string // the methods that the address serves, for a 405

	lasts    bool  // the refusal lasts until somebody changes the servers file: the answer has no Retry-After
	operator bool  // the operator can remove the reason for the refusal, so the log line has that reason
	cause    error // nil if code is the only cause
}

func (p *problem) Error() string { return p.rpc.Message }

// Unwrap returns the cause, or else the code. storage.CodeOf finds p.code in both.
func (p *problem) Unwrap() error {
	if p.cause != nil {
		return p.cause
	}
	return p.code
}

// refusal returns a problem with a status and a code that the function named table does not give: each
// check in validate.go has its own.
func refusal(status int, code storage.Code, rpc wire.Code, message string) *problem {
	return &problem{status: status, code: code, rpc: &wire.Error{Code: rpc, Message: message}}
}

// notAllowed returns a 405, which must name the methods that are allowed.
func notAllowed(allow, message string) *problem {
	p := refusal(http.StatusMethodNotAllowed, storage.Invalid, wire.CodeServer, message)
	p.allow = allow
	return p
}

// problemOf returns the answer to an error. All texts of the answer are meant for clients.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	_, known := errors.AsType[*storage.Error](err)
	rpc, answered := errors.AsType[*wire.Error](err)
	switch {
	case known: // the answer has the code and the text of this error, not of its cause
	case answered:
		return &problem{status: http.StatusBadRequest, code: storage.Invalid, rpc: rpc}
	case errors.Is(err, context.Canceled):
		return refusal(http.StatusInternalServerError, storage.Unknown, wire.CodeOutcomeUnknown, clientGone)
	case errors.Is(err, context.DeadlineExceeded):
		return refusal(http.StatusInternalServerError, storage.Unknown, wire.CodeOutcomeUnknown, "the time for this request is over; the request may have been executed")
	}
	code := storage.CodeOf(err)
	status, number := table(code)
	p := refusal(status, code, number, text(err, code))
	if status == http.StatusMethodNotAllowed {
		p.allow = methodsNoGet
	}
	return p
}

// logged returns what the log says of err, whose answer is p: err if both have the same code, and
// otherwise p.
func logged(err error, p *problem) error {
	if storage.CodeOf(err) != p.code {
		return p
	}
	return err
}

// answerOf returns err as a *wire.Error if it is the answer that an endpoint has given to a
// request, otherwise nil.
func answerOf(err error) (answer *wire.Error) {
	if _, known := errors.AsType[*storage.Error](err); !known {
		answer, _ = errors.AsType[*wire.Error](err)
	}
	return answer
}

// text returns the part of an error that a client may read.
func text(err error, code storage.Code) string {
	known, told := errors.AsType[*storage.Error](err)
	switch {
	case code == storage.Internal:
		return "internal error; it has been logged"
	case told:
		return known.Message
	case code == storage.Unauthenticated:
		return "the request is not authenticated; send an Authorization header"
	case code == storage.NotFound:
		return "there is no such session; send initialize to open one"
	default:
		return "the request could not be served (" + string(code) + "); try again"
	}
}

// passing reports whether an error may be temporary. A client that polls does not get the status of such
// an error, at which some clients give up. The client is told to come back later (P3 in the package
// comment).
func passing(err error) bool {
	status := problemOf(err).status
	return status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}

const clientGone = "the connection was closed before the answer; the request may have been executed"
