package native

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func aSession(id storage.ID) storage.Session {
	created := time.Now()
	return storage.Session{
		ID: id, Server: "counter", Tenant: "acme", Principal: "alice", Transport: storage.HTTP, State: storage.Ready,
		Created: created, Expires: created.Add(24 * time.Hour),
	}
}

// eachStore runs a test over the stores of one machine. again opens the same data as
// another process would.
func eachStore(t *testing.T, check func(t *testing.T, again func() storage.Store, s storage.Session)) {
	t.Run("memory", func(t *testing.T) {
		store, s := storagetest.NewMemory(), aSession("s1")
		commontest.OK(t, store.Create(t.Context(), s))
		check(t, func() storage.Store { return store }, s)
	})
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store.db")
		again := func() storage.Store {
			store, err := sqlitestore.Open(path)
			commontest.Check(t, err)
			t.Cleanup(func() { _ = store.Close() })
			return store
		}
		s := aSession("s1")
		commontest.OK(t, again().Create(t.Context(), s))
		check(t, again, s)
	})
}

func TestTwentyColdMessagesAtOnceInitializeOnceAndLoseNoWrite(t *testing.T) {
	eachStore(t, func(t *testing.T, again func() storage.Store, s storage.Session) {
		var inits, doing atomic.Int32
		var messages sync.WaitGroup
		for range 20 {
			messages.Go(func() {
				state := stateOf(again(), s, OfSession)
				err := state.Once(t.Context(), "init", func(ctx context.Context) error {
					commontest.EqualIn(t, "two initialize at once", 1, doing.Add(1))
					defer doing.Add(-1)
					inits.Add(1)
					_, err := Update(ctx, state, "count", func(n int) (int, error) { return n + 100, nil })
					return err
				})
				commontest.Check(t, err)
				_, err = Update(t.Context(), state, "count", func(n int) (int, error) { return n + 1, nil })
				commontest.Check(t, err)
			})
		}
		messages.Wait()
		var count int
		_, err := stateOf(again(), s, OfSession).Load(t.Context(), "count", &count)
		commontest.OK(t, err)
		commontest.EqualIn(t, "initialized", 1, inits.Load())
		commontest.EqualIn(t, "counted", 120, count)
	})
}

func TestWhatFailsOnceIsDoneByTheNext(t *testing.T) {
	store := storagetest.NewMemory()
	state := stateOf(store, aSession("s1"), OfSession)
	broken := errors.New("broken")
	if err := state.Once(t.Context(), "init", func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Fatalf("Once returned %v, want the function's own error", err)
	}
	var done int
	for range 3 {
		commontest.OK(t, state.Once(t.Context(), "init", func(context.Context) error { done++; return nil }))
	}
	commontest.EqualIn(t, "done", 1, done)
}

// unanswered is a store on which one SaveValue, the first one after the time by, succeeds
// but returns Unavailable.
type unanswered struct {
	storage.Store
	by time.Time // from then on
	n  atomic.Int32
}

func (u *unanswered) SaveValue(ctx context.Context, v storage.Value) (storage.Value, error) {
	saved, err := u.Store.SaveValue(ctx, v)
	if err == nil && !time.Now().Before(u.by) && u.n.Add(1) == 1 {
		return storage.Value{}, storage.Errorf(storage.Unavailable, "the answer is lost")
	}
	return saved, err
}

func TestWhatIsDoneOnceSurvivesAnAnswerOfTheStoreThatIsLost(t *testing.T) {
	for name, from := range map[string]time.Duration{"when it is renewed": renew, "when it is done": 2*renew + time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &unanswered{Store: storagetest.NewMemory(), by: time.Now().Add(from)}
				state, done := stateOf(store, aSession("s1"), OfSession), 0
				for range 2 {
					err := state.Once(t.Context(), "init", func(ctx context.Context) error {
						done++
						return storage.Rest(ctx, 2*renew+time.Second)
					})
					commontest.Check(t, err)
				}
				if done != 1 || store.n.Load() == 0 {
					t.Errorf("done %d times, %d answers were lost", done, store.n.Load())
				}
			})
		})
	}
}

