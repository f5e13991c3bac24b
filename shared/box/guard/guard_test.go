package guard_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestTheFirstPanicIsKeptAndEveryOneIsLoggedWithItsStack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log commontest.Lines
		g := guard.New(slog.New(slog.NewTextHandler(&log, nil)), nil, nil)
		if g.Err() != nil {
			t.Errorf("before any: %v", g.Err())
		}
		g.Go(func() { panic("first") })
		<-g.Panicked()
		g.After(time.Second, func() { panic("second") })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if err := g.Err(); err == nil || !strings.HasSuffix(err.Error(), ": first") {
			t.Errorf("the error is %v", err)
		}
		if said := log.Take(); !strings.Contains(said, "panic=first") || !strings.Contains(said, "panic=second") || !strings.Contains(said, "guard_test.go") {
			t.Errorf("the log is %s", said)
		}
	})
}

func TestABudgetHasRoomUntilMoreIsHeldThanItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := guard.NewBudget(10)
		b.Hold(10)
		commontest.EqualIn(t, "room at the bound", true, b.Room())
		b.Hold(1)
		commontest.EqualIn(t, "it is above the bound, and nobody gives back", false, b.Room())
		room := make(chan bool)
		go func() { room <- b.Room() }()
		synctest.Wait()
		b.Hold(-1)
		commontest.EqualIn(t, "room at the bound again", true, <-room)
		var none *guard.Budget
		if none.Hold(1 << 60); !none.Room() {
			t.Error("no budget has a bound")
		}
	})
}

func TestAGoroutineThatHasPanickedDoesTheNextWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guard.New(slog.New(slog.DiscardHandler), nil, nil)
		did := make(chan int, 3)
		for n := range 3 {
			g.Go(func() {
				did <- n
				panic("of one work")
			})
			synctest.Wait()
		}
		commontest.Equal(t, 3, len(did))
		time.Sleep(2 * time.Second) // then no goroutine is left
	})
}

const mib = 1 << 20

// sleeper is a box with one process, which takes memory until it ends.
type sleeper struct {
	since time.Time // zero while it works
	takes int64
	free  *atomic.Int64
}

func (s *sleeper) Idlest() (time.Time, func() <-chan struct{}, bool) {
	return s.since, func() <-chan struct{} {
		ended := make(chan struct{})
		s.free.Add(s.takes)
		s.since = time.Time{}
		close(ended)
		return ended
	}, !s.since.IsZero()
}

func TestAFullMachineLetsIdleProcessesSleepAndThenStartsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Int64
		free.Store(95 * mib)
		m := guard.NewMemory(func() (int64, int64, bool) { return free.Load(), 1024 * mib, true })
		room := func(want string) {
			t.Helper()
			got := "room"
			if err := m.Room(t.Context()); err != nil {
				if full := (guard.FullError{}); !errors.As(err, &full) || full.RetryAfter() != 10*time.Second {
					t.Errorf("%v", err)
				}
				got = "full"
			}
			commontest.Equal(t, want, got)
		}
		began := time.Now()
		room("room")
		room("room")
		room("room") // the memory that the first ones will take is not seen yet
		commontest.EqualIn(t, "the third waited", time.Second, time.Since(began))
		time.Sleep(time.Minute)
		free.Store(31 * mib)
		used, older, working := &sleeper{time.Now().Add(-9 * time.Second), 50 * mib, &free}, &sleeper{time.Now().Add(-time.Minute), 50 * mib, &free}, &sleeper{takes: 50 * mib, free: &free}
		for _, s := range []*sleeper{used, working} {
			defer m.Join(s)()
		}
		room("full") // one was used in the last ten seconds, the other works
		leave := m.Join(older)
		room("room")
		if !older.since.IsZero() || used.since.IsZero() {
			t.Errorf("%v, %v", older, used)
		}
		leave()
		free.Store(0)
		room("room") // in the second that the last one needs, another has been idle for ten
		commontest.EqualIn(t, "it sleeps", true, used.since.IsZero())
		free.Store(0)
		asked := time.Time{}
		m.Ask = func() { asked = time.Now() }
		room("full")
		commontest.EqualIn(t, "others had", 3*time.Second, time.Since(asked))
		m.Ask = func() { time.AfterFunc(time.Second, func() { free.Store(40 * mib) }) }
		room("room")
		time.Sleep(time.Minute)
		room("room")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second/2, func() { cancel(errors.New("over")) })
		if err := m.Room(ctx); err == nil || err.Error() != "over" { // it waits until the one before has taken its memory
			t.Errorf("a start that is given up: %v", err)
		}
	})
}
