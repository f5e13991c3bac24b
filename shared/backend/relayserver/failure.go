package relayserver

import (
	"errors"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// outcomeUnknown is the error that ends a request which was posted and then left no
// trace.
func outcomeUnknown(box storage.BoxID) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeOutcomeUnknown,
		Message: phaseUnavailable + ": the box does not answer; whether the request was executed is not known, and it will not be from now on",
		Data:    map[string]any{"phase": phaseUnavailable, "box": box},
	}
}

// advised returns f with the advice, and with a Detail that ends with the advice.
func advised(f storage.Failure, detail, advice string) storage.Failure {
	f.Detail, f.Advice = detail, advice
	if advice != "" {
		f.Detail += "; " + advice
	}
	return f
}

const (
	notExecuted = "nothing was executed"
	sendAgain   = "it was not executed, send it again"
	notKnown    = "whether it was executed is not known"
)

var expired = advised(storage.Failure{Phase: phaseUnavailable, Unsent: true}, "no box took the request within "+validity.String(), sendAgain)

// failureOf returns why generation gen ended without finishing its requests. The record b has only
// the failure of the generation that was lost last.
func failureOf(b storage.Box, gen storage.Generation) storage.Failure {
	if b.Lost == gen && b.Failure.Phase == phaseRuntime { // any other failure is that of a later start
		return b.Failure
	}
	return advised(storage.Failure{Phase: phaseRuntime, At: b.Changed}, "the box stopped before the request was finished", notKnown)
}

// unanswered is the failure of a suspended call whose client did not answer in time.
func unanswered(it storage.Item) storage.Failure {
	within := it.NotAfter.Sub(it.Created).Round(time.Millisecond)
	return storage.Failure{
		Phase: phaseToolCall, At: it.Created,
		Detail: "nobody answered within " + within.String() + " (answer_timeout_sec), and the server needs an answer",
	}
}

func sessionEnded() storage.Failure {
	return storage.Failure{Phase: phaseUnavailable, Detail: "the session has ended"}
}

// begun reports whether a box has executed a part of a call.
func begun(it storage.Item) bool { return it.State == storage.Suspended || it.Round > 0 }

// errorOf returns the error that ends the request of an item. If the call has begun, the error says
// that the outcome is not known, in place of the failure's advice.
func errorOf(it storage.Item, f storage.Failure) *wire.Error {
	if !begun(it) {
		f.Unsent = f.Unsent || it.State == storage.Waiting
		return failureError(it.Box, f)
	}
	f.Unsent, f.Detail = false, strings.TrimSuffix(f.Detail, "; "+f.Advice)+"; whether the call was executed is not known"
	e := failureError(it.Box, f)
	e.Code = wire.CodeOutcomeUnknown
	return e
}

// startFailure returns what clients are told of a failed start, and what they can do. It
// leaves out the fleet's own text, which may name machines and accounts.
func startFailure(err error) storage.Failure {
	f := storage.Failure{Phase: phaseUnavailable, At: time.Now()}
	refused, ok := errors.AsType[fleet.Refusal](err)
	switch {
	case ok:
		return advised(f, refused.Why, "")
	case errors.Is(err, fleet.ErrCapacity):
		return advised(f, "there is no room for another box now", "try again in a minute")
	case errors.Is(err, storage.NotFound):
		return advised(f, "the server is not configured any more", "")
	default:
		return advised(f, "the box could not be started", "the operator's log has the cause")
	}
}

// These phases say in errors where a request failed.
const (
	phaseUnavailable = "box_unavailable"
	phaseConnect     = "relay_connect"
	phaseRuntime     = "runtime"
	phaseToolCall    = "tool_call"
)

// failureError returns the error that a client gets for a failure.
func failureError(box storage.BoxID, f storage.Failure) *wire.Error {
	data := map[string]any{"phase": f.Phase, "box": box}
	switch {
	case f.Signal != "":
		data["signal"] = f.Signal
	case f.Exit != 0:
		data["exit_code"] = f.Exit
	}
	if f.Unsent {
		data[sessions.DataUnsent] = true
	}
	if !f.At.IsZero() {
		data["since"] = f.At.UTC().Format(time.RFC3339)
	}
	code := wire.CodeInternal
	if f.Phase == phaseRuntime {
		code = wire.CodeOutcomeUnknown
	}
	return &wire.Error{Code: code, Message: f.Phase + ": " + f.Detail, Data: data}
}

// except returns err, or nil if err has the given code.
func except(code storage.Code, err error) error {
	if errors.Is(err, code) {
		return nil
	}
	return err
}
