package quota

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// need is what one message needs of one bucket of a row.
type need struct {
	bucket string // name in its row
	scope  string // see session.Limited
	tool   string // pattern of a limit of tools, or ""
	rate   Rate
	n      int // tokens
}

// rates is the row of the buckets of one principal, tenant or server. Callers hold turn.
type rates struct {
	key   session.ValueKey
	clock func() time.Time
	turn  turn
	used  time.Time

	known bool // rev and row are what the store had when it was last read or written
	rev   int64
	row   ratesRow
	ahead time.Duration // by which the clocks of other writers are ahead of this one
	held  map[string]*held
}

// ratesRow is the stored form. Times are Unix microseconds.
type ratesRow struct {
	Now  int64            `json:"now"`  // the latest time that a writer has seen
	Full map[string]int64 `json:"full"` // when each bucket is full again; missing: it is
}

// held is what this instance has of a bucket.
type held struct {
	tokens int
	until  time.Time // when the tokens are lost
	batch  int       // how many tokens to take next time
	backup time.Time // when the bucket of this instance is full, while the store is down

	// floods has a time for each caller that was refused. It moves ahead with each refusal
	// of that caller; one whose time is far ahead of now is a flood.
	floods map[string]time.Time
}

// turn is a lock that can be waited for with a context.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return session.Errorf(session.Unavailable, "the limits of the caller were not checked in time").Because(ctx.Err())
	}
}

func (t turn) end() { <-t }

// refusal says which need is not met, and after what time it may be met.
type refusal struct {
	need
	after time.Duration
}

func (r *rates) of(bucket string) *held {
	h := r.held[bucket]
	if h == nil {
		h = &held{batch: 1}
		r.held[bucket] = h
	}
	return h
}

// now returns the time of the most advanced clock that this instance knows of.
func (r *rates) now() time.Time { return r.clock().Add(r.ahead) }

// short returns the needs for which this instance holds too few tokens.
func (r *rates) short(needs []need) (short []need) {
	now := time.Now()
	for _, n := range needs {
		h := r.of(n.bucket)
		if !now.Before(h.until) {
			if h.tokens > 0 { // the rest is lost, so this instance takes fewer next time
				h.batch = max(1, h.batch/2)
			}
			h.tokens = 0
		}
		if h.tokens < n.n {
			short = append(short, n)
		}
	}
	return short
}

// peek returns the first need that is known to find no tokens. It reads only memory.
func (r *rates) peek(needs []need) *refusal {
	short := r.short(needs)
	if !r.known || len(short) == 0 {
		return nil
	}
	_, _, refused := r.grant(short)
	return refused
}

