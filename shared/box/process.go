package box

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Limits of the memory that the lines of one process take.
const (
	maxLine  = 16 << 20 // bytes of a line from the server, with its line end
	maxQueue = 32 << 20 // bytes of the lines that the server has not read yet
)

// process is one run of the server: an OS process and the conversation with it. [Box].mu guards
// its fields, except those with a lock of their own. Its goroutines are those of its [processRun];
// all of them have ended when over is closed.
type process struct {
	box     *Box
	group   *group // the sessions that the process serves
	conv    *conversation
	proto   protocol
	clock   deadlines
	keeping keeping
	output  output

	wanted context.Context //nolint:containedctx // context of the start; its cause is errStopped once the process was stopped
	halt   context.CancelCauseFunc
	over   chan struct{} // closed when the goroutines of the process have ended

	state   state
	greeted bool // the handshake is over; stays true when the process ends
	ending

	first int64                 // the number of the first message that the box sends
	own   map[int64]*ownRequest // the box's own requests to the process that it has not answered, by number
	notes notes
	held  heldLines // messages that wait until the process is ready, or has shown that it still works

	nap   nap
	child child       // nil before the OS process is started
	queue *proc.Queue // lines for stdin
}

// notes says whether an error response without an id may be about a notification.
type notes struct {
	sent    bool // the process was sent a notification, and has answered no request since
	asked   bool // the box is testing whether the process answers notifications
	answers bool // the process answers notifications with errors
}

type ending struct {
	told     bool   // the box has told the process to end
	left     bool   // the process exited, or closed its stdin or stdout, before the box told it to end
	failed   *fault // the error with which open requests end; if it is nil, obituary makes one
	followed bool   // another process starts after the end of this one
	replaced string // why another process takes over the conversation, for the log; "" if none does
	evicted  string // for whom an idle process was ended before its time, for the log; "" if it was not

	since *written // the result of the first call of reason, nil before
}

func newProcess(g *group) *process {
	c := g.box
	p := &process{
		box: c, group: g, own: map[int64]*ownRequest{}, queue: proc.NewQueue(maxQueue),
		over: make(chan struct{}), keeping: keeping{group: g},
	}
	p.wanted, p.halt = context.WithCancelCause(context.Background())
	p.clock = deadlines{p: p}
	p.nap.begin()
	p.output.hide = c.hide
	p.converse(newConversation(p.group.draw, c.server.Scope.wide(), g))
	return p
}

// converse makes c the conversation of the process, and draws the number of the first message.
func (p *process) converse(c *conversation) {
	p.conv = c
	c.pipe, c.clock = p, &p.clock
	p.first = c.own()
}

// to moves the process forward to the state s, and never back.
func (p *process) to(s state) { p.state = max(p.state, s) }

func (p *process) isCurrent() bool { return p.group.current == p }

// # Deadlines

// excuse adds to f, the error of a request without a response, what the process has written to
// stdout since it got the request, if that was no message.
func (p *process) excuse(r *request, f *fault) {
	now := p.output.wrote
	if now.lines == r.before.lines {
		return
	}
	if now.kept > r.before.kept {
		f.words = marked(proc.LastWords(p.output.stdout.Since(r.before.stdout, p.output.hide)))
	}
	f.after = ". It wrote to stdout what is no MCP message: every line there must be one message of JSON"
}

// expire ends a request with the error f, tells the process to stop working on it, and asks for a
// sign of life.
func (p *process) expire(r *request, reason string, f *fault) {
	p.conv.tellCancelled(r, reason)
	p.clock.doubt()
	p.conv.end(r, p.fill(f).response(r.id))
}

// # The end of a process

// fail stops the process, and ends its open requests with f at once.
func (p *process) fail(f *fault) {
	p.stop(p.fill(f))
	p.endRequests(p.failed)
}

