package pipe

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// stand opens the standalone stream of the session, over which the server asks and notifies
// apart from a call, and keeps it open. Endpoints without such a stream refuse it. stand returns
// when the endpoint has answered, so that what the next message causes is heard, or after
// standsIn: some endpoints answer with the first event.
func (p *pipe) stand() {
	up := make(chan struct{})
	session, _ := p.known()
	c := &call{standing: true}
	c.ctx, c.cancel = context.WithCancel(p.ctx)
	go func() {
		defer c.cancel()
		resp, fault := p.do(c, http.MethodGet, nil, session, "", func() {}) //nolint:bodyclose // stream closes it
		close(up)
		if fault == nil && resp.StatusCode == http.StatusOK {
			p.stream(c, resp)
		} else if fault == nil {
			_ = resp.Body.Close()
		}
	}()
	select {
	case <-up:
	case <-time.After(standsIn):
	}
}

// stream carries the events of a response, and resumes it until the call has its answers.
func (p *pipe) stream(c *call, resp *http.Response) {
	session, _ := p.known()
	last, rest := "", time.Duration(0)
	for lost := time.Now(); ; {
		seen := last
		last, rest = p.events(c, resp, last, rest)
		switch {
		case c.ctx.Err() != nil, len(c.waits) == 0 && !c.standing:
			return
		case last == "" && !c.standing:
			p.fail(c, broken(p.where))
			return
		}
		if last != seen {
			lost = time.Now()
		}
		for wait := max(rest, firstRest); ; wait = min(2*wait, longRest) {
			if rest > 0 && rest < firstRest && wait == firstRest {
				wait = rest // the endpoint says how soon
			}
			var again bool
			if resp, again = p.resume(c, session, last, wait); resp != nil { //nolint:bodyclose // events closes it
				break
			}
			if !again || !c.standing && time.Since(lost) > lostWithin {
				p.fail(c, broken(p.where))
				return
			}
		}
	}
}

// broken is the error of a stream that ended before its answer.
func broken(where string) *wire.Error {
	return &wire.Error{Code: wire.CodeOutcomeUnknown, Message: "the stream of " + where + " broke before the answer; whether the request was executed is not known"}
}

// events hands the events of one response on, and returns where to resume, and how long to
// wait before that.
func (p *pipe) events(c *call, resp *http.Response, last string, rest time.Duration) (string, time.Duration) {
	defer func() { _ = resp.Body.Close() }()
	events := wire.NewSSEReader(resp.Body, maxMessage)
	for {
		e, err := events.Next()
		if err != nil {
			return last, rest
		}
		if e.ID != "" {
			last = e.ID
		}
		if e.Retry > 0 {
			rest = e.Retry
		}
		if len(e.Data) == 0 || e.Name != "" && e.Name != "message" {
			continue
		}
		if p.hand(c, e.Data); len(c.waits) == 0 && !c.standing {
			return last, rest
		}
	}
}

// resume asks for the rest of a stream behind the event last, after the time wait. Without a
// response, again says whether it makes sense to ask once more.
func (p *pipe) resume(c *call, session, last string, wait time.Duration) (resp *http.Response, again bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.ctx.Done():
		return nil, false
	case <-timer.C:
	}
	of := &call{ctx: c.ctx, standing: true} // a GET, which has no body
	resp, fault := p.do(of, http.MethodGet, nil, session, last, func() {})
	if fault != nil {
		return nil, true
	}
	if resp.StatusCode == http.StatusOK {
		return resp, true
	}
	if p.login != nil && p.login.wanted(resp) {
		return nil, p.login.authorize(c.ctx, resp, true) == nil
	}
	_ = resp.Body.Close()
	return nil, resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests
}

// whenWritten returns a context whose request calls written when it is written.
func whenWritten(ctx context.Context, written func()) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { written() }})
}
