package storage

import (
	"context"
	"iter"
	"time"
)

// Collection keeps the records of one kind that have an ID and a Rev.
type Collection[T any] interface {
	// Create stores a new record with Rev 1. Errors: Conflict if the ID is taken; a repeat
	// may conflict with the caller's own write.
	Create(ctx context.Context, v T) error
	// Get reads a record. Errors: NotFound if there is none or it has expired.
	Get(ctx context.Context, id string) (T, error)
	// Save replaces a record if the stored Rev equals that of v, and stores Rev+1. As with
	// Sessions.Save, a repeat may conflict with the caller's own write.
	//
	// Errors: Conflict if the Rev differs, NotFound if the row is gone.
	Save(ctx context.Context, v T) error
	// List returns the records of a tenant, or of all tenants for "", in order of ID. It
	// begins after the given ID and returns at most limit. A shorter result is the last. It may
	// take several round trips, and may miss a record that was created a moment ago.
	List(ctx context.Context, tenant, after string, limit int) ([]T, error)
}

// Kind says what a driver must know to store the records of a [Collection].
type Kind[T any] struct {
	Name   string // in texts of errors
	Fields func(*T) Fields
}

// Fields is what a driver reads of a record, and sets through the pointers into it.
type Fields struct {
	ID      string
	Rev     *int64
	Tenant  *string
	Expires *time.Time
}

// KeyKind tells a driver how to store a [Key].
func KeyKind() Kind[Key] {
	return Kind[Key]{"key", func(v *Key) Fields { return Fields{v.ID, &v.Rev, &v.Tenant, &v.Expires} }}
}

// GrantKind tells a driver how to store a [Grant].
func GrantKind() Kind[Grant] {
	return Kind[Grant]{"grant", func(v *Grant) Fields { return Fields{v.ID, &v.Rev, &v.Tenant, &v.Expires} }}
}

// UpstreamTokenKind tells a driver how to store an [UpstreamToken].
func UpstreamTokenKind() Kind[UpstreamToken] {
	return Kind[UpstreamToken]{"upstream token", func(v *UpstreamToken) Fields { return Fields{v.ID, &v.Rev, &v.Tenant, &v.Expires} }}
}

// Marshal returns a record as JSON, without Rev. Errors: as [MarshalSession].
func (k Kind[T]) Marshal(v T) ([]byte, error) {
	*k.Fields(&v).Rev = 0
	return Marshal(v)
}

// Unmarshal reads what [Kind.Marshal] wrote, and sets Rev.
func (k Kind[T]) Unmarshal(record []byte, rev int64) (T, error) {
	v, err := Unmarshal[T](record)
	*k.Fields(&v).Rev = rev
	return v, err
}

// None returns the error for a record that is not there: NotFound.
func (k Kind[T]) None() error {
	return Errorf(NotFound, "there is no such %s, or it has expired", k.Name)
}

// Taken returns the error of Create for an ID that is taken: Conflict.
func (k Kind[T]) Taken() error {
	return Errorf(Conflict, "there is a %s with this id already", k.Name)
}

// Changed returns the error of Save for a Rev that is not the stored one: Conflict.
func (k Kind[T]) Changed() error {
	return Errorf(Conflict, "the %s has been changed since it was read; read it again", k.Name)
}

// firstPage is how many records [All] and [AllSessions] read at first: a thousand, and the one that
// says that there are more. Each further page has twice as many, up to lastPage: DynamoDB reads its
// whole index for each page of the sessions of all tenants.
const firstPage, lastPage = 1001, 32 * 1001

// All returns the records of a tenant, or of all tenants for "", in order of ID. An error is the
// last element. All costs a List for each page.
func All[T any](ctx context.Context, c Collection[T], kind Kind[T], tenant string) iter.Seq2[T, error] {
	list := func(after string, limit int) ([]T, error) { return c.List(ctx, tenant, after, limit) }
	return pages("", list, func(v T) string { return kind.Fields(&v).ID })
}

// AllSessions is [All] for sessions. It begins after the given ID.
func AllSessions(ctx context.Context, s Sessions, tenant string, after ID) iter.Seq2[Session, error] {
	list := func(after ID, limit int) ([]Session, error) { return s.List(ctx, tenant, after, limit) }
	return pages(after, list, func(s Session) ID { return s.ID })
}

func pages[K ~string, T any](after K, list func(after K, limit int) ([]T, error), id func(T) K) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after, page := after, firstPage; ; page = min(2*page, lastPage) {
			all, err := list(after, page)
			for _, v := range all {
				if !yield(v, nil) {
					return
				}
				after = id(v)
			}
			if err != nil {
				yield(*new(T), err)
			}
			if err != nil || len(all) < page {
				return
			}
		}
	}
}
