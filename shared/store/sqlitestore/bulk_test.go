package sqlitestore

import (
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestBulk(t *testing.T) {
	storagetest.Bulk(t, storagetest.Harness{
		Open: func(t *testing.T) storage.Store { return open(t, filepath.Join(t.TempDir(), "store.db")) },
	}, nil)
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
