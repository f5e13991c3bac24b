package box

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// handshake begins the talk with a process: it finds out what the process speaks, and
// bounds how long that takes.
type handshake struct {
	p       *process
	id      int64 // of the first message
	begun   time.Time
	probe   probe
	refused *fault      // why the process before refused the other protocol, nil if none did
	insist  *time.Timer // to say initialize to one that does not answer server/discover
	startup *time.Timer
	version string // asked for
}

// probe is what is known by asking a process of an unknown server for server/discover.
type probe int

const (
	probeNone    probe = iota // nobody asked
	probing                   // this process is asked
	probeRefused              // the one before has refused
	probeSilent               // the one before has not answered
)

// start says hello to a process that was just started.
func (h *handshake) start() {
	p := h.p
	p.own[h.id] = func(m wire.Message) { p.proto.greeted(m) }
	method := p.proto.hello(h.id)
	limit := p.box.server.StartupTimeout
	within := limit - time.Since(h.begun)
	if h.probe == probing {
		within = min(within, p.box.server.ProbeTime)
		h.insist = time.AfterFunc(within/6, h.insisted)
	}
	h.startup = time.AfterFunc(within, func() {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		if p.greeted || p.state == gone {
			return
		}
		if h.probe == probing {
			h.probed(probeSilent)
			return
		}
		f := p.box.server.fault(PhaseMCPInit, "did not answer %s within %s (startup_timeout_sec)", method, limit)
		f.data.Limit, f.data.Setting = limit.Seconds(), "startup_timeout_sec"
		p.fail(f)
	})
}

// stop stops the timers.
func (h *handshake) stop() {
	for _, t := range []*time.Timer{h.startup, h.insist} {
		if t != nil {
			t.Stop()
		}
	}
}

// introduce says initialize, under this id.
func (h *handshake) introduce(number int64) {
	id := strconv.AppendInt(nil, number, 10)
	params := h.p.g.initParams()
	h.version, _ = wire.String(wire.Lookup(params, "protocolVersion"))
	// A token of the client is no token of ours: progress for it would be taken for
	// that of another request.
	params, _ = wire.Replace(params, id, "_meta", wire.MetaProgressToken)
	if bridge.SaysModern(params) {
		params = bridge.Strip(wire.MethodInitialize, params)
	}
	h.p.write(wire.Compact(wire.NewRequest(id, wire.MethodInitialize, params)))
}

// initParams are those of the client, or what a client without wishes would send
// if it sent none that can be used.
func initParams(of json.RawMessage) json.RawMessage {
	if m, err := wire.Parse(wire.NewRequest(json.RawMessage("0"), wire.MethodInitialize, of)); err == nil && wire.Lookup(m.Params, "protocolVersion") != nil {
		return m.Params
	}
	return json.RawMessage(`{"protocolVersion":"` + wire.V20251125 + `","capabilities":{},"clientInfo":{"name":"dormouse","version":"1"}}`)
}

// insisted says initialize to a process that does not answer server/discover: some
// servers pass over what they do not know, others have yet to read their first
// message. Whichever is answered first is what the process speaks (MCP 2026-07-28,
// stdio).
func (h *handshake) insisted() {
	p := h.p
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if h.probe != probing || p.state >= ready {
		return
	}
	second := p.conv.own()
	p.own[second] = func(m wire.Message) {
		// An error says less than the answer to server/discover will.
		if p.greeted || m.Error != nil || m.Result[0] != '{' {
			return
		}
		s := &sessionful{p: p}
		s.introduced(m.Result)
		p.proto, h.probe, p.box.era = s, probeSilent, bridge.LegacyOnly
		h.done()
	}
	h.introduce(second)
}

// probed has another process take over from one that did not answer server/discover
// as stateless servers do.
func (h *handshake) probed(how probe) {
	p := h.p
	h.replace(false, p.box.server.fault(PhaseMCPInit, "does not answer server/discover as a server of version %s", wire.V20260728))
	if next := p.g.current; p.followed && next != nil {
		next.hello.refused, next.hello.probe = nil, how
	}
}

// replace has another process take over all that this one was to do, because it
// refuses the protocol it was spoken to in. If the other protocol was tried already,
// the process fails.
func (h *handshake) replace(isStateless bool, f *fault) {
	p := h.p
	switch {
	case h.refused != nil:
		p.fail(h.refused)
		return
	case h.probe == probeRefused || p.state >= stopping || p.g.current != p:
		p.fail(f)
		return
	}
	p.box.log.Info("process refuses the protocol it was spoken to in", "server", p.box.server.Name, "process", p.g.id, "stateless", !isStateless)
	p.followed = true
	next := p.g.start(p)
	next.proto, next.hello.refused, next.hello.probe = newProtocol(next, isStateless), p.fill(f), probeNone
	empty := next.conv
	next.converse(p.conv)
	next.held = p.held
	p.converse(empty)
	p.held = heldLines{}
	p.to(gone) // what it still says belongs to nothing
	p.stop(nil)
	p.g.current = next
}

// done ends the handshake: the process learns what its sessions have set before, and
// then gets what waits for it.
func (h *handshake) done() {
	p := h.p
	h.startup.Stop()
	p.greeted = true
	p.to(ready)
	p.box.starts.success()
	p.report(Ready, nil)
	session, ticket, version, result := p.g.speaker.id, p.g.speaker.ticket, h.version, p.proto.initialized(p.g.speaker)
	p.g.speaker.tell(told{call: func(k Sink) { k.Handshake(session, ticket, version, result) }})

	p.proto.begin()
	for _, r := range p.conv.inOrder() {
		if r.method == wire.MethodInitialize {
			p.conv.end(r, wire.ResultResponse(r.id, p.proto.initialized(r.stream.session)))
		}
	}
	p.sendHeld()
	p.clock.quiet()
}
