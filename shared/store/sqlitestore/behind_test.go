package sqlitestore

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// syncGate holds the fsyncs behind the writes of a store.
type syncGate struct {
	mu      sync.Mutex
	may     chan struct{} // closed: fsyncs end
	err     error         // of each
	reached chan struct{} // capacity 1: an fsync has begun
}

func (s *syncGate) sync() error {
	s.mu.Lock()
	may := s.may
	s.mu.Unlock()
	select {
	case s.reached <- struct{}{}:
	default:
	}
	<-may
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// hold lets no fsync end until let is called.
func (s *syncGate) hold() (let func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.reached:
	default:
	}
	may := make(chan struct{})
	s.may = may
	return sync.OnceFunc(func() { close(may) })
}

func (s *syncGate) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func behindStore(t *testing.T) (*Store, *syncGate) {
	t.Helper()
	with := &syncGate{may: make(chan struct{}), reached: make(chan struct{}, 1)}
	close(with.may)
	s := open(t, filepath.Join(t.TempDir(), "store.db"), Options{Behind: true, sync: with.sync})
	t.Cleanup(func() { commontest.OKIn(t, "Close", s.Close()) })
	return s, with
}

func TestAWriteBehindReturnsBeforeItsFsync(t *testing.T) {
	s, with := behindStore(t)
	let := with.hold()
	defer let()
	put(t, s, batch("r1", 1, `1`))
	commontest.SameIn(t, "events", []storage.Index{1}, indexes(read(t, s, "r1", 0)))
	<-with.reached // it follows at once
}

func TestWhatMustLastWaitsForItsFsync(t *testing.T) {
	for name, write := range map[string]func(s *Store) error{
		"a key": func(s *Store) error { return s.Keys().Create(t.Context(), storage.Key{ID: "k", Tenant: "t"}) },
		"a value": func(s *Store) error {
			key := storage.ValueKey{Scope: storage.ValueOfServer, Tenant: "t", Server: "s", Name: "n"}
			_, err := s.SaveValue(t.Context(), storage.Value{Key: key, Data: []byte("1")})
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
			s, with := behindStore(t)
			_, err := s.PutItem(t.Context(), storage.Item{Box: "b", ID: "waiting", State: storage.Waiting, Raw: []byte("1")})
			commontest.OK(t, err)
			commontest.OK(t, s.Create(t.Context(), storage.Session{ID: "s1", Expires: time.Now().Add(time.Hour)}))
			commontest.OKIn(t, "sync", s.behind.sync()) // the goroutine has nothing left to do
			let := with.hold()
			defer let()
			done := make(chan error, 1)
			go func() { done <- write(s) }()
			<-with.reached
			select {
			case err := <-done:
				t.Errorf("it returned before its fsync: %v", err)
			default:
			}
			let()
			commontest.OKIn(t, "write", <-done)
		})
	}
}

func TestAFailedFsyncBehindStopsNewWork(t *testing.T) {
	s, with := behindStore(t)
	with.fail(unsynced{errors.New("a broken disk")})
	writable := func() error {
		s.health.mu.Lock()
		s.health.probed = time.Time{}
		s.health.mu.Unlock()
		return s.Writable(t.Context())
	}
	_, err := s.Claim(t.Context(), "b", "r", 1)
	wantCode(t, "Claim", err, storage.Unavailable)
	put(t, s, batch("r1", 1, `1`)) // what runs may still end
	wantCode(t, "Writable", writable(), storage.Unavailable)
	with.fail(nil)
	commontest.OKIn(t, "Writable, on a disk that works again", writable())
	commontest.OKIn(t, "Writable", writable())
}
