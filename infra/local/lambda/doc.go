// Package lambda is AWS Lambda on one machine, as far as Dormouse needs it: it runs
// function binaries behind a Runtime API, starts them on demand, stops them when they are
// idle, and serves Invoke. A function cannot tell the difference by what it receives.
//
// It hides processes and the Runtime API. It knows nothing of MCP and of API Gateway,
// keeps nothing when it ends, and imitates no other service.
package lambda

import (
	"context"
	"errors"
	"fmt"
	"io"
)

var (
	// ErrThrottled says that every instance a function may have is busy. Nothing
	// was run; the caller may try again. Lambda's TooManyRequestsException.
	ErrThrottled = errors.New("too many requests: every instance of the function is busy")
	// ErrClosed says that the pool is closed or being closed.
	ErrClosed = errors.New("the function pool is closed")
)

// Invoker runs one invocation of a function, as Lambda's Invoke does.
type Invoker interface {
	// Invoke hands payload (JSON, owned by the invoker until the function has
	// answered) to one instance of the function and returns when the first bytes
	// of the answer, or a report of failure, are there.
	//
	// The error is [ErrThrottled], [ErrClosed] or that of ctx;
	// whatever the function did wrong is in [Invocation.Failed]. The end of ctx ends
	// only the waiting: an invocation that has reached the function runs on, as on
	// Lambda, and its answer is thrown away.
	Invoke(ctx context.Context, function string, payload []byte) (*Invocation, error)
}

// Invocation is the answer of a function.
type Invocation struct {
	// ContentType is what the function gave with its answer.
	ContentType string
	// Body streams while the function writes. It must be closed, also when Failed
	// is set. Close before the end lets the function run on and throws away the
	// rest; it may be called while a Read waits, which then fails with
	// io.ErrClosedPipe. Read returns a *FunctionError when the function fails, dies
	// or runs out of time in the middle.
	Body io.ReadCloser
	// Failed is set when the function failed before any byte of an answer: it
	// reported an error, died or ran out of time. Body is empty then.
	Failed *FunctionError
}

// Types of a [FunctionError] that come from this package. All others are chosen by
// the function.
const (
	// ErrorExit: the process ended without an answer.
	ErrorExit = "Runtime.ExitError"
	// ErrorTimeout: the function did not answer, or did not get ready, in time. Its
	// process was killed.
	ErrorTimeout = "Sandbox.Timedout"
	// ErrorStart: the binary could not be started.
	ErrorStart = "Runtime.InvalidEntrypoint"
	// ErrorResponse: the answer broke off although the process still ran; the
	// process was killed.
	ErrorResponse = "Runtime.TruncatedResponse"
)

// FunctionError is the failure of a function, in the words of the function or, for
// the types above, of Lambda.
type FunctionError struct {
	Function  string // name of the function
	RequestID string // id of the invocation, "" when it never reached a process
	Type      string // such as "Runtime.ExitError" or the name of a Go error type
	Message   string // what happened, with exit status or signal where there was one
}

// Error gives type and message; a message may hold what the function put there.
func (e *FunctionError) Error() string {
	return fmt.Sprintf("function %s: %s: %s", e.Function, e.Type, e.Message)
}
