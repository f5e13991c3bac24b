package box

import (
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// protocol is the way in which the box speaks to a process. Its first message decides:
// [sessionful] begins with initialize (versions up to 2025-11-25), [stateless] does not
// (2026-07-28). With a server that speaks both, the box uses the protocol of the
// session's client.
//
// While the server's protocol is unknown, the first process for a stateless client gets
// server/discover; the box replaces it if it does not understand. The first process for
// any other client gets initialize; the box replaces it only if it refuses. The result
// holds for all later processes of the box until one refuses. A process of several
// sessions gets initialize, if the server has it.
type protocol interface {
	// hello writes the first message, under this id, and returns its method.
	hello(id int64) (method string)
	// greeted takes the response to the first message.
	greeted(m wire.Message)
	// begin tells a process that has answered the settings of its sessions.
	begin()
	// initialized returns the result that a session's client gets for its initialize.
	initialized(s *session) json.RawMessage
	// outgoing translates a client's line for the process. It returns nil if there is
	// nothing to send. r is the request in it, nil for other messages.
	outgoing(r *request, line []byte) []byte
	// withdraw has the process stop working on a request. It returns false if the caller
	// is to send the client's own cancellation instead.
	withdraw(r *request) bool
	// response takes the response to a request in flight.
	response(r *request, m wire.Message)
	// notification translates a notification of the process for clients. It returns
	// false for one that clients must not get.
	notification(m wire.Message) (wire.Message, bool)
	// settle tells a process the level and the subscriptions of its sessions, if they
	// differ from those before, which are the arguments.
	settle(level string, subscriptions []string)
}

func newProtocol(p *process, isStateless bool) protocol {
	if isStateless {
		return &stateless{p: p}
	}
	return &sessionful{p: p}
}

// Era returns which protocols the server was found to speak, "" if that is not known.
func (b *Box) Era() bridge.Era {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.era
}

// speaks returns the protocol for a new process of the group, and whether the box has to
// probe for it.
func (g *group) speaks() (isStateless bool, p probe) {
	switch {
	case g.box.era == bridge.ModernOnly:
		return true, probeNone
	case g.box.server.Scope.wide() || !bridge.SaysModern(g.speaker.init):
		return false, probeNone
	case g.box.era == "":
		return true, probing
	default:
		return g.box.era == bridge.DualEra, probeNone
	}
}

// client returns a session's client as the server is to see it.
func (s *session) client() bridge.Legacy { return bridge.ReadLegacy(initParams(s.init)) }

// withParams returns a request with other params, nil for none.
func withParams(m wire.Message, params json.RawMessage) []byte {
	m.Params = params
	return m.Line()
}
