package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Fail ends the requests in a.Requests with an error, unless their stream has ended. The argument
// expires is when the store may delete the errors.
//
// Errors: Unavailable.
func (o Publisher) Fail(ctx context.Context, a storage.Address, why *wire.Error, expires time.Time) error {
	if len(a.Requests) == 0 {
		return nil // a delivery without requests needs no response
	}
	for {
		tail, err := o.Store.Tail(ctx, a.Session, a.Stream)
		if err != nil {
			return err
		}
		if tail.Final {
			return o.Ended(ctx, a, tail, expires)
		}
		events, err := o.failures(ctx, a, tail, why)
		if err != nil {
			return err
		}
		err = o.End(ctx, a, storage.Batch{
			Session: a.Session, Stream: a.Stream, First: tail.Last + 1, Final: true, Events: events, Expires: expires,
		})
		if !errors.Is(err, storage.Conflict) {
			return err
		}
	}
}

// failures returns an error response for each request that has no response in the log yet.
func (o Publisher) failures(ctx context.Context, a storage.Address, tail storage.Tail, why *wire.Error) ([][]byte, error) {
	open := slices.Clone(a.Requests)
	for after := storage.Index(0); len(a.Requests) > 1 && after < tail.Last; {
		page, err := o.Store.Read(ctx, a.Session, a.Stream, after, storage.MaxRead)
		if err != nil {
			return nil, err
		}
		if len(page.Events) == 0 {
			break // the events have expired, so a request may get a second response; that is better than none
		}
		for _, e := range page.Events {
			after = e.Index
			if m, err := wire.Parse(e.Raw); err == nil && m.Kind == wire.Response {
				open = slices.DeleteFunc(open, func(id json.RawMessage) bool { return wire.SameID(id, m.ID) })
			}
		}
	}
	if len(open) == 0 {
		open = a.Requests[:1] // cannot happen: a stream in which every request has its response is Final
	}
	events := make([][]byte, len(open))
	for i, id := range open {
		events[i] = wire.ErrorResponse(id, why)
	}
	return events, nil
}
