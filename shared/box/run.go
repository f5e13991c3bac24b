package box

import (
	"io"
	"os"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/memory"
)

// processRun starts one process when its turn comes, and goes on until the process has ended.
type processRun struct {
	p      *process
	hello  *handshake
	before []<-chan struct{} // the process.over of each process that must end first
	steps  int               // how many steps of the preparation the sink has been told

	ended  sync.Once // sets unread and sure, before stdin is closed
	unread int       // bytes of stdin that the process had not read when it ended
	sure   bool      // unread is exact, because no program can read stdin any more
}

func (r *processRun) run() {
	p := r.p
	if r.awaitTurn() && r.launch() {
		r.accompany()
		r.passOn()
		if intact := r.finish(); p.nap.kept {
			p.keeping.leave()
		} else {
			p.keeping.save(intact)
		}
	} else if err := p.keeping.given.clear(); err != nil {
		p.box.log.Warn("the files of a principal's secrets stay", "server", p.box.server.Name, "process", p.group.id, "error", err)
	}
	p.forgetImage()
	p.output.log.Close(p.howItEnded())
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	p.endRequests(p.obituary())
	r.bury()
	close(p.over)
	p.group.left(p)
}

// finish ends the open requests of a process that has ended. It returns false if the workspace must
// not be saved, because the process failed or was killed at work.
func (r *processRun) finish() bool {
	p := r.p
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	e, _ := p.exit()
	f := p.obituary()
	if r.unsend(f) && e.Code != nil && *e.Code == 0 && p.greeted && !p.told && p.group.current == nil {
		r.again(f)
	}
	p.endRequests(f)
	if e.Code != nil && *e.Code == 0 {
		return true
	}
	return p.asked() && (e.Signal == "" || !p.keeping.atWork)
}

// unsend treats requests as not sent if the process has certainly not read them, and reports
// whether there are such requests. The error f then tells their clients that they were not
// executed.
func (r *processRun) unsend(f *fault) (some bool) {
	p := r.p
	if !r.sure || p.state == gone {
		return false
	}
	read := p.queue.Written() - int64(r.unread)
	for _, q := range p.conv.inOrder() {
		if q.passed != nil && q.given.at >= read && q.asked == 0 {
			p.conv.passed.Remove(q.passed)
			if q.passed = nil; q.timer != nil {
				q.timer.Stop()
			}
			some = true
		}
	}
	if some {
		f.unsent = f.message + "; the call was not executed, send it again"
	}
	return some
}

// again gives the requests that this process has not read to another process. A request that was
// already given on, and all requests that were read, end with the error f.
func (r *processRun) again(f *fault) {
	p := r.p
	for _, q := range p.conv.inOrder() {
		if q.passed != nil || q.given.again || q.given.line == nil || !p.held.add(heldLine{number: q.number, line: q.given.line}) {
			p.conv.end(q, f.unanswered(q))
			continue
		}
		q.given.again = true
	}
	if len(p.held.lines) > 0 {
		p.handOver(p.group.next())
	}
}

// launch starts the OS process and sends it the first message, or returns false if the process
// cannot be started.
func (r *processRun) launch() bool {
	p := r.p
	p.output.log = p.box.server.log(p.group.id, p.box.hide)
	r.hello.begun = time.Now()
	var l launch
	err := p.box.server.Memory.Room(p.wanted) // waits until the machine has memory for it
	if err == nil {
		l, err = r.prepare()
	}
	var c child
	var frozen *frozen
	if err == nil {
		c, frozen, err = r.begin(l)
	}
	if err == nil {
		p.output.log.Note("process %d of session %s started", c.PID(), p.group.id)
	}
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if err != nil {
		p.fail(p.box.startFault(err))
		return false
	}
	p.child, p.output.unrun = c, l.unrun
	p.keeping.workspace, p.keeping.staged = l.keep, l.staged
	p.to(greeting)
	p.report(Started, nil)
	if frozen != nil {
		p.thawed(frozen)
	} else {
		p.forgetMemory()
		r.hello.start()
	}
	if p.told {
		p.dismiss()
	}
	return true
}

func (r *processRun) spawn(l launch) (child, error) {
	l.Extra = nil
	if r.p.box.server.Refusals {
		theirs, err := r.p.output.refused.open()
		if err != nil {
			return nil, err
		}
		defer func() { _ = theirs.Close() }() // the child has a copy
		l.Extra = []*os.File{nil, theirs}
	}
	if r.p.box.server.Images != nil {
		ours, theirs, err := memory.Pair()
		if err != nil {
			r.p.output.refused.close()
			return nil, err
		}
		defer func() { _ = theirs.Close() }()
		l.Extra = append(append(l.Extra, nil, nil)[:2], theirs)
		r.p.nap.control = ours
	}
	c, err := r.p.box.spawn(l.Command, r.p.box.grace)
	if err != nil {
		r.p.output.refused.close()
		r.p.nap.close()
	}
	return c, err
}

// accompany moves messages in both directions until the process has ended and all its output is
// read.
func (r *processRun) accompany() {
	p := r.p
	c := p.child
	done := make(chan struct{}, 4)
	begin := func(f func()) { p.box.server.Guard.Go(func() { f(); done <- struct{}{} }) }
	begin(func() {
		if p.queue.WriteLines(c.Stdin()) != nil {
			r.leave() // the process does not read any more
		}
	})
	begin(func() {
		(&listener{p: p}).listen()
		close(p.nap.heard)
		r.leave()
	})
	begin(func() { p.output.stderr.ReadAll(io.TeeReader(c.Stderr(), p.output.log)) })
	begin(func() {
		for p.hearRefusals(true) {
		}
	})
	select {
	case <-c.Exited():
	case <-c.Abandoned():
	case <-p.nap.drowsy:
		r.freeze()
	}
	select {
	case <-c.Exited():
	case <-c.Abandoned():
		p.box.mu.Lock()
		p.endRequests(p.obituary())
		p.box.mu.Unlock()
		<-c.Exited()
	}
	if p.nap.control != nil {
		p.nap.control.Close()
	}
	p.hearRefusals(false)
	p.output.refused.close()
	r.leave()
	p.queue.Close()
	c.CloseStdin()
	for range 4 {
		<-done
	}
	c.Release()
}

// leave terminates a process that has exited or closed its stdin or stdout. The open requests end
// later, because the process may still answer them.
func (r *processRun) leave() {
	p := r.p
	if !isClosed(p.nap.drowsy) {
		r.ended.Do(func() { r.unread, r.sure = p.child.Unread() })
	}
	p.box.mu.Lock()
	defer p.box.mu.Unlock()
	if isClosed(p.nap.drowsy) && !p.nap.over {
		return // freeze ends the process itself
	}
	p.left = p.left || !p.told
	if r.hello.probe == probing && p.state < ready {
		r.hello.probed(probeSilent)
	}
	p.to(stopping)
	p.group.detach(p)
	p.child.Terminate()
}

func (r *processRun) bury() {
	p := r.p
	r.hello.stop()
	p.clock.stop()
	if p.asked() {
		if p.child != nil || r.steps > 0 {
			p.report(Stopped, nil)
		}
		return
	}
	p.report(Exited, p.obituary())
}
