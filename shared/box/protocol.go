package box

import (
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// protocol is the way in which the box speaks to a process. The first message of the box
// decides: [sessionful] begins with initialize (versions up to 2025-11-25), [stateless]
// does not (2026-07-28). With a server that speaks both, the box uses the protocol of the
// session's client.
//
// While the server's protocol is unknown, the first process for a stateless client gets
// server/discover. If the process does not understand it, the box replaces the process.
// The first process for any other client gets initialize; the box replaces it only if it
// refuses. In later processes the box begins with the protocol that worked, until a
// process refuses it. A process of several sessions gets initialize, unless the server
// speaks only 2026-07-28.
type protocol interface {
	// hello writes the first message, under this id, and returns its method.
	hello(id int64) (method string)
	// greeted takes the response to the first message.
	greeted(m wire.Message) firstAnswer
	// begin tells a process the settings of its sessions. The process has answered the
	// first message.
	begin()
	// initialized returns the result that a session's client gets for its initialize.
	initialized(s *session) json.RawMessage
	// params returns the params of a request of the box itself, without those of the
	// request's method.
	params(method string) json.RawMessage
	// outgoing translates a client's line for the process. It returns nil if the process
	// must get nothing. r is the request in the line, nil for other messages.
	outgoing(r *request, line []byte) []byte
	// withdraw has the process stop working on a request. It returns false if the caller
	// is to send the client's own cancellation instead.
	withdraw(r *request) bool
	// prove asks the process for something that every server answers. It returns false if
	// there is nothing of that kind.
	prove() bool
	// response takes the response to a request in flight.
	response(r *request, m wire.Message)
	// notification translates a notification of the process for clients. It returns
	// false for one that clients must not get.
	notification(m wire.Message) (wire.Message, bool)
	// tellSettings tells a process the level and the subscriptions of its sessions, if they have
	// changed. The arguments are the previous ones.
	tellSettings(level string, subscriptions []string)
}

type firstAnswer struct {
	version string     // the version that the box asked for
	era     bridge.Era // the protocols of the server, "" if the response does not say
	refused *fault     // not nil: the process does not speak this protocol
	failed  *fault     // not nil: the response cannot be used
}

// withParams returns a request with these params instead of its own; nil removes them.
func withParams(m wire.Message, params json.RawMessage) []byte {
	m.Params = params
	return m.Line()
}
