package box

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Servers of the modern era (2026-07-28). One process has one era, which its first
// message decides; a server that speaks both is spoken to in that of the session's
// client. As long as nothing is known of a server, the first process for a modern
// client is asked for server/discover, and if that is not understood it was one to
// throw away; the first for a legacy client is asked for initialize, and only if it
// refuses, another for server/discover. What was found out holds for all later
// processes of the box, until one refuses it. A process of several sessions is spoken
// to in the legacy era, if it can be.
//
// A request of a modern client passes to such a process as it is, and so does the
// answer. With one of a legacy client it gets what that said in initialize. It does
// not ask: it answers that it needs input. The delivery of a legacy client then is
// suspended, and nothing of it stays here.

// Era is what the server speaks, "" if that is not known.
func (b *Box) Era() bridge.Era {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.era
}

// probe is what is known of a process by asking for server/discover in a process of
// a server of which nothing was known.
type probe int

const (
	probeNone    probe = iota // nobody asked
	probing                   // this process is asked
	probeRefused              // the one before has refused
	probeSilent               // the one before has not answered
)

// speaks says in which era a new process of the group is spoken to.
func (g *group) speaks() (modern bool, p probe) {
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

// probed has another process take over from one that did not answer server/discover
// as servers of the modern era do.
func (p *process) probed(how probe) {
	p.otherwise(false, p.box.server.fault(PhaseMCPInit, "does not answer server/discover as a server of version %s", wire.V20260728))
	if next := p.g.current; p.followed && next != nil {
		next.refused, next.probe = nil, how
	}
}

// insisted says initialize to a process that does not answer server/discover: some
// servers pass over what they do not know, others have yet to read their first
// message. Whichever is answered first is what the process speaks (MCP 2026-07-28,
// stdio).
func (p *process) insisted() {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if p.probe == probing && p.state == Started && !p.ended && !p.stopping {
		p.second = p.conv.own()
		p.introduce(p.second)
	}
}

// greetedAfterAll takes the answer to that. An error says less than the answer to
// server/discover will.
func (p *process) greetedAfterAll(m wire.Message) {
	if p.state == Started && m.Error == nil && m.Result[0] == '{' {
		p.modern, p.probe, p.box.era = false, probeSilent, bridge.LegacyOnly
		p.introduced(m.Result)
		p.ready()
	}
}

// discovered takes the answer to server/discover.
func (p *process) discovered(m wire.Message) {
	era := bridge.ReadProbe(m)
	if m.Error != nil || era == bridge.LegacyOnly {
		p.probed(probeRefused)
		return
	}
	if p.refused != nil {
		era = bridge.ModernOnly // whatever it says of initialize
	}
	p.discover, p.box.era = m.Result, era
	p.version, _ = wire.String(wire.Lookup(p.g.initParams(), "protocolVersion"))
	p.result = p.greeting(p.g.speaker)
	p.ready()
}

// client is a session's client as the server is told of it.
func (s *session) client() bridge.Legacy { return bridge.ReadLegacy(initParams(s.init)) }

// greeting is what the client of a session gets for its initialize.
func (p *process) greeting(s *session) json.RawMessage {
	if p.modern {
		return s.client().Initialize(p.discover)
	}
	return p.result
}

// otherwise has another process take over all that this one was to do, because it
// refuses the era it was spoken to in. If the other one was tried already, it fails.
func (p *process) otherwise(modern bool, f *fault) {
	if p.refused != nil {
		p.fail(p.refused)
		return
	}
	if p.probe == probeRefused {
		p.fail(f)
		return
	}
	if p.stopping || p.g.current != p {
		p.fail(f)
		return
	}
	p.box.log.Info("process refuses the era it was spoken to in", "server", p.box.server.Name, "process", p.g.id, "modern", p.modern)
	p.followed = true
	next := p.g.start(p)
	next.modern, next.refused, next.probe = modern, p.fill(f), probeNone
	empty := next.conv
	next.converse(p.conv)
	next.held, next.heldBytes = p.held, p.heldBytes
	p.converse(empty)
	p.held, p.heldBytes = nil, 0
	p.ended = true // what it still says belongs to nothing
	p.stop(nil)
	p.g.current = next
}

// # To the process

// translate is a line in the words of the process's era. It is nil if there is nothing
// to send: the era has no such message, or it is answered here.
func (p *process) translate(number int64, line []byte) []byte {
	r := p.conv.requests[number]
	theirs := r != nil && r.modern
	if p.modern == theirs {
		return line
	}
	m, err := wire.Parse(line)
	switch {
	case err != nil:
		return line
	case theirs:
		return withParams(m, bridge.Strip(m.Method, m.Params))
	case m.Kind == wire.Notification:
		if m.Method == wire.NotifyRootsChanged {
			return nil // they are asked for in each call
		}
		return line
	case r == nil:
		return line
	}
	switch m.Method {
	case wire.MethodSubscribe, wire.MethodUnsubscribe:
		p.subscribe()
		p.conv.end(r, wire.ResultResponse(r.id, nil))
		return nil
	case wire.MethodSetLevel, wire.MethodPing:
		p.conv.end(r, wire.ResultResponse(r.id, nil)) // the level goes with each request
		return nil
	}
	r.line = line
	s := r.stream.session
	return withParams(m, s.client().Params(m.Method, m.Params, s.level, r.stream.round > 0 || r.retries > 0))
}

// withParams is a request with other params, nil for none.
func withParams(m wire.Message, params json.RawMessage) []byte {
	m.Params = params
	return m.Line()
}

// subscribe asks for the notifications of changes that the session wants, in the
// place of what was asked before.
func (p *process) subscribe() {
	if p.changes != 0 {
		p.write(wire.NewNotification(wire.NotifyCancelled, fmt.Appendf(nil, `{"requestId":%d}`, p.changes)))
	}
	n := p.conv.own()
	raw := p.g.speaker.client().Listen(strconv.AppendInt(nil, n, 10), p.discover, p.g.subscriptions())
	if p.changes = 0; raw == nil {
		return
	}
	p.changes, p.own[n] = n, true
	p.write(raw)
}

// # From the process

// respond passes a response of the process to the client that waits for it. It is
// false when none does.
func (p *process) respond(m wire.Message) bool {
	r := p.conv.request(m.ID)
	switch {
	case r == nil:
		return false
	case !p.modern && p.asTask(r, m):
		return true
	case !p.modern || r.modern:
		return p.conv.response(p.listed(r, m))
	case m.Error != nil:
		m.Error = bridge.PlainFault(r.method, m.Error)
	case bridge.Wants(m.Result):
		p.needs(r, m.Result)
		return true
	default:
		m.Result = bridge.Plain(m.Result)
	}
	return p.conv.response(m)
}

// plain is a notification of the process as clients know it.
func (p *process) plain(m wire.Message) (wire.Message, bool) {
	if !p.modern {
		return m, true
	}
	raw := bridge.PlainNotification(m)
	if raw == nil {
		return m, false
	}
	m, err := wire.Parse(raw)
	return m, err == nil
}

// Retries of a request whose server wants to be called again at once.
const (
	maxRetries = 10
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// needs takes the word of the process that it needs something for a request.
func (p *process) needs(r *request, result json.RawMessage) {
	inputs, state, fault := bridge.ReadInputs(result)
	if fault == nil && len(inputs) == 0 {
		p.retry(r, state)
		return
	}
	var a asking
	if fault == nil {
		st := r.stream
		a.questions, a.requests, fault = st.session.client().Ask(st.id, st.round+1, st.questions(), len(st.asking), inputs)
	}
	if fault != nil {
		p.conv.end(r, wire.ErrorResponse(r.id, fault))
		return
	}
	a.raw = bridge.Retry(r.original(), state)
	a.within = p.box.server.AnswerTimeout
	p.conv.suspend(r, a)
}

// original is a request as the client wrote it.
func (r *request) original() []byte {
	raw, _ := wire.Replace(r.line, r.id, "id")
	if r.token != nil {
		raw, _ = wire.Replace(raw, r.token, "params", "_meta", wire.MetaProgressToken)
	}
	return raw
}

// retry sends a request again, a little later.
func (p *process) retry(r *request, state json.RawMessage) {
	if r.retries++; r.retries > maxRetries {
		f := p.box.server.fault(phaseOf(r), "wants %s to be sent again and again; it was given up after %d times", r.method, maxRetries)
		p.conv.end(r, p.fill(f).response(r.id))
		return
	}
	line := bridge.Retry(r.line, state)
	time.AfterFunc(min(firstRetry<<(r.retries-1), lastRetry), func() {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		if p.conv.requests[r.number] == r && !p.ended && !p.send(r.number, line) {
			p.conv.end(r, p.deaf().response(r.id))
		}
	})
}
