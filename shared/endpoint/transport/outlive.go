package transport

import (
	"cmp"
	"context"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// outlive reports the end of a call to the Observer, if the call goes on after its request: the
// client has gone, the response has ended early, or the call has become a task. It does so only
// if [Options].Outlive can do the work.
func (x *exchange) outlive() {
	c := &x.called
	if x.opts.Outlive == nil || c.rest == nil || c.tool == "" || c.outcome != "" || x.err != nil {
		return
	}
	x.opts.Outlive(func(ctx context.Context) {
		rest, cancel := context.WithCancel(context.WithoutCancel(x.ctx()))
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		last, err := c.rest(rest)
		if ctx.Err() != nil {
			return // the program ends, and the call goes on
		}
		end := observe.Ended{Stream: c.stream, Response: last}
		if err != nil {
			end.Why = reason(problemOf(err).rpc.Message)
		} else if failed, why := sessions.FailureOf(last, x.opts.ShowErrors); failed {
			end.Why = reason(cmp.Or(why, "the tool reported an error"))
		}
		x.opts.Observer.Tell(rest, nil, &observe.Event{
			Kind: observe.Other, Trace: storage.TraceOf(rest), Ended: []observe.Ended{end},
			Account: storage.Account{Tenant: x.caller.Tenant, Principal: x.caller.Principal, Server: x.caller.Server.Name, Session: x.session, Took: time.Since(x.begun)},
		})
	})
}

// restOf returns a function that reads a call to its end, and returns the last event.
func restOf[E any](call interface {
	Next(ctx context.Context, until time.Time) ([]E, error)
	Done() bool
}, raw func(E) []byte,
) func(ctx context.Context) ([]byte, error) {
	return func(ctx context.Context) (last []byte, err error) {
		for !call.Done() {
			events, err := call.Next(ctx, time.Now().Add(time.Hour))
			if err != nil {
				return nil, err
			}
			if n := len(events); n > 0 {
				last = raw(events[n-1])
			}
		}
		if last == nil {
			return nil, unanswered(storage.Closed)
		}
		return last, nil
	}
}
