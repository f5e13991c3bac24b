package relay_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/intercept"
)

// simStore is a store with latency and faults. A call may fail without effect, take effect
// and fail, fail and take effect later, be slow, or be the last call of its function. A
// write may be done twice, as by an SDK that got no answer. The second try then finds the
// effect of the first.
type simStore struct {
	w                *world
	*intercept.Store // for reads; each write has a method here
}

var _ storage.Store = (*simStore)(nil)

func newSimStore(w *world) *simStore {
	return &simStore{w, intercept.New(w.memory, func(ctx context.Context, c *intercept.Call, do func(context.Context) error) error {
		_, err := through(ctx, c.Method, func() (struct{}, error) { return struct{}{}, do(ctx) })
		return err
	})}
}

// through does one call of the store for the function of ctx.
func through[T any](ctx context.Context, what string, do func() (T, error)) (T, error) {
	var zero T
	a := actorOf(ctx)
	if err := a.step(ctx); err != nil {
		return zero, err
	}
	pause := a.takes(2 * time.Millisecond)
	if a.chance(a.w.slow) {
		pause += draw(a.rng, 5*time.Second)
	}
	if err := nap(ctx, pause); err != nil {
		return zero, err
	}
	if a.chance(a.w.notStored) {
		a.tell("%s fails", what)
		return zero, unavailable(what + " did not reach the store")
	}
	v, err := do()
	if a.chance(a.w.answerLost) {
		a.tell("%s: the answer is lost", what)
		return zero, unavailable("the answer to " + what + " was lost")
	}
	if err := a.step(ctx); err != nil {
		return zero, err
	}
	return v, err
}

// written does one write of the store for the function of ctx.
func written[T any](ctx context.Context, what string, do func() (T, error)) (T, error) {
	return through(ctx, what, func() (zero T, _ error) {
		a := actorOf(ctx)
		again := draw(a.rng, []time.Duration{100 * time.Millisecond, 5 * time.Second, 25 * time.Second}[a.rng.IntN(3)])
		switch {
		case a.chance(a.w.storedLate):
			a.tell("%s will happen later", what)
			a.w.afoot.Add(1)
			a.w.wg.Go(func() {
				defer a.w.afoot.Add(-1)
				if nap(a.w.ctx, again) == nil {
					_, _ = do()
				}
			})
			return zero, unavailable("the answer to " + what + " was lost")
		case a.chance(a.w.twice):
			a.tell("%s happens twice", what)
			_, _ = do()
			if err := nap(ctx, again); err != nil {
				return zero, err
			}
		}
		v, err := do()
		a.tell("%s: %v", what, storage.CodeOf(err))
		return v, err
	})
}

