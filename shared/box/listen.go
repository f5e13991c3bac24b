package box

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// listener takes the stdout of a process.
type listener struct{ p *process }

// listen reads the lines of the process until its stdout is closed, no faster than the
// sink takes them.
func (l listener) listen() {
	p := l.p
	lines := proc.NewLineReader(p.child.Stdout(), maxLine)
	for {
		line, err := lines.Next()
		var long *proc.TooLong
		switch {
		case errors.As(err, &long):
			l.overlong(long)
		case err != nil:
			return
		default:
			l.hear(line)
		}
		p.audience.awaitRoom()
	}
}

// hear takes one line of output.
func (l listener) hear(line []byte) {
	p := l.p
	line = bytes.TrimSpace(bytes.ToValidUTF8(line, []byte("\uFFFD")))
	if len(line) == 0 {
		return
	}
	for _, raw := range unpack(line) {
		m, err := wire.Parse(raw)
		if err == nil && bytes.IndexByte(raw, '\r') >= 0 {
			m, err = wire.Parse(wire.Compact(raw)) // a CR would end the line for some readers
		}
		kept := err != nil && wire.Lookup(raw, "jsonrpc") == nil
		if kept {
			p.output.keep(raw)
		}
		p.box.mu.Lock()
		if kept {
			p.output.wrote.kept++
		}
		switch {
		case p.state == gone:
		case err != nil:
			l.garbled(m.ID, raw, err)
		default:
			l.heard(m)
		}
		p.box.mu.Unlock()
	}
}

// unpack splits a batch into its messages, because most versions of the protocol have no
// batches. It drops an element that is no message and keeps the others.
func unpack(line []byte) []json.RawMessage {
	if line[0] == '[' {
		var batch []json.RawMessage
		if json.Unmarshal(line, &batch) == nil {
			return batch
		}
	}
	return []json.RawMessage{line}
}

func (l listener) heard(m wire.Message) {
	p := l.p
	p.output.spoke = true
	switch m.Kind {
	case wire.Response:
		l.answered(m)
	case wire.Request:
		if m.Method == wire.MethodPing {
			p.write(wire.ResultResponse(m.ID, nil))
		} else if refused := p.conv.ask(m); refused != nil {
			p.write(wire.ErrorResponse(m.ID, refused))
		}
	case wire.Notification:
		if m, ok := p.proto.notification(m); ok && !p.conv.notification(m) {
			p.box.counts.Late++
		}
	}
}

// answered takes a response of the process to a request of the box or of a client.
func (l listener) answered(m wire.Message) {
	p := l.p
	if n, err := strconv.ParseInt(string(m.ID), 10, 64); err == nil {
		if use, ours := p.own[n]; ours {
			delete(p.own, n)
			if use != nil {
				use(m)
			}
			return
		}
	}
	if r := p.conv.request(m.ID); r != nil {
		p.proto.response(r, m)
	} else {
		p.box.counts.Late++
	}
}

// garbled takes a line that is no message. It counts the line as noise. The line may be a
// broken response, whose request would otherwise wait until its deadline. garbled ends
// that request at once if the line is JSON, and soon if it is not.
func (l listener) garbled(id, raw json.RawMessage, err error) {
	p := l.p
	p.output.wrote.lines++
	p.box.counts.Noise++
	p.box.log.Debug("output that is no message skipped", "server", p.box.server.Name, "process", p.audience.id, "bytes", len(raw))
	if wire.Lookup(raw, "method") != nil {
		return
	}
	if r := p.conv.request(id); r != nil {
		l.unreadable(r, plainly(err))
	} else if r := p.conv.request(wire.Lookup(raw, "id")); r != nil && r.broken == "" && answers(raw) {
		r.broken = plainly(err)
		p.clock.doubt(r, func() { l.unreadable(r, r.broken) })
	}
}

// plainly returns what is wrong with a message, without a JSON-RPC error code.
func plainly(err error) string {
	var wrong *wire.Error
	if errors.As(err, &wrong) {
		return wrong.Message
	}
	return err.Error()
}

// answers reports whether a line that is not JSON begins as a response does.
func answers(raw json.RawMessage) bool {
	return wire.Lookup(raw, "result") != nil || wire.Lookup(raw, "error") != nil
}

// unreadable ends a request whose answer cannot be read.
func (l listener) unreadable(r *request, why string) {
	p := l.p
	f := p.box.server.fault(PhaseToolCall, "answered %s with something that is no JSON-RPC response: %s", r.method, p.box.hide.Text(why))
	p.conv.end(r, p.fill(f).response(r.id))
}

// overlong takes a line over the limit. The reader has dropped the line; overlong ends the
// request that the line answered.
func (l listener) overlong(long *proc.TooLong) {
	p := l.p
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.box.counts.Oversize++
	p.box.log.Warn("line of a server over the limit dropped", "server", p.box.server.Name, "process", p.audience.id, "bytes", long.Bytes, "limit", maxLine)
	id, ok := long.Answers()
	if r := p.conv.request(id); ok && r != nil {
		f := p.box.server.fault(PhaseToolCall, "answered %s with %d bytes, over the limit of %d", r.method, long.Bytes, maxLine)
		f.data.Limit = maxLine
		p.conv.end(r, p.fill(f).response(r.id))
	}
}
