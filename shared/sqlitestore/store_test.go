package sqlitestore

import (
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
)

func open(t testing.TB, path string, options ...Options) *Store {
	t.Helper()
	s, err := Open(path, options...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	sessiontest.Store(t, sessiontest.Harness{
		Open: func(t *testing.T) session.Store { return open(t, filepath.Join(t.TempDir(), "store.db")) },
		Reopen: func(t *testing.T, s session.Store) session.Store {
			return open(t, s.(*Store).path)
		},
	})
}
