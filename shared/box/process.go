package box

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Limits of what is held in memory for one process.
const (
	maxLine  = 16 << 20 // of a line the server says, with its end
	maxQueue = 32 << 20 // of what waits until the server reads it
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

// process is one life of the server: an OS process with the conversation that is
// held with it. Fields are guarded by the lock of the box, but for those that guard
// themselves. Its goroutines are run, one that writes, one that reads stdout and
// one that reads stderr; all have ended when gone is closed.
type process struct {
	box  *Box
	g    *group
	conv *conversation

	before []<-chan struct{} // gone of the processes it follows
	halt   chan struct{}     // closed when it is to end before it was started
	gone   chan struct{}

	state    ProcessState
	failed   *fault // why its requests end, nil for what its exit says
	stopping bool   // its end was asked for
	atWork   bool   // it had requests then
	ended    bool   // its requests have ended: what it says now goes nowhere
	spoke    bool   // it has said something valid
	followed bool   // another process waits for its room
	noise    int64
	steps    int // of its start that were told

	begun     time.Time // its start, with what is done before
	modern    bool      // it is spoken to as a server of the modern era
	refused   *fault    // why one was that was spoken to otherwise, nil if there was none
	probe     probe
	insist    *time.Timer // to say initialize to one that does not answer server/discover
	second    int64       // id of that, 0 for none
	discover  json.RawMessage
	changes   int64 // id of the request for notifications of changes, 0 for none
	handshake int64 // id of initialize
	version   string
	result    json.RawMessage // of initialize, as clients get it
	tasks     *taskTools      // of one that has tasks of 2025-11-25, nil of others
	own       map[int64]bool  // ids of other requests of ours, without an answer yet
	startup   *time.Timer
	idle      *time.Timer
	used      time.Time

	held      []heldLine // until it is ready
	heldBytes int

	child     child       // nil before it runs
	lacks     string      // the script that is not there, in words, "" for none
	workspace string      // that is saved when it has ended, "" for none
	unrun     []string    // packages whose install scripts were not run
	queue     *proc.Queue // to its stdin
	stderr    proc.Tail
	stdout    proc.Tail // what was no message
	log       *proc.Log // keeps its stderr for later, nil for nowhere
}

// heldLine is a message for a process that is not ready, with the number of its
// request, 0 for others.
type heldLine struct {
	number int64
	line   []byte
}

func newProcess(g *group) *process {
	p := &process{
		box: g.box, g: g, state: Started, own: map[int64]bool{},
		halt: make(chan struct{}), gone: make(chan struct{}), queue: proc.NewQueue(maxQueue),
	}
	p.modern, p.probe = g.speaks()
	p.converse(newConversation(p.box.draw, p.send, p.event, p.touch))
	return p
}

// converse takes over a conversation, which begins with a handshake.
func (p *process) converse(c *conversation) {
	p.conv = c
	c.send, c.event, c.quiet, c.opened, c.closed = p.send, p.event, p.touch, p.await, p.goOn
	c.asks = func(st *stream) { st.session.ask(st) }
	c.abandon = p.cancelTask
	if p.box.server.Scope.wide() {
		c.direct = p.g.direct
	}
	p.handshake = c.own()
}

// # Its life

// run is its life from beginning to end.
func (p *process) run() {
	if p.awaitTurn() && p.launch() {
		p.accompany()
		p.keep()
	}
	p.log.Close(p.howItEnded())
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.endRequests(p.obituary())
	p.bury()
	close(p.gone)
	p.g.left(p)
}

// awaitTurn waits for the processes before to be gone: a session has one at a time,
// for both would write the same files.
func (p *process) awaitTurn() bool {
	for _, gone := range p.before {
		select {
		case <-gone:
		case <-p.halt:
		}
	}
	select {
	case <-p.halt:
		return false
	default:
		return p.awaitStart()
	}
}

// awaitStart waits as long as a start has to after those that failed.
func (p *process) awaitStart() bool {
	p.box.mu.Lock()
	wait, failed := p.box.starts.wait(), p.box.starts.failed
	p.box.mu.Unlock()
	if wait == 0 {
		return true
	}
	p.progress(provision.Progress{Text: fmt.Sprintf("waiting %s to start the server again: it failed %d times", wait.Round(time.Second), failed)})
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-p.halt:
		return false
	case <-t.C:
		return true
	}
}

// launch starts the OS process and says initialize to it.
func (p *process) launch() bool {
	p.log = p.box.server.log(p.g.id, p.box.hide)
	l, err := p.prepare()
	var c child
	if err == nil {
		c, err = p.box.spawn(l.Command, p.box.grace)
	}
	if err == nil {
		p.log.Note("process %d of session %s started", c.PID(), p.g.id)
	}
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if err != nil {
		p.fail(p.box.startFault(err))
		return false
	}
	p.child, p.workspace, p.unrun, p.lacks = c, l.keep, l.unrun, l.lacks()
	if p.stopping {
		c.Terminate()
	}
	p.report(Started, nil)
	p.initialize()
	return true
}

