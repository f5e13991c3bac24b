package storage_test

import (
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestIDsNameTheirBox(t *testing.T) {
	for _, n := range []int{0, 1, 9, 10, storage.MaxBoxes - 1} {
		id := storage.NewID()
		s := storage.Session{ID: id.In(n), Tenant: "acme/eu@2", Server: "files-1.x", Digest: "d"}
		box := storage.BoxFor(s.Tenant, s.Server)
		commontest.Equal(t, box.Numbered(n), s.Box())
		if tenant, server := s.Box().Parts(); tenant != s.Tenant || server != s.Server {
			t.Errorf("Parts of %s are %q and %q", s.Box(), tenant, server)
		}
		if first, number := s.Box().First(); first != box || number != n {
			t.Errorf("First of %s is %s and %d", s.Box(), first, number)
		}
		commontest.EqualIn(t, fmt.Sprintf("box %d has the first record", n), n == 0, s.Record() == storage.RecordFor(s.Tenant, s.Digest))
	}
	// A client may send any id.
	for _, id := range []storage.ID{"", "-", "-1-", "a-0", "a-01", "a-+1", "a-32", "a-99999999999999999999", "a- 1", "a-1 "} {
		commontest.EqualIn(t, string(id), 0, id.Box())
	}
}

func TestBoxesAreUsedOneAfterTheOther(t *testing.T) {
	box := storage.Box{}
	for n := range 4 {
		for range 20 {
			if got := box.Choose(storage.NewID(), 4); got != n {
				t.Fatalf("with %d full boxes a session goes into box %d", n, got)
			}
		}
		box = box.MarkFull(n, true)
	}
	spread := func(b storage.Box, most int) (count [storage.MaxBoxes]int) {
		for range 4000 {
			id := storage.NewID()
			n := b.Choose(id, most)
			if b.Choose(id, most) != n {
				t.Fatal("the same session goes into two boxes")
			}
			count[n]++
		}
		return count
	}
	check := func(what string, count [storage.MaxBoxes]int, want ...int) {
		t.Helper()
		for n, share := range count {
			if expected := append(want, make([]int, storage.MaxBoxes)...)[n]; share < expected*8/10 || share > expected*12/10 {
				t.Errorf("%s: box %d has %d of 4000 sessions, want about %d", what, n, share, expected)
			}
		}
	}
	check("all are full", spread(box, 4), 1000, 1000, 1000, 1000)
	check("fewer are allowed than are in use", spread(box, 2), 2000, 2000)
	check("one is allowed", spread(box, 1), 4000)
	check("no number is given", spread(box, 0), 4000)
	check("more are allowed than there can be", spread(box, 1000), 0, 0, 0, 0, 4000)
	box = box.MarkFull(0, false).MarkFull(2, false)
	check("two sleep", spread(box, 4), 2000, 0, 2000)
	check("all sleep", spread(box.MarkFull(1, false).MarkFull(3, false), 4), 4000)
	for n := range storage.MaxBoxes {
		box = box.MarkFull(n, true)
	}
	if n := box.Choose(storage.NewID(), storage.MaxBoxes); n < 0 || n >= storage.MaxBoxes {
		t.Errorf("with all boxes full a session goes into box %d", n)
	}
}
