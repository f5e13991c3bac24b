// Package lambda imitates the parts of AWS Lambda that Dormouse needs, on one machine, for tests.
package lambda

import (
	"context"
	"errors"
	"io"
)

var (
	// ErrThrottled means that the function has as many instances as it may have, and all
	// are busy. Nothing was run. It is Lambda's TooManyRequestsException.
	ErrThrottled = errors.New("too many requests: every instance of the function is busy")
	// ErrClosed means that the pool is closed or closing.
	ErrClosed = errors.New("the function pool is closed")
	// ErrUnknown means that the pool has no such function. It is Lambda's ResourceNotFoundException.
	ErrUnknown = errors.New("there is no such function")
)

// Invoker runs one invocation of a function, as Lambda's Invoke does.
type Invoker interface {
	// Invoke passes payload, which is JSON, to one instance of the function. It returns when
	// the first bytes of the answer, or a report of failure, have arrived.
	//
	// The error wraps [ErrThrottled], [ErrClosed], [ErrUnknown] or the error of ctx. The end of ctx ends only
	// the wait: if the invocation has reached the function, the function goes on, as on Lambda.
	Invoke(ctx context.Context, function string, payload []byte) (*Invocation, error)
}

// Invocation is the answer of a function.
type Invocation struct {
	// Body streams while the function writes. The caller must close it. If the caller closes
	// it early, the function goes on. Read returns an error if the function fails, dies or
	// runs out of time in the middle.
	Body io.ReadCloser
	// Failed says why the function failed before the first byte of its answer. Body is then
	// empty. Failed is nil if the function has begun an answer, or has ended an empty one.
	Failed error
}
