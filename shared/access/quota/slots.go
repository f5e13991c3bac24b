package quota

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	maxSlots = 256              // calls in flight of one principal
	slotWait = 2 * time.Second  // how long a call waits for a slot
	slotLook = time.Second / 4  // time between two looks at the slots while a call waits
	slotFree = 30 * time.Second // age at which a call that is not in the store counts as dead; package sessions waits 25 s for a box
	slotLife = 24 * time.Hour   // after this time a slot is free, even if its call has not ended
	slotIdle = 25 * time.Hour   // time after which the row is deleted
)

// slot is a call in flight. It ends with the stream of its call.
type slot struct {
	Session storage.ID       `json:"s"`
	Stream  storage.StreamID `json:"d"`
	Box     storage.BoxID    `json:"b"`
	Begun   int64            `json:"t"` // Unix milliseconds
}

// takeSlot records a call in flight. The argument most is how many may be recorded. Nothing reports
// the end of a call, so if all slots are taken, takeSlot looks in the sessions' streams for calls
// that have ended. Cost: a write for each call, a read if others write too, and a read for each ended
// call that it finds.
//
// Errors: Unavailable.
func (l *Limiter) takeSlot(ctx context.Context, key storage.ValueKey, s slot, most int) (ok bool, err error) {
	until := time.Now().Add(slotWait)
	for {
		ok, err := l.trySlot(ctx, key, s, most)
		if ok || err != nil || !time.Now().Before(until) {
			return ok, err
		}
		if err := storage.Rest(ctx, slotLook); err != nil {
			return false, storage.Errorf(storage.Unavailable, "the request has ended while it waited for a call to end").Because(err)
		}
	}
}

func (l *Limiter) trySlot(ctx context.Context, key storage.ValueKey, s slot, most int) (ok bool, err error) {
	err = edit(ctx, l.store, key, slotIdle, func(slots []slot) ([]slot, bool, error) {
		var err error
		if len(slots) >= most {
			slots, err = l.running(ctx, slots)
		}
		ok = err == nil && len(slots) < most
		return append(slots, s), ok, err
	})
	if errors.Is(err, storage.Conflict) {
		return false, nil
	}
	return ok && err == nil, err
}

// freeSlot forgets a call that has not begun. If the write fails, the slot is free after
// slotFree.
func (l *Limiter) freeSlot(ctx context.Context, key storage.ValueKey, stream storage.StreamID) {
	_ = edit(ctx, l.store, key, slotIdle, func(slots []slot) ([]slot, bool, error) {
		return slices.DeleteFunc(slots, func(s slot) bool { return s.Stream == stream }), true, nil
	})
}

// running returns the slots whose calls are in flight. A call of which the store knows nothing
// has just begun, or its program has died.
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
