package quota

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// calls is the token bucket of the calls of one principal. The caller of its methods must hold the
// lock turn.
type calls struct {
	key   storage.ValueKey
	clock func() time.Time
	turn  turn
	used  time.Time

	known bool // rev and row are what the store had when it was last read or written
	rev   int64
	row   callsRow
	ahead time.Duration // how far the most advanced clock of other writers is ahead of this one

	tokens int       // tokens that were taken from the bucket and not spent yet
	until  time.Time // when the tokens are lost
	batch  int       // how many tokens to take from the bucket next time
	backup time.Time // when the bucket in memory, for a store that is down, is full again
	flood  time.Time // when no refusal counts any more; see floods
}

// callsRow is the bucket in the store. Times are Unix microseconds.
type callsRow struct {
	Now  int64 `json:"now"`  // the latest time that a writer has seen
	Full int64 `json:"full"` // when the bucket is full again
}

// turn is a lock that can be waited for with a context.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return storage.Errorf(storage.Unavailable, "the limits of the caller were not checked in time").Because(ctx.Err())
	}
}

func (t turn) end() { <-t }

// now returns the time of the most advanced clock that this instance knows of. That may be its own
// clock, as it was before somebody set it back.
func (c *calls) now() time.Time {
	c.ahead = max(c.ahead, time.UnixMicro(c.row.Now).Sub(c.clock()))
	return c.clock().Add(c.ahead)
}

// short reports whether this instance holds too few tokens for n calls.
func (c *calls) short(n int) bool {
	if !time.Now().Before(c.until) {
		if c.tokens > 0 { // tokens were left when their time ended, so take fewer next time
			c.batch = max(1, c.batch/2)
		}
		c.tokens = 0
	}
	return c.tokens < n
}

// take takes tokens for n calls. If there are too few, it takes none, and returns the time after
// which there may be enough.
//
// Errors: Unavailable.
func (c *calls) take(ctx context.Context, store storage.Values, r Rate, n int) (after time.Duration, err error) {
	if c.short(n) && c.known {
		if _, _, after := c.grant(r, n); after > 0 { // refused without a read of the store
			return after, nil
		}
	}
	for tries := 0; c.short(n); tries++ {
		if !c.known {
			if err := c.load(ctx, store); err != nil {
				return 0, err
			}
		}
		row, taken, after := c.grant(r, n)
		if after > 0 {
			return after, nil
		}
		switch err := c.save(ctx, store, row); {
		case errors.Is(err, storage.Conflict):
			c.batch = min(2*c.batch, r.most()) // other instances write the row too: take more tokens at a time
			if tries == maxTries {
				return time.Second, nil
			}
			if err := pause(ctx, tries); err != nil {
				return 0, err
			}
			continue
		case err != nil:
			return 0, err
		}
		c.tokens, c.until = c.tokens+taken, time.Now().Add(r.hold())
		c.batch = min(2*c.batch, r.most())
		break // the call has its tokens, even if c.until has passed already
	}
	c.tokens = max(0, c.tokens-n)
	return 0, nil
}

// grant takes tokens for n calls or more from a copy of the row. It returns the copy and the number
// of tokens that it took. If the row has too few tokens, grant returns the time after which it may
// have enough.
func (c *calls) grant(r Rate, n int) (row callsRow, taken int, after time.Duration) {
	now := max(c.row.Now, c.now().UnixMicro())
	full, every := max(now, c.row.Full), r.every().Microseconds()
	room := r.depth().Microseconds() - (full - now)
	if room < 0 { // the row is that of another limit, which was in force before
		full, room = now, r.depth().Microseconds()
	}
	if room < int64(n)*every {
		return callsRow{}, 0, time.Duration(int64(n)*every-room) * time.Microsecond
	}
	take := min(max(int64(n), int64(c.batch)), room/every)
	return callsRow{Now: now, Full: full + take*every}, int(take), 0
}

