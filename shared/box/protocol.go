package box

import (
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// protocol is how a process is spoken to. A process has one protocol, which its first
// message decides: [sessionful] with initialize (versions up to 2025-11-25), or
// [stateless] (2026-07-28). A server that speaks both is spoken to in the protocol of
// the session's client.
//
// While nothing is known of a server, the first process for a stateless client is asked
// for server/discover, and is replaced if it does not understand. The first process for
// any other client is asked for initialize, and is replaced only if it refuses. The
// result holds for all later processes of the box, until one refuses. A process of
// several sessions gets initialize, if the server has it.
type protocol interface {
	// hello writes the first message, under this id, and returns its method.
	hello(id int64) (method string)
	// greeted takes the response to that.
	greeted(m wire.Message)
	// begin tells a process that has answered what its sessions have set before.
	begin()
	// initialized is the result that a session's client gets for its initialize.
	initialized(s *session) json.RawMessage
	// outgoing is a client's line as the process understands it, nil if there is nothing
	// to send. r is the request in it, nil for other messages.
	outgoing(r *request, line []byte) []byte
	// withdraw has the process stop working on a request. It is false if the client's own
	// cancellation does that.
	withdraw(r *request) bool
	// response takes the response to a request in flight.
	response(r *request, m wire.Message)
	// notification is a notification of the process as clients know it. It is false for
	// one that is not for them.
	notification(m wire.Message) (wire.Message, bool)
	// settle tells a process what its sessions want, if that is not what they wanted
	// before.
	settle(level string, subscriptions []string)
}

// newProtocol is one of the two.
func newProtocol(p *process, isStateless bool) protocol {
	if isStateless {
		return &stateless{p: p}
	}
	return &sessionful{p: p}
}

// Era is what the server speaks, "" if that is not known.
func (b *Box) Era() bridge.Era {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.era
}

// speaks says in which protocol a new process of the group is spoken to, and whether
// that has to be found out.
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

// client is a session's client as the server is told of it.
func (s *session) client() bridge.Legacy { return bridge.ReadLegacy(initParams(s.init)) }

// withParams is a request with other params, nil for none.
func withParams(m wire.Message, params json.RawMessage) []byte {
	m.Params = params
	return m.Line()
}
