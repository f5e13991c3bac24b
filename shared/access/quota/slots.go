package quota

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Bounds of calls in flight.
const (
	maxSlots = 256              // of one principal
	slotWait = 2 * time.Second  // how long a call waits for a slot
	slotLook = time.Second / 4  // between two looks at the slots while it waits
	slotFree = 30 * time.Second // a call without a trace after this time has died: each call has a trace within sessions.Limits.AcceptBy
	slotLife = 24 * time.Hour   // after this time a slot is free, whatever the log says
	slotIdle = 25 * time.Hour   // after which the row is deleted
)

// slot is a call in flight. It ends with the stream of its call.
type slot struct {
	Session storage.ID       `json:"s"`
	Stream  storage.StreamID `json:"d"`
	Box     storage.BoxID    `json:"b"`
	Begun   int64            `json:"t"` // Unix milliseconds
}

// takeSlot records a call in flight, if fewer than most are. No function reports the end
// of a call. So if all slots are taken, takeSlot looks in the log for calls that have
// ended. Cost: a write for each call, a read if others write too, and a read for each
// ended call that it finds.
//
// Errors: Unavailable.
func (l *Limiter) takeSlot(ctx context.Context, key storage.ValueKey, s slot, most int) (ok bool, err error) {
	until := time.Now().Add(slotWait)
	for {
		ok, err := l.trySlot(ctx, key, s, most)
		if ok || err != nil || !time.Now().Before(until) {
			return ok, err
		}
		timer := time.NewTimer(slotLook)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false, storage.Errorf(storage.Unavailable, "the request has ended while it waited for a call to end").Because(ctx.Err())
		}
	}
}

func (l *Limiter) trySlot(ctx context.Context, key storage.ValueKey, s slot, most int) (ok bool, err error) {
	for tries := range maxTries {
		v, slots, err := loadRow[[]slot](ctx, l.store, key)
		if err != nil {
			return false, err
		}
		if len(slots) >= most {
			if slots, err = l.running(ctx, slots); err != nil {
				return false, err
			}
		}
		if len(slots) >= most {
			return false, nil
		}
		err = l.saveSlots(ctx, v, append(slots, s))
		if !errors.Is(err, storage.Conflict) {
			return err == nil, err
		}
		if err := pause(ctx, tries); err != nil {
			return false, err
		}
	}
	return false, nil
}

// freeSlot forgets a call that has not begun. If it cannot, the slot is free after slotFree.
func (l *Limiter) freeSlot(ctx context.Context, key storage.ValueKey, stream storage.StreamID) {
	for tries := range maxTries {
		v, slots, err := loadRow[[]slot](ctx, l.store, key)
		if err != nil {
			return
		}
		left := slices.DeleteFunc(slots, func(s slot) bool { return s.Stream == stream })
		if !errors.Is(l.saveSlots(ctx, v, left), storage.Conflict) || pause(ctx, tries) != nil {
			return
		}
	}
}

func (l *Limiter) saveSlots(ctx context.Context, v storage.Value, slots []slot) error {
	if slots == nil {
		slots = []slot{}
	}
	data, err := json.Marshal(slots)
	if err != nil {
		return err // texts and numbers always encode
	}
	v.Data, v.Expires = data, time.Now().Add(slotIdle)
	_, err = l.store.SaveValue(ctx, v)
	return err
}

// running returns the slots whose calls are in flight. A call without a trace is one that
// has just begun, or one whose function has died.
func (l *Limiter) running(ctx context.Context, slots []slot) (left []slot, err error) {
	for _, s := range slots {
		age := time.Since(time.UnixMilli(s.Begun))
		if age > slotLife {
			continue
		}
		tail, err := l.store.Tail(ctx, s.Session, s.Stream)
		if err != nil {
			return nil, err
		}
		if tail.Final {
			continue
		}
		if age > slotFree {
			_, err := l.store.Item(ctx, s.Box, s.Stream)
			if errors.Is(err, storage.NotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		left = append(left, s)
	}
	return left, nil
}
