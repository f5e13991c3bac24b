package box

import (
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// protocol is the way in which the box speaks to a process. [sessionful] begins with initialize
// (MCP versions up to 2025-11-25), [stateless] does not (2026-07-28). If a server speaks both, the
// box uses the protocol of the session's client.
//
// While the server's protocol is unknown, the first process for a client of 2026-07-28 gets
// server/discover. If the process does not understand it, another process takes its place. The
// first process for any other client gets initialize, and is replaced only if it refuses. Later
// processes get the protocol that worked, until a process refuses it. A process of several
// sessions gets initialize, unless the server speaks only 2026-07-28.
type protocol interface {
	// hello sends the first message, a request with this id, and returns its method.
	hello(id int64) (method string)
	// greeted handles the response to the first message.
	greeted(m wire.Message) firstAnswer
	// begin sends the process the settings of its sessions, after it has answered the first
	// message.
	begin()
	// initialized returns the result that a session's client gets for its initialize.
	initialized(s *session) json.RawMessage
	// params returns the params that this protocol demands in a request that the box itself sends.
	params(method string) json.RawMessage
	// outgoing translates a client's line for the process. outgoing returns nil if the process
	// must get nothing. The argument r is the request in the line, nil for other messages.
	outgoing(r *request, line []byte) []byte
	// withdraw makes the process stop working on a request. withdraw returns false if the caller
	// must send the client's own cancellation instead.
	withdraw(r *request) bool
	// prove sends the process requests that every working server answers, or returns false if
	// there are none.
	prove() bool
	response(r *request, m wire.Message)
	// notification translates a notification of the process for clients. notification returns
	// false if clients must not get it.
	notification(m wire.Message) (wire.Message, bool)
	// tellSettings sends the process the log level and the subscriptions that its sessions want
	// now, if they differ from the arguments, which were sent before.
	tellSettings(level string, subscriptions []string)
}

type firstAnswer struct {
	version string // the protocol version that the box asked for
	refused *fault // not nil: the process does not speak this protocol
	failed  *fault // not nil: the response cannot be used
}

// withParams returns a request with these params instead of its own; nil removes them.
func withParams(m wire.Message, params json.RawMessage) []byte {
	m.Params = params
	return m.Line()
}