// stop begins to end the process. When the process has exited, the requests that it has not
// answered end with f.
func (p *process) stop(f *fault) {
	if p.failed == nil && f != nil {
		own := *f // a copy, to which facts about this process are added
		p.failed = &own
	}
	p.to(stopping)
	p.group.detach(p)
	if !p.told {
		p.told, p.keeping.atWork = true, !p.conv.idle()
		p.halt(errStopped)
	}
	p.nap.bury(p)
	p.dismiss()
}

// handOver stops p. The new process h.p becomes its successor, and gets the conversation and the
// waiting messages of p. No request of the conversation may have been sent to p.
func (p *process) handOver(h *handshake) {
	next := h.p
	p.followed = true
	p.group.begin(h, p)
	empty := next.conv
	clear(p.conv.questions) // they were questions of the old process
	clear(p.conv.asked)
	next.converse(p.conv)
	next.held = p.held
	p.converse(empty)
	p.held = heldLines{}
	p.to(gone)
	p.stop(nil)
}

// endRequests ends all open requests with f; only its first call has an effect. If the process has
// failed to start, endRequests first counts the failure, so that a client that tries again at once
// has to wait.
func (p *process) endRequests(f *fault) {
	if p.state == gone {
		return
	}
	p.to(gone)
	if !p.greeted && !p.asked() && f.data.RetryAfter == 0 { // RetryAfter is set if the machine was full, so the server has not failed
		p.box.starts.failure()
	}
	p.held = heldLines{}
	p.conv.endAll(f)
}

// reason returns the moment after which output may explain the end of the process: when it got its
// oldest open request. Without an open request, that is the beginning of its most recent output.
// Before the handshake is over, it is the start of the process.
func (p *process) reason() written {
	w := p.before()
	p.since = &w
	return w
}

// before computes the result of [process.reason] without storing it, for a process that may still
// run.
func (p *process) before() (w written) {
	if p.since != nil {
		return *p.since
	}
	if e := p.conv.passed.Front(); p.greeted && e != nil {
		r, _ := e.Value.(*request)
		w = r.before
	} else if p.greeted {
		w = written{stderr: p.output.stderr.Lately(), stdout: p.output.stdout.Lately(), at: time.Now()}
	}
	return w
}

// asked reports whether the process ends because the box told it to, and not because of a failure.
func (p *process) asked() bool {
	return p.told && (p.failed == nil || p.failed.data.Phase == PhaseBoxUnavailable)
}

// # Messages to the process

// request registers a client's request and passes it to the process, or ends it with an error.
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
		p.conv.end(r, p.queueFull().response(r.id))
	}
}

// queueFull returns the error for a request that does not fit into the queue of lines for the
// process.
func (p *process) queueFull() *fault {
	f := p.box.server.fault(PhaseRuntime, "does not read its input: %d MiB wait for it", maxQueue>>20)
	f.data.Limit = maxQueue
	return p.fill(f)
}

// send queues a line for the process, or holds it; see process.held. The argument number is the
// number of the request in the line, 0 if the line is no request. send returns false if there is
// no room for the line.
func (p *process) send(number int64, line []byte) bool {
	r := p.conv.requests[number]
	if !p.greeted || r != nil && r.passed == nil && p.clock.pulse.asked != nil {
		p.nap.rouse()
		return p.held.add(heldLine{number: number, line: line})
	}
	p.notes.sent = p.notes.sent || number == 0
	raw, at := line, p.queue.Pushed()
	if line = p.proto.outgoing(r, line); line == nil {
		return true
	}
	before := p.output.now() // read before the write, because the process may answer at once
	ok := p.write(line)
	if ok && r != nil && r.passed == nil {
		r.given.line, r.given.at = raw, at
		r.before = before
		p.conv.known(r)
		p.clock.limit(r)
	}
	return ok
}

// withdraw makes the process stop working on a request. withdraw sends line, unless the protocol
// has another way to cancel the request.
func (p *process) withdraw(r *request, line []byte) {
	if !p.proto.withdraw(r) {
		p.send(0, line)
	}
}