// accompany moves what is said both ways until the process is gone and everything
// it said is read.
func (p *process) accompany() {
	c := p.child
	done := make(chan struct{}, 3)
	begin := func(f func()) { go func() { f(); done <- struct{}{} }() }
	begin(p.speak)
	begin(p.listen)
	begin(func() { p.stderr.ReadAll(io.TeeReader(c.Stderr(), p.log)) })
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
		p.leave() // it does not listen any more
	}
}

// listen reads what the process says, no faster than the sink takes it.
func (p *process) listen() {
	lines := proc.NewLineReader(p.child.Stdout(), maxLine)
	for {
		line, err := lines.Next()
		var long *proc.TooLong
		switch {
		case errors.As(err, &long):
			p.overlong(long)
		case err != nil:
			p.leave()
			return
		default:
			p.hear(line)
		}
		p.g.awaitRoom()
	}
}

// leave ends a process that has closed one of its pipes or has exited. What was
// asked of it may still be answered.
func (p *process) leave() {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if p.probe == probing && p.state == Started && !p.ended && !p.stopping {
		p.probed(probeSilent)
	}
	p.g.detach(p)
	p.child.Terminate()
}

// fail ends the process for a reason, and its requests with that reason.
func (p *process) fail(f *fault) {
	p.stop(p.fill(f))
	p.endRequests(p.failed)
}

// stop ends the process. What is still open when it has had its time, or is gone,
// ends with f.
func (p *process) stop(f *fault) {
	if p.failed == nil && f != nil {
		own := *f // filled with what is known of this process
		p.failed = &own
	}
	p.g.detach(p)
	if !p.stopping {
		p.stopping, p.atWork = true, !p.conv.idle()
		close(p.halt)
	}
	if p.child != nil {
		p.child.Terminate()
	}
}

// endRequests ends everything that is open, once. A start that failed is counted
// before anybody is told: who tries again at once has to wait.
func (p *process) endRequests(f *fault) {
	if p.ended {
		return
	}
	p.ended = true
	if p.state != Ready && !p.asked() {
		p.box.starts.failure()
	}
	p.held, p.heldBytes = nil, 0
	p.conv.endAll(f)
}

// asked says that the process ends because it was told to.
func (p *process) asked() bool {
	return p.stopping && (p.failed == nil || p.failed.data.Phase == PhaseBoxUnavailable)
}

// bury stops the timers and reports the end.
func (p *process) bury() {
	for _, t := range []*time.Timer{p.startup, p.insist, p.idle} {
		if t != nil {
			t.Stop()
		}
	}
	if p.asked() {
		if p.child != nil {
			p.report(Stopped, nil)
		}
		return
	}
	p.report(Exited, p.obituary())
}

// event tells a session of a message: that of the stream, and for the common stream,
// which is nil, all that have the process.
func (p *process) event(to *stream, raw []byte, final bool) {
	switch {
	case to != nil:
		to.session.event(to, raw, final)
	case p.box.server.Scope.wide():
		p.g.tellAll(raw)
	default:
		p.g.speaker.event(nil, raw, final)
	}
}

// # To the process

// request gives a request to the process, or ends it.
func (p *process) request(st *stream, m wire.Message) {
	if len(p.conv.requests) >= maxRequests {
		f := p.box.server.fault(PhaseRuntime, "has %d requests in flight, wait for one of them to end", maxRequests)
		st.open--
		p.event(st, p.fill(f).response(m.ID), st.open == 0)
		return
	}
	r, refused := p.conv.add(st, m)
	switch {
	case refused != nil:
		st.session.refuse(st, m.ID, refused)
	case m.Method == wire.MethodInitialize:
		if p.state == Ready {
			p.conv.end(r, wire.ResultResponse(r.id, p.greeting(r.stream.session)))
		}
	case !p.conv.pass(r, m):
		p.conv.end(r, p.deaf().response(r.id))
	}
}

// deaf is the fault of a process whose queue is full.
func (p *process) deaf() *fault {
	f := p.box.server.fault(PhaseRuntime, "does not read its input: %d MiB wait for it", maxQueue>>20)
	f.data.Limit = maxQueue
	return p.fill(f)
}

// send gives a line to the process when it is ready; number is that of the request
// in it, or 0. It is false when the line does not fit into the queue.
func (p *process) send(number int64, line []byte) bool {
	if p.state == Started {
		if p.heldBytes+len(line) > maxQueue {
			return false
		}
		p.held = append(p.held, heldLine{number: number, line: line})
		p.heldBytes += len(line)
		return true
	}
	if line = p.translate(number, line); line == nil {
		return true
	}
	r := p.conv.requests[number]
	if r != nil {
		line = p.outgoing(r, line)
	}
	ok := p.write(line)
	if ok && r != nil && r.passed == nil {
		p.conv.known(r)
		p.limit(r)
	}
	return ok
}

