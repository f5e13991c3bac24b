package box

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Phase is the step of a hosted server's life at which something went wrong.
type Phase string

// The phases that a box reports, in the order in which a process goes through them.
const (
	PhaseSessionCreate  Phase = "session_create"  // the workspace or the sandbox could not be made, or memory is full
	PhaseDepInstall     Phase = "dep_install"     // the server's dependencies could not be installed
	PhaseProcessStart   Phase = "process_start"   // the process did not start, or ended without a message
	PhaseMCPInit        Phase = "mcp_init"        // the server refused initialize or did not answer it
	PhaseRuntime        Phase = "runtime"         // the process failed after it was ready
	PhaseToolCall       Phase = "tool_call"       // one call failed, the process goes on
	PhaseBoxUnavailable Phase = "box_unavailable" // the box is not there, or is going away
)

// Failure is the data of the JSON-RPC errors that a box makes itself. It holds no value of the
// server's environment.
type Failure struct {
	Phase  Phase  `json:"phase"`
	Server string `json:"server"`

	// How the process ended, if it has ended: either ExitCode or Signal is set.
	ExitCode *int   `json:"exit_code,omitempty"`
	Signal   string `json:"signal,omitempty"` // such as SIGKILL

	// Stderr is the end of the process's stderr, up to 4,000 characters. Stdout is the end of the
	// lines on stdout that were no messages. Clients get both only if [Server].ShowOutput is set.
	Stderr string `json:"stderr,omitempty"`
	Stdout string `json:"stdout,omitempty"`
	// OutOfMemory says that the process seems to have run out of memory. The process printed so,
	// or it died of a SIGKILL while the kernel was killing processes for lack of memory, and the
	// box had not sent that signal.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
	// NoiseLines counts the lines of stdout that were no messages.
	NoiseLines int64 `json:"noise_lines,omitempty"`
	// Since is when the process was started, zero if it never was.
	Since time.Time `json:"since,omitzero"`

	// ServerError is the error with which the server refused initialize.
	ServerError *ServerError `json:"server_error,omitempty"`

	// Limit is the limit that was reached. Setting names the server setting that changes it, and
	// thereby its unit; "" means that the limit is fixed.
	Limit   float64 `json:"limit,omitempty"`
	Setting string  `json:"setting,omitempty"`
	// NotExecuted says that the process never got the request.
	NotExecuted bool `json:"notExecuted,omitempty"`
	// RetryAfter is the number of seconds after which the client may try again, 0 if it need not
	// wait. Refusals of package transport have the same member.
	RetryAfter float64 `json:"retryAfterSeconds,omitempty"`
}

// ServerError is a JSON-RPC error in an answer of a server, without its data.
type ServerError struct {
	Code    int64  `json:"code"`
	Message string `json:"message"`
}

// fault is the reason why requests end with an error of the box and not with a response of the
// server.
type fault struct {
	message string
	words   string // the last output of the server or of an install; follows the message
	after   string // text that follows message and words
	unsent  string // the message for a request that was never sent to the process, "" if message applies
	show    bool   // clients also get words, data.Stderr and data.Stdout
	data    Failure
}

// whole returns the message with the last output of the server, for the operator.
func (f *fault) whole() string {
	if f.words == "" {
		return f.message + f.after
	}
	return f.message + ": " + f.words + f.after
}

// response returns the error response to a request that was refused, answered wrongly or not
// answered in time.
func (f *fault) response(id json.RawMessage) []byte {
	return f.coded(wire.CodeInternal, id)
}

// unanswered returns the error response to a request whose process or session ends. The code is
// [wire.CodeOutcomeUnknown] if the request was sent to a process: now, in an earlier try, or
// before its client answered questions (stream.round).
func (f *fault) unanswered(r *request) []byte {
	own := *f
	if r.passed != nil || r.stream.round > 0 || r.retries > 0 {
		own.data.RetryAfter = 0 // the client must look first
		return own.coded(wire.CodeOutcomeUnknown, r.id)
	}
	own.message, own.data.NotExecuted = cmp.Or(f.unsent, f.message), true
	return own.response(r.id)
}

func (f *fault) coded(code wire.Code, id json.RawMessage) []byte {
	message, data := f.whole(), f.data
	if !f.show {
		message = f.message + f.after
		if f.words != "" || data.Stderr != "" || data.Stdout != "" {
			message += "; the operator finds its last words with: dormouse logs " + data.Server + ", or in the log of the box"
		}
		data.Stderr, data.Stdout = "", ""
	}
	return wire.ErrorResponse(id, &wire.Error{Code: code, Message: message, Data: data})
}

func (s Server) fault(p Phase, format string, args ...any) *fault {
	return &fault{
		message: fmt.Sprintf("server %q: ", s.Name) + fmt.Sprintf(format, args...),
		show:    s.ShowOutput,
		data:    Failure{Phase: p, Server: s.Name},
	}
}

// refusal reads the JSON-RPC error of a server, and removes secrets. A member with the wrong type
// stays zero.
func refusal(raw json.RawMessage, hide *redact.Redactor) *ServerError {
	e := &ServerError{}
	if text, ok := wire.String(wire.Lookup(raw, "message")); ok {
		e.Message = hide.Text(text)
	}
	_ = json.Unmarshal(wire.Lookup(raw, "code"), &e.Code)
	return e
}
