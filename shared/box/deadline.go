package box

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// deadlines limit the time of a process for a request, the time of a client for an
// answer, and the time for which an idle process is kept.
type deadlines struct {
	p    *process
	idle *time.Timer
	used time.Time // when the process last had something to do
}

// limit sets the deadline of a request: a server that does not answer must not keep the
// box awake for ever.
func (d *deadlines) limit(r *request) {
	if timeout := d.p.box.server.ToolTimeout; timeout >= 0 {
		d.count(r, timeout)
	}
}

// count starts or restarts the timer for the time that a request has left.
func (d *deadlines) count(r *request, left time.Duration) {
	p := d.p
	r.due = time.Now().Add(left)
	r.timer = time.AfterFunc(left, func() {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		// The request may have ended, or asked something, while this waited for the
		// lock.
		if p.conv.requests[r.number] != r || r.asked > 0 {
			return
		}
		limit := p.box.server.ToolTimeout
		f := p.box.server.fault(phaseOf(r), "did not answer %s within %s (tool_timeout_sec); it was cancelled", r.method, limit)
		f.data.Limit, f.data.Setting = limit.Seconds(), "tool_timeout_sec"
		p.conv.tellCancelled(r, "the call took longer than its limit")
		p.conv.end(r, p.fill(f).response(r.id))
	})
}

// opened stops the clock of a request that asks its client something: the server is not
// responsible for the time that a human takes. The question has a limit of its own,
// because a client that has gone never answers.
func (d *deadlines) opened(q *question) {
	p, r := d.p, q.call
	if r.asked++; r.asked == 1 && r.timer != nil {
		r.timer.Stop()
		r.left = time.Until(r.due)
	}
	q.timer = time.AfterFunc(p.box.server.AnswerTimeout, func() {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		if p.conv.questions[q.visible] != q {
			return
		}
		limit := p.box.server.AnswerTimeout
		f := p.box.server.fault(phaseOf(r), "asked the client something during %s and had no answer within %s (answer_timeout_sec); it was cancelled", r.method, limit)
		f.data.Limit, f.data.Setting = limit.Seconds(), "answer_timeout_sec"
		p.conv.tellCancelled(r, "the client did not answer in time")
		p.conv.end(r, p.fill(f).response(r.id))
	})
}

// closed lets the clock of a request run again when its last question is closed.
func (d *deadlines) closed(q *question) {
	q.timer.Stop()
	r := q.call
	if r.asked--; r.asked == 0 && r.timer != nil && d.p.conv.requests[r.number] == r {
		d.count(r, r.left)
	}
}

// quiet restarts the idle time of the process.
func (d *deadlines) quiet() {
	p := d.p
	p.box.touch()
	d.used = p.box.used
	if p.state != ready {
		return
	}
	if d.idle != nil {
		d.idle.Reset(p.box.server.Idle)
		return
	}
	d.idle = time.AfterFunc(p.box.server.Idle, func() {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		// The process may have been used while this waited for the lock. While something
		// is open the timer does nothing; the end of that calls quiet.
		if p.g.current == p && p.conv.idle() && time.Since(d.used) >= p.box.server.Idle {
			p.stop(nil)
		}
	})
}

// stop stops the clock of the idle time.
func (d *deadlines) stop() {
	if d.idle != nil {
		d.idle.Stop()
	}
}

func phaseOf(r *request) Phase {
	if r.method == wire.MethodToolsCall {
		return PhaseToolCall
	}
	return PhaseRuntime
}
