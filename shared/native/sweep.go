package native

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// grace is how late something may be before another function sees to it.
const grace = 10 * time.Second

// Sweep does what is due for calls of native servers, and that nobody else may come
// for. It goes on after one that fails and returns all errors. Idempotent; it may
// race with itself and with everything else.
func (k *Backend) Sweep(ctx context.Context) error {
	due, err := k.Store.Due(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, box := range due {
		if !k.Owns(box) {
			continue
		}
		items, err := k.Store.Items(ctx, box)
		errs = append(errs, err)
		for _, it := range items {
			errs = append(errs, k.settle(ctx, it))
		}
	}
	return errors.Join(errs...)
}

// settle does what is due for one item, which may come without Raw: a function that
// died while it executed the request, an invocation or an alarm that was lost, a
// client that does not answer.
func (k *Backend) settle(ctx context.Context, it session.Item) error {
	now := time.Now()
	switch {
	case it.State == session.Taken && now.After(it.NotAfter):
		return k.endItem(ctx, it, failure(phaseRuntime, "the function that executed the request is gone; whether it was finished is not known"))
	case it.State == session.Waiting && now.After(it.NotAfter):
		return k.endItem(ctx, it, failure(phaseUnavailable, "no function executed the request within "+validity.String()+"; it was not executed, send it again"))
	case it.State == session.Waiting && now.After(it.Created.Add(grace)):
		return k.again(ctx, it)
	case it.State == session.Suspended && len(it.Questions) == 0 && now.After(it.NotAfter.Add(grace)):
		return k.again(ctx, it)
	case it.State == session.Suspended && len(it.Questions) > 0:
		return k.settleAsking(ctx, it, now)
	default:
		return nil
	}
}

// again has an item go on whose invocation was lost.
func (k *Backend) again(ctx context.Context, it session.Item) error {
	if k.Invoke != nil {
		return k.invoke(ctx, it)
	}
	it, err := k.whole(ctx, it)
	if err != nil || it.Raw == nil {
		return err
	}
	r, err := k.resume(ctx, it, it.Raw)
	if r != nil {
		go r.execute()
	}
	return err
}

// settleAsking is settle for a call that waits for its client: it has ended, its time
// is over, its questions never came to be, its session has ended, or all is answered.
func (k *Backend) settleAsking(ctx context.Context, it session.Item, now time.Time) error {
	tail, err := k.Store.Tail(ctx, it.Address.Session, it.ID)
	switch {
	case err != nil:
		return err
	case tail.Final || now.After(it.NotAfter):
		within := it.NotAfter.Sub(it.Created).Round(time.Millisecond)
		return k.endItem(ctx, it, failure(phaseToolCall, "nobody answered within "+within.String()+" what the server asked (answer_timeout_sec); call it again"))
	case tail.Last < it.Base && now.After(it.Created.Add(lease)):
		return k.endItem(ctx, it, failure(phaseRuntime, "the function that executed the request is gone before it could ask"))
	}
	s, _, err := k.Store.Load(ctx, it.Address.Session, "")
	if errors.Is(err, session.NotFound) || err == nil && s.State == session.Ended {
		return k.endItem(ctx, it, failure(phaseUnavailable, "the session has ended"))
	}
	if err != nil {
		return err
	}
	return k.answered(ctx, it)
}

// endItem ends a request in the place of whoever has it: it is taken from him first,
// so that one of the two writes the end. If this function dies in between, the lease
// runs out that it has taken with it.
func (k *Backend) endItem(ctx context.Context, it session.Item, why *wire.Error) error {
	ends := it
	ends.State, ends.Gen, ends.Questions, ends.Raw = session.Taken, 0, nil, nil
	ends.NotAfter = time.Now().Add(grace)
	if it.State != session.Taken || it.Gen != 0 {
		if swapped, err := k.swap(ctx, it, ends); err != nil || !swapped {
			return err
		}
	}
	if err := k.out.Fail(ctx, it.Address, why, time.Now().Add(k.EventAge)); err != nil {
		return err
	}
	if it.State == session.Suspended && len(it.Questions) == 0 && k.Schedule != nil {
		if err := k.Schedule.Cancel(ctx, k.alarmOf(it, it.NotAfter)); err != nil {
			k.Log.WarnContext(ctx, "alarm of a call that has ended stays", "session_id", it.Address.Session, "stream", it.ID, "error", err)
		}
	}
	return k.Store.DeleteItem(ctx, it.Box, it.ID, 0)
}

// endItems ends those requests of a session that match, and says how many there were.
func (k *Backend) endItems(ctx context.Context, box session.BoxID, id session.ID, match func(session.Item) bool, why *wire.Error) (found int, err error) {
	items, err := k.Store.Items(ctx, box)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, it := range items {
		if it.Address.Session == id && match(it) {
			found++
			errs = append(errs, k.endItem(ctx, it, why))
		}
	}
	return found, errors.Join(errs...)
}
