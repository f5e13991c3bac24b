package box

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// listener reads the stdout of a process.
type listener struct {
	p      *process
	spread spread // a message that the process is writing over several lines
	note   string // a line for the process's log, which is written when the box is unlocked
}

// listen reads lines until the process closes its stdout. listen waits while too much output waits
// for the sink.
func (l *listener) listen() {
	p := l.p
	from := io.MultiReader(bytes.NewReader(p.nap.said), p.child.Stdout())
	lines := proc.NewLineReader(from, maxLine, p.box.server.Guard.Budget())
	defer lines.Close()
	defer l.last(lines)
	for {
		line, err := lines.Next()
		switch long, ok := errors.AsType[*proc.TooLong](err); {
		case ok:
			l.overlong(long)
		case err != nil:
			return
		default:
			l.hear(line)
		}
		p.group.awaitRoom()
	}
}

// last handles output that does not end in a newline. If the process is being frozen, last only
// stores this output, because the process will write the rest of the line after it is thawed.
func (l *listener) last(lines *proc.LineReader) {
	p := l.p
	rest, ok := lines.Rest()
	if isClosed(p.nap.drowsy) {
		p.nap.rest, p.nap.cut = rest, !ok
	} else if len(rest) > 0 {
		l.hear(bytes.TrimSuffix(rest, []byte("\r")))
	}
}

func (l *listener) hear(line []byte) {
	l.spread.add(line)
	wire.Hear(line, l.part)
	if id, ok := l.spread.answers(); ok {
		p := l.p
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		if p.state != gone {
			l.unreadable(id, l.spread.text, "it has several lines, and every message must be on one", true)
		}
	}
}

// part handles a part of a line: a message, or text that is no message.
func (l *listener) part(m wire.Message, raw []byte, err error) {
	p := l.p
	kept := err != nil && !l.spread.ours && wire.Lookup(raw, "jsonrpc") == nil
	if kept {
		p.output.keep(raw)
	}
	if p.output.refused.from != nil && err == nil && m.Kind == wire.Response && hasFailed(m) {
		p.hearRefusals(false) // the failure may come from a refused connection, which was reported before it
	}
	l.note = ""
	l.locked(m, raw, err, kept)
	if l.note != "" {
		p.output.log.Note("%s", l.note)
	}
}

// locked handles a part of a line with the box locked. The argument kept is true if output.keep
// has stored the part.
func (l *listener) locked(m wire.Message, raw []byte, err error, kept bool) {
	p := l.p
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if kept {
		p.output.wrote.kept++
	}
	switch {
	case p.state == gone:
	case err != nil:
		l.garbled(m.ID, raw, err, kept)
	default:
		l.heard(m, raw)
	}
}

func (l *listener) heard(m wire.Message, raw []byte) {
	p := l.p
	p.output.spoke = true
	switch m.Kind {
	case wire.Response:
		p.clock.alive()
		l.answered(m, raw)
	case wire.Request:
		if m.Method == wire.MethodPing {
			p.write(wire.ResultResponse(m.ID, nil))
			return
		}
		p.clock.alive()
		if refused := p.conv.ask(m); refused != nil {
			p.write(wire.ErrorResponse(m.ID, refused))
		}
	case wire.Notification:
		subscribed := wire.Lookup(m.Params, "_meta", wire.MetaSubscriptionID) != nil
		m, ok := p.proto.notification(m)
		if ok && p.conv.notification(m, subscribed) && m.Method == wire.NotifyProgress {
			p.clock.alive()
		}
	}
}

// answered handles a response of the process to a request of the box or of a client.
func (l *listener) answered(m wire.Message, raw []byte) {
	p := l.p
	if n, own, ours := l.own(m.ID); ours {
		delete(p.own, n)
		p.notes.sent = false
		if own.take != nil {
			own.take(m)
		}
		return
	}
	if r := p.conv.request(m.ID); r != nil {
		p.notes.sent = false
		p.proto.response(r, p.withRefusals(r, m))
		return
	}
	if m.ID == nil {
		l.unnamed(m, raw)
	}
}

// unnamed handles an error response without an id. If the error may be about a notification,
// unnamed tests whether the process answers notifications: it sends another notification, and then
// a ping.
func (l *listener) unnamed(m wire.Message, raw []byte) {
	p := l.p
	const why = "its error has no id"
	code, _ := wire.Integer(wire.Lookup(m.Error, "code"))
	id := l.onlyRequest()
	of := p.notes
	p.notes.sent = false
	switch {
	case of.asked:
		p.notes.answers = true
	case id == nil, of.sent && of.answers:
	case !of.sent, wire.Code(code) == wire.CodeParse:
		if l.unreadable(id, raw, why, false) {
			return
		}
	default:
		p.notes.asked = true
		p.write(wire.NewNotification(wire.NotifyCancelled, fmt.Appendf(nil, `{"requestId":%d}`, p.conv.own())))
		p.ask(wire.MethodPing, nil, func(wire.Message) {
			p.notes.asked = false
			if !p.notes.answers {
				l.unreadable(id, raw, why, false)
			}
		})
	}
	l.noise(raw, why, false)
}

