package storagetest

import (
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// rows makes the tests of a [storage.Collection], for keys, grants and upstream tokens.
type rows[T any] struct {
	full   func(id string) T // returns a record of the tenant acme with every field filled
	kind   storage.Kind[T]
	change func(*T)                              // changes a field that is not among kind.Fields
	spoil  func(*T)                              // overwrites memory that the record points to, such as a slice; nil if it has no pointers
	beside func(t *testing.T, k *kit, id string) // stores records of other kinds with this id
	of     func(storage.Store) storage.Collection[T]
}

func (r rows[T]) put(t *testing.T, s storage.Store, v T) {
	t.Helper()
	noError(t, "create", r.of(s).Create(t.Context(), v))
}

func (r rows[T]) get(t *testing.T, s storage.Store, id string) T {
	t.Helper()
	v, err := r.of(s).Get(t.Context(), id)
	noError(t, "read", err)
	return v
}

func (r rows[T]) ids(t *testing.T, s storage.Store, tenant, after string, limit int) (ids []string) {
	t.Helper()
	list, err := r.of(s).List(t.Context(), tenant, after, limit)
	noError(t, "list", err)
	for _, v := range list {
		ids = append(ids, r.kind.Fields(&v).ID)
	}
	return ids
}

func (r rows[T]) promises() []promise {
	list := []promise{
		{"a record nobody has created is NotFound", func(t *testing.T, k *kit) {
			r.put(t, k, r.full("r1"))
			r.beside(t, k, "r2")
			for _, id := range []string{"r2", "r", "R1", ""} {
				_, err := r.of(k).Get(t.Context(), id)
				wantCode(t, "read of "+id, err, storage.NotFound)
				wantCode(t, "save of "+id, r.of(k).Save(t.Context(), r.full(id)), storage.NotFound)
			}
		}},
		{"a record is kept with every field and Rev 1", func(t *testing.T, k *kit) {
			want := r.full("r1")
			filled(t, want)
			given := want
			*r.kind.Fields(&given).Rev = 17
			r.put(t, k, given)
			same(t, "the record", r.get(t, k.other(t), "r1"), want)
		}},
		{"of many that create the same record one wins", func(t *testing.T, k *kit) {
			race(t, k, 8, func(s storage.Store, _ int) error { return r.of(s).Create(t.Context(), r.full("r1")) })
			wantCode(t, "create again", r.of(k).Create(t.Context(), r.full("r1")), storage.Conflict)
		}},
		{"of many that save the same revision of a record one wins", func(t *testing.T, k *kit) {
			r.put(t, k, r.full("r1"))
			race(t, k, 8, func(s storage.Store, _ int) error { return r.of(s).Save(t.Context(), r.full("r1")) })
			changed := r.full("r1")
			r.change(&changed)
			f := r.kind.Fields(&changed)
			*f.Rev, *f.Tenant = 2, "umbrella"
			noError(t, "save", r.of(k).Save(t.Context(), changed))
			*f.Rev = 3
			same(t, "the record", r.get(t, k.other(t), "r1"), changed)
		}},
		{"an expired record is not there, and its id is free", func(t *testing.T, k *kit) {
			old := r.full("r1")
			*r.kind.Fields(&old).Expires = past()
			r.put(t, k, old)
			_, err := r.of(k).Get(t.Context(), "r1")
			wantCode(t, "read", err, storage.NotFound)
			wantCode(t, "save", r.of(k).Save(t.Context(), old), storage.NotFound)
			same(t, "what is listed", r.ids(t, k, "", "", 10), []string(nil))
			r.put(t, k, r.full("r1"))
			same(t, "what is listed now", r.ids(t, k, "", "", 10), []string{"r1"})
		}},
		{"records are listed in order, behind one, at most so many", func(t *testing.T, k *kit) {
			var all []string
			for i := range 120 {
				all = append(all, fmt.Sprintf("r%03d", i))
			}
			for i := range all { // not in the order of the ids
				r.put(t, k, r.full(all[(i*7)%len(all)]))
			}
			for _, c := range []struct {
				after string
				limit int
				want  []string
			}{
				{"", 1000, all}, {"", 2, all[:2]}, {"r001", 2, all[2:4]}, {"r001x", 110, all[2:112]}, {"r119", 10, nil}, {"", 0, nil},
			} {
				for _, tenant := range []string{"", "acme"} {
					same(t, fmt.Sprintf("records of %q behind %q", tenant, c.after), r.ids(t, k, tenant, c.after, c.limit), c.want)
				}
			}
		}},
		{"records are listed by tenant, and other kinds without them", func(t *testing.T, k *kit) {
			for i, tenant := range []string{"acme", "umbrella", "acme", ""} {
				v := r.full(fmt.Sprint("r", i))
				*r.kind.Fields(&v).Tenant = tenant
				r.put(t, k, v)
			}
			r.beside(t, k, "r5")
			full := r.full("r9")
			r.put(t, k, full)
			list, err := r.of(k).List(t.Context(), "", "r8", 10)
			noError(t, "list", err)
			same(t, "a listed record", list, []T{full})
			same(t, "records of acme", r.ids(t, k, "acme", "", 10), []string{"r0", "r2", "r9"})
			same(t, "records of umbrella", r.ids(t, k, "umbrella", "r0", 10), []string{"r1"})
			same(t, "records of nobody", r.ids(t, k, "nobody", "", 10), []string(nil))
			same(t, "sessions", listed(t, k, "", "", 10), []storage.ID{"r5"})
		}},
	}
	if r.spoil != nil {
		list = append(list, promise{"records are copied in and out", func(t *testing.T, k *kit) {
			v := r.full("r1")
			r.put(t, k, v)
			want := fmt.Sprintf("%+v", r.get(t, k, "r1")) // a text, which shares no memory with the record
			for range 2 {
				r.spoil(&v)
				v = r.get(t, k, "r1")
				same(t, "the record", fmt.Sprintf("%+v", v), want)
			}
		}})
	}
	return list
}
