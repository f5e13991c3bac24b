package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Scope says to whom durable values belong.
type Scope = storage.ValueScope

// The scopes of durable values. One tenant never sees the values of another.
const (
	OfSession   Scope = storage.ValueOfSession   // of one session; deleted with it
	OfPrincipal Scope = storage.ValueOfPrincipal // of all sessions of the principal with this server
	OfServer    Scope = storage.ValueOfServer    // of all sessions of the tenant with this server
)

// State is the durable values of one scope, by name. Durable values outlive the message, the
// process and the deployment. A name has 1 to 128 bytes, and does not begin with a zero byte.
// A value is any Go value that encodes to at most 256 KiB of JSON.
type State struct {
	store storage.Values
	key   storage.ValueKey
	life  time.Duration
}

// State returns the durable values of a scope. For a modern client, one session covers all
// requests of its principal to this server.
func (s Session) State(scope Scope) State { return stateOf(s.in.k.Store, s.in.record, scope) }

func stateOf(store storage.Values, s storage.Session, scope Scope) State {
	k := storage.ValueKey{Tenant: s.Tenant, Server: s.Server, Scope: scope}
	switch scope {
	case OfSession:
		k.Of, k.Since = string(s.ID), s.Created
	case OfPrincipal:
		k.Of = s.Principal
	case OfServer:
	}
	return State{store: store, key: k}
}

// Expiring returns the same values with a lifetime. A value that is saved through the returned
// State is deleted if it is not saved again within the lifetime. Do not use it for values of a
// session, which end with the session.
func (s State) Expiring(after time.Duration) State {
	s.life = after
	return s
}

// Load decodes a value into the variable to which target points. rev is the revision that
// [State.Save] needs. If there is no value, rev is 0 and the variable stays unchanged.
//
// Errors: storage.Invalid (the name), storage.Unavailable; one of encoding/json if the
// value cannot be decoded.
func (s State) Load(ctx context.Context, name string, target any) (rev int64, err error) {
	k, err := s.named(name)
	if err != nil {
		return 0, err
	}
	v, err := s.store.LoadValue(ctx, k)
	if err != nil || v.Rev == 0 {
		return 0, err
	}
	return v.Rev, json.Unmarshal(v.Data, target)
}

// Save writes a value, or deletes it if value is nil, provided that rev is still its
// revision. It returns the new revision for the next Save. If another writer was first,
// the error is storage.Conflict: load the value and decide again, as [Update] does.
//
// Errors: storage.Invalid (the name), storage.TooLarge, storage.Conflict,
// storage.Unavailable (the value may have been saved); one of encoding/json for a value
// that cannot be encoded.
func (s State) Save(ctx context.Context, name string, rev int64, value any) (next int64, err error) {
	k, err := s.named(name)
	if err != nil {
		return 0, err
	}
	return s.save(ctx, storage.Value{Key: k, Rev: rev}, value)
}

func (s State) save(ctx context.Context, v storage.Value, value any) (int64, error) {
	v.Data, v.Expires = nil, time.Time{}
	if value != nil {
		data, err := json.Marshal(value)
		if err != nil {
			return 0, err
		}
		if v.Data = data; s.life > 0 {
			v.Expires = time.Now().Add(s.life)
		}
	}
	v, err := s.store.SaveValue(ctx, v)
	return v.Rev, err
}

func (s State) named(name string) (storage.ValueKey, error) {
	if strings.HasPrefix(name, "\x00") {
		return storage.ValueKey{}, storage.Errorf(storage.Invalid, "the name of a durable value must not begin with a NUL character")
	}
	return s.own(name), nil
}

// own returns the key of a value. Unlike a name that an author gives, name may begin with a zero byte.
func (s State) own(name string) storage.ValueKey {
	k := s.key
	k.Name = name
	return k
}

// Update changes a value. change gets the value, or the zero value if there is none, and
// returns the new one. Update calls change again whenever another writer was first, so change
// must have no other effects. If change returns an error, Update returns that error and saves
// nothing.
//
// Errors: those of [State.Load] and [State.Save] but storage.Conflict.
func Update[T any](ctx context.Context, s State, name string, change func(old T) (T, error)) (value T, err error) {
	err = amongOthers(ctx, func() error {
		var old T
		rev, err := s.Load(ctx, name, &old)
		if err == nil {
			value, err = change(old)
		}
		if err == nil {
			_, err = s.Save(ctx, name, rev, value)
		}
		return err
	})
	return value, err
}

// amongOthers calls write, which reads a value and then writes it. If another writer was first
// (Conflict), amongOthers waits for a random time and calls write again.
func amongOthers(ctx context.Context, write func() error) error {
	for tries := 0; ; tries++ {
		err := write()
		if !errors.Is(err, storage.Conflict) {
			return err
		}
		if err := storage.Rest(ctx, rand.N(min(time.Millisecond<<min(tries, 10), 100*time.Millisecond))); err != nil {
			return err
		}
	}
}