// garbled handles a part of a line that is no message. If the part seems to answer a request,
// garbled ends the request: at once if the part is JSON, and otherwise after the process has had
// the time [repair] to send the right response.
func (l *listener) garbled(id json.RawMessage, raw []byte, err error, kept bool) {
	why := err.Error()
	wrong, ok := errors.AsType[*wire.Error](err)
	isJSON := ok && wrong.Code != wire.CodeParse
	if ok {
		why = wrong.Message
	}
	l.noise(raw, why, kept)
	switch {
	case wire.Lookup(raw, "method") != nil:
	case id != nil:
		l.unreadable(id, raw, why, false)
	case isJSON && wire.Lookup(raw, "jsonrpc") != nil && answers(raw):
		l.unreadable(l.onlyRequest(), raw, why, false)
	case answers(raw):
		l.unreadable(wire.Lookup(raw, "id"), raw, why, !isJSON)
	}
}

// maxMethod is how many bytes of a method the log line about a dropped message shows.
const maxMethod = 64

// noise counts a part that is no message. noise sets l.note, a line for the log that says why the
// part was dropped, unless the part is kept or belongs to a message over several lines.
func (l *listener) noise(raw []byte, why string, kept bool) {
	p := l.p
	p.output.wrote.lines++
	if kept || l.spread.ours {
		return
	}
	what := "a message"
	if method, ok := wire.String(wire.Lookup(raw, "method")); ok {
		what = p.box.hide.Text(method[:min(len(method), maxMethod)])
	}
	l.note = fmt.Sprintf("stdout: %s of %d bytes was dropped: %s", what, len(raw), p.box.hide.Text(why))
}

// answers reports whether raw, which may be broken JSON, has a result or an error.
func answers(raw json.RawMessage) bool {
	return wire.Lookup(raw, "result") != nil || wire.Lookup(raw, "error") != nil
}

// unreadable ends the request with this id, because its response cannot be read. If wait is true,
// unreadable first gives the process the time [repair] to send the right response. unreadable
// returns false if no request has this id.
func (l *listener) unreadable(id json.RawMessage, raw []byte, why string, wait bool) bool {
	p := l.p
	const text = "answered %s with something that is no JSON-RPC response: %s"
	why = p.box.hide.Text(why)
	said := marked(p.output.quote(raw))
	if n, own, ours := l.own(id); ours {
		f := p.box.server.fault(PhaseMCPInit, text, own.method, why)
		f.words = said
		p.clock.soon(wait, func() bool { return p.own[n] == own }, func() {
			delete(p.own, n)
			own.fail(f)
		})
		return true
	}
	r := p.conv.request(id)
	if r == nil {
		return false
	}
	if r.broken && wait {
		return true // the timer of the first broken response ends the request
	}
	r.broken = true
	p.clock.soon(wait, func() bool { return p.conv.requests[r.number] == r }, func() {
		f := p.box.server.fault(PhaseToolCall, text, r.method, why)
		f.words = said
		p.conv.end(r, p.fill(f).response(r.id))
	})
	return true
}

// own finds the box's own request with this id.
func (l *listener) own(id json.RawMessage) (n int64, o *ownRequest, ok bool) {
	if n, ok = wire.Integer(id); ok {
		o, ok = l.p.own[n]
	}
	return n, o, ok
}

// onlyRequest returns the id of the only request that the process has not answered, nil if there
// is none or more than one.
func (l *listener) onlyRequest() json.RawMessage {
	p := l.p
	var waiting []int64
	for n, own := range p.own {
		if own.method != wire.MethodListen { // a request for notifications stays open
			waiting = append(waiting, n)
		}
	}
	for e := p.conv.passed.Front(); e != nil; e = e.Next() {
		r, _ := e.Value.(*request)
		waiting = append(waiting, r.sent)
	}
	if len(waiting) != 1 {
		return nil
	}
	return strconv.AppendInt(nil, waiting[0], 10)
}

// overlong handles a line that the reader has dropped because it was over the limit, or because
// there was no memory for it.
func (l *listener) overlong(long *proc.TooLong) {
	p := l.p
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.box.log.Warn("line of a server dropped: it is over the limit, or there is no room", "server", p.box.server.Name, "process", p.group.id, "bytes", long.Bytes, "limit", maxLine)
	id, ok := long.Answers()
	if !ok {
		return
	}
	fault := func(phase Phase, method string) *fault {
		if long.Full {
			return p.box.server.fault(phase, "answered %s with %d bytes, for which there was no room: the answers of all servers fill the memory that this machine has for them; try again", method, long.Bytes)
		}
		f := p.box.server.fault(phase, "answered %s with %d bytes, over the limit of %d", method, long.Bytes, maxLine)
		f.data.Limit = maxLine
		return f
	}
	if n, own, ours := l.own(id); ours {
		delete(p.own, n)
		own.fail(fault(PhaseMCPInit, own.method))
	} else if r := p.conv.request(id); r != nil {
		p.conv.end(r, p.fill(fault(PhaseToolCall, r.method)).response(r.id))
	}
}
