package box

import (
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// Sink receives the output of a box. Goroutines of the box call its methods, for each session in
// order and one at a time. A method may call the box. When 4 MiB of output of a session wait for
// the Sink, the box stops reading from the processes of that session. The Sink owns the Raw of an
// event.
type Sink interface {
	Output(frame.Event)
	// Handshake receives the result of initialize from a process that was just started, and the
	// protocol version that the box asked for. The method must not change result.
	Handshake(sessionID, ticket, requestedVersion string, result json.RawMessage)
	// Lists receives a fingerprint of the lists of a fresh process, if [Server].Lists is set.
	Lists(sessionID, ticket string, l Lists)
	Process(ProcessStatus)
}

// Lists describes the lists (tools, prompts, resources and so on) of a process that was just
// started.
type Lists struct {
	// Kind is a hash of everything that the lists may depend on: the protocol version and the
	// capabilities that the process was told and, if Own is true, the principal of the session.
	// Own says that the process may know the principal.
	Kind string
	Own  bool
	// Fingerprint is a JSON object: the hash of each list that the process has, by method.
	Fingerprint json.RawMessage
}