func TestWhatAProcessLeftBehindIsTakenOverWhenItsLeaseHasRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := stateOf(storagetest.NewMemory(), aSession("s1"), OfSession)
		_, err := state.save(t.Context(), storage.Value{Key: state.own(oncePrefix + "init")}, once{Until: time.Now().Add(lease)})
		commontest.OK(t, err)
		begun := time.Now()
		commontest.OK(t, state.Once(t.Context(), "init", func(context.Context) error { return nil }))
		commontest.EqualIn(t, "taken over after", lease, time.Since(begun))
	})
}

func TestWhoTakesLongKeepsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := stateOf(storagetest.NewMemory(), aSession("s1"), OfSession)
		var done atomic.Int32
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				commontest.Check(t, state.Once(t.Context(), "init", func(ctx context.Context) error {
					done.Add(1)
					return storage.Rest(ctx, 10*lease)
				}))
			})
		}
		both.Wait()
		commontest.EqualIn(t, "done", 1, done.Load())
	})
}

func TestWhoLostItsLeaseIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := stateOf(storagetest.NewMemory(), aSession("s1"), OfSession)
		err := state.Once(t.Context(), "init", func(ctx context.Context) error {
			k := state.own(oncePrefix + "init")
			v, err := state.store.LoadValue(ctx, k)
			if err == nil {
				_, err = state.save(ctx, v, once{Until: time.Now().Add(lease)})
			}
			commontest.Check(t, err)
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Once returned %v, want that it was stopped", err)
		}
	})
}

func TestSaveIsByTheRevisionThatWasLoaded(t *testing.T) {
	type note struct{ Text string }
	eachStore(t, func(t *testing.T, again func() storage.Store, s storage.Session) {
		a, b := stateOf(again(), s, OfSession), stateOf(again(), s, OfSession)
		got := note{"as it was"}
		if rev, err := a.Load(t.Context(), "note", &got); rev != 0 || err != nil || got.Text != "as it was" {
			t.Fatalf("Load of nothing: %d, %v, %q", rev, err, got.Text)
		}
		rev, err := a.Save(t.Context(), "note", 0, note{"first"})
		commontest.OK(t, err)
		if _, err := b.Save(t.Context(), "note", 0, note{"second"}); !errors.Is(err, storage.Conflict) {
			t.Fatalf("Save over what was not loaded: %v, want a conflict", err)
		}
		loaded, err := b.Load(t.Context(), "note", &got)
		commontest.OK(t, err)
		commontest.Equal(t, note{"first"}, got)
		commontest.EqualIn(t, "revision", rev, loaded)
		_, err = b.Save(t.Context(), "note", loaded, nil)
		commontest.OK(t, err)
		if rev, err := a.Load(t.Context(), "note", &got); rev != 0 || err != nil {
			t.Errorf("Load of what was deleted: %d, %v", rev, err)
		}
	})
}

func TestScopesReachAsFarAsTheySay(t *testing.T) {
	store := storagetest.NewMemory()
	mine := aSession("s1")
	others := map[string]storage.Session{"the same session": mine}
	for name, change := range map[string]func(*storage.Session){
		"another session":   func(s *storage.Session) { s.ID = "s2" },
		"its id again":      func(s *storage.Session) { s.Created = s.Created.Add(time.Minute) },
		"another principal": func(s *storage.Session) { s.ID, s.Principal = "s3", "bob" },
		"another server":    func(s *storage.Session) { s.ID, s.Server = "s4", "other" },
		"another tenant":    func(s *storage.Session) { s.ID, s.Tenant = "s5", "umbrella" },
	} {
		s := mine
		change(&s)
		others[name] = s
	}
	for _, scope := range []Scope{OfSession, OfPrincipal, OfServer} {
		_, err := stateOf(store, mine, scope).Save(t.Context(), "n", 0, 1)
		commontest.OK(t, err)
	}
	got := map[string][]Scope{}
	for name, s := range others {
		for _, scope := range []Scope{OfSession, OfPrincipal, OfServer} {
			var n int
			rev, err := stateOf(store, s, scope).Load(t.Context(), "n", &n)
			commontest.OK(t, err)
			if rev != 0 {
				got[name] = append(got[name], scope)
			}
		}
	}
	want := map[string][]Scope{
		"the same session":  {OfSession, OfPrincipal, OfServer},
		"another session":   {OfPrincipal, OfServer},
		"its id again":      {OfPrincipal, OfServer},
		"another principal": {OfServer},
	}
	commontest.Same(t, want, got)
}
