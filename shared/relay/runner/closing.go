package runner

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// CloseCode is the code a WebSocket connection was closed with (RFC 6455, section
// 7.4). Those of the protocol itself are in the range for private use; a code in
// it that this version does not know still says whether to come back:
//
//	4000–4499  do not come back
//	4500–4999  come back
type CloseCode int

// Close codes that mean something to a runner. Any other one, and an end without
// a code (1005, 1006), says: come back.
const (
	CloseGoingAway   CloseCode = 1001 // the gateway's idle limit, its limit of two hours, a redeploy
	CloseProtocol    CloseCode = 1002 // the peer could not read what this end sent; so too:
	CloseUnsupported CloseCode = 1003 // a binary message
	CloseNotText     CloseCode = 1007 // text that is not UTF-8
	ClosePolicy      CloseCode = 1008 // API Gateway throttles
	CloseTooBig      CloseCode = 1009 // a message or a frame over the gateway's limit
	CloseExtension   CloseCode = 1010
	CloseTryLater    CloseCode = 1013
	CloseFenced      CloseCode = 4001 // somebody newer runs the box: stop, exit
	CloseRefused     CloseCode = 4002 // the host does not take this runner's protocol

	privateCodes  CloseCode = 4000
	privateReturn CloseCode = 4500
)

// ClosedError is the error of a [Conn] that its peer has closed with a code.
type ClosedError struct {
	Code   CloseCode
	Reason string
}

// Error implements error.
func (e *ClosedError) Error() string {
	return fmt.Sprintf("the relay closed the connection with code %d (%q)", int(e.Code), e.Reason)
}

// RefusedError is the error of a [Dialer] whose connection was answered with an
// HTTP status instead of an upgrade.
type RefusedError struct {
	Status int
	After  time.Duration // of Retry-After in seconds, 0 if there is none
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the relay refused the connection with status %d", e.Status)
}

// sequel is what follows the end of a connection, or a failed attempt to open one.
type sequel int

const (
	comeBack  sequel = iota // connect anew, after a pause that grows
	comeLater               // connect anew, after a long pause
	comeRound               // connect anew, but only a few times: it may be this end's fault
	stayAway                // the host wants nothing more of this runner
	fencedOff               // somebody newer runs the box
)

// sequelOf reads it from the error. An error that is neither of the two types is
// the network's.
func sequelOf(err error) sequel {
	var closed *ClosedError
	if errors.As(err, &closed) {
		return closed.Code.sequel()
	}
	var refused *RefusedError
	if !errors.As(err, &refused) {
		return comeBack
	}
	switch s := refused.Status; {
	case s == http.StatusTooManyRequests || s == http.StatusServiceUnavailable || s == http.StatusForbidden:
		// The gateway forbids a connection also when the function behind it is throttled.
		// One without a good pass is Unauthorized.
		return comeLater
	case s == http.StatusRequestTimeout || s >= http.StatusInternalServerError:
		return comeBack
	default:
		return comeRound
	}
}

func (c CloseCode) sequel() sequel {
	is := func(codes ...CloseCode) bool { return slices.Contains(codes, c) }
	switch {
	case is(CloseFenced):
		return fencedOff
	case is(ClosePolicy, CloseTryLater):
		return comeLater
	case is(CloseProtocol, CloseUnsupported, CloseNotText, CloseTooBig, CloseExtension):
		return comeRound
	case c >= privateCodes && c < privateReturn:
		return stayAway
	default:
		return comeBack
	}
}

// askedToWait is how long the host wants to be left alone, 0 if it did not say.
func askedToWait(err error) time.Duration {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refused.After
	}
	return 0
}
