// Package intercept wraps a [storage.Store] with one function, which runs around every call of
// the store.
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
	Method string // the method of storage.Store, such as "Append"; for the collection of keys "CreateKey", "Key", "SaveKey" or "ListKeys"
	Kind   Kind
	// In is the record that is passed to a write, or the question ids that are passed to Answers.
	// It is nil for all other calls, also for a write without a record, such as DeleteItem.
	In any
	// Out is what the store has returned: a record, a slice of records, a [Loaded], a
	// bool, or for Newest a stream id. It is nil before the call, and for a method that
	// returns only an error.
	Out any
}

// Loaded has the two results of the method Load.
type Loaded struct {
	Session storage.Session
	Box     storage.Box
}

// Func runs around one call of a store. Func makes the call through do, at most once; the store
// gets the context that Func passes to do. The caller gets the error of Func. The caller also gets
// the result of the store, unless Func returned an error that does not wrap the error of do.
type Func func(ctx context.Context, c *Call, do func(context.Context) error) error

// Store is a [storage.Store] with a function around every method but Close. It is safe for
// concurrent use if the function is.
type Store struct {
	inner  storage.Store
	around Func
}

var _ storage.Store = (*Store)(nil)

// New returns a Store that calls around for each call of inner. Closing the Store closes inner.
func New(inner storage.Store, around Func) *Store { return &Store{inner: inner, around: around} }

// Unwrap returns the inner store.
func (s *Store) Unwrap() storage.Store { return s.inner }

// Close closes the inner store. It does not run the function.
func (s *Store) Close() error { return s.inner.Close() }

// Bytes returns how many bytes of content a record or a page has: events, messages, answers, parts,
// lists, durable values, or a session's initialize parameters. It returns 0 for values of other types.
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

// result passes to s.around a call of the inner store that returns a value.
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

// change passes to s.around a write that returns only an error.
func change(ctx context.Context, s *Store, method string, in any, do func(context.Context) error) error {
	return s.around(ctx, &Call{Method: method, Kind: Write, In: in}, do)
}
