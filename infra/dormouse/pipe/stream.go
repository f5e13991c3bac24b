package pipe

import (
	"cmp"
	"context"
	"net/http"
	"net/http/httptrace"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// stand opens the standalone stream of the session and keeps it open. Over it the server sends
// requests and notifications that belong to no call. stand returns when the endpoint has responded,
// because the next message may cause events on the stream. It waits for a second at most, because
// some endpoints respond only with the first event.
func (p *pipe) stand() {
	up := make(chan struct{})
	session, _ := p.known()
	c := &call{standing: true}
	c.ctx, c.cancel = context.WithCancel(p.ctx)
	go func() {
		defer c.cancel()
		resp, fault := p.do(c, http.MethodGet, nil, session, "", func() {}) //nolint:bodyclose // p.stream closes it
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

// stream passes on the events of a response, until all requests of the call have a response. If the
// connection breaks, stream requests the rest of the events.
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
		for wait := cmp.Or(rest, firstRest); ; wait = min(max(2*wait, firstRest), longRest) {
			var again bool
			if resp, again = p.resume(c, session, last, wait); resp != nil { //nolint:bodyclose // p.events closes it
				break
			}
			if !again || !c.standing && time.Since(lost) > lostWithin {
				p.fail(c, broken(p.where))
				return
			}
		}
	}
}

// broken returns the error for a stream that ended before the response.
func broken(where string) *wire.Error {
	return &wire.Error{Code: wire.CodeOutcomeUnknown, Message: "the stream of " + where + " broke before the answer; whether the request was executed is not known"}
}

// events passes on the events of one response. It returns the id of the last event, and the pause
// that the endpoint asks for.
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

// resume waits, and then requests the events of a stream after the one with the id lastID. If resp is
// nil, again reports whether another attempt makes sense.
func (p *pipe) resume(c *call, session, lastID string, wait time.Duration) (resp *http.Response, again bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.ctx.Done():
		return nil, false
	case <-timer.C:
	}
	of := &call{ctx: c.ctx, standing: true} // a call for a GET, which has no body
	resp, fault := p.do(of, http.MethodGet, nil, session, lastID, func() {})
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

// whenWritten returns a context for an HTTP request. When the request was written, onWritten is
// called.
func whenWritten(ctx context.Context, onWritten func()) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { onWritten() }})
}
