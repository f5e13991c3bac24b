package box

import (
	"encoding/json"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Limits of the memory for one process.
const (
	maxLine  = 16 << 20 // bytes of a line of the server, with its end
	maxQueue = 32 << 20 // bytes that wait until the server reads them
)

// process is one run of the server: an OS process and the conversation with it. The box's
// lock guards its fields, except those with a lock of their own. Its goroutines are those
// of its [processRun]: one that runs it, one writer, one reader of stdout and one reader
// of stderr. All have ended when over is closed.
type process struct {
	box      *boxCore
	audience *audience // the sessions whose process it is
	group    *group
	conv     *conversation
	proto    protocol
	clock    deadlines
	keeping  keeping
	output   output

	halt chan struct{} // closed when its end is asked for
	over chan struct{} // closed when its goroutines have ended

	state   state
	greeted bool // it has been ready
	ending

	first int64                        // the number of the first message
	own   map[int64]func(wire.Message) // takes the answer to the box's own request, nil to ignore it
	held  heldLines                    // messages that wait until it is ready

	child child // nil before it runs
	queue *proc.Queue
}

// ending says why a process ends.
type ending struct {
	told     bool   // its end was asked for
	left     bool   // it exited, or closed a pipe, before its end was asked for
	failed   *fault // why its requests end; nil if its exit says why
	followed bool   // another process waits for its room
	replaced string // why one in the other protocol takes its place; "" if none does
}

func newProcess(g *group) *process {
	c, of := g.box, &g.audience
	p := &process{
		box: c, audience: of, group: g, own: map[int64]func(wire.Message){}, queue: proc.NewQueue(maxQueue),
		halt: make(chan struct{}), over: make(chan struct{}), keeping: keeping{box: c, audience: of},
	}
	p.clock = deadlines{box: c, p: p}
	p.output.hide = c.hide
	p.converse(newConversation(c.draw, c.server.Scope.wide(), of))
	return p
}

// converse takes over a conversation and draws the number of the first message.
func (p *process) converse(c *conversation) {
	p.conv = c
	c.pipe, c.clock = p, &p.clock
	p.first = c.own()
}

// to moves the process forward to a state, never back.
func (p *process) to(s state) { p.state = max(p.state, s) }

// isCurrent reports whether the process gets new messages.
func (p *process) isCurrent() bool { return p.group.current == p }

// # For its deadlines

// excuse adds to f what the process wrote to stdout instead of an answer to r.
func (p *process) excuse(r *request, f *fault) {
	now := p.output.wrote
	if now.lines == r.before.lines {
		return
	}
	if now.kept > r.before.kept {
		_, stdout := p.output.tails()
		f.words = marked(proc.LastWords(stdout))
	}
	f.after = ". It wrote to stdout what is no MCP message: every line there must be one message of JSON"
}

// expire ends a request with f, and tells the process to stop working on it.
func (p *process) expire(r *request, reason string, f *fault) {
	p.conv.tellCancelled(r, reason)
	p.conv.end(r, p.fill(f).response(r.id))
}

// # Its end

// fail ends the process, and its requests with f.
func (p *process) fail(f *fault) {
	p.stop(p.fill(f))
	p.endRequests(p.failed)
}

// stop begins to end the process. Requests end with f if they are still open after the
// grace time, or when the process is gone.
func (p *process) stop(f *fault) {
	if p.failed == nil && f != nil {
		own := *f // a copy, because fill adds facts about this process
		p.failed = &own
	}
	p.to(stopping)
	p.group.detach(p)
	if !p.told {
		p.told, p.keeping.atWork = true, !p.conv.idle()
		close(p.halt)
	}
	if p.child != nil {
		p.child.Terminate()
	}
}

// endRequests ends all open requests, once. It counts a failed start before the clients
// get the error, so that a client that tries again at once has to wait.
func (p *process) endRequests(f *fault) {
	if p.state == gone {
		return
	}
	p.to(gone)
	if !p.greeted && !p.asked() {
		p.box.starts.failure()
	}
	p.held = heldLines{}
	p.conv.endAll(f)
}

// asked reports whether the process is ending because the box told it to.
func (p *process) asked() bool {
	return p.told && (p.failed == nil || p.failed.data.Phase == PhaseBoxUnavailable)
}

// # To the process

// request passes a request to the process, or ends it with an error.
func (p *process) request(st *stream, m wire.Message) {
	if len(p.conv.requests) >= maxRequests {
		f := p.box.server.fault(PhaseRuntime, "has %d requests in flight, wait for one of them to end", maxRequests)
		st.answer(p.fill(f).response(m.ID))
		return
	}
	r, refused := p.conv.add(st, m)
	switch {
	case refused != nil:
		st.answer(wire.ErrorResponse(m.ID, refused))
	case m.Method == wire.MethodInitialize:
		if p.greeted {
			p.conv.end(r, wire.ResultResponse(r.id, p.proto.initialized(r.stream.session)))
		}
	case !p.conv.pass(r, m):
		p.conv.end(r, p.deaf().response(r.id))
	}
}

// deaf returns the fault of a process whose queue is full.
func (p *process) deaf() *fault {
	f := p.box.server.fault(PhaseRuntime, "does not read its input: %d MiB wait for it", maxQueue>>20)
	f.data.Limit = maxQueue
	return p.fill(f)
}

// send passes a line to the process, or holds it until the process is ready. number is
// the number of the request in it, or 0. It returns false if the line does not fit into
// the queue.
func (p *process) send(number int64, line []byte) bool {
	if !p.greeted {
		return p.held.add(number, line)
	}
	r := p.conv.requests[number]
	if line = p.proto.outgoing(r, line); line == nil {
		return true
	}
	ok := p.write(line)
	if ok && r != nil && r.passed == nil {
		r.before = p.output.wrote
		p.conv.known(r)
		p.clock.limit(r)
	}
	return ok
}

// withdraw has the process stop working on a request. It sends line unless the protocol
// has another way.
func (p *process) withdraw(r *request, line []byte) {
	if !p.proto.withdraw(r) {
		p.send(0, line)
	}
}

// ask sends a request of the box itself. answer takes the response, and may be nil.
func (p *process) ask(method string, params json.RawMessage, answer func(wire.Message)) {
	n := p.conv.own()
	p.own[n] = answer
	p.write(wire.NewRequest(strconv.AppendInt(nil, n, 10), method, params))
}

// write queues a line for the process without waiting for it to be ready. It returns
// false if the line does not fit.
func (p *process) write(line []byte) bool {
	if p.queue.Push(line) {
		return true
	}
	p.box.log.Warn("message to a server that does not read dropped", "server", p.box.server.Name, "process", p.audience.id, "bytes", len(line))
	return false
}

// heldLines are messages that wait until a process is ready.
type heldLines struct {
	lines []heldLine
	bytes int
}

// heldLine is one waiting message. number is the number of the request in it, 0 for other
// messages.
type heldLine struct {
	number int64
	line   []byte
}

// add holds a line. It returns false if the line does not fit.
func (h *heldLines) add(number int64, line []byte) bool {
	if h.bytes+len(line) > maxQueue {
		return false
	}
	h.lines = append(h.lines, heldLine{number: number, line: line})
	h.bytes += len(line)
	return true
}

// sendHeld sends the held messages, except requests that were cancelled meanwhile.
func (p *process) sendHeld() {
	held := p.held.lines
	p.held = heldLines{}
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

// announce tells a session of the process that lists may have changed, if the session has
// moved and its client does not know yet.
func (p *process) announce(s *session) {
	if s.moved {
		s.announce(p.proto.initialized(s))
	}
}

// fill adds to a fault what is known about the process: its exit, its output and its
// start time.
func (p *process) fill(f *fault) *fault {
	if p.child == nil {
		return f // f may describe a failed install
	}
	f.data.NoiseLines = p.output.wrote.lines
	f.data.Stderr, f.data.Stdout = p.output.tails()
	f.data.Since = p.child.Since().UTC()
	if e, exited := p.exit(); exited {
		f.data.ExitCode, f.data.Signal = e.Code, e.Signal
	}
	return f
}

// exit returns how the process ended. ok is false while it runs or if it never ran.
func (p *process) exit() (proc.Exit, bool) {
	if p.child == nil {
		return proc.Exit{}, false
	}
	return p.child.Exit()
}
