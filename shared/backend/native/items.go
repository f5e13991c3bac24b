package native

import (
	"context"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// invokeLater starts an invocation that executes a waiting item.
func (k *Backend) invokeLater(ctx context.Context, it storage.Item) {
	if err := k.invoke(ctx, it); err != nil {
		k.Log.WarnContext(ctx, "call waits for an invocation", "session_id", it.Address.Session, "stream", it.ID, "error", err)
	}
}

// invoke starts an invocation that goes on with an item.
func (k *Backend) invoke(ctx context.Context, it storage.Item) error {
	if k.Invoke == nil {
		return nil
	}
	event, err := AlarmEvent(k.alarmOf(it, time.Now()))
	if err != nil {
		return err
	}
	return k.Invoke(ctx, event)
}

func (k *Backend) alarmOf(it storage.Item, at time.Time) Alarm {
	tenant, server := it.Box.Parts()
	return Alarm{Session: it.Address.Session, Tenant: tenant, Server: server, Stream: it.ID, Round: it.Round, At: at}
}

// schedule sets an alarm, if there is a scheduler.
func (k *Backend) schedule(ctx context.Context, a Alarm) error {
	if k.Schedule == nil {
		return nil
	}
	return k.Schedule.Schedule(ctx, a)
}

// attempts is how often put and swap try a write that fails with Unavailable.
const attempts = 5

// put stores an item whose key is new. If an item is there already, an earlier attempt of put
// has written it and the answer was lost.
func (k *Backend) put(ctx context.Context, it storage.Item) (put bool, err error) {
	for n := range attempts {
		time.Sleep(time.Duration(n) * 50 * time.Millisecond)
		if _, err = k.Store.PutItem(ctx, it); !errors.Is(err, storage.Unavailable) {
			return err == nil, err
		}
	}
	return false, err
}

// swap replaces an item by another. If the store's answer was lost, swap finds out
// whether the new item is there.
func (k *Backend) swap(ctx context.Context, was, it storage.Item) (swapped bool, err error) {
	for n := range attempts {
		time.Sleep(time.Duration(n) * 50 * time.Millisecond)
		if swapped, err = k.Store.SwapItem(ctx, was, it); swapped || err != nil && !errors.Is(err, storage.Unavailable) {
			return swapped, err
		}
		if err == nil && n == 0 {
			return false, nil
		}
		now, look := k.Store.Item(ctx, it.Box, it.ID)
		switch {
		case errors.Is(look, storage.NotFound):
			return false, nil
		case look != nil:
			err = look
		case now.State == it.State && now.Gen == it.Gen && now.Round == it.Round:
			return true, nil
		case now.State != was.State || now.Gen != was.Gen || now.Round != was.Round:
			return false, nil
		}
	}
	return false, err
}

// whole returns an item with its message, Raw, which items of a list may lack. Raw is nil if
// the item has changed meanwhile.
func (k *Backend) whole(ctx context.Context, it storage.Item) (storage.Item, error) {
	if it.Raw != nil {
		return it, nil
	}
	now, err := k.Store.Item(ctx, it.Box, it.ID)
	if errors.Is(err, storage.NotFound) || err == nil && (now.State != it.State || now.Round != it.Round) {
		return it, nil
	}
	return now, err
}

// end ends a request with an error, in place of the instance that executes it. It takes the
// item first, so that only one of the two instances writes the end. If this instance dies
// before the write, its lease on the item runs out, and another instance ends the request.
func (k *Backend) end(ctx context.Context, it storage.Item, why *wire.Error) error {
	ends := it
	ends.State, ends.Gen, ends.Questions, ends.Raw = storage.Taken, 0, nil, nil
	ends.NotAfter = time.Now().Add(grace)
	if it.State != storage.Taken || it.Gen != 0 {
		if swapped, err := k.swap(ctx, it, ends); err != nil || !swapped {
			return err
		}
	}
	if err := k.out.Fail(ctx, it.Address, why, time.Now().Add(k.EventAge)); err != nil {
		return err
	}
	if it.State == storage.Suspended && len(it.Questions) == 0 && k.Schedule != nil {
		if err := k.Schedule.Cancel(ctx, k.alarmOf(it, it.NotAfter)); err != nil {
			k.Log.WarnContext(ctx, "alarm of a call that has ended stays", "session_id", it.Address.Session, "stream", it.ID, "error", err)
		}
	}
	return k.Store.DeleteItem(ctx, it.Box, it.ID, 0)
}

// endAll ends those requests of a session for which match returns true, and returns how
// many.
func (k *Backend) endAll(ctx context.Context, box storage.BoxID, id storage.ID, match func(storage.Item) bool, why func(storage.Item) *wire.Error) (found int, err error) {
	all, err := k.Store.Items(ctx, box)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, it := range all {
		if it.Address.Session == id && match(it) {
			found++
			errs = append(errs, k.end(ctx, it, why(it)))
		}
	}
	return found, errors.Join(errs...)
}
