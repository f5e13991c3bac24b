package storage

import (
	"errors"
	"fmt"
	"time"
)

// Code classifies errors by what the caller can do about them. A Code is itself an error, so
// errors.Is(err, storage.NotFound) works on every error of this module. Package transport maps
// codes to HTTP statuses and JSON-RPC codes.
type Code string

const (
	// Invalid: the input is wrong and stays wrong. Do not retry.
	Invalid Code = "invalid"
	// Unauthenticated: the caller has no valid credential.
	Unauthenticated Code = "unauthenticated"
	// Forbidden: the caller is known and may not do this.
	Forbidden Code = "forbidden"
	// NotFound: there is no such record, or it has ended or expired. It is never used for
	// trouble with the store.
	NotFound Code = "not_found"
	// Duplicate: the log has the batch already. Only Append with Batch.Once returns it.
	Duplicate Code = "duplicate"
	// Conflict: another writer was first. Read again and decide again.
	Conflict Code = "conflict"
	// Closed: the stream or connection accepts nothing more.
	Closed Code = "closed"
	// Fenced: a runner with a higher generation runs the box. The caller must stop.
	Fenced Code = "fenced"
	// TooLarge: the input exceeds a limit, which the message names.
	TooLarge Code = "too_large"
	// Busy: a quota is used up. Retry later.
	Busy Code = "busy"
	// Unavailable: the store, the relay or the fleet did not answer. Retry; a write may
	// have happened.
	Unavailable Code = "unavailable"
	// Unknown: the request may or may not have been executed. Retry only if executing it
	// twice does no harm.
	Unknown Code = "unknown"
	// Internal: a defect of Dormouse. The text is for operators only.
	Internal Code = "internal"
)

// Error returns the code's name.
func (c Code) Error() string { return string(c) }

// Error is a failure with a code and a message that may be shown to a client. Its cause is
// for operators only.
type Error struct {
	Code    Code
	Message string
	cause   error

	operator bool     // set by ForOperator
	refused  Identity // set by NameRefused
}

// Errorf makes an Error. The message may be shown to a client: it is lower case and says what
// happened, to what, and what to do.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Because sets the cause, which clients never see, and returns e.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// ForOperator marks e as an error that lasts until an operator does what its message says, such as
// freeing room on a disk. It returns e.
func (e *Error) ForOperator() *Error {
	e.operator = true
	return e
}

// IsForOperator reports whether err is marked by [Error.ForOperator].
func IsForOperator(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.operator
}

// NameRefused records in err the identity of the caller that err refuses, and returns err. If the
// caller has not proven its credential, the identity has only the Credential that the caller claims.
func NameRefused(err error, who Identity) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.refused = who
	}
	return err
}

// RefusedOf returns the Identity that [NameRefused] has recorded in err.
func RefusedOf(err error) Identity {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.refused
	}
	return Identity{}
}

// Error returns the message and the cause, for operators.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Message + ": " + e.cause.Error()
	}
	return e.Message
}

// Unwrap returns the code, and the cause if there is one.
func (e *Error) Unwrap() []error {
	if e.cause != nil {
		return []error{e.Code, e.cause}
	}
	return []error{e.Code}
}

// IgnoreNotFound returns nil for an error with the code NotFound, and other errors unchanged.
func IgnoreNotFound(err error) error {
	if errors.Is(err, NotFound) {
		return nil
	}
	return err
}

// Limited is the cause of a Busy error if a limit of a caller is used up.
type Limited struct {
	Kind  string        // of the limit: rate, concurrent, spend, or room for boxes
	Scope string        // whose limit it is: principal or tenant
	After time.Duration // when to try again; more than 0
	Flood bool          // the caller sends ten times as many requests as its rate allows
}

// Error describes the limit for operators.
func (l *Limited) Error() string {
	return fmt.Sprintf("limit %s of %s, try again after %s", l.Kind, l.Scope, l.After)
}

// NotConnected is the cause of a Forbidden error if a call needs an account at a third party that its
// caller has not connected.
type NotConnected struct {
	Pages []ConsentPage // where the user connects the accounts; none if the URL is not known
}

// ConsentPage is a page that a user has to open. Its JSON is that of an elicitation by URL.
type ConsentPage struct {
	ID      string `json:"elicitationId"`
	URL     string `json:"url"`
	Message string `json:"message"`
}

// Error says how many accounts are missing, for operators.
func (u *NotConnected) Error() string {
	return fmt.Sprintf("%d third parties are not connected", max(1, len(u.Pages)))
}

// CodeOf returns the code of an error, Internal for an error without one, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if c, ok := errors.AsType[Code](err); ok {
		return c
	}
	return Internal
}
