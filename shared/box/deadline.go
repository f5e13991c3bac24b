package box

import "time"

// deadlines has the timers of a process: for its requests, for the answers of clients, and for how
// long the process may be idle.
type deadlines struct {
	p    *process
	idle *time.Timer
	used time.Time // when the process last had something to do

	pulse
	last  *fault      // if not nil, the process gets no more calls; when its open calls have ended, it is stopped with this error
	grace *time.Timer // stops the process when it fires, even if calls are open
	until time.Time   // when grace fires
}

// limit starts the timer of a request: a server that does not answer must not keep the box awake
// for ever.
func (d *deadlines) limit(r *request) {
	if timeout := d.p.box.server.ToolTimeout; timeout >= 0 {
		d.count(r, timeout)
	}
}

// count starts or restarts the timer of a request, for the time left.
func (d *deadlines) count(r *request, left time.Duration) {
	r.due = time.Now().Add(left)
	r.timer = d.p.box.server.Guard.After(left, func() {
		d.p.box.mu.Lock()
		defer d.p.box.mu.Unlock()
		// The timer has waited for the lock. Meanwhile the request may have ended, or its client
		// may have been asked something.
		if d.p.conv.requests[r.number] != r || r.asked > 0 {
			return
		}
		limit := d.p.box.server.ToolTimeout
		f := d.p.box.server.fault(phaseOf(r), "did not answer %s within %s (tool_timeout_sec); it was cancelled", r.method, limit)
		f.data.Limit, f.data.Setting = limit.Seconds(), "tool_timeout_sec"
		d.p.excuse(r, f)
		d.p.expire(r, "the call took longer than its limit", f)
	})
}

// repair is how long the box waits for the right response after one that is not JSON. Some servers
// print a response to stdout, perhaps shortened, before they send it.
const repair = time.Second

// soon calls the function giveUp. If wait is true, it waits for [repair] first, and then calls
// giveUp only if the function open says that the request is still open.
func (d *deadlines) soon(wait bool, open func() bool, giveUp func()) {
	if !wait {
		giveUp()
		return
	}
	d.p.box.server.Guard.After(repair, func() {
		d.p.box.mu.Lock()
		defer d.p.box.mu.Unlock()
		if open() {
			giveUp()
		}
	})
}

// opened stops the timer of a request whose client is asked something: a human may take time to
// answer.
func (d *deadlines) opened(q *question) {
	r := q.call
	if r.asked++; r.asked == 1 && r.timer != nil {
		r.timer.Stop()
		r.left = time.Until(r.due)
	}
	d.ask(q, d.p.box.server.AnswerTimeout)
	if d.p.waits() {
		d.rest()
	}
}

// ask limits the time for the answer to a question.
func (d *deadlines) ask(q *question, within time.Duration) {
	r := q.call
	q.due = time.Now().Add(within)
	q.timer = d.p.box.server.Guard.After(within, func() {
		d.p.box.mu.Lock()
		defer d.p.box.mu.Unlock()
		if d.p.conv.questions[q.visible] != q {
			return
		}
		limit := d.p.box.server.AnswerTimeout
		f := d.p.box.server.fault(phaseOf(r), "asked the client something during %s and had no answer within %s (answer_timeout_sec); it was cancelled", r.method, limit)
		f.data.Limit, f.data.Setting = limit.Seconds(), "answer_timeout_sec"
		d.p.expire(r, "the client did not answer in time", f)
	})
}

// closed restarts the timer of a request when its last open question has ended.
func (d *deadlines) closed(q *question) {
	q.timer.Stop()
	r := q.call
	if r.asked--; r.asked == 0 && r.timer != nil && d.p.conv.requests[r.number] == r {
		d.count(r, r.left)
	}
}

// quiet restarts the idle timer of a process that is ready. If drain was called for the process and
// no request is open, quiet stops the process instead.
func (d *deadlines) quiet() {
	d.p.box.touch()
	d.used = d.p.box.used
	if d.last != nil && d.p.state < stopping && d.p.conv.idle() {
		d.p.stop(d.last)
		return
	}
	if d.p.state == ready {
		d.rest()
	}
}

// rest restarts the idle timer of the process.
func (d *deadlines) rest() {
	d.used = time.Now()
	if d.idle != nil {
		d.idle.Reset(d.p.box.server.Idle)
		return
	}
	d.idle = d.p.box.server.Guard.After(d.p.box.server.Idle, func() {
		d.p.box.mu.Lock()
		defer d.p.box.mu.Unlock()
		// The process may have been used while the timer waited for the lock. If a request is
		// open, nothing happens now: quiet is called when the request ends.
		switch {
		case !d.p.isCurrent() || time.Since(d.used) < d.p.box.server.Idle:
		case d.p.conv.idle() || d.p.waits():
			d.p.stop(nil)
		}
	})
}

// take takes over the timers of the requests and questions of a process that sleeps.
func (d *deadlines) take(c *conversation) {
	for _, r := range c.requests {
		if r.timer != nil && r.asked == 0 {
			r.timer.Stop()
			d.count(r, time.Until(r.due))
		}
	}
	for _, q := range c.questions {
		if q.call != nil {
			q.timer.Stop()
			d.ask(q, time.Until(q.due))
		}
	}
}

func (d *deadlines) stop() {
	if d.idle != nil {
		d.idle.Stop()
	}
	if d.grace != nil {
		d.grace.Stop()
	}
	d.certain()
}

// drain lets the process end its open calls, and stops it after timeout even if calls are open
// then. If drain is called several times, the earliest end counts.
func (d *deadlines) drain(why *fault, timeout time.Duration) {
	until := time.Now().Add(timeout)
	if d.grace != nil {
		if d.until.Before(until) {
			return
		}
		d.grace.Stop()
	}
	d.until = until
	d.last, d.grace = why, d.p.box.server.Guard.After(timeout, func() {
		d.p.box.mu.Lock()
		defer d.p.box.mu.Unlock()
		if d.p.state != gone {
			d.p.fail(why)
		}
	})
}
