package box

import (
	"encoding/json"
	"io"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Limits of the memory for one process.
const (
	maxLine  = 16 << 20 // bytes of a line of the server, with its end
	maxQueue = 32 << 20 // bytes that wait until the server reads them
)

// child is a running process. A [proc.Child] is one; tests have others.
type child interface {
	PID() int
	Since() time.Time
	Stdin() io.Writer
	Stdout() io.Reader
	Stderr() io.Reader
	CloseStdin()
	Terminate()
	Kill()
	Release()
	Exited() <-chan struct{}
	Abandoned() <-chan struct{}
	Exit() (e proc.Exit, ok bool)
	KernelKilled() bool
}

// state is the step of its life that a process has reached. It only goes forward.
type state int

const (
	starting state = iota // it waits for its turn, or the provisioner prepares it
	greeting              // it runs, and has not answered the first message
	ready                 // it takes messages
	stopping              // it is ending, or was told to
	gone                  // its requests have ended; its output is ignored
)

// process is one run of the server: an OS process and the conversation with it. The
// box's lock guards its fields, except those that guard themselves. Its goroutines are
// run, one writer, one reader of stdout and one reader of stderr. All have ended when
// over is closed.
type process struct {
	box     *Box
	g       *group
	conv    *conversation
	proto   protocol
	hello   handshake
	clock   deadlines
	prepare preparation
	keeping keeping
	output  output

	halt chan struct{} // closed when its end is asked for
	over chan struct{} // closed when its goroutines have ended

	state    state
	greeted  bool   // it has been ready
	told     bool   // its end was asked for
	failed   *fault // why its requests end; nil if its exit says why
	followed bool   // another process waits for its room

	own  map[int64]func(wire.Message) // takes the answer to the box's own request, nil to ignore it
	held heldLines                    // messages that wait until it is ready

	child child // nil before it runs
	queue *proc.Queue
}

func newProcess(g *group) *process {
	p := &process{
		box: g.box, g: g, own: map[int64]func(wire.Message){}, queue: proc.NewQueue(maxQueue),
		halt: make(chan struct{}), over: make(chan struct{}),
	}
	p.hello, p.clock, p.prepare, p.keeping = handshake{p: p}, deadlines{p: p}, preparation{p: p}, keeping{p: p}
	p.output.hide = g.box.hide
	isStateless, probe := g.speaks()
	p.proto, p.hello.probe = newProtocol(p, isStateless), probe
	p.converse(newConversation(p.box.draw, p.box.server.Scope.wide(), g))
	return p
}

// converse takes over a conversation and draws the number of the first message.
func (p *process) converse(c *conversation) {
	p.conv = c
	c.process, c.clock = p, &p.clock
	p.hello.id = c.own()
}

// to moves the process forward to a state, never back.
func (p *process) to(s state) { p.state = max(p.state, s) }

// # Its life

// run runs the process from beginning to end.
func (p *process) run() {
	if p.prepare.awaitTurn() && p.launch() {
		p.accompany()
		p.keeping.save()
	}
	p.output.log.Close(p.howItEnded())
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.endRequests(p.obituary())
	p.bury()
	close(p.over)
	p.g.left(p)
}

// launch starts the OS process and says hello to it.
func (p *process) launch() bool {
	p.output.log = p.box.server.log(p.g.id, p.box.hide)
	l, err := p.prepare.prepare()
	var c child
	if err == nil {
		c, err = p.box.spawn(l.Command, p.box.grace)
	}
	if err == nil {
		p.output.log.Note("process %d of session %s started", c.PID(), p.g.id)
	}
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if err != nil {
		p.fail(p.box.startFault(err))
		return false
	}
	p.child, p.keeping.workspace, p.output.unrun, p.output.lacks = c, l.keep, l.unrun, l.lacks()
	p.to(greeting)
	if p.told {
		c.Terminate()
	}
	p.report(Started, nil)
	p.hello.start()
	return true
}

// accompany moves messages both ways until the process is gone and all its output is
// read.
func (p *process) accompany() {
	c := p.child
	done := make(chan struct{}, 3)
	begin := func(f func()) { go func() { f(); done <- struct{}{} }() }
	begin(p.speak)
	begin(listener{p}.listen)
	begin(func() { p.output.stderr.ReadAll(io.TeeReader(c.Stderr(), p.output.log)) })
	select {
	case <-c.Exited():
	case <-c.Abandoned():
		p.box.mu.Lock()
		p.endRequests(p.obituary())
		p.box.mu.Unlock()
		<-c.Exited()
	}
	p.leave()
	p.queue.Close()
	c.CloseStdin()
	for range 3 {
		<-done
	}
	c.Release()
}

// speak writes to the process.
func (p *process) speak() {
	if p.queue.WriteLines(p.child.Stdin()) != nil {
		p.leave() // it does not read any more
	}
}

// leave ends a process that has exited or closed one of its pipes. It may still answer
// its open requests.
func (p *process) leave() {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if p.hello.probe == probing && p.state < ready {
		p.hello.probed(probeSilent)
	}
	p.to(stopping)
	p.g.detach(p)
	p.child.Terminate()
}

// fail ends the process, and its requests with f.
func (p *process) fail(f *fault) {
	p.stop(p.fill(f))
	p.endRequests(p.failed)
}

// stop begins to end the process. Requests that are still open after its grace time, or
// when it is gone, end with f.
func (p *process) stop(f *fault) {
	if p.failed == nil && f != nil {
		own := *f // a copy, because fill adds facts about this process
		p.failed = &own
	}
	p.to(stopping)
	p.g.detach(p)
	if !p.told {
		p.told, p.keeping.atWork = true, !p.conv.idle()
		close(p.halt)
	}
	if p.child != nil {
		p.child.Terminate()
	}
}

// endRequests ends all open requests, once. It counts a failed start before the clients
// hear of it, so that a client that tries again at once has to wait.
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

// asked reports whether the process ends because the box told it to.
func (p *process) asked() bool {
	return p.told && (p.failed == nil || p.failed.data.Phase == PhaseBoxUnavailable)
}

// bury stops the timers and reports the end.
func (p *process) bury() {
	p.hello.stop()
	p.clock.stop()
	if p.asked() {
		if p.child != nil {
			p.report(Stopped, nil)
		}
		return
	}
	p.report(Exited, p.obituary())
}

// # To the process

// request passes a request to the process, or ends it with an error.
func (p *process) request(st *stream, m wire.Message) {
	if len(p.conv.requests) >= maxRequests {
		f := p.box.server.fault(PhaseRuntime, "has %d requests in flight, wait for one of them to end", maxRequests)
		st.open--
		p.g.event(st, p.fill(f).response(m.ID), st.open == 0)
		return
	}
	r, refused := p.conv.add(st, m)
	switch {
	case refused != nil:
		st.session.refuse(st, m.ID, refused)
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
	p.box.log.Warn("message to a server that does not read dropped", "server", p.box.server.Name, "process", p.g.id, "bytes", len(line))
	return false
}

// heldLines are messages for a process that is not ready.
type heldLines struct {
	lines []heldLine
	bytes int
}

// heldLine is one of them, with the number of the request in it, 0 for other messages.
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

// # Reports

// report reports the state of the process to the sink and the log.
func (p *process) report(state ProcessState, f *fault) {
	st := p.status(state, f)
	log := p.box.log.With("server", p.box.server.Name, "process", st.Process, "pid", st.PID)
	if f != nil && p.output.log == nil {
		log = log.With("stderr", st.Stderr, "stdout", st.Stdout) // its output goes nowhere else
	}
	p.g.speaker.tell(told{call: func(k Sink) {
		if f == nil {
			log.Info("process", "state", string(state))
		} else {
			log.Warn("process failed", "phase", string(st.Phase), "exit_code", exitCode(st), "signal", st.Signal, "noise_lines", st.NoiseLines)
		}
		k.Process(st)
	}})
}

func (p *process) status(state ProcessState, f *fault) ProcessStatus {
	st := ProcessStatus{Process: p.g.id, Session: p.g.speaker.id, Ticket: p.g.speaker.ticket, State: state, NoiseLines: p.output.lines}
	if p.child != nil {
		st.PID, st.Since = p.child.PID(), p.child.Since().UTC()
	}
	if f != nil {
		st.Phase, st.Detail = f.data.Phase, f.whole()
	}
	if e, gone := p.exit(); gone {
		st.ExitCode, st.Signal = e.Code, e.Signal
	}
	if state == Stopped || state == Exited {
		st.Stderr, st.Stdout = p.output.tails()
	}
	return st
}

// running returns the state of a process that runs.
func (p *process) running() ProcessState {
	if p.greeted {
		return Ready
	}
	return Started
}

// exitCode returns -1 if there is no exit code.
func exitCode(st ProcessStatus) int {
	if st.ExitCode == nil {
		return -1
	}
	return *st.ExitCode
}
