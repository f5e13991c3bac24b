package box

import (
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// The types of what a box receives and sends. The ID of a Delivery names the request stream that
// the Delivery opens. Init, Level and Subscribed are kept for the process that this delivery or a
// later one starts. If Init is nil, the box uses the params of a delivered initialize, or else
// those of a client without capabilities. The box owns the Raw of a Delivery, and the Sink owns
// the Raw of an Output. A process that was started with other Secrets than those of the last
// delivery is replaced.
type (
	Delivery   = frame.Delivery
	Output     = frame.Event
	Suspension = frame.Suspension
	Secret     = storage.Secret
)

// Sink receives the output of a box. Goroutines of the box call its methods, for each session in
// order and one at a time. A method may call the box. When 4 MiB of output of a session wait for
// the Sink, the box stops reading from the processes of that session.
type Sink interface {
	Output(Output)
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
