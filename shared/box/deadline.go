package box

import (
	"time"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// limit sets the deadline of a request: a server that never answers must not keep
// the box awake for ever.
func (p *process) limit(r *request) {
	if p.box.server.ToolTimeout >= 0 {
		p.count(r, p.box.server.ToolTimeout)
	}
}

// count begins or goes on to count the time a request has left.
func (p *process) count(r *request, left time.Duration) {
	r.due = time.Now().Add(left)
	r.timer = time.AfterFunc(left, func() {
		p.box.mu.Lock()
		defer p.box.mu.Unlock()
		// It may have ended, or asked something, while this waited for the lock.
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

// await stops the clock of a request that asks its client something: the time a
// human takes to answer is not the server's. It has a limit of its own, for a
// client that has gone never answers.
func (p *process) await(q *question) {
	r := q.call
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

// goOn lets the clock of a request run again when its last question is closed.
func (p *process) goOn(q *question) {
	q.timer.Stop()
	r := q.call
	if r.asked--; r.asked == 0 && r.timer != nil && p.conv.requests[r.number] == r {
		p.count(r, r.left)
	}
}

func phaseOf(r *request) Phase {
	if r.method == wire.MethodToolsCall {
		return PhaseToolCall
	}
	return PhaseRuntime
}