// floods counts a refusal, and reports whether it makes its caller a flood. A flood is
// refused nine times as often as the limit admits calls. Many callers may share a bucket,
// so each counts for itself.
func (r *rates) floods(caller string, n need) bool {
	h, now := r.of(n.bucket), time.Now()
	if h.floods == nil || len(h.floods) >= maxKnown {
		h.floods = map[string]time.Time{}
	}
	every := max(1, n.rate.every()/9)
	ahead := later(h.floods[caller], now).Add(every)
	h.floods[caller] = ahead
	return ahead.Sub(now) > time.Duration(9*n.rate.Burst)*every
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// fill makes sure that this instance has the tokens that a message needs of a row, without
// spending them. It returns the first need that finds none.
//
// Errors: Unavailable.
func (r *rates) fill(ctx context.Context, store session.Values, needs []need) (*refusal, error) {
	short := r.short(needs)
	for tries := 0; len(short) > 0; tries++ {
		if !r.known {
			if err := r.load(ctx, store); err != nil {
				return nil, err
			}
		}
		row, grants, refused := r.grant(short)
		if refused != nil {
			return refused, nil
		}
		switch err := r.save(ctx, store, row); {
		case errors.Is(err, session.Conflict):
			for _, n := range short { // others take, too: take more at a time
				h := r.of(n.bucket)
				h.batch = min(2*h.batch, n.rate.most())
			}
			if tries == maxTries {
				return &refusal{short[0], time.Second}, nil
			}
			if err := pause(ctx, tries); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, err
		}
		for i, n := range short {
			h := r.of(n.bucket)
			h.tokens, h.until = h.tokens+grants[i], time.Now().Add(n.rate.hold())
			h.batch = min(2*h.batch, n.rate.most())
		}
		return nil, nil
	}
	return nil, nil
}

// maxTries limits the attempts to write a row that other instances write at the same
// time.
const maxTries = 20

// pause waits for a random time. Its limit is a millisecond, doubles with each try, and
// is 64 ms at most.
func pause(ctx context.Context, tries int) error {
	timer := time.NewTimer(rand.N(time.Millisecond << min(tries, 6)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return session.Errorf(session.Unavailable, "the request has ended before its limits were checked").Because(ctx.Err())
	}
}

// grant returns the row after tokens were taken from it, and how many for each need.
func (r *rates) grant(needs []need) (row ratesRow, grants []int, refused *refusal) {
	now := r.now()
	row = ratesRow{Now: max(r.row.Now, now.UnixMicro()), Full: map[string]int64{}}
	for bucket, at := range r.row.Full {
		if at > row.Now {
			row.Full[bucket] = at
		}
	}
	for _, n := range needs {
		full, every := max(row.Now, row.Full[n.bucket]), n.rate.every().Microseconds()
		room := n.rate.depth().Microseconds() - (full - row.Now)
		if room < int64(n.n)*every {
			after := time.Duration(int64(n.n)*every-room) * time.Microsecond
			return ratesRow{}, nil, &refusal{n, after}
		}
		take := min(max(int64(n.n), int64(r.of(n.bucket).batch)), room/every)
		row.Full[n.bucket] = full + take*every
		grants = append(grants, int(take))
	}
	return row, grants, nil
}

// spend uses tokens that fill has made sure of.
func (r *rates) spend(needs []need) {
	for _, n := range needs {
		h := r.of(n.bucket)
		h.tokens = max(0, h.tokens-n.n)
	}
}

// giveBack returns tokens that were spent on calls that did not begin. Those of slow
// limits, which are not held, go back to the row; an error loses them.
func (r *rates) giveBack(ctx context.Context, store session.Values, needs []need) {
	now := time.Now()
	var back []need
	for _, n := range needs {
		if h := r.of(n.bucket); n.rate.most() > 1 && now.Before(h.until) {
			h.tokens += n.n
			continue
		}
		back = append(back, n)
	}
	for tries := 0; len(back) > 0 && tries < maxTries; tries++ {
		if !r.known && r.load(ctx, store) != nil {
			return
		}
		row := ratesRow{Now: max(r.row.Now, r.now().UnixMicro()), Full: map[string]int64{}}
		for bucket, at := range r.row.Full {
			row.Full[bucket] = at
		}
		for _, n := range back {
			row.Full[n.bucket] -= int64(n.n) * n.rate.every().Microseconds()
		}
		if err := r.save(ctx, store, row); !errors.Is(err, session.Conflict) || pause(ctx, tries) != nil {
			break
		}
	}
}

func (r *rates) load(ctx context.Context, store session.Values) error {
	v, row, err := loadRow[ratesRow](ctx, store, r.key)
	if err != nil {
		return err
	}
	r.known, r.rev, r.row = true, v.Rev, row
	r.ahead = max(r.ahead, time.UnixMicro(row.Now).Sub(r.clock()))
	return nil
}

// loadRow reads a row. One that cannot be decoded counts as empty: the next write replaces
// it.
func loadRow[T any](ctx context.Context, store session.Values, key session.ValueKey) (v session.Value, row T, err error) {
	v, err = store.LoadValue(ctx, key)
	if err == nil && len(v.Data) > 0 && json.Unmarshal(v.Data, &row) != nil {
		var none T
		row = none
	}
	return v, row, err
}

// save writes the row. After an error, the next fill reads it again.
func (r *rates) save(ctx context.Context, store session.Values, row ratesRow) error {
	data, err := json.Marshal(row)
	if err != nil {
		return err // numbers always encode
	}
	last := row.Now
	for _, at := range row.Full {
		last = max(last, at)
	}
	expires := time.Now().Add(time.Duration(last-row.Now)*time.Microsecond + time.Hour)
	v, err := store.SaveValue(ctx, session.Value{Key: r.key, Rev: r.rev, Data: data, Expires: expires})
	if err != nil {
		r.known = false
		return err
	}
	r.rev, r.row = v.Rev, row
	return nil
}

// alone admits calls while the store is down, at half the rate of each limit.
func (r *rates) alone(needs []need) *refusal {
	now := time.Now()
	for _, n := range needs {
		h, every := r.of(n.bucket), 2*n.rate.every()
		full := later(h.backup, now).Add(time.Duration(n.n) * every)
		if over := full.Sub(now) - max(time.Duration(n.rate.Burst)*n.rate.every(), time.Duration(n.n)*every); over > 0 {
			return &refusal{n, over}
		}
	}
	for _, n := range needs {
		h := r.of(n.bucket)
		h.backup = later(h.backup, now).Add(time.Duration(n.n) * 2 * n.rate.every())
	}
	return nil
}
