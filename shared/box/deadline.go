package box

import "time"

// deadlines limit how long a process may take for a request, and a client for an answer.
// They also limit how long an idle process is kept.
type deadlines struct {
	box  *Box
	p    *process
	idle *time.Timer
	used time.Time // when the process last had something to do

	pulse
	last  *fault      // not nil: the process takes no more calls, and stops with this after its last one
	grace *time.Timer // fires when the time for the last calls is over
	until time.Time   // when grace fires
}

// limit sets the deadline of a request: a server that does not answer must not keep the
// box awake for ever.
func (d *deadlines) limit(r *request) {
	if timeout := d.box.server.ToolTimeout; timeout >= 0 {
		d.count(r, timeout)
	}
}

// count starts or restarts the timer for the time that a request has left.
func (d *deadlines) count(r *request, left time.Duration) {
	r.due = time.Now().Add(left)
	r.timer = d.box.server.Guard.After(left, func() {
		d.box.mu.Lock()
		defer d.box.mu.Unlock()
		// The request may have ended, or asked something, while this waited for the
		// lock.
		if d.p.conv.requests[r.number] != r || r.asked > 0 {
			return
		}
		limit := d.box.server.ToolTimeout
		f := d.box.server.fault(phaseOf(r), "did not answer %s within %s (tool_timeout_sec); it was cancelled", r.method, limit)
		f.data.Limit, f.data.Setting = limit.Seconds(), "tool_timeout_sec"
		d.p.excuse(r, f)
		d.p.expire(r, "the call took longer than its limit", f)
	})
}

// repair is the time in which a process may still send the right answer after one that is
// not JSON. Some servers print an answer, perhaps cut short, before they send it.
const repair = time.Second

// soon calls giveUp: at once, or if wait is true after [repair], unless open then says that the
// request has ended.
func (d *deadlines) soon(wait bool, open func() bool, giveUp func()) {
	if !wait {
		giveUp()
		return
	}
	d.box.server.Guard.After(repair, func() {
		d.box.mu.Lock()
		defer d.box.mu.Unlock()
		if open() {
			giveUp()
		}
	})
}

// opened stops the clock of a request that asks its client something: the server is not
// responsible for the time that a human takes. The question has a limit of its own,
// because a client that has gone never answers.
func (d *deadlines) opened(q *question) {
	r := q.call
	if r.asked++; r.asked == 1 && r.timer != nil {
		r.timer.Stop()
		r.left = time.Until(r.due)
	}
	d.ask(q, d.box.server.AnswerTimeout)
	if d.p.waits() {
		d.rest()
	}
}

// ask limits the time for the answer to a question.
func (d *deadlines) ask(q *question, within time.Duration) {
	r := q.call
	q.due = time.Now().Add(within)
	q.timer = d.box.server.Guard.After(within, func() {
		d.box.mu.Lock()
		defer d.box.mu.Unlock()
		if d.p.conv.questions[q.visible] != q {
			return
		}
		limit := d.box.server.AnswerTimeout
		f := d.box.server.fault(phaseOf(r), "asked the client something during %s and had no answer within %s (answer_timeout_sec); it was cancelled", r.method, limit)
		f.data.Limit, f.data.Setting = limit.Seconds(), "answer_timeout_sec"
		d.p.expire(r, "the client did not answer in time", f)
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
	d.box.touch()
	d.used = d.box.used
	if d.last != nil && d.p.state < stopping && d.p.conv.idle() {
		d.p.stop(d.last)
		return
	}
	if d.p.state == ready {
		d.rest()
	}
}

// rest starts the idle time of the process anew.
func (d *deadlines) rest() {
	d.used = time.Now()
	if d.idle != nil {
		d.idle.Reset(d.box.server.Idle)
		return
	}
	d.idle = d.box.server.Guard.After(d.box.server.Idle, func() {
		d.box.mu.Lock()
		defer d.box.mu.Unlock()
		// The process may have been used while this waited for the lock. While a request
		// is open the timer does nothing: the end of the request calls quiet.
		switch {
		case !d.p.isCurrent() || time.Since(d.used) < d.box.server.Idle:
		case d.p.conv.idle() || d.p.waits():
			d.p.stop(nil)
		}
	})
}

// take takes over the requests of a process that sleeps, with the time that each has left.
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

// drain limits the time that a process has for its calls before it is stopped. A later limit
// does not replace an earlier one: an order to halt may come after that to shut down.
func (d *deadlines) drain(why *fault, within time.Duration) {
	until := time.Now().Add(within)
	if d.grace != nil {
		if d.until.Before(until) {
			return
		}
		d.grace.Stop()
	}
	d.until = until
	d.last, d.grace = why, d.box.server.Guard.After(within, func() {
		d.box.mu.Lock()
		defer d.box.mu.Unlock()
		if d.p.state != gone {
			d.p.fail(why)
		}
	})
}