// maxOnce is the longest name for Once, in bytes. oncePrefix begins the name of the value
// that Once keeps.
const (
	maxOnce    = storage.MaxValueName - len(oncePrefix)
	oncePrefix = "\x00once:"
)

type once struct {
	Done  bool      `json:"done,omitempty"`
	Until time.Time `json:"until,omitzero"` // a caller is running f, and holds the value until this time
}

// Once calls f, unless f has succeeded under this name in this scope before. It returns when f has
// succeeded: in this call, or in another, which may be in another process. While one caller runs f,
// the others wait. If f fails, or its process dies, the next caller runs f again, so parts of f may
// be executed more than once. The context of f ends if another caller has taken over. That happens
// only to a process that stood still, or did not reach the store, for half a minute.
//
// name has 1 to 122 bytes. Load finds no value under it. Errors: the error of f or ctx,
// storage.Invalid, storage.Unavailable.
func (s State) Once(ctx context.Context, name string, f func(context.Context) error) error {
	if name == "" || len(name) > maxOnce {
		return storage.Errorf(storage.Invalid, "the name given to Once has %d bytes; it needs 1 to %d", len(name), maxOnce)
	}
	k := s.own(oncePrefix + name)
	for begun := time.Now(); ; {
		v, err := s.store.LoadValue(ctx, k)
		if err != nil {
			return err
		}
		var o once
		if v.Rev != 0 {
			if err := json.Unmarshal(v.Data, &o); err != nil {
				return err
			}
		}
		now := time.Now()
		switch {
		case o.Done:
			return nil
		case o.Until.After(now):
			err = storage.Rest(ctx, min(max(now.Sub(begun)/10, 5*time.Millisecond), time.Second, o.Until.Sub(now)))
		default:
			if v.Rev, err = s.save(ctx, v, once{Until: now.Add(lease)}); err == nil {
				if over, err := s.doOnce(ctx, v, f); over {
					return err
				}
				continue // another caller has taken over
			}
			if errors.Is(err, storage.Conflict) {
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
}

// doOnce runs f for the caller that holds the value. over is false if Once must go on, because
// another caller has taken over before the success was written.
func (s State) doOnce(ctx context.Context, v storage.Value, f func(context.Context) error) (over bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := hold(context.WithoutCancel(ctx), s, v, func(until time.Time) any { return once{Until: until} }, cancel)
	if err := f(ctx); err != nil {
		_ = h.release(nil) // if this fails, the lease runs out
		return true, err
	}
	err = h.release(once{Done: true})
	return !errors.Is(err, storage.Conflict), err
}

// heldLease is a lease in a durable value.
type heldLease struct {
	state State
	v     storage.Value
	quit  chan struct{} // closed: renew no more
	done  chan struct{} // closed when the goroutine that renews has ended

	unsure bool   // it is not known whether the store has the last write
	sent   []byte // the data of that write; nil: it deleted the value
}

// hold renews the lease in a value every ten seconds until release is called. Each time it writes
// what mark returns for the new end of the lease. If another writer has changed the value, hold calls
// the function lost.
func hold(ctx context.Context, s State, v storage.Value, mark func(until time.Time) any, lost func()) *heldLease {
	h := &heldLease{state: s, v: v, quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(h.done)
		beat := time.NewTicker(renew)
		defer beat.Stop()
		for {
			select {
			case <-h.quit:
				return
			case <-beat.C:
			}
			if errors.Is(h.save(ctx, mark(time.Now().Add(lease))), storage.Conflict) {
				lost()
				return
			}
		}
	}()
	return h
}

// save writes the value. It returns Conflict if another writer has changed it. If an
// earlier write got no answer, save first finds out whether the store has that write.
func (h *heldLease) save(ctx context.Context, value any) error {
	if h.unsure {
		now, err := h.state.store.LoadValue(ctx, h.v.Key)
		if err != nil {
			return err
		}
		if h.unsure = false; bytes.Equal(now.Data, h.sent) {
			h.v.Rev = now.Rev
		}
	}
	rev, err := h.state.save(ctx, h.v, value)
	switch {
	case err == nil:
		h.v.Rev = rev
	case errors.Is(err, storage.Unavailable):
		if h.unsure, h.sent = true, nil; value != nil {
			h.sent, _ = json.Marshal(value) // cannot fail: h.state.save has encoded value before
		}
	}
	return err
}

// release ends the lease and writes the value, or deletes it if value is nil. It
// returns Conflict if another writer has changed it.
func (h *heldLease) release(value any) error {
	close(h.quit)
	<-h.done
	ctx, cancel := context.WithTimeout(context.Background(), lease)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause *= 2 {
		if err := h.save(ctx, value); !errors.Is(err, storage.Unavailable) || pause > time.Second {
			return err
		}
		if err := storage.Rest(ctx, pause); err != nil {
			return err
		}
	}
}
