package box

import (
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// Delivery is one client message, or a batch of them, to execute.
type Delivery struct {
	ID      string // deliver id: the name of the request stream it opens
	Session string
	Ticket  string // opaque: the box returns it with the events
	// Principal names the session's principal, the same for all sessions of one
	// principal: up to 64 letters, digits, - and _. "" means it is not known.
	Principal string
	Round     int // how often it was suspended; from 1 on Raw holds the answers

	// Init, Level and Subscriptions are the session's state, for the process that this
	// delivery or a later one starts. Init is the params of the client's own initialize.
	// If it is nil the box takes those of an initialize that was delivered, or else
	// those of a client without capabilities. Level is the last log level set ("" for
	// none). Subscriptions are the URIs that the client has subscribed to.
	Init          json.RawMessage
	Level         string
	Subscriptions []string

	// Restarted says that the session has had a process before. The box logs that the new
	// one starts without the memory of the old one.
	Restarted bool

	// Redefined says that the server had another definition when the session last had a
	// request. The box tells the client that lists have changed, as far as the process
	// announces changes of lists. With Held the client always hears of changed tools.
	Redefined, Held bool

	// Secrets are the keys and tokens that the session's principal has at third parties, by
	// the names in Server.Env. A process that was started with others is started anew.
	Secrets map[string]Secret

	// Raw is one JSON-RPC message or a non-empty array of them, requests and
	// notifications. The box owns it from then on.
	Raw []byte
}

// Output is one message of a server, or an error the box ends a request with.
type Output struct {
	Session string
	Stream  string // deliver id of the request stream, "" for the standalone stream
	Ticket  string // the delivery's; on the standalone stream the session's newest
	Raw     []byte // one line of JSON without its end; the receiver owns it
	Final   bool   // the last event of the request stream
	// Asks, if not nil, comes with the last event of a delivery that needs something of
	// its client. The box then forgets the delivery, and the caller delivers Asks.Raw
	// again in the next round.
	Asks *Suspension
}

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

// Suspension describes a delivery that ended in questions to its client.
type Suspension struct {
	Questions []bridge.Asked
	// Raw is the message to deliver again, in the next round, when the caller has the
	// answers. It is a request, or a batch of those requests of the delivery that have no
	// answer yet.
	Raw    []byte
	Within time.Duration // time limit for the answers
}
