package box

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// initialize begins the handshake with a process that was just started.
func (p *process) initialize() {
	method := wire.MethodInitialize
	if p.modern {
		method = wire.MethodDiscover
		p.write(bridge.Probe(strconv.AppendInt(nil, p.handshake, 10)))
	} else {
		p.introduce(p.handshake)
	}
	limit := p.box.server.StartupTimeout
	within := limit - time.Since(p.begun)
	if p.probe == probing {
		within = min(within, p.box.server.ProbeTime)
		p.insist = time.AfterFunc(within/6, p.insisted)
	}
	p.startup = time.AfterFunc(within, func() {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		if p.state != Started || p.ended {
			return
		}
		if p.probe == probing {
			p.probed(probeSilent)
			return
		}
		f := p.box.server.fault(PhaseMCPInit, "did not answer %s within %s (startup_timeout_sec)", method, limit)
		f.data.Limit, f.data.Setting = limit.Seconds(), "startup_timeout_sec"
		p.fail(f)
	})
}

// introduce says who the client is, in the legacy era.
func (p *process) introduce(number int64) {
	id := strconv.AppendInt(nil, number, 10)
	params := p.g.initParams()
	p.version, _ = wire.String(wire.Lookup(params, "protocolVersion"))
	// A token of the client is no token of ours: progress for it would be taken for
	// that of another request.
	params, _ = wire.Replace(params, id, "_meta", wire.MetaProgressToken)
	if bridge.SaysModern(params) {
		params = bridge.Strip(wire.MethodInitialize, params)
	}
	p.write(wire.Compact(wire.NewRequest(id, wire.MethodInitialize, params)))
}

// initParams are those of the client, or what a client without wishes would send
// if it sent none that can be used.
func initParams(of json.RawMessage) json.RawMessage {
	if m, err := wire.Parse(wire.NewRequest(json.RawMessage("0"), wire.MethodInitialize, of)); err == nil && wire.Lookup(m.Params, "protocolVersion") != nil {
		return m.Params
	}
	return json.RawMessage(`{"protocolVersion":"` + wire.V20251125 + `","capabilities":{},"clientInfo":{"name":"dormouse","version":"1"}}`)
}

// answered takes a response of the process: to initialize, to another request of
// ours, or to a client's.
func (p *process) answered(m wire.Message) {
	n, err := strconv.ParseInt(string(m.ID), 10, 64)
	switch {
	case err == nil && n == p.handshake:
		p.greeted(m)
	case err == nil && n == p.second:
		p.greetedAfterAll(m)
	case err == nil && p.own[n]:
		delete(p.own, n)
	case err == nil && p.toolsTold(n, m):
	case !p.respond(m):
		p.box.counts.Late++
	}
}

// greeted takes the answer to initialize.
func (p *process) greeted(m wire.Message) {
	switch {
	case p.state != Started:
		p.box.counts.Late++
	case p.modern:
		p.discovered(m)
	case m.Error != nil:
		e := refusal(m.Error, p.box.hide)
		f := p.box.server.fault(PhaseMCPInit, "refused initialize: %s (%d)", e.Message, e.Code)
		f.data.ServerError = e
		p.otherwise(true, f)
	case m.Result[0] != '{':
		p.fail(p.box.server.fault(PhaseMCPInit, "answered initialize with a result that is no object"))
	default:
		p.introduced(m.Result)
		if p.refused != nil || p.probe != probeNone {
			p.box.era = bridge.LegacyOnly
		}
		p.ready()
	}
}

// ready ends the handshake: the process learns what the session has set before, and
// then gets what waits for it.
func (p *process) ready() {
	p.startup.Stop()
	p.state = Ready
	p.box.starts.success()
	p.report(Ready, nil)
	session, ticket, version, result := p.g.speaker.id, p.g.speaker.ticket, p.version, p.result
	p.g.speaker.tell(told{call: func(k Sink) { k.Handshake(session, ticket, version, result) }})

	if p.modern {
		p.subscribe()
	} else {
		p.setUpAll()
	}
	for _, r := range p.conv.inOrder() {
		if r.method == wire.MethodInitialize {
			p.conv.end(r, wire.ResultResponse(r.id, p.greeting(r.stream.session)))
		}
	}
	p.sendHeld()
	p.touch()
}

// setUpAll tells a process of the legacy era what the session has set before.
func (p *process) setUpAll() {
	p.write(wire.NewNotification(wire.NotifyInitialized, nil))
	if level := p.g.level(); level != "" {
		p.setUp(wire.MethodSetLevel, map[string]string{"level": level})
	}
	for _, uri := range p.g.subscriptions() {
		p.setUp(wire.MethodSubscribe, map[string]string{"uri": uri})
	}
}

// setUp sends a request of our own. Its answer goes nowhere: what it asks for is
// a matter between the client and a process that is no more.
func (p *process) setUp(method string, params map[string]string) {
	raw, err := json.Marshal(params)
	if err != nil {
		return // strings always encode
	}
	n := p.conv.own()
	p.own[n] = true
	p.write(wire.NewRequest(strconv.AppendInt(nil, n, 10), method, raw))
}

// sendHeld sends what came while the process was not ready, but for requests that
// were cancelled meanwhile.
func (p *process) sendHeld() {
	held := p.held
	p.held, p.heldBytes = nil, 0
	for _, h := range held {
		r := p.conv.requests[h.number]
		if h.number != 0 && r == nil {
			continue
		}
		if !p.send(h.number, h.line) && r != nil {
			p.conv.end(r, p.deaf().response(r.id))
		}
	}
}
