package box

import (
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// What a box gets, and what it says, as its host and the runner name it. The deliver id of a
// Delivery names the request stream that it opens. A box keeps Init, Level and Subscribed for the
// process that this delivery or a later one starts. If Init is nil, the box takes that of an
// initialize that was delivered, or else that of a client without capabilities. The box owns Raw,
// and the receiver of an Output owns its Raw. A process that was started with other Secrets than
// the last is started anew.
type (
	Delivery   = frame.Delivery
	Output     = frame.Event
	Suspension = frame.Suspension
	Secret     = storage.Secret
)

// dropped counts what a box has dropped.
type dropped struct {
	Noise    int64 // lines of servers that were no messages
	Oversize int64 // lines of servers over the limit of 16 MiB
	Late     int64 // messages of servers about a request or question that is over
	Unknown  int64 // messages of clients about something that does not exist
}

// Sink receives the output of a box. Goroutines of the box call its methods, for each
// session in order and one at a time. A method may call the box. A method that blocks
// holds up only its own session. Once 4 MiB of output wait for it, the box stops reading
// the processes of that session.
type Sink interface {
	Output(Output)
	// Handshake receives the result of a fresh process for initialize, and the protocol
	// version that the box asked for. The box keeps using result, so the method must not
	// change it.
	Handshake(sessionID, ticket, requestedVersion string, result json.RawMessage)
	// Lists receives a fingerprint of the lists of a fresh process, if [Server].Lists is set.
	Lists(sessionID, ticket string, l Lists)
	Process(ProcessStatus)
}

// Lists says what a fresh process lists.
type Lists struct {
	// Kind names everything that the lists may depend on: what the process was told of its
	// client, and its principal if the process knows that. Own says that the process does.
	Kind string
	Own  bool
	// Fingerprint is a JSON object with a hash for each kind of list that the process has.
	Fingerprint json.RawMessage
}
