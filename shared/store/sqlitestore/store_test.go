package sqlitestore

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func open(t testing.TB, path string, options ...Options) *Store {
	t.Helper()
	s, err := Open(path, options...)
	commontest.OK(t, err)
	return s
}

// fresh returns a store without data, which the end of the test closes.
func fresh(t testing.TB, options ...Options) *Store {
	t.Helper()
	s := open(t, filepath.Join(t.TempDir(), "store.db"), options...)
	t.Cleanup(func() {
		commontest.Check(t, s.Close())
	})
	return s
}

// again returns another handle on the same file.
func again(t testing.TB, s *Store) *Store {
	t.Helper()
	o := open(t, s.path)
	t.Cleanup(func() { _ = o.Close() })
	return o
}

func TestStore(t *testing.T) {
	storagetest.Store(t, storagetest.Harness{
		Open: func(t *testing.T) storage.Store { return open(t, filepath.Join(t.TempDir(), "store.db")) },
		Reopen: func(t *testing.T, s storage.Store) storage.Store {
			return open(t, s.(*Store).path)
		},
		Bounded: func(t *testing.T) storage.Store { return open(t, filepath.Join(t.TempDir(), "store.db"), tight(8)) },
	})
}

func batch(stream storage.StreamID, first storage.Index, events ...string) storage.Batch {
	b := storage.Batch{Session: "s1", Stream: stream, First: first, Gen: 1, Seq: int64(first), Expires: time.Now().Add(time.Hour)}
	for _, e := range events {
		b.Events = append(b.Events, []byte(e))
	}
	return b
}

func put(t testing.TB, s *Store, batches ...storage.Batch) {
	t.Helper()
	for _, b := range batches {
		commontest.OKIn(t, fmt.Sprintf("append at %d of %q", b.First, b.Stream), s.Append(t.Context(), b))
	}
}

func read(t testing.TB, s *Store, stream storage.StreamID, after storage.Index) storage.Page {
	t.Helper()
	p, err := s.Read(t.Context(), "s1", stream, after, 1000)
	commontest.OK(t, err)
	return p
}

func indexes(p storage.Page) []storage.Index {
	var list []storage.Index
	for _, e := range p.Events {
		list = append(list, e.Index)
	}
	return list
}

func wantCode(t testing.TB, what string, err error, code storage.Code) {
	t.Helper()
	if storage.CodeOf(err) != code {
		t.Fatalf("%s: error %v, want one with code %q", what, err, code)
	}
}

func TestReadBoundsAPageInBytes(t *testing.T) {
	s := fresh(t)
	mib := strings.Repeat("x", 1<<20)
	for first := storage.Index(1); first <= 40; first += 8 {
		put(t, s, batch("r", first, mib, mib, mib, mib, mib, mib, mib, mib))
	}
	after, pages := storage.Index(0), []int{}
	for more := true; more; {
		p := read(t, s, "r", after)
		if p.Gap || len(p.Events) == 0 || p.Events[0].Index != after+1 {
			t.Fatalf("page after %d: %d events, gap %t", after, len(p.Events), p.Gap)
		}
		after, more = p.Events[len(p.Events)-1].Index, p.More
		pages = append(pages, len(p.Events))
	}
	commontest.SameIn(t, "events of the pages", []int{16, 16, 8}, pages)
}

func TestPutPartRefusesWhatIsTooLarge(t *testing.T) {
	p := storage.Part{Box: "b", Frame: "f", Data: make([]byte, 128<<10+1), Expires: time.Now().Add(time.Hour)}
	wantCode(t, "PutPart", fresh(t).PutPart(t.Context(), p), storage.TooLarge)
}
