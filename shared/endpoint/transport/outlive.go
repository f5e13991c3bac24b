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
// client has gone, the response has ended early or with a question, the call has become a task, or
// its answer goes to another connection. Without [Options].Outlive it does nothing. The argument e
// is the event of the request.
func (o *Options) outlive(ctx context.Context, c *called, e *observe.Event) {
	if o.Outlive == nil || c.rest == nil || e.Outcome != observe.Open {
		return
	}
	end := observe.Ended{Stream: e.Stream}
	of := storage.Account{Tenant: e.Tenant, Principal: e.Principal, Server: e.Server, Session: e.Session}
	begun := time.Now().Add(-e.Took)
	o.Outlive(func(life context.Context) {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		last, err := c.rest(ctx)
		if life.Err() != nil {
			return // the program ends, and the call goes on
		}
		if c.asked && !o.asked.CompareAndDelete(e.Stream, c) {
			return // a later request of the client continues the call, and reports its end
		}
		if end.Response = last; err != nil {
			end.Why = reason(problemOf(err).rpc.Message)
		} else if failed, why := sessions.FailureOf(last, o.ShowErrors); failed {
			end.Why = reason(cmp.Or(why, "the tool reported an error"))
		}
		of.Took = time.Since(begun)
		o.Observer.Tell(ctx, nil, &observe.Event{Kind: observe.Other, Trace: storage.TraceOf(ctx), Ended: []observe.Ended{end}, Account: of})
	})
}

// outlives notes that a call goes on after its request.
func (c *called) outlives(call sessions.Response) {
	c.rest = func(ctx context.Context) (last []byte, err error) {
		for !call.Done() {
			events, err := call.Next(ctx, time.Now().Add(time.Hour))
			if err != nil {
				return nil, err
			}
			if n := len(events); n > 0 {
				last = events[n-1].Raw
			}
		}
		if last == nil {
			return nil, unanswered(storage.Closed)
		}
		return last, nil
	}
}
