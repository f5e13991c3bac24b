package sqlitestore

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// unsyncedStore returns a store whose fsync behind the writes waits for the test. Each value
// of syncs lets one end, with that error.
func unsyncedStore(t *testing.T) (s *Store, syncs chan<- error) {
	t.Helper()
	results := make(chan error)
	dir := t.TempDir()
	opened := false
	s = open(t, filepath.Join(dir, "store.db"), Options{Behind: true, sync: func() error {
		if !opened {
			opened = true
			return nil
		}
		return <-results
	}})
	t.Cleanup(func() {
		close(results)
		same(t, "Close", s.Close(), nil)
	})
	return s, results
}

func TestAWriteBehindReturnsBeforeItsFsync(t *testing.T) {
	s, syncs := unsyncedStore(t)
	put(t, s, batch("r1", 1, `1`))
	same(t, "events", indexes(read(t, s, "r1", 0)), []storage.Index{1})
	syncs <- nil // it follows at once
}

func TestWhatMustLastWaitsForItsFsync(t *testing.T) {
	for name, write := range map[string]func(s *Store) error{
		"a key": func(s *Store) error { return s.Keys().Create(t.Context(), storage.Key{ID: "k", Tenant: "t"}) },
		"a value": func(s *Store) error {
			_, err := s.SaveValue(t.Context(), storage.Value{Key: storage.ValueKey{Scope: storage.ValueOfServer, Tenant: "t", Server: "s", Name: "n"}, Data: []byte("1")})
			return err
		},
		"a claim": func(s *Store) error {
			_, err := s.Claim(t.Context(), "b", "waiting", 1)
			return err
		},
		"the end of a session": func(s *Store) error {
			x, _, err := s.Load(t.Context(), "s1", "")
			if err != nil {
				return err
			}
			x.State = storage.Ended
			return s.Save(t.Context(), x)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, syncs := unsyncedStore(t)
			if _, err := s.PutItem(t.Context(), storage.Item{Box: "b", ID: "waiting", State: storage.Waiting, Raw: []byte("1")}); err != nil {
				t.Fatal(err)
			}
			syncs <- nil
			if err := s.Create(t.Context(), storage.Session{ID: "s1", Expires: time.Now().Add(time.Hour)}); err != nil {
				t.Fatal(err)
			}
			syncs <- nil
			done := make(chan error, 1)
			go func() { done <- write(s) }()
			select {
			case err := <-done:
				t.Fatalf("it returned before its fsync: %v", err)
			case syncs <- nil:
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAFailedFsyncBehindStopsNewWork(t *testing.T) {
	s, syncs := unsyncedStore(t)
	put(t, s, batch("r1", 1, `1`))
	syncs <- unsynced{errors.New("a broken disk")}
	put(t, s, batch("r2", 1, `1`)) // what runs may still end
	syncs <- unsynced{errors.New("a broken disk")}
	s.health.mu.Lock()
	s.health.probed = time.Now().Add(-time.Hour)
	s.health.mu.Unlock()
	failing := make(chan error, 1)
	go func() { failing <- s.Writable(t.Context()) }()
	syncs <- unsynced{errors.New("a broken disk")}
	wantCode(t, "Writable", <-failing, storage.Unavailable)
}
