package remote

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// refusal is the error of an HTTP request that the server refused, so that it did not run.
type refusal struct {
	status int
	said   string        // the text of the server's own error, "" for none
	code   string        // the code of the server's JSON-RPC error, "" for none
	raw    []byte        // the JSON-RPC error response, nil for none
	asks   string        // the header WWW-Authenticate of the response, "" for none
	after  time.Duration // the header Retry-After of the response, 0 for none
	headed bool          // the request had headers of the servers file
	first  bool          // the server does not know the session, or its version, so a new one must be opened first
}

// stale reports whether the server may refuse a handshake because it speaks another era.
func (r *refusal) stale() bool {
	return r.status == http.StatusNotFound || r.status == http.StatusMethodNotAllowed || r.status == http.StatusBadRequest
}

func (r *refusal) Error() string {
	text := fmt.Sprintf("it answered with HTTP %d %s", r.status, http.StatusText(r.status))
	if r.said != "" {
		text += ": " + r.said
	}
	switch {
	case r.status == http.StatusUnauthorized && r.headed:
		text += "; it does not take what the headers in the servers file have: change them, or use x-dormouse.connect for a credential of each user"
	case r.status == http.StatusUnauthorized:
		text += "; it wants a credential: set headers in the servers file, or x-dormouse.connect for one of each user"
	case r.status == http.StatusForbidden:
		text += "; the credential may not do this"
	case r.after > 0 && (r.status == http.StatusTooManyRequests || r.status == http.StatusServiceUnavailable):
		text += fmt.Sprintf("; try again in %d s", int(r.after.Seconds()+0.999))
	}
	return text
}

// errLost is the error of an answer that was lost: the request may have run.
var errLost = errors.New("the connection was lost before the answer, and the server cannot resume it")

// errTooLong is the error of a message that is not read to its end.
var errTooLong = fmt.Errorf("it sent a message of more than %d bytes", maxMessage)

// failure returns the error that a client gets in place of an answer. phase says at which step
// the request failed; package box has the same phases.
func failure(phase, format string, args ...any) *wire.Error {
	return &wire.Error{Code: wire.CodeInternal, Message: phase + ": " + fmt.Sprintf(format, args...), Data: map[string]any{"phase": phase}}
}

const (
	phaseInit    = "mcp_init"
	phaseCall    = "tool_call"
	phaseRuntime = "runtime"
)

// faultOf returns the error that a client gets for err, without secrets.
func (x *exchange) faultOf(phase string, err error) *wire.Error {
	var refused *refusal
	var broken *unreadable
	switch {
	case errors.As(err, &broken):
		return failure(phase, "the remote server %s answered with something that is no JSON-RPC response: %s", x.s.Name, broken.quote(x.secrets))
	case errors.As(err, &refused):
		return failure(phase, "the remote server %s refused the request: %v", x.s.Name, refused)
	case unsent(err):
		return failure(phase, "the remote server %s cannot be reached: %v", x.s.Name, plain(err))
	}
	f := failure(phase, "whether the remote server %s executed the request is not known: %v", x.s.Name, plain(err))
	f.Code = wire.CodeOutcomeUnknown
	return f
}

// unsent reports whether err shows that the request did not leave this process.
func unsent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.Is(err, errPrivate) || errors.Is(err, errRedirect) || errors.Is(err, errMoved) || errors.As(err, &dns) || errors.As(err, &op) && op.Op == "dial" || errors.Is(err, errMalformed)
}

var errMalformed = errors.New("the request cannot be made")

// plain returns the part of err that has no URL, because the URL may hold secrets.
func plain(err error) error {
	for _, known := range []error{errPrivate, errRedirect, errMoved, errLost, errTooLong, io.ErrUnexpectedEOF} {
		if errors.Is(err, known) {
			return known
		}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}

func hide(text string, secrets []string) string {
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return text
}