func change(ctx context.Context, what string, do func() error) error {
	_, err := written(ctx, what, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (s *simStore) Create(ctx context.Context, v storage.Session) error {
	return change(ctx, "Create", func() error { return s.w.memory.Create(ctx, v) })
}

func (s *simStore) Load(ctx context.Context, id storage.ID, box storage.BoxID) (storage.Session, storage.Box, error) {
	v, b, err := s.Store.Load(ctx, id, box)
	return shiftSession(v, -skewOf(ctx)), shiftBox(b, -skewOf(ctx)), err
}

func (s *simStore) Save(ctx context.Context, v storage.Session) error {
	return change(ctx, "Save of "+s.w.ledger.owner(v.ID), func() error { return s.w.memory.Save(ctx, shiftSession(v, skewOf(ctx))) })
}

func (s *simStore) PutConnection(ctx context.Context, c storage.Connection) error {
	return change(ctx, "PutConnection", func() error { return s.w.memory.PutConnection(ctx, c) })
}

func (s *simStore) DeleteConnection(ctx context.Context, id string) error {
	return change(ctx, "DeleteConnection", func() error { return s.w.memory.DeleteConnection(ctx, id) })
}

func (s *simStore) PutAnswer(ctx context.Context, v storage.Answer) (bool, error) {
	return written(ctx, "PutAnswer", func() (bool, error) { return s.w.memory.PutAnswer(ctx, v) })
}

func (s *simStore) SaveHandshake(ctx context.Context, v storage.Handshake) error {
	return change(ctx, "SaveHandshake", func() error { return s.w.memory.SaveHandshake(ctx, v) })
}

func (s *simStore) SaveValue(ctx context.Context, v storage.Value) (storage.Value, error) {
	return written(ctx, "SaveValue", func() (storage.Value, error) { return s.w.memory.SaveValue(ctx, v) })
}

func (s *simStore) Append(ctx context.Context, v storage.Batch) error {
	what := fmt.Sprintf("Append of %d events to %s of %s at %d, generation %d, batch %d, final %v",
		len(v.Events), s.w.name(v.Stream), s.w.ledger.owner(v.Session), v.First, v.Gen, v.Seq, v.Final)
	wrote := false
	return change(ctx, what, func() error {
		err := s.w.memory.Append(ctx, v)
		if errors.Is(err, storage.Duplicate) && wrote {
			err = nil // a driver recognizes its own first try
		}
		wrote = wrote || err == nil
		if last := v.Events[len(v.Events)-1]; err == nil && v.Final && v.Gen == 0 && saysOver(last) {
			s.w.ledger.told.add(v.Stream)
		}
		return err
	})
}

func (s *simStore) Box(ctx context.Context, id storage.BoxID) (storage.Box, error) {
	b, err := s.Store.Box(ctx, id)
	return shiftBox(b, -skewOf(ctx)), err
}

func (s *simStore) SaveBox(ctx context.Context, v storage.Box) error {
	what := fmt.Sprintf("SaveBox %s: %q, generation %d, lost %d, link %d, attempt %d", v.ID, v.State, v.Gen, v.Lost, v.Link, v.Attempt)
	return change(ctx, what, func() error { return s.w.memory.SaveBox(ctx, shiftBox(v, skewOf(ctx))) })
}

func (s *simStore) PutItem(ctx context.Context, v storage.Item) (bool, error) {
	return written(ctx, "PutItem of "+s.w.name(v.ID), func() (bool, error) { return s.w.memory.PutItem(ctx, shiftItem(v, skewOf(ctx))) })
}

func (s *simStore) Claim(ctx context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) (storage.Item, error) {
	return written(ctx, "Claim of "+s.w.name(id), func() (storage.Item, error) {
		v, err := s.w.memory.Claim(ctx, box, id, gen)
		return shiftItem(v, -skewOf(ctx)), err
	})
}

func (s *simStore) SwapItem(ctx context.Context, was, v storage.Item) (bool, error) {
	what := fmt.Sprintf("SwapItem of %s: from %s, generation %d, round %d to %s, round %d", s.w.name(v.ID), was.State, was.Gen, was.Round, v.State, v.Round)
	return written(ctx, what, func() (bool, error) { return s.w.memory.SwapItem(ctx, was, shiftItem(v, skewOf(ctx))) })
}

func (s *simStore) Item(ctx context.Context, box storage.BoxID, id storage.StreamID) (storage.Item, error) {
	v, err := s.Store.Item(ctx, box, id)
	return shiftItem(v, -skewOf(ctx)), err
}

func (s *simStore) Items(ctx context.Context, box storage.BoxID) ([]storage.Item, error) {
	items, err := s.Store.Items(ctx, box)
	for i := range items {
		items[i] = shiftItem(items[i], -skewOf(ctx))
	}
	return items, err
}

func (s *simStore) DeleteItem(ctx context.Context, box storage.BoxID, id storage.StreamID, gen storage.Generation) error {
	return change(ctx, "DeleteItem of "+s.w.name(id), func() error { return s.w.memory.DeleteItem(ctx, box, id, gen) })
}

func (s *simStore) PutPart(ctx context.Context, v storage.Part) error {
	return change(ctx, "PutPart", func() error { return s.w.memory.PutPart(ctx, v) })
}
