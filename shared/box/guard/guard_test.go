package guard_test

import (
	"log/slog"
	"strings"
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

func TestWithoutAGuardAPanicGoesOn(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it was caught")
		}
	}()
	var none *guard.Guard
	if none.Err() != nil || none.Panicked() != nil {
		t.Error("there was none before")
	}
	defer none.Catch()
	panic("on")
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
		if !<-room || b.Held() != 10 {
			t.Errorf("no room, though only %d are held", b.Held())
		}
		var none *guard.Budget
		if none.Hold(1 << 60); !none.Room() || none.Held() != 0 {
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
