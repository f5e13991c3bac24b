// Package intercept wraps a [storage.Store] with one function. The function runs
// around every call of the store, so a wrapper that counts, measures or fails calls
// need not forward each method itself.
package intercept

import (
	"context"
	"errors"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Kind is what a call of a store does.
type Kind int

// The kinds of calls. A compare-and-swap is a Write, whether it is refused or not.
const (
	Read Kind = iota
	Write
	Wait // Log.Wait: a read that may be made many times before it finds something
)

// Call is one call of a store.
type Call struct {
	Method string // of storage.Store, such as "Append"
	Kind   Kind
	// In is the record that a write gets, or the question ids that Answers gets. It is
	// nil for a call that has only keys.
	In any
	// Out is the result of the store, set after do has run: a record, a slice of records,
	// a [Loaded] or a bool. It is nil for a method that returns only an error.
	Out any
}

// Loaded is the result of Load.
type Loaded struct {
	Session storage.Session
	Box     storage.Box
}

// Func runs around one call of a store. do makes the call with the context that it gets.
// Func calls do at most once. The error of Func becomes the error of the method. If that
// error is not do's error and does not wrap it, the method returns no result.
type Func func(ctx context.Context, c *Call, do func(context.Context) error) error

// Store is a store with a function around every method but Close. It is safe for
// concurrent use if the function is. It has as many methods as storage.Store.
type Store struct {
	inner  storage.Store
	around Func
}

var _ storage.Store = (*Store)(nil)

// New puts a function around the methods of inner. Closing the Store closes inner.
func New(inner storage.Store, around Func) *Store { return &Store{inner: inner, around: around} }

// Unwrap returns the inner store.
func (s *Store) Unwrap() storage.Store { return s.inner }

// Close closes the inner store. The function does not run around it.
func (s *Store) Close() error { return s.inner.Close() }

// Bytes returns how many bytes c gives to a write: of events, messages, answers, parts, lists
// and durable values, and of a session's initialize parameters. Keys and the other fields of
// a record do not count.
func (c *Call) Bytes() (n int) {
	if c.Kind != Write {
		return 0
	}
	return Bytes(c.In)
}

// Bytes returns the size of a record or a page, as [Call.Bytes] counts it. It is 0 for
// anything else.
func Bytes(record any) (n int) {
	switch r := record.(type) {
	case storage.Session:
		return len(r.Init)
	case storage.Answer:
		return len(r.Raw)
	case storage.Handshake:
		return len(r.Result)
	case storage.Item:
		return len(r.Raw)
	case storage.Part:
		return len(r.Data)
	case storage.Value:
		return len(r.Data)
	case storage.Batch:
		for _, e := range r.Events {
			n += len(e)
		}
	case storage.Page:
		for _, e := range r.Events {
			n += len(e.Raw)
		}
	}
	return n
}

// result runs s.around around do, a call of the inner store that returns a value.
func result[T any](ctx context.Context, s *Store, c Call, do func(context.Context) (T, error)) (T, error) {
	var out T
	var own error
	err := s.around(ctx, &c, func(ctx context.Context) error {
		out, own = do(ctx)
		c.Out = out
		return own
	})
	if err != nil && !errors.Is(err, own) {
		var none T
		return none, err
	}
	return out, err
}

func read[T any](ctx context.Context, s *Store, method string, do func(context.Context) (T, error)) (T, error) {
	return result(ctx, s, Call{Method: method, Kind: Read}, do)
}

func write[T any](ctx context.Context, s *Store, method string, in any, do func(context.Context) (T, error)) (T, error) {
	return result(ctx, s, Call{Method: method, Kind: Write, In: in}, do)
}

// change runs the function around a write that returns only an error.
func change(ctx context.Context, s *Store, method string, in any, do func(context.Context) error) error {
	return s.around(ctx, &Call{Method: method, Kind: Write, In: in}, do)
}
