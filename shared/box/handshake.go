package box

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// handshake begins the conversation with a process: it finds out which protocol the
// process speaks, and limits the time for it.
type handshake struct {
	p       *process
	id      int64 // the number of the first message
	begun   time.Time
	probe   probe
	refused *fault      // why the process before refused the other protocol, or nil
	insist  *time.Timer // sends initialize to a process that does not answer server/discover
	startup *time.Timer
	version string // the one that the box asked for
}

// probe is the state of asking a server of unknown protocol for server/discover.
type probe int

const (
	probeNone    probe = iota // no process was asked
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

// introduce sends initialize under this number.
func (h *handshake) introduce(number int64) {
	id := strconv.AppendInt(nil, number, 10)
	params := h.p.g.initParams()
	h.version, _ = wire.String(wire.Lookup(params, "protocolVersion"))
	// The client's progress token could be the number of another request, so the box's
	// own goes in its place.
	params, _ = wire.Replace(params, id, "_meta", wire.MetaProgressToken)
	if bridge.SaysModern(params) {
		params = bridge.Strip(wire.MethodInitialize, params)
	}
	h.p.write(wire.Compact(wire.NewRequest(id, wire.MethodInitialize, params)))
}

// initParams returns the params of the client's initialize. If they cannot be used, it
// returns those of a client without capabilities.
func initParams(of json.RawMessage) json.RawMessage {
	if m, err := wire.Parse(wire.NewRequest(json.RawMessage("0"), wire.MethodInitialize, of)); err == nil && wire.Lookup(m.Params, "protocolVersion") != nil {
		return m.Params
	}
	return json.RawMessage(`{"protocolVersion":"` + wire.V20251125 + `","capabilities":{},"clientInfo":{"name":"dormouse","version":"1"}}`)
}

// insisted sends initialize to a process that does not answer server/discover. Some
// servers skip unknown methods; others have yet to read their first message. The first
// answer decides which protocol the process speaks (MCP 2026-07-28, stdio).
func (h *handshake) insisted() {
	p := h.p
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if h.probe != probing || p.state >= ready {
		return
	}
	second := p.conv.own()
	p.own[second] = func(m wire.Message) {
		// The answer to server/discover will say more than an error.
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

// probed starts another process in the place of one that did not answer server/discover
// as stateless servers do.
func (h *handshake) probed(how probe) {
	p := h.p
	h.replace(false, p.box.server.fault(PhaseMCPInit, "does not answer server/discover as a server of version %s", wire.V20260728))
	if next := p.g.current; p.followed && next != nil {
		next.hello.refused, next.hello.probe = nil, how
	}
}

// replace starts another process, in the other protocol, in the place of one that
// refuses its protocol; it takes over the conversation. If the other protocol was tried
// already, the process fails.
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
	p.to(gone) // nothing that it still says has an owner
	p.stop(nil)
	p.g.current = next
}

// done ends the handshake. The process gets the settings of its sessions and then the
// waiting messages.
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
