package session

import (
	"errors"
	"fmt"
)

// Code is the closed list of what can go wrong, told apart by what the caller
// can do about it. A Code is itself an error, so errors.Is(err, session.NotFound)
// works on every error of this module. Each outside protocol maps codes once, in
// package front.
type Code string

const (
	// Invalid: the caller sent something that can never be right. Do not retry.
	Invalid Code = "invalid"
	// Unauthenticated: the caller does not say who it is, or cannot prove it.
	Unauthenticated Code = "unauthenticated"
	// Forbidden: it is known who the caller is, and that it may not do this.
	Forbidden Code = "forbidden"
	// NotFound: no such session, server or stream, or it has ended or expired.
	NotFound Code = "not_found"
	// Duplicate: the id is in use in this session (a request in flight). Who knows
	// what is in flight is the box, which answers the second request with an error.
	// Of [Log], to who asks for it: the very batch is there already.
	Duplicate Code = "duplicate"
	// Conflict: somebody else wrote first. Read again, decide again.
	Conflict Code = "conflict"
	// Closed: the stream or connection takes nothing more.
	Closed Code = "closed"
	// Fenced: a newer generation has taken over. The caller must stop.
	Fenced Code = "fenced"
	// TooLarge: over a stated limit. The message names the limit.
	TooLarge Code = "too_large"
	// Busy: a quota is used up. Try again later.
	Busy Code = "busy"
	// Unavailable: the store, the relay or the fleet did not answer. Nothing is
	// known to be lost; try again.
	Unavailable Code = "unavailable"
	// Unknown: whether the request was executed is not known. It may be sent again only
	// if it does no harm to execute it twice.
	Unknown Code = "unknown"
	// Internal: a defect of ours. The text is for operators only.
	Internal Code = "internal"
)

// Error returns the code's own name, for the rare place that shows a bare Code.
func (c Code) Error() string { return string(c) }

// Error is a failure with a code and a text that may be shown to a client. The
// cause stays with operators.
type Error struct {
	Code    Code
	Message string
	cause   error
}

// Errorf makes an Error. The text must be fit for a client: lower case, what
// happened, to what, and what to do. A cause goes in with [Error.Because].
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Because attaches the operator-only cause and returns e.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// Error is the message, then the cause: for operators.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Message + ": " + e.cause.Error()
	}
	return e.Message
}

// Unwrap gives both the code and the cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.cause != nil {
		return []error{e.Code, e.cause}
	}
	return []error{e.Code}
}

// CodeOf returns the code an error carries; an error without one is Internal,
// and nil is "".
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	var c Code
	if errors.As(err, &c) {
		return c
	}
	return Internal
}
