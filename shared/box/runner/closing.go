package runner

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// CloseCode is the code with which a WebSocket connection was closed (RFC 6455, section 7.4). The
// relay has codes of its own, in the range for private use. The number of an unknown code says
// whether the runner should connect again:
//
//	4000–4499  do not come back
//	4500–4999  come back
type CloseCode int

// The close codes to which a runner reacts. After any other code, and after an end without a code
// (1005, 1006), the runner connects again.
const (
	CloseGoingAway   CloseCode = 1001 // the gateway's idle limit, its limit of two hours, or a new deployment
	CloseProtocol    CloseCode = 1002 // the peer could not read a message of this runner
	CloseUnsupported CloseCode = 1003 // the peer does not take binary messages
	CloseNotText     CloseCode = 1007 // the peer got text that is not UTF-8
	ClosePolicy      CloseCode = 1008 // API Gateway throttles
	CloseTooBig      CloseCode = 1009 // a message or a frame was over the gateway's limit
	CloseExtension   CloseCode = 1010
	CloseTryLater    CloseCode = 1013
	CloseFenced      CloseCode = 4001 // a newer runner runs the box: stop the processes and exit
	CloseRefused     CloseCode = 4002 // the host does not speak this runner's version of the protocol

	privateCodes  CloseCode = 4000
	privateReturn CloseCode = 4500
)

// ClosedError is the error of a [Conn] that its peer has closed with a code.
type ClosedError struct {
	Code   CloseCode
	Reason string
}

// Error names the code and the reason.
func (e *ClosedError) Error() string {
	return fmt.Sprintf("the relay closed the connection with code %d (%q)", int(e.Code), e.Reason)
}

// RefusedError is the error of a [Dialer] when the host answered with an HTTP status
// instead of an upgrade.
type RefusedError struct {
	Status int
	After  time.Duration // the Retry-After header, 0 without one
}

// Error names the status.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the relay refused the connection with status %d", e.Status)
}

// reconnection says whether and when the runner connects again, after the end of a connection or a
// failed attempt to connect.
type reconnection int

const (
	reconnect       reconnection = iota // connect again, after a pause that grows with each failure
	reconnectLater                      // connect again, after a long pause
	reconnectSeldom                     // connect again, but give up after a few times, because the fault may be in this runner
	stayAway                            // do not connect again: the host refuses this runner
	fencedOff                           // do not connect again: a newer runner runs the box
)

// reconnectionOf says what to do after an error of a Conn or a Dialer. Any error but a ClosedError
// or a RefusedError counts as a fault of the network.
func reconnectionOf(err error) reconnection {
	if closed, ok := errors.AsType[*ClosedError](err); ok {
		return closed.Code.reconnection()
	}
	refused, ok := errors.AsType[*RefusedError](err)
	if !ok {
		return reconnect
	}
	switch s := refused.Status; {
	case s == http.StatusTooManyRequests || s == http.StatusServiceUnavailable || s == http.StatusForbidden:
		// The gateway also answers 403 when it throttles the Lambda function of the relay. A
		// runner without a valid pass gets 401 instead.
		return reconnectLater
	case s == http.StatusRequestTimeout || s >= http.StatusInternalServerError:
		return reconnect
	default:
		return reconnectSeldom
	}
}

func (c CloseCode) reconnection() reconnection {
	is := func(codes ...CloseCode) bool { return slices.Contains(codes, c) }
	switch {
	case is(CloseFenced):
		return fencedOff
	case is(ClosePolicy, CloseTryLater):
		return reconnectLater
	case is(CloseProtocol, CloseUnsupported, CloseNotText, CloseTooBig, CloseExtension):
		return reconnectSeldom
	case c >= privateCodes && c < privateReturn:
		return stayAway
	default:
		return reconnect
	}
}
