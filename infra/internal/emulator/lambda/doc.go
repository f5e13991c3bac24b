// Package lambda imitates the parts of AWS Lambda that Dormouse needs, on one machine. It
// runs function binaries behind a Runtime API, starts them on demand, stops idle ones, and
// serves Invoke. A function gets the same requests as on AWS, so it cannot tell the
// difference.
//
// The package hides processes and the Runtime API. It knows nothing of MCP or API Gateway,
// keeps nothing when it ends, and imitates no other service.
package lambda

import (
	"context"
	"errors"
	"fmt"
	"io"
)

var (
	// ErrThrottled means that the function has as many instances as it may have, and all
	// are busy. Nothing was run, and the caller may try again. It is Lambda's
	// TooManyRequestsException.
	ErrThrottled = errors.New("too many requests: every instance of the function is busy")
	// ErrClosed means that the pool is closed or closing.
	ErrClosed = errors.New("the function pool is closed")
)

// Invoker runs one invocation of a function, as Lambda's Invoke does.
type Invoker interface {
	// Invoke passes payload to one instance of the function. It returns when the first
	// bytes of the answer, or a report of failure, have arrived. payload is JSON; the
	// invoker owns it until the function has answered.
	//
	// The error is [ErrThrottled], [ErrClosed] or ctx's own. Failures of the function are
	// in [Invocation.Failed]. The end of ctx ends only the wait. If the invocation has
	// reached the function, the function goes on, as on Lambda, and its answer is dropped.
	Invoke(ctx context.Context, function string, payload []byte) (*Invocation, error)
}

// Invocation is the answer of a function.
type Invocation struct {
	// Body streams while the function writes. The caller must close it, also when Failed
	// is set. If the caller closes it early, the function goes on, and the rest of the
	// answer is dropped. Another goroutine may call Close during a Read, which then fails
	// with io.ErrClosedPipe. Read returns a *FunctionError if the function fails, dies or
	// runs out of time in the middle.
	Body io.ReadCloser
	// Failed is set if the function failed before the first byte of an answer: it
	// reported an error, died or ran out of time. Body is empty then.
	Failed *FunctionError
}

// Types of a [FunctionError] that this package sets. The function chooses all others.
const (
	// ErrorExit: the process ended without an answer.
	ErrorExit = "Runtime.ExitError"
	// ErrorTimeout: the function took too long to answer or to get ready. Its process was
	// killed.
	ErrorTimeout = "Sandbox.Timedout"
	// ErrorStart: the binary could not be started.
	ErrorStart = "Runtime.InvalidEntrypoint"
	// ErrorResponse: the answer ended early although the process still ran; the process
	// was killed.
	ErrorResponse = "Runtime.TruncatedResponse"
)

// FunctionError is the failure of a function. Its texts are the function's own. For the
// types above they are Lambda's.
type FunctionError struct {
	Function  string // name of the function
	RequestID string // id of the invocation, "" when it never reached a process
	Type      string // such as "Runtime.ExitError" or the name of a Go error type
	Message   string // what happened, with exit status or signal where there was one
}

// Error returns the function, the type and the message, which may contain text from
// the function.
func (e *FunctionError) Error() string {
	return fmt.Sprintf("function %s: %s: %s", e.Function, e.Type, e.Message)
}
