package sqlitestore

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestBulk(t *testing.T) {
	storagetest.Bulk(t, storagetest.Harness{
		Open: func(t *testing.T) storage.Store { return open(t, filepath.Join(t.TempDir(), "store.db")) },
	}, nil)
}

// Later writes remove the rows of expired sessions: on average every 256th write
// removes up to 100. A Sweep removes them all.
func TestAbandonedSessionsAreRemovedFromTheFile(t *testing.T) {
	s := fresh(t)
	var all errgroup.Group
	all.SetLimit(64) // they share their syncs of the disk
	for i := range 10_000 {
		x := storage.Session{ID: storage.ID(fmt.Sprint("s", i)), Expires: time.Now().Add(-time.Hour)}
		all.Go(func() error { return s.Create(t.Context(), x) })
	}
	commontest.OK(t, all.Wait())
	if left := count(t, s, "sessions"); left > 9500 {
		t.Errorf("%d rows are left after 10,000 writes", left)
	}
	commontest.OK(t, s.Sweep(t.Context()))
	same(t, "rows after a sweep", count(t, s, "sessions"), 0)
}

func TestAnIdleSessionIsSmall(t *testing.T) {
	s := fresh(t)
	commontest.OK(t, s.Create(t.Context(), storagetest.Idle()))
	var n int
	err := s.writer.db.QueryRowContext(t.Context(), "SELECT length(id)*3 + 8*3 + length(tenant)*2 + length(CAST(record AS BLOB)) + length(init) FROM sessions").Scan(&n)
	commontest.OK(t, err)
	t.Logf("an idle session has %d bytes, with its indexes", n)
	if n > 1500 {
		t.Errorf("%d bytes, want at most 1,500", n)
	}
}