// write gives a line to the process at once.
func (p *process) write(line []byte) bool {
	if p.queue.Push(line) {
		return true
	}
	p.box.log.Warn("message to a server that does not read dropped", "server", p.box.server.Name, "process", p.g.id, "bytes", len(line))
	return false
}

// # From the process

// hear takes one line of output. Whatever it is, the process is read on.
func (p *process) hear(line []byte) {
	line = bytes.TrimSpace(bytes.ToValidUTF8(line, []byte("\uFFFD")))
	if len(line) == 0 {
		return
	}
	for _, raw := range unpack(line) {
		m, err := wire.Parse(raw)
		if err == nil && bytes.IndexByte(raw, '\r') >= 0 {
			m, err = wire.Parse(wire.Compact(raw)) // a line to everybody, not just to us
		}
		if err != nil && wire.Lookup(raw, "jsonrpc") == nil {
			p.noted(raw)
		}
		p.box.mu.Lock()
		switch {
		case p.ended:
		case err != nil:
			p.garbled(m.ID, raw, err)
		default:
			p.heard(m)
		}
		p.box.mu.Unlock()
	}
}

func (p *process) heard(m wire.Message) {
	p.spoke = true
	switch m.Kind {
	case wire.Response:
		p.answered(m)
	case wire.Request:
		if m.Method == wire.MethodPing {
			p.write(wire.ResultResponse(m.ID, nil))
		} else if refused := p.conv.ask(m); refused != nil {
			p.write(wire.ErrorResponse(m.ID, refused))
		}
	case wire.Notification:
		if m, ok := p.plain(m); ok && !p.ofTasks(m) && !p.conv.notification(m) {
			p.box.counts.Late++
		}
	}
}

// garbled takes a line that is no message: noise, but for a broken response to a
// request that would otherwise wait for ever.
func (p *process) garbled(id, raw json.RawMessage, err error) {
	p.noise++
	p.box.counts.Noise++
	p.box.log.Debug("output that is no message skipped", "server", p.box.server.Name, "process", p.g.id, "bytes", len(raw))
	r := p.conv.request(id)
	if r == nil || wire.Lookup(raw, "method") != nil {
		return
	}
	f := p.box.server.fault(PhaseToolCall, "answered %s with something that is no JSON-RPC response: %s", r.method, p.box.hide.Text(err.Error()))
	p.conv.end(r, p.fill(f).response(r.id))
}

// overlong takes a line that was left out, and ends the request it answered.
func (p *process) overlong(long *proc.TooLong) {
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.box.counts.Oversize++
	p.box.log.Warn("line of a server over the limit dropped", "server", p.box.server.Name, "process", p.g.id, "bytes", long.Bytes, "limit", maxLine)
	id, ok := long.Answers()
	if r := p.conv.request(id); ok && r != nil {
		f := p.box.server.fault(PhaseToolCall, "answered %s with %d bytes, over the limit of %d", r.method, long.Bytes, maxLine)
		f.data.Limit = maxLine
		p.conv.end(r, p.fill(f).response(r.id))
	}
}

// # Idle

// touch begins the time anew after which the process is idle.
func (p *process) touch() {
	p.box.touch()
	p.used = p.box.used
	if p.state != Ready || p.stopping {
		return
	}
	if p.idle != nil {
		p.idle.Reset(p.box.server.Idle)
		return
	}
	p.idle = time.AfterFunc(p.box.server.Idle, func() {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		// It may have been touched while this waited for the lock; and when something
		// is open, its end touches.
		if p.g.current == p && p.conv.idle() && time.Since(p.used) >= p.box.server.Idle {
			p.stop(nil)
		}
	})
}

// # Reports

// report tells the sink and the log how far the process is.
func (p *process) report(state ProcessState, f *fault) {
	st := p.status(state, f)
	log := p.box.log.With("server", p.box.server.Name, "process", st.Process, "pid", st.PID)
	if f != nil && p.log == nil {
		log = log.With("stderr", st.Stderr, "stdout", st.Stdout) // there is no other place for it
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
	st := ProcessStatus{Process: p.g.id, Session: p.g.speaker.id, Ticket: p.g.speaker.ticket, State: state, NoiseLines: p.noise}
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
		st.Stderr, st.Stdout = p.stderr.Last(p.box.hide), p.stdout.Last(p.box.hide)
	}
	return st
}

// exitCode is -1 where there is none.
func exitCode(st ProcessStatus) int {
	if st.ExitCode == nil {
		return -1
	}
	return *st.ExitCode
}

// unpack takes a batch apart. Its messages are told one by one, for clients of most
// versions know no batches, and one that is no message does not spoil the others.
func unpack(line []byte) []json.RawMessage {
	if line[0] == '[' {
		var batch []json.RawMessage
		if json.Unmarshal(line, &batch) == nil {
			return batch
		}
	}
	return []json.RawMessage{line}
}
