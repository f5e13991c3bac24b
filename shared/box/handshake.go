package box

import (
	"cmp"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// handshake begins the conversation with a process: it finds out which protocol the process
// speaks, within a time limit.
type handshake struct {
	p         *process
	begun     time.Time
	probe     probe
	stateless bool        // the box speaks the stateless protocol (2026-07-28) to the process
	refused   *fault      // the error of the previous process if it has refused the other of the two protocols, else nil
	insist    *time.Timer // sends initialize to a process that does not answer server/discover
	startup   *time.Timer // limits the time for the handshake
}

// probe says which process was sent server/discover to find out the server's protocol.
type probe int

const (
	probeNone    probe = iota // none
	probing                   // this one
	probeRefused              // the previous one, which refused it
	probeSilent               // the previous one, which did not answer it
)

func newHandshake(p *process, isStateless bool, how probe) *handshake {
	h := &handshake{p: p, stateless: isStateless, probe: how}
	if isStateless {
		p.proto = &stateless{p: p}
	} else {
		p.proto = &sessionful{p: p}
	}
	return h
}

// speaks returns which protocol the box speaks to a new process of g, and whether that
// is a probe, because the server's protocol is unknown.
func speaks(g *group) (isStateless bool, p probe) {
	switch {
	case g.box.era == wire.ModernOnly:
		return true, probeNone
	case g.box.server.Scope.wide() || !bridge.SaysModern(g.speaker.init):
		return false, probeNone
	case g.box.era == "":
		return true, probing
	default:
		return g.box.era == wire.DualEra, probeNone
	}
}

// start sends the first message to a process that was just started.
func (h *handshake) start() {
	p := h.p
	method := p.proto.hello(p.first)
	p.own[p.first] = &ownRequest{method: method, take: h.greeted, broken: h.unreadable}
	limit := p.box.server.StartupTimeout
	within := limit - time.Since(h.begun)
	if h.probe == probing {
		within = min(within, p.box.server.ProbeTime)
		h.insist = p.box.server.Guard.After(within/6, h.insisted)
	}
	h.startup = p.box.server.Guard.After(within, func() {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		if p.greeted || p.state == gone {
			return
		}
		if h.probe == probing {
			h.probed(probeSilent)
			return
		}
		f := p.box.server.fault(PhaseMCPInit, "did not answer %s within %s (startup_timeout_sec); it runs", method, limit)
		f.words = p.output.words(written{})
		f.message += p.output.besides(f.words)
		f.data.Limit, f.data.Setting = limit.Seconds(), "startup_timeout_sec"
		p.fail(f)
	})
}

func (h *handshake) stop() {
	for _, t := range []*time.Timer{h.startup, h.insist} {
		if t != nil {
			t.Stop()
		}
	}
}

// greeted handles the response to the first message.
func (h *handshake) greeted(m wire.Message) {
	p := h.p
	g := p.proto.greeted(m)
	switch {
	case g.failed != nil:
		p.fail(g.failed)
		return
	case g.refused != nil && h.stateless:
		h.probed(probeRefused)
		return
	case g.refused != nil:
		h.replace(true, g.refused, "it refused initialize, so another process gets server/discover")
		return
	case h.stateless && h.refused != nil:
		p.box.era = wire.ModernOnly
	case h.stateless:
		if p.box.era != wire.ModernOnly {
			p.box.era = wire.DualEra
		}
	case h.refused != nil || h.probe != probeNone:
		p.box.era = wire.LegacyOnly
	}
	h.done(g.version)
}

// unreadable handles a response to the first message if the response cannot be parsed.
func (h *handshake) unreadable(f *fault) {
	if h.stateless && (h.probe == probing || h.refused != nil) {
		h.probed(probeRefused) // a server that does not know the method may answer anything
		return
	}
	h.p.fail(f)
}

// insisted sends initialize too if the process has not answered server/discover. The first result
// decides which protocol the process speaks (MCP 2026-07-28, stdio).
func (h *handshake) insisted() {
	p := h.p
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if h.probe != probing || p.state >= ready {
		return
	}
	second := p.conv.own()
	s := &sessionful{p: p}
	p.own[second] = &ownRequest{method: wire.MethodInitialize, take: func(m wire.Message) {
		// An error is ignored: the answer to server/discover will say more.
		if p.greeted || m.Error != nil || m.Result[0] != '{' {
			return
		}
		s.introduced(m.Result)
		delete(p.own, p.first) // an answer to server/discover is ignored from now on
		p.proto, h.stateless, h.probe, p.box.era = s, false, probeSilent, wire.LegacyOnly
		h.done(s.version)
	}}
	s.hello(second)
}

// probed replaces a process that has refused server/discover, or has not answered it. The next
// process gets initialize.
func (h *handshake) probed(how probe) {
	why := "it refused server/discover, so another process gets initialize"
	if how == probeSilent {
		why = "it did not answer server/discover in time, so another process gets initialize"
	}
	if next := h.replace(false, notStateless(h.p.box.server), why); next != nil {
		next.refused, next.probe = nil, how
	}
}

// replace hands the conversation over to a new process with the other of the two protocols, because
// h.p has refused its own with the error f. It returns the handshake with the new process. If the
// other protocol was tried before, or no process may take over, h.p fails and replace returns nil.
// The argument why is a text for the log of h.p.
func (h *handshake) replace(isStateless bool, f *fault, why string) *handshake {
	p := h.p
	switch {
	case h.refused != nil:
		p.fail(h.refused)
		return nil
	case h.probe == probeRefused || p.state >= stopping:
		p.fail(f)
		return nil
	case !p.isCurrent() && (p.box.closed || p.group.current != nil):
		p.fail(cmp.Or(p.clock.last, f))
		return nil
	}
	p.box.log.Info("process refuses the protocol it was spoken to in", "server", p.box.server.Name, "process", p.group.id, "stateless", !isStateless)
	p.replaced = why
	successor := newHandshake(newProcess(p.group), isStateless, probeNone)
	successor.refused = p.fill(f)
	p.handOver(successor)
	return successor
}

// done ends the handshake. The argument version is the protocol version that the box asked for.
// done sends the process the settings of its sessions, and then the waiting messages.
func (h *handshake) done(version string) {
	p := h.p
	h.startup.Stop()
	p.greeted = true
	p.to(ready)
	p.box.starts.success()
	p.report(Ready, nil)
	p.tellHandshake(version)
	p.group.logAnew()
	p.group.tellAnew()
	p.proto.begin()
	p.answerInitialize()
	p.sendHeld()
	if p.box.server.Lists {
		(&survey{p: p, hashes: map[string]string{}}).begin()
	}
	p.clock.quiet()
}

// tellHandshake passes the result of initialize to the sink, and tells the clients if lists may have
// changed.
func (p *process) tellHandshake(version string) {
	s := p.group.speaker
	f := frame.Status{Session: storage.ID(s.id), Ticket: s.ticket, Detail: version, Payload: p.proto.initialized(s)}
	if p.box.era != p.box.server.Era {
		f.Era = p.box.era
	}
	s.tell(pendingOutput{call: func(k Sink) { k.Status(f) }})
	for _, s := range p.group.members {
		p.announce(s)
	}
}

// answerInitialize answers the initialize requests of clients, which have waited for the process.
func (p *process) answerInitialize() {
	for _, r := range p.conv.inOrder() {
		if r.method == wire.MethodInitialize {
			p.conv.end(r, wire.ResultResponse(r.id, p.proto.initialized(r.stream.session)))
		}
	}
}