// giveBack puts back the tokens of n calls that did not begin. If this instance keeps tokens in
// memory now, they stay there. If not, they go back to the row, and an error of the store loses
// them.
func (c *calls) giveBack(ctx context.Context, store storage.Values, r Rate, n int) {
	if r.most() > 1 && time.Now().Before(c.until) {
		c.tokens += n
		return
	}
	for tries := range maxTries {
		if !c.known && c.load(ctx, store) != nil {
			return
		}
		row := callsRow{Now: max(c.row.Now, c.now().UnixMicro()), Full: c.row.Full - int64(n)*r.every().Microseconds()}
		if err := c.save(ctx, store, row); !errors.Is(err, storage.Conflict) || pause(ctx, tries) != nil {
			return
		}
	}
}

// alone takes tokens while the store is down. The bucket is in memory, and fills at half the rate.
func (c *calls) alone(r Rate, n int) (after time.Duration) {
	now, every := time.Now(), 2*r.every()
	full := later(c.backup, now).Add(time.Duration(n) * every)
	if over := full.Sub(now) - max(time.Duration(r.Burst)*r.every(), time.Duration(n)*every); over > 0 {
		return over
	}
	c.backup = full
	return 0
}

// floods counts a refusal, and reports whether its caller is a flood now. A flood is a caller who
// is refused more than nine times as often as the limit admits calls.
func (c *calls) floods(r Rate) bool {
	now, every := time.Now(), max(1, r.every()/9)
	c.flood = later(c.flood, now).Add(every)
	return c.flood.Sub(now) > time.Duration(9*r.Burst)*every
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (c *calls) load(ctx context.Context, store storage.Values) error {
	v, row, err := loadRow[callsRow](ctx, store, c.key)
	if err != nil {
		return err
	}
	c.known, c.rev, c.row = true, v.Rev, row
	return nil
}

// save writes the row. After an error, the next use reads the row again.
func (c *calls) save(ctx context.Context, store storage.Values, row callsRow) error {
	data, err := json.Marshal(row)
	if err != nil {
		return err // numbers always marshal
	}
	expires := time.Now().Add(time.Duration(max(0, row.Full-row.Now))*time.Microsecond + time.Hour)
	v, err := store.SaveValue(ctx, storage.Value{Key: c.key, Rev: c.rev, Data: data, Expires: expires})
	if err != nil {
		c.known = false
		return err
	}
	c.rev, c.row = v.Rev, row
	return nil
}

// maxTries limits the attempts to write a row that other instances write at the same
// time.
const maxTries = 20

// pause waits for a random time, at first for up to 1 ms. Each try doubles this limit, up to 64 ms.
func pause(ctx context.Context, tries int) error {
	if err := storage.Rest(ctx, rand.N(time.Millisecond<<min(tries, 6))); err != nil {
		return storage.Errorf(storage.Unavailable, "the request has ended before its limits were checked").Because(err)
	}
	return nil
}

// edit replaces a row with the result of the function change. If ok is false, edit writes nothing.
// The written row expires after life, or never if life is 0. If another writer was faster, edit reads
// the row and calls change again.
//
// Errors: Conflict if other writers were faster maxTries times; Unavailable if ctx ends; any error
// of change or of the store.
func edit[T any](ctx context.Context, store storage.Values, key storage.ValueKey, life time.Duration, change func(T) (next T, ok bool, err error)) error {
	for tries := range maxTries {
		v, row, err := loadRow[T](ctx, store, key)
		if err != nil {
			return err
		}
		row, ok, err := change(row)
		if err != nil || !ok {
			return err
		}
		if v.Data, err = json.Marshal(row); err != nil {
			return err
		}
		if life > 0 {
			v.Expires = time.Now().Add(life)
		}
		if _, err := store.SaveValue(ctx, v); !errors.Is(err, storage.Conflict) {
			return err
		}
		if err := pause(ctx, tries); err != nil {
			return err
		}
	}
	return storage.Conflict
}

// loadRow reads a row. A row that cannot be decoded counts as empty, and the next write replaces
// it.
func loadRow[T any](ctx context.Context, store storage.Values, key storage.ValueKey) (v storage.Value, row T, err error) {
	v, err = store.LoadValue(ctx, key)
	if err == nil && len(v.Data) > 0 && json.Unmarshal(v.Data, &row) != nil {
		var none T
		row = none
	}
	return v, row, err
}