type ownRequest struct {
	method string
	take   func(wire.Message) // handles the response; nil to ignore it
	broken func(*fault)       // handles a response that cannot be read; if it is nil, take gets an error response instead
}

// fail ends a request of the box whose response cannot be read.
func (o *ownRequest) fail(f *fault) {
	switch {
	case o.broken != nil:
		o.broken(f)
	case o.take != nil:
		m, _ := wire.Parse(f.response(json.RawMessage("0"))) // cannot fail
		o.take(m)
	}
}

// ask sends the process a request of the box itself. The function answer, if not nil, handles the
// response.
func (p *process) ask(method string, params json.RawMessage, answer func(wire.Message)) {
	n := p.conv.own()
	p.own[n] = &ownRequest{method: method, take: answer}
	p.write(wire.NewRequest(strconv.AppendInt(nil, n, 10), method, params))
}

// write queues a line for the process, even if the handshake is not over. write returns false if
// there is no room for the line.
func (p *process) write(line []byte) bool {
	if p.queue.Push(line) {
		return true
	}
	p.box.log.Warn("message to a server that does not read dropped", "server", p.box.server.Name, "process", p.group.id, "bytes", len(line))
	return false
}

// heldLines are messages that the process must not get yet.
type heldLines struct {
	lines []heldLine
	bytes int
}

// heldLine is one waiting message, with its number if it is a request, else 0.
type heldLine struct {
	number int64
	line   []byte

	// If line is a response to a question that the process asked before it slept, of is the session
	// whose client has answered, and answer is the message in line.
	of     *session
	answer wire.Message
}

// add holds a message, or returns false if there is no room.
func (h *heldLines) add(l heldLine) bool {
	if h.bytes+len(l.line) > maxQueue {
		return false
	}
	h.lines = append(h.lines, l)
	h.bytes += len(l.line)
	return true
}

// sendHeld sends the held messages, except requests that were cancelled meanwhile.
func (p *process) sendHeld() {
	held := p.held.lines
	p.held = heldLines{}
	for _, h := range held {
		if h.of != nil {
			answered([]*process{p}, h.of, h.answer)
			continue
		}
		r := p.conv.requests[h.number]
		if h.number != 0 && r == nil {
			continue
		}
		if !p.send(h.number, h.line) && r != nil {
			p.conv.end(r, p.queueFull().response(r.id))
		}
	}
}

// holds reports whether a request of a client with this method and URI is held.
func (p *process) holds(method, uri string) bool {
	return slices.ContainsFunc(p.held.lines, func(h heldLine) bool {
		r := p.conv.requests[h.number]
		of, _ := wire.String(wire.Lookup(h.line, "params", "uri"))
		return r != nil && r.method == method && of == uri
	})
}

// announce tells a session's client that lists may have changed, if the definition of the server
// has changed and the client does not know it yet.
func (p *process) announce(s *session) {
	if s.moved {
		s.announce(p.proto.initialized(s))
	}
}

// fill adds to an error what is known about the process: its exit, its output, its start time, and
// what its network has refused.
func (p *process) fill(f *fault) *fault {
	if p.child == nil {
		return f // no process ran; f may describe a failed install
	}
	for _, text := range p.output.refused.since(p.before().at) {
		if !strings.Contains(f.after, text) {
			f.after += "; " + text
		}
	}
	f.data.NoiseLines = p.output.wrote.lines
	f.data.Stderr, f.data.Stdout = p.output.tails()
	f.data.Since = p.child.Since().UTC()
	if e, exited := p.exit(); exited {
		f.data.ExitCode, f.data.Signal = e.Code, e.Signal
	}
	return f
}

// exit returns how the process ended. The result ok is false if the process runs or never ran.
func (p *process) exit() (proc.Exit, bool) {
	if p.child == nil {
		return proc.Exit{}, false
	}
	return p.child.Exit()
}
